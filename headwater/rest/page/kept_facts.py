"""Facts of a metastore's objects that the page keeps in memory, and brings up to date by what was committed since.

An object's texts, columns and lineage stand in several records: a visit reads a limited number of objects, a thread the
others, and `unread` counts those that are left.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from headwater.errors import LanceNamespaceError
from headwater.lance_manifest import FragmentRows, fragments_of
from headwater.metastore import Delta, Metastore, Object, Snapshot
from headwater.metastore.records.serving_copy import columns_at, manifest_of, newest_version
from headwater.names import format_name
from headwater.rest.page.overview_facts import (
    CommitFact,
    Growth,
    Sample,
    Spans,
    TableState,
    growth_of,
    samples_of,
    spans_of,
    versions_at,
)
from headwater.rest.page.table_questions import has_versions, unpublished
from headwater.streams.layout import LANCE, LINEAGE, QUARANTINE
from headwater.streams.serving import compaction
from headwater.streams.serving.publication import sources_so_far

CATCH_UP = 500
READ_AT_ONCE = 50
"""Most objects that are read while a visitor waits."""
PATIENCE = 0.03
"""Seconds that a visitor waits for them."""
MEASURED = 2_000
"""Most tables whose manifests are read for their rows and bytes: the page says how many were not."""
SAMPLED = 10_000
"""Most older versions whose manifests are read for the growth: the page says of how many tables they were not."""
MAX_MANIFEST = 4 << 20
"""Bytes of the largest manifest that is read."""
SHOWN_KINDS = ("namespace", "table", "delta")
"""The kinds of changes that the page names."""
HEAD = 200
"""Changes of one commit that the page looks at."""
MAX_COMMITS = 400
Value = TypeVar("Value")


class KeptFacts(ABC, Generic[Value]):
    """Values of a metastore's objects by their keys at a slot.

    Some are read while a visitor waits, and the others by a thread, which holds the lock only to keep them.
    """

    def __init__(self) -> None:
        self.slot = -1
        self.unread: set[str] = set()
        self.lock = threading.Lock()
        self._reader: threading.Thread | None = None

    def bring_up(self, metastore: Metastore) -> None:
        """Forget what was committed since, and read values of some objects again. The caller holds the lock."""
        now = metastore.slot
        if now != self.slot:
            changed = self._changed(metastore, now)
            self.unread |= self.begin(metastore.now(), changed)
            self.slot = now
        self._keep(self._look(metastore, self._next(), metastore.clock.monotonic() + PATIENCE))
        if self.unread and (self._reader is None or not self._reader.is_alive()):
            self._reader = threading.Thread(target=self._read_all, args=(metastore,), name="page", daemon=True)
            self._reader.start()

    @abstractmethod
    def begin(self, state: Snapshot, changed: set[str] | None) -> set[str]:
        """Return the keys to read. `changed`: those that may have changed; None: all are read again."""

    @abstractmethod
    def read(self, metastore: Metastore, state: Snapshot, key: str, found: Object | None) -> Value:
        """Return the values of an object, without a change of what is kept; None if it is gone."""

    @abstractmethod
    def keep(self, key: str, value: Value) -> None:
        """Keep the values of an object in place of those from before."""

    def _changed(self, metastore: Metastore, now: int) -> set[str] | None:
        """The keys of what was committed since; None when it takes less to begin again."""
        if self.slot < 0 or now - self.slot > CATCH_UP:
            return None
        try:
            return metastore.activity.changed_since(self.slot)
        except LanceNamespaceError:
            return None

    def _read_all(self, metastore: Metastore) -> None:
        while self.unread:
            with self.lock:
                slot, keys = self.slot, self._next()
            found = self._look(metastore, keys)
            with self.lock:
                if slot == self.slot:  # else a visit may have read something newer
                    self._keep(found)

    def _next(self) -> tuple[str, ...]:
        return tuple(islice(self.unread, READ_AT_ONCE))

    def _look(self, metastore: Metastore, keys: Sequence[str], until: float | None = None) -> dict[str, Value]:
        """Read some objects, as many as are done until a time; at least one."""
        state, found = metastore.now(), dict[str, Value]()
        for key in keys:
            try:
                object = metastore.by_id(key)
            except LanceNamespaceError:
                object = None
            found[key] = self.read(metastore, state, key, object if isinstance(object, Object) else None)
            if until is not None and metastore.clock.monotonic() > until:
                break
        return found

    def _keep(self, found: Mapping[str, Value]) -> None:
        for key, value in found.items():
            self.keep(key, value)
        self.unread.difference_update(found)


class Texts(KeptFacts[str | None]):
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

    def read(self, metastore: Metastore, state: Snapshot, key: str, found: Object | None) -> str | None:
        if found is None or found.kind != "table":
            return None
        columns = columns_at(state, metastore.store, found.path)
        return "\n".join(f"{name}\t{comment}" for name, comment in columns.items()).casefold()

    def keep(self, key: str, value: str | None) -> None:
        self.columns.pop(key, None)
        if value is not None:
            self.columns[key] = value


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
    def inputs(self) -> Mapping[str, object]:
        found: Mapping[str, Any] = self.noted.get("inputs", {})
        return found


@dataclass(frozen=True)
class TableSize:
    """The newest version of a table: its rows, bytes, small fragments, and fragments with many deleted rows."""

    rows: int = 0
    bytes: int = 0
    small: int = 0
    worn: int = 0

    @property
    def wants_upkeep(self) -> bool:
        """True if a compaction would join or rewrite fragments."""
        return self.small > compaction.MANY or self.worn > 0


def sample_of(version: Delta, size: TableSize) -> Sample:
    return Sample(version.time_ms, size.rows, size.bytes)


def size_of(fragments: Sequence[FragmentRows]) -> TableSize:
    """Return the size of a version by its fragments, with the limits of the compaction. Pure."""
    return TableSize(
        sum(each.rows - each.deleted for each in fragments),
        sum(each.bytes for each in fragments),
        sum(each.rows < compaction.SMALL_ROWS for each in fragments),
        sum(each.deleted > compaction.WORN * each.rows for each in fragments),
    )


@dataclass(frozen=True)
class KeptTable:
    """Facts of a namespace or table. `size`: None if it was not measured; `log` and `made`: of a stream table.

    `samples`: sizes of older versions and of the newest, oldest first; none if they were not read.
    """

    kind: str
    path: tuple[str, ...]
    has_version: bool = False
    size: TableSize | None = None
    samples: tuple[Sample, ...] = ()
    log: TableState | None = None
    made: MadeTable | None = None

    @property
    def is_needy(self) -> bool:
        """True if the front page lists the table among those that need somebody."""
        if self.size is not None and self.size.wants_upkeep:
            return True
        is_quarantine = self.path[-1:] != () and self.path[-1].endswith(QUARANTINE)
        return self.log is not None and bool(self.log.deltas or self.log.stale or (is_quarantine and self.log.total))


class Tables(KeptFacts[KeptTable | None]):
    """Namespaces and tables: sizes, logs that wait for a publish, and what tables were made of.

    Objects are counted when they are kept, and those that need somebody are kept apart. So an overview costs as much as
    it shows, however many tables there are.
    """

    def __init__(self) -> None:
        super().__init__()
        self.spans: Spans | None = None
        self._forget()

    def _forget(self) -> None:
        self.tables: dict[str, KeptTable] = {}
        self.made: dict[str, MadeTable] = {}
        self.needy: dict[str, KeptTable] = {}
        self.sampled: dict[str, tuple[Sample, ...]] = {}
        self.counts: Counter[str] = Counter()

    def bring_up(self, metastore: Metastore) -> None:
        if metastore.slot != self.slot:
            self.spans = spans_of(metastore)
        super().bring_up(metastore)

    def growth(self) -> Growth | None:
        """Return the growth of the catalog; None where there is too little time to show. The caller holds the lock."""
        if self.spans is None:
            return None
        found = growth_of(self.spans, self.sampled.values())
        return msgspec.structs.replace(found, unsampled=self.counts["versioned"] - len(self.sampled))

    def begin(self, state: Snapshot, changed: set[str] | None) -> set[str]:
        if changed is None:
            self._forget()
            return state.named_keys()
        return changed

    def read(self, metastore: Metastore, state: Snapshot, key: str, found: Object | None) -> KeptTable | None:
        if found is None or found.kind != "table":
            return None if found is None else KeptTable(found.kind, found.path)
        has_version, size, samples = has_versions(state, found.path), None, tuple[Sample, ...]()
        before = self.tables.get(key) or KeptTable("table", found.path)
        newest = newest_version(state, found.path) if has_version else None
        if newest is not None and (self.counts["measured"] < MEASURED or before.size is not None):
            fragments = manifest_of(newest, metastore.store, fragments_of, MAX_MANIFEST)
            size = None if fragments is None else size_of(fragments)
        if newest is not None and size is not None and (self.counts["samples"] < SAMPLED or before.samples):
            samples = self._samples(metastore, key, sample_of(newest, size))
        log, made = None, None
        with suppress(LanceNamespaceError):  # changed meanwhile, or the history of another table, which has no log
            told = unpublished(state, found.path)
            if told is not None:
                stale = (told.stale, told.stale_rows)
                log = TableState(found.path, told.rows, told.deltas, told.total, *stale)
                noted = lineage_of(state, found.path)
                made = MadeTable(found.path, format_name(found.path), key, noted, told.rows, told.deltas)
        return KeptTable(found.kind, found.path, has_version, size, samples, log, made)

    def _samples(self, metastore: Metastore, key: str, newest: Sample) -> tuple[Sample, ...]:
        """Return the sizes of a table at the ends of the spans. Manifests that were read before are not read again."""
        known = {each.time_ms: each for each in (*self.sampled.get(key, ()), newest)}

        def sample(version: Delta) -> Sample | None:
            if version.time_ms in known:
                return known[version.time_ms]
            fragments = manifest_of(version, metastore.store, fragments_of, MAX_MANIFEST)
            return None if fragments is None else sample_of(version, size_of(fragments))

        older = versions_at(metastore, self.spans, key) if self.spans is not None else []
        return samples_of([each for each in older if each.time_ms < newest.time_ms], newest, sample)

    def keep(self, key: str, value: KeptTable | None) -> None:
        before = self.tables.pop(key, None)
        self.made.pop(key, None)
        self.needy.pop(key, None)
        self.sampled.pop(key, None)
        if before is not None:
            self.counts.subtract(_counted(before))
        if value is None:
            return
        self.tables[key] = value
        self.counts.update(_counted(value))
        if value.made is not None:
            self.made[key] = value.made
        if value.is_needy:
            self.needy[key] = value
        if value.samples:
            self.sampled[key] = value.samples


def _counted(table: KeptTable) -> dict[str, int]:
    """Return what an object adds to the figures of the whole catalog."""
    if table.kind != "table":
        return {table.kind: 1}
    size = table.size or TableSize()
    return {
        "table": 1,
        "stream": int(table.log is not None),
        "versioned": int(table.has_version),
        "measured": int(table.size is not None),
        "samples": len(table.samples),
        "unmeasured": int(table.has_version and table.size is None),
        "rows": size.rows,
        "bytes": size.bytes,
    }


class KeptCommits:
    """The newest commits of a metastore with their first changes. A commit never changes, so it is read once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[int, list[CommitFact]] = {}

    def of(self, metastore: Metastore, slot: int) -> list[CommitFact]:
        """Return the transactions of a slot."""
        with self._lock:
            if slot not in self._kept:
                while len(self._kept) >= MAX_COMMITS:
                    del self._kept[next(iter(self._kept))]
                heads = metastore.activity.heads(slot, SHOWN_KINDS, HEAD)
                self._kept[slot] = [CommitFact(entry, total) for entry, total in heads]
            return self._kept[slot]


_TEXTS: WeakKeyDictionary[Metastore, Texts] = WeakKeyDictionary()
_TABLES: WeakKeyDictionary[Metastore, Tables] = WeakKeyDictionary()
_COMMITS: WeakKeyDictionary[Metastore, KeptCommits] = WeakKeyDictionary()


def texts_of(metastore: Metastore) -> Texts:
    """Return the search texts of a metastore; hold their lock while they are used."""
    return _TEXTS.setdefault(metastore, Texts())


def tables_of(metastore: Metastore) -> Tables:
    """Return the tables of a metastore; hold their lock while they are used."""
    return _TABLES.setdefault(metastore, Tables())


def commits_of(metastore: Metastore) -> KeptCommits:
    """Return the newest commits of a metastore."""
    return _COMMITS.setdefault(metastore, KeptCommits())


LOOK_BACK = 50


def lineage_of(snapshot: Snapshot, names: Sequence[str]) -> dict[str, object]:
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
    if not told:
        return {}
    sources, is_view = (
        sources_so_far(told),
        bool(told[-1].get("inputs")),
    )  # what a view gave itself comes from its inputs
    return {**told[-1], "sources": [each for each in sources if each["files"] or not is_view]}
