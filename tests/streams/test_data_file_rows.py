"""Rows of fragments as their data files have them: what a scan finds, and what Lance reads of deletions by us."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.fragment import RowIdSequence

from headwater.streams.rows.row_keys import KeyIndex
from headwater.streams.serving import copy_rows
from headwater.streams.serving.copy_rows import delete_rows
from headwater.streams.serving.row_ids import ids_at, ids_of, kept
from headwater.tables.scan import data_file_rows as rows_of_files
from headwater.tables.scan.data_file_rows import as_bitmap, bitmap_of, file_rows

COLUMNS = ["id", "text"]


def _table(start: int, end: int) -> pa.Table:
    return pa.table({"id": np.arange(start, end), "text": [f"text {n % 7}" for n in range(start, end)]})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a dataset of three fragments with stable row ids; its name has what addresses write otherwise."""
    place = tmp_path / "a b%20c.lance"
    lance.write_dataset(_table(0, 70_000), place, enable_stable_row_ids=True)
    lance.write_dataset(_table(70_000, 71_000), place, mode="append")
    lance.write_dataset(_table(71_000, 71_001), place, mode="append")
    return place


def _manifest(folder: Path) -> bytes:
    return min((folder / "_versions").glob("*.manifest")).read_bytes()


def _both(folder: Path, keys: Any) -> tuple[pa.Table, pa.Table]:
    """The rows of keys, from the data files and by a scan."""
    dataset, index = lance.dataset(folder), KeyIndex([pa.array(keys)])
    own = file_rows(dataset, COLUMNS)
    assert own is not None
    found = copy_rows._in_files(own, ["id"], index, COLUMNS, _manifest(folder))
    assert found is not None
    scanned = list(copy_rows._scanned(dataset, ["id"], index, COLUMNS, None))
    return pa.Table.from_batches(found).sort_by("_rowaddr"), pa.Table.from_batches(scanned).sort_by("_rowaddr")


def test_data_files_give_what_a_scan_gives(folder: Path) -> None:
    dice = np.random.default_rng(1)
    for count in (1, 10, 6_000, 30_000):
        keys = dice.choice(72_000, count, replace=False)
        ours, scanned = _both(folder, keys)
        assert ours.equals(scanned)
        gone = ", ".join(map(str, dice.choice(71_000, count // 2 + 1, replace=False)))
        lance.dataset(folder).delete(f"id IN ({gone})")
        ours, scanned = _both(folder, keys)
        assert ours.equals(scanned)


def test_columns_that_are_not_in_one_file_as_they_are_named_are_scanned(folder: Path) -> None:
    dataset = lance.dataset(folder)
    dataset.add_columns({"more": "id + 1"})
    assert file_rows(lance.dataset(folder), COLUMNS) is None
    other = folder.parent / "renamed.lance"
    renaming: Any = {"path": "text", "name": "words"}
    lance.write_dataset(_table(0, 10), other).alter_columns(renaming)
    assert file_rows(lance.dataset(other), ["words"]) is None
    nested = folder.parent / "nested.lance"
    lance.write_dataset(pa.table({"s": [{"a": 1, "b": 2}], "id": [1]}), nested)
    assert file_rows(lance.dataset(nested), ["s"]) is None


def test_rows_that_we_delete_are_deleted_for_lance(folder: Path) -> None:
    dice, there = np.random.default_rng(2), set(range(71_001))
    for count in (3, 40_000, 1):
        dataset = lance.dataset(folder)
        found = dataset.scanner(columns=["id"], with_row_address=True).to_table()
        places = dice.choice(found.num_rows, count, replace=False)
        removed, changed = delete_rows(dataset, found.column("_rowaddr").to_numpy()[places].astype(np.int64))
        operation = lance.LanceOperation.Delete(changed, removed, "false")
        lance.LanceDataset.commit(folder, operation, read_version=dataset.version)
        there -= set(found.column("id").to_numpy()[places].tolist())
        now = lance.dataset(folder)
        assert set(now.to_table(columns=["id"]).column("id").to_pylist()) == there
        assert now.count_rows() == len(there)
        now.validate()


def test_a_fragment_of_which_all_rows_are_deleted_is_removed(folder: Path) -> None:
    removed, changed = delete_rows(lance.dataset(folder), np.array([2 << 32], np.int64))
    assert (removed, changed) == ([2], [])


@pytest.mark.parametrize("rows", [1, 9, 65_536, 65_537, 300_000])
@pytest.mark.parametrize("share", [0.001, 0.05, 0.9, 1])
def test_a_bitmap_is_read_as_it_was_written(rows: int, share: float) -> None:
    mask = np.random.default_rng(rows).random(rows) < share
    assert (bitmap_of(as_bitmap(mask), rows) == mask).all()


def test_a_bitmap_of_runs_is_read() -> None:
    runs = np.array([2, 5, 9, 100, 0], "<u2")  # two runs: 5 to 14, and 100
    head = np.array([12347], "<u4").tobytes() + b"\x01" + np.array([0, 10], "<u2").tobytes()
    assert np.flatnonzero(bitmap_of(head + runs.tobytes(), 200)).tolist() == [*range(5, 15), 100]
    with pytest.raises(ValueError, match="not a roaring bitmap"):
        bitmap_of(b"\0" * 8, 1)


@pytest.mark.parametrize(
    "ids",
    [
        range(5, 900),
        [*range(7), *range(9, 800)],
        [1, 70_000, 1 << 40],
        range(0, 4_000, 3),
        [4, 1, 3],
        [*range(9), 20, 10],
    ],
)
def test_ids_are_read_as_lance_writes_them(ids: Any) -> None:
    sequence = bytes(json.loads(RowIdSequence(list(ids)).to_inline_metadata().json())["Inline"])
    places = np.array([len(list(ids)) - 1, 0, 2])
    found = ids_at(sequence, places)
    assert found is not None
    assert found.tolist() == [list(ids)[place] for place in places]


def test_ids_of_an_unknown_kind_are_not_guessed() -> None:
    known = kept(np.array([1, 2]), np.array([1, 1])).ids
    assert ids_at(known.replace(b"\x0a", b"\x3a", 2), np.array([0])) is None
    assert ids_at(b"", np.array([0])) is None


def test_a_manifest_says_the_ids_of_each_fragment(folder: Path) -> None:
    found = {id: ids_at(text, np.array([0])) for id, text in ids_of(_manifest(folder)).items()}
    assert {id: ids.tolist() for id, ids in found.items() if ids is not None} == {0: [0], 1: [70_000], 2: [71_000]}


def test_kept_columns_take_a_bounded_room_and_those_asked_for_last_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_of_files, "KEPT_BYTES", 2_000)
    kept_columns, table = rows_of_files._Kept(), pa.table({"id": np.arange(100)})
    for name in "abc":
        kept_columns.begin()
        kept_columns.put(name, table)
    assert [name for name in "abc" if kept_columns.get(name, ["id"]) is not None] == ["a", "b"]
    assert kept_columns.get("a", ["other"]) is None
    for _ in range(rows_of_files.KEPT_READS + 1):
        kept_columns.begin()
        kept_columns.get("b", ["id"])
    kept_columns.put("c", table)
    assert [name for name in "abc" if kept_columns.get(name, ["id"]) is not None] == ["b", "c"]
