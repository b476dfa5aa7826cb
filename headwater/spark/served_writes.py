"""Writes of SQL and streams into a server's stream tables: tasks hand rows to the driver, which sends them.

The server writes the files of the log and commits, so that nobody here needs the storage. All of a statement is one
request, or one transaction where it has read other tables or creates the one it writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from lance_namespace import DescribeTableRequest, ListTableVersionsRequest

from headwater.catalog.transactions import HttpTransaction
from headwater.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    NamespaceNotFoundError,
    TableNotFoundError,
)
from headwater.names import ObjectId, format_name
from headwater.rest.client import CompleteRestNamespace
from headwater.rest.remote_streams import RemoteStream, create_remote
from headwater.spark.protocol import CommitEvents, CommitStaged, WireTable, is_server
from headwater.spark.served_streams import asked
from headwater.streams.definition import Definition, from_properties
from headwater.streams.log.statements import KINDS, StatementRows, changed
from headwater.streams.sources.intake import ROWS, packed, unpacked

TASK_BYTES = 256 << 20
"""So many bytes of rows a task hands to the driver, which holds those of all."""
Json = dict[str, Any]


def is_afar(table: WireTable) -> bool:
    """Return True if a server writes into the table."""
    return table.fold is not None and is_server(table.fold.lake)


def server_of(table: WireTable) -> CompleteRestNamespace:
    assert table.fold is not None
    return asked(table.fold.lake)


def stream_of(server: CompleteRestNamespace, table: WireTable) -> RemoteStream:
    """The table that a statement has found, and no other that got its name since."""
    expected = table.fold.id if table.fold is not None else ""
    return named(server, table).expect(expected or None)


def named(server: CompleteRestNamespace, table: WireTable) -> RemoteStream:
    """The table of that name."""
    return server.stream_table(ObjectId(table.id), lambda: None)


def definition_of(table: WireTable) -> Definition:
    """Of a table that is there, or that the statement will create."""
    assert table.fold is not None
    if table.fold.new is None:
        return stream_of(server_of(table), table).definition
    found = from_properties(table.fold.new.properties)
    assert found is not None
    return found


# On an executor ------------------------------------------------------------------------------------------------------


def taken_rows(table: WireTable, parts: Iterable[pa.Table], given: Sequence[str] | None) -> list[Json]:
    """The rows of a task, packed for the driver; of the columns that the statement names, or of all of the table's."""
    names = set(definition_of(table).by_name if given is None else given)
    made, size = list[Json](), 0
    for rows in parts:
        made.append(packed(rows.select([name for name in rows.schema.names if name in names])))
        size += len(made[-1][ROWS])
        if size > TASK_BYTES:
            raise InvalidInputError(
                f"A task has more rows for {format_name(table.id)} than go through a server at once. Write less at a "
                "time, or with a session that has the catalog as root=."
            )
    return made


# On the driver -------------------------------------------------------------------------------------------------------


def send_statement(call: CommitEvents) -> int:
    """All that the tasks of a statement wrote; the newest position."""
    assert call.table.fold is not None
    server = server_of(call.table)
    given = {"deleted": call.deleted, "upserted": call.upserted, "inserted": call.inserted}
    parts = [StatementRows(kind, rows) for kind in KINDS if (rows := unpacked(given[kind])) is not None]
    if not parts:
        return stream_of(server, call.table).position
    position = call.table.fold.position if call.has_read else None
    others = [table for table in call.reads if table.id != call.table.id]
    if not others:
        return stream_of(server, call.table).apply(parts, position)
    with joined(server, f"{call.command} {format_name(call.table.id)}") as inside:
        check_reads_of(inside, others)
        stream_of(inside, call.table).apply(parts, position)
    return named(server, call.table).position


def send_created(call: CommitStaged) -> int:
    """CREATE TABLE ... AS SELECT: the table with its first rows, in one transaction or not at all."""
    server, definition = server_of(call.table), definition_of(call.table)
    rows = unpacked(call.fragments)
    with joined(server, f"create stream table {format_name(call.table.id)} as select") as inside:
        check_reads_of(inside, call.reads)
        made = create_remote(stream_of(inside, call.table), definition)
        if rows is not None:
            made.apply([StatementRows("upserted", rows)])
    return stream_of(server, call.table).position


def send_batch(table: WireTable, query: str, batch: int, prepared: Sequence[Json]) -> int:
    """A batch of a streaming query, once: the server knows it by the query and its number, whatever its rows are."""
    stream = named(server_of(table), table)  # as near a catalog, a query writes into what has the name
    definition, rows = stream.definition, unpacked(prepared)
    if rows is None:
        return stream.position
    unknown = [name for name in rows.schema.names if name not in definition.by_name]
    if unknown and definition.contract != "discard":
        raise InvalidInputError(f"{stream.name} has no column {unknown[0]!r}: ALTER TABLE adds one.")
    return stream.ingest(rows, source=query, token=str(batch), digest=str(batch)).position


def check_reads_of(inside: CompleteRestNamespace, reads: Sequence[WireTable]) -> None:
    """Every table that a statement has read is as it was then, and the transaction relies on that."""
    for table in reads:
        try:
            found = stream_of(inside, table).position if table.fold is not None else _version(inside, table)
        except (TableNotFoundError, NamespaceNotFoundError, ConcurrentModificationError):
            raise changed(format_name(table.id)) from None
        if found != (table.fold.position if table.fold is not None else table.version):
            raise changed(format_name(table.id))


def joined(server: CompleteRestNamespace, message: str) -> HttpTransaction:
    """`with joined(...) as inside:` what is done to the catalog `inside` is one transaction of the server."""
    return HttpTransaction(server.begin(message), lambda inside: inside)


def _version(inside: CompleteRestNamespace, table: WireTable) -> int:
    """The newest version of the table that was read; 14 if the name is that of one in another folder by now."""
    place = inside.describe_table(DescribeTableRequest(id=list(table.id), with_table_uri=True))
    if table.uri not in (place.table_uri, place.location):
        raise changed(format_name(table.id))
    told = inside.list_table_versions(ListTableVersionsRequest(id=list(table.id), limit=1, descending=True))
    return int(told.versions[0].version)
