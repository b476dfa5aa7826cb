"""Directory V2 as a registry: an index in memory over the `__manifest` table, grouped exact commits."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence

from headwater.clock import Clock
from headwater.errors import ConcurrentModificationError
from headwater.model import CatalogObject, Change, Table
from headwater.names import DELIMITER, ObjectId
from headwater.registries.layout import hashed_folder
from headwater.registries.manifest.freshness import freshness_of
from headwater.registries.manifest.index import Index
from headwater.registries.manifest.queue import GroupCommit, Ticket, turn
from headwater.registries.manifest.table import Difference, ManifestTable, Snapshot
from headwater.registry import Capabilities, Draft, Kind
from headwater.store import Store

ATTEMPTS = 50
CLEAN_UP_EVERY = 64


class ManifestRegistry:
    """Names live in `__manifest`. Opening writes nothing; the first commit makes the table."""

    def __init__(self, store: Store, root_uri: str, storage_options: dict[str, str], clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self.table = ManifestTable(store, f"{root_uri}/__manifest", storage_options, clock)
        self._freshness = freshness_of(store)
        self._lock = threading.RLock()
        self._index = Index()
        self._snapshot: Snapshot | None = None
        self._mark: object = None
        self._group = GroupCommit(self._lead)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            namespaces=True, properties=True, rename=True, register_anywhere=True, managed_versions=True
        )

    def find(self, ids: Iterable[ObjectId]) -> Mapping[ObjectId, CatalogObject]:
        with self._lock:
            index = self._fresh()
            return {id: item for id in ids if (item := index.get(id)) is not None}

    def recorded(self, ids: Iterable[ObjectId]) -> Mapping[ObjectId, CatalogObject]:
        return self.find(ids)

    def children(self, parent: ObjectId, kind: Kind, after: str, limit: int | None) -> Sequence[str]:
        with self._lock:
            return self._fresh().children(parent, kind, after, limit)

    def descendants(self, parent: ObjectId) -> Sequence[CatalogObject]:
        with self._lock:
            return list(self._fresh().descendants(parent))

    def versions(self, table: ObjectId) -> Sequence[int]:
        with self._lock:
            return tuple(self._fresh().versions(table))

    def location_holders(self, location: str) -> set[ObjectId]:
        with self._lock:
            return self._fresh().location_holders(location)

    def deregistered(self, id: ObjectId) -> Table | None:
        return None

    def place(self, id: ObjectId, hash: str) -> str:
        return hashed_folder(id, hash)

    def commit(self, changes: Sequence[Change]) -> None:
        self._group.commit(changes)

    def _fresh(self) -> Index:
        """The index, not older than this call."""
        if self._snapshot is None:
            if self._freshness.exists():
                self._reload()
        elif self._freshness.moved(self._snapshot.version, self._mark):
            self._reload()
        return self._index

    def _reload(self) -> None:
        if self._snapshot is not None and not self._freshness.exists():
            self._snapshot, self._index, self._mark = None, Index(), None
            return
        self._mark = self._freshness.mark()
        snapshot, difference = self.table.load(self._snapshot)
        self._take(snapshot, difference)

    def _take(self, snapshot: Snapshot, difference: Difference) -> None:
        for key in difference.removed:
            self._index.remove(_id(key))
        for row in difference.added.values():
            item = snapshot.codec.decode(row)
            if item is not None and self._index.get(item.id) != item:
                self._index.put(item)
        self._snapshot = snapshot

    def _lead(self, group: Sequence[Ticket]) -> None:
        """Commit the changes of a group as one version. Each caller whose precondition fails is told so alone."""
        for attempt in range(ATTEMPTS):
            with turn(self.store):
                base, draft = self._draft(group)
                if not draft.changed:
                    return
                try:
                    self._commit(base, draft)
                    return
                except ConcurrentModificationError:
                    pass
            self.clock.pause(attempt)
        raise ConcurrentModificationError(
            f"The catalog is so busy that {ATTEMPTS} attempts to commit were overtaken: try again later."
        )

    def _draft(self, group: Sequence[Ticket]) -> tuple[Snapshot, Draft]:
        with self._lock:
            if self._fresh() and self._snapshot is None:
                self.table.create()
                self._reload()
            draft = Draft(self._index)
            for ticket in group:
                trial = Draft(draft)
                ticket.error = None
                try:
                    trial.apply(ticket.changes)
                except ConcurrentModificationError as error:
                    ticket.error = error
                else:
                    draft.absorb(trial)
            assert self._snapshot is not None
            return self._snapshot, draft

    def _commit(self, base: Snapshot, draft: Draft) -> None:
        now = self.clock.now_ms()
        removed = [id.format(DELIMITER) for id in draft.changed if draft.base.get(id) is not None]
        items = [item for item in draft.changed.values() if item is not None]
        rows = [base.codec.encode(item, now) for item in items]
        snapshot = self.table.commit(base, removed, rows)
        mark = self._freshness.mark()
        with self._lock:
            if self._snapshot is base:
                for id, item in draft.changed.items():
                    self._index.remove(id)
                    if item is not None:
                        self._index.put(item)
                self._snapshot, self._mark = snapshot, mark
        if snapshot.version % CLEAN_UP_EVERY == 0:
            self.table.clean_up(snapshot)


def _id(key: str) -> ObjectId:
    return ObjectId(tuple(key.split(DELIMITER)))
