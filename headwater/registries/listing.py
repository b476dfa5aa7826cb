"""The registry of directory V1: a table is a folder of the root, and the storage itself is the catalog.

Two layouts: `<name>.lance` folders that are not empty (directory document), and the bare, possibly empty
folders of the early document (lance-catalog-early.md, "Table Existence").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from heapq import nsmallest

from headwater.clock import Clock
from headwater.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    LanceNamespaceError,
    PermissionDeniedError,
    UnsupportedOperationError,
)
from headwater.metastore.commit.root_kinds import MANIFEST, TABLE_SUFFIX
from headwater.model import SEEN, Add, CatalogObject, Change, Move, Remove, RequireLocation, Table
from headwater.names import ObjectId
from headwater.registries.folders import (
    FolderMarkers,
    folder_exists,
    folder_names,
    folder_status,
    is_certain,
    is_table_folder,
    unmarked,
)
from headwater.registries.layout import (
    DEREGISTERED_MARKER,
    MARKER_BODY,
    MAX_FOLDER_BYTES,
    RESERVED_MARKER,
    check_directory,
    is_reserved,
)
from headwater.registries.manifest.format import freshness_of, parse_manifest
from headwater.registries.manifest.state import parse_settings
from headwater.registry import Capabilities, Kind, Registry
from headwater.store import KeyExistsError, KeyNotFoundError, PutMode, Store
from headwater.tables.layout import VERSIONS, discard_files, discard_folder, has_version, manifest_name

FIRST_LOOKS = 32
SLOW_LOOK_S = 0.000_04
LOOKERS = 32
SHARE = 64
"""The number of folders that one thread checks in a call."""


class ListingRegistry(Registry):
    """A registry whose tables are folders, without namespaces and properties."""

    def __init__(self, store: Store, clock: Clock, early: bool = False, looked: bool = False) -> None:
        self.store = store
        self.clock = clock
        self.early = early
        self._suffix = "" if early else TABLE_SUFFIX
        self._looked = looked
        """True once the root is known to be a directory catalog."""

    @property
    def capabilities(self) -> Capabilities:
        movable = self.store.abilities.move_folder is not None
        return Capabilities(
            namespaces=False,
            properties=False,
            rename=movable,
            register_anywhere=False,
            folders_are_tables=self.early,
            markers=FolderMarkers(self.store, self.deregistered, strict=self.early),
        )

    def find(
        self, ids: Iterable[ObjectId], seen: bool = True, newest: bool = False
    ) -> Mapping[ObjectId, CatalogObject]:
        """Return the tables whose folders exist. This catalog has no records."""
        return {id: self._table(id.name) for id in ids if seen and id.level == 1 and self.is_table(id.name)}

    def children(self, parent: ObjectId, kind: Kind, after: str, limit: int | None) -> Sequence[str]:
        if kind is not Kind.TABLE or not parent.is_root:
            return []
        names = self.names_after(after, limit)
        if limit is None:
            return self._all_shown(list(names))
        found: list[str] = []
        for name in names:
            if len(found) == limit:
                break
            if self.is_shown(name):
                found.append(name)
        return found

    def descendants(self, parent: ObjectId) -> Sequence[CatalogObject]:
        return [self._table(name) for name in self.children(parent, Kind.TABLE, "", None)]

    def deregistered(self, id: ObjectId) -> Table | None:
        """Return the deregistered table of this name."""
        hidden = id.level == 1 and folder_status(self.store, id.name + self._suffix).deregistered
        return self._table(id.name) if hidden else None

    def location_holders(self, location: str) -> set[ObjectId]:
        return set()

    def place(self, id: ObjectId, hash: str) -> str:
        folder = id.name + self._suffix
        if is_reserved(folder):
            raise InvalidInputError(f"The name {id.name!r} cannot be used: that folder belongs to the catalog itself.")
        if len(folder.encode()) > MAX_FOLDER_BYTES:
            most = MAX_FOLDER_BYTES - len(self._suffix)
            raise InvalidInputError(f"A table name has at most {most} bytes where its folder is named after it.")
        return folder

    def check_writable(self) -> None:
        """Raise InvalidInput (13) for a table whose versions are rows of a manifest: the write would be lost."""
        check_directory(self.store)
        newest = freshness_of(self.store).newest()
        if newest is None:
            return
        try:
            manifest = parse_manifest(self.store.get(f"{MANIFEST}/{VERSIONS}/{manifest_name(*newest)}"))
        except (KeyNotFoundError, ValueError):
            return
        if parse_settings(manifest.metadata).manages_versions:
            raise InvalidInputError(
                "This catalog manages the versions of its tables: what is written without its manifest would be "
                "discarded. Open it without manifest_enabled=false."
            )

    def commit(self, changes: Sequence[Change]) -> None:
        """Make one change of a folder. A V1 catalog cannot make several of them atomic.

        A change that a concurrent upgrade may have missed raises an error.
        """
        self._look()
        for change in changes:
            self._commit(change)
        check_directory(self.store)

    def names_after(self, after: str, limit: int | None = None) -> Iterator[str]:
        """Yield the names of folders that may be tables, sorted by bytes. A limit saves the full sort."""
        self._look()
        folders = folder_names(self.store)
        if self.early:
            found = [name for name in folders if not is_reserved(name)]
        else:  # no reserved name has the suffix
            found = [name[: -len(TABLE_SUFFIX)] for name in folders if name.endswith(TABLE_SUFFIX)]
        if after:
            found = [name for name in found if name > after]
        if limit is None or 4 * limit > len(found):
            yield from sorted(found)
            return
        first = nsmallest(2 * limit, found)
        yield from first
        yield from sorted(name for name in found if name > first[-1])

    def is_table(self, name: str) -> bool:
        self._look()
        if not self._may_be_table(name):
            return False
        folder = name + self._suffix
        if is_table_folder(self.store, folder):
            return True
        return self.early and folder_exists(self.store, folder) and not folder_status(self.store, folder).deregistered

    def _may_be_table(self, name: str) -> bool:
        folder = name + self._suffix
        return bool(name) and not is_reserved(folder) and _is_folder_name(folder)

    def is_shown(self, name: str) -> bool:
        """Return True if a listing shows the name. A folder that cannot be read is shown."""
        try:
            return self.is_table(name)
        except PermissionDeniedError:
            return True

    def _all_shown(self, names: Sequence[str]) -> list[str]:
        """Return the names that a listing shows. Looks overlap where the first take long (a cold disk, far storage).

        From memory a look is so short that threads only stand in each other's way.
        """
        started = self.clock.monotonic()
        found = self._shown(names[:FIRST_LOOKS])
        left = names[FIRST_LOOKS:]
        if not left or self.clock.monotonic() - started < FIRST_LOOKS * SLOW_LOOK_S:
            return found + self._shown(left)
        with ThreadPoolExecutor(LOOKERS) as pool:
            looked = [name for share in pool.map(self._unmarked, _shares(left)) for name in share]
            shown = {name for name in looked if is_certain(self.store, name + self._suffix)}
            others = [name for name in left if name not in shown]
            shown.update(name for share in pool.map(self._shown, _shares(others)) for name in share)
        return found + [name for name in left if name in shown]

    def _shown(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if self.is_shown(name)]

    def _unmarked(self, names: Sequence[str]) -> list[str]:
        folders = {name + self._suffix: name for name in names if self._may_be_table(name)}
        return [folders[folder] for folder in unmarked(self.store, list(folders))]

    def mark_deregistered(self, folder: str) -> bool:
        """Hide the table in the folder. Returns False if it was hidden already."""
        try:
            self.store.put(f"{folder}/{DEREGISTERED_MARKER}", MARKER_BODY, PutMode.CREATE)
        except KeyExistsError:
            return False
        return True

    def unmark_deregistered(self, folder: str) -> None:
        self.store.delete(f"{folder}/{DEREGISTERED_MARKER}")

    def _look(self) -> None:
        """Once, before the folders are believed: a metastore's are no catalog of this kind, nor are half of them."""
        if not self._looked:
            check_directory(self.store)
            self._looked = True

    def _table(self, name: str) -> Table:
        return Table(ObjectId((name,)), name + self._suffix, known=SEEN)

    def _commit(self, change: Change) -> None:
        match change:
            case Add(Table() as table):
                self._add(table)
            case Remove(Table() as table, keep_data=True):
                if not self.mark_deregistered(table.location):
                    raise ConcurrentModificationError(f"{table.id} was deregistered by another writer.")
            case Remove(Table() as table):
                if not discard_folder(self.store, table.location, self.clock):
                    raise ConcurrentModificationError(f"{table.id} was dropped by another writer.")
            case Move(Table() as old, Table() as new):
                self._move(old, new)
            case RequireLocation():
                pass
            case _:
                raise UnsupportedOperationError(
                    "A directory catalog without a manifest has only tables: set manifest_enabled=true for namespaces."
                )

    def _add(self, table: Table) -> None:
        if has_version(
            self.store, table.location
        ):  # RegisterTable of a deregistered table, or CreateTable, which has written it.
            self.unmark_deregistered(table.location)
            return
        try:
            self.store.put(f"{table.location}/{RESERVED_MARKER}", MARKER_BODY, PutMode.CREATE)
        except KeyExistsError:
            raise ConcurrentModificationError(f"{table.id} was declared by another writer: look again.") from None
        except LanceNamespaceError:
            discard_files(self.store, table.location, ())
            raise

    def _move(self, old: Table, new: Table) -> None:
        move_folder = self.store.abilities.move_folder
        if move_folder is None:
            raise UnsupportedOperationError(
                "Renaming moves the table's folder, impossible in one step here: set manifest_enabled=true."
            )
        try:
            move_folder(old.location, new.id.name + self._suffix)
        except (KeyExistsError, KeyNotFoundError):
            raise ConcurrentModificationError(f"{old.id} or {new.id} was changed by another writer.") from None


def _shares(names: Sequence[str]) -> list[Sequence[str]]:
    return [names[start : start + SHARE] for start in range(0, len(names), SHARE)]


def _is_folder_name(folder: str) -> bool:
    """Return True for a name that is short enough and Unicode: other file names arrive with surrogates."""
    if folder.isascii():
        return len(folder) <= MAX_FOLDER_BYTES
    has_surrogates = any(0xD800 <= ord(char) < 0xE000 for char in folder)
    return not has_surrogates and len(folder.encode()) <= MAX_FOLDER_BYTES
