"""The registry of compatibility mode: rows of the manifest (V2), and table folders of the root without a row (V1).

Rows take precedence. A folder that a row points to is only that row's table, whatever the folder's name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import merge
from itertools import chain

from headwater.errors import ConcurrentModificationError, LanceNamespaceError
from headwater.metastore.commit.root_kinds import TABLE_SUFFIX
from headwater.model import SEEN, Add, CatalogObject, Change, Move, Remove, Replace, Table
from headwater.names import ObjectId
from headwater.registries.folders import FolderMarkers
from headwater.registries.layout import MAX_FOLDER_BYTES, table_folder
from headwater.registries.listing import ListingRegistry
from headwater.registries.manifest import ManifestRegistry
from headwater.registry import Capabilities, Kind, Registry


class CompatRegistry(Registry):
    """A registry over a manifest (V2) and a listing (V1)."""

    def __init__(self, manifest: ManifestRegistry, listing: ListingRegistry) -> None:
        self.manifest = manifest
        self.listing = listing
        self._flaggable = False
        self._capabilities = replace(
            manifest.capabilities,
            current_state=self.current_state,
            markers=FolderMarkers(listing.store, self.deregistered),
        )

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def current_state(self, id: ObjectId) -> object | None:
        """Return the manifest's state for an id with a row there; None for others, which need a listing of the root."""
        return self.manifest.current_state(id) if self.manifest.recalls(id) else None

    def find(
        self, ids: Iterable[ObjectId], seen: bool = True, newest: bool = False
    ) -> Mapping[ObjectId, CatalogObject]:
        """Return the objects of these ids. A table without a row is never managed by the catalog."""
        asked = list(ids)
        found = dict(self.manifest.find(asked, newest=newest))
        for id in asked if seen else ():
            if id not in found and id.level == 1 and self._is_listed(id.name):
                found[id] = Table(id, table_folder(id.name), known=SEEN)
        return found

    def children(self, parent: ObjectId, kind: Kind, after: str, limit: int | None) -> Sequence[str]:
        rows = self.manifest.children(parent, kind, after, limit)
        if kind is Kind.NAMESPACE or not parent.is_root:
            return rows
        known = set(rows)
        candidates = (name for name in self.listing.names_after(after, limit) if name not in known)
        first = next(candidates, None)
        if first is None:  # no folder without a row, as in most catalogs
            return rows
        found: list[str] = []
        for name in merge(rows, chain((first,), candidates)):
            if limit is not None and len(found) == limit:
                break
            if name in known or self._is_shown(name):
                found.append(name)
        return found

    def descendants(self, parent: ObjectId) -> Sequence[CatalogObject]:
        rows = self.manifest.descendants(parent)
        if not parent.is_root:
            return rows
        known = {item.id for item in rows}
        return [
            *rows,
            *(item for item in self.listing.descendants(parent) if item.id not in known and self._is_free(item)),
        ]

    def location_holders(self, location: str) -> set[ObjectId]:
        """Return the tables at a location: those with rows, and a V1 table whose folder holds the location."""
        holders = self.manifest.location_holders(location)
        folder, slash, _ = location.partition("/")
        name = folder.removesuffix(TABLE_SUFFIX)
        if slash and name != folder and self._is_listed(name):
            return holders | {ObjectId((name,))}
        return holders

    def deregistered(self, id: ObjectId) -> Table | None:
        """Return the deregistered table of this name, unless a row points to its folder."""
        hidden = self.listing.deregistered(id)
        return hidden if hidden is not None and self._is_free(hidden) else None

    def place(self, id: ObjectId, hash: str) -> str:
        """Return `<name>.lance` in the root, unless another table, also a deregistered one, uses that folder."""
        folder = table_folder(id.name)
        fits = id.level == 1 and len(folder.encode()) <= MAX_FOLDER_BYTES
        if fits and not self.location_holders(folder) - {id} and not self.listing.deregistered(id):
            return folder
        return self.manifest.place(id, hash)

    def alter_root(self, properties: Mapping[str, str], removed: Collection[str]) -> None:
        self.manifest.alter_root(properties, removed)

    def commit(self, changes: Sequence[Change]) -> None:
        """Commit all rows at once. The marker that hides a folder is written before its row is removed."""
        listed = self._listed_only(changes)
        for item in (change.object for change in changes if isinstance(change, Add)):
            if item.id.level == 1 and item.id not in listed and self._is_other_table(item):
                raise ConcurrentModificationError(f"{item.id} was created by another writer: look again.")
        rows = [_as_row(change) if _id(change) in listed else change for change in changes]
        hidden = [item.location for item in self._hidden(changes, listed)]
        # A marker that is there was left by a writer that died, or belongs to one at work, which may take it back.
        mine = [location for location in hidden if self.listing.mark_deregistered(location)]
        try:
            kept = [change for change in rows if change is not None]
            if kept:
                self.manifest.commit(kept)
        except LanceNamespaceError:
            for location in mine:
                self.listing.unmark_deregistered(location)
            raise
        for location in hidden:
            if location not in mine:
                self.listing.mark_deregistered(location)
        self._end([change for change in changes if isinstance(change, Remove) and _id(change) in listed])

    def _end(self, folders: Sequence[Change]) -> None:
        """Remove the tables that have no row. What an upgrade may not have seen is not acknowledged.

        It sees all that is in a manifest which was there when it began: its flag comes first, or the row. Whoever
        has found no upgrade at work after the manifest was there need not look again.
        """
        is_there = self.manifest.is_there
        if folders or not self._flaggable:
            self.listing.commit(folders)
        self._flaggable = is_there

    def _is_listed(self, name: str) -> bool:
        return self.listing.is_table(name) and not self.manifest.location_holders(table_folder(name))

    def _is_shown(self, name: str) -> bool:
        return self.listing.is_shown(name) and not self.manifest.location_holders(table_folder(name))

    def _is_free(self, item: CatalogObject) -> bool:
        return isinstance(item, Table) and not self.manifest.location_holders(item.location)

    def _is_other_table(self, item: CatalogObject) -> bool:
        """Return True if a V1 table has this name, and its folder is not the one being added to the manifest."""
        folder = table_folder(item.id.name)
        return self._is_listed(item.id.name) and not (isinstance(item, Table) and item.location == folder)

    def _listed_only(self, changes: Sequence[Change]) -> set[ObjectId]:
        """Return the tables without a row among those that are removed."""
        gone = {id for change in changes if (id := _id(change)) is not None and id.level == 1}
        if not gone:
            return gone
        return {id for id in gone - self.manifest.find(gone).keys() if self._is_listed(id.name)}

    def _hidden(self, changes: Sequence[Change], listed: set[ObjectId]) -> list[Table]:
        """Return tables whose row goes while their folder, theirs alone, stays where listings would still find it."""
        gone = (change.object for change in changes if isinstance(change, Remove))
        return [
            item
            for item in gone
            if isinstance(item, Table)
            and item.id not in listed
            and item.location.endswith(table_folder(""))
            and not self.manifest.location_holders(item.location) - {item.id}
        ]


def _id(change: Change) -> ObjectId | None:
    match change:
        case Remove(item):
            return item.id
        case Move(old, _) | Replace(old, _):
            return old.id
        case _:
            return None


def _as_row(change: Change) -> Change | None:
    """Return the change of the manifest for a table without a row; None if there is none."""
    match change:
        case Move(_, new):
            return Add(new)
        case Replace(_, item):
            return Add(item)
        case _:
            return None
