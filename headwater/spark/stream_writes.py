"""What SQL writes into stream tables: executors write files of the log, the driver lands them in one transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.metastore import Transaction
from headwater.spark.fresh import opened
from headwater.spark.protocol import CommitEvents, Table
from headwater.streams.batches import REFUSE
from headwater.streams.given import Given
from headwater.streams.landing import Origin, rows_so_far
from headwater.streams.opening import open_stream
from headwater.streams.preparing import prepare
from headwater.streams.sources.taken import Taken
from headwater.streams.statements import Statement, changed, land_statement

FILE_ROWS = 1 << 20
"""A task writes a file of the log for each so many rows, and holds no more of them."""

ATTEMPTS = 100
"""How often a statement that has read nothing is begun anew, when others land first."""

Json = dict[str, Any]


def write_events(
    table: Table, reader: pa.RecordBatchReader, given: Sequence[str] | None, deletes: bool = False
) -> list[Json]:
    """On an executor: the rows of a task as files of the log, and what their commit needs. A bad row is an error.

    `given`: the columns that the statement names; the others stay as they are, which is not NULL.
    """
    fold = table.fold
    assert fold is not None
    found = opened(fold.lake)
    snapshot = found.metastore.at(fold.slot)
    stream = open_stream(snapshot, table.id)
    store, clock = found.metastore.store, found.metastore.clock
    sofar = rows_so_far(snapshot, stream)
    made: list[Json] = []
    for rows in chunks(reader):
        chosen = rows if given is None else rows.select([name for name in rows.schema.names if name in given])
        events = _events(_in_order(chosen, stream.definition.sequence), deletes)
        landed = prepare(store, clock, stream, Taken(events), Origin(), (), sofar, REFUSE)
        assert landed is not None  # what is refused is an error, and nothing evolves
        made.append(landed)
    return made


def chunks(reader: pa.RecordBatchReader) -> Iterator[pa.Table]:
    """The rows of a task, as many at once as go into one file of the log."""
    batches: list[pa.RecordBatch] = []
    for batch in reader:
        batches.append(batch)
        if sum(each.num_rows for each in batches) >= FILE_ROWS:
            yield pa.Table.from_batches(batches, reader.schema)
            batches = []
    if batches:
        yield pa.Table.from_batches(batches, reader.schema)


def _in_order(rows: pa.Table, sequence: Sequence[str]) -> pa.Table:
    """By sequence: rows of a statement come in no order, and none should be late behind another."""
    return rows.sort_by([(name, "ascending") for name in sequence]) if sequence else rows


def _events(rows: pa.Table, deletes: bool) -> Given:
    columns = {name: rows.column(name) for name in rows.schema.names}
    return Given(columns, rows.num_rows, deletes=np.ones(rows.num_rows, bool) if deletes else None)


def commit_events(call: CommitEvents) -> int:
    """On the driver: all that the tasks of a statement wrote, in one transaction; the newest position.

    A statement that has read is tried once. One that has not goes on top of whatever is newest.
    """
    fold = call.table.fold
    assert fold is not None
    found, path = opened(fold.lake), call.table.id
    name = ".".join(path)
    statement = Statement(call.deleted, call.upserted, call.inserted, fold.position if call.has_read else None)

    def work(tx: Transaction) -> None:
        if tx.get_table_version(path).id != open_stream(found.metastore.at(fold.slot), path).version:
            raise changed(name)
        land_statement(found, tx, path, statement)

    message = f"{call.command} {name}"
    if not statement.is_empty:
        found.metastore.run(work, message, attempts=1 if call.has_read else ATTEMPTS)
    return found.metastore.now().last_position(path)
