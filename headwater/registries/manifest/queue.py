"""Who commits next, and for whom. Threads of one process share commits, and so do processes on one machine.

None of this is needed for correctness, which rests on create-if-absent alone: it keeps writers from doing
work that is bound to be refused, and makes one commit out of many. A process that dies gives its turn back,
one that hangs loses it. docs/design/002-directory.md has the argument, step by step.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from headwater.clock import Clock
from headwater.model import Change
from headwater.registries.layout import COMMIT_LOCK
from headwater.registries.manifest.spool import Spool
from headwater.store import Store, storage_error

LONGEST_WAIT_S = 5.0
LOOK_EVERY_S = 0.0005
GATHER_S = 0.003
GATHER_STEP_S = 0.0002
"""After a commit that served several callers, the next leader lets them come back with their next changes first."""


@dataclass
class Ticket:
    """One caller's changes, and what became of them."""

    changes: Sequence[Change]
    done: bool = False
    error: BaseException | None = None


@dataclass
class Request:
    """The tickets of one process. `id` is recorded in the commit that carries them, if any does."""

    id: str
    tickets: Sequence[Ticket]
    claim: Callable[[], bool] = lambda: True
    """Whether its owner still waits for it to be committed by us."""
    doubtful: bool = False
    """Whether another process took it and fell silent, so that a commit may carry it already."""


@dataclass
class GroupCommit:
    """Callers queue their changes; whoever gets the lock commits those of all who wait."""

    lead: Callable[[Sequence[Ticket]], None]
    _waiting: list[Ticket] = field(default_factory=list)
    _queue: threading.Lock = field(default_factory=threading.Lock)
    _leader: threading.Lock = field(default_factory=threading.Lock)
    _last_size: int = 1

    def commit(self, changes: Sequence[Change]) -> None:
        ticket = Ticket(changes)
        with self._queue:
            self._waiting.append(ticket)
        with self._leader:
            if not ticket.done:
                self._run()
        if ticket.error is not None:
            raise ticket.error

    def _run(self) -> None:
        self._gather()
        with self._queue:
            group, self._waiting = self._waiting, []
        self._last_size = len(group)
        try:
            self.lead(group)
        except BaseException as error:
            for ticket in group:
                ticket.error = ticket.error or error
            raise
        finally:
            for ticket in group:
                ticket.done = True

    def _gather(self) -> None:
        """Wait a moment for as many callers as the last commit served; a caller that is alone never waits."""
        deadline = time.monotonic() + GATHER_S
        while len(self._waiting) < self._last_size and time.monotonic() < deadline:
            time.sleep(GATHER_STEP_S)


class Turns:
    """The processes on one machine take turns; one that waits leaves its changes for whoever has the turn."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        commit: Callable[[Sequence[Request]], None],
    ) -> None:
        """`commit` commits requests, looking first for a doubtful one, and sets what became of their tickets."""
        self._clock = clock
        self._commit = commit
        path = store.abilities.path
        self._lock = None if path is None else os.path.join(path, COMMIT_LOCK)
        self._spool = None if path is None else Spool(path)
        self._served = 0

    def run(self, tickets: Sequence[Ticket]) -> None:
        """Have the tickets committed, by this process or by another."""
        request = Request(self._clock.hex(16), tickets)
        if self._lock is None or self._spool is None:
            self._commit([request])
            return
        with _opened(self._lock) as descriptor:
            if _taken(descriptor):
                self._lead(request, self._spool)
            else:
                self._wait(request, descriptor, self._spool)

    def _wait(self, request: Request, descriptor: int, spool: Spool) -> None:
        with spool.ask(request.id, [ticket.changes for ticket in request.tickets]):
            deadline = time.monotonic() + LONGEST_WAIT_S
            while not self._is_answered(request, spool):
                if _taken(descriptor) or time.monotonic() > deadline:
                    if self._is_answered(request, spool):
                        return
                    request.doubtful = not spool.withdraw(request.id)
                    self._lead(request, spool)
                    return
                time.sleep(LOOK_EVERY_S)

    def _is_answered(self, request: Request, spool: Spool) -> bool:
        answers = spool.answers(request.id)
        if answers is None:
            return False
        for ticket, error in zip(request.tickets, answers, strict=True):
            ticket.error = error
        self._served = 1
        return True

    def _lead(self, request: Request, spool: Spool) -> None:
        if self._served > 0:
            time.sleep(GATHER_S / 2)
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
def turn(store: Store) -> Iterator[None]:
    """This process's turn alone, for the rare change that is not made of tickets."""
    path = store.abilities.path
    if path is None:
        yield
        return
    with _opened(os.path.join(path, COMMIT_LOCK)) as descriptor:
        deadline = time.monotonic() + LONGEST_WAIT_S
        while not _taken(descriptor) and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY_S)
        yield


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    try:
        descriptor = _open(path)
    except OSError as error:
        raise storage_error(error, COMMIT_LOCK) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open(path: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return os.open(path, flags, 0o666)


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
