"""The parts of a table: its versions, streams and partitions. Found in any view, changed in a draft. No I/O here.

Their ids are Named Immutable IDs, chosen by whoever creates them. An id is never used twice: that of a dropped version
or stream stays taken while its past is kept, so a reader of the published layout never sees old deltas in a new one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha1
from typing import Any, NamedTuple

import msgspec

from headwater.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    LanceNamespaceError,
    TableAlreadyExistsError,
    TableNotFoundError,
    TableVersionNotFoundError,
)
from headwater.metastore.commit.draft import Draft
from headwater.metastore.records.disk_records import Node, Revision, encode
from headwater.metastore.records.layout import check_named_id
from headwater.metastore.records.objects import ACTIVE, Delta, lifecycle_of
from headwater.metastore.state.slot_views import Item, Place, SlotView
from headwater.names import format_name


class Record(NamedTuple):
    """The fields of a stream that most look-ups need."""

    home: str
    properties: Mapping[str, Any]


class ObjectRecord(NamedTuple):
    """A namespace or table, with the record and the last delta of its stream of one format. Not to be changed."""

    key: str
    kind: str
    path: tuple[str, ...]
    home: str
    properties: Mapping[str, Any]
    stream: Record | None = None
    newest: Delta | None = None


FIRST_VERSION = "1"
DELTA_FORMAT = "delta"
WHOLE = "default"
Values = tuple[Any, ...] | None


def find_version(view: SlotView, table: Place, version: str | None) -> Item:
    """Return the table version of an id; without one, the version that the view chooses, or else the active one."""
    wanted = view.chosen.get(table.key) if version is None else version
    item = find_active(view, table) if wanted is None else view.part(f"{table.key}/{wanted}")
    if item is None:
        what = "no active table version: activate one" if wanted is None else f"no table version {wanted!r}"
        raise TableVersionNotFoundError(f"The table {format_name(table.path)} has {what}.")
    return item


def find_active(view: SlotView, table: Place) -> Item | None:
    """Return the newest version whose lifecycle is active: the one that readers by the table's name get."""
    for item in view.table_versions(table.key):
        if lifecycle_of(item.revision.properties) == ACTIVE:
            return item
    return None


def find_stream(view: SlotView, table: Place, above: Item, format: str, stream: str | None = None) -> Item:
    """Return the stream of this id, whatever its format; without an id the one named as the format, or the only one of
    it."""
    item = view.part(f"{above.node.key}/{format if stream is None else stream}")
    if stream is None and (item is None or item.revision.parts[1] != format):
        item = _only_stream(view, table, above, format)
    if item is None:
        what = f"of format {format!r}" if stream is None else repr(stream)
        raise TableNotFoundError(f"The table {format_name(table.path)} has no stream {what}.")
    return item


def _only_stream(view: SlotView, table: Place, above: Item, format: str) -> Item | None:
    found = [item for key in view.parts(above.node.key) if (item := view.part(key)) is not None]
    of_format = [item for item in found if item.revision.parts[1] == format]
    if len(of_format) > 1:
        ids = ", ".join(repr(item.node.id) for item in of_format)
        raise InvalidInputError(
            f"{format_name(table.path)} has several streams of format {format!r}: say which ({ids})."
        )
    return of_format[0] if of_format else None


def find_partition(view: SlotView, table: Place, stream: Item, id: str) -> Item:
    item = view.part(f"{stream.node.key}/{id}")
    if item is None:
        raise TableNotFoundError(f"The stream {stream.node.id!r} of {format_name(table.path)} has no partition {id!r}.")
    return item


def find_only_partition(view: SlotView, table: Place, above: Item, format: str, id: str) -> Item:
    """Return the partition of this id where no stream is told: of the one named as the format, or of the only one with
    it."""
    streams = [stream for key in view.parts(above.node.key) if (stream := view.part(key)) is not None]
    having = [
        stream
        for stream in streams
        if stream.revision.parts[1] == format and view.part(f"{stream.node.key}/{id}") is not None
    ]
    named = [stream for stream in having if stream.node.id == format] or having
    if len(named) > 1:
        ids = ", ".join(repr(stream.node.id) for stream in named)
        raise InvalidInputError(
            f"Several streams of {format_name(table.path)} have a partition {id!r}: say which ({ids})."
        )
    return find_partition(view, table, named[0] if named else find_stream(view, table, above, format), id)


def create_part(
    draft: Draft, table: Place, above: Item, kind: str, parts: tuple[str, ...], properties: dict[str, object]
) -> Item:
    """Return a new table version or stream."""
    key = f"{above.node.key}/{parts[0]}"
    draft.depend_on(key)
    before = draft.item(key, dropped=True)
    if before is not None:
        gone = "" if before.revision.alive else ": it was dropped, and an id is never used twice"
        raise TableAlreadyExistsError(f"{format_name(table.path)} has a {kind} {parts[0]!r} already{gone}.")
    node = Node(key, parts[0], kind, f"{above.node.home}/{parts[0]}", [])
    revision = Revision(0, 0, "create", "", 0, above.node.key, parts, properties)
    draft.add(node, revision, table.path)
    return Item(node, revision)


def update_part(draft: Draft, table: Place, item: Item, properties: dict[str, object]) -> None:
    """The properties become exactly these."""
    changed = msgspec.structs.replace(item.revision, operation="update", properties=properties)
    draft.change(Item(item.node, changed), table.path)


def drop_part(draft: Draft, table: Place, item: Item) -> None:
    """Gone, with all below it; what is below gets no revision of its own, as below a dropped table."""
    draft.change(Item(item.node, msgspec.structs.replace(item.revision, operation="delete")), table.path)


# Ids and values


def check_parts(version: str, formats: Sequence[str]) -> None:
    check_named_id(version, "table version")
    if isinstance(formats, str) or len(set(formats)) != len(formats):
        raise InvalidInputError(f"formats names each format of the table's streams once, not {formats!r}.")
    for format in formats:
        check_named_id(format, "stream")


def stream_parts(format: str, id: str | None = None) -> tuple[str, str]:
    """The id is the format unless the caller chose one."""
    check_named_id(format, "stream")
    return (format if id is None else check_named_id(id, "stream")), format


def partition_values(partition: Sequence[object] | None) -> Values:
    if partition is None:
        return None
    values = tuple(partition) if not isinstance(partition, (str, bytes, Mapping)) else ()
    if not values or not all(value is None or isinstance(value, (str, int, float, bool)) for value in values):
        raise InvalidInputError("partition is a list of plain values (text, numbers, booleans, None), or None.")
    return values


def partition_id(values: Values) -> str:
    """Named by its values, so that two writers who need the same new partition make the same one."""
    return WHOLE if values is None else f"p-{sha1(encode(values), usedforsecurity=False).hexdigest()}"


def chosen_partition(id: str | None, values: Values) -> str:
    """Return the id a caller chose, or the one the values give. Ids of the second kind cannot be chosen for other
    values."""
    own = partition_id(values)
    if id is None or id == own:
        return own
    if check_named_id(id, "partition") == WHOLE or id.startswith("p-"):
        raise InvalidInputError(f"The partition id {id!r} is made from other values: choose another id.")
    return id


def require_values(id: str, asked: Values, found: Any, error: type[LanceNamespaceError]) -> None:
    """A partition keeps the values it was created with; a caller who gives none takes what is there."""
    there = None if found is None else tuple(found)
    if asked is not None and asked != there:
        raise error(f"The partition {id!r} has the values {there}, not {asked}.")


def check_values(view: SlotView, stream: Item, id: str, values: Values) -> None:
    """Check values as far as possible now; the commit checks them again."""
    item = view.item(f"{stream.node.key}/{id}")
    if item is not None:
        require_values(id, values, item.revision.parts[1], InvalidInputError)


def taken_values(id: str, asked: Values, found: object) -> None:
    """Raise ConcurrentModification (14) at commit if another writer gave the parts other values first."""
    require_values(id, asked, found, ConcurrentModificationError)
