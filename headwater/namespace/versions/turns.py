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
import select
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from headwater.errors import ConcurrentModificationError
from headwater.registries.layout import TURNS
from headwater.store import Store

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
WAITING = ".waiting"


@dataclass
class Habit:
    """What a process was seen to do with one table."""

    asked: int = 0
    """How often it asked for the newest version since it last created one."""
    appends: bool | None = None
    """Whether it has created a version, and has not asked more than once since. None: not known."""
    held: int | None = None
    """The turn it holds: the inode of the turn's file."""


class WriterTurns:
    """The turns of this process, one per table. On an object store there are none, and nobody waits."""

    def __init__(self, store: Store) -> None:
        path = store.abilities.path
        self._folder = None if path is None else os.path.join(path, TURNS)
        self._habits: dict[str, Habit] = {}
        self._lock = threading.Lock()

    def expect(self, location: str) -> None:
        """The newest version of the table is asked for. Waits for the turn if an append seems to begin."""
        if self._folder is None:
            return
        with self._lock:
            habit = self._habits.setdefault(location, Habit())
            habit.asked += 1
            unknown = habit.appends is None and habit.asked <= UNKNOWN_ASKS
            begins = unknown or (habit.appends is True and habit.asked == 1)
        if habit.asked > 1:
            habit.appends = False if habit.appends else habit.appends
            self._release(location, habit)
        if begins and habit.held is None:
            self._let_go_first(location)
            habit.held = self._wait(location, LONGEST_WAIT_S, UNKNOWN_S if unknown else VALID_S)

    @contextlib.contextmanager
    def creating(self, location: str) -> Iterator[None]:
        """A version is created: in this process's turn, if it has it, which then ends."""
        if self._folder is None:
            yield
            return
        with self._lock:
            habit = self._habits.setdefault(location, Habit())
        if habit.held is not None:
            self._refresh(location, habit.held)
        try:
            yield
        except ConcurrentModificationError:
            self._note_overtaken(location)
            raise
        finally:
            self._release(location, habit)
        habit.appends, habit.asked = True, 0
        with contextlib.suppress(OSError):
            os.unlink(self._overtaken(location))

    def _note_overtaken(self, location: str) -> None:
        path = self._overtaken(location)
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb"):
                os.utime(path)

    def _let_go_first(self, location: str) -> None:
        folder = os.path.dirname(self._overtaken(location))
        deadline = time.monotonic() + OVERTAKEN_S
        while time.monotonic() < deadline and any(not self._is_old(folder, name) for name in _names(folder)):
            time.sleep(LOOK_EVERY_S)

    @staticmethod
    def _is_old(folder: str, name: str) -> bool:
        """Whether the note is of a process that has given up, or died, and is to be forgotten."""
        path = os.path.join(folder, name)
        try:
            if time.time() - os.stat(path).st_mtime < OVERTAKEN_S:
                return False
            os.unlink(path)
        except OSError:
            pass
        return True

    def _overtaken(self, location: str) -> str:
        return os.path.join(f"{self._path(location)}.overtaken", str(os.getpid()))

    def _wait(self, location: str, longest_s: float, valid_s: float) -> int | None:
        path, deadline = self._path(location), time.monotonic() + longest_s
        try:
            held = self._take(path, valid_s)
            if held is not None:
                return held
            with _Bell(path) as bell:
                while held is None and time.monotonic() < deadline:
                    bell.wait(LOOK_EVERY_S)
                    held = self._take(path, valid_s)
            return held
        except OSError:
            return None

    def _take(self, path: str, valid_s: float) -> int | None:
        """The turn, if it is free or void."""
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            return self._take(path, valid_s) if self._is_void(path) else None
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            return self._take(path, valid_s)
        try:
            until = time.time() - VALID_S + valid_s
            os.utime(descriptor, (until, until))
            return os.fstat(descriptor).st_ino
        finally:
            os.close(descriptor)

    def _is_void(self, path: str) -> bool:
        """Whether the turn is free, or was void and is free now."""
        try:
            if time.time() - os.stat(path).st_mtime < VALID_S:
                return False
            os.unlink(path)
        except FileNotFoundError:
            pass
        return True

    def _refresh(self, location: str, held: int) -> bool:
        path = self._path(location)
        try:
            if os.stat(path).st_ino != held:
                return False
            os.utime(path)
        except FileNotFoundError:
            return False
        return True

    def _release(self, location: str, habit: Habit) -> None:
        held, habit.held = habit.held, None
        if held is None:
            return
        path = self._path(location)
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path).st_ino == held:
                os.unlink(path)
        _ring_first(path)

    def _path(self, location: str) -> str:
        assert self._folder is not None
        return os.path.join(self._folder, hashlib.sha256(location.encode()).hexdigest()[:32])


class _Bell:
    """A pipe on which a waiting process is told that the turn is free: those who wait longest are told first.

    It only saves looking: who is not told looks by itself, every `LOOK_EVERY_S`.
    """

    def __init__(self, turn: str) -> None:
        self._path = os.path.join(f"{turn}{WAITING}", f"{time.time_ns():020d}-{os.getpid()}-{threading.get_ident()}")
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        os.mkfifo(self._path)
        self._pipe = os.open(self._path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def __enter__(self) -> _Bell:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        os.close(self._pipe)

    def wait(self, longest_s: float) -> None:
        if select.select([self._pipe], [], [], longest_s)[0]:
            os.read(self._pipe, 64)


def _ring_first(turn: str) -> None:
    folder = f"{turn}{WAITING}"
    for name in sorted(_names(folder)):
        path = os.path.join(folder, name)
        try:
            pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:  # Nobody listens: it waits no more, or it has died.
            with contextlib.suppress(OSError):
                os.unlink(path)
            continue
        with contextlib.suppress(OSError):
            os.write(pipe, b".")
        os.close(pipe)
        return


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
