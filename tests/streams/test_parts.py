"""A fresh read in parts: fragments without the rows that the tail touches, and those rows, are the whole read."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from headwater.metastore import Metastore
from headwater.streams import StreamTable
from headwater.streams.reading import fresh_reads, table_reads
from headwater.streams.reading.fresh_reads import read
from headwater.streams.reading.position_views import view_at
from headwater.streams.reading.table_reads import read_touched, read_untouched
from headwater.streams.serving.copy_rows import find_rows
from headwater.streams.serving.serving_copy import open_version

DERIVED = '{"function": "tests.streams.features:embed", "inputs": ["text"], "type": "float32[2]", "version": "1"}'


def sorted_rows(table: pa.Table) -> list[str]:
    return sorted(map(str, table.to_pylist()))


def check(stream: StreamTable, columns: list[str], filter: str | None) -> None:
    opened, snapshot = stream.opened()
    lake, view = stream._lake(), view_at(snapshot, opened)
    assert view.base is not None
    dataset = open_version(lake, opened, view.base.version, view.base.manifest)
    parts = [read_touched(lake, view, columns, filter)]
    for fragment in dataset.get_fragments():
        parts.extend(read_untouched(lake, view, [fragment.fragment_id], columns, filter))
    assert sorted_rows(pa.concat_tables(parts)) == sorted_rows(read(lake, view, columns, filter))


@pytest.mark.parametrize("seed", range(3))
def test_the_parts_of_a_fresh_read_are_the_whole_read(metastore: Metastore, seed: int) -> None:
    dice = random.Random(seed)
    metastore.run(lambda tx: tx.create_namespace(["raw"]))
    schema = {"id": "bigint", "at": "bigint", "text": "string", "kind": "int"}
    stream = StreamTable.create(metastore, ["raw", "t"], schema, ["id"], ["at"], properties={"column.v": DERIVED})
    for moment in range(12):
        rows: list[dict[str, Any]] = [
            {"id": dice.randrange(30), "at": moment + dice.randrange(3), "text": dice.choice(["a", "bb", None])}
            for _ in range(8)
        ]
        stream.upsert([row if dice.random() < 0.7 else {"id": row["id"], "at": row["at"]} for row in rows])
        stream.delete([row["id"] for row in rows[:2]])
        if moment % 3 == 1:
            stream.publish()
        if moment == 7:
            stream.evolve(add={"size": "int"}, rename={"kind": "sort"})
        if moment > 1:
            check(stream, list(stream.definition.shown), None)
            check(stream, ["text"], "id > 10 AND text IS NOT NULL")


def test_the_parts_of_a_log_without_keys_are_the_whole_read(metastore: Metastore) -> None:
    metastore.run(lambda tx: tx.create_namespace(["raw"]))
    stream = StreamTable.create(metastore, ["raw", "t"], {"id": "bigint", "text": "string"})
    stream.append([{"id": 1, "text": "a"}, {"id": 1, "text": "a"}])
    stream.publish()
    stream.append([{"id": 1, "text": "a"}])
    check(stream, ["id", "text"], None)
    check(stream, ["id"], "id = 1")


@pytest.mark.parametrize("sequence", [["at"], []], ids=["sequence", "none"])
@pytest.mark.parametrize("whole", [True, False], ids=["whole rows", "partial rows"])
def test_the_parts_of_a_table_without_derived_columns_are_the_whole_read(
    metastore: Metastore, sequence: list[str], whole: bool
) -> None:
    """Late events leave the row of the base, which the tail's part must have read then."""
    dice = random.Random(7)
    metastore.run(lambda tx: tx.create_namespace(["raw"]))
    schema = {"id": "bigint", "at": "bigint", "text": "string", "kind": "int"}
    stream = StreamTable.create(metastore, ["raw", "t"], schema, ["id"], sequence)
    for moment in range(8):
        rows = [
            {"id": dice.randrange(20), "at": dice.randrange(10 * moment + 9), "text": f"{moment}", "kind": number}
            for number in range(8)
        ]
        stream.upsert([row if whole or number % 2 else {**row, "text": None} for number, row in enumerate(rows)])
        if not whole:
            stream.upsert([{"id": row["id"], "at": row["at"], "kind": 9} for row in rows[:3]])
        stream.delete([row["id"] for row in rows[:2]])
        if moment % 3 == 1:
            stream.publish()
        if moment > 0:
            check(stream, ["id", "at", "text", "kind"], None)
            check(stream, ["kind"], None)
            check(stream, ["text"], "kind > 3")


@pytest.mark.parametrize(("sequence", "read"), [(["at"], [["id", "at"]]), ([], [])], ids=["sequence", "none"])
def test_a_tail_of_whole_rows_reads_of_the_base_what_decides_which_row_stands(
    metastore: Metastore, monkeypatch: pytest.MonkeyPatch, sequence: list[str], read: list[list[str]]
) -> None:
    metastore.run(lambda tx: tx.create_namespace(["raw"]))
    schema = {"id": "bigint", "at": "bigint", "text": "string"}
    stream = StreamTable.create(metastore, ["raw", "t"], schema, ["id"], sequence)
    stream.upsert([{"id": number, "at": 1, "text": "old"} for number in range(9)])
    stream.publish()
    stream.upsert([{"id": number, "at": 2, "text": "new"} for number in range(3)])
    opened, snapshot = stream.opened()
    found: list[list[str]] = []

    def noted(dataset: Any, keys: Any, index: Any, wanted: Any, columns: list[str], *others: Any) -> Any:
        found.append(list(columns))
        return find_rows(dataset, keys, index, wanted, columns, *others)

    monkeypatch.setattr(fresh_reads, "find_rows", noted)
    rows = read_touched(stream._lake(), view_at(snapshot, opened), ["id", "text"])
    assert sorted_rows(rows) == [str({"id": number, "text": "new"}) for number in range(3)]
    assert found == read


def test_the_keys_of_a_tail_are_read_once_for_all_parts(metastore: Metastore, monkeypatch: pytest.MonkeyPatch) -> None:
    metastore.run(lambda tx: tx.create_namespace(["raw"]))
    stream = StreamTable.create(metastore, ["raw", "t"], {"id": "bigint"}, ["id"])
    stream.upsert([{"id": 1}, {"id": 2}])
    stream.publish()
    stream.upsert([{"id": 2}])
    opened, snapshot = stream.opened()
    lake, view = stream._lake(), view_at(snapshot, opened)
    first = table_reads.TAIL_KEYS.of(lake, view)
    assert first is not None
    assert table_reads.TAIL_KEYS.of(lake, view) is first
    stream.upsert([{"id": 1}])
    opened, snapshot = stream.opened()
    assert table_reads.TAIL_KEYS.of(lake, view_at(snapshot, opened)) is not first
    check(stream, ["id"], None)
