"""Random histories of a stream table against the oracle: land, publish, undo, read at any position."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.metastore import Metastore
from headwater.streams.fold.events import Rules
from headwater.streams.log.landing import UPSERT, BatchOrigin
from headwater.streams.rows.input_rows import InputRows, from_rows
from headwater.streams.table import StreamTable
from tests.streams.histories import KEY_TYPES, History, histories, python_rows
from tests.streams.oracle import Event, Oracle, Row, sorted_rows

FEW = settings(max_examples=25, deadline=None)


@contextmanager
def new_table(rules: Rules, **properties: str) -> Iterator[StreamTable]:
    if rules.lateness is not None:
        properties["lateness"] = str(rules.lateness)
    with TemporaryDirectory() as folder, Metastore(Path(folder) / "lake") as metastore:
        yield StreamTable.create(metastore, ["t"], rules.schema, rules.keys, rules.sequence, (), properties)


def land(table: StreamTable, rules: Rules, events: list[Event], token: str | None = None) -> int:
    rows = from_rows([event.row for event in python_rows(rules, events)])
    names = [name for name in rules.schema.names if name not in rows.columns]
    kinds = ([event.delete for event in events], [event.read for event in events], [e.truncate for e in events])
    masks = (np.array(kind, bool) for kind in kinds)
    columns = {**rows.columns, **{name: [None] * len(events) for name in names if name in rules.keys}}
    given = InputRows(columns, len(events), rows.present, *masks)
    return table._land(given, UPSERT, BatchOrigin("s", token)).position


def oracle(rules: Rules, batches: list[list[Event]]) -> Oracle:
    made = Oracle(rules.schema.names, rules.keys, rules.sequence, rules.lateness)
    for batch in batches:
        made.take(python_rows(rules, batch))
    return made


def rows_of(table: pa.Table) -> list[str]:
    return sorted_rows(table.to_pylist())


def served(table: StreamTable) -> pa.Table:
    """What a Lance client sees."""
    stream, _ = table.opened()
    found: pa.Table = lance.dataset(f"{table._lake().uri}/{stream.serving}").to_table()
    return found


@FEW
@given(histories(), st.data())
def test_fresh_read_publish_and_time_travel_agree_with_the_oracle(history: History, data: st.DataObject) -> None:
    rules = history.rules
    with new_table(rules) as table:
        passed: dict[int, tuple[int, int]] = {}
        for number, batch in enumerate(history.batches):
            assert land(table, rules, batch) == number + 1
            if data.draw(st.booleans()):
                published = table.publish()
                passed[published.position] = published.late, published.too_late
                assert rows_of(served(table)) == rows_of(table.to_arrow())
        for position in range(len(history.batches) + 1):
            expected = oracle(rules, history.batches[:position]).state()
            assert rows_of(table.to_arrow(position=position)) == sorted_rows(expected)
            assert table.count(position=position) == len(expected)
        done = table.publish()
        everything = oracle(rules, history.batches)
        assert rows_of(served(table)) == rows_of(table.to_arrow()) == sorted_rows(everything.state())
        passed[done.position] = done.late, done.too_late
        assert sum(late for late, _ in passed.values()) == everything.late
        assert sum(behind for _, behind in passed.values()) == everything.too_late
        assert done.rows == len(everything.state())
        assert table.verify() == []


FILTERS: dict[str, Callable[[dict[str, object]], bool]] = {
    "a = 1": lambda row: row["a"] == 1,
    "a IS NULL AND b = 'x'": lambda row: row["a"] is None and row["b"] == "x",
    "k0 IS NULL": lambda row: row["k0"] is None,
    "k0 IS NOT NULL": lambda row: row["k0"] is not None,
}


@FEW
@given(histories(), st.data())
def test_a_filter_passes_what_is_there_at_a_position_however_much_of_it_is_published(
    history: History, data: st.DataObject
) -> None:
    rules, filters = history.rules, dict(FILTERS)
    if rules.schema.field("k0").type == pa.int64():
        filters |= {f"k0 = {key}": lambda row, key=key: row["k0"] == key for key in (0, 1)}  # type: ignore[misc]
    with new_table(rules) as table:
        for batch in history.batches:
            land(table, rules, batch)
            if data.draw(st.booleans()):
                table.publish()
        for position in range(len(history.batches) + 1):
            state = oracle(rules, history.batches[:position]).state()
            for text, passes in filters.items():
                found = table.to_arrow(filter=text, position=position)
                assert rows_of(found) == sorted_rows([row for row in state if passes(row)])
                some = table.to_arrow(columns=["b"], filter=text, position=position)
                assert some.num_rows == found.num_rows


@FEW
@given(histories(max_batches=4), st.data())
def test_an_undone_ingest_is_as_if_it_had_never_been(history: History, data: st.DataObject) -> None:
    rules = history.rules
    if not history.batches:
        return
    with new_table(rules) as table:
        undone = data.draw(st.integers(0, len(history.batches) - 1))
        for number, batch in enumerate(history.batches):
            land(table, rules, batch, token=str(number))
            if rules.lateness is None and data.draw(st.booleans()):  # what a publish found too late stays too late
                table.publish()
        before = rows_of(table.to_arrow())
        table.undo(source="s", token=str(undone))
        rest = [batch for number, batch in enumerate(history.batches) if number != undone]
        expected = sorted_rows(oracle(rules, rest).state())
        assert rows_of(table.to_arrow()) == expected
        assert rows_of(table.to_arrow(position=len(history.batches))) == before
        table.publish()
        assert rows_of(served(table)) == expected
        land(table, rules, history.batches[undone], token=str(undone))
        again = sorted_rows(oracle(rules, [*rest, history.batches[undone]]).state())
        assert rows_of(table.to_arrow()) == again
        table.publish()
        assert rows_of(served(table)) == again
        _check_changes(table, rules)


@settings(max_examples=10, deadline=None)
@given(histories(max_batches=4), st.data())
def test_a_column_that_is_added_meanwhile_was_never_written_before(history: History, data: st.DataObject) -> None:
    rules = history.rules
    added = data.draw(st.integers(0, len(history.batches)))
    before = [[_without(event, "b") for event in batch] for batch in history.batches[:added]]
    batches = [*before, *history.batches[added:]]
    with new_table(replace(rules, schema=rules.schema.remove(rules.schema.get_field_index("b")))) as table:
        for number, batch in enumerate(batches):
            if number == added:
                table.evolve(add={"b": "string"})
            land(table, rules, batch)
            if data.draw(st.booleans()):
                table.publish()
        if added == len(batches):
            table.evolve(add={"b": "string"})
        everything = oracle(rules, batches)
        assert rows_of(table.to_arrow()) == sorted_rows(everything.state())
        table.publish()
        assert rows_of(served(table)) == sorted_rows(everything.state())
        assert table.verify() == []


@pytest.mark.parametrize("deleted", ["before", "late", "in a version of its own"])
def test_a_new_column_takes_no_value_from_before_the_row_was_deleted(deleted: str) -> None:
    """The value of an event that is older than the delete is not the row's, however late the event comes."""
    columns: Any = {"k": pa.int64(), "s": pa.int64(), "b": pa.string()}
    schema = pa.schema(columns)
    rules = Rules(schema, ("k",), ("s",), None)
    delete, back = Event({"k": 1, "s": 10}, True), Event({"k": 1, "s": 11})
    before = {"before": [[delete, back]], "late": [[back], [delete]]}.get(deleted, [[delete], [back]])
    late = [Event({"k": 1, "s": 5, "b": "x"})]
    newer = [Event({"k": 1, "s": 10, "b": "y"})]
    with new_table(replace(rules, schema=schema.remove(2))) as table:
        for batch in before:
            land(table, rules, batch)
            table.publish()
        table.evolve(add={"b": "string"})
        table.publish()
        for batches in ([late], [late, newer]):
            land(table, rules, batches[-1])
            expected = sorted_rows(oracle(rules, [*before, *batches]).state())
            assert rows_of(table.to_arrow()) == expected
            assert table.verify() == []
            table.publish()
            assert rows_of(served(table)) == expected
            assert table.verify() == []


def _without(event: Event, name: str) -> Event:
    return replace(event, row={column: value for column, value in event.row.items() if column != name})


def applied(state: list[Row], changes: pa.Table, rules: Rules) -> list[Row]:
    rows = {tuple(row[name] for name in rules.keys): row for row in state}
    for change in changes.to_pylist():
        kind = change.pop("_change_type")
        assert change.pop("_position") > 0
        assert change.pop("_commit_time") is not None
        key = tuple(change[name] for name in rules.keys)
        if kind in ("delete", "update_preimage"):
            assert repr(rows.pop(key)) == repr(change)
        else:
            assert key not in rows
            rows[key] = change
    return list(rows.values())


def _check_changes(table: StreamTable, rules: Rules) -> None:
    last = table.position
    states: list[Any] = [table.to_arrow(position=position).to_pylist() for position in range(last + 1)]
    for after in range(last + 1):
        for until in range(after, last + 1):
            found = applied(states[after], table.changes(after, until), rules)
            assert sorted_rows(found) == sorted_rows(states[until])


@FEW
@given(histories(max_batches=4, max_events=5), st.data())
def test_changes_applied_to_the_state_at_a_give_the_state_at_b(history: History, data: st.DataObject) -> None:
    with new_table(history.rules) as table:
        for batch in history.batches:
            land(table, history.rules, batch)
            if data.draw(st.booleans()):
                table.publish()
        _check_changes(table, history.rules)


def test_partitions_change_nothing_but_the_deltas(tmp_path: Path) -> None:
    with Metastore(tmp_path) as metastore:
        schema = {"id": "int64", "at": "int64", "region": "string"}
        table = StreamTable.create(metastore, ["t"], schema, "id", "at", ["region"])
        table.upsert([{"id": 1, "at": 1, "region": "a"}, {"id": 1, "at": 1, "region": "b"}, {"id": 2, "at": 1}])
        table.delete([1])
        assert [delta.position for delta in table.deltas()] == [1, 2, 3, 4]
        assert table.to_arrow(position=3).num_rows == 2
        assert table.to_arrow().to_pylist() == [{"id": 2, "at": 1, "region": None}]
        assert {row["region"] for row in table.to_arrow(position=3).to_pylist()} == {"b", None}


@pytest.mark.parametrize("kind", sorted(KEY_TYPES))
def test_keys_of_every_type_are_found_by_every_way_of_looking(metastore: Metastore, kind: str) -> None:
    """By the scan of the keys, by the BTREE (few keys of many rows), by delete(keys), and by the next publish."""
    type, choices = KEY_TYPES[kind]
    keys = pa.array(choices, type)
    schema = pa.schema([("k", type), ("j", pa.int64()), ("at", pa.int64()), ("v", pa.string())])
    table = StreamTable.create(metastore, ["t"], schema, ["k", "j"], "at")

    def rows(at: int, some: Any) -> pa.Table:
        return pa.table(
            [some, pa.nulls(len(some), pa.int64()).fill_null(1), [at] * len(some), ["x"] * len(some)], schema=schema
        )

    table.upsert(rows(1, keys))
    table.publish()
    table.upsert(rows(2, keys.slice(1)))
    first = keys.slice(0, 1).to_pylist()[0]
    table.delete([(first, 1)])
    assert sorted(row["at"] for row in table.to_arrow().to_pylist()) == [2] * (len(choices) - 1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("headwater.streams.serving.copy_rows.KEYS_PER_PAGE", 0)  # an index is always worth its pages
        published = table.publish()
    assert (published.rows, table.count(), table.verify()) == (len(choices) - 1, len(choices) - 1, [])
    table.upsert(rows(0, keys.slice(0, 1)))  # below its tombstone
    assert table.publish().late == 1
