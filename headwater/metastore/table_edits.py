"""What a transaction does inside a table: its versions, streams and partitions, and the deltas in them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from itertools import islice
from typing import Any, Concatenate, ParamSpec, TypeVar

from headwater.errors import InvalidInputError, TableNotFoundError, TableVersionNotFoundError
from headwater.metastore import table_parts
from headwater.metastore.deltas import (
    Segments,
    find_delta,
    find_stored,
    last_position,
    newest_first,
    read_deltas,
)
from headwater.metastore.draft import AppendedDelta, Draft, DroppedDelta
from headwater.metastore.log import Log
from headwater.metastore.objects import Delta, Deltas, Object, Objects, check_type, data_files, delta_of
from headwater.metastore.records import decode_delta, own_properties
from headwater.metastore.slot_views import (
    IndexView,
    Item,
    Place,
    SlotView,
    object_of,
    own_values,
    part_of,
    resolve,
    resolve_table,
)
from headwater.metastore.table_parts import DELTA_FORMAT, find_only_partition, find_partition, find_stream, find_version
from headwater.names import object_id

Path = Sequence[str]
Self = TypeVar("Self", bound="TableEdits")
Positions = list[int]
Given = ParamSpec("Given")
Answer = TypeVar("Answer")


def locked(method: Callable[Concatenate[Self, Given], Answer]) -> Callable[Concatenate[Self, Given], Answer]:
    """The index is not folded on by another thread while the method looks at it."""

    @wraps(method)
    def guarded(self: Self, /, *args: Given.args, **kwargs: Given.kwargs) -> Answer:
        with self._log.lock:
            return method(self, *args, **kwargs)

    return guarded


class TableEdits(ABC):
    """The half of a transaction that works inside tables. A part is named by the table's path and its id.

    Versions are the newest one, and streams that of format `delta`, unless told otherwise.
    """

    draft: Draft
    _log: Log

    @abstractmethod
    def _checked(self) -> Draft:
        """The draft, if the transaction is open and its snapshot still kept."""

    # Table versions

    @locked
    def create_table_version(
        self,
        path: Path,
        version: str,
        properties: Mapping[str, Any] | None = None,
        formats: Sequence[str] = (DELTA_FORMAT,),
    ) -> Object:
        """One more table version, with its streams. Appends and reads go to the newest unless told otherwise."""
        table = resolve_table(self._checked(), object_id(path))
        table_parts.check_parts(version, formats)
        return self._shown(table, self._create_version(table, version, own_properties(properties), formats))

    @locked
    def get_table_version(self, path: Path, id: str | None = None) -> Object:
        """A table version, the newest without an id."""
        table, item = self._version(path, id)
        return self._read(table, item)

    @locked
    def update_table_version(self, path: Path, id: str, properties: Mapping[str, Any]) -> Object:
        """Replace its properties: afterwards they are exactly these."""
        return self._update(*self._version(path, id), properties)

    @locked
    def drop_table_version(self, path: Path, id: str) -> None:
        """Drop it with all below it. Its id stays taken."""
        table_parts.drop_part(self.draft, *self._version(path, id))

    @locked
    def versions(self, path: Path) -> Objects:
        table = resolve_table(self._checked(), object_id(path))
        return self._list(table, table.key)

    # Streams

    @locked
    def create_stream(self, path: Path, format: str, version: str | None = None, id: str | None = None) -> Object:
        """One more stream. Its id is the format unless one is chosen, so a version may have several of one format."""
        table, above = self._version(path, version)
        return self._shown(
            table, table_parts.create_part(self.draft, table, above, "stream", table_parts.stream_parts(format, id), {})
        )

    @locked
    def get_stream(
        self, path: Path, id: str | None = None, *, format: str = DELTA_FORMAT, version: str | None = None
    ) -> Object:
        table, item = self._stream(path, format, version, id)
        return self._read(table, item)

    @locked
    def get_with_stream(self, path: Path, format: str) -> tuple[Object, table_parts.Record | None]:
        """An object, and if it is a table the record that its stream of a format is."""
        found, record = with_stream(self._checked(), path, format)
        place = resolve(self.draft, object_id(path))
        self.draft.relied_on(place.key)
        if record is not None:
            self.draft.relied_on(find_stream(self.draft, place, find_version(self.draft, place, None), format).node.key)
        return found, record

    @locked
    def update_stream(
        self, path: Path, id: str, properties: Mapping[str, Any], *, version: str | None = None
    ) -> Object:
        """Replace its properties. Conflicts with who reads or replaces them too; with appends to the stream never."""
        return self._update(*self._stream(path, DELTA_FORMAT, version, id), properties)

    @locked
    def drop_stream(self, path: Path, id: str, *, version: str | None = None) -> None:
        """Drop it with all below it. Its id stays taken."""
        table_parts.drop_part(self.draft, *self._stream(path, DELTA_FORMAT, version, id))

    @locked
    def streams(self, path: Path, version: str | None = None) -> Objects:
        table, above = self._version(path, version)
        return self._list(table, above.node.key)

    # Partitions, which appends create

    @locked
    def get_partition(
        self, path: Path, id: str, *, format: str = DELTA_FORMAT, version: str | None = None, stream: str | None = None
    ) -> Object:
        return self._read(*self._partition(path, id, format, version, stream))

    @locked
    def update_partition(
        self,
        path: Path,
        id: str,
        properties: Mapping[str, Any],
        *,
        format: str = DELTA_FORMAT,
        version: str | None = None,
        stream: str | None = None,
    ) -> Object:
        """Replace its properties: afterwards they are exactly these."""
        return self._update(*self._partition(path, id, format, version, stream), properties)

    @locked
    def drop_partition(
        self, path: Path, id: str, *, format: str = DELTA_FORMAT, version: str | None = None, stream: str | None = None
    ) -> None:
        """Drop it with its deltas, each of which gets its deleting revision. A later append makes it anew, empty."""
        table, item = self._partition(path, id, format, version, stream)
        key = item.revision.parent
        if any((append.stream, append.partition) == (key, id) for append in self.draft.appends):
            raise InvalidInputError(f"This transaction appends to the partition {id!r}: drop it in another one.")
        self.draft.reads.add(f"d{key}")
        home = item.node.home.rsplit("/", 1)[0]
        for delta in deltas_of(self._log.segments, self.draft.base, key, 0, id):
            if not self._is_dropped(key, delta.position):
                self.draft.dropped_deltas.append(DroppedDelta(key, home, table.path, id, delta.position))
        table_parts.drop_part(self.draft, table, item)

    @locked
    def partitions(
        self, path: Path, *, format: str = DELTA_FORMAT, version: str | None = None, stream: str | None = None
    ) -> Objects:
        table, above = self._stream(path, format, version, stream)
        return self._list(table, above.node.key)

    # Deltas

    @locked
    def append_delta(
        self,
        path: Path,
        files: Iterable[Any],
        type: str = "append",
        partition: Sequence[Any] | None = None,
        *,
        format: str = DELTA_FORMAT,
        version: str | None = None,
        properties: Mapping[str, Any] | None = None,
        position: int | None = None,
        stream: str | None = None,
        partition_id: str | None = None,
    ) -> AppendedDelta:
        """Append to a table's stream. The position is assigned at commit, so appends never conflict with each other;
        several in one transaction follow each other without a gap. The answer has the position once it is committed.

        `stream` is the id of one of several streams, `partition_id` an id of the caller's own for the partition.
        With `position` (a stream of format `lance`, whose positions are Lance versions) the delta stands exactly
        there, or Conflict (14) is raised at commit because that position is taken.
        """
        table, item = self._stream(path, format, version, stream)
        if position is not None and position < 1:
            raise InvalidInputError(f"A position is 1 or more, not {position}.")
        values = table_parts.partition_values(partition)
        chosen = table_parts.chosen_partition(partition_id, values)
        self._check_partition(item, chosen, values)
        append = AppendedDelta(
            item.node.key,
            item.node.home,
            table.path,
            chosen,
            values,
            check_type(type),
            data_files(files),
            own_properties(properties),
            position,
        )
        self.draft.appends.append(append)
        return append

    @locked
    def drop_delta(
        self,
        path: Path,
        position: int,
        *,
        format: str = DELTA_FORMAT,
        version: str | None = None,
        stream: str | None = None,
    ) -> None:
        """Drop one delta. It stays readable in the past; its files are collected once nothing shows them."""
        table, item = self._stream(path, format, version, stream)
        key = item.node.key
        log = self.draft.base.index.deltas(key)
        self.draft.reads.add(f"x{key}/{position}")
        found = find_delta(self._log.segments, key, log, position, self.draft.base.at)
        if found is None or self._is_dropped(key, position):
            raise TableVersionNotFoundError(f"There is no delta {position} in {object_id(path)}.")
        self.draft.dropped_deltas.append(DroppedDelta(key, item.node.home, table.path, found.partition, position))

    @locked
    def deltas(
        self,
        path: Path,
        after: int = 0,
        *,
        format: str = DELTA_FORMAT,
        version: str | None = None,
        stream: str | None = None,
        partition_id: str | None = None,
    ) -> Deltas:
        """The deltas committed before this transaction began; its own have no position yet."""
        _, item = self._stream(path, format, version, stream)
        self.draft.reads.add(f"d{item.node.key}")
        return deltas_of(self._log.segments, self.draft.base, item.node.key, after, partition_id)

    @locked
    def get_delta(
        self,
        path: Path,
        position: int,
        *,
        format: str = DELTA_FORMAT,
        version: str | None = None,
        stream: str | None = None,
    ) -> Delta:
        _, item = self._stream(path, format, version, stream)
        self.draft.reads.add(f"d{item.node.key}")
        return delta_at(self._log.segments, self.draft.base, item.node.key, position)

    @locked
    def newest_delta(
        self, path: Path, *, format: str = DELTA_FORMAT, version: str | None = None, stream: str | None = None
    ) -> Delta | None:
        """The last delta committed before this transaction began, None if there is none."""
        _, item = self._stream(path, format, version, stream)
        self.draft.reads.add(f"d{item.node.key}")
        return last_delta(self._log.segments, self.draft.base, item.node.key)

    @locked
    def last_position(self, path: Path, *, format: str = DELTA_FORMAT, version: str | None = None) -> int:
        """The last position that was given out in a stream before this transaction began; 0: there was none."""
        _, item = self._stream(path, format, version, None)
        self.draft.reads.add(f"d{item.node.key}")
        log = self.draft.base.index.stream(item.node.key)
        return 0 if log is None else last_position(self._log.segments, item.node.key, log, self.draft.base.at)

    @locked
    def positions(
        self, path: Path, *, format: str = DELTA_FORMAT, version: str | None = None, stream: str | None = None
    ) -> Positions:
        """The positions of all deltas of a stream, ascending."""
        _, item = self._stream(path, format, version, stream)
        self.draft.reads.add(f"d{item.node.key}")
        return positions_of(self._log.segments, self.draft.base, item.node.key)

    # Finding

    def _create_version(self, table: Place, version: str, properties: dict[str, Any], formats: Sequence[str]) -> Item:
        item = table_parts.create_part(self.draft, table, table.item, "table_version", (version,), properties)
        for format in formats:
            table_parts.create_part(self.draft, table, item, "stream", table_parts.stream_parts(format), {})
        return item

    def _version(self, path: Path, version: str | None) -> tuple[Place, Item]:
        table = resolve_table(self._checked(), object_id(path))
        return table, find_version(self.draft, table, version)

    def _stream(self, path: Path, format: str, version: str | None, stream: str | None) -> tuple[Place, Item]:
        table, above = self._version(path, version)
        return table, find_stream(self.draft, table, above, format, stream)

    def _partition(
        self, path: Path, id: str, format: str, version: str | None, stream: str | None
    ) -> tuple[Place, Item]:
        if stream is None:
            table, above = self._version(path, version)
            return table, find_only_partition(self.draft, table, above, format, id)
        table, above = self._stream(path, format, version, stream)
        return table, find_partition(self.draft, table, above, id)

    def _read(self, table: Place, item: Item) -> Object:
        self.draft.relied_on(item.node.key)
        return self._shown(table, item)

    def _update(self, table: Place, item: Item, properties: Mapping[str, Any]) -> Object:
        table_parts.update_part(self.draft, table, item, own_properties(properties))
        return self._shown(table, item)

    def _shown(self, table: Place, item: Item) -> Object:
        return part_of(self.draft, table, item.node.key)

    def _list(self, table: Place, key: str) -> Objects:
        self.draft.reads.add(f"c{key}")
        return [part_of(self.draft, table, part) for part in self.draft.parts(key)]

    def _check_partition(self, stream: Item, id: str, values: table_parts.Values) -> None:
        own = self.draft.items.get(f"{stream.node.key}/{id}")
        if own is not None and not own.revision.alive:
            raise InvalidInputError(f"This transaction drops the partition {id!r}: append to it in another one.")
        table_parts.check_values(self.draft, stream, id, values)

    def _is_dropped(self, stream: str, position: int) -> bool:
        return any(drop.stream == stream and drop.position == position for drop in self.draft.dropped_deltas)


def with_stream(view: SlotView, path: Path, format: str) -> tuple[Object, table_parts.Record | None]:
    place = resolve(view, object_id(path))
    found = object_of(place)
    if place.item.node.kind != "table":
        return found, None
    try:
        stream = find_stream(view, place, find_version(view, place, None), format)
    except (TableNotFoundError, TableVersionNotFoundError):
        return found, None
    return found, table_parts.Record(stream.node.home, own_values(stream.revision.properties))


def delta_at(segments: Segments, view: IndexView, stream: str, position: int) -> Delta:
    stored = find_stored(segments, stream, view.index.deltas(stream), position, view.at)
    if stored is None:
        raise TableVersionNotFoundError(f"The stream {stream.rpartition('/')[2]!r} has no delta {position}.")
    return delta_of(decode_delta(stream, stored.body), stored.slot)


def last_delta(segments: Segments, view: IndexView, stream: str) -> Delta | None:
    stored = next(newest_first(segments, stream, view.index.deltas(stream), view.at), None)
    return None if stored is None else delta_of(decode_delta(stream, stored.body), stored.slot)


def positions_of(segments: Segments, view: IndexView, stream: str) -> Positions:
    log = view.index.deltas(stream)
    return [stored.position for stored in read_deltas(segments, stream, log, 0, view.at)]


def last_positions(segments: Segments, view: IndexView, stream: str, before: int | None, count: int) -> Positions:
    log = view.index.deltas(stream)
    return [stored.position for stored in islice(newest_first(segments, stream, log, view.at, before), count)]


def deltas_of(segments: Segments, view: IndexView, stream: str, after: int, partition: str | None) -> Deltas:
    log = view.index.stream(stream)
    if log is None:
        return []
    found: list[Delta] = []
    for stored in read_deltas(segments, stream, log, after, view.at):
        body = decode_delta(stream, stored.body)
        if partition is None or body.partition == partition:
            found.append(delta_of(body, stored.slot))
    return found
