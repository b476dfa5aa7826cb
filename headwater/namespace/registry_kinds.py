"""From the properties of a directory catalog to its registry, without the protocol's package: look-ups need no more."""

from __future__ import annotations

from dataclasses import dataclass

from headwater.clock import Clock
from headwater.errors import UnsupportedOperationError
from headwater.namespace.operations import Operations
from headwater.namespace.properties import DirectoryProperties
from headwater.namespace.versions.operations import TableVersions
from headwater.registries.compat import CompatRegistry
from headwater.registries.layout import check_directory
from headwater.registries.listing import ListingRegistry
from headwater.registries.manifest import ManifestRegistry
from headwater.registry import Registry
from headwater.store import Store, open_store


@dataclass(frozen=True)
class DirectoryNames:
    """The operations on the names and versions of a directory catalog, for who only looks them up."""

    operations: Operations
    versions: TableVersions


def open_names(properties: DirectoryProperties, clock: Clock) -> DirectoryNames:
    store, root = open_directory(properties), properties.root
    registry, records = open_registry(properties, store, clock)
    return DirectoryNames(
        Operations(registry, store, root, clock, properties.delimiter),
        TableVersions(registry, records, store, root, clock),
    )


def open_directory(properties: DirectoryProperties) -> Store:
    """The store of a directory catalog; 13 and 19 where the root is something else."""
    store = open_store(properties.root, dict(properties.storage))
    if store.abilities.path is not None:  # elsewhere the first look-up finds out: opening asks no server
        check_directory(store)
    return store


def open_registry(
    properties: DirectoryProperties, store: Store, clock: Clock, passes: int = 0
) -> tuple[Registry, ManifestRegistry | None]:
    """V1, V2 or compatibility mode, as the two properties say, and where it could keep the versions of its tables.

    `passes`: flags that keep only others out.
    """
    looked = passes != 0
    if not properties.manifest_enabled:
        return ListingRegistry(store, clock, properties.early_layout, looked), None
    if properties.root.startswith("memory://"):
        raise UnsupportedOperationError("Lance tables cannot be kept in memory:// by another library: use a directory.")
    managed = properties.table_version_management
    manifest = ManifestRegistry(store, properties.root, dict(properties.storage), clock, managed, passes)
    if not properties.dir_listing_enabled:
        return manifest, manifest
    return CompatRegistry(manifest, ListingRegistry(store, clock, looked=looked)), manifest
