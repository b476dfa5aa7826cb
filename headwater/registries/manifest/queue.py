"""Group commit: threads of one process share a commit, and so do processes on one machine.

Correctness rests on create-if-absent alone. The queue only saves work: it makes one commit out of many, and keeps
writers from commits that would conflict. A process that dies releases its turn, one that hangs loses it. The argument
is in docs/design/002-directory.md. A waiting process leaves its changes in files of `.headwater/spool/`
(docs/formats/directory.md):

<id>.ask      changes that wait              written by the owner, renamed by the process that takes them
<id>.taken    changes that are being committed   removed by the owner to withdraw them
<id>.answer   the outcome of each ticket     written before <id>.taken is removed
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import IO, Any

import msgspec

from headwater.clock import Clock
from headwater.errors import ConcurrentModificationError, LanceNamespaceError
from headwater.model import (
    Add,
    Change,
    Move,
    Namespace,
    RegistryFacts,
    Remove,
    Replace,
    RequireLocation,
    RequireTable,
    Table,
    Version,
)
from headwater.names import ObjectId
from headwater.registries.layout import COMMIT_LOCK, SPOOL
from headwater.store import Store, storage_error
from headwater.turns import FileLock, GroupedWork, HeldLock, is_abandoned, names

VALUES = (Namespace, Table, Version, RegistryFacts, ObjectId)
KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Add, Replace, Remove, Move, RequireLocation, RequireTable, *VALUES)
}


def encode_changes(changes: Sequence[Sequence[Change]]) -> bytes:
    """Encode lists of changes, one for each caller, as JSON."""
    return msgspec.json.encode([[_plain(change) for change in group] for group in changes])


def decode_changes(data: bytes) -> list[list[Change]]:
    """Decode lists of changes; only values of the model are accepted. ValueError."""
    try:
        return [[_value(change) for change in group] for group in msgspec.json.decode(data)]
    except (msgspec.DecodeError, TypeError, KeyError, AttributeError) as error:
        raise ValueError("these are no changes") from error


def _plain(value: object) -> Any:
    if isinstance(value, ObjectId):
        return {"kind": "ObjectId", "names": list(value.names)}
    if is_dataclass(value):
        return {
            "kind": type(value).__name__,
            **{item.name: _plain(getattr(value, item.name)) for item in fields(value)},
        }
    return {"values": dict(value)} if isinstance(value, Mapping) else value


def _value(plain: object) -> Any:
    if not isinstance(plain, dict):
        return plain
    if "values" in plain:
        return plain["values"]
    if plain["kind"] == "ObjectId":
        return ObjectId(tuple(plain["names"]))
    return KINDS[plain["kind"]](**{name: _value(item) for name, item in plain.items() if name != "kind"})


STALE_S = 60.0
"""Nobody waits this long: what is older was left by a process that died."""


class Spool:
    """The files of requests that wait in one catalog."""

    def __init__(self, root: str, clock: Clock) -> None:
        self._folder = os.path.join(root, SPOOL)
        self._clock = clock

    def ask(self, id: str, groups: Sequence[Sequence[Change]]) -> IO[bytes]:
        """Write a request. The returned file is locked; close it when the wait ends, as the owner's death does."""
        return self._write(id, "ask", encode_changes(groups))

    def claim(self) -> list[tuple[str, list[list[Change]]]]:
        """Take every waiting request."""
        claimed = []
        for name in self._names():
            id, _, state = name.partition(".")
            if not self._is_stale(name) and state == "ask" and not self._is_orphan(name):
                with contextlib.suppress(FileNotFoundError, ValueError):
                    self._rename(id, "ask", "taken")
                    claimed.append((id, decode_changes(self._read(id, "taken"))))
        return claimed

    def is_claimed(self, id: str) -> bool:
        """Return True unless the owner has withdrawn the request that this process took."""
        return os.path.exists(self._path(id, "taken"))

    def give_back(self, id: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._rename(id, "taken", "ask")

    def answer(self, id: str, errors: Sequence[BaseException | None]) -> None:
        """Write the outcome for the owner. If that fails, the owner finds the id in the commit after its wait."""
        with contextlib.suppress(LanceNamespaceError):
            if self.is_claimed(id):
                messages = [None if error is None else str(error) for error in errors]
                self._write(id, "answer", msgspec.json.encode(messages)).close()
                self._remove(id, "taken")

    def answers(self, id: str) -> list[BaseException | None] | None:
        """Return the outcomes of our tickets and delete their file; None if no process has answered."""
        try:
            messages = msgspec.json.decode(self._read(id, "answer"), type=list[str | None])
        except FileNotFoundError:
            return None
        self._remove(id, "answer")
        return [None if message is None else ConcurrentModificationError(message) for message in messages]

    def withdraw(self, id: str) -> bool:
        """Withdraw our request. Returns False if a process had taken it: it may have been committed."""
        untouched = self._remove(id, "ask")
        self._remove(id, "taken")
        return untouched

    def _names(self) -> list[str]:
        return sorted(names(self._folder))

    def _is_stale(self, name: str) -> bool:
        path = os.path.join(self._folder, name)
        try:
            if self._clock.now_ms() / 1000 - os.stat(path).st_mtime < STALE_S:
                return False
            os.unlink(path)
        except FileNotFoundError:
            pass
        return True

    def _is_orphan(self, name: str) -> bool:
        """A request that its owner no longer locks is of a process that died: nobody wants it done any more."""
        path = os.path.join(self._folder, name)
        if not is_abandoned(path):
            return False
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        return True

    def _write(self, id: str, state: str, data: bytes) -> IO[bytes]:
        temporary = self._path(id, f"{state}-writing")
        try:
            os.makedirs(self._folder, exist_ok=True)
            file = open(temporary, "wb")  # noqa: SIM115 (the caller closes it)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.write(data)
            file.flush()
            os.rename(temporary, self._path(id, state))
            return file
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise storage_error(error, SPOOL) from None

    def _read(self, id: str, state: str) -> bytes:
        with open(self._path(id, state), "rb") as file:
            return file.read()

    def _rename(self, id: str, old: str, new: str) -> None:
        os.rename(self._path(id, old), self._path(id, new))

    def _remove(self, id: str, state: str) -> bool:
        try:
            os.unlink(self._path(id, state))
        except FileNotFoundError:
            return False
        return True

    def _path(self, id: str, state: str) -> str:
        return os.path.join(self._folder, f"{id}.{state}")


LONGEST_WAIT_S = 5.0
LOOK_EVERY_S = 0.0005
GATHER_S = 0.003
"""After a commit that served several callers, the next leader lets them come back with their next changes first."""


@dataclass
class Ticket:
    """The changes of one caller, and their outcome."""

    changes: Sequence[Change]
    done: bool = False
    error: BaseException | None = None


@dataclass
class Request:
    """The tickets of one process. `id` is recorded in the commit that carries them."""

    id: str
    tickets: Sequence[Ticket]
    claim: Callable[[], bool] = lambda: True
    """Returns True while the owner waits for this process to commit it."""
    doubtful: bool = False
    """True if another process took it and did not answer: a commit may carry it already."""


class GroupCommit:
    """A queue of the threads of this process: the leading thread commits the changes of all that wait."""

    def __init__(self, commit: Callable[[Sequence[Ticket]], None]) -> None:
        self._commit = commit
        self._group = GroupedWork[Ticket](gather_s=GATHER_S)

    def commit(self, changes: Sequence[Change]) -> None:
        self._group.run(Ticket(changes), self._lead)

    def _lead(self, tickets: Sequence[Ticket]) -> None:
        self._commit(tickets)
        for ticket in tickets:
            ticket.done = True


class Turns:
    """A queue of the processes on one machine: the process that has the turn commits the changes of all that wait."""

    def __init__(self, store: Store, clock: Clock, commit: Callable[[Sequence[Request]], None]) -> None:
        """`commit` commits requests, looking first for a doubtful one, and sets what became of their tickets."""
        self._clock = clock
        self._commit = commit
        path = store.abilities.path
        self._path = path
        self._spool = None if path is None else Spool(path, clock)
        self._served = 0

    def run(self, tickets: Sequence[Ticket]) -> None:
        """Have the tickets committed, by this process or by another."""
        request = Request(self._clock.hex(16), tickets)
        if self._path is None or self._spool is None:
            self._commit([request])
            return
        turn = _commit_turn(self._path, self._clock)
        held = _take_or_raise(turn.take)
        if held is None:
            self._wait(request, turn, self._spool)
        else:
            with contextlib.closing(_Releasing(held)):
                self._lead(request, self._spool)

    def _wait(self, request: Request, turn: FileLock, spool: Spool) -> None:
        with spool.ask(request.id, [ticket.changes for ticket in request.tickets]):
            held = _take_or_raise(
                lambda: turn.wait(LONGEST_WAIT_S, LOOK_EVERY_S, until=lambda: self._is_answered(request, spool))
            )
            with contextlib.closing(_Releasing(held)):
                if all(ticket.done for ticket in request.tickets) or self._is_answered(request, spool):
                    return
                request.doubtful = not spool.withdraw(request.id)
                self._lead(request, spool)

    def _is_answered(self, request: Request, spool: Spool) -> bool:
        answers = spool.answers(request.id)
        if answers is None:
            return False
        for ticket, error in zip(request.tickets, answers, strict=True):
            ticket.done, ticket.error = True, error
        self._served = 1
        return True

    def _lead(self, request: Request, spool: Spool) -> None:
        if self._served > 0:
            self._clock.sleep(GATHER_S / 2)
        others = [
            Request(id, [Ticket(group) for group in groups], lambda id=id: spool.is_claimed(id))  # type: ignore[misc]
            for id, groups in spool.claim()
        ]
        try:
            self._commit([request, *others])
        except BaseException:
            for other in others:
                spool.give_back(other.id)
            raise
        self._served = len(others)
        for other in others:
            spool.answer(other.id, [ticket.error for ticket in other.tickets])


@contextlib.contextmanager
def turn(store: Store, clock: Clock) -> Iterator[None]:
    """Hold this process's turn, for a change that is not made of tickets."""
    path = store.abilities.path
    if path is None:
        yield
        return
    held = _take_or_raise(lambda: _commit_turn(path, clock).wait(LONGEST_WAIT_S, LOOK_EVERY_S))
    with contextlib.closing(_Releasing(held)):
        yield


@dataclass(frozen=True)
class _Releasing:
    """Gives a turn back, if there is one: after the longest wait the work is done without."""

    held: HeldLock | None

    def close(self) -> None:
        if self.held is not None:
            self.held.release()


def _commit_turn(path: str, clock: Clock) -> FileLock:
    return FileLock(os.path.join(path, COMMIT_LOCK), clock, LONGEST_WAIT_S, lasting=True)


def _take_or_raise(take: Callable[[], HeldLock | None]) -> HeldLock | None:
    try:
        return take()
    except OSError as error:
        raise storage_error(error, COMMIT_LOCK) from None
