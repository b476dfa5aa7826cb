"""The properties of a directory catalog, parsed once, and the registry that they choose.

An unknown property or a malformed value is InvalidInput (13). The protocol's package is not imported: look-ups need no
more than this.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headwater.clock import Clock
from headwater.errors import InvalidInputError, UnsupportedOperationError
from headwater.imports import when_used
from headwater.names import DELIMITER, check_delimiter
from headwater.namespace.operations import Operations
from headwater.namespace.versions.operations import TableVersions
from headwater.references import followed
from headwater.registries.layout import check_directory
from headwater.registry import Registry
from headwater.store import Store, is_local, local_path, open_store
from headwater.wording import did_you_mean

if TYPE_CHECKING:
    from headwater.registries import compat, listing, manifest
    from headwater.registries.manifest import ManifestRegistry
else:
    compat, listing = when_used("headwater.registries.compat"), when_used("headwater.registries.listing")
    manifest = when_used("headwater.registries.manifest")

KNOWN = (
    "root",
    "path",
    "manifest_enabled",
    "dir_listing_enabled",
    "table_version_management",
    "delimiter",
    "layout",
    "storage.*",
)
LAYOUTS = ("lance", "early")


@dataclass(frozen=True)
class DirectoryProperties:
    """Properties of a directory catalog (directory document, "Namespace Implementation Configuration Properties")."""

    root: str
    manifest_enabled: bool = True
    dir_listing_enabled: bool = True
    table_version_management: bool = False
    delimiter: str = DELIMITER
    early_layout: bool = False
    storage: Mapping[str, str] = field(default_factory=dict)


def parse_properties(properties: Mapping[str, object]) -> DirectoryProperties:
    """Properties as users write them, all strings (Python's own booleans are taken too)."""
    properties = followed(properties)
    for key in properties:
        if key not in KNOWN and not key.startswith("storage."):
            raise InvalidInputError(f"{key!r} is not a property of a directory catalog.{_hint(key)}")
    layout = str(properties.get("layout", "lance"))
    if layout not in LAYOUTS:
        raise InvalidInputError(f"layout must be one of {', '.join(LAYOUTS)}, not {layout!r}.")
    early = layout == "early"
    parsed = DirectoryProperties(
        root=_root(properties),
        manifest_enabled=_flag(properties, "manifest_enabled", not early),
        dir_listing_enabled=_flag(properties, "dir_listing_enabled", True),
        table_version_management=_flag(properties, "table_version_management", False),
        delimiter=str(properties.get("delimiter", DELIMITER)),
        early_layout=early,
        storage=_storage(properties),
    )
    _check(parsed)
    return parsed


@dataclass(frozen=True)
class MetastoreProperties:
    """Properties of a metastore catalog."""

    root: str
    delimiter: str = DELIMITER
    storage: Mapping[str, str] = field(default_factory=dict)
    author: str = ""
    """Whom the log names as the one who changed something: the user of the process, when not told."""


def parse_metastore_properties(properties: Mapping[str, object]) -> MetastoreProperties:
    """Parse the properties of a metastore, which are fewer than those of a directory."""
    known = ("root", "path", "delimiter", "author", "storage.*")
    for key in properties:
        if key not in known and not key.startswith("storage."):
            raise InvalidInputError(f"{key!r} is not a property of a metastore catalog.{_hint(key)}")
    delimiter = str(properties.get("delimiter", DELIMITER))
    check_delimiter(delimiter)
    author = str(properties["author"]) if "author" in properties else _user()
    return MetastoreProperties(_root(properties), delimiter, _storage(properties), author)


def _user() -> str:
    """Return the name of the user of the process; none where the system knows none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return ""


def _storage(properties: Mapping[str, object]) -> dict[str, str]:
    return {k.removeprefix("storage."): str(v) for k, v in properties.items() if k.startswith("storage.")}


def _check(parsed: DirectoryProperties) -> None:
    check_delimiter(parsed.delimiter)
    if not parsed.manifest_enabled and not parsed.dir_listing_enabled:
        raise InvalidInputError("manifest_enabled and dir_listing_enabled cannot both be false: nothing would be left.")
    if parsed.early_layout and parsed.manifest_enabled:
        raise InvalidInputError("layout=early has no manifest: leave manifest_enabled out, or set it to false.")
    if parsed.table_version_management and not parsed.manifest_enabled:
        raise InvalidInputError("table_version_management needs the manifest: set manifest_enabled=true.")


def _root(properties: Mapping[str, object]) -> str:
    """Return the root as an absolute path without a trailing slash, or a URI. `path` is the early name of `root`."""
    given = [str(properties[key]) for key in ("root", "path") if properties.get(key)]
    if not given:
        raise InvalidInputError("A catalog needs the property root: a path, or a URI such as s3://bucket/lake.")
    if len(set(given)) > 1:
        raise InvalidInputError("root and path are two names of one property: give one of them.")
    return _folder(local_path(given[0])) if is_local(given[0]) else _lower(given[0].rstrip("/"))


def _lower(uri: str) -> str:
    """Return a URI with its scheme in lower case, in which all schemes are one (RFC 3986)."""
    scheme, rest = uri.split("://", 1)
    return f"{scheme.lower()}://{rest}"


def _folder(path: str) -> str:
    """Return the path, unless it, or what it would lie in, is there and is no folder."""
    there = path
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    if not os.path.isdir(there):
        raise InvalidInputError(
            f"The root {path!r} cannot be used: {there!r} is not a folder. Name a folder, or a new one."
        )
    return path


def _flag(properties: Mapping[str, object], key: str, default: bool) -> bool:
    text = str(properties.get(key, default)).lower()
    if text not in ("true", "false"):
        raise InvalidInputError(f"{key} must be true or false, not {properties[key]!r}.")
    return text == "true"


def _hint(key: str) -> str:
    return did_you_mean(key, KNOWN) or f" Known are {', '.join(KNOWN)}."


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
    """Return the store of a directory catalog; 13 and 19 where the root is something else."""
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
        return listing.ListingRegistry(store, clock, properties.early_layout, looked), None
    if properties.root.startswith("memory://"):
        raise UnsupportedOperationError("Lance tables cannot be kept in memory:// by another library: use a directory.")
    managed = properties.table_version_management
    made = manifest.ManifestRegistry(store, properties.root, dict(properties.storage), clock, managed, passes)
    if not properties.dir_listing_enabled:
        return made, made
    return compat.CompatRegistry(made, listing.ListingRegistry(store, clock, looked=looked)), made
