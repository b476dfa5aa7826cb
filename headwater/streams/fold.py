"""The fold: a state and events in order of arrival give the next state. Pure, over Arrow, no loop over rows.

What makes it vectorize: an event applies iff its sequence is not below the highest one before it among the events of
its key (those that do not apply are below it anyway), so one running maximum over events sorted by key answers for all
of them. A row's columns then come each from the last applied event that has the column, unless a delete came later.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.streams.grouping import Codes, KeyIndex, ordinals
from headwater.streams.watermark import Watermark, too_late

Mask = npt.NDArray[np.bool_]
NOTHING, BASE = -1, -2
MANY = 1 << 16


@dataclass(frozen=True)
class Rules:
    """What the fold must know of a table. `lateness` is measured like the first sequence column (watermark.py)."""

    schema: pa.Schema
    keys: tuple[str, ...] = ()
    sequence: tuple[str, ...] = ()
    lateness: Any = None

    @property
    def marks(self) -> pa.Schema:
        """The columns of a tombstone: key and sequence."""
        return pa.schema([self.schema.field(name) for name in dict.fromkeys((*self.keys, *self.sequence))])


@dataclass(frozen=True)
class Events:
    """Changes in order of arrival. A column that some rows are missing has a mask in `present`, and null there."""

    rows: pa.Table
    deletes: Mask
    present: Mapping[str, Mask] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def take(self, indices: Codes) -> Events:
        """Some of the events, or all in a new order."""
        present = {name: mask[indices] for name, mask in self.present.items()}
        return Events(self.rows.take(indices), self.deletes[indices], present)


@dataclass(frozen=True)
class State:
    """The rows of a table, the tombstones of its deleted keys, and how far its first sequence column has come."""

    rows: pa.Table
    tombstones: pa.Table
    watermark: Watermark = None


@dataclass(frozen=True)
class Folded:
    """What events did to a state.

    `rows` now stand for their keys; `replaces` says which row of the state each takes the place of (-1: none).
    `gone` are rows of the state that were deleted. `settled` are tombstones of the state that hold no more.
    """

    rows: pa.Table
    replaces: Codes
    gone: Codes
    tombstones: pa.Table
    settled: Codes
    late: Mask
    too_late: Mask
    watermark: Watermark


def empty(rules: Rules) -> State:
    return State(rules.schema.empty_table(), rules.marks.empty_table())


def concat(rules: Rules, parts: list[Events]) -> Events:
    """Events one after another."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return Events(rules.schema.empty_table(), np.empty(0, bool))
    names = {name for part in parts for name in part.present}
    present = {
        name: np.concatenate([part.present.get(name, np.ones(len(part), bool)) for part in parts]) for name in names
    }
    rows = pa.concat_tables([part.rows for part in parts]).combine_chunks()
    return Events(rows, np.concatenate([part.deletes for part in parts]), present)


def fold(
    rules: Rules,
    state: State,
    events: Events,
    judged: tuple[Mask, Watermark] | None = None,
    known: KeyIndex | None = None,
) -> Folded:
    """Fold events into a state, which must hold what is known of their keys and may hold more.

    `judged`: which events are too late, and the watermark after them, if these are not all the events there are.
    `known`: the index of the events' keys, if there is one already.
    """
    late_line, watermark = too_late(rules, state.watermark, events.rows) if judged is None else judged
    if not rules.keys:
        return _keyless(rules, events, late_line, watermark)
    if not len(events):
        return _folded(rules, late_line, watermark)
    index = known if known is not None else KeyIndex([events.rows.column(name) for name in rules.keys])
    held_rows = _held(index, rules, state.rows)
    held_tombstones = _held(index, rules, state.tombstones)
    if index.count == len(events):  # every event has a key of its own: they are in order as they are
        order = groups = np.arange(len(events))
        held_rows, held_tombstones = held_rows[index.codes], held_tombstones[index.codes]
    else:
        order = np.argsort(index.codes, kind="stable")
        groups = index.codes[order]
    applied = ~late_line[order]
    if rules.sequence:
        applied &= _in_order(rules, state, events.rows, order, groups, applied, held_rows, held_tombstones)
    starts = np.flatnonzero(np.concatenate([[True], groups[1:] != groups[:-1]]))
    return _outcome(rules, state, events, order, starts, applied, held_rows, held_tombstones, late_line, watermark)


def apply(rules: Rules, state: State, folded: Folded) -> State:
    """The state after what was folded."""
    kept = _kept(state, folded)
    rows = pa.concat_tables([state.rows if kept.all() else _filtered(state.rows, kept), folded.rows])
    held = np.ones(state.tombstones.num_rows, bool)
    held[folded.settled] = False
    tombstones = pa.concat_tables([state.tombstones.filter(pa.array(held)), folded.tombstones])
    return State(rows, tombstones, folded.watermark)


def standing(state: State, folded: Folded) -> Codes:
    """The rows of a state that stand as they were after what was folded."""
    return np.flatnonzero(_kept(state, folded))


def _kept(state: State, folded: Folded) -> Mask:
    kept = np.ones(state.rows.num_rows, bool)
    kept[folded.gone] = False
    kept[folded.replaces[folded.replaces >= 0]] = False
    return kept


def without_gaps(events: Events) -> Events | None:
    """The same events, if every upsert among them is a whole row: those need nothing of the rows they replace."""
    if not all((mask | events.deletes).all() for mask in events.present.values()):
        return None
    return Events(events.rows, events.deletes)


def _filtered(rows: pa.Table, kept: Mask) -> pa.Table:
    """Rows by a mask; many are filtered side by side, which pyarrow does not do by itself."""
    if rows.num_rows < MANY:
        return rows.filter(pa.array(kept))
    batches = rows.to_batches(max_chunksize=MANY)
    starts = np.cumsum([0, *(batch.num_rows for batch in batches)])
    masks = (pa.array(kept[start : start + batch.num_rows]) for start, batch in zip(starts, batches, strict=False))
    with ThreadPoolExecutor(os.cpu_count()) as beside:
        found = list(beside.map(lambda batch, mask: batch.filter(mask), batches, masks))
    return pa.Table.from_batches(found, rows.schema)


def _folded(rules: Rules, late_line: Mask, watermark: Watermark) -> Folded:
    """Nothing changed."""
    nothing = np.empty(0, np.int64)
    state = empty(rules)
    return Folded(
        state.rows, nothing, nothing, state.tombstones, nothing, np.zeros(len(late_line), bool), late_line, watermark
    )


def _keyless(rules: Rules, events: Events, late_line: Mask, watermark: Watermark) -> Folded:
    """An append-only log: every row that is not too late is a row."""
    nothing = np.empty(0, np.int64)
    rows = events.rows.filter(pa.array(~late_line)) if late_line.any() else events.rows
    return Folded(
        rows,
        np.full(rows.num_rows, NOTHING, np.int64),
        nothing,
        empty(rules).tombstones,
        nothing,
        np.zeros(len(events), bool),
        late_line,
        watermark,
    )


def _held(index: KeyIndex, rules: Rules, table: pa.Table) -> Codes:
    """For each key of the events, its row in a table; -1 where it has none."""
    held = np.full(index.count, NOTHING, np.int64)
    if table.num_rows:
        found = index.find([table.column(name) for name in rules.keys])
        there = np.flatnonzero(found >= 0)
        held[found[there]] = there
    return held


def _in_order(
    rules: Rules,
    state: State,
    rows: pa.Table,
    order: Codes,
    groups: Codes,
    counted: Mask,
    held_rows: Codes,
    held_tombstones: Codes,
) -> Mask:
    """Which events, sorted by key, are not below the highest sequence before them (rule 1: ties go to the later)."""
    row_at, tombstone_at = np.flatnonzero(held_rows >= 0), np.flatnonzero((held_tombstones >= 0) & (held_rows < 0))
    columns = []
    for name in rules.sequence:
        parts = [rows.column(name)]
        if len(row_at):
            parts.append(state.rows.column(name).take(held_rows[row_at]))
        if len(tombstone_at):
            parts.append(state.tombstones.column(name).take(held_tombstones[tombstone_at]))
        columns.append(pa.chunked_array([chunk for part in parts for chunk in part.chunks], type=parts[0].type))
    ranked = ordinals(columns, len(held_rows)) + 1
    count = len(order)
    before = np.zeros(len(held_rows), np.int64)
    before[row_at] = ranked[count : count + len(row_at)]
    before[tombstone_at] = ranked[count + len(row_at) :]
    width = int(ranked.max(initial=0)) + 1
    reached = groups * width + np.where(counted, ranked[:count][order], 0)
    highest = np.maximum.accumulate(reached)
    previous = np.maximum(before[groups] + groups * width, np.concatenate([[0], highest[:-1]]))
    fitting: Mask = reached >= previous
    return fitting


def _outcome(
    rules: Rules,
    state: State,
    events: Events,
    order: Codes,
    starts: Codes,
    applied: Mask,
    held_rows: Codes,
    held_tombstones: Codes,
    late_line: Mask,
    watermark: Watermark,
) -> Folded:
    last = _last(applied, starts)
    changed = last >= 0
    deletes = events.deletes[order]
    becomes_gone = changed & deletes[last]
    becomes_row = changed & ~becomes_gone
    late = np.empty(len(order), bool)
    late[order] = ~applied
    late &= ~late_line
    rows = _rows(rules, state, events, order, starts, applied, deletes, last, np.flatnonzero(becomes_row), held_rows)
    marks = order[last[becomes_gone]] if rules.sequence else np.empty(0, np.int64)
    tombstones = events.rows.select(rules.marks.names).take(marks)
    return Folded(
        rows,
        held_rows[becomes_row],
        held_rows[becomes_gone & (held_rows >= 0)],
        tombstones,
        held_tombstones[changed & (held_tombstones >= 0)],
        late,
        late_line,
        watermark,
    )


def _last(mask: Mask, starts: Codes) -> Codes:
    """The last place in each run of events where the mask is set; -1 where it is nowhere."""
    found: Codes = np.maximum.reduceat(np.where(mask, np.arange(len(mask)), NOTHING), starts)
    return found


def _rows(
    rules: Rules,
    state: State,
    events: Events,
    order: Codes,
    starts: Codes,
    applied: Mask,
    deletes: Mask,
    last: Codes,
    chosen: Codes,
    held_rows: Codes,
) -> pa.Table:
    """The rows of the keys that are alive now, column by column (rule 2)."""
    newest = order[last[chosen]]
    as_they_are = len(newest) == len(events) and bool((newest == np.arange(len(events))).all())
    last_delete = _last(applied & deletes, starts)[chosen] if events.present else last
    columns = []
    for column in rules.schema:
        values = events.rows.column(column.name)
        mask = events.present.get(column.name)
        if mask is None:
            columns.append(values if as_they_are else values.take(newest))
            continue
        source = _last(applied & ~deletes & mask[order], starts)[chosen]
        fallback = np.where(last_delete >= 0, NOTHING, np.where(held_rows[chosen] >= 0, BASE, NOTHING))
        source = np.where(source > last_delete, source, fallback)
        columns.append(_gather(values, order, source, state.rows.column(column.name), held_rows[chosen]))
    return pa.Table.from_arrays(columns, schema=rules.schema)


def _gather(values: Any, order: Codes, source: Codes, base: Any, held: Codes) -> Any:
    """Values by their source: an event, the row as it was, or nothing (NULL)."""
    from_base = source == BASE
    both = values
    indices = np.where(source >= 0, order[np.maximum(source, 0)], 0)
    if from_base.any():
        old = base.take(held[from_base])
        indices[from_base] = len(values) + np.arange(len(old))
        both = pa.chunked_array([*values.chunks, *old.chunks], type=values.type)
    return both.take(pa.array(indices, mask=source == NOTHING))
