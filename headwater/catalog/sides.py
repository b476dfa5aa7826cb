"""On which side of a server a catalog is: open in this process, or behind one. What is beyond the operations on a
namespace (its past, transactions, stream tables, aliases) is asked of the one or the other here, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec
from lance_namespace import LanceNamespace

from headwater.catalog.streams import CatalogStream, create_stream, is_stream
from headwater.catalog.table import CatalogTable
from headwater.catalog.transactions import (
    CatalogTransaction,
    Face,
    NearTransaction,
    RemoteTransaction,
    metastore_of,
)
from headwater.errors import InvalidInputError, UnsupportedOperationError
from headwater.metastore import LogEntry
from headwater.metastore.objects import Collected, Diff, History, HistoryEntry, NamedSnapshot, Undone
from headwater.names import ObjectId
from headwater.namespace.abilities import abilities_of
from headwater.namespace.metastore import MetastoreNamespace
from headwater.namespace.requests import format_moment
from headwater.rest.remote_streams import create_remote
from headwater.streams.definition import Definition
from headwater.streams.opening import undrop

Moment = int | datetime | str
Told = TypeVar("Told")
Done = str | LogEntry | HistoryEntry
"""A transaction: its id, or an entry that has it."""


@runtime_checkable
class Remote(Protocol):
    """A catalog behind a server that has stream tables and a past."""

    def at(self, moment: Moment) -> LanceNamespace: ...

    def stream_table(self, id: ObjectId, serving: Any) -> Any: ...

    def is_stream_table(self, id: ObjectId) -> bool: ...

    def publish_tables(self, ids: Sequence[ObjectId]) -> list[Any]: ...

    def begin(self, message: str) -> LanceNamespace:
        """The catalog inside a new transaction."""
        ...

    def commit(self) -> int:
        """Commit the transaction that this catalog is inside of; its slot."""
        ...

    def abort(self) -> None: ...

    def ask_time(self, tail: str, fields: Mapping[str, Any], id: ObjectId | None = None) -> dict[str, Any]: ...


class NearSide:
    """A catalog that this process has opened, of any kind: what only a metastore has, the others refuse (0)."""

    def __init__(self, namespace: LanceNamespace) -> None:
        self._namespace = namespace

    @property
    def _near(self) -> MetastoreNamespace:
        return metastore_of(self._namespace)

    def slot(self) -> int:
        return int(_moment_of(self._near).slot)

    def history(self, id: ObjectId) -> History:
        found: History = _moment_of(self._near).history(id.names)
        return found

    def log(self, after: int | None, wait: float) -> Iterator[LogEntry]:
        metastore, seen = self._near.metastore, _moment_of(self._near)
        until = None if seen is metastore else seen.slot
        yield from (entry for entry in metastore.log(after) if until is None or entry.slot <= until)

    def diff(self, a: Moment, b: Moment) -> Diff:
        return self._near.metastore.diff(a, b)

    def undrop(self, id: ObjectId) -> None:
        self._near.change(lambda tx: undrop(tx, id.names), f"undrop {id}")

    def undo(self, transaction: Done, dry_run: bool) -> Undone:
        return self._near.undo(transaction, dry_run)

    def verify(self) -> list[Any]:
        check = abilities_of(self._namespace).verify
        if check is None:
            raise UnsupportedOperationError("This kind of catalog cannot be verified.")
        return list(check())

    def snapshot(self, name: str, tables: list[list[str]] | None) -> NamedSnapshot | None:
        return self._near.snapshot(name, tables)

    def snapshots(self) -> list[NamedSnapshot]:
        return self._near.snapshots()

    def drop_snapshot(self, name: str) -> None:
        self._near.drop_snapshot(name)

    def collect(self, keep: timedelta | None, grace: timedelta | None, dry_run: bool) -> Collected:
        collect = abilities_of(self._namespace).collect
        if collect is None:
            raise UnsupportedOperationError("This kind of catalog cannot be collected.")
        return collect(keep, grace, dry_run)

    def at(self, moment: Moment) -> LanceNamespace:
        return self._near.at(moment)

    def begin(self, message: str, author: str | None, face: Face) -> CatalogTransaction:
        self._near.registry.check_writable()
        return NearTransaction(self._near, message, author, face)

    def alias(self, id: ObjectId, name: str) -> None:
        self._near.alias(list(id.names), name)

    def unalias(self, id: ObjectId, name: str) -> None:
        self._near.unalias(list(id.names), name)

    def stream_table(self, serving: CatalogTable) -> Any | None:
        """The stream table that a table is the serving copy of, if it is one."""
        namespace = self._namespace
        if isinstance(namespace, MetastoreNamespace) and is_stream(namespace, serving.id):
            return CatalogStream(namespace, serving.id)
        return None

    def create_stream_table(self, serving: CatalogTable, definition: Definition) -> Any:
        return create_stream(self._near, serving.id, definition)

    def publish(self, ids: Sequence[ObjectId]) -> list[Any]:
        return self._near.publish(ids)

    @property
    def mirrored(self) -> MetastoreNamespace:
        """The catalog that has a mirror, or can have one."""
        return self._near


class FarSide:
    """A catalog behind a server."""

    def __init__(self, server: Remote) -> None:
        self._server = server

    def slot(self) -> int:
        return int(self._server.ask_time("log", {"limit": 1})["slot"])

    def history(self, id: ObjectId) -> History:
        return _read(self._server.ask_time("history", {}, id)["entries"], list[HistoryEntry])

    def log(self, after: int | None, wait: float) -> Iterator[LogEntry]:
        while True:
            told = self._server.ask_time("log", {"after": after, "wait_seconds": wait})
            entries = _read(told["entries"], list[LogEntry])
            yield from entries
            if not entries or entries[-1].slot >= told["slot"]:
                return
            after = entries[-1].slot

    def diff(self, a: Moment, b: Moment) -> Diff:
        return _read(self._server.ask_time("diff", {"before": format_moment(a), "after": format_moment(b)}), Diff)

    def undrop(self, id: ObjectId) -> None:
        self._server.ask_time("undrop", {}, id)

    def undo(self, transaction: Done, dry_run: bool) -> Undone:
        txn = transaction if isinstance(transaction, str) else transaction.txn
        return _read(self._server.ask_time("undo", {"txn": txn, "dry_run": dry_run}), Undone)

    def verify(self) -> list[Any]:
        return list(self._server.ask_time("verify", {})["problems"])

    def snapshot(self, name: str, tables: list[list[str]] | None) -> NamedSnapshot | None:
        told = self._server.ask_time("snapshot", {"name": name, "tables": tables})
        return _read(told, NamedSnapshot) if told else None

    def snapshots(self) -> list[NamedSnapshot]:
        return _read(self._server.ask_time("snapshots", {})["snapshots"], list[NamedSnapshot])

    def drop_snapshot(self, name: str) -> None:
        self._server.ask_time("drop_snapshot", {"name": name})

    def collect(self, keep: timedelta | None, grace: timedelta | None, dry_run: bool) -> Collected:
        fields = {"keep_seconds": _seconds(keep), "grace_seconds": _seconds(grace), "dry_run": dry_run}
        return _read(self._server.ask_time("collect", fields), Collected)

    def at(self, moment: Moment) -> LanceNamespace:
        return self._server.at(moment)

    def begin(self, message: str, author: str | None, face: Face) -> CatalogTransaction:
        if author is not None:
            raise InvalidInputError("Behind a server, the author of a transaction is who the server takes you for.")
        return RemoteTransaction(self._server, message, face)

    def alias(self, id: ObjectId, name: str) -> None:
        self._server.ask_time("alias", {"alias": name}, id)

    def unalias(self, id: ObjectId, name: str) -> None:
        self._server.ask_time("unalias", {"alias": name}, id)

    def stream_table(self, serving: CatalogTable) -> Any | None:
        server, id = self._server, serving.id
        return server.stream_table(id, lambda: serving) if server.is_stream_table(id) else None

    def create_stream_table(self, serving: CatalogTable, definition: Definition) -> Any:
        return create_remote(self._server.stream_table(serving.id, lambda: serving), definition)

    def publish(self, ids: Sequence[ObjectId]) -> list[Any]:
        return self._server.publish_tables(ids)

    @property
    def mirrored(self) -> MetastoreNamespace:
        raise UnsupportedOperationError("A mirror is turned on where the storage is, not through a server.")


Side = NearSide | FarSide


def side_of(namespace: LanceNamespace) -> Side:
    """The side that a catalog is on."""
    return FarSide(namespace) if isinstance(namespace, Remote) else NearSide(namespace)


def _moment_of(near: MetastoreNamespace) -> Any:
    """What a history is asked of: the past that this is, what an open transaction began with, or the present."""
    if near.session.moment is not None:
        return near.session.moment
    return near.metastore.at(near.session.state().slot) if near.session.transaction_id else near.metastore


def _read(told: Any, kind: type[Told]) -> Told:
    return msgspec.convert(told, kind, strict=False)


def _seconds(age: timedelta | None) -> float | None:
    return None if age is None else age.total_seconds()
