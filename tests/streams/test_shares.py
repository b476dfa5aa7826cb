"""A publish in shares is the publish in one piece: rows, row ids, counts, derived values, history, proof."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.metastore import Metastore
from headwater.streams.log_files import ROW_GROUP, Share, row_groups_of
from headwater.streams.position_views import Published
from headwater.streams.shares import Publish, share_of_work
from headwater.streams.table import StreamTable, publish_tables
from tests.streams import features
from tests.streams.histories import History, histories
from tests.streams.oracle import sorted_rows
from tests.streams.test_histories import land, new_table, oracle, rows_of, served


class Here:
    """Hands that do shares in this process, through JSON as it travels."""

    def __init__(self, table: StreamTable, count: int = 4) -> None:
        self._lake = table._lake()
        self._count = count
        self.ran = 0

    def shares(self, rows: int) -> int:
        return self._count

    def run(self, work: Publish, count: int) -> list[Any]:
        self.ran += count
        done = [json.dumps(share_of_work(self._lake, work, Share(number, count))) for number in range(count)]
        return [json.loads(text) for text in done]


def publish(table: StreamTable, count: int = 4) -> Published:
    return publish_tables(table._lake(), [table.path], None, Here(table, count))[0]


@settings(max_examples=25, deadline=None)
@given(histories(), st.data())
def test_shares_give_what_the_oracle_says_at_any_publish_rhythm(history: History, data: st.DataObject) -> None:
    rules = history.rules
    with new_table(rules, late="quarantine") as table:
        late = too_late = 0
        for batch in history.batches:
            land(table, rules, batch)
            if data.draw(st.booleans()):
                done = publish(table, data.draw(st.sampled_from([1, 2, 8])))
                late, too_late = late + done.late, too_late + done.too_late
        before = table.published
        done = publish(table)
        if before is None or before.version != done.version:
            late, too_late = late + done.late, too_late + done.too_late
        everything = oracle(rules, history.batches)
        assert rows_of(served(table)) == rows_of(table.to_arrow()) == sorted_rows(everything.state())
        assert (late, too_late) == (everything.late, everything.too_late)
        assert table.quarantine().num_rows == late + too_late
        assert table.verify() == []


def rows(ids: range, at: int, text: str) -> pa.Table:
    columns = {"id": pa.array(ids), "at": pa.array([at] * len(ids)), "text": [f"{text}{id}" for id in ids]}
    return pa.table({**columns, "size": pa.array(ids)})


def state(table: StreamTable) -> dict[int, tuple[Any, ...]]:
    """What clients see, by key, with the row ids."""
    stream, _ = table.opened()
    found = lance.dataset(f"{table._lake().uri}/{stream.serving}").scanner(with_row_id=True).to_table()
    return {row["id"]: tuple(row.values()) for row in found.to_pylist()}


def test_changed_rows_keep_their_ids_and_derived_values_and_the_history_and_the_index_follow(
    metastore: Metastore,
) -> None:
    column = {"function": "tests.streams.features:embed", "inputs": ["text"], "type": "float32[2]", "version": "1"}
    properties = {"column.vector": json.dumps(column), "history": "scd2"}
    schema = {"id": "int64", "at": "int64", "text": "string", "size": "int64"}
    table = StreamTable.create(metastore, ["t"], schema, "id", "at", properties=properties)
    table.upsert(rows(range(1000), 1, "a"))
    publish(table)
    first = state(table)
    features.CALLS.clear()
    changed = rows(range(100, 300), 2, "a").set_column(3, "size", pa.array(range(200)))
    table.upsert(changed)
    table.upsert(rows(range(990, 1100), 2, "bbb"))
    table.delete([5, 6])
    done = publish(table)
    second = state(table)
    assert sum(features.CALLS) == 110  # of the rest no input changed
    assert len(second) == done.rows == 1098
    assert {id: row[-1] for id, row in second.items() if id in first} == {
        id: row[-1] for id, row in first.items() if id not in (5, 6)
    }
    assert second[150][3:5] == (50, first[150][4])
    assert (second[995][4], second[1099][4]) == ([6.0, 1.0], [7.0, 1.0])
    assert table.coverage() != {}
    assert table.verify() == []
    history = StreamTable(metastore, ["t__history"])
    stream, _ = history.opened()
    kept = lance.dataset(f"{table._lake().uri}/{stream.serving}")
    assert kept.count_rows("valid_to IS NULL") == 1098


def test_a_table_without_keys_is_published_in_shares_of_its_rows(metastore: Metastore) -> None:
    table = StreamTable.create(metastore, ["t"], {"n": "int64"})
    many = 2 * ROW_GROUP + 5
    table.append(pa.table({"n": pa.array(range(many))}))
    hands = Here(table)
    publish_tables(table._lake(), [["t"]], None, hands)
    table.append(pa.table({"n": pa.array([-1])}))
    assert publish(table).rows == many + 1
    assert sorted(served(table).column("n").to_numpy().tolist()) == [-1, *range(many)]
    assert table.verify() == []
    assert hands.ran == 4


@pytest.mark.parametrize("buckets", [1, 4, 16])
def test_a_share_reads_only_the_row_groups_that_can_hold_its_keys(tmp_path: Path, buckets: int) -> None:
    parts = [[bucket, 1] for bucket in range(buckets)]
    with pq.ParquetWriter(tmp_path / "file", pa.schema([("n", pa.int64())])) as writer:
        for bucket, _ in parts:
            writer.write_table(pa.table({"n": [bucket]}))
    metadata = pq.read_metadata(tmp_path / "file")
    known = {"buckets": buckets, "bucket_map": parts}
    found = [row_groups_of(metadata, known, Share(number, 4)) for number in range(4)]
    assert (
        found
        == {
            1: [[0]] * 4,
            4: [[0], [1], [2], [3]],
            16: [list(range(start, start + 4)) for start in range(0, 16, 4)],
        }[buckets]
    )
