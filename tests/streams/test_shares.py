"""A publish in shares is the publish in one piece: rows, row ids, counts, derived values, history, proof."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.metastore import Metastore
from headwater.streams.log.log_files import bucket_count
from headwater.streams.log.stored_events import ROW_GROUP, LogShard, row_groups_of
from headwater.streams.reading.position_views import Published
from headwater.streams.serving import merge, publish_tasks, scd2, staged_rows
from headwater.streams.serving.publication import publish_tables, work_of
from headwater.streams.table import StreamTable
from headwater.work import LocalRunner, Task
from tests.streams import features
from tests.streams.histories import History, histories
from tests.streams.oracle import sorted_rows
from tests.streams.test_histories import land, new_table, oracle, rows_of, served


class Here(LocalRunner):
    """Runs tasks in this process, as they travel: the tasks by pickle and the answers as JSON."""

    cores = 2

    def __init__(self) -> None:
        self.ran: list[str] = []

    def in_driver(self, rows: int, calls_functions: bool = False) -> bool:
        return False

    def run(self, tasks: Sequence[Task], what: str = "") -> list[Any]:
        self.ran += [task.function.partition(":")[2] for task in tasks]
        return [json.loads(json.dumps(Task.unpacked(task.packed()).run())) for task in tasks]


def publish(
    table: StreamTable, count: int = 4, runner: Here | None = None, by_fragments: bool = False, whole: bool = False
) -> Published:
    """Publish in so many tasks by keys, or by the fragments that have the keys, however small the table is.

    `whole`: by one task, where that can be.
    """
    parts = merge.LEAST_BASE if not by_fragments else 0
    with (
        patch.object(publish_tasks, "is_one_task", publish_tasks.is_one_task if whole else lambda *_: False),
        patch.object(merge, "LEAST_BASE", parts),
        patch.object(merge, "are_few", lambda *_: not by_fragments),
        patch.object(publish_tasks, "task_count", lambda *_: count),
        patch.object(scd2, "task_count", lambda *_: count),
    ):
        return publish_tables(table._lake(), [table.path], None, runner or Here())[0]


@settings(max_examples=25, deadline=None)
@given(histories(), st.data())
def test_shares_give_what_the_oracle_says_at_any_publish_rhythm(history: History, data: st.DataObject) -> None:
    rules = history.rules
    with new_table(rules, late="quarantine") as table:
        late = too_late = 0
        for batch in history.batches:
            land(table, rules, batch)
            if data.draw(st.booleans()):
                count, kinds = (
                    data.draw(st.sampled_from([1, 2, 8])),
                    (data.draw(st.booleans()), data.draw(st.booleans())),
                )
                done = publish(table, count, by_fragments=kinds[0], whole=kinds[1])
                late, too_late = late + done.late, too_late + done.too_late
        before = table.published
        done = publish(table, by_fragments=data.draw(st.booleans()), whole=data.draw(st.booleans()))
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


def narrow(ids: range, at: int, text: str) -> pa.Table:
    found = rows(ids, at, text)
    return found.set_column(3, "size", found.column("size").cast(pa.int32()))


def state(table: StreamTable) -> dict[int, tuple[Any, ...]]:
    """What clients see, by key, with the row ids."""
    stream, _ = table.opened()
    found = lance.dataset(f"{table._lake().uri}/{stream.serving}").scanner(with_row_id=True).to_table()
    return {row["id"]: tuple(row.values()) for row in found.to_pylist()}


def test_tasks_divide_the_fragments_of_a_large_table_and_only_new_keys_take_a_second_job(metastore: Metastore) -> None:
    schema = {"id": "int64", "at": "int64", "text": "string", "size": "int64"}
    table = StreamTable.create(metastore, ["t"], schema, "id", "at")
    for start in (0, 1000):
        table.upsert(rows(range(start, start + 1000), 1, "a"))
        publish(table, 1)
    first = state(table)
    table.upsert(rows(range(900, 1100), 2, "b"))
    runner = Here()
    publish(table, 1, runner, by_fragments=True)
    assert runner.ran == ["run_share", "run_share"]
    changed = state(table)
    assert {id for id in changed if changed[id] != first[id]} == set(range(900, 1100))
    assert [changed[id][-1] for id in changed] == [first[id][-1] for id in changed]
    table.upsert(rows(range(1900, 2100), 3, "c"))
    table.delete(rows(range(10), 3, "").select(["id", "at"]))
    runner = Here()
    publish(table, 2, runner, by_fragments=True)
    assert Counter(runner.ran) == {"run_share": 4, "join_tombstones": 1}
    assert sorted(state(table)) == list(range(10, 2100))
    assert table.verify() == []


def test_one_task_folds_commits_indexes_and_compacts_and_a_publish_after_an_undo_too(
    metastore: Metastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.streams.serving.compaction.MANY", 2)
    schema = {"id": "int64", "at": "int64", "text": "string", "size": "int64"}
    table = StreamTable.create(metastore, ["t"], schema, "id", "at")
    versions, runner = [], Here()
    for at in range(1, 5):
        table.ingest(rows(range(at, 300, 2), at, "a"), source=f"batch {at}")
        versions.append(publish(table, runner=runner, whole=True).version)
    assert runner.ran == ["run_publish"] * 4
    assert versions[3] > versions[2] + 1  # its rows, and the small fragments joined
    before = state(table)
    assert (len(before), before[298][1], before[299][1], table.verify()) == (299, 4, 3, [])
    table.undo(source="batch 4")
    publish(table, runner=runner, whole=True)
    after = state(table)
    assert (after[298][1], table.verify(), runner.ran[4:]) == (2, [], ["run_publish"])
    assert [row[-1] for row in after.values()] == [before[id][-1] for id in after]


def test_a_task_that_another_publish_has_overtaken_is_done_again(metastore: Metastore) -> None:
    class Overtaken(Here):
        def run(self, tasks: Sequence[Task], what: str = "") -> list[Any]:
            if not self.ran:
                other = StreamTable(metastore, ["t"])
                other.upsert(rows(range(50, 60), 2, "b"))
                other.publish()
            return super().run(tasks, what)

    schema = {"id": "int64", "at": "int64", "text": "string", "size": "int64"}
    table = StreamTable.create(metastore, ["t"], schema, "id", "at")
    table.upsert(rows(range(100), 1, "a"))
    table.publish()
    table.upsert(rows(range(50), 2, "b"))
    runner = Overtaken()
    publish(table, runner=runner, whole=True)
    assert set(runner.ran) == {"run_publish"}
    assert ({row[1] for id, row in state(table).items() if id < 60}, table.verify()) == ({2}, [])


def test_one_task_is_for_few_events_and_a_base_that_it_reads_soon(metastore: Metastore) -> None:
    schema = {"id": "int64", "at": "int64", "text": "string", "size": "int64"}
    table = StreamTable.create(metastore, ["t"], schema, "id", "at")
    table.upsert(rows(range(100), 1, "a"))
    work = work_of(metastore.now(), table.opened()[0])

    def is_one(events: int, base: int) -> bool:
        known = Published(1, 1, "", base)
        with patch.object(publish_tasks.Publish, "rows", events), patch.object(publish_tasks.Publish, "current", known):
            return publish_tasks.is_one_task(work, Here())

    assert [is_one(10**5, 10**6), is_one(10**6, 10**6), is_one(10**5, 10**7), is_one(10, 10**8)] == [
        True, False, False, True
    ]  # fmt: skip
    assert not publish_tasks.is_one_task(work, LocalRunner())


def test_changed_rows_keep_their_ids_and_derived_values_and_the_history_and_the_index_follow(
    metastore: Metastore,
) -> None:
    column = {"function": "tests.streams.features:embed", "inputs": ["text"], "type": "float32[2]", "version": "1"}
    properties = {"column.vector": json.dumps(column), "history": "scd2"}
    schema = {"id": "int64", "at": "int64", "text": "string", "size": "int64"}
    table = StreamTable.create(metastore, ["t"], schema, "id", "at", properties=properties)
    table.upsert(rows(range(1000), 1, "a"))
    runner = Here()
    publish(table, runner=runner)
    assert Counter(runner.ran) == {"run_share": 4, "index_segment": 2, "run_history": 4}
    assert table.coverage() == {"id_idx": 1.0}
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
    runner = Here()
    publish(table, runner=runner)
    table.append(pa.table({"n": pa.array([-1])}))
    assert publish(table).rows == many + 1
    assert sorted(served(table).column("n").to_numpy().tolist()) == [-1, *range(many)]
    assert table.verify() == []
    assert runner.ran == ["run_share"] * 4


def test_after_an_undo_and_on_a_table_that_evolved_the_rows_are_folded_by_tasks_too(metastore: Metastore) -> None:
    column = {"function": "tests.streams.features:embed", "inputs": ["text"], "type": "float32[2]", "version": "1"}
    properties = {"column.vector": json.dumps(column), "history": "scd2"}
    schema = {"id": "int64", "at": "int64", "text": "string", "size": "int32"}
    table = StreamTable.create(metastore, ["t"], schema, "id", "at", properties=properties)
    table.ingest(narrow(range(10), 1, "a"), source="first")
    table.ingest(narrow(range(5, 20), 2, "bb"), source="second")
    publish(table)
    table.evolve(add={"more": pa.int64()}, widen={"size": pa.int64()})
    table.ingest([{"id": 3, "at": 3, "text": "ccc", "size": 2**40, "more": 7}], source="third")
    evolved, undone = Here(), Here()
    publish(table, runner=evolved)
    cast = "stage_there"  # the column of the table, and that of its history
    assert evolved.ran == [cast, "run_digest", *["run_share"] * 4, cast, *["run_history"] * 4]
    assert (state(table)[3][2:6], table.verify()) == (("ccc", 2**40, [3.0, 1.0], 7), [])
    table.undo(source="second")
    publish(table, runner=undone)
    assert set(undone.ran) == {"run_share", "stage_there", "run_history"}
    assert (sorted(state(table)), state(table)[7][2], table.verify()) == ([*range(10)], "a7", [])


def test_worn_fragments_and_rows_that_indices_lack_are_the_work_of_a_task(
    metastore: Metastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.streams.serving.compaction.MANY", 2)
    schema = {"id": "int64", "at": "int64", "text": "string", "size": "int64"}
    table = StreamTable.create(metastore, ["t"], schema, "id", "at")
    for at in range(1, 4):
        table.upsert(rows(range(at, 300, 2), at, "a"))
        runner = Here()
        publish(table, 1, runner)
    assert runner.ran == ["run_share", "stage_there"]
    before, kept = state(table), table.coverage()
    assert kept == {"id_idx": 1.0}
    table.create_index("text", "INVERTED")
    table.delete(list(range(200)))
    table.upsert(rows(range(1000, 1010), 9, "z"))
    with patch.object(staged_rows, "rows_to_tidy", lambda *_: 0):
        table.publish()
    worn, indexed = Here(), Here()
    assert table.update_indices(indexed)
    assert table.compact(worn)
    table.update_indices()
    assert worn.ran == indexed.ran == ["stage_there"]
    assert (table.coverage(), table.verify()) == ({"id_idx": 1.0, "text_idx": 1.0}, [])
    assert {id: row for id, row in state(table).items() if id < 1000} == {
        id: row for id, row in before.items() if id >= 200
    }


def test_the_number_of_tasks_follows_the_rows_the_cores_and_the_functions() -> None:
    assert [publish_tasks.task_count(rows, 2, False) for rows in (1, 10**5, 10**6, 10**7)] == [1, 1, 8, 16]
    assert [publish_tasks.task_count(10**6, 2, False, base) for base in (10**6, 10**7, 10**9)] == [8, 2, 1]
    assert [publish_tasks.task_count(rows, 2, True) for rows in (1, 10**4, 10**5, 10**7)] == [1, 4, 8, 16]


@pytest.mark.parametrize("buckets", [1, 4, 16])
def test_a_share_reads_only_the_row_groups_that_can_hold_its_keys(tmp_path: Path, buckets: int) -> None:
    parts = [[bucket, 1] for bucket in range(buckets)]
    with pq.ParquetWriter(tmp_path / "file", pa.schema([("n", pa.int64())])) as writer:
        for bucket, _ in parts:
            writer.write_table(pa.table({"n": [bucket]}))
    metadata = pq.read_metadata(tmp_path / "file")
    known = {"buckets": buckets, "bucket_map": parts}
    found = [row_groups_of(metadata, known, LogShard(number, 4)) for number in range(4)]
    assert (
        found
        == {
            1: [[0]] * 4,
            4: [[0], [1], [2], [3]],
            16: [list(range(start, start + 4)) for start in range(0, 16, 4)],
        }[buckets]
    )


def test_few_rows_into_a_large_table_are_one_row_group(metastore: Metastore, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a landing writes is as much as lands, however many buckets the table has."""
    assert [bucket_count(10**9, landed) for landed in (10, 8191, 8192, 10**6, 10**8)] == [1, 1, 2, 128, 1024]
    assert bucket_count(10**6, 10**6) == 1
    monkeypatch.setattr("headwater.streams.log.landing.rows_so_far", lambda snapshot, stream: 10**9)
    table = StreamTable.create(metastore, ["t"], {"n": "int64"}, ["n"])
    table.upsert([{"n": number} for number in range(10)])
    (delta,) = table.deltas()
    assert delta.properties["bucket_map"] == [[0, 10]]
