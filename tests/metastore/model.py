"""The metastore as a plain value, for comparison: a tree of dictionaries, copied at every commit."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headwater.errors import (
    InvalidInputError,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NamespaceNotFoundError,
    TableAlreadyExistsError,
    TableNotFoundError,
)
from headwater.metastore import Metastore, Snapshot

Path = Sequence[str]


@dataclass
class Thing:
    """A namespace or table of the model. Its id is not modelled: `stamp` says which create made it."""

    kind: str
    stamp: int
    properties: dict[str, Any] = field(default_factory=dict)
    children: dict[str, Thing] = field(default_factory=dict)
    aliases: set[str] = field(default_factory=set)
    deltas: list[str] = field(default_factory=list)


@dataclass
class Grave:
    """What a transaction dropped: where, and after which slot it was gone."""

    parent: int
    name: str
    thing: Thing
    slot: int


@dataclass
class Model:
    root: Thing = field(default_factory=lambda: Thing("namespace", 0))
    graves: list[Grave] = field(default_factory=list)
    stamps: int = 0
    fresh: int = 0

    def copied(self) -> Model:
        """A copy for a transaction: what it creates and drops again was never there."""
        made = copy.deepcopy(self)
        made.fresh = made.stamps
        return made

    def find(self, path: Path) -> Thing:
        thing = self.root
        for level, name in enumerate(path, 1):
            found = self._child(thing, name) if thing.kind == "namespace" else None
            if found is None:
                raise NamespaceNotFoundError("") if level < len(path) or level == 1 else TableNotFoundError("")
            thing = found
        return thing

    def namespace(self, path: Path) -> Thing:
        found = self.find(path)
        if found.kind != "namespace":
            raise NamespaceNotFoundError("")
        return found

    def _child(self, parent: Thing, name: str) -> Thing | None:
        if name in parent.children:
            return parent.children[name]
        return next((child for child in parent.children.values() if name in child.aliases), None)

    def _free(self, parent: Thing, name: str) -> None:
        taken = self._child(parent, name)
        if taken is not None:
            raise TableAlreadyExistsError("") if taken.kind == "table" else NamespaceAlreadyExistsError("")

    def create(self, path: Path, kind: str, properties: dict[str, Any]) -> None:
        parent = self.namespace(path[:-1])
        self._free(parent, path[-1])
        self.stamps += 1
        parent.children[path[-1]] = Thing(kind, self.stamps, dict(properties))

    def update(self, path: Path, properties: dict[str, Any]) -> None:
        self.find(path).properties = dict(properties)

    def append(self, path: Path, name: str) -> None:
        found = self.find(path)
        if found.kind != "table":
            raise TableNotFoundError("")
        found.deltas.append(name)

    def place(self, path: Path) -> tuple[Thing, str]:
        """The parent, and the own name (an alias names the same object)."""
        thing, parent = self.find(path), self.find(path[:-1])
        return parent, next(name for name, child in parent.children.items() if child is thing)

    def rename(self, old: Path, new: Path) -> None:
        thing = self.find(old)
        target = self.namespace(new[:-1])
        if self._holds(thing, target):
            raise InvalidInputError("")
        parent, name = self.place(old)
        taken = self._child(target, new[-1])
        if taken is not None and taken is not thing:
            self._free(target, new[-1])
        aliases = thing.aliases - {new[-1]}
        for alias in aliases if target is not parent else ():
            self._free(target, alias)
        del parent.children[name]
        thing.aliases = aliases
        target.children[new[-1]] = thing

    def _holds(self, thing: Thing, other: Thing) -> bool:
        return thing is other or any(self._holds(child, other) for child in thing.children.values())

    def alias(self, path: Path, name: str) -> None:
        thing = self.find(path)
        self._free(self.place(path)[0], name)
        thing.aliases.add(name)

    def drop(self, path: Path, cascade: bool, slot: int) -> None:
        thing = self.find(path)
        if thing.children and not cascade:
            raise NamespaceNotEmptyError("")
        parent, name = self.place(path)
        del parent.children[name]
        if thing.stamp <= self.fresh:
            self._forget_fresh(thing)
            self.graves.append(Grave(parent.stamp, name, thing, slot))

    def _forget_fresh(self, thing: Thing) -> None:
        thing.children = {name: child for name, child in thing.children.items() if child.stamp <= self.fresh}
        for child in thing.children.values():
            self._forget_fresh(child)

    def undrop(self, path: Path, boundary: int) -> None:
        parent = self.namespace(path[:-1])
        found = [grave for grave in self.graves if (grave.parent, grave.name) == (parent.stamp, path[-1])]
        kept = [grave for grave in found if grave.slot > boundary]
        if not kept:
            raise TableNotFoundError("")
        self._free(parent, path[-1])
        grave = kept[-1]
        grave.thing.aliases = {alias for alias in grave.thing.aliases if self._child(parent, alias) is None}
        self.graves.remove(grave)
        parent.children[path[-1]] = grave.thing

    def grave_path(self, choice: int) -> list[str] | None:
        """Where one of the dropped things stood, if its parent still stands."""
        grave = self.graves[choice % len(self.graves)]
        stamps = {0: (), **dict(self._stamps(self.root, ()))}
        return [*stamps[grave.parent], grave.name] if grave.parent in stamps else None

    def _stamps(self, thing: Thing, path: tuple[str, ...]) -> Any:
        for name, child in thing.children.items():
            if child.kind == "namespace":
                yield child.stamp, (*path, name)
                yield from self._stamps(child, (*path, name))

    def tree(self) -> dict[tuple[str, ...], Any]:
        return dict(self._tree(self.root, ()))

    def _tree(self, thing: Thing, path: tuple[str, ...]) -> Any:
        for name, child in thing.children.items():
            yield (*path, name), (child.kind, child.properties, tuple(sorted(child.aliases)), tuple(child.deltas))
            yield from self._tree(child, (*path, name))


def tree_of(store: Metastore | Snapshot) -> dict[tuple[str, ...], Any]:
    """All that a metastore shows, in the model's terms."""
    return dict(_tree_of(store.now() if isinstance(store, Metastore) else store, ()))


def _tree_of(view: Snapshot, path: tuple[str, ...]) -> Any:
    for child in view.list(path):
        deltas = view.deltas(child.path) if child.kind == "table" else []
        assert [delta.position for delta in deltas] == list(range(1, len(deltas) + 1))
        files = tuple(delta.files[0].path for delta in deltas)
        yield child.path, (child.kind, child.properties, tuple(sorted(child.aliases)), files)
        for alias in child.aliases:
            assert view.get((*path, alias)).id == child.id
        if child.kind == "namespace":
            yield from _tree_of(view, child.path)
