"""SQL statements and deletes on stream tables: rows are checked against the state, and land together or not at all.

Landing alone never reads. A statement does: a row that would be late is refused (streams.md, "Bad rows"), and one that
has read the table becomes the very next change of it, or is a conflict (14) that has changed nothing.
Delete events come from keys, rows or a predicate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.clock import Clock
from headwater.errors import ConcurrentModificationError, InvalidInputError
from headwater.imports import pc
from headwater.metastore import DataFile, Transaction
from headwater.store import Store
from headwater.streams.definition import Definition, define
from headwater.streams.fold.events import Events, Rules, State, concat, empty, too_late
from headwater.streams.fold.fold import one_batch
from headwater.streams.log.batches import REFUSE, shape
from headwater.streams.log.landing import APPEND, UPSERT, BatchOrigin
from headwater.streams.log.prepared_landing import EvolvedError, PreparedLanding, prepare
from headwater.streams.log.stored_events import narrowed, read_bytes, read_file
from headwater.streams.reading.fresh_reads import read, state_of_keys
from headwater.streams.reading.position_views import PositionView, view_at
from headwater.streams.rows.column_casts import cast_array
from headwater.streams.rows.column_types import may_cast
from headwater.streams.rows.hashing import content_digest
from headwater.streams.rows.input_rows import InputRows, as_input_rows, from_table
from headwater.streams.rows.row_keys import Codes, KeyIndex, Mask, ranks
from headwater.streams.serving.serving_copy import Lake
from headwater.streams.sources.format_output import Taken
from headwater.streams.stream_lookup import Stream, no_deletes, open_in

Json = Mapping[str, Any]
LOG_POSITIONS = frozenset(("_lsn", "_file", "_pos"))
"""Sequence columns that a source's own log counts: a statement cannot take one that was given before."""


@dataclass(frozen=True)
class Statement:
    """Rows that tasks prepared for a statement: deletes, then replacements, then rows whose keys must be new.

    `position`: where the statement has read the table; None: it has not.
    """

    deleted: Sequence[Json] = ()
    upserted: Sequence[Json] = ()
    inserted: Sequence[Json] = ()
    position: int | None = None

    @property
    def all(self) -> Iterator[Json]:
        yield from self.deleted
        yield from self.upserted
        yield from self.inserted

    @property
    def is_empty(self) -> bool:
        return not any(each["files"] for each in self.all)


@dataclass(frozen=True)
class StatementRows:
    """Rows of a statement before they are prepared; `kind` is a field of `Statement`."""

    kind: str
    rows: pa.Table

    @property
    def deletes(self) -> bool:
        return self.kind == "deleted"


KINDS = ("deleted", "upserted", "inserted")


def prepare_rows(store: Store, clock: Clock, stream: Stream, rows: pa.Table, deletes: bool, sofar: int) -> Json:
    """Return rows of a statement as files of the log, and what their commit needs. A bad row is an error.

    They are put in the order of their sequence: rows of a statement come in none, and none should be late behind
    another. A column that they lack stays as it is, which is not NULL.
    """
    if deletes and not stream.definition.keys:
        raise no_deletes(stream.name)
    ordered = _in_order(stream.definition, rows)
    columns = {name: ordered.column(name) for name in ordered.schema.names}
    events = InputRows(columns, ordered.num_rows, deletes=np.ones(ordered.num_rows, bool) if deletes else None)
    return prepare(store, clock, stream, Taken(events), BatchOrigin(), (), sofar, REFUSE)


def _in_order(definition: Definition, rows: pa.Table) -> pa.Table:
    """Return the rows by sequence, in the types of the table. Rows that do not fit stay, and are refused later."""
    types = {name: column.type for name, column in definition.by_name.items()}
    fits = all(field.name in types and may_cast(field.type, types[field.name]) for field in rows.schema)
    if not fits or not definition.sequence or not set(definition.sequence) <= set(rows.schema.names):
        return rows
    marks = pa.table({name: cast_array(rows.column(name), types[name])[0] for name in definition.sequence})
    return rows.take(pc.sort_indices(marks, sort_keys=[(name, "ascending") for name in marks.schema.names]))


class StaleError(Exception):
    """The rows that a statement has read are gone: repeating it would change other rows."""


def apply_statement(lake: Lake, tx: Transaction, path: Sequence[str], statement: Statement) -> None:
    """As `land_statement`, for one who begins anew after a conflict: `StaleError` where that would be no use."""
    try:
        land_statement(lake, tx, path, statement)
    except ConcurrentModificationError as error:
        raise StaleError(str(error)) from None


def land_statement(lake: Lake, tx: Transaction, path: Sequence[str], statement: Statement) -> None:
    """Land the rows of a statement in a transaction; 13 for rows that cannot stand, 14 for a table that changed."""
    stream = open_in(tx, path)
    if statement.position is not None:
        check_position(tx, stream, statement.position)
    keyed = bool(stream.definition.keys)
    if keyed:
        check_rows(lake, tx, stream, statement)
    verb, first = UPSERT if keyed else APPEND, None
    for prepared in statement.all:
        landing = PreparedLanding(lake.metastore, path, prepared, verb, True, BatchOrigin(), first)
        first = first or landing
        try:
            landing(tx)
        except EvolvedError:
            raise changed(stream.name) from None


def check_position(tx: Transaction, stream: Stream, position: int) -> None:
    """The log still ends where it was read, and the transaction relies on that; its own rows are read like others."""
    if tx.last_position(stream.path, version=stream.version) != position:
        raise changed(stream.name)


def changed(name: str) -> ConcurrentModificationError:
    return ConcurrentModificationError(
        f"{name} was changed by another writer while the statement ran. Nothing was written; run it again."
    )


def check_rows(lake: Lake, tx: Transaction, stream: Stream, statement: Statement) -> None:
    """Raise for a late row, a key that a statement changes twice, and a new key that is there already."""
    definition = stream.definition
    if statement.is_empty or not (definition.sequence or statement.inserted or statement.position is not None):
        return
    rules = narrowed(definition, [])
    groups = (statement.deleted, statement.upserted, statement.inserted)
    parts = [list(_events(lake.store, stream, rules, group)) for group in groups]
    deleted, _, inserted = (sum(len(each) for each in part) for part in parts)
    events = concat(rules, [each for part in parts for each in part])
    state = _state(lake, tx, stream, rules, events) if definition.sequence or inserted else empty(rules)
    index = KeyIndex([events.rows.column(name) for name in rules.keys])
    if statement.position is not None:
        _check_distinct(stream, rules, events, index.codes, deleted)
    _check_new(stream, rules, events, index, state, deleted, len(events) - inserted)
    if definition.sequence:
        _check_late(stream, rules, events, index, state, statement.position is not None, len(events) - inserted)


def _events(store: Store, stream: Stream, rules: Rules, prepared: Sequence[Json]) -> Iterator[Events]:
    """Keys and sequences of what was written, in order of arrival."""
    for each in prepared:
        parts, places = [], []
        for _, file, _ in each["files"]:
            written = DataFile(*file)
            events, rows = read_file(stream.definition, rules, read_bytes(store, written), written.path)
            parts.append(events)
            places.append(rows)
        if parts:
            yield concat(rules, parts).take(np.argsort(np.concatenate(places), kind="stable"))


def _state(lake: Lake, tx: Transaction, stream: Stream, rules: Rules, events: Events) -> State:
    """Return the state of a statement's keys before it."""
    if not tx.last_position(stream.path, version=stream.version):
        return empty(rules)
    with tx.bound_by_position(stream.path, stream.version):
        return state_of_keys(lake, view_at(tx, stream), events.rows, [])


def _check_distinct(stream: Stream, rules: Rules, events: Events, codes: Codes, deleted: int) -> None:
    _, first, count = np.unique(codes[deleted:], return_index=True, return_counts=True)
    twice = first[count > 1]
    if len(twice):
        raise InvalidInputError(
            f"Two rows of the statement have {_key(rules, events, deleted + int(twice[0]))}, and a key of "
            f"{stream.name} has one row. Nothing was written."
        )


def _check_new(
    stream: Stream, rules: Rules, events: Events, index: KeyIndex, state: State, deleted: int, first: int
) -> None:
    there = np.zeros(index.count, bool)
    found = index.find([state.rows.column(name) for name in rules.keys])
    there[found[found >= 0]] = True
    there[index.codes[:deleted]] = False
    taken = np.flatnonzero(there[index.codes[first:]])
    if len(taken):
        raise InvalidInputError(
            f"{stream.name} has a row with {_key(rules, events, first + int(taken[0]))} already: the statement would "
            "replace it. Nothing was written. Delete that row first, or match it."
        )


def _check_late(
    stream: Stream, rules: Rules, events: Events, index: KeyIndex, state: State, has_read: bool, inserted: int
) -> None:
    """Against the state before: rows of one statement come in no order, and the one with the highest sequence wins."""
    late, same = _order(rules, events, index, state)
    beyond = too_late(rules, one_batch(rules, state.watermark, events), events.rows, None)
    names = ", ".join(rules.sequence)
    if has_read and LOG_POSITIONS & set(rules.sequence):
        same[inserted:] = False
        if same.any():
            raise InvalidInputError(
                f"{stream.name} is ordered by {names}, positions of its source's log, so a change must have one of its "
                f"own: SET {names} with UPDATE or MERGE, or delete with rows that have them. Nothing was written."
            )
    found = np.flatnonzero(late | beyond)
    if len(found):
        raise InvalidInputError(
            f"The row with {_key(rules, events, int(found[0]))} would be late in {stream.name}: its {names} is older "
            f"than {'what it follows' if late[found[0]] else 'its lateness allows'}. Nothing was written. Give it a "
            "newer one, or ingest it, which keeps late events apart."
        )


def _order(rules: Rules, events: Events, index: KeyIndex, state: State) -> tuple[Mask, Mask]:
    """Return masks of the events below, and at, the known sequence of their key."""
    held = pa.concat_tables([state.rows.select(rules.tombstone.names), state.tombstones.select(rules.tombstone.names)])
    cut, count = state.lines.truncation, len(events)
    tables = [events.rows, held] if cut is None else [events.rows, held, cut]
    ordered = ranks([pa.chunked_array(_chunks(tables, name)) for name in rules.sequence])
    before = np.full(index.count, -1 if cut is None else ordered[-1], np.int64)
    found = index.find([held.column(name) for name in rules.keys])
    there = np.flatnonzero(found >= 0)
    np.maximum.at(before, found[there], ordered[count + there])
    known = before[index.codes]
    return ordered[:count] < known, ordered[:count] == known


def _chunks(tables: Sequence[pa.Table], name: str) -> list[Any]:
    return [chunk for table in tables for chunk in table.column(name).chunks]


def _key(rules: Rules, events: Events, place: int) -> str:
    return ", ".join(f"{name} = {events.rows.column(name)[place].as_py()!r}" for name in rules.keys)


@dataclass(frozen=True)
class Deletion:
    """Delete events. `digest` is of what was asked for, where they follow from the state: by it a repeat is known."""

    data: InputRows
    digest: str | None = None


def deletion(lake: Lake, view: PositionView, what: object) -> Deletion:
    """Return the delete events: of the rows a predicate finds, or of keys, with the sequence of the row as it is now.

    A row that has values of the sequence is deleted as of them; a key that has none, and is not there, is no event.
    """
    definition = view.stream.definition
    _check_has_keys(definition)
    marks = definition.rules.tombstone.names
    if isinstance(what, str):
        return Deletion(_deletes(read(lake, view, marks, what)), _digest("predicate", pa.array([what])))
    rows = as_input_rows(as_rows(definition, what))
    told = _told(definition, rows)
    if told.all():
        columns = {name: rows.columns[name] for name in marks if name in rows.columns}
        return Deletion(InputRows(columns, rows.length, {}, np.ones(rows.length, bool)))
    asked = _shaped(definition, rows)
    keys = asked.select(list(definition.keys)).take(np.flatnonzero(~told))
    found = state_of_keys(lake, view, keys).rows.select(marks)
    places = np.concatenate([np.flatnonzero(told), np.flatnonzero(~told)[_first(keys, found)]])
    events = pa.concat_tables([asked.take(np.flatnonzero(told)), found]).take(np.argsort(places, kind="stable"))
    return Deletion(_deletes(events), _digest("keys", *asked.columns, pa.array(told)))


def check_columns(definition: Definition, rows: InputRows | None) -> None:
    """Raise InvalidInput (13) for rows whose columns cannot say what to delete. None: a predicate says it."""
    _check_has_keys(definition)
    if rows is not None:
        _shaped(definition, rows)


def _check_has_keys(definition: Definition) -> None:
    if not definition.keys:
        raise InvalidInputError("A table without keys is an append-only log: its rows cannot be deleted.")


def repeatable(what: object) -> object:
    """Return the input of a delete in a form that can be read more than once; iterators and readers cannot."""
    if isinstance(what, pa.RecordBatchReader):
        return as_input_rows(what)
    return list(what) if isinstance(what, Iterator) else what


def _deletes(rows: pa.Table) -> InputRows:
    return replace(from_table(rows), deletes=np.ones(rows.num_rows, bool))


def _first(keys: pa.Table, found: pa.Table) -> Codes:
    """Return, for each row that was found, the first place of its key."""
    index = KeyIndex(keys.columns)
    first = np.empty(index.count, np.int64)
    first[index.codes[::-1]] = np.arange(keys.num_rows)[::-1]
    return first[index.find([found.column(name) for name in keys.schema.names])]


def _digest(kind: str, *columns: Any) -> str:
    return content_digest([f"{kind} {place:04}" for place in range(len(columns))], columns, len(columns[0]))


def _told(definition: Definition, rows: InputRows) -> Mask:
    """Return a mask of the rows with a value in every sequence column; without a sequence, none."""
    if not all(name in rows.columns for name in definition.sequence or ("",)):
        return np.zeros(rows.length, bool)
    told = np.ones(rows.length, bool)
    for name in definition.sequence:
        told &= rows.present.get(name, told)
    return told


def _shaped(definition: Definition, rows: InputRows) -> pa.Table:
    """Return the key and sequence columns in their types; a bad key is refused as in any other call."""
    marks = definition.rules.tombstone
    only = {name: values for name, values in rows.columns.items() if name in marks.names}
    loose = pa.schema([pa.field(field.name, field.type) for field in marks])
    kept = {name: mask for name, mask in rows.present.items() if name in only}
    return shape(define(loose, definition.keys), InputRows(only, rows.length, kept)).events.rows


def as_rows(definition: Definition, what: object) -> object:
    """Plain keys as rows: a value, any number of values, or of tuples where the key has several columns."""
    if isinstance(what, pa.ChunkedArray):
        what = what.to_pylist()
    elif hasattr(what, "tolist"):  # one column of Arrow, numpy or pandas
        what = what.tolist()
    if isinstance(what, (InputRows, Mapping, pa.Table, pa.RecordBatch)) or hasattr(what, "__arrow_c_stream__"):
        return what
    _check_has_keys(definition)
    keys = list(what) if isinstance(what, Iterable) and not isinstance(what, (str, bytes, tuple)) else [what]
    if any(isinstance(key, (Mapping, pa.RecordBatch)) for key in keys):
        return list(keys)
    rows = []
    for key in keys:
        parts = key if isinstance(key, tuple) else (key,)
        if len(parts) != len(definition.keys):
            raise InvalidInputError(f"{key!r} is not a key: give {', '.join(definition.keys)}, in this order.")
        rows.append(dict(zip(definition.keys, parts, strict=True)))
    return rows
