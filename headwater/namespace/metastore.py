"""The metastore catalog: Lance tables as objects of a metastore, behind the same operations as any other catalog."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import ref

import lance_namespace as api

from headwater import streams
from headwater.clock import Clock, SystemClock
from headwater.errors import InvalidInputError, LanceNamespaceError, UnsupportedOperationError
from headwater.metastore import Metastore, Object, Transaction
from headwater.metastore.commit.root_kinds import check_finished
from headwater.metastore.records.objects import Collected, Undone
from headwater.metastore.records.ref_record import REFS_FORMAT, KnownRefs, RefRecord
from headwater.metastore.sessions import (
    CleanUp,
    NewRows,
    PastSession,
    Postponed,
    PresentSession,
    Session,
    TransactionSession,
)
from headwater.metastore.upkeep.collect import pending_locations
from headwater.model import Table
from headwater.names import ObjectId, format_name
from headwater.namespace.abilities import CatalogAbilities
from headwater.namespace.data import insert_mode
from headwater.namespace.mirror import Mirror, MirrorState
from headwater.namespace.registered import RegisteredNamespace
from headwater.namespace.registry_kinds import MetastoreProperties, parse_metastore_properties
from headwater.namespace.requests import parse_request
from headwater.namespace.transactions.open_transactions import (
    OpenTransactions,
    collect_rows,
    fit_rows,
    restore_version,
    stage_rows,
)
from headwater.namespace.transactions.ref_changes import RefEdit, RefFiles, changed_tables, refs_at_rest
from headwater.namespace.versions import VersionProblem
from headwater.namespace.versions.maintenance import unfinished_drop
from headwater.namespace.versions.ranges import KeepPolicy
from headwater.registries.metastore import MetastoreRegistry
from headwater.registries.metastore.mapping import RecordedRefs, has_stream, ref_record_of
from headwater.store import open_store
from headwater.streams.layout import DELTA
from headwater.table_refs import BRANCH, TAG, Ref, branch_of
from headwater.tables.columns.fields import parse_path
from headwater.work import HERE, Runner

if TYPE_CHECKING:
    from headwater.streams import CatalogLocation, Definition, Lake, Published, StreamTable

Answer = TypeVar("Answer")


class MetastoreNamespace(RegisteredNamespace):
    """A catalog in a metastore, in a local directory or on an object store (docs/design/014-metastore-catalog.md)."""

    def __init__(self, clock: Clock | None = None, /, **properties: object) -> None:
        self._open(properties, clock or SystemClock())

    @classmethod
    def beside_others(cls, properties: Mapping[str, object]) -> MetastoreNamespace:
        """Open a root that may hold another catalog or other things, for a caller that checked it."""
        opened = cls.__new__(cls)
        opened._open(dict(properties), SystemClock(), beside_others=True)
        return opened

    def _open(self, properties: dict[str, object], clock: Clock, beside_others: bool = False) -> None:
        known = parse_metastore_properties(properties)
        store = open_store(known.root, dict(known.storage))
        if not beside_others:
            check_finished(store)
        metastore = Metastore(store, clock=clock, author=known.author, beside_others=beside_others)
        self._stand(properties, known, metastore, clock)
        self.mirror.follow()

    def _stand(
        self,
        given: dict[str, object],
        properties: MetastoreProperties,
        metastore: Metastore,
        clock: Clock,
        session: Session | None = None,
        other: MetastoreNamespace | None = None,
        alike: bool = False,
    ) -> None:
        """Set this catalog up. `other`: the same catalog in another session; `alike`: in this one, its caches hold."""
        like = other if alike else None
        self._given = given
        self.properties = properties
        self.metastore = metastore
        self._recorded: RecordedRefs = RecordedRefs(metastore.store) if other is None else other._recorded
        known: MetastoreRegistry | None = None if like is None else like._registry
        self._registry: MetastoreRegistry = MetastoreRegistry(metastore, clock, session, known)
        versions = None if like is None else like.versions
        at, delimiter = properties.root, properties.delimiter
        super().__init__(
            self._registry, self._registry, metastore.store, at, clock, delimiter, properties.storage, versions
        )
        self.kept = None if session is None or session.moment is None else {}
        self._without_kept: MetastoreNamespace | None = None
        self.mirror: Mirror = (
            Mirror(metastore, self.versions, properties.root, dict(properties.storage), clock)
            if other is None
            else other.mirror
        )

    def _over(self, session: Session, metastore: Metastore | None = None, alike: bool = False) -> MetastoreNamespace:
        """Return the same catalog in another session, or (`alike`) in the name of another author."""
        other = MetastoreNamespace.__new__(MetastoreNamespace)
        over = metastore or self.metastore
        other._stand(self._given, self.properties, over, self.clock, session.over(over), self, alike)
        return other

    @property
    def _lance_client(self) -> MetastoreNamespace:
        if self.kept is None:
            return self
        if self._without_kept is None:
            self._without_kept = self._over(self.session, alike=True)
            self._without_kept.kept = None
        return self._without_kept

    def namespace_id(self) -> str:
        return f"headwater.MetastoreNamespace {{ root: {self.properties.root!r} }}"

    def __repr__(self) -> str:
        past = self.session.moment
        return f"MetastoreNamespace(root={self.properties.root!r}{'' if past is None else f', at commit {past.slot}'})"

    def __reduce__(self) -> tuple[Callable[..., MetastoreNamespace], tuple[dict[str, object], dict[str, str]]]:
        return _reopened, (self._given, dict(self.metastore.chosen))

    def create_table_reader(self, request: Any, reader: Any) -> Any:
        if self.properties.root.startswith("memory://"):
            raise UnsupportedOperationError(
                "Lance tables cannot be kept in memory:// by another library: names can, rows need a directory."
            )
        return super().create_table_reader(request, reader)

    def insert_reader(self, request: object, reader: Any) -> Any:
        asked = parse_request(api.InsertIntoTableRequest, request)
        if insert_mode(asked) != "append":
            return super().insert_reader(asked, reader)
        if self.session.collects_rows and branch_of(asked.branch) is None and asked.id:
            found = collect_rows(self, self.id_of(asked.id), reader)
            if found is not None:
                return found
        with self.session.appending():
            return super().insert_reader(asked, reader)

    def check_rows(self, id: ObjectId) -> None:
        """The rows of a stream table come from its change log alone."""
        self._registry.check_rows(id)

    def check_columns(self, id: ObjectId, paths: Sequence[str]) -> None:
        """The columns of a stream table that its log fills are changed by `evolve`."""
        self._registry.check_columns(id, {parse_path(path)[0] for path in paths})

    @property
    def session(self) -> Session:
        """The session of this catalog: the present, a transaction, or a moment of the past."""
        return self._registry.session

    # Tags and branches

    def create_table_tag(self, request: object) -> Any:
        return self._change_refs(api.CreateTableTagRequest, request, RefEdit.create_tag, "create tag {.tag}")

    def update_table_tag(self, request: object) -> Any:
        return self._change_refs(api.UpdateTableTagRequest, request, RefEdit.update_tag, "move tag {.tag}")

    def delete_table_tag(self, request: object) -> Any:
        return self._change_refs(api.DeleteTableTagRequest, request, RefEdit.delete_tag, "delete tag {.tag}")

    def create_table_branch(self, request: object) -> Any:
        return self._change_refs(api.CreateTableBranchRequest, request, RefEdit.create_branch, "create branch {.name}")

    def delete_table_branch(self, request: object) -> Any:
        return self._change_refs(api.DeleteTableBranchRequest, request, RefEdit.delete_branch, "delete branch {.name}")

    def _change_refs(self, kind: Any, request: object, edit: Callable[[RefEdit, Any], Answer], message: str) -> Answer:
        """Change tags or branches in the transaction that is open here, or in one of its own."""
        parsed: Any = parse_request(kind, request)
        if not parsed.id:
            raise InvalidInputError("The request has no table id.")
        self._registry.check_writable()
        id = self.id_of(parsed.id)

        def work(tx: Transaction) -> Answer:
            inside = self._inside(tx)
            table = inside.operations.find_table(id)
            known = inside.known_refs(table)
            assert known is not None
            return edit(RefEdit(inside, table, known), parsed)

        done = self.session.change(work, f"{message.format(parsed)} of {format_name(id.names)}")
        self.session.after_commit(lambda: self._settle_refs(id))
        return done

    def _inside(self, tx: Transaction) -> MetastoreNamespace:
        """Return the catalog inside a transaction, which may be the one that is open here."""
        return self if tx.id == self.session.transaction_id else self.within(tx)

    def refs_of(self, table: Table) -> Callable[[], KnownRefs | None] | None:
        return lambda: self.known_refs(table)

    def refs_in(self, table: Table) -> Iterable[Ref]:
        known = self.known_refs(table)
        if known is None:
            return super().refs_in(table)
        both = {TAG: known.tags, BRANCH: known.branches}
        return [Ref(kind, name, to.version, to.branch, "") for kind, of in both.items() for name, to in of.items()]

    def known_refs(self, table: Table) -> KnownRefs | None:
        """Return a table's tags and branches with the changes of an open transaction; None if its folder holds all.

        Outside of a transaction, committed changes are written to the folder first.
        """

        def settle(record: RefRecord) -> KnownRefs:
            handle = replace(self.handle(table), refs=None)
            newest = partial(self._ref_record, table)
            return refs_at_rest(RefFiles(self._recorded, handle, table, self.versions, newest), record)

        return self.session.known_refs(
            self._ref_record(table), lambda record: self._recorded.read(table, record), settle
        )

    def _ref_record(self, table: Table) -> RefRecord | None:
        return ref_record_of(self.session.state(), table.id)

    def _settle_refs(self, id: ObjectId) -> None:
        """Have the folder of a table show the tags and branches that were committed."""
        with suppress(LanceNamespaceError):
            self.known_refs(self.operations.find_table(id))

    # Clean-ups that wait for the end of a transaction

    def postpone(self, table: Table, policy: KeepPolicy) -> bool:
        keep = CleanUp(policy.versions, policy.days, policy.grace_seconds)
        return self.session.postpone(table.id.names, keep=keep)

    def catch_up(self, done: TransactionSession) -> None:
        """Do what waited for the commit of a transaction. What fails here is done by a later read or clean-up."""
        for id in changed_tables(done):
            with suppress(LanceNamespaceError):
                self._settle_refs(self._name_of(id))
        for each in done.postponed:
            with suppress(LanceNamespaceError):
                self._catch_up(each)
        if done.tx.changes_root:
            with suppress(LanceNamespaceError):
                self.mirror.settle()

    def _catch_up(self, waiting: Postponed) -> None:
        id, keep = self._name_of(waiting.table), waiting.keep
        if keep is not None:
            self.clean_up_table_versions(list(id.names), keep.versions, keep.days, keep.grace_seconds)
        else:
            self.versions.tidy(self.operations.find_table(id), waiting.numbers, waiting.staged)

    def _name_of(self, id: str) -> ObjectId:
        """Return the current name of a table, by its id in the metastore."""
        found = self.metastore.by_id(id)
        assert isinstance(found, Object)
        return ObjectId(tuple(found.path))

    def within(self, tx: Transaction, postponed: Iterable[Postponed] = ()) -> MetastoreNamespace:
        """Return the catalog inside an open transaction: it reads its own writes, and nobody else does before it
        commits."""

        def stage(rows: NewRows) -> None:
            living = inside()
            assert living is not None, "a transaction is read through the catalog inside it"
            stage_rows(living, fit_rows(living, rows))

        made = self._over(TransactionSession(tx, stage, postponed))
        inside = ref(made)  # it holds the session
        return made

    def at(self, moment: Any) -> MetastoreNamespace:
        """Return the catalog as it was at a slot or a time, read-only: names, properties, schemas and rows."""
        return self._over(PastSession(self.metastore.at(moment)))

    def abilities(self) -> CatalogAbilities:
        return replace(
            super().abilities(),
            metastore=self.metastore,
            at=self.at,
            session=self.session,
            table_version=self.table_version,
            identify=self.identify,
            in_transaction=self.session.transaction_id is not None,
            undo=self.undo_transaction,
            by=self.by,
            stream=self.stream,
            create_stream=self.create_stream,
            publish=self.publish,
            transactions=self.transactions,
            collect=self.collect,
            close=self.close,
        )

    def identify(self, names: Sequence[str], dropped: bool = False, refresh: bool = False) -> tuple[str, ...]:
        """The keys from the root to what a name means here, by which an object is known for ever; empty for nothing."""
        return self.session.state(refresh).identify(names, dropped)

    def by(self, author: str) -> MetastoreNamespace:
        """Return the same catalog in the name of an author, whom the log names."""
        return self._over(self.session, self.metastore.by(author), alike=True)

    def table_version(self, id: ObjectId, version: str) -> MetastoreNamespace:
        """Return the catalog with one table at another version than its active one, for reads and writes."""
        if self.session.transaction_id is not None:
            raise InvalidInputError(
                "A transaction reads and writes the active version of a table: activate the other one in it first."
            )
        moment = self.session.moment
        over = self.metastore.with_version(id.names, version, moment)
        return self._over(PresentSession(over) if moment is None else PastSession(over.seen(moment)), over)

    def change(self, work: Callable[[Transaction], Answer], message: str) -> Answer:
        """Have `work` change the transaction that is open here, or one of its own, which is repeated on a conflict."""
        return self.session.change(work, message)

    def stream(self, id: ObjectId) -> StreamTable:
        """Return the handle of a stream table by its name, whether the table exists or not."""
        root, storage = self.properties.root, dict(self.properties.storage)
        return streams.StreamTable(self.metastore, id.names, root, storage, self.session)

    def create_stream(self, id: ObjectId, definition: Definition) -> StreamTable:
        """Create a stream table: errors 1, 5, 13."""
        self.change(lambda tx: streams.create_stream_table(tx, id.names, definition), f"create stream table {id}")
        return self.stream(id)

    def _lake(self) -> Lake:
        return streams.lake(self.metastore, self.properties.root, dict(self.properties.storage))

    def location(self) -> CatalogLocation:
        """Return the address of the catalog's storage, as executors open it."""
        return streams.catalog_location(self._lake())

    def publish(
        self, ids: Sequence[ObjectId], lineage: Mapping[str, Mapping[str, object]] | None = None, runner: Runner = HERE
    ) -> list[Published]:
        """Publish stream tables at one slot, that of the open transaction if there is one.

        `lineage`, by name, is kept with the versions. `runner` folds and writes their rows, but not in a transaction.
        """
        return streams.publish_tables(self._lake(), [id.names for id in ids], lineage, runner, self.session)

    @property
    def transactions(self) -> OpenTransactions:
        """Open transactions that callers in other processes have begun."""
        return OpenTransactions(self)

    def undo_transaction(self, txn: object, dry_run: bool = False) -> Undone:
        """Undo a committed transaction by a new one, or in the one that is open here; 19 with the reasons.

        Lance tables get one more version.
        """

        def restore(tx: Transaction, table: str, version: int) -> None:
            found = tx.by_id(table)
            assert isinstance(found, Object)
            id = ObjectId(tuple(found.path))
            self.session.check_unwritten(id)
            restore_version(self._inside(tx), id, version)

        done = self.session.within(lambda tx: streams.undo_transaction(self.metastore, txn, dry_run, restore, tx))
        if not dry_run:
            self.session.after_commit(lambda: self._settle_undone(done))
        return done

    def _settle_undone(self, done: Undone) -> None:
        for step in done.steps:
            if step.detail == REFS_FORMAT:
                self._settle_refs(ObjectId(tuple(step.path)))
            if step.kind == "root":
                with suppress(LanceNamespaceError):
                    self.mirror.settle()

    def mirror_state(self) -> MirrorState:
        """Return the state of the mirror, as the open transaction leaves it if there is one."""
        return self.mirror.state(self.session.transaction)

    def turn_mirror(self, on: bool) -> None:
        """Turn the mirror on or off."""
        self.session.within(lambda tx: self.mirror.turn(on, tx))

    def collect(
        self, keep: timedelta | None = None, grace: timedelta | None = None, dry_run: bool = False
    ) -> Collected:
        """Forget what is older than `keep`, free what nothing shows any more; not in the past nor in a transaction."""
        self.session.check_alone("collect")
        return self.metastore.collect(keep, grace, dry_run)

    def verify(self) -> list[VersionProblem]:
        """Return everything on which the catalog, its storage and the published layout disagree. Nothing is changed.

        The folder of a dropped table that can still be brought back, or that a named snapshot needs, is where it
        should be.
        """
        others = list(self._other_versions())
        known = self._registry.dropped_locations() | {table.location for _, table in others}
        found = [item for item in super().verify() if item.key not in known and not self._is_pinned(item)]
        found += (item for there, table in others for item in there.maintenance.verify_table(table))
        pending = pending_locations(self.store) if any(item.kind == "unreferenced_folder" for item in found) else ()
        found = [unfinished_drop(item.key) if item.key in pending else item for item in found]
        own = [VersionProblem("metastore", None, item.key, item.reason) for item in self.metastore.verify()]
        active = ((self, table) for table in self._registry.tables())
        return [*found, *own, *(item for there, table in (*active, *others) for item in there._unproved(table))]

    def _other_versions(self) -> Iterator[tuple[MetastoreNamespace, Table]]:
        """Yield the table versions that are not active, each in a catalog that chooses it."""
        for id, version in self._registry.other_versions():
            there = self.table_version(id, version)
            yield there, there.operations.find_table(id)

    def _unproved(self, table: Table) -> Iterator[VersionProblem]:
        """Yield where a serving copy is not what its log gives."""
        if has_stream(self.session.state(), table.id, DELTA):
            for message in self.stream(table.id).verify():
                yield VersionProblem("serving_copy", table.id, table.location, message)

    def _is_pinned(self, found: VersionProblem) -> bool:
        return found.kind == "unreferenced_folder" and bool(self.metastore.pinned_versions(found.key))

    def close(self) -> None:
        """Wait for housekeeping that goes on beside, and for the mirror to show the newest slot."""
        self.mirror.close()
        self.metastore.close()


def _reopened(properties: dict[str, object], chosen: dict[str, str]) -> MetastoreNamespace:
    found = MetastoreNamespace(**properties)
    for table, version in chosen.items():
        found = found.table_version(found._name_of(table), version)
    return found
