"""The state of an open transaction: the index at its snapshot with its own changes laid over it, and all it has read.

Reads are values: what the transaction depends on, and the last slot that changed it. `rules.conflict` refuses a
transaction if a slot after its snapshot changed one of them. Pure: reads look at an index.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import msgspec

from headwater.metastore.records.deltas import Segments
from headwater.metastore.records.disk_records import DataFile, Node, Revision
from headwater.metastore.records.objects import Delta, lifecycle_of
from headwater.metastore.records.serving_copy import signs_near
from headwater.metastore.state.index import NAMED, SlotIndex
from headwater.metastore.state.slot_views import IndexView, Item, Place


class NameRead(msgspec.Struct, frozen=True, tag="name", gc=False):
    """The object that a name in a namespace means, or that it means none."""

    changed: ClassVar[str] = "a name it read or wrote"
    parent: str
    digest: str

    @property
    def owner(self) -> str:
        return self.parent

    def last_change(self, index: SlotIndex) -> int:
        versions = index.name_versions(f"{self.parent}/{self.digest}")
        return versions[-1].slot if versions else 0


class _KeyRead(msgspec.Struct, frozen=True, gc=False):
    key: str

    @property
    def owner(self) -> str:
        """The key of the namespace or table that this is, or is a part of."""
        return self.key.partition("/")[0]


class ObjectRead(_KeyRead, frozen=True, tag="object", gc=False):
    """The content of an object: its name, its parent, its properties."""

    changed: ClassVar[str] = "an object it read or wrote"

    def last_change(self, index: SlotIndex) -> int:
        node = index.node(self.key)
        return node.versions[-1].slot if node is not None else 0


class PartRead(_KeyRead, frozen=True, tag="part", gc=False):
    """The existence of a part of a table, not its content."""

    changed: ClassVar[str] = "whether a part of a table is there"

    def last_change(self, index: SlotIndex) -> int:
        node = index.node(self.key)
        changes = reversed(node.versions) if node is not None else ()
        return next((revision.slot for revision in changes if revision.operation != "update"), 0)


class LifecycleRead(_KeyRead, frozen=True, tag="lifecycle", gc=False):
    """The existence and the lifecycle of a table version, not the rest of its content."""

    changed: ClassVar[str] = "the lifecycle of a table version"

    def last_change(self, index: SlotIndex) -> int:
        node = index.node(self.key)
        changed, state = 0, None
        for revision in reversed(node.versions) if node is not None else ():
            then = revision.alive, lifecycle_of(revision.properties)
            if state not in (None, then):
                break
            changed, state = revision.slot, then
        return changed


class ChildrenRead(_KeyRead, frozen=True, tag="children", gc=False):
    """The children or parts of an object, with their content."""

    changed: ClassVar[str] = "the children or parts of an object it read"

    def last_change(self, index: SlotIndex) -> int:
        return index.touched.get(self.key, index.since)


class MembersRead(_KeyRead, frozen=True, tag="members", gc=False):
    """The set of children or parts that an object has, not their content."""

    changed: ClassVar[str] = "which children or parts an object has"

    def last_change(self, index: SlotIndex) -> int:
        return index.members.get(self.key, index.since)


class LogRead(_KeyRead, frozen=True, tag="log", gc=False):
    """The deltas of a stream."""

    changed: ClassVar[str] = "the deltas of a stream it read"

    def last_change(self, index: SlotIndex) -> int:
        log = index.stream(self.key)
        return log.changed if log is not None else 0


class DeltaRead(_KeyRead, frozen=True, tag="delta", gc=False):
    """One delta of a stream: only a drop of that delta changes it."""

    changed: ClassVar[str] = "a delta it dropped"
    position: int

    def last_change(self, index: SlotIndex) -> int:
        log = index.stream(self.key)
        return log.dropped.get(self.position, 0) if log is not None else 0


class FolderRead(msgspec.Struct, frozen=True, tag="folder", gc=False):
    """The tables with a dataset in or around a folder, by one of its signs."""

    changed: ClassVar[str] = "which table has files that it gives to one"
    owner: ClassVar[str] = ""
    sign: str

    def last_change(self, index: SlotIndex) -> int:
        return index.datasets.came_by(self.sign)


Read = NameRead | ObjectRead | PartRead | LifecycleRead | ChildrenRead | MembersRead | LogRead | DeltaRead | FolderRead


@dataclass(slots=True)
class AppendedDelta:
    """A delta that a transaction appends. The commit assigns its position."""

    stream: str
    stream_home: str
    path: tuple[str, ...]
    partition: str
    values: tuple[Any, ...] | None
    type: str
    files: tuple[DataFile, ...]
    properties: dict[str, Any]
    wanted: int | None = None
    position: int | None = None
    unsynced_files: tuple[str, ...] = ()
    """Files to sync before the slot that refers to them has its name."""


@dataclass(frozen=True, slots=True)
class DroppedDelta:
    """A delta that a transaction drops, by its stream and partition."""

    stream: str
    stream_home: str
    path: tuple[str, ...]
    partition: str
    position: int


@dataclass(slots=True)
class Draft:
    """The reads and writes of a transaction over its base. The commit compiles the writes into a slot."""

    base: IndexView
    reads: set[Read] = field(default_factory=set)
    items: dict[str, Item] = field(default_factory=dict)
    paths: dict[str, tuple[str, ...]] = field(default_factory=dict)
    names: dict[tuple[str, str], str | None] = field(default_factory=dict)
    moved: dict[str, dict[str, bool]] = field(default_factory=dict)
    new_parts: dict[str, list[str]] = field(default_factory=dict)
    appends: list[AppendedDelta] = field(default_factory=list)
    dropped_deltas: list[DroppedDelta] = field(default_factory=list)
    txn: str = ""
    """The id of the transaction, which its own deltas have as those that are committed have."""
    places: dict[tuple[str, ...], Place] = field(default_factory=dict)
    """A cache of the places of namespaces and tables since the last change of one. Their look-ups are in `reads`."""

    @property
    def index(self) -> SlotIndex:
        return self.base.index

    @property
    def at(self) -> int:
        return self.base.at

    @property
    def chosen(self) -> Mapping[str, str]:
        return self.base.chosen

    @property
    def empty(self) -> bool:
        return not (self.items or self.names or self.appends or self.dropped_deltas)

    @property
    def unsynced(self) -> list[str]:
        """The files that a power cut may still take."""
        return [file for append in self.appends for file in append.unsynced_files]

    def copy(self) -> Draft:
        """Return a copy, for a savepoint."""
        return Draft(
            self.base,
            set(self.reads),
            dict(self.items),
            dict(self.paths),
            dict(self.names),
            {key: dict(children) for key, children in self.moved.items()},
            {key: list(keys) for key, keys in self.new_parts.items()},
            list(self.appends),
            list(self.dropped_deltas),
            self.txn,
        )

    def unnoted(self) -> Draft:
        """Return the same state for reads that are no dependency of the transaction."""
        return replace(self, reads=set(), places={})

    def is_committed(self, key: str) -> bool:
        return self.base.item(key, dropped=True) is not None

    # Reading (the SlotView protocol)

    def mapped(self, parent: str, digest: str) -> str | None:
        self.reads.add(NameRead(parent, digest))
        if (parent, digest) in self.names:
            return self.names[parent, digest]
        return self.base.mapped(parent, digest)

    def item(self, key: str, dropped: bool = False) -> Item | None:
        own = self.items.get(key)
        if own is None:
            return self.base.item(key, dropped)
        return own if dropped or own.revision.alive else None

    def children(self, key: str) -> Iterable[str]:
        self.reads.add(ChildrenRead(key))
        own = self.moved.get(key)
        if own is None:
            return self.base.children(key)
        found = {child: None for child in self.base.children(key) if own.get(child, True)}
        return {**found, **{child: None for child, here in own.items() if here}}

    def part(self, key: str) -> Item | None:
        self.reads.add(PartRead(key))
        return self.item(key)

    def table_versions(self, key: str) -> Iterator[Item]:
        for part in reversed(list(self.parts(key))):
            self.reads.add(LifecycleRead(part))
            item = self.item(part)
            if item is not None:
                yield item

    def parts(self, key: str) -> Iterable[str]:
        self.reads.add(MembersRead(key))
        candidates = [*self.base.parts(key), *self.new_parts.get(key, ())]
        return [part for part in candidates if self.item(part) is not None]

    def past(self, key: str) -> Iterable[str]:
        self.reads.add(ChildrenRead(key))
        gone = [child for child, here in self.moved.get(key, {}).items() if not here]
        return [*self.base.past(key), *gone]

    def near(self, folder: str, since: int) -> Iterable[str]:
        self.reads.update(FolderRead(sign) for sign in signs_near(folder))
        return (*self.base.near(folder, since), *self.items)

    def child_names(self, parent: Place, kind: str) -> list[str]:
        self.reads.add(ChildrenRead(parent.key))
        known, own = self.base.child_names(parent, kind), self.moved.get(parent.key)
        if not own:
            return known
        before = (self.base.item(child) for child in own)
        gone = {item.revision.name for item in before if item is not None and item.revision.parent == parent.key}
        items = (self.item(child) for child, here in own.items() if here)
        come = {item.revision.name for item in items if item is not None and item.node.kind == kind}
        return sorted(come.union(known) if not gone else come.union(name for name in known if name not in gone))

    def deltas(self, segments: Segments, stream: str, after: int = 0, partition: str | None = None) -> list[Delta]:
        """Return the committed deltas that the transaction does not drop, then its own at provisional positions.

        A delta without a wanted position gets its real one at the commit, after those that others have landed by then.
        """
        self.reads.add(LogRead(stream))
        found = self.base.deltas(segments, stream, after, partition, self._dropped(stream))
        own = (own for own in self._own(segments, stream) if own.position > after)
        return [*found, *(each for each in own if partition is None or each.partition == partition)]

    def delta(self, segments: Segments, stream: str, position: int) -> Delta | None:
        self.reads.add(LogRead(stream))
        for own in self._own(segments, stream):
            if own.position == position:
                return own
        return None if position in self._dropped(stream) else self.base.delta(segments, stream, position)

    def newest_delta(self, segments: Segments, stream: str) -> Delta | None:
        self.reads.add(LogRead(stream))
        own = self._last_own(segments, stream)
        return own if own is not None else self.base.newest_delta(segments, stream, self._dropped(stream))

    def last_position(self, segments: Segments, stream: str) -> int:
        self.reads.add(LogRead(stream))
        own = self._last_own(segments, stream)
        return own.position if own is not None else self.base.last_position(segments, stream)

    def positions(self, segments: Segments, stream: str) -> list[int]:
        return [delta.position for delta in self.deltas(segments, stream)]

    def last_positions(self, segments: Segments, stream: str, count: int, before: int | None = None) -> list[int]:
        found = [position for position in self.positions(segments, stream) if before is None or position < before]
        return found[::-1][:count]

    def own_deltas(self, stream: str) -> Sequence[AppendedDelta]:
        """Return the deltas that the transaction appends to a stream."""
        return [append for append in self.appends if append.stream == stream]

    def _own(self, segments: Segments, stream: str) -> list[Delta]:
        appends, found = self.own_deltas(stream), list[Delta]()
        position = self.base.last_position(segments, stream) if appends else 0
        for each in appends:
            position = each.wanted if each.wanted is not None else position + 1
            found.append(self._shown(each, position))
        return found

    def _last_own(self, segments: Segments, stream: str) -> Delta | None:
        """Return the last delta that the transaction appends to a stream. Thousands may come before it."""
        last = next((append for append in reversed(self.appends) if append.stream == stream), None)
        if last is not None and last.wanted is not None:
            return self._shown(last, last.wanted)
        return None if last is None else self._own(segments, stream)[-1]

    def _shown(self, each: AppendedDelta, position: int) -> Delta:
        made = (position, each.type, each.files, each.partition, dict(each.properties), self.at, self.txn, 0)
        return Delta(*made, values=each.values)

    def _dropped(self, stream: str) -> set[int]:
        return {drop.position for drop in self.dropped_deltas if drop.stream == stream}

    # Writing

    def depend_on(self, key: str) -> None:
        """Note that the content of an object was read, or will be replaced: a change by others is a conflict."""
        self.reads.add(ObjectRead(key))

    def depend_on_children(self, key: str) -> None:
        self.reads.add(ChildrenRead(key))

    def add(self, node: Node, revision: Revision, path: tuple[str, ...]) -> None:
        """Add a new object."""
        self.depend_on(node.key)
        self.items[node.key] = Item(node, revision)
        self.paths[node.key] = path
        if node.kind in NAMED:
            self.places.clear()
            self.moved.setdefault(revision.parent, {})[node.key] = True
        else:
            self.new_parts.setdefault(revision.parent, []).append(node.key)

    def change(self, item: Item, path: tuple[str, ...]) -> None:
        """Give an object that exists or existed a new state."""
        key = item.node.key
        self.depend_on(key)
        before = self.item(key, dropped=True)
        assert before is not None
        self.items[key] = item
        self.paths[key] = path
        if item.node.kind not in NAMED:
            there = self.new_parts.setdefault(item.revision.parent, [])
            if item.revision.alive and key not in there and self.base.item(key) is None:
                there.append(key)  # it comes back
            return
        self.places.clear()
        if before.revision.alive:
            self.moved.setdefault(before.revision.parent, {})[key] = False
        if item.revision.alive:
            self.moved.setdefault(item.revision.parent, {})[key] = True

    def name(self, parent: str, digest: str, key: str | None) -> None:
        """Map a name to an object, or to nothing."""
        self.reads.add(NameRead(parent, digest))
        self.places.clear()
        self.names[parent, digest] = key
