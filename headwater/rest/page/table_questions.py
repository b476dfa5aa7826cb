"""Questions of the page about one table: its Lance dataset, streams, partitions and deltas, and its lineage as a graph.

Of a dataset, manifests are read, never rows. Lineage stands in the commits of published versions
(`streams/serving/publication.py`). Inputs are followed from version to version. Outputs are found by looking at a
limited number of stream tables. Nothing is followed through a table that the caller may not describe.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from lance_namespace import DescribeTableRequest, LanceNamespace, ListTableVersionsRequest

from headwater.cells import is_vector
from headwater.errors import LanceNamespaceError
from headwater.lance_manifest import CHANGE
from headwater.metastore import Snapshot
from headwater.metastore.records.ref_record import REFS_FORMAT
from headwater.metastore.records.serving_copy import READER_FORMAT, RECORD_FORMAT
from headwater.rest.auth.object_rights import Projection
from headwater.rest.call import Call
from headwater.rest.page.page_facts import (
    FragmentFact,
    FragmentFacts,
    PartitionFacts,
    StreamFacts,
    StreamView,
    TableFacts,
    Unpublished,
    VersionFacts,
    VersionSize,
    holds,
)
from headwater.streams.definition import Definition
from headwater.streams.layout import DELTA, LANCE, QUARANTINE, sibling
from headwater.streams.reading.position_views import newest_published
from headwater.streams.stream_lookup import is_stream_table, open_stream
from headwater.tables.handle import TableHandle
from headwater.verbs.object_verbs import describe_objects
from headwater.verbs.verb import metastore_of
from headwater.wording import partition_text

if TYPE_CHECKING:
    import lance

NOTED = (RECORD_FORMAT, READER_FORMAT, REFS_FORMAT)
"""Formats of streams that hold no rows: what sources gave, where readers are, tags and branches."""


def streams(namespace: LanceNamespace, call: Call) -> StreamFacts:
    """Return the streams of a table that hold rows, with the deltas that are wanted."""
    metastore, id, asked = metastore_of(namespace), call.id, call.request
    snapshot, told = metastore.now(), Projection(call.asker, metastore)
    found = []
    for stream in snapshot.streams(id.names):
        format = str(stream.parts[1]) if len(stream.parts) > 1 else stream.name
        if format in NOTED:
            continue
        last = snapshot.last_position(id.names, format=format, stream=stream.id)
        deltas = snapshot.deltas(id.names, max(0, last - asked.limit), format=format, stream=stream.id)
        objects = snapshot.partitions(id.names, format=format, stream=stream.id)
        partitions = []
        for one, known in zip(objects, describe_objects(snapshot, objects), strict=True):
            texts = (format, partition_text(known.values), one.locator)
            wanted = [
                told.delta(delta)
                for delta in reversed(deltas)
                if delta.partition == one.id and holds(asked.word, delta.type, delta.position, *texts)
            ]
            partitions.append(PartitionFacts(one, texts[1], wanted))
        found.append(StreamView(format, stream, partitions, last))
    return StreamFacts(found, snapshot.get_table_version(id.names))


def table(namespace: LanceNamespace, call: Call) -> TableFacts:
    """Return the kind of a table, and the unpublished rows of a stream table. A missing table is of neither kind."""
    snapshot, names = metastore_of(namespace).now(), call.id.names
    try:
        is_stream = is_stream_table(snapshot, names)
    except LanceNamespaceError:
        return TableFacts(False, False)
    return TableFacts(
        has_versions(snapshot, names),
        is_stream,
        unpublished(snapshot, names) if is_stream and call.request.details else None,
        is_stream and snapshot.exists(sibling(names, QUARANTINE)),
        text_vectors(open_stream(snapshot, names).definition) if is_stream and call.request.details else [],
    )


def text_vectors(definition: Definition) -> list[str]:
    """Return the derived columns whose functions make a vector of texts alone."""
    texts = {name for name, field in definition.shown.items() if is_text(field.type)}
    return [
        one.name for one in definition.derived if is_vector(one.type) and one.inputs and texts.issuperset(one.inputs)
    ]


def is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def has_versions(snapshot: Snapshot, names: Sequence[str]) -> bool:
    """Return True if a table has a Lance version: False for one that is only declared, or never published."""
    try:
        return snapshot.last_position(names, format=LANCE) > 0
    except LanceNamespaceError:
        return False


def unpublished(snapshot: Snapshot, names: Sequence[str]) -> Unpublished | None:
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
    total = rows + (published.rows if published is not None else 0)
    told = stream.definition
    schema = told.schema.serialize().to_pybytes().hex()
    stale = [each.name for each in published.derived if each.stale_to >= 0] if published is not None else []
    behind = published.stale if published is not None else 0
    return Unpublished(
        position, start, version, len(waiting), rows, schema, told.keys, told.sequence, total, stale, behind
    )


def _opened(namespace: LanceNamespace, call: Call) -> lance.LanceDataset:
    """Return the table as it is now."""
    asked = DescribeTableRequest(id=list(call.id.names), with_table_uri=True, load_detailed_metadata=False)
    told = namespace.describe_table(asked)
    client = namespace if told.managed_versioning else None
    uri = str(told.table_uri or told.location)
    return TableHandle(call.id, uri, dict(told.storage_options or {}), client).open()


def versions(namespace: LanceNamespace, call: Call) -> VersionFacts:
    """Return the newest versions that the catalog knows, oldest first."""
    asked = ListTableVersionsRequest(id=list(call.id.names), limit=call.request.limit, descending=True)
    listed = namespace.list_table_versions(asked).versions or []
    known = {int(one.version): one for one in listed}
    found: list[VersionSize] = []
    everything = _opened(namespace, call).versions()
    for one in sorted(everything, key=lambda item: int(item["version"])):
        told: dict[str, str] = one.get("metadata") or {}
        number, rows = int(one["version"]), int(told.get("total_rows") or 0)
        if number in known:
            before = found[-1].rows if found else 0
            size, fragments = int(told.get("total_files_size") or 0), int(told.get("total_fragments") or 0)
            time, change = known[number].timestamp_millis or _ms(one), (known[number].metadata or {}).get(CHANGE)
            found.append(VersionSize(number, time, rows, size, fragments, rows - before, change))
    return VersionFacts(found, len(everything))


def _ms(one: Mapping[str, object]) -> int | None:
    time = one.get("timestamp")
    return int(time.astimezone(dt.UTC).timestamp() * 1000) if isinstance(time, dt.datetime) else None


def fragments(namespace: LanceNamespace, call: Call) -> FragmentFacts:
    """Return the fragments of the newest version that are wanted, each with its rows, deletions and files."""
    dataset, asked = _opened(namespace, call), call.request
    known = [fragment.metadata for fragment in dataset.get_fragments()]
    wanted = [one for one in known if holds(asked.word, one.id, *(file.path for file in one.files))]
    shown = [
        FragmentFact(
            one.id,
            one.num_rows,
            one.num_deletions or 0,
            sum(file.file_size_bytes or 0 for file in one.files),
            [(str(file.path), file.file_size_bytes) for file in one.files],
        )
        for one in wanted[: asked.limit]
    ]
    return FragmentFacts(shown, len(known), max((one.rows for one in shown), default=0) or 1, dataset.version)
