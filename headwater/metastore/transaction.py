"""A transaction as its user holds it: reads at one snapshot, writes that become visible all at once, or never."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from hashlib import sha1
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from headwater.clock import Clock
from headwater.errors import (
    InvalidInputError,
    NamespaceNotFoundError,
    TableNotFoundError,
    TableVersionNotFoundError,
)
from headwater.metastore import edits
from headwater.metastore.deltas import DeltaLog, Segments, find_delta, read_deltas
from headwater.metastore.draft import Appended, Draft, DroppedDelta
from headwater.metastore.layout import check_named_id
from headwater.metastore.log import Log
from headwater.metastore.objects import Delta, Deltas, Object, Objects, check_type, data_files, delta_of
from headwater.metastore.records import decode_delta, encode, own_properties
from headwater.metastore.rules import Header, refused
from headwater.metastore.views import (
    IndexView,
    Item,
    Place,
    View,
    children_of,
    object_of,
    part_of,
    resolve,
    resolve_namespace,
    resolve_table,
)
from headwater.names import object_id

FIRST_VERSION = "1"
DELTA_FORMAT = "delta"
WHOLE = "default"
Path = Sequence[str]
Given = ParamSpec("Given")
Answer = TypeVar("Answer")


def locked(
    method: Callable[Concatenate[Transaction, Given], Answer],
) -> Callable[Concatenate[Transaction, Given], Answer]:
    """The index is not folded on by another thread while the method looks at it."""

    @wraps(method)
    def guarded(self: Transaction, /, *args: Given.args, **kwargs: Given.kwargs) -> Answer:
        with self._log.lock:
            return method(self, *args, **kwargs)

    return guarded


class Transaction:
    """Made by `Metastore.transaction`. Commits when its block ends, rolls back when the block raises."""

    def __init__(
        self,
        view: IndexView,
        log: Log,
        clock: Clock,
        header: Header,
        commit: Callable[[Transaction], int],
    ) -> None:
        self.header = header
        self.draft = Draft(view)
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
    ) -> Object:
        """A table with its first table version and one stream for each format."""
        _check_parts(version, formats)
        table = self._create(path, "table", properties)
        self._create_version(table, version, {}, formats)
        return object_of(table)

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
        _check_parts(version, formats)
        item = self._create_version(table, version, own_properties(properties), formats)
        return part_of(self.draft, table, item.node.key)

    @locked
    def create_stream(self, path: Path, format: str, version: str | None = None) -> Object:
        """One more stream, of a format the table version has none of yet."""
        table, above = self._version(path, version)
        item = edits.create_part(self.draft, table, above, "stream", _stream_parts(format), {})
        return part_of(self.draft, table, item.node.key)

    @locked
    def update(self, path: Path, properties: Mapping[str, Any]) -> Object:
        """Replace the properties: afterwards they are exactly these."""
        edits.update(self._checked(), object_id(path), own_properties(properties))
        return self.get(path)

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
        """Bring back what was dropped last at this path."""
        return object_of(edits.undrop(self._checked(), object_id(path)))

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
    ) -> Appended:
        """Append to a table's stream. The position is assigned at commit, so appends never conflict with each other.

        With `position` (a stream of format `lance`, whose positions are Lance versions) the delta stands exactly
        there, or Conflict (14) is raised at commit because that position is taken.
        """
        stream, table = self._stream(path, format, version)
        if position is not None and position < 1:
            raise InvalidInputError(f"A position is 1 or more, not {position}.")
        values = partition_values(partition)
        append = Appended(
            stream.node.key,
            stream.node.home,
            table.path,
            partition_id(values),
            values,
            check_type(type),
            data_files(files),
            own_properties(properties),
            position,
        )
        self.draft.appends.append(append)
        return append

    @locked
    def drop_delta(self, path: Path, position: int, *, format: str = DELTA_FORMAT, version: str | None = None) -> None:
        """Drop one delta. It stays readable in the past; its files are collected once nothing shows them."""
        stream, table = self._stream(path, format, version)
        key = stream.node.key
        log = self.draft.base.index.streams.get(key, DeltaLog())
        self.draft.reads.add(f"x{key}/{position}")
        found = find_delta(self._log.segments, key, log, position, self.draft.base.at)
        if found is None or any(d.stream == key and d.position == position for d in self.draft.dropped_deltas):
            raise TableVersionNotFoundError(f"There is no delta {position} in {object_id(path)}.")
        self.draft.dropped_deltas.append(DroppedDelta(key, stream.node.home, table.path, found.partition, position))

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
    def deltas(self, path: Path, after: int = 0, *, format: str = DELTA_FORMAT, version: str | None = None) -> Deltas:
        """The deltas committed before this transaction began; its own have no position yet."""
        stream, _ = self._stream(path, format, version)
        self.draft.reads.add(f"d{stream.node.key}")
        return deltas_of(self._log.segments, self.draft.base, stream.node.key, after, None)

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

    def _create(self, path: Path, kind: str, properties: Mapping[str, Any] | None) -> Place:
        return edits.create(self._checked(), object_id(path), kind, self._clock.uuid(), own_properties(properties))

    def _create_version(self, table: Place, version: str, properties: dict[str, Any], formats: Sequence[str]) -> Item:
        item = edits.create_part(self.draft, table, table.item, "table_version", (version,), properties)
        for format in formats:
            edits.create_part(self.draft, table, item, "stream", _stream_parts(format), {})
        return item

    def _version(self, path: Path, version: str | None) -> tuple[Place, Item]:
        table = resolve_table(self._checked(), object_id(path))
        return table, find_version(self.draft, table, version)

    def _stream(self, path: Path, format: str, version: str | None) -> tuple[Item, Place]:
        table, above = self._version(path, version)
        return find_stream(self.draft, table, above, format), table


def find_version(view: View, table: Place, version: str | None) -> Item:
    """The table version of this id, or the newest."""
    keys = [f"{table.key}/{version}"] if version is not None else list(view.parts(table.key))[-1:]
    item = view.item(keys[0]) if keys else None
    if item is None:
        raise TableVersionNotFoundError(f"The table {'.'.join(table.path)} has no table version {version!r}.")
    return item


def find_stream(view: View, table: Place, above: Item, format: str) -> Item:
    item = view.item(f"{above.node.key}/{format}")
    if item is None:
        raise TableNotFoundError(f"The table {'.'.join(table.path)} has no stream of format {format!r}.")
    return item


def deltas_of(segments: Segments, view: IndexView, stream: str, after: int, partition: str | None) -> Deltas:
    log = view.index.streams.get(stream)
    if log is None:
        return []
    found: list[Delta] = []
    for stored in read_deltas(segments, stream, log, after, view.at):
        body = decode_delta(stream, stored.body)
        if partition is None or body.partition == partition:
            found.append(delta_of(body, stored.slot))
    return found


def exists(view: View, path: Path) -> bool:
    place_id = object_id(path)
    try:
        resolve(view, place_id)
    except (NamespaceNotFoundError, TableNotFoundError):
        return False
    return True


def _check_parts(version: str, formats: Sequence[str]) -> None:
    check_named_id(version, "table version")
    for format in formats:
        check_named_id(format, "stream")
    if isinstance(formats, str) or len(set(formats)) != len(formats):
        raise InvalidInputError(f"formats names each format of the table's streams once, not {formats!r}.")


def _stream_parts(format: str) -> tuple[str, str]:
    """A table version has one stream of each format, so the format serves as its id."""
    return check_named_id(format, "stream"), format


def partition_values(partition: Sequence[Any] | None) -> tuple[Any, ...] | None:
    if partition is None:
        return None
    values = tuple(partition) if not isinstance(partition, (str, bytes, Mapping)) else ()
    if not values or not all(value is None or isinstance(value, (str, int, float, bool)) for value in values):
        raise InvalidInputError("partition is a list of plain values (text, numbers, booleans, None), or None.")
    return values


def partition_id(values: tuple[Any, ...] | None) -> str:
    """Named by its values, so that two writers who need the same new partition make the same one."""
    return WHOLE if values is None else f"p-{sha1(encode(values), usedforsecurity=False).hexdigest()}"
