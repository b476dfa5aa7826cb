"""Stream tables of a catalog: the change log and its serving copy under one name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headwater.catalog.table import CatalogTable
from headwater.metastore import Snapshot
from headwater.names import ObjectId
from headwater.namespace.metastore import MetastoreNamespace
from headwater.registries.metastore.objects import has_stream
from headwater.registries.metastore.sessions import past_is_past
from headwater.streams.definition import define
from headwater.streams.layout import DELTA
from headwater.streams.opening import Stream, is_stream_table, open_stream
from headwater.streams.serving import lake
from headwater.streams.table import StreamTable, create_stream_table, publish_tables
from headwater.streams.views import Published


class CatalogStream(StreamTable):
    """A stream table of a catalog. Reads are fresh; `serving` is what Lance clients see: the rows as last published."""

    def __init__(self, namespace: MetastoreNamespace, id: ObjectId) -> None:
        super().__init__(namespace.metastore, id.names, namespace.properties.root, dict(namespace.properties.storage))
        self.namespace = namespace
        self.id = id

    @property
    def name(self) -> str:
        return self.id.format(".")

    def __repr__(self) -> str:
        return f"CatalogStream({self.name!r})"

    def __len__(self) -> int:
        return self.count()

    def __bool__(self) -> bool:
        """A table is there, however many rows it has."""
        return True

    @property
    def serving(self) -> CatalogTable:
        """The Lance table as last published: search it, index it, read its versions."""
        return CatalogTable(self.namespace, self.id)

    def search(self, *args: Any, **options: Any) -> Any:
        """As `serving.search`: the rows as last published."""
        return self.serving.search(*args, **options)

    def publish(self) -> Published:
        """Make the serving copy equal to the newest state. Nothing new: no new version."""
        self.namespace.registry.check_writable()
        return super().publish()

    def _open(self) -> tuple[Stream, Snapshot]:
        session = self.namespace.session
        if not session.is_past:
            return super()._open()
        snapshot: Snapshot = session.state()
        return open_stream(snapshot, self.path), snapshot

    def _run(self, work: Any, message: str) -> Any:
        if self.namespace.session.is_past:
            raise past_is_past(self.namespace.session.state().slot)
        return super()._run(work, message)


def create_stream(
    namespace: MetastoreNamespace,
    id: ObjectId,
    schema: Any,
    keys: Sequence[str] | str,
    sequence: Sequence[str] | str,
    partition_by: Sequence[Any],
    properties: Mapping[str, str],
) -> CatalogStream:
    """A new stream table under a name; errors 1, 5, 13."""
    namespace.registry.check_writable()
    definition = define(schema, keys, sequence, partition_by, properties)
    stream = CatalogStream(namespace, id)
    stream._run(lambda tx: create_stream_table(tx, id.names, definition), f"create stream table {stream.name}")
    return stream


def is_stream(namespace: MetastoreNamespace, id: ObjectId) -> bool:
    """Whether it is fed by a change log; the history of a stream table is written by publishes alone."""
    state = namespace.session.state()
    return is_stream_table(state, id.names) and has_stream(state, id, DELTA)


def publish(
    namespace: MetastoreNamespace, ids: Sequence[ObjectId], lineage: Mapping[str, Mapping[str, Any]] | None = None
) -> list[Published]:
    """Publish tables at one slot; `lineage` by name is kept with the versions."""
    namespace.registry.check_writable()
    found = lake(namespace.metastore, namespace.properties.root, dict(namespace.properties.storage))
    return publish_tables(found, [id.names for id in ids], lineage)
