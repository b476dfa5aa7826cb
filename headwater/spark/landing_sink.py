"""The streaming sink into a stream table: tasks write files of the log, the driver commits a batch once.

The record of the source `spark:<query>` in the table's ledger has each batch by its number, written in the transaction
that commits the batch. So a batch that Spark replays is passed over, whatever became of Spark's own commit log. A
column that the frame lacks is missing in its rows and keeps its value; bad rows go to the quarantine.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headwater.errors import ConcurrentModificationError, InvalidInputError
from headwater.metastore import Metastore, Snapshot, Transaction
from headwater.names import format_name
from headwater.spark.fresh import lake_of
from headwater.spark.protocol import WireTable
from headwater.spark.served_writes import is_afar, send_batch
from headwater.streams.definition import Definition
from headwater.streams.log.landing import APPEND, UPSERT, BatchOrigin, rows_so_far
from headwater.streams.log.prepared_landing import EvolvedError, PreparedLanding, prepare
from headwater.streams.log.source_ledger import Ledger, LedgerEntry
from headwater.streams.rows.input_rows import from_table
from headwater.streams.sources.format_output import Taken
from headwater.streams.sources.intake import are_few, chunks, gathered, packed
from headwater.streams.stream_lookup import open_in, open_stream

Json = dict[str, Any]


def prepare_batch(table: WireTable, query: str, reader: pa.RecordBatchReader) -> list[Json]:
    """On an executor: the rows of a task as files of the log, and what their commit needs; few rows as they are."""
    if is_afar(table):
        return [packed(rows) for rows in chunks(reader)]
    metastore = lake_of(table).metastore
    snapshot = metastore.now()
    return [
        packed(rows) if are_few(rows) else _written(metastore, snapshot, table, query, rows) for rows in chunks(reader)
    ]


def _written(metastore: Metastore, snapshot: Snapshot, table: WireTable, query: str, rows: pa.Table) -> Json:
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
            for each in gathered(prepared, lambda rows: _written(metastore, before, table, query, rows)):
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
