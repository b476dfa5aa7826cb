"""Reads of the catalog in one state: at a slot (`Snapshot`) or in an open transaction; and the change feed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence

from headwater.errors import TableNotFoundError, TableVersionNotFoundError, TransactionNotFoundError
from headwater.metastore.commit.log import Log
from headwater.metastore.commit.table_parts import (
    DELTA_FORMAT,
    ObjectRecord,
    Record,
    chosen_partition,
    find_only_partition,
    find_partition,
    find_stream,
    find_version,
    partition_values,
)
from headwater.metastore.records.disk_records import Node, own_values
from headwater.metastore.records.layout import ROOT_NODE
from headwater.metastore.records.objects import (
    Delta,
    Deltas,
    Dropped,
    DroppedFacts,
    History,
    Keys,
    Locator,
    Object,
    Objects,
    RevisionEntry,
    Revisions,
)
from headwater.metastore.state.history import history
from headwater.metastore.state.index import NAMED
from headwater.metastore.state.lookup import (
    dropped_locations,
    governing,
    identify,
    last_dropped,
    located,
    look_up,
    look_up_id,
    path_of,
    tables_near,
)
from headwater.metastore.state.slot_views import (
    IndexView,
    Item,
    Place,
    SlotView,
    children_of,
    object_of,
    part_of,
    place_at,
    resolve,
    resolve_namespace,
    resolve_table,
    root_properties,
    seek,
)
from headwater.names import ObjectId, object_id

Path = Sequence[str] | ObjectId
"""The names from the root to an object. An `ObjectId` is not checked again."""
Positions = list[int]


class Reading(ABC):
    """The reads that a snapshot and an open transaction answer in the same way.

    A part is named by its table's path and its id. Versions are the active one, and streams that of format `delta`,
    unless the caller names others. In a transaction each read is a dependency, and shows the transaction's own changes.
    """

    _log: Log

    @property
    @abstractmethod
    def slot(self) -> int:
        """The slot whose state this session reads."""

    def changed_since(self, slot: int) -> Collection[str] | None:
        """Return the keys of the namespaces and tables that were committed after a slot; None if all may have been."""
        index = self._ready().index
        return index.recent.changed_since(slot, index.slot)

    @abstractmethod
    def _ready(self) -> SlotView:
        """Return the state that is read, or raise if it was collected or the transaction has ended."""

    def _before_deltas(self, path: Path, format: str) -> None:
        """Called before the deltas of a stream are read, without the lock. A snapshot has nothing to do."""
        return

    # Namespaces and tables

    def get(self, path: Path) -> Object:
        with self._log.lock:
            view = self._ready()
            place = resolve(view, object_id(path))
            view.depend_on(place.key)
            return object_of(place)

    def exists(self, path: Path) -> bool:
        with self._log.lock:
            return exists(self._ready(), path)

    def list(self, path: Path = ()) -> Objects:
        """Return the namespaces and tables in a namespace, sorted by name."""
        with self._log.lock:
            view = self._ready()
            return children_of(view, resolve_namespace(view, object_id(path)))

    def names(self, path: Path, kind: str) -> Sequence[str]:
        """Return the sorted names of the children of a kind; not to be changed."""
        with self._log.lock:
            view = self._ready()
            return view.child_names(resolve_namespace(view, object_id(path)), kind)

    def root_properties(self) -> dict[str, object]:
        """Return the properties of the root namespace."""
        with self._log.lock:
            view = self._ready()
            view.depend_on(ROOT_NODE)
            return root_properties(view)

    def find(self, locator: Locator | str) -> Object | Delta:
        """Return the object or delta of a locator or Canonical String."""
        with self._log.lock:
            return look_up(self._ready(), self._log.segments, locator)

    def by_id(self, id: str) -> Object | Delta:
        """Return the namespace or table of an id, wherever it is then, or a part by `<table id>/<version>/...`."""
        with self._log.lock:
            return look_up_id(self._ready(), self._log.segments, id)

    def identify(self, path: Path, dropped: bool = False) -> tuple[str, ...]:
        """Return the keys from the root to what a path means, or to what was dropped there last."""
        with self._log.lock:
            return identify(self._ready(), object_id(path), dropped)

    def tables_near(self, folder: str) -> Sequence[tuple[str, ...]]:
        """Return the paths of the tables with a Lance dataset in a folder, inside of it or around it.

        In a transaction, a table that others bring there is a conflict.
        """
        with self._log.lock:
            view = self._ready()
            places = (place_at(view, key) for key in tables_near(view, folder))
            return [place.path for place in places if place is not None]

    def dropped_locations(self) -> Keys:
        """Return the folders of the Lance datasets of all that was dropped and is still kept."""
        with self._log.lock:
            return list(dropped_locations(self._ready().index))

    # Parts of tables

    def versions(self, path: Path) -> Objects:
        with self._log.lock:
            view = self._ready()
            table = resolve_table(view, object_id(path))
            return self._parts(view, table, table.key)

    def get_table_version(self, path: Path, id: str | None = None) -> Object:
        """Return a table version, the active one without an id."""
        with self._log.lock:
            view, table, item = self._version(path, id)
            return self._part(view, table, item)

    def streams(self, path: Path, version: str | None = None) -> Objects:
        with self._log.lock:
            view, table, above = self._version(path, version)
            return self._parts(view, table, above.node.key)

    def get_stream(
        self, path: Path, id: str | None = None, *, format: str = DELTA_FORMAT, version: str | None = None
    ) -> Object:
        with self._log.lock:
            view, table, item = self._stream(path, format, version, id)
            return self._part(view, table, item)

    def find_with_stream(self, path: Path, format: str, newest: bool = False) -> ObjectRecord | None:
        """Return an object, and if it is a table the record of its stream of a format; None if it does not exist.

        The record of a stream that the active version lacks has no properties. `newest`: with the last delta.
        """
        if newest:
            self._before_deltas(path, format)
        with self._log.lock:
            view = self._ready()
            place = seek(view, object_id(path))
            if isinstance(place, int):
                return None
            node, revision = place.item
            view.depend_on(node.key)
            record = newest_delta = version = None
            try:
                if node.kind == "table":
                    version = find_version(view, place, None)
                    stream = find_stream(view, place, version, format)
                    view.depend_on(stream.node.key)
                    record = Record(stream.node.home, stream.revision.properties)
                    newest_delta = view.newest_delta(self._log.segments, stream.node.key) if newest else None
            except (TableNotFoundError, TableVersionNotFoundError):
                record = version and Record(f"{version.node.home}/{format}", {})
            return ObjectRecord(node.key, node.kind, place.path, node.home, revision.properties, record, newest_delta)

    def partitions(
        self, path: Path, *, format: str = DELTA_FORMAT, version: str | None = None, stream: str | None = None
    ) -> Objects:
        with self._log.lock:
            view, table, item = self._stream(path, format, version, stream)
            return self._parts(view, table, item.node.key)

    # Deltas

    def deltas(
        self,
        path: Path,
        after: int = 0,
        *,
        format: str = DELTA_FORMAT,
        version: str | None = None,
        partition: Sequence[object] | None = None,
        stream: str | None = None,
        partition_id: str | None = None,
    ) -> Deltas:
        """Return the deltas of a table's stream after a position, in order; of one partition, by its values or its id.

        A transaction's own deltas come last. Those without a chosen position have a provisional one until it commits.
        """
        self._before_deltas(path, format)
        values = partition_values(partition)
        wanted = None if values is None and partition_id is None else chosen_partition(partition_id, values)
        with self._log.lock:
            view, table, item = self._stream(path, format, version, stream)
            return located(view, table, item, view.deltas(self._log.segments, item.node.key, after, wanted))

    def get_delta(
        self,
        path: Path,
        position: int,
        *,
        format: str = DELTA_FORMAT,
        version: str | None = None,
        stream: str | None = None,
        named: bool = True,
    ) -> Delta:
        """Return the delta at a position; without `named` it lacks locator, key and values, which cost a look-up."""
        self._before_deltas(path, format)
        with self._log.lock:
            view, table, item = self._stream(path, format, version, stream)
            found = view.delta(self._log.segments, item.node.key, position)
            if found is None:
                raise TableVersionNotFoundError(f"The stream {item.node.id!r} has no delta {position}.")
            return located(view, table, item, [found])[0] if named else found

    def newest_delta(
        self,
        path: Path,
        *,
        format: str = DELTA_FORMAT,
        version: str | None = None,
        stream: str | None = None,
        named: bool = True,
    ) -> Delta | None:
        """Return the last delta, None before the first; `named`: as in `get_delta`."""
        self._before_deltas(path, format)
        with self._log.lock:
            view, table, item = self._stream(path, format, version, stream)
            found = view.newest_delta(self._log.segments, item.node.key)
            return found if found is None or not named else located(view, table, item, [found])[0]

    def last_position(
        self, path: Path, *, format: str = DELTA_FORMAT, version: str | None = None, stream: str | None = None
    ) -> int:
        """Return the last position that was given out in a table's stream; 0 if there is none yet."""
        self._before_deltas(path, format)
        with self._log.lock:
            view, _, item = self._stream(path, format, version, stream)
            return view.last_position(self._log.segments, item.node.key)

    def positions(
        self, path: Path, *, format: str = DELTA_FORMAT, version: str | None = None, stream: str | None = None
    ) -> Positions:
        """Return the positions of all deltas of a stream, ascending."""
        self._before_deltas(path, format)
        with self._log.lock:
            view, _, item = self._stream(path, format, version, stream)
            return view.positions(self._log.segments, item.node.key)

    def last_positions(
        self, path: Path, count: int, before: int | None = None, *, format: str = DELTA_FORMAT
    ) -> Positions:
        """Return at most `count` positions of a stream, from the last (before one) back."""
        self._before_deltas(path, format)
        with self._log.lock:
            view, _, item = self._stream(path, format, None, None)
            return view.last_positions(self._log.segments, item.node.key, count, before)

    # Finding, with the lock held

    def _version(self, path: Path, version: str | None) -> tuple[SlotView, Place, Item]:
        view = self._ready()
        table = resolve_table(view, object_id(path))
        return view, table, find_version(view, table, version)

    def _stream(self, path: Path, format: str, version: str | None, stream: str | None) -> tuple[SlotView, Place, Item]:
        view, table, above = self._version(path, version)
        return view, table, find_stream(view, table, above, format, stream)

    def _partition(
        self, path: Path, id: str, format: str, version: str | None, stream: str | None
    ) -> tuple[SlotView, Place, Item]:
        if stream is None:
            view, table, above = self._version(path, version)
            return view, table, find_only_partition(view, table, above, format, id)
        view, table, above = self._stream(path, format, version, stream)
        return view, table, find_partition(view, table, above, id)

    def _part(self, view: SlotView, table: Place, item: Item) -> Object:
        view.depend_on(item.node.key)
        return part_of(view, table, item.node.key)

    def _parts(self, view: SlotView, table: Place, key: str) -> Objects:
        view.depend_on_children(key)
        return [part_of(view, table, part) for part in view.parts(key)]


class Snapshot(Reading):
    """The catalog as it is at one slot. Later commits do not show."""

    def __init__(self, log: Log, view: IndexView) -> None:
        self._log = log
        self._view = view

    @property
    def slot(self) -> int:
        return self._view.at

    @property
    def view(self) -> IndexView:
        """Return the index view of this slot. Raises InvalidInput once the slot was collected."""
        return self._ready()

    def dropped(self) -> DroppedFacts:
        """Return the dropped objects that can be brought back, newest first. Of objects dropped together it returns the
        topmost, of those with the same name the last, and none whose name or namespace is taken or gone.
        """
        with self._log.lock:
            view = self._ready()
            found: dict[tuple[str, ...], Dropped] = {}
            for parent in view.index.past.firsts():
                place = path_of(view, parent)
                for key in list(view.index.past.of(parent)) if place is not None else ():
                    item = view.item(key, dropped=True)
                    if place is None or item is None or item.revision.alive or item.revision.parent != parent:
                        continue
                    if item.node.kind not in NAMED:
                        continue
                    path, revision = (*place, item.revision.name), item.revision
                    known = found.get(path)
                    if not exists(view, path) and (known is None or known.slot < revision.slot):
                        found[path] = Dropped(item.node.kind, path, revision.slot, revision.txn, revision.time)
            return sorted(found.values(), key=lambda one: -one.slot)

    def named_keys(self) -> set[str]:
        """Return the keys of namespaces and tables, some of which may be dropped by now."""
        with self._log.lock:
            return {node.key for node in self._ready().index.nodes() if node.kind in NAMED}

    def searchable(self, keys: Iterable[str] | None = None) -> dict[str, tuple[str, str]]:
        """Return the names and the properties of namespaces and tables (of some, by their keys), in small letters."""
        with self._log.lock:
            view, found = self._ready(), dict[str, tuple[str, str]]()
            for key in [node.key for node in view.index.nodes()] if keys is None else keys:
                item = view.item(key) if "/" not in key else None
                if item is not None and item.node.kind in NAMED:
                    values = "\n".join(f"{name}={value}" for name, value in item.revision.properties.items())
                    found[key] = item.revision.name.casefold(), values.casefold()
            return found

    def history(self, path: Path) -> History:
        """Return every transaction that touched the object at this path, or the one dropped there last, or a part of
        it."""
        return history(self._log, self._node(path).key, self._view.at)

    def revisions(self, path: Path) -> Revisions:
        """Return every revision kept of the object at this path, or of the one dropped there last, oldest first."""
        with self._log.lock:
            node = self._node(path)
            return [
                RevisionEntry(
                    revision.number,
                    revision.operation,
                    revision.name,
                    own_values(revision.properties),
                    revision.aliases,
                    revision.slot,
                    revision.txn,
                    revision.time,
                )
                for revision in node.versions
                if revision.slot <= self._view.at
            ]

    def _node(self, path: Path) -> Node:
        with self._log.lock:
            id = object_id(path)
            dropped = None if exists(self._ready(), path) or id.is_root else last_dropped(self._view, id)
            return dropped.node if dropped is not None else resolve(self._view, id).item.node

    def governing(self, keys: Sequence[str]) -> tuple[str, ...]:
        """Return the name by which an object is decided about at this slot, by its keys."""
        with self._log.lock:
            return governing(self._ready(), keys)

    def _ready(self) -> IndexView:
        if self._view.at < self._view.index.boundary:
            raise TransactionNotFoundError(f"Slot {self._view.at} was collected: take a newer snapshot.")
        return self._view


def exists(view: SlotView, path: Path) -> bool:
    return not isinstance(seek(view, object_id(path)), int)
