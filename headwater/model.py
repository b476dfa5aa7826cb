"""The objects of a catalog (namespaces, tables, versions) and the changes of a commit. Values only.

A change carries its own precondition, so that a plan made from facts that are no longer true is refused
where it is applied, and two racing operations can never leave an orphan or a duplicate behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from headwater.names import ObjectId


@dataclass(frozen=True, slots=True)
class Namespace:
    """A container of tables and namespaces (lance-objects.md, "Namespace Definition")."""

    id: ObjectId
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RegistryFacts:
    """Facts about a table that the registry saw when it found the table. They are not part of the table."""

    managed: bool = False
    """Its versions are records of the catalog."""
    newest: int = 0
    """The newest recorded version of a managed table, 0 when there is none or nobody asked for it."""
    recorded: bool = True
    """False: it is only seen as a folder."""
    digest: str | None = None
    """Of the manifest of the newest version, if that is known and its record has one."""


NEW = RegistryFacts()
SEEN = RegistryFacts(recorded=False)


@dataclass(frozen=True, slots=True)
class Table:
    """A Lance table at a location relative to the catalog's root."""

    id: ObjectId
    location: str
    properties: Mapping[str, str] = field(default_factory=dict)
    known: RegistryFacts = field(default=NEW, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a catalog-managed table. Its id is the table's with the version number as one more name."""

    id: ObjectId
    manifest_path: str
    """Relative to the table's location."""
    manifest_size: int | None = None
    e_tag: str | None = None
    naming_scheme: str = "V2"
    timestamp_ms: int | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    digest: str | None = None
    """Of the manifest's bytes; None in records of before it was kept, and of versions that a catalog has adopted."""
    change: str | None = None
    """The change that made it, in words; None in records of before it was kept, or if its manifest does not tell."""
    message: str | None = field(default=None, compare=False)
    """The same with the name of its table, for the message of its commit. Records do not hold it."""
    unsynced_files: tuple[str, ...] = field(default=(), compare=False)
    """Files that the commit of its record syncs, in a registry with that capability. Records do not hold them."""

    @property
    def table(self) -> ObjectId:
        return self.id.parent

    @property
    def number(self) -> int:
        return int(self.id.name)

    def is_same_commit(self, other: Version) -> bool:
        """Return True if both are one version, which may have got its final name between them."""
        if self.digest is None:
            return self == other
        return replace(self, manifest_path=other.manifest_path, e_tag=other.e_tag) == other


CatalogObject = Namespace | Table | Version


@dataclass(frozen=True, slots=True)
class Add:
    """A new object. It conflicts if its id exists, or if its parent does not."""

    object: CatalogObject


@dataclass(frozen=True, slots=True)
class Replace:
    """A replacement of `old` by another object. It conflicts unless `old` is unchanged."""

    old: CatalogObject
    object: CatalogObject


@dataclass(frozen=True, slots=True)
class Remove:
    """A removal of an object. It conflicts unless the object is unchanged, and without namespaces or tables below it.

    A table's version records go with it.
    `keep_data` tells DeregisterTable (True) from DropTable (False).
    """

    object: CatalogObject
    keep_data: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """A rename of a table, whose location stays. It conflicts as `Remove` of the old id and `Add` of the new one do.

    A namespace does so with all below it, in registries whose capabilities say `rename_namespaces`.
    """

    old: Table | Namespace
    new: Table | Namespace


@dataclass(frozen=True, slots=True)
class RequireLocation:
    """A precondition: no table other than `table` is at, inside or around the location."""

    location: str
    table: ObjectId


@dataclass(frozen=True, slots=True)
class RequireTable:
    """A precondition: the table is at its location, with `newest` as its newest version (0: none)."""

    table: Table
    newest: int


@dataclass(frozen=True, slots=True)
class RequireRefs:
    """A precondition: the record of a table's tags and branches is at its change number (0: no record)."""

    table: ObjectId
    count: int


Change = Add | Replace | Remove | Move | RequireLocation | RequireTable | RequireRefs
