"""The registry of directory V2: an index in memory over the `__manifest` table, with grouped exact commits."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from headwater.clock import Clock
from headwater.errors import ConcurrentModificationError, InvalidInputError
from headwater.model import CatalogObject, Change, Namespace, RegistryFacts, Table, Version
from headwater.names import DELIMITER, ROOT, ObjectId
from headwater.registries.folders import FolderMarkers
from headwater.registries.manifest.format import freshness_of
from headwater.registries.manifest.queue import GroupCommit, Request, Ticket, Turns, turn
from headwater.registries.manifest.rows import RowIndex
from headwater.registries.manifest.state import ROOT_PROPERTY, ManifestSnapshot, RowDifference
from headwater.registries.manifest.table import ManifestTable
from headwater.registry import Capabilities, Kind, Proposal, Registry
from headwater.retry import retry
from headwater.store import Store

ATTEMPTS = 50
CLEAN_UP_EVERY = 64


class ManifestRegistry(Registry):
    """A registry whose names are rows of `__manifest`. The first commit creates the table."""

    def __init__(
        self,
        store: Store,
        root_uri: str,
        storage_options: dict[str, str],
        clock: Clock,
        managed: bool = False,
        passes: int = 0,
    ) -> None:
        self.store = store
        self.clock = clock
        self.managed = managed
        self.table = ManifestTable(store, f"{root_uri}/__manifest", storage_options, clock, passes)
        self._freshness = freshness_of(store)
        self._lock = threading.RLock()
        self._index = RowIndex()
        self._snapshot: ManifestSnapshot | None = None
        self._known: dict[ObjectId, Table] = {}
        """Tables with what is known of them at this snapshot."""
        self._mark: object = None
        self._group = GroupCommit(Turns(store, clock, self._commit_requests).run)

        self._capabilities = Capabilities(
            namespaces=True,
            properties=True,
            rename=True,
            register_anywhere=True,
            current_state=self.current_state,
            markers=FolderMarkers(store),
        )

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def find(
        self, ids: Iterable[ObjectId], seen: bool = True, newest: bool = False
    ) -> Mapping[ObjectId, CatalogObject]:
        with self._lock:
            index = self._fresh()
            managed, found = self._is_managed(), dict[ObjectId, CatalogObject]()
            for id in ids:
                item = index.get(id)
                if item is None:
                    item = self._root(id)
                elif managed and isinstance(item, Table):
                    item = self._with_known(item)
                if item is not None:
                    found[id] = item
            return found

    def _with_known(self, item: Table) -> Table:
        """Return a table of a managed catalog with what is known of it."""
        found = self._known.get(item.id)
        if found is None:
            newest = self._index.newest_version(item.id)
            record = self._index.get(item.id.child(str(newest))) if newest else None
            digest = record.digest if isinstance(record, Version) else None
            known = RegistryFacts(managed=True, newest=newest, digest=digest)
            found = self._known[item.id] = Table(item.id, item.location, item.properties, known)
        return found

    def _root(self, id: ObjectId) -> Namespace | None:
        """Return the root namespace if it has properties, which are metadata of `__manifest` and no row."""
        found = self._snapshot.settings.root_properties if self._snapshot is not None and id.is_root else None
        return Namespace(ROOT, found) if found else None

    def current_state(self, id: ObjectId) -> object | None:
        """Return the state in memory if it is current; None if a look-up would have to load or wait.

        Two stats on local disk decide it. Equal states give equal answers.
        """
        if self._freshness.asks_the_store or not self._lock.acquire(blocking=False):
            return None
        try:
            if self._snapshot is None or self._freshness.moved(self._snapshot.version, self._mark):
                return None
            return self._snapshot.version, self._mark
        finally:
            self._lock.release()

    def recalls(self, id: ObjectId) -> bool:
        """Return True if the state in memory has a row of this id."""
        return self._index.get(id) is not None

    def children(self, parent: ObjectId, kind: Kind, after: str, limit: int | None) -> Sequence[str]:
        with self._lock:
            return self._fresh().children(parent, kind, after, limit)

    def descendants(self, parent: ObjectId) -> Sequence[CatalogObject]:
        with self._lock:
            found = list(self._fresh().descendants(parent))
            if not self._is_managed():
                return found
            return [self._with_known(item) if isinstance(item, Table) else item for item in found]

    def versions(self, table: ObjectId) -> Sequence[int]:
        with self._lock:
            return tuple(self._fresh().versions(table))

    def version_page(self, table: ObjectId, after: int | None, limit: int | None, descending: bool) -> Sequence[int]:
        with self._lock:
            return self._fresh().version_page(table, after, limit, descending)

    def newest_version(self, table: ObjectId) -> int:
        with self._lock:
            return self._fresh().newest_version(table)

    def tables(self) -> Sequence[Table]:
        return [item for item in self.descendants(ROOT) if isinstance(item, Table)]

    @property
    def is_there(self) -> bool:
        """True if `__manifest` existed at the last look."""
        return self._snapshot is not None

    @property
    def manages_versions(self) -> bool:
        """Return True also if the catalog is to manage versions and has no table yet: its first commit records it."""
        with self._lock:
            self._fresh()
            return self._is_managed() or (self.managed and not self._index.has_tables)

    @property
    def manages_new(self) -> bool:
        return self._is_managed()

    def manage_versions(self) -> None:
        with self._alone():
            if not self._is_managed():
                self.table.manage_versions()
                self._reload()
            self.managed = True

    def keep_manifests(self, table: ObjectId, numbers: Sequence[int], staged: Sequence[str]) -> bool:
        return False

    def alter_root(self, properties: Mapping[str, str], removed: Collection[str]) -> None:
        changes = {**dict.fromkeys(removed), **properties}
        with self._alone():
            self.table.update_metadata({f"{ROOT_PROPERTY}{name}": value for name, value in changes.items()})
            self._reload()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """This process's turn, with the table there, for the rare change that is not one of rows."""
        with turn(self.store, self.clock), self._lock:
            if self._fresh() and self._snapshot is None:
                self.table.create()
                self._reload()
            assert self._snapshot is not None
            yield

    def _is_managed(self) -> bool:
        return self._snapshot is not None and self._snapshot.settings.manages_versions

    def location_holders(self, location: str) -> set[ObjectId]:
        with self._lock:
            return self._fresh().location_holders(location)

    @property
    def replaces_records(self) -> bool:
        return True

    @property
    def transaction_id(self) -> str | None:
        return None

    @property
    def is_newest(self) -> bool:
        return True

    def kept_columns(self, table: ObjectId) -> Collection[str] | None:
        return None

    def finalized(self, table: Table, number: int) -> None:
        """Do nothing: the record is replaced by one with the final name."""

    def commit(self, changes: Sequence[Change]) -> None:
        self._group.commit(changes)

    def _fresh(self) -> RowIndex:
        """Return the index, not older than this call."""
        if self._snapshot is None or self._freshness.moved(self._snapshot.version, self._mark):
            self._reload()
        return self._index

    def _reload(self) -> None:
        """Take the newest state. What is rewritten or cleaned up while it is read is looked at again."""

        def take(seen: tuple[object, tuple[int, str] | None]) -> None:
            mark, newest = seen
            if newest is None:
                self._snapshot, self._index, self._known, self._mark = None, RowIndex(), {}, None
                return
            self._take(*self.table.load(newest, self._snapshot))
            self._mark = mark

        retry(self.clock, ATTEMPTS, lambda: (self._freshness.mark(), self._freshness.newest()), take)

    def _take(self, snapshot: ManifestSnapshot, difference: RowDifference) -> None:
        self._known = {}
        for key in difference.removed:
            self._index.remove(_id(key))
        for row in difference.added.values():
            item = snapshot.codec.decode(row)
            if item is not None and self._index.get(item.id) != item:
                self._index.put(item)
        self._snapshot = snapshot

    def _commit_requests(self, requests: Sequence[Request]) -> None:
        """Commit the requests of several processes as one version. A failed precondition fails only its own ticket."""
        try:
            retry(
                self.clock,
                ATTEMPTS,
                lambda: self._proposed([request for request in requests if request.claim()]),
                lambda proposed: self._commit(*proposed),
            )
        except ConcurrentModificationError:
            raise ConcurrentModificationError(
                f"The catalog is so busy that {ATTEMPTS} attempts to commit were overtaken: try again later."
            ) from None

    def _landed(self, snapshot: ManifestSnapshot, request: Request) -> bool:
        """Return True if a commit of another process carries this request.

        It is read from the state that the next commit builds on, so that no other commit can come in between.
        """
        accepted = self.table.find_note(snapshot, request.id) if request.doubtful else None
        if accepted is None:
            return False
        for number, ticket in enumerate(request.tickets):
            kept = str(number) in accepted.split(",")
            ticket.error = None if kept else ConcurrentModificationError("Another writer was first: look again.")
        return True

    def _proposed(self, requests: Sequence[Request]) -> tuple[ManifestSnapshot, Proposal, dict[str, str]]:
        """Return the changes that hold, as one proposal, and a note of whose they are."""
        note: dict[str, str] = {}
        with self._lock:
            self._prepare()
            proposal = Proposal(self._index)
            assert self._snapshot is not None
            for request in requests:
                if self._landed(self._snapshot, request):
                    continue
                accepted = [str(at) for at, ticket in enumerate(request.tickets) if _try(proposal, ticket)]
                note[request.id] = ",".join(accepted)
            return self._snapshot, proposal, note

    def _prepare(self) -> None:
        """Create the table if it is missing, and record whether the catalog manages versions."""
        if self._fresh() and self._snapshot is None:
            self.table.create()
            self._reload()
        assert self._snapshot is not None
        if not self.managed or self._is_managed():
            return
        if self._index.has_tables:
            raise InvalidInputError(
                "This catalog exists and does not manage table versions: call enable_table_version_management() once, "
                "or open it without table_version_management."
            )
        self.table.manage_versions()
        self._reload()

    def _commit(self, base: ManifestSnapshot, proposal: Proposal, note: dict[str, str]) -> None:
        if not proposal.changed:
            return
        now = self.clock.now_ms()
        removed = [_key(id) for id in proposal.changed if proposal.base.get(id) is not None]
        items = [item for item in proposal.changed.values() if item is not None]
        before = {id: base.row(_key(old)) for id, old in proposal.continued.items()}
        rows = [base.codec.encode(item, now, before.get(item.id)) for item in items]
        snapshot = self.table.commit(base, removed, rows, note)
        mark = self._freshness.mark()
        with self._lock:
            if self._snapshot is base:
                for id, item in proposal.changed.items():
                    self._index.remove(id)
                    if item is not None:
                        self._index.put(item)
                self._snapshot, self._known, self._mark = snapshot, {}, mark
        if snapshot.version % CLEAN_UP_EVERY == 0:
            self.table.clean_up(snapshot)


def _key(id: ObjectId) -> str:
    return id.format(DELIMITER)


def _id(key: str) -> ObjectId:
    return ObjectId(tuple(key.split(DELIMITER)))


def _try(proposal: Proposal, ticket: Ticket) -> bool:
    """Add one caller's changes to the proposal, all or none."""
    trial = Proposal(proposal)
    ticket.error = None
    try:
        trial.apply(ticket.changes)
    except ConcurrentModificationError as error:
        ticket.error = error
        return False
    proposal.absorb(trial)
    return True
