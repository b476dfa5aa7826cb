"""The metastore catalog: Lance tables as objects of a metastore, behind the same operations as any other catalog."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headwater.clock import SystemClock
from headwater.errors import UnsupportedOperationError
from headwater.metastore import Metastore
from headwater.namespace.properties import parse_metastore_properties
from headwater.namespace.registered import RegisteredNamespace
from headwater.namespace.versions import Problem
from headwater.registries.metastore import MetastoreRegistry
from headwater.store import open_store


class MetastoreNamespace(RegisteredNamespace):
    """A catalog in a metastore, in a local directory or on an object store (docs/design/016-metastore-catalog.md)."""

    def __init__(self, **properties: Any) -> None:
        self._given = properties
        self.properties = parse_metastore_properties(properties)
        store = open_store(self.properties.root, dict(self.properties.storage))
        clock = SystemClock()
        self.metastore = Metastore(store, clock=clock)
        registry = MetastoreRegistry(self.metastore, clock)
        super().__init__(
            registry,
            registry,
            store,
            self.properties.root,
            clock,
            self.properties.delimiter,
            self.properties.storage,
        )
        self._registry = registry

    def namespace_id(self) -> str:
        return f"headwater.MetastoreNamespace {{ root: {self.properties.root!r} }}"

    def __repr__(self) -> str:
        return f"MetastoreNamespace(root={self.properties.root!r})"

    def __reduce__(self) -> tuple[Callable[..., MetastoreNamespace], tuple[dict[str, Any]]]:
        return _reopened, (self._given,)

    def create_table_reader(self, request: Any, reader: Any) -> Any:
        if self.properties.root.startswith("memory://"):
            raise UnsupportedOperationError(
                "Lance tables cannot be kept in memory:// by another library: names can, rows need a directory."
            )
        return super().create_table_reader(request, reader)

    def verify(self) -> list[Problem]:
        """Everything on which the catalog, its storage and the published layout disagree. Nothing is changed.

        The folder of a dropped table that can still be brought back is where it should be.
        """
        dropped = self._registry.dropped_locations()
        found = [item for item in super().verify() if item.key not in dropped]
        own = [Problem("metastore", None, item.key, item.reason) for item in self.metastore.verify()]
        return [*found, *own]

    def close(self) -> None:
        """Wait for housekeeping that goes on beside."""
        self.metastore.close()


def _reopened(properties: dict[str, Any]) -> MetastoreNamespace:
    return MetastoreNamespace(**properties)
