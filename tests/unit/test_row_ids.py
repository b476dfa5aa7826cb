"""Row ids and deletion files as Lance writes them are read as Lance reads them."""

from __future__ import annotations

import glob
import json
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lance.fragment import RowIdSequence

from headwater.namespace.versions.same_rows import deleted_places, row_ids


@settings(max_examples=60)
@given(st.lists(st.integers(0, 2**60), unique=True, max_size=40), st.integers(0, 400), st.integers(0, 70_000))
def test_row_ids_in_any_form(scattered: list[int], run: int, start: int) -> None:
    holes = [start + number for number in range(run) if number % 9]
    for ids in (scattered, sorted(scattered), holes, [start + number for number in range(run)], holes + scattered):
        if ids and len(set(ids)) == len(ids):
            kept = RowIdSequence(ids).to_inline_metadata()
            assert row_ids(bytes(json.loads(kept.json())["Inline"])).tolist() == ids


@pytest.mark.parametrize("where", ["id = 3", "id % 3 = 0", "id % 1000 = 5", "id < 90000", "id % 70000 < 300"])
def test_deletion_files_of_both_kinds(tmp_path: Path, where: str) -> None:
    dataset = lance.write_dataset(pa.table({"id": np.arange(100_000)}), str(tmp_path / "t"))
    dataset.delete(where)
    (path,) = glob.glob(f"{tmp_path}/t/_deletions/*")
    places = set(deleted_places(Path(path).read_bytes(), path.endswith(".bin")).tolist())
    assert places == set(range(100_000)) - set(dataset.to_table().column("id").to_pylist())


@pytest.mark.parametrize("data", [b"", b"xx", b"\x3a\x30\0\0\xff\xff\xff\xff", b"\x3b\x30\xff\xff"])
def test_what_is_no_bitmap_is_named(data: bytes) -> None:
    with pytest.raises(ValueError, match="bitmap"):
        deleted_places(data, is_bitmap=True)
    with pytest.raises(ValueError, match="cannot be read"):
        deleted_places(data, is_bitmap=False)
