"""A transaction as its user holds it: reads at one snapshot, writes that become visible all at once, or never."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from headwater.clock import Clock
from headwater.errors import (
    InvalidInputError,
    LanceNamespaceError,
    NamespaceNotFoundError,
    TableNotFoundError,
    TableTagNotFoundError,
)
from headwater.metastore import edits, snapshots, table_parts
from headwater.metastore.dataset_folders import tables_near
from headwater.metastore.draft import Draft
from headwater.metastore.layout import ROOT_NODE, snapshot_node
from headwater.metastore.locator import Locator
from headwater.metastore.log import Log
from headwater.metastore.lookup import look_up, look_up_id
from headwater.metastore.objects import Delta, Object, Objects, UndoStep
from headwater.metastore.records import Revision, Txn, own_properties
from headwater.metastore.rules import Header, refused
from headwater.metastore.slot_views import (
    Place,
    SlotView,
    children_of,
    object_of,
    place_at,
    resolve,
    resolve_namespace,
    resolve_table,
    root_properties,
)
from headwater.metastore.table_edits import Path, TableEdits, locked
from headwater.metastore.table_parts import DELTA_FORMAT, FIRST_VERSION
from headwater.metastore.undo import Columns, Restores, Undo, Void
from headwater.metastore.whereabouts import identify
from headwater.names import object_id
from headwater.table_refs import Ref, held_versions, is_written, read_refs


class Transaction(TableEdits):
    """Made by `Metastore.transaction`. Commits when its block ends, rolls back when the block raises."""

    def __init__(
        self,
        draft: Draft,
        log: Log,
        clock: Clock,
        header: Header,
        commit: Callable[[Transaction], int],
    ) -> None:
        self.header = header
        self.draft = draft
        self.slot: int | None = None
        self._log = log
        self._clock = clock
        self._commit = commit
        self._open = True

    @property
    def id(self) -> str:
        return self.header.id

    # Namespaces and tables

    @locked
    def create_namespace(self, path: Path, properties: Mapping[str, Any] | None = None) -> Object:
        return object_of(self._create(path, "namespace", properties))

    @locked
    def create_table(
        self,
        path: Path,
        properties: Mapping[str, Any] | None = None,
        version: str = FIRST_VERSION,
        formats: Sequence[str] = (DELTA_FORMAT,),
        id: str | None = None,
    ) -> Object:
        """A table with its first table version and one stream for each format.

        `id`: a fresh uuid of the caller's, who has written files for the table already.
        """
        table_parts.check_parts(version, formats)
        table = self._create(path, "table", properties, id)
        self._create_version(table, version, {}, formats)
        return object_of(table)

    @locked
    def update(self, path: Path, properties: Mapping[str, Any]) -> Object:
        """Replace the properties: afterwards they are exactly these."""
        edits.update(self._checked(), object_id(path), own_properties(properties))
        return self.get(path)

    @locked
    def root_properties(self) -> dict[str, Any]:
        """The properties of the root namespace."""
        self._checked().relied_on(ROOT_NODE)
        return root_properties(self.draft)

    @locked
    def update_root(self, properties: Mapping[str, Any]) -> None:
        """Replace the properties of the root namespace: afterwards they are exactly these."""
        edits.update_root(self._checked(), own_properties(properties))

    @locked
    def identify(self, path: Path, dropped: bool = False) -> tuple[str, ...]:
        """The keys from the root to what a path means here, or to what was dropped there last (`whereabouts`)."""
        return identify(self.draft, object_id(path), dropped)

    @locked
    def rename(self, path: Path, new_path: Path) -> None:
        """Rename or move a namespace or table. The ids and directories of all below it stay."""
        edits.rename(self._checked(), object_id(path), object_id(new_path))

    @locked
    def alias(self, path: Path, alias: str) -> None:
        """Let the object be found under one more name beside its own."""
        edits.alias(self._checked(), object_id(path), alias)

    @locked
    def unalias(self, path: Path, alias: str) -> None:
        edits.unalias(self._checked(), object_id(path), alias)

    @locked
    def drop(self, path: Path, cascade: bool = False) -> None:
        """Drop a table, an empty namespace, or with cascade a namespace and all below it."""
        edits.drop(self._checked(), object_id(path), cascade)

    @locked
    def undrop(self, path: Path) -> Object:
        """Bring back what was dropped last at this path, or InvalidTableState (19) if its files are another's now."""
        before = self._checked().copy()
        try:
            return object_of(edits.undrop(self.draft, object_id(path)))
        except LanceNamespaceError:
            self.draft = before
            raise

    @locked
    def undo(
        self,
        number: int,
        txn: Txn,
        void: Void | None = None,
        restores: Restores | None = None,
        columns: Columns | None = None,
    ) -> list[UndoStep]:
        """Undo a transaction of a slot: all it touched is as before, or InvalidTableState (19) with the reasons.

        `restores` is told of the Lance versions that are left to make.
        """
        before = self._checked().copy()
        try:
            fresh, segments = self._clock.hex(8), self._log.segments
            held, written = self._held, self._is_written
            return Undo(self.draft, segments, number, txn, fresh, void, held, written, restores, columns).run()
        except LanceNamespaceError:
            self.draft = before
            raise

    def _held(self, location: str) -> Mapping[int, Ref]:
        return held_versions(read_refs(self._log.store, location), None)

    def _is_written(self, location: str, branch: str) -> bool:
        return is_written(self._log.store, location, branch)

    # Named snapshots

    @locked
    def create_snapshot(self, name: str, file: str) -> None:
        """The record of a snapshot of the state this transaction began with, whose file is written."""
        snapshots.create(self._checked(), name, {snapshots.FILE: file, snapshots.SLOT: self.draft.base.at})

    @locked
    def snapshot(self, name: str, tables: Sequence[Path] | None = None) -> None:
        """Pin what all tables, or these, are once this transaction is committed: the state at its own slot."""
        draft = self._checked()
        keys = None if tables is None else [resolve_table(draft, object_id(path)).key for path in tables]
        snapshots.create(draft, name, {snapshots.FILE: self._clock.uuid(), snapshots.TABLES: keys})

    @locked
    def snapshots(self) -> tuple[Revision, ...]:
        """The records of the named snapshots there are, with those that the transaction takes itself."""
        found = (self._checked().item(key) for key in self.draft.parts(""))
        return tuple(item.revision for item in found if item is not None)

    @locked
    def drop_snapshot(self, name: str) -> None:
        item = self._checked().part(snapshot_node(name))
        if item is None:
            raise TableTagNotFoundError(f"There is no snapshot {name!r}.")
        snapshots.drop(self.draft, item)

    # Reading

    @locked
    def get(self, path: Path) -> Object:
        place = resolve(self._checked(), object_id(path))
        self.draft.relied_on(place.key)
        return object_of(place)

    @locked
    def exists(self, path: Path) -> bool:
        return exists(self._checked(), path)

    @locked
    def list(self, path: Path = ()) -> Objects:
        return children_of(self.draft, resolve_namespace(self._checked(), object_id(path)))

    @locked
    def find(self, locator: Locator | str) -> Object | Delta:
        """The object or delta of a locator or Canonical String."""
        return look_up(self._checked(), self._log.segments, locator)

    @locked
    def by_id(self, id: str) -> Object | Delta:
        """The namespace or table of an id, wherever it is now, or a part of a table by `<table id>/<version>/...`."""
        return look_up_id(self._checked(), self._log.segments, id)

    @locked
    def tables_near(self, folder: str) -> Sequence[tuple[str, ...]]:
        """The tables with a Lance dataset in a folder, inside of it or around it, by their paths; that there are no
        others is relied on."""
        places = (place_at(self.draft, key) for key in tables_near(self._checked(), folder))
        return [place.path for place in places if place is not None]

    # Ending

    def commit(self) -> int:
        """Commit now; the slot that holds the transaction (the snapshot's, if nothing was changed)."""
        self._checked()
        self._open = False
        self.slot = self._commit(self)
        return self.slot

    def rollback(self) -> None:
        """Forget all changes. Nothing was written anywhere."""
        self._open = False

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.rollback()
        elif self._open:
            self.commit()

    # Finding

    def _checked(self) -> Draft:
        if not self._open:
            raise InvalidInputError("This transaction has ended: begin a new one.")
        if self.draft.base.at < self.draft.base.index.boundary:
            raise refused("its snapshot was collected")
        return self.draft

    def _create(self, path: Path, kind: str, properties: Mapping[str, Any] | None, key: str | None = None) -> Place:
        made = key or self._clock.uuid()
        return edits.create(self._checked(), object_id(path), kind, made, own_properties(properties))


def exists(view: SlotView, path: Path) -> bool:
    place_id = object_id(path)
    try:
        resolve(view, place_id)
    except (NamespaceNotFoundError, TableNotFoundError):
        return False
    return True
