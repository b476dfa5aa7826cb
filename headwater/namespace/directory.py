"""The Lance directory catalog, as the `LanceNamespace` that every Lance client knows how to call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headwater.clock import Clock, SystemClock
from headwater.errors import UnsupportedOperationError
from headwater.namespace.properties import DirectoryProperties, parse_properties
from headwater.namespace.registered import RegisteredNamespace
from headwater.registries.compat import CompatRegistry
from headwater.registries.listing import ListingRegistry
from headwater.registries.manifest import ManifestRegistry
from headwater.registries.openable import check_directory
from headwater.registry import Registry
from headwater.store import Store, open_store


class DirectoryNamespace(RegisteredNamespace):
    """A catalog in a directory, local or on an object store (lance-directory-namespace.md)."""

    def __init__(self, clock: Clock | None = None, /, **properties: Any) -> None:
        clock = clock or SystemClock()
        self._given = properties
        self.properties = parse_properties(properties)
        store = open_store(self.properties.root, dict(self.properties.storage))
        if store.abilities.path is not None:  # elsewhere the first look-up finds out: opening asks no server
            check_directory(store)
        registry = open_registry(self.properties, store, clock)
        super().__init__(
            registry,
            records_of(registry),
            store,
            self.properties.root,
            clock,
            self.properties.delimiter,
            self.properties.storage,
        )

    def namespace_id(self) -> str:
        return f"headwater.DirectoryNamespace {{ root: {self.properties.root!r} }}"

    def __repr__(self) -> str:
        return f"DirectoryNamespace(root={self.properties.root!r})"

    def __reduce__(self) -> tuple[Callable[..., DirectoryNamespace], tuple[dict[str, Any]]]:
        return _reopened, (self._given,)


def open_registry(properties: DirectoryProperties, store: Store, clock: Clock) -> Registry:
    """V1, V2 or compatibility mode, as the two properties say."""
    if not properties.manifest_enabled:
        return ListingRegistry(store, clock, properties.early_layout)
    if properties.root.startswith("memory://"):
        raise UnsupportedOperationError("Lance tables cannot be kept in memory:// by another library: use a directory.")
    managed = properties.table_version_management
    manifest = ManifestRegistry(store, properties.root, dict(properties.storage), clock, managed)
    if not properties.dir_listing_enabled:
        return manifest
    return CompatRegistry(manifest, ListingRegistry(store, clock))


def records_of(registry: Registry) -> ManifestRegistry | None:
    """Where this catalog could keep the versions of its tables."""
    if isinstance(registry, CompatRegistry):
        return registry.manifest
    return registry if isinstance(registry, ManifestRegistry) else None


def _reopened(properties: dict[str, Any]) -> DirectoryNamespace:
    return DirectoryNamespace(**properties)
