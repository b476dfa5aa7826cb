"""Writes of SQL and of streaming queries into stream tables: executors write log files, the driver commits them.

A statement is one transaction, and so is each batch of a streaming query. The record of the source `spark:<query>` in
the table's ledger has each batch by its number, written in the transaction that commits the batch. So a batch that
Spark replays is passed over, whatever became of Spark's own commit log. A column that the frame lacks is missing in its
rows and keeps its value; bad rows go to the quarantine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from headwater.errors import ConcurrentModificationError, InvalidInputError, NamespaceNotFoundError, TableNotFoundError
from headwater.metastore import Metastore, Snapshot, Transaction
from headwater.metastore.records.serving_copy import location_of
from headwater.names import format_name
from headwater.spark.fresh import lake_of
from headwater.spark.protocol import CommitEvents, CommitStaged
from headwater.spark.served_streams import is_afar, send_batch, send_created, send_statement, taken_rows
from headwater.spark.wire_values import WireTable
from headwater.streams.definition import Definition, from_properties
from headwater.streams.layout import LANCE
from headwater.streams.log.landing import APPEND, UPSERT, BatchOrigin, rows_so_far
from headwater.streams.log.prepared_landing import EvolvedError, PreparedLanding, prepare
from headwater.streams.log.source_ledger import Ledger, LedgerEntry
from headwater.streams.log.statements import Statement, changed, check_position, land_statement, prepare_rows
from headwater.streams.rows.input_rows import from_table
from headwater.streams.serving.serving_copy import Lake
from headwater.streams.sources.format_output import Taken
from headwater.streams.sources.intake import are_few, chunks, gathered, packed
from headwater.streams.stream_lookup import Stream, open_in, open_stream
from headwater.streams.table import create_stream_table

FILE = "file://"
ATTEMPTS = 100
"""How often a statement that has read nothing is begun anew, when others land first."""

Json = dict[str, Any]


def write_events(
    table: WireTable, reader: pa.RecordBatchReader, given: Sequence[str] | None, deletes: bool = False
) -> list[Json]:
    """On an executor: the rows of a task as files of the log, and what their commit needs; few rows as they are. A bad
    row is an error, then or when the driver writes it.

    `given`: the columns that the statement names; the others stay as they are, which is not NULL.
    """
    if is_afar(table):
        return taken_rows(table, chunks(reader), given)
    found, stream, sofar = _opened(table)
    store, clock = found.metastore.store, found.metastore.clock
    made: list[Json] = []
    for rows in chunks(reader):
        names = stream.definition.by_name if given is None else given  # a changed row comes with derived columns
        chosen = rows.select([name for name in rows.schema.names if name in names])
        few = are_few(chosen)
        made.append(packed(chosen) if few else dict(prepare_rows(store, clock, stream, chosen, deletes, sofar)))
    return made


def _written(table: WireTable, parts: Sequence[Json], deletes: bool = False) -> list[Mapping[str, Any]]:
    """On the driver: what tasks wrote, and the rows that they handed over, which are written here."""
    found, stream, sofar = _opened(table)
    store, clock = found.metastore.store, found.metastore.clock
    return list(gathered(parts, lambda rows: prepare_rows(store, clock, stream, rows, deletes, sofar)))


def _opened(table: WireTable) -> tuple[Lake, Stream, int]:
    """A stream table as the statement found it, or as it will create it, and about how many rows it has."""
    fold = table.fold
    assert fold is not None
    found = lake_of(table)
    if fold.new is None:
        snapshot = found.metastore.at(fold.slot)
        stream = open_stream(snapshot, table.id)
        return found, stream, rows_so_far(snapshot, stream)
    definition = from_properties(fold.new.properties)
    assert definition is not None
    return found, Stream(table.id, fold.new.version, fold.new.home, definition), 0


def commit_events(call: CommitEvents) -> int:
    """On the driver: all that the tasks of a statement wrote, in one transaction; the newest position.

    A statement that has read is tried once. One that has not goes on top of whatever is newest.
    """
    if is_afar(call.table):
        return send_statement(call)
    found, stream, _ = _opened(call.table)
    assert call.table.fold is not None
    position = call.table.fold.position if call.has_read else None
    deleted = _written(call.table, call.deleted, deletes=True)
    statement = Statement(deleted, _written(call.table, call.upserted), _written(call.table, call.inserted), position)

    def work(tx: Transaction) -> None:
        if open_in(tx, stream.path).id != stream.id:
            raise changed(stream.name)
        check_reads(tx, found.uri, call.reads)
        land_statement(found, tx, stream.path, statement)

    if not statement.is_empty:
        attempts = 1 if call.has_read or call.reads else ATTEMPTS
        found.metastore.run(work, f"{call.command} {stream.name}", attempts=attempts)
    return found.metastore.now().last_position(stream.path)


def commit_created(call: CommitStaged) -> int:
    """CREATE TABLE ... AS SELECT: the table with its first rows, in one transaction or not at all."""
    if is_afar(call.table):
        return send_created(call)
    found, stream, _ = _opened(call.table)
    assert call.table.fold is not None
    assert call.table.fold.new is not None
    key, rows = call.table.fold.new.id, _written(call.table, call.fragments)

    def work(tx: Transaction) -> None:
        check_reads(tx, found.uri, call.reads)
        create_stream_table(tx, stream.path, stream.definition, key)
        if open_in(tx, stream.path).home != stream.home:  # another namespace has the name now
            raise changed(stream.name)
        land_statement(found, tx, stream.path, Statement(upserted=rows))

    attempts = 1 if call.reads else ATTEMPTS
    found.metastore.run(work, f"create stream table {stream.name} as select", attempts=attempts)
    return found.metastore.now().last_position(stream.path)


def check_reads(tx: Transaction, root: str, reads: Sequence[WireTable]) -> None:
    """Every table that a statement has read is as it was then, and the transaction relies on that. One that was made
    anew under the name, or moved there, is another: it has another id, and its files are in another folder."""
    for table in reads:
        name = format_name(table.id)
        try:
            if table.fold is not None:
                stream = open_in(tx, table.id)
                if table.fold.id not in ("", stream.id):
                    raise changed(name)
                check_position(tx, stream, table.fold.position)
                continue
            copy, newest = tx.get_stream(table.id, format=LANCE), tx.newest_delta(table.id, format=LANCE)
        except (TableNotFoundError, NamespaceNotFoundError):
            raise changed(name) from None
        is_same = is_at(table.uri, root, location_of(copy.properties, copy.home))
        if not is_same or newest is None or newest.position != table.version:
            raise changed(name)


def is_at(uri: str, root: str, location: str) -> bool:
    """Return True if a table's address is a folder of the catalog; with another prefix, if it ends with that folder."""
    path, above = unquote(uri).removeprefix(FILE), f"{unquote(root).removeprefix(FILE).rstrip('/')}/"
    return path == above + location if path.startswith(above) else path.endswith(f"/{location}")


# The streaming sink ---------------------------------------------------------------------------------------------------


def prepare_batch(table: WireTable, query: str, reader: pa.RecordBatchReader) -> list[Json]:
    """On an executor: the rows of a task as files of the log, and what their commit needs; few rows as they are."""
    if is_afar(table):
        return [packed(rows) for rows in chunks(reader)]
    metastore = lake_of(table).metastore
    snapshot = metastore.now()
    return [
        packed(rows) if are_few(rows) else _as_log_files(metastore, snapshot, table, query, rows)
        for rows in chunks(reader)
    ]


def _as_log_files(metastore: Metastore, snapshot: Snapshot, table: WireTable, query: str, rows: pa.Table) -> Json:
    """Rows as files of the log."""
    stream = open_stream(snapshot, table.id)
    definition, known = stream.definition, rows_so_far(snapshot, stream)
    taken, origin = Taken(from_table(rows)), BatchOrigin(_source(query))
    contract = _contract(definition)
    return prepare(metastore.store, metastore.clock, stream, taken, origin, definition.checks, known, contract)


def _contract(definition: Definition) -> str:
    """A query has one schema as long as it runs, so it never makes a table evolve: ALTER TABLE does."""
    return "discard" if definition.contract == "discard" else "freeze"


def land_batch(table: WireTable, query: str, batch: int, prepared: list[Json], truncate: bool) -> int:
    """On the driver: all that the tasks of a batch wrote, in one transaction, once; the newest position."""
    if truncate:
        raise InvalidInputError(
            f"{format_name(table.id)} is a stream table: its log cannot be replaced, so outputMode('complete') is "
            "refused. Use 'update' with a table that has the grouping columns as keys."
        )
    if is_afar(table):
        return send_batch(table, _source(query), batch, prepared)
    metastore = lake_of(table).metastore
    before = metastore.now()
    stream = open_stream(before, table.id)
    verb = UPSERT if stream.definition.keys else APPEND
    source, token = _source(query), str(batch)
    landings: list[PreparedLanding] = []

    def work(tx: Transaction) -> None:
        opened = open_in(tx, stream.path)
        ledger = Ledger(tx, opened.path, opened.version, source)
        if ledger.token(token, token) is not None:
            return
        if not landings:  # once, however often the transaction is run
            for each in gathered(prepared, lambda rows: _as_log_files(metastore, before, table, query, rows)):
                first = landings[0] if landings else None
                landings.append(PreparedLanding(metastore, stream.path, each, verb, False, BatchOrigin(source), first))
        landed = [landing(tx) for landing in landings]
        counts = sum(each.rows for each in landed), sum(each.quarantined for each in landed)
        after = before.last_position(opened.path, version=opened.version)
        ledger.take_token(token, LedgerEntry(token, tx.id, after, *counts, time=metastore.clock.now_ms()))

    if prepared:
        try:
            metastore.run(work, f"batch {batch} of {source} into {stream.name}")
        except EvolvedError:
            raise ConcurrentModificationError(f"{stream.name} evolved while a batch was written: again.") from None
    return metastore.now().last_position(stream.path, version=stream.version)


def _source(query: str) -> str:
    return f"spark:{query}"
