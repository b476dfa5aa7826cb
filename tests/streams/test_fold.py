"""The fold against an oracle of dictionaries, on random histories."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.errors import InvalidInputError
from headwater.metastore.records.deltas import parse_duration
from headwater.streams.fold.events import BatchJudgement, Events, Rules, State, empty, line, parse_lateness
from headwater.streams.fold.fold import apply, fold
from headwater.streams.serving.verify import remembered_digest
from tests.streams.histories import History, arrow_events, histories, python_rows
from tests.streams.oracle import Oracle, in_sequence, sorted_rows

FEW = settings(max_examples=int(os.environ.get("HISTORIES", "150")), deadline=None)
"""`HISTORIES=20000 python -m pytest tests/streams/test_fold.py` tries that many for each test."""


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
def test_any_batching_of_the_same_events_gives_the_same_rows_marks_and_counts(history: History) -> None:
    history = replace(history, rules=replace(history.rules, lateness=None))
    state, late, _ = folded_by_batch(history)
    events = arrow_events(history.rules, [event for batch in history.batches for event in batch])
    done = fold(history.rules, empty(history.rules), events)
    once = apply(history.rules, empty(history.rules), done)
    assert sorted_rows(once.rows.to_pylist()) == sorted_rows(state.rows.to_pylist())
    assert remembered_digest(history.rules, once) == remembered_digest(history.rules, state)
    assert int(done.late.sum()) == late


@FEW
@given(histories())
def test_batches_folded_at_once_are_judged_each_by_those_before_it(history: History) -> None:
    """As a publish folds a tail of several batches."""
    rules = history.rules
    if rules.lateness is None or not history.batches:
        return
    state, late, behind = folded_by_batch(history)
    events = arrow_events(rules, [event for batch in history.batches for event in batch])
    kinds = [[event.truncate for event in batch] for batch in history.batches]
    of = np.repeat(np.arange(len(kinds)), [len(kind) for kind in kinds])
    cut = np.concatenate([np.array(kind, bool) for kind in kinds])
    if events.truncations is not None:
        events = replace(events, truncations=replace(events.truncations, batches=of[cut]))
    lines, mark = [], None
    for batch in history.batches:
        lines.append(line(rules, mark))
        mark = max([event.row["s0"] for event in batch] + ([] if mark is None else [mark]))
    done = fold(rules, empty(rules), events, BatchJudgement(tuple(lines), of[~cut], mark))
    once = apply(rules, empty(rules), done)
    assert sorted_rows(once.rows.to_pylist()) == sorted_rows(state.rows.to_pylist())
    assert (int(done.late.sum()), int(done.too_late.sum()), once.watermark) == (late, behind, state.watermark)


@FEW
@given(histories(), st.randoms())
def test_events_with_distinct_sequences_give_one_result_in_any_order(history: History, dice: random.Random) -> None:
    """Partial rows too, and as often as they come: it is that of the plainest fold, in the order of the sequence."""
    rules = Rules(history.rules.schema.append(pa.field("n", pa.int64())), history.rules.keys, ("n",))
    flat = python_rows(rules, [event for batch in history.batches for event in batch])
    events = [replace(event, row={**event.row, "n": n}) for n, event in enumerate(flat)]
    shuffled = dice.sample(events, len(events)) + dice.sample(events, len(events) // 2)
    plain = Oracle(rules.schema.names, rules.keys, rules.sequence)
    expected = sorted_rows(in_sequence(plain, events))
    assert sorted_rows(plain.take(shuffled).state()) == expected
    for order in (events, shuffled):
        done = fold(rules, empty(rules), arrow_events(rules, order))
        assert sorted_rows(apply(rules, empty(rules), done).rows.to_pylist()) == expected


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
    assert (done.rows.column("t").to_pylist(), done.watermark) == ([10, 4, 5, 10], 10)
    then = fold(rules, replace(empty(rules), watermark=10), events)
    assert (then.rows.column("t").to_pylist(), then.too_late.tolist()) == ([10, 5, 10], [False, True, False, False])


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
