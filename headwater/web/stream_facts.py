"""Streams, partitions and deltas of a table of a metastore, and what of a stream table is not published yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headwater.errors import LanceNamespaceError
from headwater.metastore import Delta, Metastore, Snapshot
from headwater.metastore.objects import Object
from headwater.metastore.ref_record import REFS_FORMAT
from headwater.metastore.serving_copy import READER_FORMAT, RECORD_FORMAT
from headwater.names import ObjectId
from headwater.streams.layout import DELTA, LANCE
from headwater.streams.opening import is_stream_table, open_stream
from headwater.streams.position_views import newest_published

NOTED = (RECORD_FORMAT, READER_FORMAT, REFS_FORMAT)
"""Formats of streams that hold no rows: what sources gave, where readers are, tags and branches."""


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
    """A stream table: how far its log is ahead of its serving copy, and what it is declared to be."""

    position: int
    published: int
    version: int | None
    deltas: int
    rows: int
    schema: pa.Schema
    keys: tuple[str, ...]
    sequence: tuple[str, ...]


def streams_of(metastore: Metastore, id: ObjectId, most: int, keeps: Callable[..., bool]) -> list[StreamView]:
    """The streams of a table that hold rows, with the deltas that are wanted."""
    snapshot = metastore.now()
    found = []
    for stream in snapshot.streams(id.names):
        format = str(stream.parts[1]) if len(stream.parts) > 1 else stream.name
        if format in NOTED:
            continue
        last = snapshot.last_position(id.names, format=format, stream=stream.id)
        deltas = snapshot.deltas(id.names, max(0, last - most), format=format, stream=stream.id)
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
            for one in snapshot.partitions(id.names, format=format, stream=stream.id)
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


def has_version(metastore: Metastore, id: ObjectId) -> bool:
    """Whether there is a Lance version to look at: not of a table that is declared only, or never published."""
    try:
        return metastore.now().last_position(id.names, format=LANCE) > 0
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
    version = published.version if published is not None else None
    told = stream.definition
    return Unpublished(position, start, version, len(waiting), rows, told.schema, told.keys, told.sequence)
