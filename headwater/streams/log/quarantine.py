"""Rows that cannot be taken, kept beside their table in `<name>__quarantine`, a keyless stream table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from headwater.clock import Clock
from headwater.imports import pc
from headwater.metastore import DataFile, Delta, Reading, Transaction
from headwater.metastore.commit.table_parts import FIRST_VERSION
from headwater.store import Store
from headwater.streams.definition import Definition, define, from_properties, to_properties
from headwater.streams.fold.events import Events
from headwater.streams.layout import DELTA, LANCE, QUARANTINE, log_file, sibling
from headwater.streams.log.checks import Check
from headwater.streams.log.log_files import encode_events, read_log
from headwater.streams.rows.input_rows import UPSERT
from headwater.streams.rows.row_keys import Codes
from headwater.streams.stream_lookup import Stream, in_the_way, open_in

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
