"""Fragments written anew by us hold what Lance's own compaction would leave: rows, ids and the versions they tell."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.fragment import FragmentMetadata
from lance.optimize import Compaction

from headwater.names import ObjectId
from headwater.streams.serving.compaction import live_rows_of
from headwater.tables.handle import TableHandle, fragment_of
from headwater.tables.scan.data_file_rows import is_plain
from headwater.tables.scan.prune import live_batches

TOLD = ["id", "v", "_rowid", "_row_created_at_version", "_row_last_updated_at_version"]
OPTIONS: Any = {"target_rows_per_fragment": 10_000, "materialize_deletions_threshold": 0.1}


def worn(folder: Path) -> Any:
    """Two fragments that have lost rows, and one of rows that were changed."""
    rows = pa.table({"id": np.arange(1000), "v": [str(number) for number in range(1000)]})
    dataset = lance.write_dataset(rows, folder, max_rows_per_file=500, enable_stable_row_ids=True)
    changed = pa.table({"id": np.arange(0, 1000, 5), "v": ["new"] * 200})
    dataset.merge_insert("id").when_matched_update_all().execute(changed)
    dataset.delete("id % 7 = 3")
    return lance.dataset(folder)


def compacted(folder: Path, ours: bool) -> Any:
    dataset = lance.dataset(folder)
    groups, numbers = [], count(100)
    for task in Compaction.plan(dataset, OPTIONS).tasks:
        old = [fragment_of(dataset, each.id).metadata for each in task.fragments]
        if ours:
            found = live_rows_of(dataset, old, TableHandle(ObjectId(("t",)), str(folder)), (), 300)
            assert found is not None
        else:
            told = json.loads(task.execute(dataset).json())["new_fragments"]
            found = [FragmentMetadata.from_json(json.dumps(each)) for each in told]
        for fragment in found:
            fragment.id = next(numbers)
        groups.append(lance.LanceOperation.RewriteGroup(old, found))
    assert groups
    operation = lance.LanceOperation.Rewrite(groups, [])
    return lance.LanceDataset.commit(str(folder), operation, read_version=dataset.version)


def test_rows_ids_and_versions_are_those_that_lance_leaves(tmp_path: Path) -> None:
    before = worn(tmp_path / "ours").scanner(columns=TOLD).to_table()
    worn(tmp_path / "theirs")
    ours, theirs = compacted(tmp_path / "ours", True), compacted(tmp_path / "theirs", False)
    assert not any(each.metadata.num_deletions for each in ours.get_fragments())
    assert max(each.metadata.physical_rows for each in ours.get_fragments()) <= 300
    found = ours.scanner(columns=TOLD).to_table().sort_by("_rowid")
    assert found.equals(before.sort_by("_rowid"))
    assert found.equals(theirs.scanner(columns=TOLD).to_table().sort_by("_rowid"))
    again = compacted(tmp_path / "ours", True) if Compaction.plan(ours, OPTIONS).tasks else ours
    assert again.scanner(columns=TOLD).to_table().sort_by("_rowid").equals(found)


@pytest.mark.parametrize("with_ids", [False, True])
def test_live_rows_are_those_of_a_scan(tmp_path: Path, with_ids: bool) -> None:
    dataset = worn(tmp_path)
    for fragments in (None, dataset.get_fragments()[1:]):
        options: dict[str, Any] = {"columns": ["v"], "with_row_id": with_ids, "with_row_address": True}
        found = pa.Table.from_batches(live_batches(dataset, fragments, batch_size=64, **options))
        wanted = dataset.scanner(fragments=fragments, **options).to_table()
        assert found.num_rows
        assert found.select(wanted.schema.names).equals(wanted)


def test_columns_that_only_lances_writer_keeps_are_left_to_it() -> None:
    plain = pa.schema(
        {"a": pa.int64(), "m": pa.map_(pa.string(), pa.list_(pa.float32(), 3)), "s": pa.struct([("x", pa.int32())])}
    )
    assert is_plain(plain)
    assert not is_plain(pa.schema([pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})]))
    assert not is_plain(pa.schema([pa.field("j", pa.string(), metadata={"ARROW:extension:name": "arrow.json"})]))
    assert not is_plain(pa.schema({"s": pa.struct([("j", pa.json_())])}))
