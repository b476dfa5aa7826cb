"""A fresh read in parts: fragments without the rows that the tail touches, and those rows, are the whole read."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from headwater.metastore import Metastore
from headwater.streams import StreamTable
from headwater.streams.position_views import view_at
from headwater.streams.reading import read, read_touched, read_untouched
from headwater.streams.serving_copy import open_version

DERIVED = '{"function": "tests.streams.features:embed", "inputs": ["text"], "type": "float32[2]", "version": "1"}'


def sorted_rows(table: pa.Table) -> list[str]:
    return sorted(map(str, table.to_pylist()))


def check(stream: StreamTable, columns: list[str], filter: str | None) -> None:
    opened, snapshot = stream._open()
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
