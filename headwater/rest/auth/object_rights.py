"""Rights on objects, not on names alone (design note 030): the one place that says by which names one is decided about.

A caller needs a right on the name it asks for, and on the name that the object of that name has now. What is gone has
no name: then the right is needed on the nearest namespace above it that is still there. And what leaves is projected:
a caller with a scope is told of the objects, names and texts that it may describe, by the same rule.
Lists are filtered by what the caller may see *before* paging, over any catalog's own paging. The catalog's page token
is opaque, so a page that must end in the middle of the catalog's page is asked for again with that many
entries: the token that comes back then continues after the last entry shown.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from lance_namespace import LanceNamespace

from headwater.errors import InvalidInputError, PermissionDeniedError
from headwater.metastore import Delta, LogChange, LogEntry, Metastore, Snapshot
from headwater.metastore.records.objects import HistoryEntry, Undone
from headwater.names import ROOT, ObjectId, parse_name
from headwater.namespace.abilities import CatalogAbilities
from headwater.rest.auth.access import EVERYTHING, Caller, Need, allows, needs
from headwater.rest.call import Call
from headwater.rest.routes import Permission
from headwater.streams.layout import LINEAGE, QUARANTINE, sibling
from headwater.streams.table_functions import MADE_OF, TABLE_FUNCTION
from headwater.verbs.object_verbs import DescribedObject

MEANS_DROPPED = frozenset({"Undrop", "DescribeHistory"})
"""Operations that mean what was dropped last under a name, if nothing has it."""
OF_QUARANTINE = frozenset({"QueryStreamQuarantine", "RetryStreamQuarantine", "DropStreamQuarantine", "PageQuarantine"})
"""Operations on the quarantine of the table that they name, which may have been moved away from it."""
VIEW_INPUTS = "view.inputs"
"""The property of a view that says what it was made of: names of tables."""


def check_objects(call: Call, standing: Callable[[Call], CatalogAbilities]) -> None:
    """PermissionDenied (15) unless the caller may do what it asks to the objects that its names mean, where they are
    now. The names they have now are noted in the call. Whoever may do it everywhere is not held up.

    `standing` tells what its names are looked up in: a transaction, a moment of the past, or the present."""
    everywhere = call.asker.everywhere
    if everywhere == EVERYTHING:
        return
    asked = [need for need in needs(call) if need.permission not in everywhere]
    can = standing(call) if asked else None
    if can is None or can.identify is None:
        return
    found = ObjectNames(can, call.operation in MEANS_DROPPED, call.in_memory)
    also: dict[ObjectId, None] = {}
    for need in asked:
        for name in found.others(need.id):
            _require(call, need, name)
            also[name] = None
    if call.operation in OF_QUARANTINE:
        for name in found.beside(call.id, QUARANTINE):
            _require(call, asked[0], name)
    call.also = tuple(also)


def _require(call: Call, need: Need, name: ObjectId) -> None:
    if not allows(call.asker, replace(need, id=name)):
        raise PermissionDeniedError(
            f"{call.asker.name} may not call {need.operation} on {need.id}: what has or had this name is elsewhere "
            f"now, or is gone, and it needs the permission {str(need.permission.name).lower()} there too."
        )


class ObjectNames:
    """The names by which the objects of one request are decided about. Each is looked up once."""

    def __init__(self, can: CatalogAbilities, dropped: bool = False, is_newest: bool = False) -> None:
        assert can.metastore is not None
        assert can.identify is not None
        self._can = can
        self._dropped = dropped
        self._is_newest = is_newest
        self._is_present = can.is_present
        self._now: Snapshot = can.metastore.now(refresh=dropped or not self._is_present)

    def others(self, id: ObjectId) -> tuple[ObjectId, ...]:
        """Return the name that decides about the object which an id means here, unless that is the id."""
        keys = self._keys(id)
        name = ObjectId(self._now.governing(keys)) if keys else id
        return () if name == id else (name,)

    def beside(self, id: ObjectId, suffix: str) -> tuple[ObjectId, ...]:
        """Return the name that decides about a table which follows another; none while it follows it."""
        own, follows = self._keys(id), self._keys(ObjectId(sibling(id.names, suffix)))
        if not own or not follows:
            return ()
        name = self._now.governing(follows)
        return () if name == sibling(self._now.governing(own), suffix) else (ObjectId(name),)

    def _keys(self, id: ObjectId) -> tuple[str, ...]:
        assert self._can.identify is not None
        found: tuple[str, ...] = self._can.identify(id.names, self._dropped)
        if not found and self._is_present and not (self._dropped or self._is_newest):
            assert self._can.metastore is not None
            self._now = self._can.metastore.now()  # another process may have given the name
            found = self._can.identify(id.names, False)
        return found


class Projection:
    """Projection of an answer to what a caller may see. A caller that may describe everything is told everything."""

    def __init__(self, caller: Caller, metastore: Metastore, can: CatalogAbilities | None = None) -> None:
        """`can`: the abilities of an open transaction, whose own new objects have no name but that in it."""
        self.is_whole = caller.may(Permission.DESCRIBE, ROOT)
        self._caller = caller
        self._identify = can.identify if can is not None and can.in_transaction else None
        self._now = None if self.is_whole else metastore.now()
        self._seen: dict[str, bool] = {}

    def tells(self, path: Sequence[str], key: str | None = None) -> bool:
        """Return True if the caller may describe both this name and the place where the object with that key is now."""
        if self._now is None:
            return True
        if not self._caller.may(Permission.DESCRIBE, ObjectId(tuple(path))):
            return False
        if key is None or not (top := key.partition("/")[0]):  # the root's record, a named snapshot
            return True
        if top not in self._seen:
            now = ObjectId(self._now.governing((top,)))
            self._seen[top] = self._caller.may(Permission.DESCRIBE, now)
        return self._seen[top]

    def tells_gone(self, path: Sequence[str]) -> bool:
        """Return True if the caller may learn of a drop there: the namespace that it was in decides."""
        return self.tells(path) and self.tells(path[:-1])

    def _tells_name(self, text: str) -> bool:
        try:
            return self.tells(parse_name(text))
        except InvalidInputError:
            return self.is_whole

    def log_entry(self, entry: LogEntry) -> LogEntry:
        """Return a transaction with the changes that may be told. Its message may name what it did not change: an old
        name, a transaction that it undid. So it is for those who may describe everything."""
        if self.is_whole:
            return entry
        changes = self._changes(entry.changes)
        return msgspec.structs.replace(entry, changes=changes, message="", author=entry.author if changes else "")

    def history_entry(self, entry: HistoryEntry) -> HistoryEntry:
        """Return a step of the history of an object that the caller may describe: not where it was, nor who changed it
        there, if it may not see that."""
        if self.is_whole:
            return entry
        told = msgspec.structs.replace(entry, message="", changes=self._changes(entry.changes))
        return told if self.tells(entry.path) else msgspec.structs.replace(told, author="", path=(), change=None)

    def _changes(self, changes: Iterable[LogChange]) -> tuple[LogChange, ...]:
        return tuple(change for change in changes if self.tells(change.path, change.key))

    def undone(self, done: Undone) -> Undone:
        """Return the report of an undo, without its message for a caller with a scope."""
        return done if self.is_whole else msgspec.structs.replace(done, message="")

    def lineage(self, told: Mapping[str, Any]) -> dict[str, Any]:
        """Return the lineage of a version: inputs that the caller may describe, and its SQL only with all of them."""
        inputs = {name: at for name, at in (told.get("inputs") or {}).items() if self._tells_name(name)}
        hidden = len(inputs) != len(told.get("inputs") or {})
        known = {**told, "inputs": inputs} if "inputs" in told else dict(told)
        return {key: value for key, value in known.items() if not (hidden and key in ("sql", "run"))}

    def delta(self, delta: Delta) -> Delta:
        noted = delta.properties.get(LINEAGE)
        if self.is_whole or not isinstance(noted, Mapping):
            return delta
        return msgspec.structs.replace(delta, properties={**delta.properties, LINEAGE: self.lineage(noted)})

    def sees(self, path: Sequence[str], key: str) -> bool:
        """Return True if the caller may be told of an object; a new one of an open transaction is only there."""
        is_new = self._identify is not None and not self._identify(path)
        return self.tells(path, None if is_new else key)

    def object(self, found: DescribedObject) -> DescribedObject | None:
        """Return an object with the aliases and properties that may be told; None if the caller may not describe it."""
        if self.is_whole:
            return found
        if not self.sees(found.path, found.key):
            return None
        properties, noted = self.properties(found.properties), found.properties.get(LINEAGE)
        if isinstance(noted, Mapping):
            properties[LINEAGE] = self.lineage(noted)
        aliases = tuple(name for name in found.aliases if self.tells((*found.path[:-1], name)))
        return msgspec.structs.replace(found, aliases=aliases, properties=properties)

    def properties(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the properties of an object, with the names in them that may be told."""
        told = dict(values)
        if not self.is_whole and VIEW_INPUTS in told:
            text = told.pop(VIEW_INPUTS)
            with contextlib.suppress(msgspec.MsgspecError, TypeError, AttributeError):
                made = msgspec.json.decode(text)
                made["tables"] = {name: at for name, at in made["tables"].items() if self._tells_name(name)}
                told[VIEW_INPUTS] = msgspec.json.encode(made).decode()
        if not self.is_whole and TABLE_FUNCTION in told and not self._tells_parent(told[TABLE_FUNCTION]):
            told = {name: value for name, value in told.items() if name not in (TABLE_FUNCTION, MADE_OF)}
        return told

    def _tells_parent(self, function: str) -> bool:
        """Return True if the caller may be told of the table whose rows a function of a child table takes."""
        with contextlib.suppress(msgspec.MsgspecError, TypeError, AttributeError):
            return self._tells_name(str(msgspec.json.decode(function).get("from")))
        return False


SCAN = 1000


def list_visible(namespace: LanceNamespace, call: Call, can: CatalogAbilities) -> object:
    """Return one page of ListNamespaces, ListTables or ListAllTables, holding only what the caller may see."""
    field = "namespaces" if call.route.operation == "ListNamespaces" else "tables"
    fetch = getattr(namespace, call.route.method)
    sees = _seer(call, can)
    wanted: int = call.request.limit
    shown: list[str] = []
    token = call.request.page_token
    while True:
        scan = max(SCAN, wanted - len(shown))
        page = fetch(call.request.model_copy(update={"limit": scan, "page_token": token}))
        names = list(getattr(page, field) or ())
        end = _end(names, sees, wanted - len(shown))
        if end < len(names):
            page = fetch(call.request.model_copy(update={"limit": end, "page_token": token}))
            names = list(getattr(page, field) or ())
        shown.extend(name for name in names if sees(name))
        token = page.page_token or None
        if token is None or len(shown) >= wanted:
            return page.model_copy(update={field: shown, "page_token": token})


def _end(names: list[str], sees: Callable[[str], bool], room: int) -> int:
    """Return the number of names that fit on the page."""
    for position, name in enumerate(names):
        if room == 0:
            return position
        room -= sees(name)
    return len(names)


def _seer(call: Call, can: CatalogAbilities) -> Callable[[str], bool]:
    """Return True if a name of the list may be shown. Lists of the present have no other names of their objects."""
    caller = call.asker
    found = ObjectNames(can) if can.identify is not None and not can.is_present else None

    def sees(name: str) -> bool:
        is_path = call.route.operation == "ListAllTables"
        id = ObjectId(tuple(name.split(can.delimiter))) if is_path else call.id.child(name)
        others = () if found is None or not caller.may_see(id) else found.others(id)
        return all(caller.may_see(each) for each in (id, *others))

    return sees
