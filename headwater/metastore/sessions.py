"""Sessions of a catalog: in the present, inside an open transaction, or at a moment of the past.

A session decides what is read and what becomes of a change. Callers ask it, and never which of the three it is.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from headwater.errors import InvalidInputError, InvalidTableStateError
from headwater.metastore.commit.transaction import Transaction
from headwater.metastore.metastore import Metastore
from headwater.metastore.records.ref_record import KnownRefs, RefRecord
from headwater.metastore.records.serving_copy import LANCE_FORMAT
from headwater.metastore.state.snapshot import Path, Reading, Snapshot
from headwater.model import Change, Move, Namespace, Remove, Replace, Table
from headwater.names import ObjectId, object_id

Answer = TypeVar("Answer")
Work = Callable[[Transaction], Answer]
"""Changes a transaction."""


@dataclass(frozen=True)
class NewRows:
    """Rows for a Lance table: data files are written, and no version has them yet."""

    id: ObjectId
    location: str
    fragments: tuple[dict[str, Any], ...]
    fields: str
    """The columns with their ids, which data files are read by."""

    def with_more(self, others: NewRows) -> NewRows:
        return replace(self, fragments=(*self.fragments, *others.fragments))


@dataclass(frozen=True)
class CleanUp:
    """The versions of a table that a clean-up keeps."""

    versions: int | None
    days: float | None
    grace_seconds: float


@dataclass(frozen=True)
class Postponed:
    """A deletion of files that waits for the commit of a transaction, as deleted files do not come back.

    Either a clean-up of a table, by its id, or the manifests of versions that the transaction drops: by their numbers
    and by the names they were staged under.
    """

    table: str
    keep: CleanUp | None = None
    numbers: tuple[int, ...] = ()
    staged: tuple[str, ...] = ()


class Session(ABC):
    """A place in the time of a catalog: all reads and changes of its callers go through it.

    What only some sessions do has a default here: nothing to check, to postpone or to depend on.
    """

    transaction: Transaction | None = None
    """The open transaction that changes join; None where each change commits by itself, or none is possible."""
    moment: Snapshot | None = None
    """The snapshot of the past that is read, or None if the newest state is."""
    collects_rows = False
    """True if appended rows wait for the end of a transaction."""

    @property
    def transaction_id(self) -> str | None:
        return None if self.transaction is None else self.transaction.id

    @abstractmethod
    def state(self, refresh: bool = True) -> Reading:
        """Return the state that is read now. Without `refresh`, the newest that this process knows."""

    @abstractmethod
    def change(self, work: Work[Answer], message: str, refresh: bool = True) -> Answer:
        """Have `work` change the open transaction, or one of its own, which is repeated when it conflicts.

        Without `refresh` its own begins with the state that this process knows: the caller has just asked for it.
        """

    @abstractmethod
    def commit(self, message: str, work: Work[object], changes: Iterable[Change] = ()) -> None:
        """Have `work` change a transaction and commit it once, all or nothing. `changes`: what it does to names."""

    def within(self, work: Callable[[Transaction | None], Answer]) -> Answer:
        """Call `work` with the open transaction, all or nothing, or with None to let it make its own."""
        self.check_writable()
        return work(None)

    def known_refs(
        self, record: RefRecord | None, read: Callable[[RefRecord], KnownRefs], settle: Callable[[RefRecord], KnownRefs]
    ) -> KnownRefs | None:
        """Return the tags and branches of a table with this record, or None if its folder holds them all.

        `read` lays a record over the folder, `settle` writes its changes to the folder first.
        """
        return None

    def check_writable(self) -> None:
        """Raise InvalidInput in the past."""
        return

    def check_alone(self, verb: str) -> None:
        """Raise InvalidInput where a call cannot be part of a transaction, or be made at all."""
        self.check_writable()

    def check_unwritten(self, id: ObjectId) -> None:
        """Raise InvalidTableState if rows of the open transaction wait for a table that an undo would change."""
        return

    def postpone(self, table: Path, **deletion: object) -> bool:
        """Keep a deletion of files (the fields of `Postponed`) for the commit; False if it can be done at once."""
        return False

    def after_commit(self, work: Callable[[], object]) -> None:
        """Do what a committed change leaves to do; a transaction does that at its own commit."""
        work()

    def appending(self) -> AbstractContextManager[None]:
        """Return a block in which rows are appended to a Lance table."""
        return nullcontext()

    def landing(self) -> AbstractContextManager[None]:
        """Return a block in which reads of change logs are no dependency: landings never conflict with landings."""
        return nullcontext()

    def depend_on_log(self, path: Path) -> None:
        """Make landings of others in a stream table a conflict with the open transaction."""
        return

    def opened(self) -> TransactionSession:
        """Return this session if a transaction is open in it, or raise InvalidInput."""
        raise InvalidInputError("No transaction is open here: begin one.")

    @abstractmethod
    def over(self, metastore: Metastore) -> Session:
        """Return the same session with the author of another handle on the metastore."""


class PresentSession(Session):
    """The catalog itself: each commit is a transaction of its own, which takes a slot."""

    def __init__(self, metastore: Metastore) -> None:
        self._metastore = metastore

    def state(self, refresh: bool = True) -> Snapshot:
        return self._metastore.now(refresh=refresh)

    def change(self, work: Work[Answer], message: str, refresh: bool = True) -> Answer:
        return self._metastore.run(work, message, refresh=refresh)

    def commit(self, message: str, work: Work[object], changes: Iterable[Change] = ()) -> None:
        tx = self._metastore.transaction(message, refresh=False)
        work(tx)
        tx.commit()

    def known_refs(
        self, record: RefRecord | None, read: Callable[[RefRecord], KnownRefs], settle: Callable[[RefRecord], KnownRefs]
    ) -> KnownRefs | None:
        return None if record is None else settle(record)

    def over(self, metastore: Metastore) -> Session:
        return PresentSession(metastore)


class PastSession(Session):
    """The catalog as it was at a slot: nothing can be changed."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.moment = self._snapshot = snapshot

    def state(self, refresh: bool = True) -> Snapshot:
        return self._snapshot

    def change(self, work: Work[Answer], message: str, refresh: bool = True) -> Answer:
        raise self._refused()

    def commit(self, message: str, work: Work[object], changes: Iterable[Change] = ()) -> None:
        raise self._refused()

    def check_writable(self) -> None:
        raise self._refused()

    def over(self, metastore: Metastore) -> Session:
        return self

    def _refused(self) -> InvalidInputError:
        return InvalidInputError(
            f"This is the catalog as it was at slot {self._snapshot.slot}: it cannot be changed. Open it without at()."
        )


class TransactionSession(Session):
    """An open transaction: its changes are laid over what it read, and nobody else sees them before it commits.

    Rows that it appends to Lance tables wait in `unstaged` for its end, where they go on top of the newest version.
    A read of the versions of such a table calls `stage` first, which makes a version of them.
    """

    collects_rows = True

    def __init__(self, tx: Transaction, stage: Callable[[NewRows], None], postponed: Iterable[Postponed] = ()) -> None:
        self.tx = self.transaction = tx
        tx.before_deltas = self._show
        self._stage = stage
        self._appending = 0
        self._appended: set[str] = set()
        self.unstaged: dict[ObjectId, NewRows] = {}
        self.postponed = list(postponed)

    @property
    def appended(self) -> set[str]:
        """The keys of the streams of Lance versions that the transaction appends rows to, and does not read."""
        return {stream for stream in self._appended if not self.tx.depends_on_log(stream)}

    def state(self, refresh: bool = True) -> Transaction:
        return self.tx

    def change(self, work: Work[Answer], message: str, refresh: bool = True) -> Answer:
        return self.join(work)

    def commit(self, message: str, work: Work[object], changes: Iterable[Change] = ()) -> None:
        self.join(work)
        for change in changes:
            self.unstaged = dict(_followed(self.unstaged, change))

    def within(self, work: Callable[[Transaction | None], Answer]) -> Answer:
        return self.join(work)

    def join(self, work: Callable[[Transaction], Answer]) -> Answer:
        """Let `work` add its changes to the transaction: all of them, or none if it raises."""
        unstaged, postponed = dict(self.unstaged), list(self.postponed)
        try:
            with self.tx.savepoint():
                return work(self.tx)
        except BaseException:
            self.unstaged, self.postponed = unstaged, postponed
            raise

    def known_refs(
        self, record: RefRecord | None, read: Callable[[RefRecord], KnownRefs], settle: Callable[[RefRecord], KnownRefs]
    ) -> KnownRefs | None:
        return read(record or RefRecord(""))

    def check_alone(self, verb: str) -> None:
        raise InvalidInputError(f"A transaction cannot {verb}: no slot could hold that. Commit it, and {verb} then.")

    def check_unwritten(self, id: ObjectId) -> None:
        if id in self.unstaged:
            raise InvalidTableStateError(f"This transaction has appended rows to {id}, which an undo would take out.")

    def postpone(self, table: Path, **deletion: Any) -> bool:
        self.postponed.append(Postponed(self.tx.get(table).id, **deletion))
        return True

    def after_commit(self, work: Callable[[], object]) -> None:
        pass

    def landing(self) -> AbstractContextManager[None]:
        return self.tx.unbound_logs()

    def depend_on_log(self, path: Path) -> None:
        self.tx.last_position(path)

    def opened(self) -> TransactionSession:
        return self

    def over(self, metastore: Metastore) -> Session:
        return self

    def add(self, rows: NewRows) -> None:
        """Keep rows for the end of the transaction. They are no dependency: their columns are compared then."""
        known = self.unstaged.get(rows.id)
        self.unstaged[rows.id] = rows if known is None else known.with_more(rows)

    @property
    def noted(self) -> list[str]:
        """The streams that `go_on` takes beside the rows that wait."""
        return sorted(self._appended)

    def go_on(self, noted: Iterable[str], unstaged: dict[ObjectId, NewRows], postponed: Sequence[Postponed]) -> None:
        """Take over the state of a transaction that another process has saved."""
        self._appended, self.unstaged, self.postponed = set(noted), unstaged, list(postponed)

    @contextmanager
    def unbound(self) -> Iterator[None]:
        """Read in this block without a dependency, and without the rows that wait."""
        with self.tx.unbound(), self._without_rows():
            yield

    @contextmanager
    def appending(self) -> Iterator[None]:
        """Append rows to a Lance table in this block. Reads of its versions are kept in `appended` instead.

        If others take the version meanwhile, the rows are staged again on top of theirs. A table that the transaction
        also reads, or changes in another way, is not among them.
        """
        with self.tx.appending(self._appended), self._without_rows():
            yield

    @contextmanager
    def _without_rows(self) -> Iterator[None]:
        self._appending += 1
        try:
            yield
        finally:
            self._appending -= 1

    def _show(self, path: Path, format: str) -> None:
        """Make a version of the rows that wait for a table, before its versions are read.

        Lance may be the reader, and cannot be called by the thread in which it asks.
        """
        if not self.unstaged or format != LANCE_FORMAT or self._appending:
            return
        id = object_id(path)
        if id not in self.unstaged:
            return
        rows, failed = self.unstaged[id], list[BaseException]()

        def work() -> None:
            try:
                self._stage(rows)
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=work, name="headwater-stage")
        thread.start()
        thread.join()
        if failed:
            raise failed[0]
        del self.unstaged[id]


def _followed(unstaged: dict[ObjectId, NewRows], change: Change) -> Iterator[tuple[ObjectId, NewRows]]:
    """Return the rows that wait, after a change of the same transaction: they move with their table, and go with it."""
    for id, rows in unstaged.items():
        match change:
            case Remove(Table() as table) if table.id == id:
                continue
            case Replace(Table() as old, Table() as new) if old.id == id and old.location != new.location:
                continue
            case Move(Table() | Namespace() as old, new) if id.names[: old.id.level] == old.id.names:
                moved = ObjectId((*new.id.names, *id.names[old.id.level :]))
                yield moved, replace(rows, id=moved)
            case _:
                yield id, rows
