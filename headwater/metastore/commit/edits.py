"""The half of a transaction that edits namespaces and tables: rules over its draft. Nothing here does I/O."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import msgspec

from headwater.clock import Clock
from headwater.errors import (
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    TableAlreadyExistsError,
    TableNotFoundError,
)
from headwater.metastore.commit.draft import Draft
from headwater.metastore.records.disk_records import Node, Revision, own_properties
from headwater.metastore.records.layout import ROOT_NODE, ROOT_RECORD, below, canonical, digest
from headwater.metastore.records.objects import Object
from headwater.metastore.state.lookup import dropped_in, last_dropped, taken_datasets
from headwater.metastore.state.slot_views import (
    Item,
    Place,
    object_of,
    place_at,
    place_of,
    resolve,
    resolve_namespace,
    step,
)
from headwater.metastore.state.snapshot import Path, Reading
from headwater.names import ObjectId, check_new_name, format_name, object_id

PENDING = 1 << 62  # the slot of what an open transaction dropped
Self = TypeVar("Self", bound="ObjectEdits")
Given = ParamSpec("Given")
Answer = TypeVar("Answer")


def locked(method: Callable[Concatenate[Self, Given], Answer]) -> Callable[Concatenate[Self, Given], Answer]:
    """Hold the lock of the log while a method runs: no other thread folds the index on meanwhile."""

    @wraps(method)
    def guarded(self: Self, /, *args: Given.args, **kwargs: Given.kwargs) -> Answer:
        with self._log.lock:
            return method(self, *args, **kwargs)

    return guarded


class ObjectEdits(Reading):
    """The edits of a transaction to namespaces and tables as a whole."""

    draft: Draft
    _clock: Clock

    @abstractmethod
    def _ready(self) -> Draft:
        """Return the draft, if the transaction is open and its snapshot still kept."""

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Take back the changes of this block if it raises."""
        before = self._ready().copy()
        try:
            yield
        except BaseException:
            self.draft = before
            raise

    @locked
    def create_namespace(self, path: Path, properties: Mapping[str, object] | None = None) -> Object:
        """Create a namespace: its parent must exist, its name must be free among all children of any kind."""
        return object_of(self._create(path, "namespace", properties))

    def _create(self, path: Path, kind: str, properties: Mapping[str, object] | None, key: str | None = None) -> Place:
        """Create a namespace or table. `key`: the key that it gets, by default a new one."""
        draft, id, made = self._ready(), object_id(path), key or self._clock.uuid()
        if id.is_root:
            raise NamespaceAlreadyExistsError("The root namespace exists already.")
        if id is not path:
            check_new_name(id.name)  # the maker of an `ObjectId` has checked it
        parent = resolve_namespace(draft, id.parent)
        require_free(draft, parent, id.name)
        node = Node(made, made, kind, below(parent.item.node.home, made), [])
        revision = Revision(0, 0, "create", "", 0, parent.key, (id.name,), own_properties(properties))
        place = place_of(parent, Item(node, revision))
        draft.add(node, revision, place.path)
        draft.name(parent.key, digest(place.locator), made)
        return place

    @locked
    def update(self, path: Path, properties: Mapping[str, object]) -> Object:
        """Replace the properties: afterwards they are exactly these."""
        draft = self._ready()
        place = not_root(resolve(draft, object_id(path)))
        draft.change(_with(place.item, properties=own_properties(properties)), place.path)
        return self.get(path)

    @locked
    def update_root(self, properties: Mapping[str, object]) -> None:
        """Replace the properties of the root namespace: afterwards they are exactly these.

        The model has no object for the root. A record that is part of nothing holds its properties.
        """
        draft, known = self._ready(), own_properties(properties)
        before = draft.item(ROOT_NODE, dropped=True)
        if before is None:
            above, _, id = ROOT_NODE.rpartition("/")
            revision = Revision(0, 0, "create", "", 0, above, (id,), known)
            draft.add(Node(ROOT_NODE, id, "root", ROOT_RECORD, []), revision, ())
        else:
            draft.change(_with(before, properties=known), ())

    @locked
    def rename(self, path: Path, new_path: Path) -> None:
        """Rename or move a namespace or table. The ids and directories of all below it stay.

        Canonical Strings hold the names of all parents, so this changes the mapping files of the whole subtree.
        """
        draft, old, new = self._ready(), object_id(path), object_id(new_path)
        if new.is_root:
            raise NamespaceAlreadyExistsError("The root namespace exists already.")
        if new.name != old.name:
            check_new_name(new.name)
        place = not_root(resolve(draft, old))
        parent = resolve_namespace(draft, new.parent)
        if place.key in parent.keys:
            raise InvalidInputError(f"{old} cannot be moved to {new}: that is inside itself.")
        taken = step(draft, parent, new.name)
        if taken is not None and taken.key != place.key:
            raise exists(ObjectId((*parent.path, new.name)), taken)
        _move(draft, place, _parent_of(draft, place), parent, new.name)

    @locked
    def alias(self, path: Path, alias: str) -> None:
        """Give an object one more name beside its own. The name moves and is dropped with the object."""
        draft = self._ready()
        check_new_name(alias)
        place = not_root(resolve(draft, object_id(path)))
        parent = _parent_of(draft, place)
        require_free(draft, parent, alias)
        draft.name(parent.key, digest(canonical(parent.locator, alias)), place.key)
        draft.change(_with(place.item, aliases=(*place.item.revision.aliases, alias)), place.path)

    @locked
    def unalias(self, path: Path, alias: str) -> None:
        """Remove an alias of an object."""
        draft, id = self._ready(), object_id(path)
        place = not_root(resolve(draft, id))
        aliases = place.item.revision.aliases
        if alias not in aliases:
            raise TableNotFoundError(f"{id} has no alias {alias!r}.")
        parent = _parent_of(draft, place)
        draft.name(parent.key, digest(canonical(parent.locator, alias)), None)
        draft.change(_with(place.item, aliases=tuple(other for other in aliases if other != alias)), place.path)

    @locked
    def drop(self, path: Path, cascade: bool = False) -> None:
        """Drop a table, an empty namespace, or with cascade a namespace and all below it."""
        draft, id = self._ready(), object_id(path)
        place = not_root(resolve(draft, id))
        if place.key in draft.chosen:  # a caller that has chosen one version would lose the others
            raise InvalidInputError(
                f"A drop of {id} drops all its table versions, and {draft.chosen[place.key]!r} of them is chosen here: "
                "drop that version, or the table without choosing one."
            )
        if place.item.node.kind == "namespace" and not cascade and any(True for _ in draft.children(place.key)):
            raise NamespaceNotEmptyError(f"{id} is not empty: drop what is in it first, or drop with cascade.")
        _drop(draft, place, _parent_of(draft, place))

    @locked
    def undrop(self, path: Path) -> Object:
        """Bring back what was dropped last at this path, with all that the same transaction dropped below it.

        Raises InvalidTableState (19) if the Lance dataset of a table among it was registered as another table's.
        """
        id = object_id(path)
        if id.is_root:
            raise NamespaceAlreadyExistsError("The root namespace exists already.")
        with self.savepoint():
            draft = self.draft
            newest = last_dropped(draft, id)
            if newest is None:
                raise TableNotFoundError(f"Nothing that was dropped at {id} is kept any more.")
            parent = resolve_namespace(draft, id.parent)
            require_free(draft, parent, id.name)
            _check_datasets(draft, set(_bring_back(draft, parent, newest)))
            return object_of(resolve(draft, id))


def _parent_of(draft: Draft, place: Place) -> Place:
    return resolve_namespace(draft, ObjectId(place.path[:-1]))


def _move(draft: Draft, place: Place, before: Place, parent: Place, name: str) -> None:
    revision = place.item.revision
    aliases = tuple(alias for alias in revision.aliases if alias != name)
    for alias in aliases if parent.key != before.key else ():
        require_free(draft, parent, alias)  # every check before the first change: a refused edit leaves no trace
    for old_name in (revision.name, *revision.aliases):
        draft.name(before.key, digest(canonical(before.locator, old_name)), None)
    item = _with(place.item, parent=parent.key, parts=(name,), aliases=aliases)
    for new_name in (name, *aliases):
        draft.name(parent.key, digest(canonical(parent.locator, new_name)), place.key)
    moved = place_of(parent, item)
    draft.change(item, moved.path)
    _rename_below(draft, place, moved)


def _rename_below(draft: Draft, before: Place, after: Place) -> None:
    if before.item.node.kind != "namespace" or before.locator == after.locator:
        return
    for key in list(draft.children(before.key)):
        item = draft.item(key)
        assert item is not None
        for name in (item.revision.name, *item.revision.aliases):
            draft.name(before.key, digest(canonical(before.locator, name)), None)
            draft.name(before.key, digest(canonical(after.locator, name)), key)
        _rename_below(draft, place_of(before, item), place_of(after, item))


def _drop(draft: Draft, place: Place, parent: Place) -> None:
    if place.item.node.kind == "namespace":
        for key in list(draft.children(place.key)):
            item = draft.item(key)
            assert item is not None
            _drop(draft, place_of(place, item), place)
    for name in (place.item.revision.name, *place.item.revision.aliases):
        draft.name(parent.key, digest(canonical(parent.locator, name)), None)
    draft.change(_with(place.item, operation="delete", txn="", slot=PENDING), place.path)


def _bring_back(draft: Draft, parent: Place, item: Item) -> list[str]:
    """Make an object alive again with all that was dropped with it, and return the keys of these."""
    below_it = dropped_in(draft, item.node.key) if item.node.kind == "namespace" else []
    aliases = tuple(name for name in item.revision.aliases if step(draft, parent, name) is None)
    back = _with(item, operation="create", aliases=aliases, slot=0)
    place = place_of(parent, back)
    draft.change(back, place.path)
    for name in (back.revision.name, *aliases):
        draft.name(parent.key, digest(canonical(parent.locator, name)), item.node.key)
    found = [item.node.key]
    for child in reversed(below_it):
        together = child.revision.txn == item.revision.txn and child.revision.slot == item.revision.slot
        if together and step(draft, place, child.revision.name) is None:
            found += _bring_back(draft, place, child)
    return found


def _check_datasets(draft: Draft, tables: set[str]) -> None:
    """Raise InvalidTableState (19) if the Lance dataset of a table is that of another table now."""
    for table, other in taken_datasets(draft, tables):
        mine, its = (place_at(draft, key) for key in (table, other))
        assert mine is not None
        assert its is not None
        raise InvalidTableStateError(
            f"{format_name(mine.path)} cannot come back: its files were registered as the table "
            f"{format_name(its.path)}, which has them now."
        )


def require_free(draft: Draft, parent: Place, name: str) -> None:
    taken = step(draft, parent, name)
    if taken is not None:
        raise exists(ObjectId((*parent.path, name)), taken)


def exists(id: ObjectId, taken: Place) -> LanceNamespaceError:
    if taken.item.node.kind == "table":
        return TableAlreadyExistsError(f"A table {id} exists already.")
    return NamespaceAlreadyExistsError(f"A namespace {id} exists already.")


def not_root(place: Place) -> Place:
    if not place.path:
        raise InvalidInputError("The root namespace cannot be changed, renamed or dropped.")
    return place


def _with(item: Item, **changes: object) -> Item:
    values = {"operation": "update", **changes}
    return Item(item.node, msgspec.structs.replace(item.revision, **values))
