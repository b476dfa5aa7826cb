"""Edits of namespaces and tables in a transaction: rules over its draft. Nothing here does I/O."""

from __future__ import annotations

import msgspec

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
from headwater.metastore.records.disk_records import Node, Revision
from headwater.metastore.records.layout import ROOT_NODE, ROOT_RECORD, below, canonical, digest
from headwater.metastore.state.dataset_folders import taken_datasets
from headwater.metastore.state.slot_views import (
    Item,
    Place,
    SlotView,
    place_at,
    place_of,
    resolve,
    resolve_namespace,
    step,
)
from headwater.names import ObjectId, check_new_name, format_name

PENDING = 1 << 62  # the slot of what an open transaction dropped


def create(draft: Draft, id: ObjectId, kind: str, key: str, properties: dict[str, object]) -> Place:
    """A new namespace or table: its parent must exist, its name must be free among all children of any kind."""
    if id.is_root:
        raise NamespaceAlreadyExistsError("The root namespace exists already.")
    parent = resolve_namespace(draft, id.parent)
    require_free(draft, parent, id.name)
    node = Node(key, key, kind, below(parent.item.node.home, key), [])
    revision = Revision(0, 0, "create", "", 0, parent.key, (id.name,), properties)
    place = place_of(parent, Item(node, revision))
    draft.add(node, revision, place.path)
    draft.name(parent.key, digest(place.locator), key)
    return place


def update(draft: Draft, id: ObjectId, properties: dict[str, object]) -> Place:
    """The properties become exactly these."""
    place = not_root(resolve(draft, id))
    draft.change(_with(place.item, properties=properties), place.path)
    return place


def update_root(draft: Draft, properties: dict[str, object]) -> None:
    """The properties of the root namespace become exactly these. The model has no object for it: a record holds them,
    which is no part of anything."""
    before = draft.item(ROOT_NODE, dropped=True)
    if before is None:
        above, _, id = ROOT_NODE.rpartition("/")
        revision = Revision(0, 0, "create", "", 0, above, (id,), properties)
        draft.add(Node(ROOT_NODE, id, "root", ROOT_RECORD, []), revision, ())
    else:
        draft.change(_with(before, properties=properties), ())


def rename(draft: Draft, old: ObjectId, new: ObjectId) -> None:
    """Another name, another parent, or both; all below comes along. No directory moves.

    Canonical Strings hold the names of all parents, so the mapping files of the whole subtree are part of this change.
    """
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
    before = resolve_namespace(draft, ObjectId(place.path[:-1]))
    _move(draft, place, before, parent, new.name)


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


def alias(draft: Draft, id: ObjectId, name: str) -> None:
    """One more name for an object, beside its own. It moves and is dropped with the object."""
    check_new_name(name)
    place = not_root(resolve(draft, id))
    parent = resolve_namespace(draft, ObjectId(place.path[:-1]))
    require_free(draft, parent, name)
    draft.name(parent.key, digest(canonical(parent.locator, name)), place.key)
    draft.change(_with(place.item, aliases=(*place.item.revision.aliases, name)), place.path)


def unalias(draft: Draft, id: ObjectId, name: str) -> None:
    place = not_root(resolve(draft, id))
    aliases = place.item.revision.aliases
    if name not in aliases:
        raise TableNotFoundError(f"{id} has no alias {name!r}.")
    parent = resolve_namespace(draft, ObjectId(place.path[:-1]))
    draft.name(parent.key, digest(canonical(parent.locator, name)), None)
    draft.change(_with(place.item, aliases=tuple(other for other in aliases if other != name)), place.path)


def drop(draft: Draft, id: ObjectId, cascade: bool) -> None:
    """Drop an object; a namespace with children only by cascade, which drops all below it as well."""
    place = not_root(resolve(draft, id))
    if place.key in draft.chosen:  # a caller that has chosen one version would lose the others
        raise InvalidInputError(
            f"A drop of {id} drops all its table versions, and {draft.chosen[place.key]!r} of them is chosen here: "
            "drop that version, or the table without choosing one."
        )
    if place.item.node.kind == "namespace" and not cascade and any(True for _ in draft.children(place.key)):
        raise NamespaceNotEmptyError(f"{id} is not empty: drop what is in it first, or drop with cascade.")
    _drop(draft, place, resolve_namespace(draft, ObjectId(place.path[:-1])))


def _drop(draft: Draft, place: Place, parent: Place) -> None:
    if place.item.node.kind == "namespace":
        for key in list(draft.children(place.key)):
            item = draft.item(key)
            assert item is not None
            _drop(draft, place_of(place, item), place)
    for name in (place.item.revision.name, *place.item.revision.aliases):
        draft.name(parent.key, digest(canonical(parent.locator, name)), None)
    draft.change(_with(place.item, operation="delete", txn="", slot=PENDING), place.path)


def undrop(draft: Draft, id: ObjectId) -> Place:
    """Bring back what was last dropped at this path, with all that the same transaction dropped below it.

    InvalidTableState (19) if the Lance dataset of a table among it was registered as another table's meanwhile.
    """
    if id.is_root:
        raise NamespaceAlreadyExistsError("The root namespace exists already.")
    parent = resolve_namespace(draft, id.parent)
    dropped = [item for item in _dropped_in(draft, parent.key) if item.revision.name == id.name]
    if not dropped:
        raise TableNotFoundError(f"Nothing that was dropped at {id} is kept any more.")
    newest = max(dropped, key=lambda item: item.revision.slot)
    require_free(draft, parent, id.name)
    for table, other in taken_datasets(draft, set(_undrop(draft, parent, newest))):
        mine, its = (place_at(draft, key) for key in (table, other))
        assert mine is not None
        assert its is not None
        raise InvalidTableStateError(
            f"{format_name(mine.path)} cannot come back: its files were registered as the table "
            f"{format_name(its.path)}, which has them now."
        )
    return resolve(draft, id)


def last_dropped(draft: SlotView, id: ObjectId) -> Item | None:
    """Return what was dropped last under a name, or None."""
    parent = resolve_namespace(draft, id.parent)
    found = [item for item in _dropped_in(draft, parent.key) if item.revision.name == id.name]
    return max(found, key=lambda item: item.revision.slot, default=None)


def _undrop(draft: Draft, parent: Place, item: Item) -> list[str]:
    """The keys of what came back."""
    below_it = _dropped_in(draft, item.node.key) if item.node.kind == "namespace" else []
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
            found += _undrop(draft, place, child)
    return found


def _dropped_in(draft: SlotView, parent: str) -> list[Item]:
    items = (draft.item(key, dropped=True) for key in dict.fromkeys(draft.past(parent)))
    return [item for item in items if item and not item.revision.alive and item.revision.parent == parent]


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
