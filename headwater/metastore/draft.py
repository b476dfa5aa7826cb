"""An open transaction's view: the index at its snapshot with its own changes laid over it, and all it has read.

Reads are noted as short texts, checked at commit by `rules.conflict`: `n` a name, `o` an object, `c` the children of a
namespace, `m` only which children or parts there are, `e` only whether a part is there, `d` the deltas of a stream,
`x` one delta, `l` the datasets in and around a folder.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from headwater.metastore.index import NAMED
from headwater.metastore.records import DataFile, Node, Revision
from headwater.metastore.serving_copy import signs_near
from headwater.metastore.slot_views import IndexView, Item, Place


@dataclass(slots=True)
class AppendedDelta:
    """A delta that was asked for. Its position is known once the transaction is committed."""

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


@dataclass(frozen=True, slots=True)
class DroppedDelta:
    """A delta that is to go, by the stream and partition it is in."""

    stream: str
    stream_home: str
    path: tuple[str, ...]
    partition: str
    position: int


@dataclass(slots=True)
class Draft:
    """Reads fall through to the base; writes stay here until they are compiled into a slot."""

    base: IndexView
    reads: set[str] = field(default_factory=set)
    items: dict[str, Item] = field(default_factory=dict)
    paths: dict[str, tuple[str, ...]] = field(default_factory=dict)
    names: dict[tuple[str, str], str | None] = field(default_factory=dict)
    moved: dict[str, dict[str, bool]] = field(default_factory=dict)
    new_parts: dict[str, list[str]] = field(default_factory=dict)
    appends: list[AppendedDelta] = field(default_factory=list)
    dropped_deltas: list[DroppedDelta] = field(default_factory=list)
    places: dict[tuple[str, ...], Place] = field(default_factory=dict)
    """Where namespaces and tables are, as far as it looked and has not changed any since. That it did is in `reads`."""

    @property
    def empty(self) -> bool:
        return not (self.items or self.names or self.appends or self.dropped_deltas)

    def copy(self) -> Draft:
        """As it is now, to come back to when a change breaks off half way."""
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
        )

    def unnoted(self) -> Draft:
        """The same to look at: what is read by it binds the transaction to nothing."""
        return replace(self, reads=set(), places={})

    # Reading (the View protocol)

    def mapped(self, parent: str, digest: str) -> str | None:
        self.reads.add(f"n{parent}/{digest}")
        if (parent, digest) in self.names:
            return self.names[parent, digest]
        return self.base.mapped(parent, digest)

    def item(self, key: str, dropped: bool = False) -> Item | None:
        own = self.items.get(key)
        if own is None:
            return self.base.item(key, dropped)
        return own if dropped or own.revision.alive else None

    def children(self, key: str) -> Iterable[str]:
        self.reads.add(f"c{key}")
        own = self.moved.get(key)
        if own is None:
            return self.base.children(key)
        found = {child: None for child in self.base.children(key) if own.get(child, True)}
        return {**found, **{child: None for child, here in own.items() if here}}

    def part(self, key: str) -> Item | None:
        self.reads.add(f"e{key}")
        return self.item(key)

    def parts(self, key: str) -> Iterable[str]:
        self.reads.add(f"m{key}")
        candidates = [*self.base.parts(key), *self.new_parts.get(key, ())]
        return [part for part in candidates if self.item(part) is not None]

    def past(self, key: str) -> Iterable[str]:
        self.reads.add(f"c{key}")
        gone = [child for child, here in self.moved.get(key, {}).items() if not here]
        return [*self.base.past(key), *gone]

    def looked_near(self, folder: str) -> None:
        """Which tables have a dataset in a folder, inside of it or around it was looked at."""
        self.reads.update(f"l{sign}" for sign in signs_near(folder))

    # Writing

    def relied_on(self, key: str) -> None:
        """The content of this object was read, or will be replaced: nobody else may have changed it meanwhile."""
        self.reads.add(f"o{key}")

    def add(self, node: Node, revision: Revision, path: tuple[str, ...]) -> None:
        """A new object."""
        self.relied_on(node.key)
        self.items[node.key] = Item(node, revision)
        self.paths[node.key] = path
        if node.kind in NAMED:
            self.places.clear()
            self.moved.setdefault(revision.parent, {})[node.key] = True
        else:
            self.new_parts.setdefault(revision.parent, []).append(node.key)

    def change(self, item: Item, path: tuple[str, ...]) -> None:
        """A new state of an object that exists or existed."""
        key = item.node.key
        self.relied_on(key)
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
        self.reads.add(f"n{parent}/{digest}")
        self.places.clear()
        self.names[parent, digest] = key
