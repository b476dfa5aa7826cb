"""Writers of one table on one machine take turns, so that they do not overtake each other.

A writer that was overtaken has to begin anew, after a pause that its client doubles each time, and may starve. An
append begins with the question for the newest version and ends with the creation of the next one. A process that asks
for the first time since it created a version is taken to be about to append again, and gets the turn before it is
answered; so does, for a shorter time, one of which nothing is known yet. Those who were overtaken go first. Only a
courtesy: correctness never depends on a turn, one that is not used soon is void, and a process that dies or only reads
holds up nobody for longer.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from weakref import finalize

from headwater.clock import Clock
from headwater.errors import ConcurrentModificationError
from headwater.registries.layout import TURNS
from headwater.store import Store
from headwater.turns import FileLock, HeldLock, is_abandoned, names

VALID_S = 0.5
"""A turn that was not used for so long is void."""
UNKNOWN_S = 0.15
"""The same, of a process that may be only a reader."""
UNKNOWN_ASKS = 3
"""A process that asked so often and created nothing is a reader."""
OVERTAKEN_S = 1.0
"""So long others let a writer go first that was overtaken."""
LONGEST_WAIT_S = 2.0
LOOK_EVERY_S = 0.01
MAX_HELD = 64
"""A held turn is an open file: of more tables than this, the oldest is given back."""


@dataclass
class Habit:
    """Observed commits of a process to one table."""

    asked: int = 0
    """How often it asked for the newest version since it last created one."""
    appends: bool | None = None
    """Whether it has created a version, and has not asked more than once since. None: not known."""


class _Kept:
    """Turns that this process holds, by table; beyond a limit the oldest is released."""

    def __init__(self) -> None:
        self._held: OrderedDict[str, HeldLock] = OrderedDict()
        self._lock = threading.Lock()
        finalize(self, _release_all, self._held).atexit = False

    def has(self, location: str) -> bool:
        return location in self._held

    def keep(self, location: str, held: HeldLock) -> None:
        with self._lock:
            given = [self._held.pop(location, None)]
            self._held[location] = held
            if len(self._held) > MAX_HELD:
                given.append(self._held.popitem(last=False)[1])
        for one in given:
            if one is not None:
                one.release()

    def refresh(self, location: str) -> bool:
        """Mark the turn as in use; False if this process does not hold it any more."""
        with self._lock:
            held = self._held.get(location)
            if held is None or not held.is_ours():
                return False
            held.refresh()
            return True

    def release(self, location: str) -> None:
        with self._lock:
            held = self._held.pop(location, None)
        if held is not None:
            held.release()


def _release_all(turns: OrderedDict[str, HeldLock]) -> None:
    """Give back the turns of a catalog that nobody uses any more: each is an open file."""
    for held in turns.values():
        with contextlib.suppress(OSError):
            held.release()


class WriterTurns:
    """The turns of this process, one per table. On an object store there are none, and nobody waits."""

    def __init__(self, store: Store, clock: Clock) -> None:
        path = store.abilities.path
        self._folder = None if path is None else os.path.join(path, TURNS)
        self._clock = clock
        self._habits: dict[str, Habit] = {}
        self._lock = threading.Lock()
        self._turns = _Kept()
        self._notes = _Kept()

    def expect(self, location: str, meanwhile: Callable[[], object] | None = None) -> None:
        """Note that a writer reads the newest version, and wait for the turn if an append seems to begin.

        `meanwhile`: called again and again while it waits, so that its work is not done in the turn.
        """
        if self._folder is None:
            return
        with self._lock:
            habit = self._habits.setdefault(location, Habit())
            habit.asked += 1
            unknown = habit.appends is None and habit.asked <= UNKNOWN_ASKS
            begins = unknown or (habit.appends is True and habit.asked == 1)
        if habit.asked > 1:
            habit.appends = False if habit.appends else habit.appends
            self._turns.release(location)
        if begins and not self._turns.has(location):
            self._let_go_first(location)
            self._wait(location, UNKNOWN_S if unknown else VALID_S, meanwhile)

    @contextlib.contextmanager
    def creating(self, location: str) -> Iterator[None]:
        """A version is created: in this process's turn, if it has it, which then ends."""
        if self._folder is None:
            yield
            return
        with self._lock:
            habit = self._habits.setdefault(location, Habit())
        self._turns.refresh(location)
        try:
            yield
        except ConcurrentModificationError:
            self._note_overtaken(location)
            raise
        finally:
            self._turns.release(location)
        habit.appends, habit.asked = True, 0
        self._notes.release(location)

    def _wait(self, location: str, valid_s: float, meanwhile: Callable[[], object] | None = None) -> None:
        with contextlib.suppress(OSError):
            turn = FileLock(self._path(location), self._clock, VALID_S)
            held = turn.wait_for_wakeup(LONGEST_WAIT_S, LOOK_EVERY_S, valid_s, meanwhile)
            if held is not None:
                self._turns.keep(location, held)

    # Those who were overtaken leave a note, and the others let them go first.

    def _note_overtaken(self, location: str) -> None:
        if self._notes.refresh(location):
            return
        with contextlib.suppress(OSError):
            note = FileLock(os.path.join(self._overtaken(location), str(os.getpid())), self._clock, OVERTAKEN_S).take()
            if note is not None:
                self._notes.keep(location, note)

    def _let_go_first(self, location: str) -> None:
        folder = self._overtaken(location)
        deadline = self._clock.monotonic() + OVERTAKEN_S
        while self._clock.monotonic() < deadline and any(self._goes_first(folder, name) for name in names(folder)):
            self._clock.sleep(LOOK_EVERY_S)

    def _goes_first(self, folder: str, name: str) -> bool:
        """Return True if the note is of another process that lives and has not given up; old notes are forgotten."""
        path = os.path.join(folder, name)
        if name == str(os.getpid()):
            return False
        with contextlib.suppress(OSError):
            if self._clock.now_ms() / 1000 - os.stat(path).st_mtime < OVERTAKEN_S and not is_abandoned(path):
                return True
            os.unlink(path)
        return False

    def _overtaken(self, location: str) -> str:
        return f"{self._path(location)}.overtaken"

    def _path(self, location: str) -> str:
        assert self._folder is not None
        return os.path.join(self._folder, hashlib.sha256(location.encode()).hexdigest()[:32])
