"""A batch: given rows as events of a table. Decides what is unknown, what does not fit and what is bad. Pure.

Three modes. `refuse` (append, upsert, delete, SQL): the first bad row is an error that names column and row. The
contracts of `ingest`: bad rows are handed back to be quarantined, unknown columns and types go by the contract.

Rows that cannot be taken, kept beside their table in `<name>__quarantine`, a keyless stream table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.clock import Clock
from headwater.errors import InvalidInputError
from headwater.imports import pc
from headwater.metastore import DataFile, Delta, Reading, Transaction
from headwater.metastore.commit.table_parts import FIRST_VERSION
from headwater.store import Store
from headwater.streams.definition import Column, Definition, define, evolve, from_properties, to_properties
from headwater.streams.fold.events import Events, Truncations
from headwater.streams.layout import DELTA, LANCE, QUARANTINE, log_file, sibling
from headwater.streams.log.checks import Check
from headwater.streams.log.log_files import encode_events, read_log
from headwater.streams.rows.column_casts import FAILS, cast_array, cast_values, nans_of, nulls_of
from headwater.streams.rows.column_types import common, may_cast
from headwater.streams.rows.input_rows import UPSERT, InputRows
from headwater.streams.rows.row_keys import Codes, Mask
from headwater.streams.stream_lookup import Stream, in_the_way, open_in

REFUSE = "refuse"
SHOWN_CHARS = 60
"""So much of a value is shown where it is refused."""


@dataclass(frozen=True)
class Bad:
    """A row that cannot be taken: where it stood in the batch, why, and because of which column."""

    index: int
    reason: str
    column: str | None = None


@dataclass(frozen=True)
class EventBatch:
    """Good rows as events, in the order given; bad ones; and what the contract did."""

    definition: Definition
    events: Events
    numbers: npt.NDArray[np.int64]
    bad: tuple[Bad, ...] = ()
    added: tuple[str, ...] = ()
    widened: tuple[str, ...] = ()
    discarded: int = 0
    truncations: Truncations | None = None
    """By their rows' numbers in the batch."""


def shape(definition: Definition, data: InputRows, contract: str = REFUSE) -> EventBatch:
    """Return the batch that these rows are. Errors 13 name the column, and the row where there is one."""
    _require_columns(definition, data)
    after, added, dropped, unfit = _with_unknown(definition, data, contract)
    after, widened = _with_wider(after, data, contract)
    columns: dict[str, Any] = {}
    present: dict[str, Mask] = {}
    faults = _Faults(data.length)
    for name in unfit:
        faults.add(_given_in(data, name), "unknown_column", name)
    for name in definition.sequence:  # of whatever type the column is: a library may have no other form of nothing
        faults.add(nans_of(data.columns.get(name, [None] * data.length)), "null_sequence", name)
    for column in after.columns:
        columns[column.name], mask = _column(column, data, contract, faults)
        if mask is not None and not mask.all():
            present[column.name] = mask
    _check_values(after, data, columns, faults)
    bad = faults.found()
    if bad and contract == REFUSE:
        raise _refused(bad[0], after, data)
    rows = pa.Table.from_arrays(list(columns.values()), schema=after.nullable_schema)
    events = Events(rows, data.delete_mask, present, data.reads)
    numbers, cuts = np.arange(data.length, dtype=np.int64), None
    if data.truncates is not None and data.truncates.any():
        places = np.flatnonzero(data.truncates & ~faults.any)
        cuts = Truncations(rows.select(list(after.sequence)).take(places), places, np.zeros(len(places), np.int64))
    if bad or cuts is not None:
        kept = ~faults.any if data.truncates is None else ~faults.any & ~data.truncates
        numbers = np.flatnonzero(kept)
        events = events.take(numbers)
    return EventBatch(after, events, numbers, bad, added, widened, dropped, cuts)


@dataclass
class _Faults:
    """The first fault found of each row."""

    length: int
    reasons: dict[int, Bad] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.any: Mask = np.zeros(self.length, bool)

    def add(self, mask: Mask, reason: str, column: str) -> None:
        if not mask.any():
            return
        for index in np.flatnonzero(mask & ~self.any).tolist():
            self.reasons[index] = Bad(index, reason, column)
        self.any |= mask

    def found(self) -> tuple[Bad, ...]:
        return tuple(self.reasons[index] for index in sorted(self.reasons))


def _require_columns(definition: Definition, data: InputRows) -> None:
    keyless = data.truncates is not None and data.truncates.all()
    for what, names in (("key", () if keyless else definition.keys), ("sequence", definition.sequence)):
        for name in names:
            if name not in data.columns and data.length:
                raise InvalidInputError(f"The {what} column {name!r} is missing: every row must have it.")


def _with_unknown(
    definition: Definition, data: InputRows, contract: str
) -> tuple[Definition, tuple[str, ...], int, list[str]]:
    """Return the definition with new columns, their names, the number of discarded values, and names of columns that
    the table cannot have: rows of JSON that have one are bad, so that one message does not hold up all after it. If
    every row has one, their writer does not know the table: that is an error of the whole call."""
    unknown = [name for name in data.columns if name not in definition.by_name]
    if not unknown:
        return definition, (), 0, []
    if contract == "discard":
        return definition, (), sum(_count(data, name) for name in unknown), []
    if contract != "evolve":
        raise InvalidInputError(
            f"The table has no column {unknown[0]!r}. Leave it out, or add it with evolve(add=...)."
        )
    new: dict[str, Any] = {}
    unfit: list[str] = []
    without: Mask = np.ones(data.length, bool)
    for name in unknown:
        try:
            kind = _type_of(data.columns[name], name)
            if not pa.types.is_null(kind):
                _with_column(definition, new, name, kind)
        except InvalidInputError:
            without &= ~_given_in(data, name)
            if not isinstance(data.columns[name], list) or not without.any():
                raise
            unfit.append(name)
    return (evolve(definition, add=new) if new else definition), tuple(new), 0, unfit


def _with_column(definition: Definition, new: dict[str, Any], name: str, kind: Any) -> None:
    """Add a column to the new ones, or raise InvalidInput (13) if the table cannot have it beside them."""
    if any(name == each.name for each in definition.derived):
        raise InvalidInputError(f"The column {name!r} is derived from others: it cannot be given.")
    evolve(definition, add={**new, name: kind})
    new[name] = kind


def _given_in(data: InputRows, name: str) -> Mask:
    """Return the rows that have a column."""
    mask = data.present.get(name)
    return np.ones(data.length, bool) if mask is None else mask


def _count(data: InputRows, name: str) -> int:
    values, mask = data.columns[name], data.present.get(name)
    there = (
        np.fromiter((value is not None for value in values), bool, data.length)
        if isinstance(values, list)
        else ~nulls_of(values)
    )
    return int((there if mask is None else there & mask).sum())


def _type_of(values: Any, name: str) -> Any:
    """Return the type of the values; of several types that of the first, which the other values do not fit."""
    if not isinstance(values, list):
        return values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    for some in (values, [next((value for value in values if value is not None), None)]):
        with suppress(*FAILS):
            return pa.array(some).type
    raise InvalidInputError(f"The new column {name!r} has a value that no type has.")


def _with_wider(definition: Definition, data: InputRows, contract: str) -> tuple[Definition, tuple[str, ...]]:
    """Return columns widened to the types that came, where the contract is to evolve."""
    if contract != "evolve":
        return definition, ()
    wider: dict[str, object] = {}
    for column in definition.columns:
        values = data.columns.get(column.name)
        if values is None:
            continue
        kind = _wide_enough(values, column.type) if isinstance(values, list) else common(column.type, values.type)
        if kind is not None and kind != column.type:
            wider[column.name] = kind
    return (evolve(definition, widen=wider) if wider else definition), tuple(wider)


def _wide_enough(values: list[object], kind: pa.DataType) -> object:
    """Python numbers have no width: a column is widened for them only when one does not fit."""
    if not (pa.types.is_integer(kind) and kind.bit_width < 64):
        return None
    if not any(isinstance(value, int) for value in values):
        return None
    _, bad = cast_values(values, kind)
    return pa.int64() if bad.any() and not cast_values(values, pa.int64())[1].any() else None


def _column(column: Column, data: InputRows, contract: str, faults: _Faults) -> tuple[Any, Mask | None]:
    """Return a column's values in its type, and where it is present (None: everywhere)."""
    values = data.columns.get(column.name)
    if values is None:
        return pa.nulls(data.length, column.type), np.zeros(data.length, bool)
    mask = data.present.get(column.name)
    if isinstance(values, list):
        array, bad = cast_values(values, column.type)
    elif may_cast(values.type, column.type):
        array, bad = cast_array(values, column.type)
    elif contract == "discard":
        array, bad = pa.nulls(data.length, column.type), ~nulls_of(values)
    else:
        raise InvalidInputError(f"The column {column.name!r} is {column.type}: {values.type} cannot be cast to it.")
    faults.add(bad if mask is None else bad & mask, "bad_value", column.name)
    return array, mask


def _check_values(definition: Definition, data: InputRows, columns: dict[str, object], faults: _Faults) -> None:
    """Add the faults of values that a column may not have: NULL keys, NULL or NaN sequences, NULL where NOT NULL."""
    keyed = True if data.truncates is None else ~data.truncates
    for name in definition.keys:
        faults.add(nulls_of(columns[name]) & keyed, "null_key", name)
    for name in definition.sequence:
        faults.add(nulls_of(columns[name]) | nans_of(columns[name]), "null_sequence", name)
    for column in definition.columns:
        if not column.nullable and column.name not in (*definition.keys, *definition.sequence):
            faults.add(nulls_of(columns[column.name]) & ~data.delete_mask & keyed, "bad_value", column.name)


def _refused(bad: Bad, definition: Definition, data: InputRows) -> InvalidInputError:
    why = {
        "null_key": "is NULL, and it is of the key",
        "null_sequence": "is NULL or NaN, and it orders the events",
    }.get(bad.reason) or _unfit(bad, definition, data)
    return InvalidInputError(
        f"The column {bad.column!r} of row {bad.index} (counted from 0) {why}. Nothing was written."
    )


def _unfit(bad: Bad, definition: Definition, data: InputRows) -> str:
    """Return the reason why a value does not fit: its beginning, and the type that it should have."""
    column = definition.by_name.get(bad.column or "")
    values = data.columns.get(bad.column or "")
    value = None if values is None else values[bad.index]
    try:
        given = value.as_py() if isinstance(value, pa.Scalar) else value
        shown = repr(given)[:SHOWN_CHARS]
    except (ValueError, OverflowError):  # a time or a number that Python has no text of
        given = shown = "a value"
    if column is None or given is None:
        return "has no value, and must have one"
    return f"is {shown}, which does not fit its type {column.type}"


TYPES: dict[str, Any] = {
    "row": pa.string(),
    "reason": pa.string(),
    "column": pa.string(),
    "source": pa.string(),
    "time": pa.timestamp("us", "UTC"),
    "position": pa.int64(),
}
SCHEMA = pa.schema(TYPES)
ORIGIN = "origin"
"""The property of a delta of the quarantine that says which batch its rows came with: its source, file and token."""
OF_VERSION = "of"
"""Another property of it: the version of the table that rejected the rows, if that is not the first."""
RETRY_OF = "retry_of"
"""The property of rows that were quarantined and taken again: the transaction that their batch came with."""
QUEUE = "queue"
"""The property of a delta that voids rows of a quarantine since they were taken again or dropped, by no undo."""
KIND, CHECKS, COLUMNS = "kind", "checks", "columns"
"""Properties of a delta of the quarantine, for a retry: the kind of its rows, the checks that they landed under, and
the ids of the table's columns by the names that they had then."""


@dataclass(frozen=True)
class Quarantined:
    """One row that was not taken. `position` is that of its delta, for rows found late by a publish.

    That of a row rejected while it landed is given by the commit: `with_positions` finds it by the transaction.
    """

    row: str
    reason: str
    column: str | None = None
    source: str | None = None
    position: int | None = None
    kind: str = UPSERT


@dataclass(frozen=True)
class RejectedRows:
    """Rows that were not taken, as a file of the log. A task may write it before their quarantine exists.

    `first`: one of them, for messages.
    """

    first: Quarantined
    file: DataFile
    properties: Mapping[str, Any]

    def to_json(self) -> dict[str, object]:
        told: dict[str, object] = msgspec.to_builtins(self)
        return told

    @staticmethod
    def from_json(told: Mapping[str, object]) -> RejectedRows:
        return msgspec.convert(told, RejectedRows)


_DECODER = msgspec.json.Decoder(RejectedRows)  # learnt while it is imported, and not by two threads at once


def write_rejected(
    store: Store,
    clock: Clock,
    home: str,
    rows: Sequence[Quarantined],
    definition: Definition,
    checks: Sequence[Check] = (),
) -> list[RejectedRows]:
    """Write rejected rows in the directory `home` of a table, a file for each kind. Nothing refers to them before a
    commit does. `definition`: of the table that rejected them; `checks`: those given with the call.
    """
    now = clock.now_ms() * 1000
    columns = {
        "row": [row.row for row in rows],
        "reason": [row.reason for row in rows],
        "column": [row.column for row in rows],
        "source": [row.source for row in rows],
        "time": [now] * len(rows),
        "position": [row.position for row in rows],
    }
    table, kinds = pa.table(columns, schema=SCHEMA), np.array([row.kind for row in rows])
    found = []
    for kind in dict.fromkeys(kinds.tolist()):
        places = np.flatnonzero(kinds == kind)
        ids = {each.name: each.id for each in definition.columns}
        told = {KIND: kind, CHECKS: [[each.name, each.sql, each.action] for each in checks], COLUMNS: ids}
        found.append(write_rows(store, clock, home, table.take(places), places, told))
    return found


def write_rows(
    store: Store, clock: Clock, home: str, rows: pa.Table, numbers: Codes, told: Mapping[str, object]
) -> RejectedRows:
    """Write rows of a quarantine as a file. `numbers`: their order in their batch. `told`: properties of the delta."""
    log = encode_events(define(SCHEMA), Events(rows, np.zeros(rows.num_rows, bool)), numbers, 1)
    key = log_file(home, clock.uuid())
    store.put(key, log.data)
    first = rows.slice(0, 1).select(["row", "reason", "column", "source"]).to_pylist()[0]
    return RejectedRows(Quarantined(**first), DataFile(key, log.rows, len(log.data)), {**log.properties, **told})


def quarantine(
    tx: Transaction, stream: Stream, rejected: Sequence[RejectedRows], origin: Mapping[str, str] | None = None
) -> None:
    """Put rejected rows into a table's quarantine, which the first of them makes.

    `origin`: the batch that they came with, to be undone with it; rows that a publish found late have none.
    """
    path = sibling(stream.path, QUARANTINE)
    if not has_quarantine(tx, stream.path):
        create(tx, path)
    version = open_in(tx, path).version
    own: dict[str, object] = {} if origin is None else {ORIGIN: dict(origin)}
    if stream.version != FIRST_VERSION:
        own[OF_VERSION] = stream.version
    for each in rejected:
        properties = {**each.properties, "call": tx.deltas_made, **own}
        tx.append_delta(path, [each.file], "append", version=version, properties=properties)


def has_quarantine(state: Reading, table: Sequence[str]) -> bool:
    """Return True if a table has a quarantine; InvalidInput (13) if another table has its name."""
    path = sibling(table, QUARANTINE)
    if not state.exists(path):
        return False
    if not is_quarantine(state, path):
        raise in_the_way(path, table, "quarantine")
    return True


def is_quarantine(state: Reading, path: Sequence[str]) -> bool:
    """Return True if a table holds rows that were not taken, and is not one of the user's with that name."""
    definition = from_properties(state.get_table_version(path).properties)
    return definition is not None and not definition.keys and definition.schema.equals(SCHEMA)


def with_positions(store: Store, kept: Stream, own: Sequence[Delta], log: Sequence[Delta]) -> pa.Table:
    """Quarantined rows, each with the position of the batch it came with; what an undo took out is not among them.

    It is NULL where nothing of the batch was taken: then there is none. `own` are the deltas of the quarantine, all of
    them, `log` those of its table.
    """
    voided = {position for delta in own for position in delta.properties.get("voids", ())}
    standing = [delta for delta in own if delta.position not in voided]
    read = read_log(kept.definition, store, standing)
    positions = {delta.txn: delta.position for delta in log}
    found = [positions.get(batch_of(standing[number])) for number in read.deltas.tolist()]
    rows = read.events.rows.select(SCHEMA.names)
    place = SCHEMA.get_field_index("position")
    filled: Any = pc.coalesce(rows["position"], pa.array(found, pa.int64()))
    return rows.set_column(place, SCHEMA.field(place), filled)


def batch_of(delta: Delta) -> str:
    """Return the transaction that the rows of a delta came with first: those taken again keep it."""
    return str(delta.properties.get(ORIGIN, delta.properties).get(RETRY_OF, delta.txn))


def create(tx: Transaction, path: Sequence[str]) -> None:
    tx.create_table(path, formats=(DELTA, LANCE))
    version = tx.get_table_version(path)
    tx.update_table_version(path, version.id, to_properties(define(SCHEMA)))
