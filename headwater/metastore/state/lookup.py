"""Look-ups of objects by locator, by id and by keys, in any view.

Index of Lance datasets by folder and owner: two tables in one folder would overwrite each other's versions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from msgspec.structs import force_setattr

from headwater.errors import InvalidInputError, LanceNamespaceError, TableNotFoundError, TableVersionNotFoundError
from headwater.metastore.commit.draft import Draft
from headwater.metastore.commit.table_parts import find_partition, find_stream, find_version
from headwater.metastore.records.deltas import Segments
from headwater.metastore.records.disk_records import Node
from headwater.metastore.records.layout import canonical
from headwater.metastore.records.objects import Delta, Locator, Object
from headwater.metastore.records.serving_copy import (
    KEEP_DATA,
    LANCE_FORMAT,
    default_location,
    location_of,
    signs_at,
    signs_near,
)
from headwater.metastore.state.index import SlotIndex
from headwater.metastore.state.index_maps import folders_of
from headwater.metastore.state.slot_views import (
    ROOT,
    Item,
    Place,
    SlotView,
    not_found,
    object_of,
    part_of,
    part_text,
    resolve,
    resolve_namespace,
    step,
)
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
        view.depend_on(place.key)
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
    view.depend_on(item.node.key)
    return part_of(view, table, item.node.key)


def _same(table: Place, item: Item, parts: tuple[str, ...]) -> Item:
    if tuple(part_text(part) for part in item.revision.parts) != parts:
        raise TableNotFoundError(
            f"{format_name(table.path)} has a {item.node.kind} {parts[0]!r}, but it is no {parts}."
        )
    return item


def _delta(view: SlotView, segments: Segments, table: Place, partition: Item, text: str) -> Delta:
    position = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
    found = view.delta(segments, partition.revision.parent, position)
    stream = view.item(partition.revision.parent)
    if not position or found is None or stream is None or found.partition != partition.node.id:
        raise TableVersionNotFoundError(f"There is no delta {text[:40]!r} in {format_name(table.path)}.")
    return located(view, table, stream, [found])[0]


def located(view: SlotView, table: Place, stream: Item, deltas: list[Delta]) -> list[Delta]:
    """Set the locators, keys and partition values of deltas that were just read from a stream of a table."""
    version, key = view.item(stream.revision.parent), stream.node.key
    assert version is not None
    above = canonical(table.locator, *version.revision.parts, *stream.revision.parts)
    known: dict[str, tuple[tuple[object, ...] | None, str, str]] = {}
    for delta in deltas:
        if delta.partition not in known:
            home = f"{key}/{delta.partition}"
            item = view.item(home, dropped=True)
            found = delta.values if item is None else item.revision.parts[1]
            locator = canonical(above, delta.partition, part_text(found))
            known[delta.partition] = None if found is None else tuple(found), locator, home
        values, locator, home = known[delta.partition]
        force_setattr(delta, "values", values)
        force_setattr(delta, "locator", f"{locator}|{delta.position}")
        force_setattr(delta, "key", f"{home}/{delta.position}")
    return deltas


def look_up_id(view: SlotView, segments: Segments, id: str) -> Object | Delta:
    """Return the namespace or table of an id, or the part or delta of a table with that key."""
    if not isinstance(id, str):
        raise InvalidInputError(f"An id is text, not {id!r}.")
    table_id, *below = id.split("/")
    names: list[str] = []
    key = table_id
    while key:
        item = view.item(key)
        if item is None:
            view.depend_on(key)
            raise TableNotFoundError(f"No object has the id {id[:200]!r} now.")
        names.append(item.revision.name)
        key = item.revision.parent
    place = resolve(view, ObjectId(tuple(reversed(names))))
    if not names or not below:
        view.depend_on(place.key)
        return object_of(place)
    if len(below) == DELTA_DEPTH and (partition := view.part("/".join((table_id, *below[:-1])))) is not None:
        return _delta(view, segments, place, partition, below[-1])
    for end in range(1, len(below) + 1):
        if view.part("/".join((table_id, *below[:end]))) is None:
            raise TableNotFoundError(f"No object has the id {id[:200]!r} now.")
    view.depend_on(id)
    return part_of(view, place, id)


# By the keys on the way, which stay when names change

Keys = tuple[str, ...]


def identify(view: SlotView, id: ObjectId, dropped: bool = False) -> Keys:
    """Return the keys from the root to what an id means; empty for nothing, and for what a transaction made itself.

    With `dropped`, where nothing is, to what was dropped there last. None of it is a dependency of a transaction.
    """
    seen = view.unnoted()
    try:
        keys = resolve(seen, id).keys
    except LanceNamespaceError:
        keys = _dropped(seen, id) if dropped and not id.is_root else ()
    is_own = bool(keys) and not id.is_root and not seen.is_committed(keys[-1])
    return () if is_own else keys


def _dropped(seen: SlotView, id: ObjectId) -> Keys:
    try:
        item = last_dropped(seen, id)
        return () if item is None else (*resolve(seen, id.parent).keys, item.node.key)
    except LanceNamespaceError:
        return ()


def governing(now: SlotView, keys: Sequence[str]) -> tuple[str, ...]:
    """Return the name by which an object is decided about: its own now, or of one that is gone, its key in the nearest
    namespace above it that is there. Rights on that namespace hold for it, and rights on a name that it had do not."""
    above = list(keys)
    key = last = above.pop() if above else ""
    while (path := path_of(now, key)) is None:
        item = now.item(key, dropped=True)  # None: it is forgotten, and what it was below then is asked
        key = item.revision.parent if item is not None else above.pop() if above else ""
    return path if key == last else (*path, last)


def path_of(view: SlotView, key: str) -> tuple[str, ...] | None:
    """Return the names from the root to a namespace or table that is there, by its key; None if it is not."""
    names: list[str] = []
    passed: list[str] = []
    while key:
        item = view.item(key)
        if item is None or key in passed:  # not there, or above itself
            return None
        passed.append(key)
        names.append(item.revision.name)
        key = item.revision.parent
    return tuple(reversed(names))


def last_dropped(view: SlotView, id: ObjectId) -> Item | None:
    """Return what was dropped last under a name, or None."""
    parent = resolve_namespace(view, id.parent)
    found = [item for item in dropped_in(view, parent.key) if item.revision.name == id.name]
    return max(found, key=lambda item: item.revision.slot, default=None)


def dropped_in(view: SlotView, parent: str) -> list[Item]:
    """Return what was dropped in a namespace and is kept, by the key of the namespace."""
    items = (view.item(key, dropped=True) for key in dict.fromkeys(view.past(parent)))
    return [item for item in items if item and not item.revision.alive and item.revision.parent == parent]


def lance_streams(index: SlotIndex) -> Iterator[Node]:
    """Yield every lance stream that is kept, also of what was dropped."""
    for node in index.nodes():
        if node.kind == "stream" and node.versions[-1].parts[1] == LANCE_FORMAT:
            yield node


def stream_location(stream: Node) -> str:
    return location_of(stream.versions[-1].properties, stream.home)


def dropped_locations(index: SlotIndex, boundary: int | None = None) -> Iterator[str]:
    """Yield the folders of datasets that were dropped (up to a slot), but for those that were to be left where they
    are."""
    for stream in lance_streams(index):
        steps = stream.key.split("/")
        above = (index.node("/".join(steps[:end])) for end in range(1, len(steps) + 1))
        last = [node.versions[-1] for node in above if node is not None]
        gone = [revision for revision in last if not revision.alive]
        past = any(boundary is None or revision.slot <= boundary for revision in gone)
        if past and not stream.versions[-1].properties.get(KEEP_DATA):
            yield stream_location(stream)


def taken_datasets(draft: Draft, tables: Collection[str]) -> Iterator[tuple[str, str]]:
    """Of tables that come back, those whose dataset is at, inside or around that of another table by now, with that
    other one, which was registered there meanwhile: not before the slot that dropped the one that comes back."""
    for table in tables:
        before = draft.base.item(table, dropped=True)
        left = before.revision.slot if before is not None and not before.revision.alive else draft.base.at
        for folder in list(_folders(draft, table)):
            for other in tables_near(draft, folder, left):
                if other not in tables:
                    yield table, other


def tables_near(view: SlotView, folder: str, since: int = 0) -> Iterator[str]:
    """Return the keys of the tables with a dataset in a folder, inside of it or around it.

    `since`: only tables that came there in this slot or later. A transaction depends on it that no other one comes.
    """
    near = set(signs_near(folder))
    for table in dict.fromkeys(key.split("/")[0] for key in view.near(folder, since)):
        item = view.item(table) if table else None
        folders = _folders(view, table) if item is not None and item.node.kind == "table" else ()
        if any(not near.isdisjoint(signs_at(own)) for own in folders):
            yield table


def new_signs(draft: Draft) -> Iterator[str]:
    """Yield the signs of the datasets that there are after the transaction, and were not: what a `FolderRead` depends
    on."""
    for key, item in draft.items.items():
        before = draft.base.item(key, dropped=True) if item.revision.number > 1 else None
        came = before is None or not before.revision.alive
        if item.revision.alive:
            known = () if before is None or came else folders_of(item.node.kind, item.node.home, before.revision)
            for folder in folders_of(item.node.kind, item.node.home, item.revision):
                yield from () if folder in known else signs_at(folder)
            if before is not None and came:
                yield from _signs_below(draft.base.index, key)


def _signs_below(index: SlotIndex, key: str) -> Iterator[str]:
    for part in index.parts(key):
        node = index.node(part)
        for folder in folders_of(node.kind, node.home, node.versions[-1]) if node is not None else ():
            yield from signs_at(folder)
        yield from _signs_below(index, part)


def _folders(view: SlotView, table: str) -> Iterator[str]:
    for version in view.parts(table):
        items = [item for stream in view.parts(version) if (item := view.item(stream)) is not None]
        own = [location_of(i.revision.properties, i.node.home) for i in items if i.revision.parts[1] == LANCE_FORMAT]
        above = view.item(version)
        yield from own or ([default_location(above.node.home)] if above is not None else [])
