"""Stream tables of a session on a server: the server folds, and one task reads what it answers.

A fold reads files of the log, which a server does not hand out. Where nothing is after the last publish, tasks read
the Lance table as they read any other.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from functools import lru_cache

import pyarrow as pa

from headwater.errors import InvalidInputError, LanceNamespaceError, TableVersionNotFoundError
from headwater.names import ObjectId, format_name
from headwater.rest.client import CompleteRestNamespace, connect_rest
from headwater.rest.remote_streams import RemoteStream
from headwater.spark.protocol import Fold, WireScan, is_server
from headwater.streams.definition import Definition

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def server_option(reached: Mapping[str, str]) -> str:
    """Return a task's access to the server, as a plan carries it; like storage options it may hold secrets."""
    return json.dumps(dict(reached), sort_keys=True)


@lru_cache(maxsize=16)
def asked(option: str) -> CompleteRestNamespace:
    """The server of an option, once per process."""
    return connect_rest(json.loads(option))


def served(scan: WireScan) -> RemoteStream | None:
    """The stream table of a scan, if a server folds it."""
    fold = scan.table.fold
    if fold is None or not is_server(fold.lake):
        return None
    return asked(fold.lake).stream_table(ObjectId(tuple(scan.table.id)), lambda: None).expect(fold.id or None)


class ServedStreams:
    """The stream tables of a server, as the driver sees them."""

    def __init__(self, option: str) -> None:
        self._option = option

    def load(self, id: list[str], version: str | None, micros: int | None) -> tuple[Definition, Fold] | None:
        """Return how to read a table now, at a position or as of a time; None if it is no stream table."""
        server, key = asked(self._option), ObjectId(tuple(id))
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
    """The newest position at a time; 11 if the table was not there, or the past does not go so far back."""
    try:
        return server.at(time).stream_table(id, lambda: None).position
    except LanceNamespaceError as error:
        raise TableVersionNotFoundError(
            f"{format_name(id.names)} cannot be read as of {time.isoformat()}. {error}"
        ) from None


def count_served(stream: RemoteStream, scan: WireScan) -> int:
    assert scan.table.fold is not None
    if scan.filter is None:
        return stream.count(scan.table.fold.position)
    first = stream.definition.schema.names[:1]
    return stream.to_arrow(first, scan.filter, None, scan.table.fold.position).num_rows


def read_served(stream: RemoteStream, scan: WireScan) -> pa.Table:
    assert scan.table.fold is not None
    return stream.to_arrow(list(scan.columns), scan.filter, scan.limit, scan.table.fold.position)
