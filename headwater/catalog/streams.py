"""Stream tables of a catalog: the change log and its serving copy under one name."""

from __future__ import annotations

from typing import Any

from headwater.catalog.table import CatalogTable
from headwater.names import ObjectId
from headwater.namespace.metastore import MetastoreNamespace
from headwater.registries.metastore.mapping import has_stream
from headwater.streams.definition import Definition
from headwater.streams.layout import DELTA
from headwater.streams.opening import is_stream_table
from headwater.streams.table import StreamTable


class CatalogStream(StreamTable):
    """A stream table of a catalog. Reads are fresh; `serving` is what Lance clients see: the rows as last published."""

    def __init__(self, namespace: MetastoreNamespace, id: ObjectId) -> None:
        root, storage = namespace.properties.root, dict(namespace.properties.storage)
        super().__init__(namespace.metastore, id.names, root, storage, namespace.session)
        self.namespace = namespace
        self.id = id

    def __repr__(self) -> str:
        return f"CatalogStream({self.name!r})"

    @property
    def serving(self) -> CatalogTable:
        """The Lance table as last published: search it, index it, read its versions."""
        return CatalogTable(self.namespace, self.id)

    def search(self, *args: Any, **options: Any) -> Any:
        """As `serving.search`: the rows as last published."""
        return self.serving.search(*args, **options)


def create_stream(namespace: MetastoreNamespace, id: ObjectId, definition: Definition) -> CatalogStream:
    """A new stream table under a name; errors 1, 5, 13."""
    namespace.create_stream(id, definition)
    return CatalogStream(namespace, id)


def is_stream(namespace: MetastoreNamespace, id: ObjectId) -> bool:
    """Whether it is fed by a change log; the history of a stream table is written by publishes alone."""
    state = namespace.session.state()
    return is_stream_table(state, id.names) and has_stream(state, id, DELTA)
