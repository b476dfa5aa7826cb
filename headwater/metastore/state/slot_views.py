"""Reading names and objects at one slot. The same functions serve the present, the past and an open transaction."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from headwater.errors import LanceNamespaceError, NamespaceNotFoundError, TableNotFoundError
from headwater.metastore.records.deltas import Segments, find_stored, last_position, newest_first, read_deltas
from headwater.metastore.records.disk_records import Node, Revision, decode_delta, own_values
from headwater.metastore.records.layout import ROOT_NODE, canonical, digest
from headwater.metastore.records.objects import Delta, Object, delta_of
from headwater.metastore.records.serving_copy import signs_near
from headwater.metastore.state.index import SlotIndex
from headwater.names import ObjectId


class Item(NamedTuple):
    """An object and the revision of it that is looked at."""

    node: Node
    revision: Revision


class Place(NamedTuple):
    """An object found by its path: its names from the root as they are (not aliases), and the keys on the way."""

    item: Item
    path: tuple[str, ...]
    locator: str
    keys: tuple[str, ...]

    @property
    def key(self) -> str:
        return self.item.node.key


REMEMBERED = 1000
"""So many places of namespaces and tables are kept."""
MOMENTS = 100
"""So many lists of names of the past are kept."""

ROOT = Place(Item(Node("", "", "namespace", "", []), Revision(0, 0, "create", "", 0, "", ("",), {})), (), "", ("",))


class SlotView(Protocol):
    """The state of the catalog that is read: the index at a slot, or a draft over it, which notes its reads."""

    @property
    def index(self) -> SlotIndex: ...

    @property
    def at(self) -> int:
        """The slot that is read."""
        ...

    @property
    def places(self) -> dict[tuple[str, ...], Place]:
        """Cached paths of namespaces and tables."""
        ...

    @property
    def chosen(self) -> Mapping[str, str]:
        """By the key of a table, the version that is read and written in place of the active one."""
        ...

    def mapped(self, parent: str, digest: str) -> str | None:
        """Return the id a Name Resolution Directory below the parent maps to."""
        ...

    def item(self, key: str, dropped: bool = False) -> Item | None:
        """Return the object, unless it does not exist then (or is dropped, if dropped ones are not asked for)."""
        ...

    def children(self, key: str) -> Iterable[str]:
        """Return the keys of the namespaces and tables in a namespace."""
        ...

    def part(self, key: str) -> Item | None:
        """Return a version, stream or partition, unless it does not exist then."""
        ...

    def table_versions(self, key: str) -> Iterator[Item]:
        """Return the versions of a table, the newest first. Each that is taken is judged by its lifecycle."""
        ...

    def parts(self, key: str) -> Iterable[str]:
        """Return the keys of a table's versions, a version's streams, a stream's partitions, in order of creation."""
        ...

    def past(self, key: str) -> Iterable[str]:
        """Return the keys of all that ever left a namespace, by being dropped or moved."""
        ...

    def child_names(self, parent: Place, kind: str) -> Sequence[str]:
        """Return the sorted names of the children of a kind; not to be changed."""
        ...

    def deltas(self, segments: Segments, stream: str, after: int = 0, partition: str | None = None) -> list[Delta]:
        """Return the deltas of a stream after a position, ascending; of one partition, by its id."""
        ...

    def delta(self, segments: Segments, stream: str, position: int) -> Delta | None: ...

    def newest_delta(self, segments: Segments, stream: str) -> Delta | None: ...

    def last_position(self, segments: Segments, stream: str) -> int:
        """Return the last position that was given out in a stream, dropped deltas included; 0 if there is none."""
        ...

    def positions(self, segments: Segments, stream: str) -> list[int]:
        """Return the positions of all deltas of a stream, ascending."""
        ...

    def last_positions(self, segments: Segments, stream: str, count: int, before: int | None = None) -> list[int]:
        """At most `count` positions of a stream, from the last (before one) back."""
        ...

    def near(self, folder: str, since: int) -> Iterable[str]:
        """The keys of tables that may have a dataset in or around a folder, which came there in a slot or later."""
        ...

    def is_committed(self, key: str) -> bool:
        """Return True unless an open transaction has made the object itself."""
        ...

    def unnoted(self) -> SlotView:
        """Return the same state without noting reads."""
        ...

    def depend_on(self, key: str) -> None:
        """Note that the content of an object was read, if reads are noted."""
        ...

    def depend_on_children(self, key: str) -> None:
        """Note that the children or parts of an object were read, if reads are noted."""
        ...


NOTHING_CHOSEN: Mapping[str, str] = MappingProxyType({})


class IndexView:
    """The index at a slot. Its reads are no dependency of anybody."""

    def __init__(self, index: SlotIndex, at: int, chosen: Mapping[str, str] = NOTHING_CHOSEN) -> None:
        self.index = index
        self.at = at
        self.chosen = chosen
        self._places: dict[tuple[str, ...], Place] = {}
        self._last_read: tuple[object, list[Delta]] = (None, [])

    @property
    def places(self) -> dict[tuple[str, ...], Place]:
        """The places of paths; all views of the newest slot share theirs."""
        return self.index.resolved if self.at == self.index.slot else self._places

    @property
    def is_newest(self) -> bool:
        """True if this view reads the newest slot that the index knows."""
        return self.at == self.index.slot

    def mapped(self, parent: str, digest: str) -> str | None:
        version = version_at(self.index.name_versions(f"{parent}/{digest}"), self.at)
        return None if version is None or version.operation == "delete" else str(version.object_id)

    def item(self, key: str, dropped: bool = False) -> Item | None:
        node = self.index.node(key)
        if node is None:
            return None
        revision = version_at(node.versions, self.at)
        if revision is None or not (dropped or revision.alive):
            return None
        return Item(node, revision)

    def children(self, key: str) -> Iterable[str]:
        live = [child.key for child in self.index.children.of(key).values()]
        if self.is_newest:
            return live
        candidates = dict.fromkeys((*live, *self.index.past.of(key)))
        return [child for child in candidates if (item := self.item(child)) and item.revision.parent == key]

    def part(self, key: str) -> Item | None:
        return self.item(key)

    def table_versions(self, key: str) -> Iterator[Item]:
        items = map(self.item, reversed(self.index.parts(key)))
        return (item for item in items if item is not None)

    def parts(self, key: str) -> Iterable[str]:
        return [part for part in self.index.parts(key) if self.item(part) is not None]

    def past(self, key: str) -> Iterable[str]:
        return self.index.past.of(key)

    def child_names(self, parent: Place, kind: str) -> list[str]:
        return names_of(self, parent, kind)

    def deltas(
        self,
        segments: Segments,
        stream: str,
        after: int = 0,
        partition: str | None = None,
        without: Collection[int] = (),
    ) -> list[Delta]:
        asked = (stream, after, partition, tuple(without))
        if self._last_read[0] == asked:  # a publish asks several times for the same, which may be thousands
            return list(self._last_read[1])
        log = self.index.stream(stream)
        found: list[Delta] = []
        for stored in read_deltas(segments, stream, log, after, self.at) if log is not None else ():
            body = decode_delta(stream, stored.body) if stored.position not in without else None
            if body is not None and (partition is None or body.partition == partition):
                found.append(delta_of(body, stored.slot))
        self._last_read = asked, found
        return list(found)

    def delta(self, segments: Segments, stream: str, position: int) -> Delta | None:
        stored = find_stored(segments, stream, self.index.deltas(stream), position, self.at)
        return None if stored is None else delta_of(decode_delta(stream, stored.body), stored.slot)

    def newest_delta(self, segments: Segments, stream: str, without: Collection[int] = ()) -> Delta | None:
        for stored in newest_first(segments, stream, self.index.deltas(stream), self.at):
            if stored.position not in without:
                return delta_of(decode_delta(stream, stored.body), stored.slot)
        return None

    def last_position(self, segments: Segments, stream: str) -> int:
        log = self.index.stream(stream)
        return 0 if log is None else last_position(segments, stream, log, self.at)

    def positions(self, segments: Segments, stream: str) -> list[int]:
        log = self.index.deltas(stream)
        return [stored.position for stored in read_deltas(segments, stream, log, 0, self.at)]

    def last_positions(self, segments: Segments, stream: str, count: int, before: int | None = None) -> list[int]:
        log = self.index.deltas(stream)
        return [stored.position for stored in islice(newest_first(segments, stream, log, self.at, before), count)]

    def near(self, folder: str, since: int) -> Iterable[str]:
        return [table for sign in signs_near(folder) for table in self.index.tables_by(sign, since)]

    def is_committed(self, key: str) -> bool:
        return True

    def unnoted(self) -> IndexView:
        return self

    def depend_on(self, key: str) -> None:
        pass

    def depend_on_children(self, key: str) -> None:
        pass


def version_at(versions: Sequence[Any], at: int) -> Any:
    """Return the version that holds at a slot, or None."""
    if not versions:
        return None
    if versions[-1].slot <= at:
        return versions[-1]
    position = bisect_right(versions, at, key=lambda version: version.slot)
    return versions[position - 1] if position else None


def resolve(view: SlotView, id: ObjectId) -> Place:
    """Follow the Name Resolution Directories from the root to the object, or raise NotFound.

    What was found once is remembered by the view for as long as it holds: many tables share a namespace, and one
    operation asks for its table many times."""
    found = seek(view, id)
    if isinstance(found, int):
        raise not_found(id, found)
    return found


def seek(view: SlotView, id: ObjectId) -> Place | int:
    """Return the object of an id, or the level of the first name that is missing: an error costs more than a look."""
    places = view.places
    known = places.get(id.names)
    return _seek(view, places, id) if known is None else known


def _seek(view: SlotView, places: dict[tuple[str, ...], Place], id: ObjectId) -> Place | int:
    place = ROOT
    for level, name in enumerate(id.names, 1):
        names = id.names[:level]
        found = places.get(names)
        if found is None:
            found = step(view, place, name) if place.item.node.kind == "namespace" else None
            if found is None:
                return level
            if len(places) >= REMEMBERED:
                places.clear()
            places[names] = found
        place = found
    return place


def step(view: SlotView, parent: Place, name: str) -> Place | None:
    """Return a namespace's child of this name or alias, or None."""
    locator = canonical(parent.locator, name)
    key = view.mapped(parent.key, digest(locator))
    item = view.item(key) if key is not None else None
    if key is None or item is None:
        return None
    same = item.revision.name == name
    return Place(item, (*parent.path, name), locator, (*parent.keys, key)) if same else place_of(parent, item)


def place_of(parent: Place, item: Item) -> Place:
    name = item.revision.name
    return Place(item, (*parent.path, name), canonical(parent.locator, name), (*parent.keys, item.node.key))


def place_at(view: SlotView, key: str) -> Place | None:
    """Return the path of the object with a key; None if it or an ancestor is dropped, or if it is its own ancestor."""
    items: list[Item] = []
    while key:
        item = view.item(key)
        if item is None or item in items:
            return None
        items.append(item)
        key = item.revision.parent
    place = ROOT
    for item in reversed(items):
        place = place_of(place, item)
    return place


def resolve_namespace(view: SlotView, id: ObjectId) -> Place:
    place = resolve(view, id)
    if place.item.node.kind != "namespace":
        raise NamespaceNotFoundError(f"{id} is a table, not a namespace.")
    return place


def resolve_table(view: SlotView, id: ObjectId) -> Place:
    place = resolve(view, id)
    if place.item.node.kind != "table":
        raise TableNotFoundError(f"{id} is a namespace, not a table.")
    return place


def root_properties(view: SlotView) -> dict[str, object]:
    """Return the properties of the root namespace."""
    item = view.item(ROOT_NODE)
    return own_values(item.revision.properties) if item is not None else {}


def not_found(id: ObjectId, level: int) -> LanceNamespaceError:
    """A missing namespace on the way is 1; a missing last name is 1 at the top level and 4 below it."""
    missing = ObjectId(id.names[:level])
    if level < id.level:
        return NamespaceNotFoundError(f"There is no namespace {missing}, so there is no {id}.")
    if level == 1:
        return NamespaceNotFoundError(f"There is no namespace or table {missing}.")
    return TableNotFoundError(f"There is no table or namespace {missing}.")


def children_of(view: SlotView, parent: Place) -> list[Object]:
    """Return the namespaces and tables in a namespace, sorted by name."""
    found: list[Object] = []
    for key in view.children(parent.key):
        item = view.item(key)
        if item is not None:
            found.append(_child(parent, item))
    found.sort(key=attrgetter("name"))
    return found


def names_of(view: IndexView, parent: Place, kind: str) -> list[str]:
    """Return the sorted names of the children of a kind. They are kept: those of the present until a child changes, and
    those of a moment in the past, which never change, if a child has changed since."""
    index, key = view.index, parent.key
    changed = index.touched.get(key, index.since)
    if view.at < changed:
        return _names_then(view, key, kind)
    known = index.sorted_names.get((key, kind))
    if known is None or known[0] != changed:
        found = sorted(name for name, child in index.children.of(key).items() if child.kind == kind)
        known = index.sorted_names[key, kind] = changed, found
    return known[1]


def _names_then(view: IndexView, key: str, kind: str) -> list[str]:
    kept = view.index.names_then
    found = kept.get((key, kind, view.at))
    if found is None:
        items = (view.item(child) for child in view.children(key))
        found = sorted(item.revision.name for item in items if item is not None and item.node.kind == kind)
        if len(kept) >= MOMENTS:
            kept.clear()
        kept[key, kind, view.at] = found
    return found


def _child(parent: Place, item: Item) -> Object:
    name = item.revision.name
    return _object(item, (*parent.path, name), canonical(parent.locator, name))


def object_of(place: Place) -> Object:
    return _object(place.item, place.path, place.locator)


def part_of(view: SlotView, table: Place, key: str) -> Object:
    """Return a version, stream or partition of a table, as an object. Its locator has the parts of all above it."""
    item = view.item(key)
    assert item is not None
    locator = table.locator
    names = key.removeprefix(table.key + "/").split("/")
    for end in range(1, len(names) + 1):
        above = view.item("/".join((table.key, *names[:end])))
        if above is not None:
            locator = canonical(locator, *(part_text(part) for part in above.revision.parts))
    return _object(item, table.path, locator)


def part_text(part: Any) -> str:
    if part is None:
        return ""
    return part if isinstance(part, str) else ",".join(str(value) for value in part)


def _object(item: Item, path: tuple[str, ...], locator: str) -> Object:
    node, revision = item
    return Object(
        node.id,
        revision.name,
        node.kind,
        own_values(revision.properties),
        revision.number,
        path,
        locator,
        node.home,
        revision.parts,
        revision.aliases,
        revision.slot,
        revision.time,
        node.key,
    )
