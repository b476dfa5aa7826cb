"""History (`history = scd2`): `<name>__history`, a Lance table of every state a key had between two deltas.

Published with its table, in the same transaction. A row is closed by the event that replaced it: `valid_to` is that
event's sequence, and NULL while the row is the state. Without a sequence both are positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.metastore import Delta, Transaction
from headwater.streams.definition import VALID_FROM as FROM
from headwater.streams.definition import VALID_TO as TO
from headwater.streams.definition import Column, Definition, from_properties, to_properties
from headwater.streams.evolving import evolve_copy, published_columns
from headwater.streams.feed import TxnStep, steps
from headwater.streams.fold import Rules
from headwater.streams.grouping import Codes, KeyIndex, flat
from headwater.streams.hashing import MODULUS
from headwater.streams.layout import HISTORY, LANCE, sibling
from headwater.streams.log_files import Share, narrowed
from headwater.streams.opening import Stream, in_the_way
from headwater.streams.position_views import PositionView, Published, newest_published, view_at
from headwater.streams.reading import rows_of_keys
from headwater.streams.serving_copy import Lake, Staged, Staging, on_top, open_version, set_aside
from headwater.streams.writing import (
    Changes,
    NewFragments,
    commit_rows,
    head_of,
    index_keys,
    record,
    rows_digest,
    write_rows_of,
)

FIRST_ID = 1_000_000
"""Field ids of the history's own columns: above those of any table."""
OWN_IDS = [FIRST_ID, FIRST_ID + 1]
SHARE_ROWS = 1 << 17
"""The history of so many events is made at once: they are in memory meanwhile."""


@dataclass(frozen=True)
class History:
    """The history as staged: its stream, and the manifests to finalize after the commit."""

    stream: Stream
    staged: tuple[Staged, ...]


def publish_history(
    lake: Lake, tx: Transaction, stream: Stream, view: PositionView, before: Published | None
) -> History:
    """Stage what the positions since the last publish add to the history."""
    history = _opened(tx, stream)
    snapshot = lake.now()
    known = newest_published(snapshot, history) if snapshot.exists(history.path) else None
    head = head_of(snapshot, history) if known is not None else None
    staging = Staging(lake, history, head[0] if head else 0)
    if head:
        set_aside(lake, history, head[0])
    with on_top(staging, history):
        dataset = open_version(lake, history, *head) if head else None
        if dataset is not None and known is not None and known.schema_id != history.definition.schema_id:
            dataset = evolve_copy(lake, history, staging, known)
        parts = _parts(lake, stream, history, view, known, before.position if before is not None else 0)
        new = [(write_rows_of(lake, history, dataset, each), each.addresses, each.digest, each.count) for each in parts]
        fragments = NewFragments.together([each[0] for each in new])
        addresses = np.concatenate([np.empty(0, np.int64), *(each[1] for each in new)])
        digest = (known.digest if known is not None else 0) + sum(each[2] for each in new)
        rows = (known.rows if known is not None else 0) + sum(each[3] for each in new)
        index_keys(history, commit_rows(lake, history, staging, dataset, fragments, addresses, view.position), rows)
    made = Published(
        0,
        view.position,
        "",
        rows,
        digest % MODULUS,
        history.definition.schema_id,
        published_columns(history.definition),
    )
    record(lake, tx, history, staging, made)
    return History(history, tuple(staging.staged))


def _opened(tx: Transaction, stream: Stream) -> Stream:
    """The history's table, which the first publish makes, with the present columns of its own table."""
    path = sibling(stream.path, HISTORY)
    wanted = history_definition(stream.definition)
    if not tx.exists(path):
        tx.create_table(path, formats=(LANCE,))
        version = tx.get_table_version(path)
        tx.update_table_version(path, version.id, to_properties(wanted))
    version = tx.get_table_version(path)
    known = from_properties(version.properties)
    if known is None or [column.id for column in known.columns[-2:]] != OWN_IDS:
        raise in_the_way(path, stream.path, "history")
    if known != wanted:
        tx.update_table_version(path, version.id, to_properties(wanted))
    return Stream(path, version.id, version.home.rsplit("/", 1)[0], wanted)


def history_definition(definition: Definition) -> Definition:
    """The columns of the table, and the two that say when a row was the state."""
    kind = sequence_type(definition)
    own = (Column(FIRST_ID, FROM, kind), Column(FIRST_ID + 1, TO, kind))
    columns = tuple(Column(column.id, column.name, column.type) for column in definition.columns)
    return Definition((*columns, *own), definition.keys, (), (), {}, FIRST_ID + 2, definition.schema_id)


def sequence_type(definition: Definition) -> Any:
    """The type of a place in the order: the sequence's, a struct for several columns, a position for none."""
    if not definition.sequence:
        return pa.int64()
    if len(definition.sequence) == 1:
        return definition.by_name[definition.sequence[0]].type
    return pa.struct([(name, definition.by_name[name].type) for name in definition.sequence])


def _parts(
    lake: Lake, stream: Stream, history: Stream, view: PositionView, known: Published | None, after: int
) -> Iterator[Changes]:
    """What changes, for a share of the keys after the other: only the rows of one are in memory."""
    snapshot = lake.now()
    deltas = [d for d in snapshot.deltas(stream.path, after, version=stream.version) if d.position <= view.position]
    start = view_at(snapshot, stream, after)
    for share in _shares(stream.definition, deltas):
        walk = list(steps(lake, snapshot, stream, start, deltas, share)) if deltas else []
        yield _changes(lake, stream, history, view, known, walk)


def _shares(definition: Definition, deltas: Sequence[Delta]) -> list[Share | None]:
    """None: all at once, also where a watermark is of all events."""
    rows, count = sum(file.rows or 0 for delta in deltas for file in delta.files), 1
    while count * SHARE_ROWS < rows:
        count *= 2
    if count == 1 or definition.rules.lateness is not None:
        return [None]
    return [Share(number, count) for number in range(count)]


def _changes(
    lake: Lake, stream: Stream, history: Stream, view: PositionView, known: Published | None, walk: list[TxnStep]
) -> Changes:
    """The rows that steps open and close; count and digest are differences to what is published."""
    rules = narrowed(history.definition, None)
    touched = _touched(rules, walk)
    ledger = _Open(stream.definition, rules, touched)
    if known is not None and touched.num_rows:
        held = PositionView(history, view.position, known, (), ())
        index = KeyIndex([touched.column(name) for name in rules.keys])
        found, ids, addresses = rows_of_keys(lake, held, known, rules, index, touched)
        ledger.load(found, ids, addresses)
    for step in walk:
        ledger.take(step)
    rows, ids, addresses = ledger.written()
    gone = ledger.replaced()
    digest = rows_digest(rows) - rows_digest(gone)
    return Changes(rows, ids, gone, addresses, digest % MODULUS, rows.num_rows - gone.num_rows)


def _touched(rules: Rules, walk: list[TxnStep]) -> pa.Table:
    keys = list(rules.keys)
    parts = [rules.schema.empty_table().select(keys)]
    for step in walk:
        found = step.difference
        parts += [found.inserted.select(keys), found.deleted.select(keys), found.after.select(keys)]
    return pa.concat_tables(parts)


@dataclass
class _Row:
    """A row of the history: where among the rows it is, and where among the places it begins and ends (-1: open)."""

    row: int
    start: int
    end: int = -1


class _Open:
    """The open rows of the touched keys, and the rows that were closed or opened.

    Rows and places in the order stay in Arrow, and are known by their numbers: Python has no form for every value.
    """

    def __init__(self, definition: Definition, rules: Rules, touched: pa.Table) -> None:
        self.definition = definition
        self.rules = rules
        self.index = KeyIndex([touched.column(name) for name in rules.keys])
        self.open = np.full(self.index.count, -1, np.int64)
        self.old: pa.Table = rules.schema.empty_table()
        self.ids: list[int] = []
        self.addresses: Codes = np.empty(0, np.int64)
        self.entries: list[_Row] = []
        self.changed: set[int] = set()
        self.rows = _Heap(pa.schema([field for field in rules.schema if field.name not in (FROM, TO)]))
        self.places = _Heap(pa.schema([pa.field(FROM, rules.schema.field(FROM).type)]))

    def load(self, found: pa.Table, ids: Codes, addresses: Codes) -> None:
        """The rows that are open in the history as published."""
        open_rows = np.flatnonzero(found.column(TO).is_null().to_numpy())
        self.old = found.take(open_rows)
        self.ids = ids[open_rows].tolist()
        self.addresses = addresses[open_rows]
        rows, starts = self.rows.add(self.old), self.places.add(self.old)
        self.entries = [_Row(rows + place, starts + place) for place in range(self.old.num_rows)]
        self.open[self.index.find([self.old.column(name) for name in self.rules.keys])] = np.arange(len(self.entries))

    def take(self, step: TxnStep) -> None:
        found = step.difference
        ends = self._ends(step)
        starts = self._add_places(found.deleted, step)
        for number, code in enumerate(self._codes(found.deleted)):
            self._close(code, ends.get(code, starts + number))
        for rows in (found.after, found.inserted):
            first, starts = self.rows.add(rows), self._add_places(rows, step)
            for number, code in enumerate(self._codes(rows)):
                self._close(code, starts + number)
                self._begin(code, _Row(first + number, starts + number))

    def _ends(self, step: TxnStep) -> dict[int, int]:
        """The places of deletes, by key."""
        if not self.definition.sequence or not step.difference.deleted.num_rows:
            return {}
        rows = step.state.tombstones
        start = self._add_places(rows, step)
        return {code: start + number for number, code in enumerate(self._codes(rows)) if code >= 0}

    def _add_places(self, rows: pa.Table, step: TxnStep) -> int:
        return self.places.add(pa.table({FROM: places_of(self.definition, rows, step.delta.position)}))

    def _codes(self, rows: pa.Table) -> list[int]:
        return self.index.find([rows.column(name) for name in self.rules.keys]).tolist() if rows.num_rows else []

    def _close(self, code: int, end: int) -> None:
        entry = int(self.open[code])
        if entry >= 0:
            self.entries[entry].end = end
            self.changed.add(entry)
            self.open[code] = -1

    def _begin(self, code: int, row: _Row) -> None:
        self.open[code] = len(self.entries)
        self.changed.add(len(self.entries))
        self.entries.append(row)

    def written(self) -> tuple[pa.Table, Codes, Codes]:
        """Rows to write, the ids they keep, and the addresses of the rows they replace."""
        order = sorted(self.changed)
        chosen = [self.entries[place] for place in order]
        rows = self.rows.take([each.row for each in chosen])
        starts, ends = self.places.take([each.start for each in chosen]), self.places.take([e.end for e in chosen])
        columns = [*rows.columns, starts.column(FROM), ends.column(FROM)]
        made = pa.Table.from_arrays(columns, names=[*rows.schema.names, FROM, TO]).select(self.rules.schema.names)
        ids = np.array([self.ids[place] if place < len(self.ids) else -1 for place in order], np.int64)
        addresses = self.addresses[[place for place in order if place < len(self.ids)]]
        return made.cast(self.rules.schema), ids, addresses

    def replaced(self) -> pa.Table:
        return self.old.take(np.array([place for place in sorted(self.changed) if place < len(self.ids)], np.int64))


class _Heap:
    """Tables one under the other; a row is known by its number."""

    def __init__(self, schema: pa.Schema) -> None:
        self._parts = [schema.empty_table()]
        self._count = 0

    def add(self, rows: pa.Table) -> int:
        """The number of the first of these rows."""
        first = self._count
        self._parts.append(rows.select(self._parts[0].schema.names))
        self._count += rows.num_rows
        return first

    def take(self, numbers: list[int]) -> pa.Table:
        """Rows by their numbers; -1 is a row of NULLs."""
        wanted = np.array(numbers, np.int64)
        places: Any = pa.array(wanted, mask=wanted < 0)
        return pa.concat_tables(self._parts).combine_chunks().take(places)


def places_of(definition: Definition, rows: pa.Table, position: int) -> Any:
    """Where in the order rows became the state."""
    names = definition.sequence
    if not names:
        return pa.array(np.full(rows.num_rows, position))
    if len(names) == 1:
        return rows.column(names[0])
    parts: list[Any] = [flat(rows.column(name)) for name in names]
    return pa.StructArray.from_arrays(parts, fields=list(sequence_type(definition)))
