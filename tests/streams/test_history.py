"""The history of a table: every state a key had, and the open rows are the state."""

from __future__ import annotations

from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.metastore import Metastore
from headwater.streams.fold.events import Rules
from headwater.streams.layout import HISTORY, sibling
from headwater.streams.reading import change_feed
from headwater.streams.reading.change_feed import round_numbers
from headwater.streams.serving import scd2
from headwater.streams.table import StreamTable
from tests.streams.histories import History, histories
from tests.streams.oracle import sorted_rows
from tests.streams.test_histories import land, new_table


def history_table(table: StreamTable) -> pa.Table:
    path = sibling(table.path, HISTORY)
    version = table._metastore.now().versions(path)[-1]
    found: pa.Table = lance.dataset(f"{table._lake().uri}/{version.home}.lance").to_table()
    return found


def history_of(table: StreamTable) -> list[dict[str, Any]]:
    return history_table(table).to_pylist()


@pytest.mark.parametrize("is_collected", [False, True])
def test_a_history_that_begins_late_or_was_not_kept_for_a_while_catches_up(
    metastore: Metastore, is_collected: bool
) -> None:
    schema = {"id": "int64", "at": "int64", "note": "string"}
    table = StreamTable.create(metastore, ["t"], schema, "id", "at", properties={"log_retention": "0 days"})

    def publish() -> list[tuple[Any, ...]]:
        table.publish()
        found = sorted((row["id"], row["note"], row["valid_from"], row["valid_to"]) for row in history_of(table))
        state = sorted((row["id"], row["note"]) for row in table.to_arrow().to_pylist())
        assert [row[:2] for row in found if row[3] is None] == state
        return found

    def collect() -> None:
        if is_collected:
            assert table.collect(now_ms=2**42)

    table.upsert([{"id": 1, "at": 1, "note": "a"}, {"id": 2, "at": 1, "note": "x"}])
    table.upsert([{"id": 1, "at": 2, "note": "b"}])
    table.publish()
    collect()
    table.set_properties({"history": "scd2"})
    early = [] if is_collected else [(1, "a", 1, 2)]
    assert publish() == [*early, (1, "b", 2, None), (2, "x", 1, None)]
    table.upsert([{"id": 1, "at": 3, "note": "c"}])
    assert publish()[len(early) :] == [(1, "b", 2, 3), (1, "c", 3, None), (2, "x", 1, None)]
    table.set_properties({"history": None})
    table.upsert([{"id": 1, "at": 4, "note": "d"}, {"id": 3, "at": 4, "note": "new"}])
    table.delete([{"id": 2, "at": 5}])
    table.publish()
    collect()
    table.set_properties({"history": "scd2"})
    table.upsert([{"id": 1, "at": 6, "note": "e"}])
    found = publish()[len(early) + 1 :]
    assert found[:3] == [(1, "c", 3, 4), (1, "d", 4, 6), (1, "e", 6, None)]
    assert [row[:2] for row in found[3:]] == [(2, "x"), (3, "new")]
    assert table.verify() == []


@pytest.mark.parametrize("rows", [scd2.SHARE_ROWS, 1])
def test_a_row_is_closed_by_the_event_that_replaced_it(
    metastore: Metastore, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the history is made in shares of the keys."""
    monkeypatch.setattr(scd2, "SHARE_ROWS", rows)
    schema = {"id": "int64", "at": "int64", "note": "string"}
    table = StreamTable.create(metastore, ["t"], schema, "id", "at", properties={"history": "scd2"})
    table.upsert([{"id": 1, "at": 1, "note": "a"}, {"id": 2, "at": 1, "note": "x"}])
    table.publish()
    table.upsert([{"id": 1, "at": 2, "note": "b"}])
    table.upsert([{"id": 1, "at": 2, "note": "b"}])
    table.upsert([{"id": 1, "at": 1, "note": "late"}])
    table.upsert([{"id": 1, "at": 5, "note": "c"}])
    table.delete([{"id": 2, "at": 9}])
    table.publish()
    table.upsert([{"id": 2, "at": 10, "note": "again"}])
    table.publish()
    found = sorted((row["id"], row["note"], row["valid_from"], row["valid_to"]) for row in history_of(table))
    assert found == [
        (1, "a", 1, 2),
        (1, "b", 2, 5),
        (1, "c", 5, None),
        (2, "again", 10, None),
        (2, "x", 1, 9),
    ]
    slots = [d.slot for path in (["t"], ["t__history"]) for d in metastore.deltas(path, format="lance")[-1:]]
    assert slots[0] == slots[1]
    table.evolve(rename={"note": "text"}, add={"more": "int64"})
    table.publish()
    assert {"text", "more", "valid_from"} <= set(history_of(table)[0])


def test_a_history_keeps_what_python_has_no_form_for_and_its_sequence_is_widened(metastore: Metastore) -> None:
    time = pa.array([1, 2, 3], pa.time64("ns"))
    fields: dict[str, Any] = {"id": pa.int64(), "a": pa.float32(), "b b": pa.timestamp("ns"), "time": time.type}
    schema = pa.schema(fields)
    table = StreamTable.create(metastore, ["t"], schema, "id", ["a", "b b"], properties={"history": "scd2"})

    def land(place: int) -> None:
        columns = {"id": [1], "a": [1.5], "b b": pa.array([place], pa.timestamp("ns")), "time": time.slice(place, 1)}
        table.upsert(pa.table(columns))
        table.publish()

    land(0)
    land(1)
    table.evolve(widen={"a": "double"})
    land(2)
    found = history_table(table).sort_by("time")
    assert found["time"].combine_chunks() == time
    wide: list[Any] = [pa.field("a", pa.float64()), pa.field("b b", pa.timestamp("ns"))]
    assert found.schema.field("valid_from").type == pa.struct(wide)
    places: list[Any] = [pc.struct_field(found[name], "b b").cast(pa.int64()) for name in ("valid_from", "valid_to")]
    assert [each.to_pylist() for each in places] == [[0, 1, 2], [1, 2, None]]
    assert table.verify() == []


@settings(max_examples=15, deadline=None)
@given(histories(max_batches=4), st.data())
def test_the_open_rows_of_the_history_are_the_state(history: History, data: st.DataObject) -> None:
    rules: Rules = history.rules
    with pytest.MonkeyPatch.context() as patched, new_table(rules, history="scd2") as table:
        patched.setattr(scd2, "SHARE_ROWS", data.draw(st.sampled_from([1, 2, scd2.SHARE_ROWS])))
        for number, batch in enumerate(history.batches):
            land(table, rules, batch, token=str(number))
            if data.draw(st.booleans()):
                table.publish()
        undone = data.draw(st.booleans())
        if history.batches and undone:
            table.undo(token="0")
        table.publish()
        rows = history_of(table)
        opened = [{name: row[name] for name in rules.schema.names} for row in rows if row["valid_to"] is None]
        assert sorted_rows(opened) == sorted_rows(table.to_arrow().to_pylist())


@settings(max_examples=40, deadline=None)
@given(histories(max_batches=7), st.data())
def test_a_history_by_rounds_of_keys_is_the_history_transaction_by_transaction(
    history: History, data: st.DataObject
) -> None:
    found = []
    moments = [data.draw(st.integers(0, 3)) == 0 for _ in history.batches]
    for walk in (change_feed.rounds, change_feed.steps):
        with pytest.MonkeyPatch.context() as patched, new_table(history.rules, history="scd2") as table:
            patched.setattr(scd2, "rounds", walk)
            for batch, is_published in zip(history.batches, moments, strict=True):
                land(table, history.rules, batch)
                if is_published:
                    table.publish()
            table.publish()
            found.append(sorted_rows(history_of(table)))
            assert table.verify() == []
    assert found[0] == found[1]


def test_the_transactions_of_each_key_are_counted() -> None:
    codes, positions = np.array([0, 1, 0, 0, 2, 1, 0]), np.array([1, 1, 1, 2, 2, 5, 7])
    assert round_numbers(codes, positions).tolist() == [0, 0, 0, 1, 0, 1, 2]


def test_a_key_of_many_transactions_beside_keys_of_one(metastore: Metastore) -> None:
    table = StreamTable.create(
        metastore, ["t"], {"id": "int64", "n": "int64"}, "id", (), properties={"history": "scd2"}
    )
    for number in range(30):
        table.upsert([{"id": 0, "n": number}, {"id": number + 1, "n": number}])
        if number % 7 == 0:
            table.delete([0])
    table.publish()
    rows = sorted((row["id"], row["valid_from"], row["valid_to"], row["n"]) for row in history_of(table))
    assert [row[3] for row in rows if row[0] == 0] == list(range(30))
    assert sum(row[2] is None for row in rows) == 31
    assert all(row[1] < row[2] for row in rows if row[2] is not None)
    assert table.verify() == []
