"""Stream tables of a catalog: the change log and its serving copy under one name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from headwater.catalog.table import CatalogTable
from headwater.errors import InvalidInputError
from headwater.metastore import Snapshot
from headwater.names import ObjectId
from headwater.namespace.metastore import MetastoreNamespace
from headwater.registries.metastore.objects import has_stream
from headwater.registries.metastore.sessions import Within, past_is_past
from headwater.streams.backfilling import Crew
from headwater.streams.definition import define
from headwater.streams.landing import Report
from headwater.streams.layout import DELTA
from headwater.streams.opening import is_stream_table
from headwater.streams.serving import lake
from headwater.streams.shares import Hands
from headwater.streams.table import StreamTable, create_stream_table, publish_tables
from headwater.streams.views import Published
from headwater.streams.within import OwnLog, landing


class CatalogStream(StreamTable):
    """A stream table of a catalog. Reads are fresh; `serving` is what Lance clients see: the rows as last published."""

    def __init__(self, namespace: MetastoreNamespace, id: ObjectId) -> None:
        super().__init__(namespace.metastore, id.names, namespace.properties.root, dict(namespace.properties.storage))
        self.namespace = namespace
        self.id = id

    @property
    def name(self) -> str:
        return self.id.format(".")

    def __repr__(self) -> str:
        return f"CatalogStream({self.name!r})"

    def __len__(self) -> int:
        return self.count()

    def __bool__(self) -> bool:
        """A table is there, however many rows it has."""
        return True

    @property
    def serving(self) -> CatalogTable:
        """The Lance table as last published: search it, index it, read its versions."""
        return CatalogTable(self.namespace, self.id)

    def search(self, *args: Any, **options: Any) -> Any:
        """As `serving.search`: the rows as last published."""
        return self.serving.search(*args, **options)

    # In a transaction, what lands and what is changed joins it; the rest is work of its own and waits for its end.

    def append(self, *args: Any, **options: Any) -> Report:
        with self._landing():
            return super().append(*args, **options)

    def upsert(self, *args: Any, **options: Any) -> Report:
        with self._landing():
            return super().upsert(*args, **options)

    def delete(self, *args: Any, **options: Any) -> Report:
        with self._landing():
            return super().delete(*args, **options)

    def ingest(self, *args: Any, **options: Any) -> Report:
        with self._landing():
            return super().ingest(*args, **options)

    def publish(self, lineage: Mapping[str, Any] | None = None) -> Published:
        """Make the serving copy equal to the newest state. Nothing new: no new version."""
        self._alone("publish")
        return super().publish(lineage)

    def backfill(self, rows: int | None = None, crew: Crew | None = None) -> int:
        self._alone("backfill")
        return super().backfill(rows, crew)

    def compact(self) -> bool:
        self._alone("compact")
        return super().compact()

    def collect(self, *args: Any, **options: Any) -> list[int]:
        self._alone("collect")
        return super().collect(*args, **options)

    def _alone(self, doing: str) -> None:
        check_alone(self.namespace, doing)

    def _landing(self) -> AbstractContextManager[None]:
        session = self.namespace.session
        return landing(session.tx) if isinstance(session, Within) else nullcontext()

    def _beside(self, path: Sequence[str]) -> StreamTable:
        return CatalogStream(self.namespace, ObjectId(tuple(path)))

    def _snapshot(self) -> Snapshot:
        session = self.namespace.session
        if isinstance(session, Within):
            return OwnLog(session.tx)  # type: ignore[return-value]  # it answers what a snapshot of the log is asked
        found: Snapshot = session.state()
        return found

    def _run(self, work: Any, message: str) -> Any:
        session = self.namespace.session
        if session.is_past:
            raise past_is_past(session.state().slot)
        return session.join(work) if isinstance(session, Within) else super()._run(work, message)


def check_alone(namespace: MetastoreNamespace, doing: str) -> None:
    """Error 13 in the past, and in a transaction: its rows have no positions before it ends."""
    namespace.registry.check_writable()
    if isinstance(namespace.session, Within):
        raise InvalidInputError(f"A transaction cannot {doing}: what it lands has no positions yet. Do it afterwards.")


def create_stream(
    namespace: MetastoreNamespace,
    id: ObjectId,
    schema: Any,
    keys: Sequence[str] | str,
    sequence: Sequence[str] | str,
    partition_by: Sequence[Any],
    properties: Mapping[str, str],
) -> CatalogStream:
    """A new stream table under a name; errors 1, 5, 13."""
    namespace.registry.check_writable()
    definition = define(schema, keys, sequence, partition_by, properties)
    stream = CatalogStream(namespace, id)
    stream._run(lambda tx: create_stream_table(tx, id.names, definition), f"create stream table {stream.name}")
    return stream


def is_stream(namespace: MetastoreNamespace, id: ObjectId) -> bool:
    """Whether it is fed by a change log; the history of a stream table is written by publishes alone."""
    state = namespace.session.state()
    return is_stream_table(state, id.names) and has_stream(state, id, DELTA)


def publish(
    namespace: MetastoreNamespace,
    ids: Sequence[ObjectId],
    lineage: Mapping[str, Mapping[str, Any]] | None = None,
    hands: Hands | None = None,
) -> list[Published]:
    """Publish tables at one slot; `lineage` by name is kept with the versions, `hands` do the shares of large ones."""
    check_alone(namespace, "publish")
    found = lake(namespace.metastore, namespace.properties.root, dict(namespace.properties.storage))
    return publish_tables(found, [id.names for id in ids], lineage, hands)
