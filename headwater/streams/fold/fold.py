"""The fold: a state and events in order of arrival give the next state. Pure, over Arrow, no loop over rows.

Every event writes cells, and of each cell the write with the highest sequence stands, ties to the later arrival
(cell_writes.py). A truncation writes into every key, known or not.

Pages of memory for the arrays of a fold, which are large, many, and live for milliseconds.

numpy asks the kernel for huge pages for every array of some megabytes. A huge page that lay free may not be backed by
memory any more: a virtual machine that reports free memory gives just those back to its host, and getting one again
takes milliseconds. Small pages are used again as they are.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ContextDecorator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.streams.fold.cell_writes import NOTHING, CellWork, join_columns
from headwater.streams.fold.events import (
    BatchJudgement,
    Events,
    Folded,
    Rules,
    State,
    Truncations,
    Watermark,
    concat,
    empty,
    joined,
    line,
    no_marks,
    reached,
    too_late,
)
from headwater.streams.rows.row_keys import Codes, KeyIndex, Mask, ordinals

MANY = 1 << 16


def fold(
    rules: Rules, state: State, events: Events, judged: BatchJudgement | None = None, known: KeyIndex | None = None
) -> Folded:
    """Fold events into a state, which must hold what is known of their keys and may hold more.

    `judged`: the lines of the events' batches, and the watermark after them; without it they are one batch.
    `known`: the index of the events' keys, if there is one already.
    """
    judged = one_batch(rules, state.watermark, events) if judged is None else judged
    if events.truncations is not None:
        return _truncated(rules, state, events, events.truncations, judged)
    beyond = too_late(rules, judged, events.rows, events.reads)
    if not rules.keys:
        return _keyless(rules, events, beyond, judged.watermark)
    if not len(events):
        return _unchanged(rules, state, beyond, judged.watermark)
    index = known if known is not None else KeyIndex([events.rows.column(name) for name in rules.keys])
    return CellWork(rules, state, events, index, beyond, judged).folded()


def one_batch(rules: Rules, watermark: Watermark, events: Events) -> BatchJudgement:
    """Return events that are one batch, judged by the watermark before it."""
    parts = [events.rows] if events.truncations is None else [events.rows, events.truncations.rows]
    return BatchJudgement((line(rules, watermark),), None, reached(rules, watermark, parts))


def apply(rules: Rules, state: State, folded: Folded) -> State:
    """The state after what was folded."""
    kept = _kept(state, folded)
    rows = pa.concat_tables([state.rows if kept.all() else _filtered(state.rows, kept), folded.rows])
    held = np.ones(state.tombstones.num_rows, bool)
    held[folded.settled] = False
    tombstones = pa.concat_tables([state.tombstones.filter(pa.array(held)), folded.tombstones])
    marks = folded.marks.marking
    if state.marks is not None and len(state.marks):
        others = np.setdiff1d(np.arange(len(state.marks)), folded.unmarked)
        marks = joined(rules, [state.marks.take(others), marks])
    return State(rows, tombstones, folded.watermark, marks, folded.lines)


def standing(state: State, folded: Folded) -> Codes:
    """Return the rows of a state that stand as they were after what was folded."""
    return np.flatnonzero(_kept(state, folded))


def _kept(state: State, folded: Folded) -> Mask:
    kept = np.ones(state.rows.num_rows, bool)
    kept[folded.gone] = False
    kept[folded.replaces[folded.replaces >= 0]] = False
    return kept


def without_gaps(events: Events) -> Events | None:
    """Return the same events, if every upsert among them is a whole row.

    Those need nothing of the rows they replace, unless these have a cell that is older than the row.
    """
    if events.truncations is not None or any(events.gaps(name) is not None for name in events.present):
        return None
    return replace(events, present={})


def _filtered(rows: pa.Table, kept: Mask) -> pa.Table:
    """Return rows by a mask; many are filtered side by side, which pyarrow does not do by itself.

    A batch of which all rows are kept is not copied.
    """
    if rows.num_rows < MANY:
        return rows.filter(pa.array(kept))
    batches = rows.to_batches(max_chunksize=MANY)
    starts = np.cumsum([0, *(batch.num_rows for batch in batches)])
    masks = [kept[start : start + batch.num_rows] for start, batch in zip(starts, batches, strict=False)]
    changed = [place for place, mask in enumerate(masks) if not mask.all()]
    with ThreadPoolExecutor(os.cpu_count()) as beside:
        found = beside.map(lambda place: batches[place].filter(pa.array(masks[place])), changed)
        for place, batch in zip(changed, found, strict=True):
            batches[place] = batch
    return pa.Table.from_batches(batches, rows.schema)


def _unchanged(rules: Rules, state: State, beyond: Mask, watermark: Watermark) -> Folded:
    nothing, found = np.empty(0, np.int64), empty(rules)
    late = np.zeros(len(beyond), bool)
    return Folded(
        found.rows, nothing, nothing, found.tombstones, nothing, late, beyond, watermark, no_marks(rules), nothing,
        state.lines,
    )  # fmt: skip


def _keyless(rules: Rules, events: Events, beyond: Mask, watermark: Watermark) -> Folded:
    """Return an append-only log: every row that is not too late is a row."""
    rows = events.rows.filter(pa.array(~beyond)) if beyond.any() else events.rows
    nothing = _unchanged(rules, empty(rules), beyond, watermark)
    return replace(nothing, rows=rows, replaces=np.full(rows.num_rows, NOTHING, np.int64))


# Truncations --------------------------------------------------------------------------------------------------------


def _truncated(rules: Rules, state: State, events: Events, cut: Truncations, judged: BatchJudgement) -> Folded:
    """A truncation is a delete of every key: of those that are known here, and by its line of all others.

    One below an earlier one changes nothing.
    """
    before = state.lines.truncation
    tables = [cut.rows] if before is None else [cut.rows, before]
    ranked = ordinals([join_columns([table.column(name) for table in tables]) for name in rules.sequence], 1)
    beyond = too_late(rules, replace(judged, batches=cut.batches), cut.rows, None)
    rising = np.where(beyond, -1, ranked[: len(cut)])
    so_far = np.maximum.accumulate(np.concatenate([ranked[len(cut) :], rising]))[-len(cut) :]
    kept = np.flatnonzero(~beyond & (rising >= so_far))
    plain = replace(events, truncations=None)
    if not len(kept):
        return fold(rules, state, plain, judged)
    folded = _with_deletes(rules, state, plain, cut, kept, judged)
    top = cut.rows.slice(int(kept[-1]), 1).select(list(rules.sequence))
    above = _above(rules, folded.tombstones, top)
    return replace(folded, tombstones=folded.tombstones.take(above), lines=replace(state.lines, truncation=top))


def _with_deletes(
    rules: Rules, state: State, events: Events, cut: Truncations, kept: Codes, judged: BatchJudgement
) -> Folded:
    """Fold events among which each of these truncations is a delete of every key that is known."""
    keys = list(rules.keys)
    own = events.rows.select(keys).take(KeyIndex([events.rows.column(name) for name in keys]).places)
    parts, places, batches = [events], [2 * np.arange(len(events)) + 1], [judged.of(len(events))]
    for number in kept.tolist():
        those = [own] if number != kept[-1] else [own, state.rows.select(keys)]
        wanted = pa.concat_tables(those)
        parts.append(_deletes(rules, wanted, cut.rows.slice(number, 1)))
        places.append(np.full(wanted.num_rows, 2 * cut.places[number]))
        batches.append(np.full(wanted.num_rows, cut.batches[number]))
    order = np.argsort(np.concatenate(places), kind="stable")
    every = concat(rules, parts).take(order)
    found = fold(rules, state, every, replace(judged, batches=np.concatenate(batches)[order]))
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    mine = back[: len(events)]
    unplaced = None if found.unplaced is None else found.unplaced[mine]
    return replace(found, late=found.late[mine], too_late=found.too_late[mine], unplaced=unplaced)


def _deletes(rules: Rules, keys: pa.Table, sequence: pa.Table) -> Events:
    size, places = keys.num_rows, np.zeros(keys.num_rows, np.int64)
    columns: list[Any] = []
    for each in rules.schema:
        if each.name in rules.sequence:
            columns.append(sequence.column(each.name).take(places))
        else:
            columns.append(keys.column(each.name) if each.name in rules.keys else pa.nulls(size, each.type))
    return Events(pa.Table.from_arrays(columns, schema=rules.schema), np.ones(size, bool))


def _above(rules: Rules, rows: pa.Table, limit: pa.Table) -> Codes:
    """Return the rows whose sequence is above another: tombstones that a truncation does not say already."""
    ranked = ordinals([join_columns([rows.column(name), limit.column(name)]) for name in rules.sequence], 1)
    return np.flatnonzero(ranked[:-1] > ranked[-1])


TOLD = "NUMPY_MADVISE_HUGEPAGE"
"""numpy's own setting, read when it is imported: whoever has set it has chosen."""


class SmallPages(ContextDecorator):
    """While a thread is in here, the arrays that the process makes are of small pages, unless huge ones were asked for.
    No result depends on it; what the process had chosen comes back with the last one that leaves."""

    def __init__(self) -> None:
        self._choose = None if TOLD in os.environ else _setting()
        self._lock = threading.Lock()
        self._inside = 0
        self._before = False

    def __enter__(self) -> None:
        if self._choose is not None:
            with self._lock:
                self._inside += 1
                if self._inside == 1:
                    self._before = self._choose(False)

    def __exit__(self, *error: object) -> None:
        if self._choose is not None:
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    self._choose(self._before)


def _setting() -> Callable[[bool], bool] | None:
    """numpy's switch, which has no public name, and another module in numpy 1; None: this numpy has none."""
    for module in ("numpy._core.multiarray", "numpy.core.multiarray"):
        try:
            return getattr(importlib.import_module(module), "_set_madvise_hugepage", None)
        except ImportError:
            continue
    return None


small_pages = SmallPages()
