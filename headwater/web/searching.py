"""Search over everything: names, properties and comments.

A metastore's objects are in memory: their texts are kept, and brought up to date by what was committed since. Other
kinds of catalog are walked, so far and no further, and the page says how far.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from headwater.errors import LanceNamespaceError
from headwater.metastore import Metastore
from headwater.names import ROOT, ObjectId
from headwater.rest.routes import Permission
from headwater.web.children import NAMESPACES, TABLES, first_names
from headwater.web.visit import Visit

MAX_FOUND = 200
MAX_LOOKED = 5_000
MAX_DESCRIBED = 300
CATCH_UP = 500
PER_NAMESPACE = 2_000


@dataclass(frozen=True)
class Hit:
    """One object that was found, and where in it."""

    id: ObjectId
    kind: str
    where: str


@dataclass
class Found:
    """What was found; `looked` is how many objects were looked at, and `described` how many of their properties were,
    when that was not all."""

    hits: list[Hit] = field(default_factory=list)
    more: bool = False
    looked: int | None = None
    described: int | None = None


def search(visit: Visit, word: str) -> Found:
    """Objects whose name, properties or comment hold the word: those that are called so first."""
    low = word.casefold()
    found = _in_metastore(visit, visit.metastore, low) if visit.metastore is not None else _walked(visit, low)
    found.hits.sort(key=lambda hit: (hit.where != "name", low != hit.id.name.casefold(), hit.id.names))
    found.more = found.more or len(found.hits) > MAX_FOUND
    del found.hits[MAX_FOUND:]
    return found


class _Texts:
    """What can be searched of a metastore's objects, at a slot: each object's name and properties in small letters."""

    def __init__(self) -> None:
        self.slot = -1
        self.texts: dict[str, tuple[str, str]] = {}
        self.lock = threading.Lock()

    def bring_up(self, metastore: Metastore) -> None:
        now = metastore.slot
        if now == self.slot:
            return
        changed = self._changed(metastore, now)
        if changed is None:
            self.texts = dict(metastore.searchable())
        else:
            for key in changed:
                self.texts.pop(key, None)
            self.texts.update(metastore.searchable(changed))
        self.slot = now

    def _changed(self, metastore: Metastore, now: int) -> set[str] | None:
        """The keys of what was committed since; None when it takes less to begin anew."""
        if self.slot < 0 or now - self.slot > CATCH_UP:
            return None
        try:
            entries = metastore.log(self.slot)
            return {
                change.key for entry in entries for change in entry.changes if change.kind in ("namespace", "table")
            }
        except LanceNamespaceError:
            return None


_KEPT: WeakKeyDictionary[Metastore, _Texts] = WeakKeyDictionary()


def _in_metastore(visit: Visit, metastore: Metastore, low: str) -> Found:
    texts = _KEPT.setdefault(metastore, _Texts())
    with texts.lock:
        texts.bring_up(metastore)
        named = [key for key, (name, _) in texts.texts.items() if low in name]
        others = [key for key, (name, more) in texts.texts.items() if low in more and low not in name]
    found = Found()
    for key, in_name in ((key, keys is named) for keys in (named, others) for key in keys):
        try:
            there = metastore.by_id(key)
        except LanceNamespaceError:
            continue
        id = ObjectId(there.path)
        if visit.caller.may(Permission.DESCRIBE, id):
            found.hits.append(Hit(id, there.kind, "name" if in_name else "properties"))
        if len(found.hits) > MAX_FOUND:
            found.more = True
            break
    return found


def _walked(visit: Visit, low: str) -> Found:
    """Names as far as one looks, then the properties of the first of those that are not called so."""
    found, waiting, others = Found(), deque([ROOT]), list[Hit]()
    complete, looked = True, 0
    while waiting and looked < MAX_LOOKED:
        parent = waiting.popleft()
        for what, kind in ((NAMESPACES, "namespace"), (TABLES, "table")):
            names, more = first_names(visit, parent, what, min(PER_NAMESPACE, MAX_LOOKED - looked))
            complete = complete and not more
            looked += len(names)
            for name in names:
                hit = Hit(parent.child(name), kind, "name")
                if kind == "namespace":
                    waiting.append(hit.id)
                (found.hits if low in name.casefold() else others).append(hit)
    found.looked = None if complete and not waiting else looked
    found.described = len(others[:MAX_DESCRIBED]) if len(others) > MAX_DESCRIBED else None
    for hit in others[:MAX_DESCRIBED]:
        if low in _properties(visit, hit):
            found.hits.append(Hit(hit.id, hit.kind, "properties"))
    return found


def _properties(visit: Visit, hit: Hit) -> str:
    """What the properties of an object say, in small letters; nothing where they cannot be asked for."""
    try:
        told = visit.ask("DescribeTable" if hit.kind == "table" else "DescribeNamespace", hit.id).get("properties")
    except LanceNamespaceError:
        return ""
    return "\n".join(f"{key}\n{value}" for key, value in (told or {}).items()).casefold()
