"""Who commits next, and for whom. Threads of one process share commits, and so do processes on one machine.

None of this is needed for correctness, which rests on create-if-absent alone: it keeps writers from doing
work that is bound to be refused, and makes one commit out of many. A process that dies gives its turn back,
one that hangs loses it. docs/design/002-directory.md has the argument, step by step.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from headwater.clock import Clock
from headwater.model import Change
from headwater.registries.layout import COMMIT_LOCK
from headwater.registries.manifest.spool import Spool
from headwater.store import Store, storage_error
from headwater.turns import GroupedWork, Held, Turn

LONGEST_WAIT_S = 5.0
LOOK_EVERY_S = 0.0005
GATHER_S = 0.003
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


class GroupCommit:
    """The threads of this process: callers queue their changes, and whoever leads commits those of all who wait."""

    def __init__(self, commit: Callable[[Sequence[Ticket]], None]) -> None:
        self._commit = commit
        self._group = GroupedWork[Ticket](self._lead, gather_s=GATHER_S)

    def commit(self, changes: Sequence[Change]) -> None:
        self._group.run(Ticket(changes))

    def _lead(self, tickets: Sequence[Ticket]) -> None:
        self._commit(tickets)
        for ticket in tickets:
            ticket.done = True


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
        held = _taken(turn.take)
        if held is None:
            self._wait(request, turn, self._spool)
        else:
            with contextlib.closing(_Releasing(held)):
                self._lead(request, self._spool)

    def _wait(self, request: Request, turn: Turn, spool: Spool) -> None:
        with spool.ask(request.id, [ticket.changes for ticket in request.tickets]):
            held = _taken(
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
    """This process's turn alone, for the rare change that is not made of tickets."""
    path = store.abilities.path
    if path is None:
        yield
        return
    held = _taken(lambda: _commit_turn(path, clock).wait(LONGEST_WAIT_S, LOOK_EVERY_S))
    with contextlib.closing(_Releasing(held)):
        yield


@dataclass(frozen=True)
class _Releasing:
    """Gives a turn back, if there is one: after the longest wait the work is done without."""

    held: Held | None

    def close(self) -> None:
        if self.held is not None:
            self.held.release()


def _commit_turn(path: str, clock: Clock) -> Turn:
    return Turn(os.path.join(path, COMMIT_LOCK), clock, LONGEST_WAIT_S, lasting=True)


def _taken(take: Callable[[], Held | None]) -> Held | None:
    try:
        return take()
    except OSError as error:
        raise storage_error(error, COMMIT_LOCK) from None
