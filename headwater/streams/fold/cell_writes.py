"""Cells: which writes of events stand, column by column, and the rows and marks that come out. Pure, over Arrow.

Events are sorted by key. A write stands when it comes iff its sequence is not below the highest one before it among the
writes of its cell, so one running maximum answers for a column. Columns that every event has written, and whose cells
are at the sequences of their rows, have one answer together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.streams.fold.events import BatchJudgement, Events, Folded, Marks, Rules, State, joined, measure, no_marks
from headwater.streams.rows.row_keys import Codes, KeyIndex, Mask, ordinals

NOTHING, BASE = -1, -2


def join_columns(columns: Sequence[Any]) -> Any:
    """Return columns one after another, as one."""
    return pa.chunked_array([chunk for column in columns for chunk in column.chunks], type=columns[0].type)


class CellWork:
    """Events by key, with what a state knows of these keys: from here on all arrays are in that order.

    Sequences are numbers from 1 on that order them; 0 is that of a cell that was never written. `floors` are those of
    the newest delete of each key, also where its row came back: older values are none of the row's.
    """

    def __init__(
        self, rules: Rules, state: State, events: Events, index: KeyIndex, beyond: Mask, judged: BatchJudgement
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
        self.floors = np.zeros(len(self.held_rows), np.int64)
        self.lines: dict[int, int] = {}
        if not names:
            self.ranks = np.ones(len(self.order), np.int64)
            self.width = 2
            self.before[self.held_rows >= 0] = 1
            return
        row_at = np.flatnonzero(self.held_rows >= 0)
        tombstone_at = np.flatnonzero(self.held_tombstones >= 0)
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
        self.sequences = [join_columns([part.column(name) for part in parts]) for name in names]
        ranked = ordinals(self.sequences, len(self.held_rows)) + 1
        self.every = ranked
        first, second = np.cumsum([len(self.order), len(row_at)])
        third = second + len(tombstone_at)
        self.ranks = ranked[: len(self.order)][self.order]
        self.before[row_at] = ranked[first:second]
        self.floors[tombstone_at] = ranked[second:third]
        self.mark_ranks = np.zeros(len(self.marks), np.int64)
        self.mark_ranks[mark_at] = ranked[third : third + len(mark_at)]
        for table, rank in zip(lines, ranked[third + len(mark_at) :].tolist(), strict=True):
            self.lines[id(table)] = rank
        np.maximum(self.floors, self.lines.get(id(state.lines.truncation), 0), out=self.floors)
        np.copyto(self.before, self.floors, where=self.held_rows < 0)
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
        newest, deleted = self._newest_deletes()
        rows, marks = self._rows(chosen, last, cells, np.maximum(self.floors, newest))
        return Folded(
            rows,
            self.held_rows[becomes_row],
            self.held_rows[becomes_gone & (self.held_rows >= 0)],
            events.rows.select(rules.tombstone.names).take(self.order[deleted[deleted >= 0]]),
            self.held_tombstones[(deleted >= 0) & (self.held_tombstones >= 0)],
            late,
            self.beyond,
            self.judged.watermark,
            joined(rules, [marks, self._cleared(changed, marks)]),
            self.marked_lines[changed[self.mark_groups]],
            state.lines,
            self._unplaced(late),
        )

    def _newest_deletes(self) -> tuple[Codes, Codes]:
        """Return the highest sequence of each key's deletes (0: none), and its place where it is above the floor."""
        nothing = np.zeros(len(self.starts), np.int64)
        there = self.deletes & self.counted
        if not self.rules.sequence or not there.any():
            return nothing, nothing + NOTHING
        newest: Codes = np.maximum.reduceat(np.where(there, self.ranks, 0), self.starts)
        there &= (self.ranks == newest[self.groups]) & (newest > self.floors)[self.groups]
        return newest, self._last(there)

    def _standing(self, writes: Mask | None, before: Codes) -> Mask:
        """Return a mask of the writes of a column that stand: none before them is higher (rule 1: ties go to the
        later).
        """
        counted = self.counted if writes is None else self.counted & writes
        reached = np.where(counted, self.ranks, 0)
        if self.distinct:
            return counted & (reached >= before)
        reached += self.groups * self.width
        highest = np.maximum.accumulate(reached)
        previous = np.maximum((before + np.arange(len(before)) * self.width)[self.groups], _shifted(highest))
        fits: Mask = counted & (reached >= previous)
        return fits

    def _cell_before(self, name: str) -> Codes | None:
        """Return the sequences that a column's cells have in the state; None: those of their rows."""
        marked = self.marks.cells.get(name)
        limit = self.state.lines.unwritten.get(name)
        if limit is None and (marked is None or not marked.any()):
            return None
        found = self.before.copy()
        if limit is not None:
            unwritten = self._unwritten(self.held_rows, self.before, self.state.rows.column(name), limit)
            if marked is None and not len(unwritten) and (self.ranks > self.lines[id(limit)]).all():
                return None
            found[unwritten] = self.floors[unwritten]
        if marked is not None:
            places = self.mark_groups[marked]
            found[places] = np.maximum(self.mark_ranks[marked], self.floors[places])
        return found

    def _unwritten(self, held: Codes, ranks: Codes, column: Any, limit: pa.Table) -> Codes:
        """Return the rows that never wrote a column, by its line. `held`: places in the column, -1 for no row."""
        old = np.flatnonzero((held >= 0) & (ranks <= self.lines[id(limit)]))
        empty: Mask = column.is_null().to_numpy()
        return old[empty[held[old]]]

    def _last(self, mask: Mask) -> Codes:
        """Return the last place of each key's events where the mask is set; -1 where it is nowhere."""
        found: Codes = np.maximum.reduceat(np.where(mask, np.arange(len(mask)), NOTHING), self.starts)
        return found

    # The rows that come out

    def _rows(
        self, chosen: Codes, last: Codes, cells: Mapping[str, tuple[Mask, Codes]], floors: Codes
    ) -> tuple[pa.Table, Marks]:
        """Return the rows of the keys that are alive now, column by column, and the marks of those that have any.

        `floors`: those after the events.
        """
        rules, events, state, held = self.rules, self.events, self.state, self.held_rows[chosen]
        top = last[chosen]
        newest = self.order[top]
        stays = bool((top < 0).any())  # rows whose newest event is that of the state, with other cells
        as_they_are = not stays and len(newest) == len(events) and bool((newest == np.arange(len(events))).all())
        columns: list[Any] = []
        after: dict[str, Codes] = {}
        own = np.where(top >= 0, self.ranks[top], self.before[chosen])
        for column in rules.schema:
            values = events.rows.column(column.name)
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
            columns.append(_gather(values, self.order, source, state.rows.column(column.name), held))
        rows = pa.Table.from_arrays(columns, schema=rules.schema)
        return rows, self._marks(rows, own, after, floors[chosen]) if rules.sequence and cells else no_marks(rules)

    def _marks(self, rows: pa.Table, own: Codes, after: Mapping[str, Codes], floors: Codes) -> Marks:
        """Return the marks of rows: cells whose sequence is not that of their row."""
        at, number, ranks = [], [], []
        for place, (name, found) in enumerate(after.items()):
            expected, limit = own, self.state.lines.unwritten.get(name)
            if limit is not None:
                expected = own.copy()
                unwritten = self._unwritten(np.arange(len(own)), own, rows.column(name), limit)
                expected[unwritten] = floors[unwritten]
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

    def _cleared(self, changed: Mask, marks: Marks) -> Marks:
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
        """Return for each event the lowest sequence number that is not below the line of its batch."""
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
    """Return each value at the place after its own."""
    return np.concatenate([[0], values[:-1]])


def _held(index: KeyIndex, rules: Rules, table: pa.Table) -> Codes:
    """Return the row of each key of the events in a table, -1 for a key without one."""
    held = np.full(index.count, NOTHING, np.int64)
    if table.num_rows:
        found = index.find([table.column(name) for name in rules.keys])
        there = np.flatnonzero(found >= 0)
        held[found[there]] = there
    return held


def _gather(values: Any, order: Codes, source: Codes, base: Any, held: Codes) -> object:
    """Return values by their source: an event, the row as it was, or nothing (NULL)."""
    from_base = source == BASE
    both = values
    indices = np.where(source >= 0, order[np.maximum(source, 0)], 0)
    if from_base.any():
        old = base.take(held[from_base])
        indices[from_base] = len(values) + np.arange(len(old))
        both = pa.chunked_array([*values.chunks, *old.chunks], type=values.type)
    return both.take(pa.array(indices, mask=source == NOTHING))
