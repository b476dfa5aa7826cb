"""The past of a catalog, near or behind a server: log, histories, differences, what comes back, what is forgotten."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol, runtime_checkable

import msgspec
from lance_namespace import LanceNamespace

from headwater.catalog.transactions import metastore_of
from headwater.errors import InvalidInputError, UnsupportedOperationError
from headwater.metastore import LogEntry
from headwater.metastore.objects import Collected, Diff, History, HistoryEntry, NamedSnapshot, Undone
from headwater.names import ObjectId
from headwater.namespace.abilities import abilities_of
from headwater.namespace.metastore import MetastoreNamespace
from headwater.namespace.requests import format_moment
from headwater.streams.opening import undrop

Name = str | Sequence[str]


@runtime_checkable
class Remote(Protocol):
    """A catalog behind a server that has stream tables and a past."""

    def at(self, moment: int | datetime | str) -> LanceNamespace: ...

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


class Past(ABC):
    """What a catalog with a log can be asked of its past; the part of `Catalog` that is about time."""

    @property
    @abstractmethod
    def _there(self) -> LanceNamespace: ...

    @abstractmethod
    def _id(self, name: Name) -> ObjectId: ...

    @property
    def slot(self) -> int:
        """The newest commit's number: what `at` takes, to come back to this moment."""
        there = self._there
        if isinstance(there, Remote):
            return int(there.ask_time("log", {"limit": 1})["slot"])
        return metastore_of(there).metastore.slot

    def history(self, name: Name) -> History:
        """Every transaction that touched a namespace or table or a part of it, oldest first, through renames."""
        there, id = self._there, self._id(name)
        if isinstance(there, Remote):
            return msgspec.convert(there.ask_time("history", {}, id)["entries"], list[HistoryEntry], strict=False)
        near = metastore_of(there)
        found: History = _moment_of(near).history(id.names)
        return found

    def log(self, after: int | None = None, wait: float = 0) -> Iterator[LogEntry]:
        """The transactions after a slot, in order, none left out. `wait` seconds for the first, behind a server."""
        there = self._there
        if not isinstance(there, Remote):
            near = metastore_of(there)
            until = None if _moment_of(near) is near.metastore else _moment_of(near).slot
            yield from (entry for entry in near.metastore.log(after) if until is None or entry.slot <= until)
            return
        while True:
            told = there.ask_time("log", {"after": after, "wait_seconds": wait})
            entries = msgspec.convert(told["entries"], list[LogEntry], strict=False)
            yield from entries
            if not entries or entries[-1].slot >= told["slot"]:
                return
            after = entries[-1].slot

    def diff(self, a: int | datetime | str, b: int | datetime | str) -> Diff:
        """What is different at one slot, time or named snapshot from another."""
        there = self._there
        if not isinstance(there, Remote):
            return metastore_of(there).metastore.diff(a, b)
        asked = {"before": format_moment(a), "after": format_moment(b)}
        return msgspec.convert(there.ask_time("diff", asked), Diff, strict=False)

    def undrop(self, name: Name) -> None:
        """Bring back what was dropped last under a name, with all that was dropped with it."""
        there, id = self._there, self._id(name)
        if isinstance(there, Remote):
            there.ask_time("undrop", {}, id)
            return
        near = metastore_of(there)
        near.change(lambda tx: undrop(tx, id.names), f"undrop {id}")

    def undo(self, transaction: str | LogEntry | HistoryEntry, dry_run: bool = False) -> Undone:
        """Undo a transaction by a new one: all that it touched is as it was before. 19 with the reasons if it cannot.

        A dry run tells what would be done. What it landed in stream tables is voided there, and its source taken back.
        """
        if not isinstance(transaction, (str, LogEntry, HistoryEntry)):
            raise InvalidInputError(
                f"A transaction is an id, or an entry of the log or a history, not {transaction!r}."
            )
        there = self._there
        if isinstance(there, Remote):
            txn = transaction if isinstance(transaction, str) else transaction.txn
            return msgspec.convert(there.ask_time("undo", {"txn": txn, "dry_run": dry_run}), Undone, strict=False)
        return metastore_of(there).undo(transaction, dry_run)

    def verify(self) -> list[Any]:
        """Everything on which the catalog and its storage disagree. Nothing is changed."""
        there = self._there
        if isinstance(there, Remote):
            return list(there.ask_time("verify", {})["problems"])
        check = abilities_of(there).verify
        if check is None:
            raise UnsupportedOperationError("This kind of catalog cannot be verified.")
        return list(check())

    def snapshot(self, name: str, tables: Sequence[Name] | None = None) -> NamedSnapshot | None:
        """Pin the newest state of all tables, or of these, under a name: `at(name)` reads it past every collection.

        In a transaction it is the state at the transaction's own slot, and nothing is answered before that is there.
        """
        there, chosen = self._there, None if tables is None else [list(self._id(each).names) for each in tables]
        if isinstance(there, Remote):
            told = there.ask_time("snapshot", {"name": name, "tables": chosen})
            return msgspec.convert(told, NamedSnapshot, strict=False) if told else None
        return metastore_of(there).snapshot(name, chosen)

    def snapshots(self) -> list[NamedSnapshot]:
        """The named snapshots, by name, each with the version and position of every table."""
        there = self._there
        if isinstance(there, Remote):
            return msgspec.convert(there.ask_time("snapshots", {})["snapshots"], list[NamedSnapshot], strict=False)
        return metastore_of(there).snapshots()

    def drop_snapshot(self, name: str) -> None:
        """Let a snapshot go, and with a collection what only it needed."""
        there = self._there
        if isinstance(there, Remote):
            there.ask_time("drop_snapshot", {"name": name})
            return
        metastore_of(there).drop_snapshot(name)

    def collect(
        self, keep: timedelta | None = None, grace: timedelta | None = None, dry_run: bool = False
    ) -> Collected:
        """Forget what is older than `keep`, and delete what nothing can show any more, and what writers that died left
        longer than `grace` ago; both are 7 days. A dry run tells what would go, and why. A directory catalog has no
        past to forget: there only what dead writers left goes."""
        there = self._there
        if isinstance(there, Remote):
            fields = {"keep_seconds": _seconds(keep), "grace_seconds": _seconds(grace), "dry_run": dry_run}
            return msgspec.convert(there.ask_time("collect", fields), Collected, strict=False)
        collect = abilities_of(there).collect
        if collect is None:
            raise UnsupportedOperationError("This kind of catalog cannot be collected.")
        return collect(keep, grace, dry_run)


def _moment_of(near: MetastoreNamespace) -> Any:
    """What a history is asked of: the past that this is, what an open transaction began with, or the present."""
    if near.session.moment is not None:
        return near.session.moment
    return near.metastore.at(near.session.state().slot) if near.session.transaction_id else near.metastore


def _seconds(age: timedelta | None) -> float | None:
    return None if age is None else age.total_seconds()
