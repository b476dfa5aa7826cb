"""Reading at one slot, and the change feed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from headwater.errors import TransactionNotFoundError
from headwater.metastore.dataset_folders import dropped_locations, tables_near_at
from headwater.metastore.deltas import last_position
from headwater.metastore.draft import Draft
from headwater.metastore.edits import last_dropped
from headwater.metastore.history import entries_of, history
from headwater.metastore.index import NAMED
from headwater.metastore.locator import Locator
from headwater.metastore.log import Log
from headwater.metastore.lookup import look_up, look_up_id
from headwater.metastore.objects import (
    Delta,
    Deltas,
    Dropped,
    DroppedFacts,
    History,
    Keys,
    LogEntry,
    Object,
    Objects,
    RevisionEntry,
    Revisions,
)
from headwater.metastore.records import Node
from headwater.metastore.slot_views import (
    IndexView,
    Item,
    Place,
    children_of,
    names_of,
    object_of,
    own_values,
    part_of,
    place_at,
    resolve,
    resolve_namespace,
    resolve_table,
    root_properties,
)
from headwater.metastore.table_edits import (
    Path,
    Positions,
    delta_at,
    deltas_of,
    last_delta,
    last_positions,
    positions_of,
    with_stream,
)
from headwater.metastore.table_parts import (
    DELTA_FORMAT,
    Record,
    chosen_partition,
    find_partition,
    find_stream,
    find_version,
    partition_values,
)
from headwater.metastore.transaction import exists
from headwater.metastore.whereabouts import governing, identify, path_of
from headwater.names import object_id


class Snapshot:
    """The catalog as it is at one slot. Later commits do not show."""

    def __init__(self, log: Log, view: IndexView) -> None:
        self._log = log
        self._view = view

    @property
    def slot(self) -> int:
        return self._view.at

    @property
    def view(self) -> IndexView:
        """What it reads, as the rules see it; refused once it was collected."""
        return self._ready()

    def get(self, path: Path) -> Object:
        with self._log.lock:
            return object_of(resolve(self._ready(), object_id(path)))

    def root_properties(self) -> dict[str, Any]:
        """The properties of the root namespace."""
        with self._log.lock:
            return root_properties(self._ready())

    def exists(self, path: Path) -> bool:
        with self._log.lock:
            return exists(self._ready(), path)

    def list(self, path: Path = ()) -> Objects:
        with self._log.lock:
            return children_of(self._view, resolve_namespace(self._ready(), object_id(path)))

    def find(self, locator: Locator | str) -> Object | Delta:
        """The object or delta of a locator or Canonical String."""
        with self._log.lock:
            return look_up(self._ready(), self._log.segments, locator)

    def by_id(self, id: str) -> Object | Delta:
        """The namespace or table of an id, wherever it is then, or a part of a table by `<table id>/<version>/...`."""
        with self._log.lock:
            return look_up_id(self._ready(), self._log.segments, id)

    def deltas(
        self,
        path: Path,
        after: int = 0,
        *,
        format: str = DELTA_FORMAT,
        version: str | None = None,
        partition: Sequence[Any] | None = None,
        stream: str | None = None,
        partition_id: str | None = None,
    ) -> Deltas:
        with self._log.lock:
            _, item = self._stream(path, format, version, stream)
            values = partition_values(partition)
            wanted = None if values is None and partition_id is None else chosen_partition(partition_id, values)
            return deltas_of(self._log.segments, self._view, item.node.key, after, wanted)

    def get_delta(
        self,
        path: Path,
        position: int,
        *,
        format: str = DELTA_FORMAT,
        version: str | None = None,
        stream: str | None = None,
    ) -> Delta:
        with self._log.lock:
            _, item = self._stream(path, format, version, stream)
            return delta_at(self._log.segments, self._view, item.node.key, position)

    def newest_delta(
        self, path: Path, *, format: str = DELTA_FORMAT, version: str | None = None, stream: str | None = None
    ) -> Delta | None:
        with self._log.lock:
            _, item = self._stream(path, format, version, stream)
            return last_delta(self._log.segments, self._view, item.node.key)

    def positions(
        self, path: Path, *, format: str = DELTA_FORMAT, version: str | None = None, stream: str | None = None
    ) -> Positions:
        """The positions of all deltas of a stream, ascending."""
        with self._log.lock:
            _, item = self._stream(path, format, version, stream)
            return positions_of(self._log.segments, self._view, item.node.key)

    def last_positions(
        self, path: Path, count: int, before: int | None = None, *, format: str = DELTA_FORMAT
    ) -> Positions:
        """At most so many positions of a stream, from the last (before one) back."""
        with self._log.lock:
            _, item = self._stream(path, format, None, None)
            return last_positions(self._log.segments, self._view, item.node.key, before, count)

    def names(self, path: Path, kind: str) -> Sequence[str]:
        """The names of the children of a kind, sorted; not to be changed."""
        with self._log.lock:
            return names_of(self._view, resolve_namespace(self._ready(), object_id(path)), kind)

    def tables_near(self, folder: str) -> Sequence[tuple[str, ...]]:
        """The tables with a Lance dataset in a folder, inside of it or around it, by their paths."""
        with self._log.lock:
            view = self._ready()
            places = (place_at(view, key) for key in tables_near_at(view, folder))
            return [place.path for place in places if place is not None]

    def dropped_locations(self) -> Keys:
        """The folders of the Lance datasets of all that was dropped and is still kept."""
        with self._log.lock:
            return list(dropped_locations(self._ready().index))

    def dropped(self) -> DroppedFacts:
        """What was dropped and can be brought back, newest first: of what was dropped together, the topmost; of those
        that had the same name, the last; nothing whose name or namespace is taken or gone."""
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

    def last_position(
        self, path: Path, *, format: str = DELTA_FORMAT, version: str | None = None, stream: str | None = None
    ) -> int:
        """The last position that was given out in a table's stream; 0: there is none yet."""
        with self._log.lock:
            _, item = self._stream(path, format, version, stream)
            log = self._view.index.stream(item.node.key)
            return 0 if log is None else last_position(self._log.segments, item.node.key, log, self._view.at)

    def versions(self, path: Path) -> Objects:
        with self._log.lock:
            table = resolve_table(self._ready(), object_id(path))
            return self._parts(table, table.key)

    def get_table_version(self, path: Path, id: str | None = None) -> Object:
        with self._log.lock:
            table = resolve_table(self._ready(), object_id(path))
            return part_of(self._view, table, find_version(self._view, table, id).node.key)

    def streams(self, path: Path, version: str | None = None) -> Objects:
        with self._log.lock:
            table = resolve_table(self._ready(), object_id(path))
            return self._parts(table, find_version(self._view, table, version).node.key)

    def get_stream(
        self, path: Path, id: str | None = None, *, format: str = DELTA_FORMAT, version: str | None = None
    ) -> Object:
        with self._log.lock:
            table, item = self._stream(path, format, version, id)
            return part_of(self._view, table, item.node.key)

    def get_with_stream(self, path: Path, format: str) -> tuple[Object, Record | None]:
        """An object, and if it is a table the record that its stream of a format is; looked up once for both."""
        with self._log.lock:
            return with_stream(self._ready(), path, format)

    def partitions(
        self, path: Path, *, format: str = DELTA_FORMAT, version: str | None = None, stream: str | None = None
    ) -> Objects:
        with self._log.lock:
            table, item = self._stream(path, format, version, stream)
            return self._parts(table, item.node.key)

    def get_partition(
        self, path: Path, id: str, *, format: str = DELTA_FORMAT, version: str | None = None, stream: str | None = None
    ) -> Object:
        with self._log.lock:
            table, item = self._stream(path, format, version, stream)
            return part_of(self._view, table, find_partition(self._view, table, item, id).node.key)

    def history(self, path: Path) -> History:
        """Every transaction that touched the object at this path, or the one dropped there last, or a part of it."""
        return history(self._log, self._node(path).key, self._view.at)

    def revisions(self, path: Path) -> Revisions:
        """Every revision kept of the object at this path, or of the one dropped there last, oldest first."""
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
            dropped = None if exists(self._ready(), path) or id.is_root else last_dropped(Draft(self._view), id)
            return dropped.node if dropped is not None else resolve(self._view, id).item.node

    def identify(self, path: Path, dropped: bool = False) -> tuple[str, ...]:
        """The keys from the root to what a path means, or to what was dropped there last (`whereabouts`)."""
        with self._log.lock:
            return identify(self._ready(), object_id(path), dropped)

    def governing(self, keys: Sequence[str]) -> tuple[str, ...]:
        """The name by which an object is decided about at this slot, by its keys (`whereabouts`)."""
        with self._log.lock:
            return governing(self._ready(), keys)

    def _ready(self) -> IndexView:
        if self._view.at < self._view.index.boundary:
            raise TransactionNotFoundError(f"Slot {self._view.at} was collected: take a newer snapshot.")
        return self._view

    def _stream(self, path: Path, format: str, version: str | None, stream: str | None) -> tuple[Place, Item]:
        table = resolve_table(self._ready(), object_id(path))
        return table, find_stream(self._view, table, find_version(self._view, table, version), format, stream)

    def _parts(self, table: Place, key: str) -> Objects:
        return [part_of(self._view, table, part) for part in self._view.parts(key)]


def log_entries(log: Log, first: int, last: int) -> Iterator[LogEntry]:
    """The change feed: one entry for each committed transaction, in the order of the slots."""
    for number in range(first, last + 1):
        yield from entries_of(number, log.read_slot(number))
