"""Facts of a metastore's objects that the page keeps in memory, and brings up to date by what was committed since.

An object's texts, columns and lineage stand in several records: a visit reads a limited number of objects, a thread the
others, and `unread` counts those that are left.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from headwater.errors import LanceNamespaceError
from headwater.metastore import Metastore, Object, Snapshot
from headwater.metastore.records.serving_copy import columns_at
from headwater.names import format_name
from headwater.rest.page.page_facts import TableState
from headwater.rest.page.table_questions import unpublished
from headwater.streams.layout import LANCE, LINEAGE

CATCH_UP = 500
READ_AT_ONCE = 50
"""Most objects that are read while a visitor waits."""


class KeptFacts(ABC):
    """Values of a metastore's objects by their keys at a slot.

    Some are read while a visitor waits, and the others by a thread.
    """

    def __init__(self) -> None:
        self.slot = -1
        self.unread: set[str] = set()
        self.lock = threading.Lock()
        self._reader: threading.Thread | None = None

    def bring_up(self, metastore: Metastore) -> None:
        """Forget what was committed since, and read values of some objects again."""
        now = metastore.slot
        if now != self.slot:
            changed = self._changed(metastore, now)
            self.unread |= self.begin(metastore.now(), changed)
            self.slot = now
        self._read_some(metastore)
        if self.unread and (self._reader is None or not self._reader.is_alive()):
            self._reader = threading.Thread(target=self._read_all, args=(metastore,), name="page", daemon=True)
            self._reader.start()

    @abstractmethod
    def begin(self, state: Snapshot, changed: set[str] | None) -> set[str]:
        """Return the keys to read. `changed`: those that may have changed; None: all are read again."""

    @abstractmethod
    def read(self, metastore: Metastore, state: Snapshot, key: str, found: Object | None) -> None:
        """Keep the values of an object; None if it is gone."""

    def _changed(self, metastore: Metastore, now: int) -> set[str] | None:
        """The keys of what was committed since; None when it takes less to begin again."""
        if self.slot < 0 or now - self.slot > CATCH_UP:
            return None
        try:
            entries = metastore.log(self.slot)
            return {change.key.partition("/")[0] for entry in entries for change in entry.changes}
        except LanceNamespaceError:
            return None

    def _read_all(self, metastore: Metastore) -> None:
        while self.unread:
            with self.lock:
                self._read_some(metastore)

    def _read_some(self, metastore: Metastore) -> None:
        state = metastore.now()
        for _ in range(min(READ_AT_ONCE, len(self.unread))):
            key = self.unread.pop()
            try:
                found = metastore.by_id(key)
            except LanceNamespaceError:
                found = None
            self.read(metastore, state, key, found if isinstance(found, Object) else None)


class Texts(KeptFacts):
    """Search texts: name, properties and columns, in small letters."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[str, tuple[str, str]] = {}
        self.columns: dict[str, str] = {}

    def begin(self, state: Snapshot, changed: set[str] | None) -> set[str]:
        if changed is None:
            self.texts, self.columns = dict(state.searchable()), {}
            return set(self.texts)
        for key in changed:
            self.texts.pop(key, None)
        self.texts.update(state.searchable(changed))
        return changed

    def read(self, metastore: Metastore, state: Snapshot, key: str, found: Object | None) -> None:
        self.columns.pop(key, None)
        if found is not None and found.kind == "table":
            columns = columns_at(state, metastore.store, found.path)
            self.columns[key] = "\n".join(f"{name}\t{comment}" for name, comment in columns.items()).casefold()


@dataclass(frozen=True)
class MadeTable:
    """A table with the lineage of its newest publish. `rows`: rows of its log that are not published."""

    path: tuple[str, ...]
    name: str
    key: str
    noted: Mapping[str, Any]
    rows: int = 0
    deltas: int = 0

    @property
    def inputs(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.noted.get("inputs", {})
        return found


class Tables(KeptFacts):
    """Namespaces, tables, how far the logs of stream tables are published, and what tables were made of."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: dict[str, str] = {}
        self.streams: dict[str, TableState] = {}
        self.made: dict[str, MadeTable] = {}

    def begin(self, state: Snapshot, changed: set[str] | None) -> set[str]:
        if changed is None:
            self.kinds, self.streams, self.made = {}, {}, {}
            return set(state.searchable())
        return changed

    def read(self, metastore: Metastore, state: Snapshot, key: str, found: Object | None) -> None:
        for kept in (self.kinds, self.streams, self.made):
            kept.pop(key, None)
        if found is None:
            return
        self.kinds[key] = found.kind
        with suppress(LanceNamespaceError):  # changed meanwhile, or the history of another table, which has no log
            log = unpublished(state, found.path) if found.kind == "table" else None
            if log is not None:
                self.streams[key] = TableState(found.path, log.rows, log.deltas, log.total)
                self.made[key] = MadeTable(
                    found.path, format_name(found.path), key, lineage_of(state, found.path), log.rows, log.deltas
                )


_TEXTS: WeakKeyDictionary[Metastore, Texts] = WeakKeyDictionary()
_TABLES: WeakKeyDictionary[Metastore, Tables] = WeakKeyDictionary()


def texts_of(metastore: Metastore) -> Texts:
    """Return the search texts of a metastore; hold their lock while they are used."""
    return _TEXTS.setdefault(metastore, Texts())


def tables_of(metastore: Metastore) -> Tables:
    """Return the tables of a metastore; hold their lock while they are used."""
    return _TABLES.setdefault(metastore, Tables())


LOOK_BACK = 50


def lineage_of(snapshot: Snapshot, names: Sequence[str]) -> dict[str, Any]:
    """Return the lineage of the newest publish, with the sources of those before it; nothing for a table that
    was never published. A publish names what it took in itself: one that takes an undo in names no source."""
    try:
        last = snapshot.last_position(names, format=LANCE)
        deltas = snapshot.deltas(names, max(0, last - LOOK_BACK), format=LANCE)
    except LanceNamespaceError:
        return {}
    told = [
        {**delta.properties[LINEAGE], "version": delta.position, "time_ms": delta.time_ms}
        for delta in deltas
        if LINEAGE in delta.properties
    ]
    return {**told[-1], "sources": _sources(told)} if told else {}


def _sources(told: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The sources of all publishes, each with its files. What a view gave itself comes from its inputs."""
    found: dict[str, dict[str, None]] = {}
    is_view = bool(told[-1].get("inputs"))
    for one in told:
        for source in one.get("sources", ()):
            found.setdefault(str(source.get("source") or ""), {}).update(dict.fromkeys(source.get("files", ())))
    return [{"source": name, "files": list(files)} for name, files in found.items() if files or not is_view]
