"""Objects by their locator and by their id, in any view."""

from __future__ import annotations

from headwater.errors import InvalidInputError, TableNotFoundError, TableVersionNotFoundError
from headwater.metastore.deltas import Segments, read_deltas
from headwater.metastore.draft import Draft
from headwater.metastore.locator import Locator
from headwater.metastore.objects import Delta, Object, delta_of
from headwater.metastore.records import decode_delta
from headwater.metastore.slot_views import (
    ROOT,
    IndexView,
    Item,
    Place,
    SlotView,
    not_found,
    object_of,
    part_of,
    part_text,
    resolve,
    step,
)
from headwater.metastore.table_parts import find_partition, find_stream, find_version
from headwater.names import ObjectId, format_name, object_id

PART_LENGTHS = (1, 3, 5, 6)
"""How many parts of a locator name a version, a stream, a partition, a delta of a table."""

DELTA_DEPTH = 4
"""How deep below its table a delta is: version, stream, partition, position."""


def look_up(view: SlotView, segments: Segments, locator: Locator | str) -> Object | Delta:
    """The object at a locator. Names lead down to a table, which has none below it: what is left are its parts."""
    parts = (locator if isinstance(locator, Locator) else Locator.parse(locator)).parts
    place, level = ROOT, 0
    while level < len(parts) and place.item.node.kind == "namespace":
        found = step(view, place, object_id([parts[level]]).name)
        if found is None:
            raise not_found(ObjectId(parts[: level + 1]), level + 1)
        place, level = found, level + 1
    rest = parts[level:]
    if not rest:
        _rely(view, place.key)
        return object_of(place)
    return _look_inside(view, segments, place, rest)


def _look_inside(view: SlotView, segments: Segments, table: Place, parts: tuple[str, ...]) -> Object | Delta:
    if len(parts) not in PART_LENGTHS:
        raise InvalidInputError(
            "Below a table, a locator has its version, then a stream's id and format, a partition's id and values, "
            "a position."
        )
    item = find_version(view, table, parts[0])
    if len(parts) >= 3:
        item = _same(table, find_stream(view, table, item, "", parts[1]), parts[1:3])
    if len(parts) >= 5:
        item = _same(table, find_partition(view, table, item, parts[3]), parts[3:5])
    if len(parts) == 6:
        return _delta(view, segments, table, item, parts[5])
    _rely(view, item.node.key)
    return part_of(view, table, item.node.key)


def _same(table: Place, item: Item, parts: tuple[str, ...]) -> Item:
    if tuple(part_text(part) for part in item.revision.parts) != parts:
        raise TableNotFoundError(
            f"{format_name(table.path)} has a {item.node.kind} {parts[0]!r}, but it is no {parts}."
        )
    return item


def _delta(view: SlotView, segments: Segments, table: Place, partition: Item, text: str) -> Delta:
    base = view.base if isinstance(view, Draft) else view
    assert isinstance(base, IndexView)
    stream = partition.revision.parent
    if isinstance(view, Draft):
        view.reads.add(f"d{stream}")
    position = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
    log = base.index.deltas(stream)
    stored = next(read_deltas(segments, stream, log, position - 1, base.at), None) if position else None
    body = decode_delta(stream, stored.body) if stored is not None else None
    if stored is None or body is None or (body.position, body.partition) != (position, partition.node.id):
        raise TableVersionNotFoundError(f"There is no delta {text[:40]!r} in {format_name(table.path)}.")
    return delta_of(body, stored.slot)


def look_up_id(view: SlotView, segments: Segments, id: str) -> Object | Delta:
    """The namespace or table of an id, or the part or delta of a table with that key."""
    if not isinstance(id, str):
        raise InvalidInputError(f"An id is text, not {id!r}.")
    table_id, *below = id.split("/")
    names: list[str] = []
    key = table_id
    while key:
        item = view.item(key)
        if item is None:
            _rely(view, key)
            raise TableNotFoundError(f"No object has the id {id[:200]!r} now.")
        names.append(item.revision.name)
        key = item.revision.parent
    place = resolve(view, ObjectId(tuple(reversed(names))))
    if not names or not below:
        _rely(view, place.key)
        return object_of(place)
    if len(below) == DELTA_DEPTH and (partition := view.part("/".join((table_id, *below[:-1])))) is not None:
        return _delta(view, segments, place, partition, below[-1])
    for end in range(1, len(below) + 1):
        if view.part("/".join((table_id, *below[:end]))) is None:
            raise TableNotFoundError(f"No object has the id {id[:200]!r} now.")
    _rely(view, id)
    return part_of(view, place, id)


def _rely(view: SlotView, key: str) -> None:
    if isinstance(view, Draft):
        view.relied_on(key)
