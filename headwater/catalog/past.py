"""The past of a catalog: log, histories, differences, what comes back, what is forgotten."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from headwater.arguments import checked
from headwater.catalog.sides import Side
from headwater.errors import InvalidInputError
from headwater.metastore import LogEntry
from headwater.metastore.objects import Collected, Diff, History, HistoryEntry, NamedSnapshot, Undone
from headwater.names import ObjectId

Name = str | Sequence[str]


@checked
class Past(ABC):
    """What a catalog with a log can be asked of its past; the part of `Catalog` that is about time."""

    @property
    @abstractmethod
    def _side(self) -> Side:
        """The side that the catalog is on, for every call that makes no catalog."""

    @abstractmethod
    def _id(self, name: Name) -> ObjectId: ...

    @property
    def slot(self) -> int:
        """The newest commit's number, of the past that of its moment: what `at` takes, to come back to this moment."""
        return self._side.slot()

    def history(self, name: Name) -> History:
        """Every transaction that touched a namespace or table or a part of it, oldest first, through renames."""
        return self._side.history(self._id(name))

    def log(self, after: int | None = None, wait: float = 0) -> Iterator[LogEntry]:
        """The transactions after a slot, in order, none left out. `wait` seconds for the first, behind a server."""
        return self._side.log(after, wait)

    def diff(self, a: int | datetime | str, b: int | datetime | str) -> Diff:
        """What is different at one slot, time or named snapshot from another."""
        return self._side.diff(a, b)

    def undrop(self, name: Name) -> None:
        """Bring back what was dropped last under a name, with all that was dropped with it."""
        self._side.undrop(self._id(name))

    def undo(self, transaction: str | LogEntry | HistoryEntry, dry_run: bool = False) -> Undone:
        """Undo a transaction by a new one: all that it touched is as it was before. 19 with the reasons if it cannot.

        A dry run tells what would be done. What it landed in stream tables is voided there, and its source taken back.
        """
        if not isinstance(transaction, (str, LogEntry, HistoryEntry)):
            raise InvalidInputError(
                f"A transaction is an id, or an entry of the log or a history, not {transaction!r}."
            )
        return self._side.undo(transaction, dry_run)

    def verify(self) -> list[Any]:
        """Everything on which the catalog and its storage disagree. Nothing is changed."""
        return self._side.verify()

    def snapshot(self, name: str, tables: Sequence[Name] | None = None) -> NamedSnapshot | None:
        """Pin the newest state of all tables, or of these, under a name: `at(name)` reads it past every collection.

        In a transaction it is the state at the transaction's own slot, and nothing is answered before that is there.
        """
        chosen = None if tables is None else [list(self._id(each).names) for each in tables]
        return self._side.snapshot(name, chosen)

    def snapshots(self) -> list[NamedSnapshot]:
        """The named snapshots, by name, each with the version and position of every table."""
        return self._side.snapshots()

    def drop_snapshot(self, name: str) -> None:
        """Let a snapshot go, and with a collection what only it needed."""
        self._side.drop_snapshot(name)

    def collect(
        self, keep: timedelta | None = None, grace: timedelta | None = None, dry_run: bool = False
    ) -> Collected:
        """Forget what is older than `keep`, and delete what nothing can show any more, and what writers that died left
        longer than `grace` ago; both are 7 days. A dry run tells what would go, and why. A directory catalog has no
        past to forget: there only what dead writers left goes."""
        return self._side.collect(keep, grace, dry_run)
