"""Who commits next. Threads of one process share commits; processes on one machine take turns.

Neither is needed for correctness, which rests on create-if-absent alone: they only keep writers from
doing work that is bound to be refused. A process that dies gives its turn back, one that hangs loses it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from headwater.model import Change
from headwater.registries.layout import COMMIT_LOCK
from headwater.store import LocalStore, Store

LONGEST_WAIT_S = 5.0


@dataclass
class Ticket:
    """One caller's changes, and what became of them."""

    changes: Sequence[Change]
    done: bool = False
    error: BaseException | None = None


@dataclass
class GroupCommit:
    """Callers queue their changes; whoever gets the lock commits those of all who wait."""

    lead: Callable[[Sequence[Ticket]], None]
    _waiting: list[Ticket] = field(default_factory=list)
    _queue: threading.Lock = field(default_factory=threading.Lock)
    _leader: threading.Lock = field(default_factory=threading.Lock)

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
        with self._queue:
            group, self._waiting = self._waiting, []
        try:
            self.lead(group)
        except BaseException as error:
            for ticket in group:
                ticket.error = ticket.error or error
            raise
        finally:
            for ticket in group:
                ticket.done = True


@contextlib.contextmanager
def turn(store: Store) -> Iterator[None]:
    """Wait for this process's turn among those on this machine; elsewhere there is nothing to wait for."""
    if not isinstance(store, LocalStore):
        yield
        return
    path = os.path.join(store.root, COMMIT_LOCK)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _wait(descriptor)
        yield
    finally:
        os.close(descriptor)


def _wait(descriptor: int) -> None:
    deadline = time.monotonic() + LONGEST_WAIT_S
    pause = 0.0002
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                return
            time.sleep(pause)
            pause = min(pause * 1.5, 0.004)
