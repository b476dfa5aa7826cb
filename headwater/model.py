"""What a catalog holds, and the changes that can be made to it. Values only.

A change carries its own precondition, so that a plan made from facts that are no longer true is refused
where it is applied, and two racing operations can never leave an orphan or a duplicate behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headwater.names import ObjectId


@dataclass(frozen=True, slots=True)
class Namespace:
    """A container of tables and namespaces (lance-objects.md, "Namespace Definition")."""

    id: ObjectId
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Known:
    """What a registry saw of a table when it found it: what a plan may rely on, and no part of what the table is."""

    managed: bool = False
    """Its versions are records of the catalog."""
    newest: int = 0
    """The newest recorded version of a managed table, 0 when there is none or nobody asked for it."""
    recorded: bool = True
    """False: it is only seen as a folder."""


NEW = Known()
SEEN = Known(recorded=False)


@dataclass(frozen=True, slots=True)
class Table:
    """A Lance table at a location relative to the catalog's root."""

    id: ObjectId
    location: str
    properties: Mapping[str, str] = field(default_factory=dict)
    known: Known = field(default=NEW, compare=False, repr=False)


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

    @property
    def table(self) -> ObjectId:
        return self.id.parent

    @property
    def number(self) -> int:
        return int(self.id.name)


CatalogObject = Namespace | Table | Version


@dataclass(frozen=True, slots=True)
class Add:
    """A new object; refused if anything has its id, or if its parent is gone."""

    object: CatalogObject


@dataclass(frozen=True, slots=True)
class Replace:
    """An object takes the place of `old`; refused unless `old` is still there as it was."""

    old: CatalogObject
    object: CatalogObject


@dataclass(frozen=True, slots=True)
class Remove:
    """An object goes; refused unless it is still there as it was, or if it has namespaces or tables below it.

    A table's version records go with it.
    `keep_data` tells DeregisterTable (True) from DropTable (False).
    """

    object: CatalogObject
    keep_data: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """A table takes another id and stays where it is; refused as `Remove` of the old and `Add` of the new are.

    A namespace does so with all below it, in registries whose capabilities say `rename_namespaces`.
    """

    old: Table | Namespace
    new: Table | Namespace


@dataclass(frozen=True, slots=True)
class RequireLocation:
    """No table but `table` itself may be at the location, inside it or around it."""

    location: str
    table: ObjectId


@dataclass(frozen=True, slots=True)
class RequireTable:
    """The table must still be where it was, with `newest` as its newest version (0: it has none)."""

    table: Table
    newest: int


@dataclass(frozen=True, slots=True)
class RequireRefs:
    """The record of a table's tags and branches must still be the one of so many changes (0: there is none)."""

    table: ObjectId
    count: int


Change = Add | Replace | Remove | Move | RequireLocation | RequireTable | RequireRefs
