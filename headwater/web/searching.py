"""Search over everything: names, properties, columns and comments.

A metastore's objects are in memory: their texts are kept, and brought up to date by what was committed since. Columns
stand in the manifests of tables: so many are read for a search, the others by a thread, and the page says how many are
left. Other kinds of catalog are walked, so far and no further, and the page says how far.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from headwater.errors import LanceNamespaceError
from headwater.metastore import Metastore, Object
from headwater.metastore.columns import columns_at
from headwater.names import ROOT, ObjectId
from headwater.rest.routes import Permission
from headwater.web.children import NAMESPACES, TABLES, first_names
from headwater.web.visit import Visit

MAX_FOUND = 200
MAX_LOOKED = 5_000
MAX_DESCRIBED = 300
CATCH_UP = 500
PER_NAMESPACE = 2_000
READ_AT_ONCE = 50
"""So many tables have their columns read while a visitor waits."""


@dataclass(frozen=True)
class Hit:
    """One object that was found, and where in it."""

    id: ObjectId
    kind: str
    where: str


@dataclass
class Found:
    """What was found; `looked` is how many objects were looked at, and `described` how many of their properties were,
    when that was not all; `unread` is how many tables have columns that were not."""

    hits: list[Hit] = field(default_factory=list)
    more: bool = False
    looked: int | None = None
    described: int | None = None
    unread: int = 0


def search(visit: Visit, word: str) -> Found:
    """Objects whose name, properties or comment hold the word: those that are called so first."""
    low = word.casefold()
    found = _in_metastore(visit, visit.metastore, low) if visit.metastore is not None else _walked(visit, low)
    found.hits.sort(key=lambda hit: (hit.where != "name", low != hit.id.name.casefold(), hit.id.names))
    found.more = found.more or len(found.hits) > MAX_FOUND
    del found.hits[MAX_FOUND:]
    return found


class _Texts:
    """What can be searched of a metastore's objects, at a slot: name, properties and columns, in small letters."""

    def __init__(self) -> None:
        self.slot = -1
        self.texts: dict[str, tuple[str, str]] = {}
        self.columns: dict[str, str] = {}
        self.unread: set[str] = set()
        self.lock = threading.Lock()
        self._reader: threading.Thread | None = None

    def bring_up(self, metastore: Metastore) -> None:
        now = metastore.slot
        if now == self.slot:
            return
        changed = self._changed(metastore, now)
        if changed is None:
            self.texts, self.columns = dict(metastore.searchable()), {}
            self.unread = set(self.texts)
        else:
            for key in changed:
                self.texts.pop(key, None)
            self.texts.update(metastore.searchable(changed))
            self.unread |= changed
        self.slot = now

    def _changed(self, metastore: Metastore, now: int) -> set[str] | None:
        """The keys of what was committed since; None when it takes less to begin anew."""
        if self.slot < 0 or now - self.slot > CATCH_UP:
            return None
        try:
            entries = metastore.log(self.slot)
            return {change.key.partition("/")[0] for entry in entries for change in entry.changes}
        except LanceNamespaceError:
            return None

    def read(self, metastore: Metastore) -> None:
        """Read columns of some tables now, and leave the rest to a thread."""
        self._read_some(metastore)
        if self.unread and (self._reader is None or not self._reader.is_alive()):
            self._reader = threading.Thread(target=self._read_all, args=(metastore,), name="columns", daemon=True)
            self._reader.start()

    def _read_all(self, metastore: Metastore) -> None:
        while self.unread:
            with self.lock:
                self._read_some(metastore)

    def _read_some(self, metastore: Metastore) -> None:
        state = metastore.now()
        for _ in range(min(READ_AT_ONCE, len(self.unread))):
            key = self.unread.pop()
            self.columns.pop(key, None)
            try:
                found = metastore.by_id(key)
            except LanceNamespaceError:
                continue
            if isinstance(found, Object) and found.kind == "table":
                columns = columns_at(state, metastore.store, found.path)
                self.columns[key] = "\n".join(f"{name}\t{comment}" for name, comment in columns.items()).casefold()


_KEPT: WeakKeyDictionary[Metastore, _Texts] = WeakKeyDictionary()


def _in_metastore(visit: Visit, metastore: Metastore, low: str) -> Found:
    texts = _KEPT.setdefault(metastore, _Texts())
    with texts.lock:
        texts.bring_up(metastore)
        texts.read(metastore)
        where = {key: "name" for key, (name, _) in texts.texts.items() if low in name}
        for key, text in texts.columns.items():
            if low in text and key not in where:
                where[key] = _in_columns(text, low)
        for key, (_, more) in texts.texts.items():
            if low in more:
                where.setdefault(key, "properties")
        found = Found(unread=len(texts.unread))
    for key, place in where.items():
        try:
            there = metastore.by_id(key)
        except LanceNamespaceError:
            continue
        assert isinstance(there, Object)
        id = ObjectId(there.path)
        if visit.caller.may(Permission.DESCRIBE, id):
            found.hits.append(Hit(id, there.kind, place))
        if len(found.hits) > MAX_FOUND:
            found.more = True
            break
    return found


def _in_columns(text: str, low: str) -> str:
    """Which column has a word in its name, or in its comment."""
    line = next((line for line in text.split("\n") if low in line), "\t")
    name, _, _ = line.partition("\t")
    return f"column {name}" if low in name else f"comment of {name}"


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
