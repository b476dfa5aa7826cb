"""A table PARTITIONED BY buckets of its key: every fragment of the serving copy is of one bucket, whatever is done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headwater.metastore import Metastore
from headwater.streams import StreamTable
from headwater.streams.serving import compaction, copy_rows, staged_rows
from headwater.streams.serving.serving_copy import open_version
from headwater.tables.partitions import field_ids, parts_of, transformed

SCHEMA = {"id": "bigint", "at": "bigint", "name": "string"}


def rows(ids: Any, at: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "at": [at] * len(ids), "name": [f"{at}-{n}" for n in ids]})


def serving(table: StreamTable) -> Any:
    """The serving copy as last published."""
    made = table.published
    assert made is not None
    return open_version(table._lake(), table.opened()[0], made.version, made.manifest)


def buckets(table: StreamTable, width: int = 4) -> set[int]:
    """The buckets of the serving copy, each fragment seen to be of one, as its file says."""
    dataset = serving(table)
    column = field_ids(dataset)["id"]
    found = set()
    for fragment in dataset.get_fragments():
        (told,) = [part for part in parts_of(fragment.metadata) if part.field == column]
        ids = fragment.to_table(columns=["id"]).column("id").combine_chunks()
        assert set(transformed(ids, "bucket", width).to_pylist()) == {told.value}
        found.add(told.value)
    return found


@pytest.fixture
def table(tmp_path: Path) -> StreamTable:
    by = [{"column": "id", "transform": "bucket", "width": 4}]
    return StreamTable.create(Metastore(str(tmp_path)), ["t"], SCHEMA, ["id"], ["at"], partition_by=by)


def test_publishes_and_tidying_keep_buckets_apart_and_rows_their_ids(
    table: StreamTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.upsert(rows(range(100), 1))
    table.publish()
    assert buckets(table) == {0, 1, 2, 3}
    before = serving(table).to_table(columns=["id"], with_row_id=True).to_pylist()
    table.upsert(rows(range(50, 110), 2))
    table.delete([3, 4])
    table.publish()
    assert buckets(table) == {0, 1, 2, 3}
    monkeypatch.setattr(compaction.due, "__defaults__", (-1, 3, None))
    for at in range(3, 6):
        table.upsert(rows(range(at, 20 * at), at))
        table.publish()
        assert buckets(table) == {0, 1, 2, 3}
    assert len(serving(table).get_fragments()) <= 12
    ids = {row["id"]: row["_rowid"] for row in serving(table).to_table(columns=["id"], with_row_id=True).to_pylist()}
    assert all(ids[row["id"]] == row["_rowid"] for row in before if row["id"] not in (3, 4))
    assert table.verify() == []


def test_columns_that_come_and_go_leave_the_buckets_known(table: StreamTable) -> None:
    table.upsert(rows(range(20), 1))
    table.publish()
    table.evolve(add={"size": "int"}, rename={"name": "title"})
    table.upsert([{"id": n, "at": 2, "title": "x", "size": n} for n in range(10, 30)])
    table.publish()
    assert buckets(table) == {0, 1, 2, 3}
    table.evolve(drop=["title"])
    table.upsert([{"id": 1, "at": 3, "size": None}])
    table.publish()
    assert buckets(table) == {0, 1, 2, 3}
    assert np.sum([row["size"] or 0 for row in table.to_arrow().to_pylist()]) == sum(range(10, 30))
    assert table.verify() == []


@pytest.mark.parametrize("by", [(), [{"column": "id", "transform": "bucket", "width": 4}]])
def test_two_first_publishes_at_once_are_one_version_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: Any
) -> None:
    table = StreamTable.create(Metastore(str(tmp_path)), ["t"], SCHEMA, ["id"], ["at"], partition_by=by)
    table.upsert(rows(range(10), 1))
    other, write, done = StreamTable(Metastore(str(tmp_path)), ["t"]), copy_rows.write_rows, list[int]()

    def late(*args: Any) -> Any:
        if not done:
            done.append(1)
            other.publish()
            other.upsert(rows([100], 1))
        return write(*args)

    monkeypatch.setattr(staged_rows, "write_rows", late)
    published = table.publish()
    assert done
    assert serving(table).count_rows() == published.rows == 11
    assert table.verify() == []


def test_a_column_is_added_to_a_table_that_was_published_empty(tmp_path: Path) -> None:
    by = ("id", "bucket", 4)
    table = StreamTable.create(Metastore(str(tmp_path)), ["t"], {"id": "int64"}, ["id"], partition_by=[by])
    table.publish()
    table.evolve(add={"note": "string"})
    table.upsert([{"id": number, "note": "a"} for number in range(6)])
    assert (table.publish().rows, table.verify()) == (6, [])
