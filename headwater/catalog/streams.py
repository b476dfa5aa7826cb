"""Stream tables of a catalog: the change log and its serving copy under one name."""

from __future__ import annotations

from typing import Any, cast

from headwater import notebook
from headwater.catalog.results import TableSearch
from headwater.catalog.table import CatalogTable
from headwater.catalog.table_parts import NamedVersions
from headwater.names import ObjectId
from headwater.namespace.metastore import MetastoreNamespace
from headwater.notebook import ShownLineage
from headwater.registries.metastore.mapping import has_stream
from headwater.streams.definition import Definition
from headwater.streams.layout import DELTA
from headwater.streams.stream_lookup import is_stream_table
from headwater.streams.table import StreamTable


class CatalogStream(StreamTable):
    """A stream table of a catalog. Its reads include all that has landed; `serving` is the last published state."""

    def __init__(self, namespace: MetastoreNamespace, id: ObjectId) -> None:
        root, storage = namespace.properties.root, dict(namespace.properties.storage)
        super().__init__(namespace.metastore, id.names, root, storage, namespace.session)
        self.namespace = namespace
        self.id = id

    def __repr__(self) -> str:
        past = self.namespace.abilities().past
        return f"CatalogStream({self.name!r}{'' if past is None else f', at {past}'})"

    def _repr_html_(self) -> str:
        return notebook.stream(self)

    def lineage(self, version: int | None = None) -> dict[str, Any]:
        """Return the sources, inputs and functions of a published version, by default the newest."""
        return ShownLineage(super().lineage(version), self.name)

    @property
    def serving(self) -> CatalogTable:
        """The serving copy: the Lance table as last published, for searches, indices and versions."""
        return CatalogTable(self.namespace, self.id)

    @property
    def table_versions(self) -> NamedVersions:
        """The table versions by id, each a handle that reads and writes it."""
        return NamedVersions(
            self.namespace, self.id, lambda there: CatalogStream(cast(MetastoreNamespace, there), self.id)
        )

    def search(self, *args: Any, **options: Any) -> TableSearch:
        """Search the serving copy: `serving.search`."""
        return self.serving.search(*args, **options)


def create_stream(namespace: MetastoreNamespace, id: ObjectId, definition: Definition) -> CatalogStream:
    """Create a stream table under a name and return it. Raises errors 1, 5 and 13."""
    namespace.create_stream(id, definition)
    return CatalogStream(namespace, id)


def is_stream(namespace: MetastoreNamespace, id: ObjectId) -> bool:
    """Return True for a table with a change log; the history of a stream table has none."""
    state = namespace.session.state()
    return is_stream_table(state, id.names) and has_stream(state, id, DELTA)
