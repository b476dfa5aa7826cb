"""Stream tables where a catalog stands: in the present, inside an open transaction, or at a moment of the past."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headwater.errors import InvalidInputError
from headwater.metastore import Snapshot, Transaction
from headwater.names import ObjectId, format_name
from headwater.registries.metastore.sessions import Within
from headwater.streams.definition import Definition
from headwater.streams.landing import LandingReport
from headwater.streams.layout import DELTA, QUARANTINE
from headwater.streams.position_views import Published
from headwater.streams.publishing import stage
from headwater.streams.serving_copy import CatalogLocation, Lake, catalog_location, lake
from headwater.streams.table import StreamTable, check_once, create_stream_table, publish_tables
from headwater.streams.within import landing, own_log
from headwater.work import HERE, Runner

if TYPE_CHECKING:
    from headwater.namespace.metastore import MetastoreNamespace


class NamespaceStream(StreamTable):
    """In a transaction, what lands and what is changed joins it."""

    def __init__(self, namespace: MetastoreNamespace, id: ObjectId) -> None:
        super().__init__(namespace.metastore, id.names, namespace.properties.root, dict(namespace.properties.storage))
        self.namespace = namespace
        self.id = id

    def append(self, *args: Any, **options: Any) -> LandingReport:
        with self._landing():
            return super().append(*args, **options)

    def upsert(self, *args: Any, **options: Any) -> LandingReport:
        with self._landing():
            return super().upsert(*args, **options)

    def delete(self, *args: Any, **options: Any) -> LandingReport:
        """As `StreamTable.delete`: without a sequence the transaction relies on the rows that it found."""
        session = self.namespace.session
        with self._landing():
            done = super().delete(*args, **options)
        if isinstance(session, Within) and not self.definition.sequence:
            session.tx.last_position(self.path)
        return done

    def ingest(self, *args: Any, **options: Any) -> LandingReport:
        with self._landing():
            return super().ingest(*args, **options)

    def ingest_files(self, *args: Any, **options: Any) -> list[LandingReport]:
        with self._landing():
            return super().ingest_files(*args, **options)

    def take(self, *args: Any, **options: Any) -> LandingReport:
        with self._landing():
            return super().take(*args, **options)

    def publish(self, *args: Any, **options: Any) -> Published:
        """Make the serving copy equal to the newest state. Nothing new: no new version."""
        session = self.namespace.session
        if not isinstance(session, Within):
            self.namespace.registry.check_writable()
            return super().publish(*args, **options)
        return publish_within(session, self._lake(), self.path, *args, **options)

    def collect(self, *args: Any, **options: Any) -> list[int]:
        check_alone(self.namespace, "collect")
        return super().collect(*args, **options)

    def _lake(self) -> Lake:
        return replace(super()._lake(), own=self._own())

    def _own(self) -> Transaction | None:
        session = self.namespace.session
        return session.tx if isinstance(session, Within) else None

    def _landing(self) -> AbstractContextManager[None]:
        session = self.namespace.session
        return landing(session.tx) if isinstance(session, Within) else nullcontext()

    def _beside(self, path: Sequence[str]) -> StreamTable:
        return type(self)(self.namespace, ObjectId(tuple(path)))

    def _snapshot(self) -> Snapshot:
        session = self.namespace.session
        if isinstance(session, Within):
            return own_log(session.tx)
        return self.namespace.metastore.now() if session.moment is None else session.moment

    def run(self, work: Any, message: str) -> Any:
        return self.namespace.change(work, message)


def make_stream(namespace: MetastoreNamespace, id: ObjectId, definition: Definition) -> NamespaceStream:
    """A new stream table under a name; errors 1, 5, 13."""
    namespace.registry.check_writable()
    namespace.change(lambda tx: create_stream_table(tx, id.names, definition), f"create stream table {id}")
    return NamespaceStream(namespace, id)


def publish_within(
    session: Within, inside: Lake, path: Sequence[str], lineage: Mapping[str, Any] | None = None
) -> Published:
    """Publish in an open transaction what its table holds by then, with what the transaction has landed itself.

    Where it has landed nothing in the table, what others land meanwhile waits for the next publish, as always.
    """

    def work(tx: Transaction) -> Published:
        before, log = set(tx.draft.reads), tx.get_stream(path, format=DELTA)
        own = any(each.stream_home == log.home for each in tx.draft.appends)
        done = stage(inside, tx, path, lineage).published
        tx.draft.reads -= set() if own else {f"d{'/'.join(log.home.split('/')[-3:])}"} - before
        return done

    return session.join(work)


def publish_streams(
    namespace: MetastoreNamespace,
    ids: Sequence[ObjectId],
    lineage: Mapping[str, Mapping[str, Any]] | None = None,
    runner: Runner = HERE,
) -> list[Published]:
    """Publish tables at one slot, that of the transaction which is open here if there is one.

    `lineage` by name is kept with the versions, `runner` folds and writes their rows, but not in a transaction.
    Quarantines come last: the publish of their table may land rows in them.
    """
    if isinstance(namespace.session, Within):
        check_once([id.names for id in ids])
        inside = {
            id: NamespaceStream(namespace, id) for id in sorted(ids, key=lambda id: id.names[-1].endswith(QUARANTINE))
        }
        made = {id: each.publish((lineage or {}).get(format_name(id.names))) for id, each in inside.items()}
        return [made[id] for id in ids]
    namespace.registry.check_writable()
    found = lake(namespace.metastore, namespace.properties.root, dict(namespace.properties.storage))
    return publish_tables(found, [id.names for id in ids], lineage, runner)


def location_in(namespace: MetastoreNamespace) -> CatalogLocation:
    """Return the address of a catalog's storage, as executors open it."""
    known = namespace.properties
    return catalog_location(lake(namespace.metastore, known.root, dict(known.storage)))


def check_alone(namespace: MetastoreNamespace, doing: str) -> None:
    """Error 13 in the past, and in a transaction, for what is no change of what the catalog holds."""
    namespace.registry.check_writable()
    if isinstance(namespace.session, Within):
        raise InvalidInputError(f"A transaction cannot {doing}: no slot could hold that. Commit it, and {doing} then.")
