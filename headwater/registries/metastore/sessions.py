"""Where a metastore registry stands: in the present, inside an open transaction, or at a moment of the past.

Everything above is the same for the three. They differ in what is read, and in what becomes of a commit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from headwater.errors import InvalidInputError, InvalidTableStateError, TableVersionNotFoundError
from headwater.metastore import Delta, Metastore, Snapshot, Transaction
from headwater.metastore.draft import AppendedDelta
from headwater.metastore.objects import Object, Objects
from headwater.metastore.serving_copy import LANCE_FORMAT
from headwater.metastore.table_parts import DELTA_FORMAT, Record
from headwater.model import Change, Move, Namespace, Remove, Replace, Table
from headwater.names import ObjectId
from headwater.registries.metastore.mapping import Reader

Answer = TypeVar("Answer")


class SessionState(Reader, Protocol):
    """What a registry asks: a snapshot answers it, and an open transaction by its own view."""

    @property
    def slot(self) -> int: ...

    def names(self, path: Sequence[str], kind: str) -> Sequence[str]: ...

    def positions(self, path: Sequence[str], *, format: str = ...) -> Sequence[int]: ...

    def last_positions(
        self, path: Sequence[str], count: int, before: int | None = None, *, format: str = ...
    ) -> Sequence[int]: ...

    def dropped_locations(self) -> Iterable[str]: ...

    def tables_near(self, folder: str) -> Sequence[tuple[str, ...]]: ...

    def root_properties(self) -> dict[str, Any]: ...

    def identify(self, path: Sequence[str], dropped: bool = False) -> tuple[str, ...]: ...


Work = Callable[[Transaction, Reader], None]
"""Changes a transaction, by what is seen in it."""


class Session(Protocol):
    """What a registry reads, and where its changes go."""

    @property
    def transaction_id(self) -> str | None:
        """The open transaction that changes are collected in; None where a commit is final."""
        ...

    @property
    def moment(self) -> Snapshot | None:
        """The past that this is; None where it is the present."""
        ...

    def state(self, refresh: bool = True) -> SessionState:
        """What can be asked now: a snapshot, or the transaction's own view."""
        ...

    def commit(self, message: str, work: Work, changes: Iterable[Change] = ()) -> None:
        """Have `work` change a transaction, and commit it, all or nothing. `changes`: what that does to the catalog."""
        ...

    def appending(self) -> AbstractContextManager[None]:
        """Around an append of rows to a Lance table."""
        ...

    def over(self, metastore: Metastore) -> Session:
        """The same in the name of the author that a metastore has."""
        ...


class Present:
    """The catalog itself: each commit is a transaction of its own, which takes a slot."""

    transaction_id: str | None = None
    moment: Snapshot | None = None

    def __init__(self, metastore: Metastore) -> None:
        self._metastore = metastore

    def state(self, refresh: bool = True) -> Snapshot:
        return self._metastore.now(refresh=refresh)

    def commit(self, message: str, work: Work, changes: Iterable[Change] = ()) -> None:
        tx = self._metastore.transaction(message, refresh=False)
        work(tx, tx)
        tx.commit()

    def appending(self) -> AbstractContextManager[None]:
        return nullcontext()

    def over(self, metastore: Metastore) -> Session:
        return Present(metastore)


class Moment:
    """The catalog as it was: nothing can be changed."""

    transaction_id: str | None = None

    def __init__(self, snapshot: Snapshot) -> None:
        self.moment: Snapshot | None = snapshot
        self._snapshot = snapshot

    def state(self, refresh: bool = True) -> Snapshot:
        return self._snapshot

    def commit(self, message: str, work: Work, changes: Iterable[Change] = ()) -> None:
        raise past_is_past(self._snapshot.slot)

    def appending(self) -> AbstractContextManager[None]:
        return nullcontext()

    def over(self, metastore: Metastore) -> Session:
        return self


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
    """Which versions of a table a clean-up keeps."""

    versions: int | None
    days: float | None
    grace_seconds: float


@dataclass(frozen=True)
class PutOff:
    """What waits for the end of a transaction, as deleted files do not come back: a clean-up of a table, by its id, or
    the manifests of versions that it forgets, by their numbers and by the names they were staged under."""

    table: str
    keep: CleanUp | None = None
    numbers: tuple[int, ...] = ()
    staged: tuple[str, ...] = ()


class Within:
    """An open transaction: changes are laid over what it read, and nobody else sees them before it commits.

    Rows that it appends to Lance tables wait in `unstaged` for its end, where they go on top of whatever is newest
    then. Whoever looks at the versions of such a table before has `stage` make one of them first.
    """

    moment: Snapshot | None = None

    def __init__(self, tx: Transaction, stage: Callable[[NewRows], None], put_off: Iterable[PutOff] = ()) -> None:
        self._view = OwnView(tx, self._show)
        self._stage = stage
        self._appending = 0
        self.tx = tx
        self._appended: set[str] = set()
        self.unstaged: dict[ObjectId, NewRows] = {}
        self.put_off = list(put_off)

    @property
    def transaction_id(self) -> str | None:
        return self.tx.id

    @property
    def appended(self) -> set[str]:
        """The streams of Lance versions that the transaction appends rows to, and does nothing else with."""
        return {stream for stream in self._appended if f"d{stream}" not in self.tx.draft.reads}

    def state(self, refresh: bool = True) -> OwnView:
        return self._view

    def commit(self, message: str, work: Work, changes: Iterable[Change] = ()) -> None:
        self.join(lambda tx: work(tx, self._view))
        for change in changes:
            self.unstaged = dict(_followed(self.unstaged, change))

    def join(self, work: Callable[[Transaction], Answer]) -> Answer:
        """Let `work` add its changes to the transaction: all of them, or none if it raises."""
        before, unstaged, put_off = self.tx.draft.copy(), dict(self.unstaged), list(self.put_off)
        try:
            return work(self.tx)
        except BaseException:
            self.tx.draft, self.unstaged, self.put_off = before, unstaged, put_off
            raise

    def add(self, rows: NewRows) -> None:
        """Rows for the transaction's end. They bind it to nothing: what their columns are is looked at then."""
        known = self.unstaged.get(rows.id)
        self.unstaged[rows.id] = rows if known is None else known.with_more(rows)

    def check_unwritten(self, id: ObjectId) -> None:
        """Error 19 for a table that is to be as it was before, if rows of the transaction wait for it."""
        if id in self.unstaged:
            raise InvalidTableStateError(f"This transaction has appended rows to {id}, which an undo would take out.")

    @property
    def noted(self) -> list[str]:
        """What `go_on` takes beside the rows that wait."""
        return sorted(self._appended)

    def go_on(self, noted: Iterable[str], unstaged: dict[ObjectId, NewRows], put_off: Sequence[PutOff]) -> None:
        """Be the session of a transaction that was put down in another place."""
        self._appended, self.unstaged, self.put_off = set(noted), unstaged, list(put_off)

    @contextmanager
    def blindly(self) -> Iterator[None]:
        """What is read of a table's versions here neither binds the transaction nor has to show its own rows."""
        before = set(self.tx.draft.reads)
        self._appending += 1
        try:
            yield
        finally:
            self._appending -= 1
        self.tx.draft.reads &= before

    def over(self, metastore: Metastore) -> Session:
        return self

    def _show(self, path: Sequence[str], format: str) -> None:
        """Let the versions of a table have the rows that were appended to it, before they are looked at.

        Lance may be the one who looks, and cannot be called by the thread in which it asks.
        """
        id = ObjectId(tuple(path))
        if format != LANCE_FORMAT or self._appending or id not in self.unstaged:
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

    @contextmanager
    def appending(self) -> Iterator[None]:
        """Rows are appended to a Lance table here: what that reads of its versions is put to the side in `appended`.

        If others take the version meanwhile, the rows can be staged again on top of theirs. A table that the
        transaction also reads, or changes in another way, is not among them.
        """
        before, count = set(self.tx.draft.reads), len(self.tx.draft.appends)
        self._appending += 1
        try:
            yield
        finally:
            self._appending -= 1
        draft = self.tx.draft
        made = {each.stream for each in draft.appends[count:] if each.wanted is not None}
        new = {f"d{stream}" for stream in made} - before
        draft.reads -= new
        self._appended |= {read[1:] for read in new}


class OwnView:
    """A transaction with the Lance versions that it has taken itself: their positions are known from the start."""

    def __init__(self, tx: Transaction, show: Callable[[Sequence[str], str], None]) -> None:
        self._tx = tx
        self._show = show

    def get(self, path: Sequence[str]) -> Object:
        return self._tx.get(path)

    def root_properties(self) -> dict[str, Any]:
        return self._tx.root_properties()

    def identify(self, path: Sequence[str], dropped: bool = False) -> tuple[str, ...]:
        return self._tx.identify(path, dropped)

    def list(self, path: Sequence[str] = ()) -> Objects:
        return self._tx.list(path)

    def get_with_stream(self, path: Sequence[str], format: str) -> tuple[Object, Record | None]:
        return self._tx.get_with_stream(path, format)

    def versions(self, path: Sequence[str]) -> Objects:
        return self._tx.versions(path)

    def get_stream(self, path: Sequence[str], id: str | None = None, *, format: str = DELTA_FORMAT) -> Object:
        return self._tx.get_stream(path, id, format=format)

    @property
    def slot(self) -> int:
        return self._tx.draft.base.at

    def names(self, path: Sequence[str], kind: str) -> Sequence[str]:
        return [child.name for child in self._tx.list(path) if child.kind == kind]

    def get_delta(self, path: Sequence[str], position: int, *, format: str = DELTA_FORMAT) -> Delta:
        self._show(path, format)
        stream = self._tx.get_stream(path, format=format)
        for append in self._own(stream):
            if append.wanted == position:
                return _delta(append, self.slot)
        if self._is_dropped(stream, position):
            raise TableVersionNotFoundError(f"This transaction has dropped the delta {position}.")
        return self._tx.get_delta(path, position, format=format)

    def newest_delta(self, path: Sequence[str], *, format: str = DELTA_FORMAT) -> Delta | None:
        self._show(path, format)
        stream = self._tx.get_stream(path, format=format)
        own = self._own(stream)
        if own:
            return _delta(own[-1], self.slot)
        newest = self._tx.newest_delta(path, format=format)
        if newest is None or not self._is_dropped(stream, newest.position):
            return newest
        kept = self.deltas(path, format=format)
        return kept[-1] if kept else None

    def deltas(self, path: Sequence[str], after: int = 0, *, format: str = DELTA_FORMAT) -> Sequence[Delta]:
        self._show(path, format)
        stream = self._tx.get_stream(path, format=format)
        found = self._tx.deltas(path, after, format=format)
        own = [_delta(append, self.slot) for append in self._own(stream) if (append.wanted or 0) > after]
        return [delta for delta in found if not self._is_dropped(stream, delta.position)] + own

    def positions(self, path: Sequence[str], *, format: str = DELTA_FORMAT) -> Sequence[int]:
        return [delta.position for delta in self.deltas(path, format=format)]

    def last_positions(
        self, path: Sequence[str], count: int, before: int | None = None, *, format: str = DELTA_FORMAT
    ) -> Sequence[int]:
        found = [position for position in self.positions(path, format=format) if before is None or position < before]
        return found[::-1][:count]

    def dropped_locations(self) -> Sequence[str]:
        return []

    def tables_near(self, folder: str) -> Sequence[tuple[str, ...]]:
        return self._tx.tables_near(folder)

    def _own(self, stream: Object) -> Sequence[AppendedDelta]:
        home = stream.home
        return [item for item in self._tx.draft.appends if item.stream_home == home and item.wanted is not None]

    def _is_dropped(self, stream: Object, position: int) -> bool:
        drops = self._tx.draft.dropped_deltas
        return any(drop.stream_home == stream.home and drop.position == position for drop in drops)


def _followed(unstaged: dict[ObjectId, NewRows], change: Change) -> Iterator[tuple[ObjectId, NewRows]]:
    """The rows that wait, after a change of the same transaction: they move with their table, and go with it."""
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


def _delta(append: AppendedDelta, slot: int) -> Delta:
    assert append.wanted is not None
    return Delta(append.wanted, append.type, append.files, append.partition, dict(append.properties), slot, "", 0)


def past_is_past(slot: int) -> InvalidInputError:
    return InvalidInputError(
        f"This is the catalog as it was at slot {slot}: it cannot be changed. Open it without at()."
    )
