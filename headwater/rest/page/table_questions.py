"""Questions of the page about one table: its Lance dataset, streams, partitions and deltas, and its lineage as a graph.

Of a dataset, manifests are read, never rows. Lineage stands in the commits of published versions
(`streams/serving/publication.py`). Inputs are followed from version to version. Outputs are found by looking at a
limited number of stream tables. Nothing is followed through a table that the caller may not describe.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lance_namespace import DescribeTableRequest, LanceNamespace, ListTableVersionsRequest

from headwater.errors import LanceNamespaceError
from headwater.lance_manifest import CHANGE
from headwater.metastore import Snapshot
from headwater.metastore.records.ref_record import REFS_FORMAT
from headwater.metastore.records.serving_copy import READER_FORMAT, RECORD_FORMAT
from headwater.names import ObjectId, format_name, parse_name
from headwater.rest.auth.object_rights import Projection
from headwater.rest.call import Call
from headwater.rest.page.page_facts import (
    Box,
    FragmentFact,
    FragmentFacts,
    LineageFacts,
    PartitionFacts,
    StreamFacts,
    StreamView,
    TableFacts,
    Unpublished,
    VersionFacts,
    VersionSize,
    holds,
)
from headwater.streams.layout import DELTA, LANCE, LINEAGE
from headwater.streams.reading.position_views import newest_published
from headwater.streams.stream_lookup import is_stream_table, open_stream
from headwater.tables.handle import TableHandle
from headwater.verbs.object_verbs import describe_objects
from headwater.verbs.verb import metastore_of
from headwater.wording import many, partition_text

if TYPE_CHECKING:
    import lance

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
        _has_version(snapshot, names),
        is_stream,
        unpublished(snapshot, names) if is_stream and call.request.details else None,
    )


def _has_version(snapshot: Snapshot, names: Sequence[str]) -> bool:
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
    return Unpublished(position, start, version, len(waiting), rows, schema, told.keys, told.sequence, total)


def _opened(namespace: LanceNamespace, call: Call) -> lance.LanceDataset:
    """The table as it is now."""
    told = namespace.describe_table(DescribeTableRequest(id=list(call.id.names), with_table_uri=True))
    client = namespace if told.managed_versioning else None
    uri = str(told.table_uri or told.location)
    return TableHandle(call.id, uri, dict(told.storage_options or {}), client).open()


def versions(namespace: LanceNamespace, call: Call) -> VersionFacts:
    """The newest versions that the catalog knows, oldest first."""
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


def _ms(one: dict[str, object]) -> int | None:
    time = one.get("timestamp")
    return int(time.astimezone(dt.UTC).timestamp() * 1000) if isinstance(time, dt.datetime) else None


def fragments(namespace: LanceNamespace, call: Call) -> FragmentFacts:
    """The fragments of the newest version that are wanted, each with its rows, deletions and files."""
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


MAX_STEPS = 8
MAX_BOXES = 80
MAX_TABLES = 1_000
MAX_NAMESPACES = 200
LOOK_BACK = 50


def lineage(namespace: LanceNamespace, call: Call) -> LineageFacts:
    """The graph around a table, as far as the caller may be told of it."""
    metastore = metastore_of(namespace)
    graph = _Graph(metastore.now(), Projection(call.asker, metastore))
    own = _noted(graph.snapshot, call.id)
    here = format_name(call.id.names)
    graph.found.boxes[here] = Box(call.id.name, _about(own), 0, is_here=True)
    graph.before(here, call.id, 0)
    graph.after(here)
    graph.found.noted = {"sql": None, "functions": {}, **graph.told.lineage(own)}
    return graph.found


def _noted(snapshot: Snapshot, id: ObjectId) -> dict[str, Any]:
    """Return the lineage of the newest publish, with the sources of those before it; nothing for a table that
    was never published. A publish names what it took in itself: one that takes an undo in names no source."""
    try:
        last = snapshot.last_position(id.names, format=LANCE)
        deltas = snapshot.deltas(id.names, max(0, last - LOOK_BACK), format=LANCE)
    except LanceNamespaceError:
        return {}
    told = [{**delta.properties[LINEAGE], "version": delta.position} for delta in deltas if LINEAGE in delta.properties]
    return {**told[-1], "sources": _sources(told)} if told else {}


def _sources(told: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The sources of all publishes, each with its files. What a view gave itself comes from its inputs."""
    found: dict[str, dict[str, None]] = {}
    is_view = bool(told[-1].get("inputs"))
    for one in told:
        for source in one.get("sources", ()):
            found.setdefault(str(source.get("source") or ""), {}).update(dict.fromkeys(source.get("files", ())))
    return [{"source": name, "files": list(files)} for name, files in found.items() if files or not is_view]


def _about(told: dict[str, Any]) -> str:
    return f"version {told['version']}" if "version" in told else "a table"


class _Graph:
    """The graph, while it is made."""

    def __init__(self, snapshot: Snapshot, told: Projection) -> None:
        self.snapshot = snapshot
        self.told = told
        self.found = LineageFacts({}, set())

    def before(self, key: str, id: ObjectId, step: int) -> None:
        """Add the inputs of a table, and theirs."""
        made = _noted(self.snapshot, id)
        for source in made.get("sources", ()):
            name = str(source.get("source") or "unnamed source")
            files = len(source.get("files", ()))
            self._lead(f"source:{name}", key, Box(name, many(files, "file") if files else "rows", step - 1))
        for name in made.get("inputs", {}):
            there, known = ObjectId(parse_name(name)), name in self.found.boxes
            if not self._lead(name, key, self._box(there, step - 1)) or known:
                continue
            if -step < MAX_STEPS and self.told.tells(there.names):
                self.before(name, there, step - 1)

    def after(self, here: str) -> None:
        """Add the tables made from a table, and from those."""
        tables = _tables(self.snapshot)
        self.found.complete = self.found.complete and len(tables) < MAX_TABLES
        inputs = {format_name(table.names): set(_noted(self.snapshot, table).get("inputs", {})) for table in tables}
        waiting = [(here, 0)]
        while waiting:
            key, step = waiting.pop(0)
            for name in (each for each, made_of in inputs.items() if key in made_of):
                there, known = ObjectId(parse_name(name)), name in self.found.boxes
                led = self._lead(key, name, self._box(there, step + 1), target=True)
                if led and not known and step < MAX_STEPS and self.told.tells(there.names):
                    waiting.append((name, step + 1))

    def _box(self, id: ObjectId, step: int) -> Box:
        if not self.told.tells(id.names):
            return Box("a table you may not see", "", step)
        there = self.snapshot.exists(id.names)
        about = _about(_noted(self.snapshot, id)) if there else "no longer there"
        return Box(format_name(id.names), about, step, id.names if there else ())

    def _lead(self, start: str, end: str, box: Box, target: bool = False) -> bool:
        """An arrow, and the box at its new end, if there is room for it."""
        key = end if target else start
        if key not in self.found.boxes:
            if len(self.found.boxes) >= MAX_BOXES:
                self.found.complete = False
                return False
            self.found.boxes[key] = box
        self.found.arrows.add((start, end))
        return True


def _tables(snapshot: Snapshot) -> list[ObjectId]:
    """The first tables of the catalog, namespace by namespace."""
    found: list[ObjectId] = []
    waiting, seen = [ObjectId()], 0
    while waiting and len(found) < MAX_TABLES and seen < MAX_NAMESPACES:
        parent, seen = waiting.pop(0), seen + 1
        found += [parent.child(name) for name in snapshot.names(parent.names, "table")[: MAX_TABLES - len(found)]]
        waiting += [parent.child(name) for name in snapshot.names(parent.names, "namespace")]
    return found
