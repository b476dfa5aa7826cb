"""The fold: a state and events in order of arrival give the next state. Pure, over Arrow, no loop over rows.

Every event writes cells, and of each cell the write with the highest sequence stands, ties to the later arrival. What
makes it vectorize: a write stands when it comes iff its sequence is not below the highest one before it among the
writes of its cell, so one running maximum over events sorted by key answers for a column. Columns that every event has
written, and whose cells are at the sequences of their rows, have one answer together.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.streams.grouping import Codes, KeyIndex, ordinals
from headwater.streams.marks import Lines, Marks, joined, no_marks
from headwater.streams.watermark import Judged, Watermark, line, measure, reached, too_late

Mask = npt.NDArray[np.bool_]
NOTHING, BASE = -1, -2
MANY = 1 << 16
VERSION = 2
"""Of these rules, as each publish records it. 1: whole events were late or not, and no marks were kept."""


@dataclass(frozen=True)
class Rules:
    """What the fold must know of a table. `lateness` is measured like the first sequence column (watermark.py)."""

    schema: pa.Schema
    keys: tuple[str, ...] = ()
    sequence: tuple[str, ...] = ()
    lateness: Any = None

    @property
    def tombstone(self) -> pa.Schema:
        """The columns of a tombstone: key and sequence."""
        return pa.schema([self.schema.field(name) for name in dict.fromkeys((*self.keys, *self.sequence))])

    @property
    def cells(self) -> list[str]:
        """The columns that an event may lack."""
        return [name for name in self.schema.names if name not in self.keys and name not in self.sequence]


@dataclass(frozen=True)
class Truncations:
    """Truncations among events: their sequences, before which event each came, and of which batch it is."""

    rows: pa.Table
    places: Codes
    batches: Codes

    def __len__(self) -> int:
        return int(self.rows.num_rows)


@dataclass(frozen=True)
class Events:
    """Changes in order of arrival. A column that some rows are missing has a mask in `present`, and null there.

    `reads` are rows of a snapshot of their source, which are never too late.
    """

    rows: pa.Table
    deletes: Mask
    present: Mapping[str, Mask] = field(default_factory=dict)
    reads: Mask | None = None
    truncations: Truncations | None = None

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def take(self, indices: Codes) -> Events:
        """Some of the events, or all in a new order, without truncations."""
        present = {name: mask[indices] for name, mask in self.present.items()}
        reads = None if self.reads is None else self.reads[indices]
        return Events(self.rows.take(indices), self.deletes[indices], present, reads)

    def gaps(self, name: str) -> Mask | None:
        """Which events write a column; None: all do. A delete writes NULL into every one."""
        mask = self.present.get(name)
        writes = None if mask is None else mask | self.deletes
        return None if writes is None or writes.all() else writes


@dataclass(frozen=True)
class State:
    """The rows of a table, what is known beside them, and how far its first sequence column has come."""

    rows: pa.Table
    tombstones: pa.Table
    watermark: Watermark = None
    marks: Marks | None = None
    lines: Lines = Lines()


@dataclass(frozen=True)
class Folded:
    """What events did to a state.

    `rows` now stand for their keys; `replaces` says which row of the state each takes the place of (-1: none).
    `gone` are rows of the state that were deleted. `settled` are tombstones of the state that hold no more, and
    `unmarked` its marks that do not. `unplaced` are late events which marks could have placed that were never kept.
    """

    rows: pa.Table
    replaces: Codes
    gone: Codes
    tombstones: pa.Table
    settled: Codes
    late: Mask
    too_late: Mask
    watermark: Watermark
    marks: Marks
    unmarked: Codes
    lines: Lines = Lines()
    unplaced: Mask | None = None


def empty(rules: Rules) -> State:
    return State(rules.schema.empty_table(), rules.tombstone.empty_table())


def concat(rules: Rules, parts: list[Events]) -> Events:
    """Events one after another, without truncations."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return Events(rules.schema.empty_table(), np.empty(0, bool))
    names = {name for part in parts for name in part.present}
    present = {
        name: np.concatenate([part.present.get(name, np.ones(len(part), bool)) for part in parts]) for name in names
    }
    rows = pa.concat_tables([part.rows for part in parts]).combine_chunks()
    reads = None
    if any(part.reads is not None for part in parts):
        reads = np.concatenate([np.zeros(len(p), bool) if p.reads is None else p.reads for p in parts])
    return Events(rows, np.concatenate([part.deletes for part in parts]), present, reads)


def fold(
    rules: Rules, state: State, events: Events, judged: Judged | None = None, known: KeyIndex | None = None
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
    return _Work(rules, state, events, index, beyond, judged).folded()


def one_batch(rules: Rules, watermark: Watermark, events: Events) -> Judged:
    """Events that are one batch, judged by the watermark before it."""
    parts = [events.rows] if events.truncations is None else [events.rows, events.truncations.rows]
    return Judged((line(rules, watermark),), None, reached(rules, watermark, parts))


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
    """The rows of a state that stand as they were after what was folded."""
    return np.flatnonzero(_kept(state, folded))


def _kept(state: State, folded: Folded) -> Mask:
    kept = np.ones(state.rows.num_rows, bool)
    kept[folded.gone] = False
    kept[folded.replaces[folded.replaces >= 0]] = False
    return kept


def without_gaps(events: Events) -> Events | None:
    """The same events, if every upsert among them is a whole row.

    Those need nothing of the rows they replace, unless these have a cell that is older than the row.
    """
    if events.truncations is not None or any(events.gaps(name) is not None for name in events.present):
        return None
    return replace(events, present={})


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


def _unchanged(rules: Rules, state: State, beyond: Mask, watermark: Watermark) -> Folded:
    nothing, found = np.empty(0, np.int64), empty(rules)
    late = np.zeros(len(beyond), bool)
    return Folded(
        found.rows, nothing, nothing, found.tombstones, nothing, late, beyond, watermark, no_marks(rules), nothing,
        state.lines,
    )  # fmt: skip


def _keyless(rules: Rules, events: Events, beyond: Mask, watermark: Watermark) -> Folded:
    """An append-only log: every row that is not too late is a row."""
    rows = events.rows.filter(pa.array(~beyond)) if beyond.any() else events.rows
    nothing = _unchanged(rules, empty(rules), beyond, watermark)
    return replace(nothing, rows=rows, replaces=np.full(rows.num_rows, NOTHING, np.int64))


# Truncations -----------------------------------------------------------------------------------------------------------


def _truncated(rules: Rules, state: State, events: Events, cut: Truncations, judged: Judged) -> Folded:
    """A truncation is a delete of every key: of those that are known here, and by its line of all others.

    One below an earlier one changes nothing.
    """
    before = state.lines.truncation
    tables = [cut.rows] if before is None else [cut.rows, before]
    ranked = ordinals([_joined([table.column(name) for table in tables]) for name in rules.sequence], 1)
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
    return replace(
        folded, tombstones=folded.tombstones.take(above), lines=replace(state.lines, truncation=top)
    )


def _with_deletes(
    rules: Rules, state: State, events: Events, cut: Truncations, kept: Codes, judged: Judged
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
    """The rows whose sequence is above another: tombstones that a truncation does not say already."""
    ranked = ordinals([_joined([rows.column(name), limit.column(name)]) for name in rules.sequence], 1)
    return np.flatnonzero(ranked[:-1] > ranked[-1])


def _joined(columns: Sequence[Any]) -> Any:
    return pa.chunked_array([chunk for column in columns for chunk in column.chunks], type=columns[0].type)


# Cells -----------------------------------------------------------------------------------------------------------------


class _Work:
    """Events by key, with what a state knows of these keys: from here on all arrays are in that order.

    Sequences are numbers from 1 on that order them; 0 is that of a cell that was never written.
    """

    def __init__(
        self, rules: Rules, state: State, events: Events, index: KeyIndex, beyond: Mask, judged: Judged
    ) -> None:
        self.rules, self.state, self.events, self.judged = rules, state, events, judged
        self.beyond = beyond
        self.held_rows = _held(index, rules, state.rows)
        self.held_tombstones = _held(index, rules, state.tombstones)
        marks = state.marks if state.marks is not None and rules.sequence else no_marks(rules)
        codes = index.find([marks.rows.column(name) for name in rules.keys]) if len(marks) else np.empty(0, np.int64)
        self.marked_lines = np.flatnonzero(codes >= 0)
        self.marks = marks.take(self.marked_lines)
        self.mark_groups = codes[self.marked_lines]
        self.distinct = index.count == len(events)
        if self.distinct:  # every event has a key of its own: they are in order as they are
            self.order = self.groups = self.starts = np.arange(len(events))
            self.held_rows, self.held_tombstones = self.held_rows[index.codes], self.held_tombstones[index.codes]
            place = np.empty(index.count, np.int64)
            place[index.codes] = self.order
            self.mark_groups = place[self.mark_groups]
        else:
            self.order = np.argsort(index.codes, kind="stable")
            self.groups = index.codes[self.order]
            self.starts = np.flatnonzero(np.concatenate([[True], self.groups[1:] != self.groups[:-1]]))
        self.counted = ~beyond[self.order]
        self.deletes = events.deletes[self.order]
        self._rank()

    def _rank(self) -> None:
        """The sequences of events, rows, tombstones, marks and lines, compared with one another."""
        state, names = self.state, self.rules.sequence
        self.before = np.zeros(len(self.held_rows), np.int64)
        self.lines: dict[int, int] = {}
        self.floor = 0
        if not names:
            self.ranks = np.ones(len(self.order), np.int64)
            self.width = 2
            self.before[self.held_rows >= 0] = 1
            return
        row_at = np.flatnonzero(self.held_rows >= 0)
        tombstone_at = np.flatnonzero((self.held_tombstones >= 0) & (self.held_rows < 0))
        mark_at = np.flatnonzero(~self.marks.never)
        lines = state.lines.tables
        parts = [self.events.rows]
        if len(row_at):
            parts.append(state.rows.select(names).take(self.held_rows[row_at]))
        if len(tombstone_at):
            parts.append(state.tombstones.select(names).take(self.held_tombstones[tombstone_at]))
        if len(mark_at):
            parts.append(self.marks.rows.select(names).take(mark_at))
        parts += lines
        self.sequences = [_joined([part.column(name) for part in parts]) for name in names]
        ranked = ordinals(self.sequences, len(self.held_rows)) + 1
        self.every = ranked
        first, second = np.cumsum([len(self.order), len(row_at)])
        third = second + len(tombstone_at)
        self.ranks = ranked[: len(self.order)][self.order]
        self.before[row_at] = ranked[first:second]
        self.before[tombstone_at] = ranked[second:third]
        self.mark_ranks = np.zeros(len(self.marks), np.int64)
        self.mark_ranks[mark_at] = ranked[third : third + len(mark_at)]
        for table, rank in zip(lines, ranked[third + len(mark_at) :].tolist(), strict=True):
            self.lines[id(table)] = rank
        self.floor = self.lines.get(id(state.lines.truncation), 0)
        np.maximum(self.before, self.floor, out=self.before, where=self.held_rows < 0)
        self.width = int(ranked.max(initial=0)) + 1

    def folded(self) -> Folded:
        rules, state, events = self.rules, self.state, self.events
        stands = self._standing(None, self.before)
        any_stands = stands
        cells: dict[str, tuple[Mask, Codes]] = {}
        for name in rules.cells:
            writes, before = events.gaps(name), self._cell_before(name)
            if writes is not None or before is not None:
                own = before if before is not None else self.before
                cells[name] = self._standing(None if writes is None else writes[self.order], own), own
                any_stands = any_stands | cells[name][0]
        if rules.lateness is not None and events.reads is not None and events.reads.any():
            stands, cells, any_stands = self._with_reads(stands, cells)
        last = self._last(stands)
        changed = self._last(any_stands) >= 0 if cells else last >= 0
        becomes_gone = changed & (last >= 0) & self.deletes[last]
        becomes_row = changed & ~becomes_gone & ((last >= 0) | (self.held_rows >= 0))
        late = np.empty(len(self.order), bool)
        late[self.order] = ~any_stands
        late &= ~self.beyond
        chosen = np.flatnonzero(becomes_row)
        rows, marks = self._rows(chosen, last, cells)
        deleted = self.order[last[becomes_gone]] if rules.sequence else np.empty(0, np.int64)
        return Folded(
            rows,
            self.held_rows[becomes_row],
            self.held_rows[becomes_gone & (self.held_rows >= 0)],
            events.rows.select(rules.tombstone.names).take(deleted),
            self.held_tombstones[changed & (self.held_tombstones >= 0)],
            late,
            self.beyond,
            self.judged.watermark,
            joined(rules, [marks, self._cleared(changed, chosen, marks)]),
            self.marked_lines[changed[self.mark_groups]],
            state.lines,
            self._unplaced(late),
        )

    def _standing(self, writes: Mask | None, before: Codes) -> Mask:
        """Which writes of a column are not below the highest sequence before them (rule 1: ties go to the later)."""
        counted = self.counted if writes is None else self.counted & writes
        reached = np.where(counted, self.ranks, 0)
        if self.distinct:
            counted = counted & (reached >= before)
            return counted
        reached += self.groups * self.width
        highest = np.maximum.accumulate(reached)
        previous = np.maximum((before + np.arange(len(before)) * self.width)[self.groups], _shifted(highest))
        counted = counted & (reached >= previous)
        return counted

    def _cell_before(self, name: str) -> Codes | None:
        """The sequences that a column's cells have in the state; None: those of their rows."""
        marked = self.marks.cells.get(name)
        limit = self.state.lines.unwritten.get(name)
        if limit is None and (marked is None or not marked.any()):
            return None
        found = self.before.copy()
        if limit is not None:
            unwritten = self._unwritten(self.held_rows, self.before, self.state.rows.column(name), limit)
            if marked is None and not len(unwritten) and (self.ranks > self.lines[id(limit)]).all():
                return None
            found[unwritten] = self.floor
        if marked is not None:
            found[self.mark_groups[marked]] = np.maximum(self.mark_ranks[marked], self.floor)
        return found

    def _unwritten(self, held: Codes, ranks: Codes, column: Any, limit: pa.Table) -> Codes:
        """Which rows never wrote a column, by its line: `held` are places in the column, -1 for no row."""
        old = np.flatnonzero((held >= 0) & (ranks <= self.lines[id(limit)]))
        empty: Mask = column.is_null().to_numpy()
        return old[empty[held[old]]]

    def _last(self, mask: Mask) -> Codes:
        """The last place of each key's events where the mask is set; -1 where it is nowhere."""
        found: Codes = np.maximum.reduceat(np.where(mask, np.arange(len(mask)), NOTHING), self.starts)
        return found

    # The rows that come out

    def _rows(self, chosen: Codes, last: Codes, cells: Mapping[str, tuple[Mask, Codes]]) -> tuple[pa.Table, Marks]:
        """The rows of the keys that are alive now, column by column, and the marks of those that have any."""
        rules, events, state, held = self.rules, self.events, self.state, self.held_rows[chosen]
        top = last[chosen]
        newest = self.order[top]
        stays = bool((top < 0).any())  # rows whose newest event is that of the state, with other cells
        as_they_are = not stays and len(newest) == len(events) and bool((newest == np.arange(len(events))).all())
        columns: list[Any] = []
        after: dict[str, Codes] = {}
        own = np.where(top >= 0, self.ranks[top], self.before[chosen])
        for column in rules.schema:
            values, base = events.rows.column(column.name), state.rows.column(column.name)
            if column.name in cells:
                stands, before = cells[column.name]
                source = self._last(stands)[chosen]
                after[column.name] = np.where(source >= 0, self.ranks[source], before[chosen])
                source = np.where(source < 0, BASE, np.where(self.deletes[source], NOTHING, source))
            elif stays:
                source = np.where(top < 0, BASE, top)
            else:
                columns.append(values if as_they_are else values.take(newest))
                continue
            source = np.where((source == BASE) & (held < 0), NOTHING, source)
            columns.append(_gather(values, self.order, source, base, held))
        rows = pa.Table.from_arrays(columns, schema=rules.schema)
        return rows, self._marks(rows, own, after) if rules.sequence and cells else no_marks(rules)

    def _marks(self, rows: pa.Table, own: Codes, after: Mapping[str, Codes]) -> Marks:
        """What rows must have marked: cells that are not where rows without marks have them."""
        at, number, ranks = [], [], []
        for place, (name, found) in enumerate(after.items()):
            expected, limit = own, self.state.lines.unwritten.get(name)
            if limit is not None:
                expected = own.copy()
                expected[self._unwritten(np.arange(len(own)), own, rows.column(name), limit)] = self.floor
            differ = np.flatnonzero(found != expected)
            at.append(differ)
            number.append(np.full(len(differ), place))
            ranks.append(found[differ])
        of, rank = np.concatenate(at), np.concatenate(ranks)
        if not len(of):
            return no_marks(self.rules)
        entries, entry = np.unique(of * self.width + rank, return_inverse=True)
        of, rank = entries // self.width, entries % self.width
        cells, numbers = {}, np.concatenate(number)
        for place, name in enumerate(after):
            cells[name] = np.zeros(len(entries), bool)
            cells[name][entry[numbers == place]] = True
        known, first = np.unique(self.every, return_index=True)
        places = first[np.searchsorted(known, np.maximum(rank, known[0]))]
        made = {name: column.take(places) for name, column in zip(self.rules.sequence, self.sequences, strict=True)}
        made |= {name: rows.column(name).take(of) for name in self.rules.keys}
        schema = self.rules.tombstone
        return Marks(pa.table([made[name] for name in schema.names], schema=schema), cells, rank == 0)

    def _cleared(self, changed: Mask, chosen: Codes, marks: Marks) -> Marks:
        """Entries without a column for the keys that had marks and have none."""
        had = np.zeros(len(changed), bool)
        had[self.mark_groups] = True
        had &= changed
        if not had.any():
            return no_marks(self.rules)
        if len(marks):
            names = list(self.rules.keys)
            index = KeyIndex([marks.rows.column(name) for name in names])
            some = self.events.rows.select(names).take(self.order[self.starts])
            had &= ~index.holds([some.column(name) for name in names])
        rows = self.events.rows.select(self.rules.tombstone.names).take(self.order[self.starts[had]])
        return Marks(rows, {}, np.ones(rows.num_rows, bool))

    def _unplaced(self, late: Mask) -> Mask | None:
        """Late events of rows that may have been published before marks were kept."""
        limit = self.state.lines.unmarked
        if limit is None or not late.any():
            return None
        old = (self.held_rows >= 0)[self.groups] & (self.ranks <= self.lines[id(limit)])
        found = np.zeros(len(late), bool)
        found[self.order] = old
        return found & late

    # Snapshot reads below the line of their batch

    def _with_reads(
        self, stands: Mask, cells: dict[str, tuple[Mask, Codes]]
    ) -> tuple[Mask, dict[str, tuple[Mask, Codes]], Mask]:
        """Tombstones, marks and truncations below the line of a batch count as absent for its events.

        Only a snapshot's reads can be below it. Their keys are few, and are gone through one event after another.
        """
        assert self.events.reads is not None
        limits = self._limits()
        below = self.events.reads[self.order] & (self.ranks < limits)
        cells = {name: cells.get(name, (stands, self.before)) for name in self.rules.cells}
        missed, every = below & ~stands, stands.copy()
        for name, (found, _) in cells.items():
            writes = self.events.gaps(name)
            missed |= below & ~found & (True if writes is None else writes[self.order])
            every |= found
        stands, cells = stands.copy(), {name: (found.copy(), before.copy()) for name, (found, before) in cells.items()}
        for group in np.unique(self.groups[missed]).tolist():
            self._one_by_one(group, limits, stands, cells, every)
        return stands, cells, every

    def _limits(self) -> Codes:
        """For each event the lowest number of a sequence that is not below the line of its batch."""
        firsts, batches = measure(self.sequences[0]), self.judged.of(len(self.order))[self.order]
        found = np.zeros(len(self.order), np.int64)
        for number, limit in enumerate(self.judged.lines):
            if limit is not None:
                there = self.every[firsts >= limit]
                found[batches == number] = there.min() if len(there) else self.width
        return found

    def _one_by_one(
        self, group: int, limits: Codes, stands: Mask, cells: Mapping[str, tuple[Mask, Codes]], every: Mask
    ) -> None:
        start = int(self.starts[group])
        end = int(self.starts[group + 1]) if group + 1 < len(self.starts) else len(self.order)
        own, alive = int(self.before[group]), bool(self.held_rows[group] >= 0)
        at = {name: int(before[group]) for name, (_, before) in cells.items()}
        for place in range(start, end):
            rank, limit = int(self.ranks[place]), int(limits[place])
            if not self.counted[place]:
                continue
            if not alive and own < limit:  # as if its key had never been
                own, at = 0, dict.fromkeys(at, 0)
                for found, before in cells.values():
                    found[start:place], before[group] = False, 0
            for name, (found, _) in cells.items():
                writes = self.events.gaps(name)
                absent = at[name] < limit and not (alive and at[name] == own)
                found[place] = (writes is None or writes[self.order[place]]) and (absent or rank >= at[name])
            stands[place] = rank >= own
            every[place] = stands[place] or any(found[place] for found, _ in cells.values())
            at = {name: rank if found[place] else at[name] for name, (found, _) in cells.items()}
            if stands[place]:
                own, alive = rank, not self.deletes[place]


def _shifted(values: Codes) -> Codes:
    """Each value at the place after its own."""
    return np.concatenate([[0], values[:-1]])


def _held(index: KeyIndex, rules: Rules, table: pa.Table) -> Codes:
    """For each key of the events, its row in a table; -1 where it has none."""
    held = np.full(index.count, NOTHING, np.int64)
    if table.num_rows:
        found = index.find([table.column(name) for name in rules.keys])
        there = np.flatnonzero(found >= 0)
        held[found[there]] = there
    return held


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
