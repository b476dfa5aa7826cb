"""Streams, partitions and deltas of a table of a metastore, and what of a stream table is not published yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lance_namespace import LanceNamespace

from headwater.errors import LanceNamespaceError
from headwater.metastore import Object, Snapshot
from headwater.metastore.records.ref_record import REFS_FORMAT
from headwater.metastore.records.serving_copy import READER_FORMAT, RECORD_FORMAT
from headwater.rest.auth.object_rights import Projection
from headwater.rest.call import Call
from headwater.rest.page.page_facts import PartitionFacts, StreamFacts, StreamView, TableFacts, Unpublished, holds
from headwater.streams.layout import DELTA, LANCE
from headwater.streams.reading.position_views import newest_published
from headwater.streams.stream_lookup import is_stream_table, open_stream
from headwater.verbs.verb import metastore_of

NOTED = (RECORD_FORMAT, READER_FORMAT, REFS_FORMAT)
"""Formats of streams that hold no rows: what sources gave, where readers are, tags and branches."""


def streams(namespace: LanceNamespace, call: Call) -> StreamFacts:
    """The streams of a table that hold rows, with the deltas that are wanted."""
    metastore, id, asked = metastore_of(namespace), call.id, call.request
    snapshot, told = metastore.now(), Projection(call.asker, metastore)
    found = []
    for stream in snapshot.streams(id.names):
        format = str(stream.parts[1]) if len(stream.parts) > 1 else stream.name
        if format in NOTED:
            continue
        last = snapshot.last_position(id.names, format=format, stream=stream.id)
        deltas = snapshot.deltas(id.names, max(0, last - asked.limit), format=format, stream=stream.id)
        partitions = [
            PartitionFacts(
                one,
                _values(one),
                [
                    told.delta(delta)
                    for delta in reversed(deltas)
                    if delta.partition == one.id and holds(asked.word, delta.type, delta.position, _values(one), format)
                ],
            )
            for one in snapshot.partitions(id.names, format=format, stream=stream.id)
        ]
        found.append(StreamView(format, stream, partitions, last))
    return StreamFacts(found)


def _values(partition: Object) -> str:
    values: Any = partition.parts[0] if partition.parts else None
    if isinstance(values, (list, tuple)):
        return ", ".join(str(value) for value in values)
    return str(values) if values else ""


def table(namespace: LanceNamespace, call: Call) -> TableFacts:
    """Return the kind of a table, and the unpublished rows of a stream table. A missing table is of neither kind."""
    snapshot, names = metastore_of(namespace).now(), call.id.names
    try:
        is_stream = is_stream_table(snapshot, names)
    except LanceNamespaceError:
        return TableFacts(False, False)
    return TableFacts(
        _has_version(snapshot, names),
        is_stream,
        _unpublished(snapshot, names) if is_stream and call.request.details else None,
    )


def _has_version(snapshot: Snapshot, names: Sequence[str]) -> bool:
    """Return True if a table has a Lance version: False for one that is only declared, or never published."""
    try:
        return snapshot.last_position(names, format=LANCE) > 0
    except LanceNamespaceError:
        return False


def _unpublished(snapshot: Snapshot, names: Sequence[str]) -> Unpublished | None:
    try:
        stream = open_stream(snapshot, names)
    except LanceNamespaceError:
        return None
    position = snapshot.last_position(stream.path, format=DELTA, version=stream.version)
    published = newest_published(snapshot, stream)
    start = published.position if published is not None else 0
    waiting = snapshot.deltas(stream.path, start, version=stream.version)
    rows = sum(file.rows for delta in waiting for file in delta.files)
    version = published.version if published is not None else None
    told = stream.definition
    schema = told.schema.serialize().to_pybytes().hex()
    return Unpublished(position, start, version, len(waiting), rows, schema, told.keys, told.sequence)
