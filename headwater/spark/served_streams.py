"""Stream tables of a session on a server: the server folds and commits, and rows travel as Arrow.

A fold reads files of the log, which a server does not hand out. A state is one piece and a range of positions one
part: the server folds, and one task reads its answer. Where nothing is after the last publish, tasks read the Lance
table as they read any other. Tasks that write hand their rows to the driver, which sends all of a statement in one
request. It is one transaction where the statement has read other tables or creates the one it writes.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache

import numpy as np
import pyarrow as pa
from lance_namespace import DescribeTableRequest, ListTableVersionsRequest

from headwater.catalog.transactions import HttpTransaction
from headwater.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    LanceNamespaceError,
    NamespaceNotFoundError,
    TableNotFoundError,
    TableVersionNotFoundError,
)
from headwater.metastore import Delta
from headwater.names import ObjectId, format_name
from headwater.rest.client import CompleteRestNamespace, connect_rest
from headwater.rest.remote_streams import RemoteStream, create_remote
from headwater.spark.protocol import CommitEvents, CommitStaged
from headwater.spark.wire_values import Fold, Json, WireScan, WireTable
from headwater.streams.definition import Definition, from_properties
from headwater.streams.log.statements import KINDS, StatementRows, changed
from headwater.streams.reading.change_feed import INSERT
from headwater.streams.sources.intake import ROWS, packed, unpacked
from headwater.tables.scan.parts import InitialScan, Positions
from headwater.tables.scan.table_scan import Extent

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def server_option(reached: Mapping[str, str]) -> str:
    """Return a task's access to the server, as a plan carries it; like storage options it may hold secrets."""
    return json.dumps(dict(reached), sort_keys=True)


@lru_cache(maxsize=16)
def connected(option: str) -> CompleteRestNamespace:
    """Return the server of an option, once per process."""
    return connect_rest(json.loads(option))


def served(scan: WireScan) -> RemoteStream | None:
    """Return the stream table of a scan, if a server folds it."""
    return stream_of(server_of(scan.table), scan.table) if scan.table.is_served else None


class ServedStreams:
    """The stream tables of a server, as the driver sees them."""

    def __init__(self, option: str) -> None:
        self._option = option

    def load(self, id: list[str], version: str | None, micros: int | None) -> tuple[Definition, Fold] | None:
        """Return how to read a table now, at a position or as of a time; None if it is no stream table."""
        server, key = connected(self._option), ObjectId(tuple(id))
        if not server.is_stream_table(key):
            return None
        stream = server.stream_table(key, lambda: None)
        identity = stream.version_id
        stream.expect(identity)
        definition, position, published = stream.definition, stream.position, stream.published
        if version is not None:
            if not version.isdigit():
                raise InvalidInputError(
                    f"{stream.name} is a stream table: VERSION AS OF takes a position, not {version!r}."
                )
            stream.count(int(version))  # 13 or 11 now, and not in a task
            position = int(version)
        elif micros is not None:
            position = _at_time(server, key, EPOCH + dt.timedelta(microseconds=micros))
        is_past = version is not None or micros is not None
        fresh = is_past or published is None or not published.is_of(position, definition.schema_id)
        rows = published.rows if published is not None else 0
        return definition, Fold(self._option, 0, position, rows, fresh, bool(definition.keys), id=identity)


def _at_time(server: CompleteRestNamespace, id: ObjectId, time: dt.datetime) -> int:
    """Return the newest position at a time; 11 if the table was not there, or the past does not go so far back."""
    try:
        return server.at(time).stream_table(id, lambda: None).position
    except LanceNamespaceError as error:
        raise TableVersionNotFoundError(
            f"{format_name(id.names)} cannot be read as of {time.isoformat()}. {error}"
        ) from None


def count_served(stream: RemoteStream, scan: WireScan) -> int:
    if scan.filter is None:
        return stream.count(scan.table.log.position)
    first = stream.definition.schema.names[:1]
    return stream.to_arrow(first, scan.filter, None, scan.table.log.position).num_rows


def read_served(stream: RemoteStream, scan: WireScan) -> pa.Table:
    return stream.to_arrow(list(scan.columns), scan.filter, scan.limit, scan.table.log.position)


class FollowedAfar:
    """A stream table of a server, as of the moment that it is asked."""

    slot = 0
    """None: a position is all that a server is told."""
    divides = False

    def __init__(self, server: CompleteRestNamespace, stream: RemoteStream) -> None:
        self._server = server
        self._stream = stream

    @property
    def name(self) -> str:
        return self._stream.name

    @cached_property
    def definition(self) -> Definition:
        return self._stream.definition

    @cached_property
    def last(self) -> int:
        return self._stream.position

    def kept(self, after: int = 0) -> list[Delta]:
        return self._stream.deltas(after)

    def pieces(self, position: int) -> tuple[list[Extent], int]:
        return [], self._stream.count(position)

    def piece(self, part: InitialScan) -> pa.Table:
        return self._stream.to_arrow(list(self.definition.shown), position=part.position)

    def changes(self, part: Positions) -> pa.Table:
        return self._stream.changes(part.after, part.until)

    def inserted(self, part: Positions) -> pa.Table:
        """Return the rows of transactions that insert and change nothing."""
        found = self.changes(part)
        kinds, positions = found.column(found.num_columns - 3), found.column(found.num_columns - 2).to_numpy()
        inserts = np.asarray(kinds.to_pylist()) == INSERT
        whole = inserts & ~np.isin(positions, positions[~inserts])
        return found.select(self.definition.schema.names).take(np.flatnonzero(whole)).cast(self.definition.schema)

    def published_ms(self) -> int | None:
        published = self._stream.published
        if published is None:
            return None
        asked = {"id": list(self._stream.id.names), "version": published.version}
        millis = self._server.describe_table_version(asked)["version"].get("timestamp_millis")
        return None if millis is None else int(millis)

    def note_read(self, name: str, position: int) -> None:
        if self._stream.readers().get(name) != position:
            self._stream.commit_reader(name, position)


TASK_BYTES = 256 << 20
"""So many bytes of rows a task hands to the driver, which holds those of all."""


def server_of(table: WireTable) -> CompleteRestNamespace:
    return connected(table.log.lake)


def stream_of(server: CompleteRestNamespace, table: WireTable) -> RemoteStream:
    """Return the table that a statement has found, and no other that got its name since."""
    return named(server, table).expect(table.log.id or None)


def named(server: CompleteRestNamespace, table: WireTable) -> RemoteStream:
    """Return the table of that name."""
    return server.stream_table(ObjectId(table.id), lambda: None)


def definition_of(table: WireTable) -> Definition:
    """Return the definition of a table that exists, or that the statement will create."""
    if table.log.new is None:
        return stream_of(server_of(table), table).definition
    found = from_properties(table.log.new.properties)
    assert found is not None
    return found


# On an executor ------------------------------------------------------------------------------------------------------


def taken_rows(table: WireTable, parts: Iterable[pa.Table], given: Sequence[str] | None) -> list[Json]:
    """Return the rows of a task, packed for the driver; of the columns that the statement names, or of all of the
    table's."""
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
    """Send the rows that the tasks of a statement wrote, and return the newest position."""
    server = server_of(call.table)
    given = {"deleted": call.deleted, "upserted": call.upserted, "inserted": call.inserted}
    parts = [StatementRows(kind, rows) for kind in KINDS if (rows := unpacked(given[kind])) is not None]
    if not parts:
        return stream_of(server, call.table).position
    position = call.table.log.position if call.has_read else None
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
    """Raise unless every table that a statement has read is as it was then."""
    for table in reads:
        try:
            found = stream_of(inside, table).position if table.is_stream else _version(inside, table)
        except (TableNotFoundError, NamespaceNotFoundError, ConcurrentModificationError):
            raise changed(format_name(table.id)) from None
        if found != (table.log.position if table.is_stream else table.version):
            raise changed(format_name(table.id))


def joined(server: CompleteRestNamespace, message: str) -> HttpTransaction:
    """`with joined(...) as inside:` what is done to the catalog `inside` is one transaction of the server."""
    return HttpTransaction(server.begin(message), lambda inside: inside)


def _version(inside: CompleteRestNamespace, table: WireTable) -> int:
    """Return the newest version of the table that was read; 14 if the name is that of one in another folder by now."""
    asked = DescribeTableRequest(id=list(table.id), with_table_uri=True, load_detailed_metadata=False)
    place = inside.describe_table(asked)
    if table.uri not in (place.table_uri, place.location):
        raise changed(format_name(table.id))
    told = inside.list_table_versions(ListTableVersionsRequest(id=list(table.id), limit=1, descending=True))
    return int(told.versions[0].version)
