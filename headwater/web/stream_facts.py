"""Streams, partitions and deltas of a table of a metastore, and what of a stream table is not published yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headwater.errors import LanceNamespaceError
from headwater.metastore import Delta, Metastore, Snapshot
from headwater.metastore.objects import Object
from headwater.names import ObjectId
from headwater.streams.layout import DELTA
from headwater.streams.opening import is_stream_table, open_stream
from headwater.streams.position_views import newest_published


@dataclass(frozen=True)
class Partition:
    """A partition, with its newest deltas, newest first."""

    object: Object
    values: str
    deltas: list[Delta]


@dataclass(frozen=True)
class StreamView:
    """One stream of a table."""

    format: str
    object: Object
    partitions: list[Partition]
    last: int


@dataclass(frozen=True)
class Unpublished:
    """How far the log of a stream table is ahead of its serving copy."""

    position: int
    published: int
    version: int | None
    deltas: int
    rows: int


def streams_of(metastore: Metastore, id: ObjectId, most: int, keeps: Callable[..., bool]) -> list[StreamView]:
    """The streams of a table, with the deltas that are wanted."""
    snapshot = metastore.now()
    found = []
    for stream in snapshot.streams(id.names):
        format = str(stream.parts[1]) if len(stream.parts) > 1 else stream.name
        last = snapshot.last_position(id.names, format=format)
        deltas = snapshot.deltas(id.names, max(0, last - most), format=format)
        partitions = [
            Partition(
                one,
                _values(one),
                [
                    delta
                    for delta in reversed(deltas)
                    if delta.partition == one.id and keeps(delta.type, delta.position, _values(one), format)
                ],
            )
            for one in snapshot.partitions(id.names, format=format)
        ]
        found.append(StreamView(format, stream, partitions, last))
    return found


def _values(partition: Object) -> str:
    values: Any = partition.parts[0] if partition.parts else None
    if isinstance(values, (list, tuple)):
        return ", ".join(str(value) for value in values)
    return str(values) if values else ""


def is_stream(metastore: Metastore, id: ObjectId) -> bool:
    try:
        return is_stream_table(metastore.now(), id.names)
    except LanceNamespaceError:
        return False


def unpublished(metastore: Metastore | None, id: ObjectId) -> Unpublished | None:
    """None for a table that is no stream table."""
    if metastore is None:
        return None
    snapshot: Snapshot = metastore.now()
    try:
        if not is_stream_table(snapshot, id.names):
            return None
        stream = open_stream(snapshot, id.names)
    except LanceNamespaceError:
        return None
    position = snapshot.last_position(stream.path, format=DELTA, version=stream.version)
    published = newest_published(snapshot, stream)
    start = published.position if published is not None else 0
    waiting = snapshot.deltas(stream.path, start, version=stream.version)
    rows = sum(file.rows for delta in waiting for file in delta.files)
    return Unpublished(position, start, published.version if published is not None else None, len(waiting), rows)
