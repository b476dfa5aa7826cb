"""The fold against an oracle of dictionaries, on random histories."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.errors import InvalidInputError
from headwater.metastore.retention import parse_duration
from headwater.streams.fold import Events, Rules, State, apply, concat, empty, fold
from headwater.streams.watermark import parse_lateness
from tests.streams.histories import History, arrow_events, histories, python_rows
from tests.streams.oracle import Event, Oracle, sorted_rows

FEW = settings(max_examples=150, deadline=None)


def oracle_of(history: History) -> Oracle:
    rules = history.rules
    lateness = rules.lateness
    return Oracle(rules.schema.names, rules.keys, rules.sequence, lateness)


def folded_by_batch(history: History) -> tuple[State, int, int]:
    state, late, behind = empty(history.rules), 0, 0
    for batch in history.batches:
        done = fold(history.rules, state, arrow_events(history.rules, batch))
        state = apply(history.rules, state, done)
        late, behind = late + int(done.late.sum()), behind + int(done.too_late.sum())
    return state, late, behind


@FEW
@given(histories())
def test_the_fold_of_each_batch_gives_what_the_rules_say(history: History) -> None:
    state, late, behind = folded_by_batch(history)
    oracle = oracle_of(history)
    for batch in history.batches:
        oracle.take(python_rows(history.rules, batch))
    assert sorted_rows(state.rows.to_pylist()) == sorted_rows(oracle.state())
    assert (late, behind) == (oracle.late, oracle.too_late)
    assert state.rows.schema == history.rules.schema


@FEW
@given(histories())
def test_any_batching_of_the_same_events_gives_the_same_rows_and_counts(history: History) -> None:
    state, late, behind = folded_by_batch(history)
    events = concat(history.rules, [arrow_events(history.rules, batch) for batch in history.batches])
    done = fold(history.rules, empty(history.rules), events)
    once = apply(history.rules, empty(history.rules), done)
    assert sorted_rows(once.rows.to_pylist()) == sorted_rows(state.rows.to_pylist())
    assert sorted_rows(once.tombstones.to_pylist()) == sorted_rows(state.tombstones.to_pylist())
    assert (int(done.late.sum()), int(done.too_late.sum()), once.watermark) == (late, behind, state.watermark)


@FEW
@given(histories(partial=False), st.randoms())
def test_whole_rows_with_distinct_sequences_give_one_result_in_any_order(history: History, dice: random.Random) -> None:
    rules = Rules(history.rules.schema.append(pa.field("n", pa.int64())), history.rules.keys, ("n",))
    rows = [{**dict.fromkeys(rules.schema.names), **event.row} for batch in history.batches for event in batch]
    deletes = [event.delete for batch in history.batches for event in batch]
    events = [Event({**row, "n": n}, gone) for n, (row, gone) in enumerate(zip(rows, deletes, strict=True))]
    shuffled = dice.sample(events, len(events)) + dice.sample(events, len(events) // 2)
    results = []
    for order in (events, shuffled):
        done = fold(rules, empty(rules), arrow_events(rules, order))
        results.append(sorted_rows(apply(rules, empty(rules), done).rows.to_pylist()))
    assert results[0] == results[1]


def test_a_row_says_which_row_of_the_state_it_replaces() -> None:
    rules = Rules(pa.schema([pa.field("id", pa.int64())]).append(pa.field("v", pa.string())), ("id",))
    rows = pa.table({"id": pa.array([7, 8, 9]), "v": ["a", "b", "c"]}, schema=rules.schema)
    events = Events(
        pa.table({"id": pa.array([9, 1, 7]), "v": ["C", "new", None]}, schema=rules.schema),
        np.array([False, False, True]),
    )
    done = fold(rules, State(rows, empty(rules).tombstones), events)
    found = dict(zip(done.rows.column("id").to_pylist(), done.replaces.tolist(), strict=True))
    assert (found, done.gone.tolist()) == ({9: 2, 1: -1}, [0])


def test_a_keyless_table_keeps_every_row_that_is_not_too_late() -> None:
    rules = Rules(pa.schema([("t", pa.int64())]), (), ("t",), 5)
    events = Events(pa.table({"t": pa.array([10, 4, 5, 10])}), np.zeros(4, bool))
    done = fold(rules, empty(rules), events)
    assert done.rows.column("t").to_pylist() == [10, 5, 10]
    assert (done.too_late.tolist(), done.watermark) == ([False, True, False, False], 10)


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (pa.timestamp("us"), "7 days", 7 * 86_400 * 10**6),
        (pa.timestamp("ns", "UTC"), "90 minutes", 5_400 * 10**9),
        (pa.date32(), "2 days", 2),
        (pa.int32(), "10", 10),
        (pa.float64(), "0.5", 0.5),
    ],
)
def test_lateness_is_measured_like_the_first_sequence_column(kind: pa.DataType, text: str, expected: float) -> None:
    assert parse_lateness(text, kind) == expected


@pytest.mark.parametrize(("kind", "text"), [(pa.string(), "1"), (pa.int64(), "7 days"), (pa.timestamp("us"), "7")])
def test_a_lateness_that_does_not_fit_its_column_is_refused(kind: pa.DataType, text: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_lateness(text, kind)


@pytest.mark.parametrize("text", ["7", "days", "-1 days", "1 month", ""])
def test_a_text_that_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="7 days"):
        parse_duration(text)
