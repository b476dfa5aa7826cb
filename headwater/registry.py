"""Seam 2, the registry of names: finds objects, lists children, commits changes all or nothing.

`Proposal` is the pure rule that every registry with an index applies before it commits: it holds a set of
changes over a state and refuses the ones whose precondition no longer holds.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

from headwater.errors import ConcurrentModificationError, UnsupportedOperationError
from headwater.model import (
    Add,
    CatalogObject,
    Change,
    Move,
    Namespace,
    Remove,
    Replace,
    RequireLocation,
    RequireTable,
    Table,
    Version,
)
from headwater.names import DELIMITER, ROOT, ObjectId

_SAFE = re.compile(r"[^A-Za-z0-9._$@=+-]")


class Kind(Enum):
    """The kinds of children that a list returns."""

    NAMESPACE = "namespace"
    TABLE = "table"


@dataclass(frozen=True)
class Capabilities:
    """The abilities of a kind of catalog. Other requests get UnsupportedOperation (0), and a test asserts it.

    `current_state`: returns the state of a look-up if it is in memory; a server keeps answers while it is current.
    `markers`: marker files tell other readers of the storage that a table is declared; None: only the record does.
    `keeps_dropped`: the files of a dropped table stay until a collection.
    `syncs_files`: a commit makes the `unsynced_files` of its versions durable together with their records.
    """

    namespaces: bool
    properties: bool
    rename: bool
    register_anywhere: bool
    markers: Markers | None = None
    keeps_dropped: bool = False
    rename_namespaces: bool = False
    current_state: Callable[[ObjectId], object | None] | None = None
    pinned: Callable[[str], Mapping[int, str]] | None = None
    """(location): the versions of a dataset that named snapshots need, each with the name of one."""
    syncs_files: bool = False
    folders_are_tables: bool = False
    """A table exists if its folder does, whatever is in it (lance-catalog-early.md, "Table Existence")."""


class Markers(Protocol):
    """The marker files in table folders, which tell other readers of the storage the state of a table."""

    def declare(self, table: Table) -> None:
        """Mark the table as declared."""
        ...

    def withdraw(self, table: Table) -> None:
        """Take back that it is declared."""
        ...

    def is_declared(self, location: str) -> bool:
        """Return True if a folder without a version belongs to a declared table or to a running creation."""
        ...

    def hidden(self, id: ObjectId) -> Table | None:
        """Return the deregistered table of this name, which a listing would show without its marker."""
        ...

    def reveal(self, location: str) -> None:
        """Take away what hides the table there."""
        ...


class Registry(ABC):
    """A registry of names. Four kinds: listing (V1), manifest (V2), compat (both), metastore.

    A kind implements `find`, `children`, `commit` and `capabilities`. Defaults of the other methods use these; a kind
    overrides them where it is faster.
    """

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities: ...

    @abstractmethod
    def find(
        self, ids: Iterable[ObjectId], seen: bool = True, newest: bool = False
    ) -> Mapping[ObjectId, CatalogObject]:
        """Return the existing objects of these ids, as one consistent state that is not older than the call.

        `seen`: also tables that exist only as folders. `newest`: tables come with their newest version.
        """

    def recall(self, ids: Sequence[ObjectId], newest: bool = False) -> Mapping[ObjectId, CatalogObject] | None:
        """Return as `find` without a look at the storage, where that is a request and nothing newer is likely.

        A commit that was planned on older facts conflicts. None: call `find`.
        """
        return None

    @abstractmethod
    def children(self, parent: ObjectId, kind: Kind, after: str, limit: int | None) -> Sequence[str]:
        """Return at most `limit` names of children after `after`, sorted by bytes."""

    @abstractmethod
    def commit(self, changes: Sequence[Change]) -> None:
        """Commit all changes or none; ConcurrentModification (14) if a precondition no longer holds."""

    def descendants(self, parent: ObjectId) -> Sequence[CatalogObject]:
        """Return every namespace and table below `parent`, deepest first."""
        found = self.find([parent.child(name) for kind in Kind for name in self.children(parent, kind, "", None)])
        below = (self.descendants(item.id) for item in found.values() if isinstance(item, Namespace))
        return [*(item for items in below for item in items), *found.values()]

    def location_holders(self, location: str) -> set[ObjectId]:
        """Return the recorded tables at, inside and around this location."""
        tables = (item for item in self.descendants(ROOT) if isinstance(item, Table))
        return {table.id for table in tables if overlap(table.location, location)}

    def place(self, id: ObjectId, hash: str) -> str:
        """Return the location of a new table, relative to the root. `hash`: fresh random hex."""
        return hashed_folder(id, hash)

    def root_properties(self) -> Mapping[str, str]:
        """Return the properties of the root namespace."""
        found = self.find([ROOT]).get(ROOT)
        return found.properties if isinstance(found, Namespace) else {}

    def alter_root(self, properties: Mapping[str, str], removed: Collection[str]) -> None:
        """Set and remove properties of the root namespace, which is no object that could be replaced."""
        raise UnsupportedOperationError(
            "The root namespace of this kind of catalog keeps no properties: give them to a namespace in it."
        )

    def require_refs(self, table: ObjectId) -> list[Change]:
        """Return the precondition that a table's tags and branches do not change, if they are recorded."""
        return []

    def check_writable(self) -> None:  # noqa: B027
        """Raise InvalidInput (13) if a write through this registry would be discarded."""


class VersionRecords(Protocol):
    """A registry that can keep the versions of tables: the manifest can, the metastore always does."""

    @property
    def manages_versions(self) -> bool:
        """Return True if this catalog records the versions of its tables, by a state not older than the call."""
        ...

    @property
    def manages_new(self) -> bool:
        """Return True if this catalog records the versions of a new table, by the last known state."""
        ...

    def manage_versions(self) -> None:
        """Make this catalog record the versions of its tables, for good."""
        ...

    def find(
        self, ids: Iterable[ObjectId], seen: bool = True, newest: bool = False
    ) -> Mapping[ObjectId, CatalogObject]: ...

    def versions(self, table: ObjectId) -> Sequence[int]:
        """Return the numbers of the recorded versions, ascending."""
        ...

    def keep_manifests(self, table: ObjectId, numbers: Sequence[int], staged: Sequence[str]) -> bool:
        """Return True if manifests of forgotten versions, also staged ones, stay until a later clean-up."""
        ...

    def version_page(self, table: ObjectId, after: int | None, limit: int | None, descending: bool) -> Sequence[int]:
        """Return at most `limit` version numbers after `after` in the given order."""
        ...

    def newest_version(self, table: ObjectId) -> int:
        """Return the newest recorded version; 0 if there is none."""
        ...

    def tables(self) -> Sequence[Table]:
        """Return every recorded table."""
        ...

    @property
    def replaces_records(self) -> bool:
        """True if a record is replaced when its manifest gets its final name; else it has both names at once."""
        ...

    @property
    def transaction_id(self) -> str | None:
        """Return the id of the open transaction that collects records; None if commits are final."""
        ...

    @property
    def is_newest(self) -> bool:
        """Return True if this registry shows the newest state: no snapshot of the past, no open transaction."""
        ...

    def kept_columns(self, table: ObjectId) -> Collection[str] | None:
        """Return the columns that only a table's log may fill; None for a table without a log."""
        ...

    def finalized(self, table: Table, number: int) -> None:
        """Note that a manifest has its final name, durably, in a registry that does not replace records."""
        ...

    def commit(self, changes: Sequence[Change]) -> None: ...


class CatalogState(Protocol):
    """A state of the catalog that a proposal can stand on."""

    def get(self, id: ObjectId) -> CatalogObject | None: ...

    def count_children(self, id: ObjectId) -> int: ...

    def versions(self, table: ObjectId) -> Sequence[int]: ...

    def newest_version(self, table: ObjectId) -> int: ...

    def location_holders(self, location: str) -> set[ObjectId]: ...


class Proposal:
    """Changes over a state, checked one after the other. A proposal is itself a state, so proposals stack."""

    def __init__(self, base: CatalogState) -> None:
        self.base = base
        self.changed: dict[ObjectId, CatalogObject | None] = {}
        self._children: Counter[ObjectId] = Counter()
        self._newest: dict[ObjectId, int] = {}
        self._thinned: set[ObjectId] = set()
        self.continued: dict[ObjectId, ObjectId] = {}
        """Return the ids, in the base state, of objects that were altered or moved, without new ones."""

    def get(self, id: ObjectId) -> CatalogObject | None:
        return self.changed[id] if id in self.changed else self.base.get(id)

    def count_children(self, id: ObjectId) -> int:
        return self.base.count_children(id) + self._children[id]

    def location_holders(self, location: str) -> set[ObjectId]:
        here = {id for id, item in self.changed.items() if isinstance(item, Table) and overlap(item.location, location)}
        return here | {id for id in self.base.location_holders(location) if id not in self.changed}

    def versions(self, table: ObjectId) -> Sequence[int]:
        numbers = set(self.base.versions(table))
        for id, item in self.changed.items():
            if id.names[:-1] == table.names and isinstance(item or self.base.get(id), Version):
                numbers.add(int(id.name)) if item else numbers.discard(int(id.name))
        return sorted(numbers)

    def newest_version(self, table: ObjectId) -> int:
        """Return `versions(table)[-1]`, without reading all versions unless this proposal removes some."""
        if table in self._thinned:
            return max(self.versions(table), default=0)
        return max(self.base.newest_version(table), self._newest.get(table, 0))

    def apply(self, changes: Sequence[Change]) -> None:
        """Add the changes to the proposal, or raise ConcurrentModification (14) at the first that does not hold."""
        for change in changes:
            self._apply(change)

    def absorb(self, other: Proposal) -> None:
        """Take over the changes of a proposal that stands on this one."""
        origins = {new: origin for new, old in other.continued.items() if (origin := self._origin(old)) is not None}
        self.continued = {id: old for id, old in self.continued.items() if id not in other.changed} | origins
        self.changed.update(other.changed)
        self._children.update(other._children)
        for table, number in other._newest.items():
            self._newest[table] = max(self._newest.get(table, 0), number)
        self._thinned |= other._thinned

    def _apply(self, change: Change) -> None:
        match change:
            case Add(item):
                self._require(self.get(item.id) is None, item.id, "it exists now")
                self._require_parent(item)
                self._set(item.id, item, 1)
            case Replace(old, item):
                self._require(self.get(old.id) == old and old.id == item.id, old.id, "it changed")
                if isinstance(old, Table) and (not isinstance(item, Table) or item.location != old.location):
                    self._forget_versions(old)
                self._continue(item.id, old.id, lambda: self._set(item.id, item, 0))
            case Remove(item):
                self._require(self.get(item.id) == item, item.id, "it changed")
                self._require(isinstance(item, Version) or not self.count_children(item.id), item.id, "it has children")
                self._forget_versions(item)
                self._set(item.id, None, -1)
            case Move(old, new):
                versions = self._versions_of(old)
                self._continue(new.id, old.id, lambda: self.apply([Remove(old, keep_data=True), Add(new)]))
                for version in versions:
                    moved = replace(version, id=new.id.child(version.id.name))
                    self._set(moved.id, moved, 0)
            case RequireLocation(location, table):
                self._require(not self.location_holders(location) - {table}, table, "its location is taken")
            case RequireTable(table, newest):
                self._require_table(table, newest)

    def _origin(self, id: ObjectId) -> ObjectId | None:
        """The id below of what has this id here; None for what was made in this proposal."""
        return self.continued.get(id) if id in self.changed else id

    def _continue(self, id: ObjectId, old: ObjectId, change: Callable[[], None]) -> None:
        """Make a change after which the object is the one that it was."""
        origin = self._origin(old)
        change()
        if origin is not None:
            self.continued[id] = origin

    def _versions_of(self, item: CatalogObject) -> list[Version]:
        numbers = self.versions(item.id) if isinstance(item, Table) else ()
        found = (self.get(item.id.child(str(number))) for number in numbers)
        return [version for version in found if isinstance(version, Version)]

    def _forget_versions(self, item: CatalogObject) -> None:
        for version in self._versions_of(item):
            self._set(version.id, None, 0)

    def _require_table(self, table: Table, newest: int) -> None:
        found = self.get(table.id)
        holds = isinstance(found, Table) and found.location == table.location
        self._require(holds, table.id, "it was dropped or made anew")
        current = self.newest_version(table.id)
        self._require(current == newest, table.id, f"its newest version is {current}")

    def _set(self, id: ObjectId, item: CatalogObject | None, count: int) -> None:
        counted = item or self.get(id)
        if not isinstance(counted, Version):
            self._children[id.parent] += count
        elif item is None:
            self._thinned.add(counted.table)
        else:
            self._newest[counted.table] = max(self._newest.get(counted.table, 0), counted.number)
        self.changed[id] = item
        self.continued.pop(id, None)

    def _require_parent(self, item: CatalogObject) -> None:
        expected = Table if isinstance(item, Version) else Namespace
        parent = item.id.parent
        holds = (parent.is_root and expected is Namespace) or isinstance(self.get(parent), expected)
        self._require(holds, item.id, "its parent is gone")

    @staticmethod
    def _require(holds: bool, id: ObjectId, reason: str) -> None:
        if not holds:
            raise ConcurrentModificationError(f"{id} was changed by another writer ({reason}): look again and retry.")


def overlap(first: str, second: str) -> bool:
    """Return True if one location is the other, or lies inside it."""
    shorter, longer = sorted((first.strip("/"), second.strip("/")), key=len)
    return longer == shorter or longer.startswith(shorter + "/")


def hashed_folder(id: ObjectId, hash: str) -> str:
    """Return `<hash>_<object_id>`, the folder of a table. The id is for people: readers use the location.

    Characters that object stores spell differently are replaced, and a long id is cut.
    """
    readable = _SAFE.sub("_", id.format(DELIMITER))
    return f"{hash}_{readable}"[:200]
