"""Writers of one table on one machine take turns, so that they do not overtake each other.

A writer that was overtaken has to begin anew, after a pause that its client doubles each time, and may starve. An
append begins with the question for the newest version and ends with the creation of the next one. A process that has
been seen to ask once and then create is taken to be about to append when it asks again, and gets the turn before it is
answered. One that was overtaken gets the turn before it is told, for its next attempt. Only a courtesy: correctness
never depends on a turn, one that is not used soon is void, and a process that dies or only reads holds up nobody.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from headwater.errors import ConcurrentModificationError
from headwater.registries.layout import TURNS
from headwater.store import LocalStore, Store

VALID_S = 0.2
"""A turn that was not used for so long is void."""
LONGEST_WAIT_S = 1.0
RETRY_WAIT_S = 0.05
"""Short: the client's pause before its next attempt grows with the time that this one took."""
LOOK_EVERY_S = 0.001


@dataclass
class Habit:
    """What a process was seen to do with one table."""

    asked: int = 0
    """How often it asked for the newest version since it last created one."""
    appends: bool = False
    """Whether it asked exactly once before its last creation."""
    held: int | None = None
    """The turn it holds: the inode of the turn's file."""


class WriterTurns:
    """The turns of this process, one per table. On an object store there are none, and nobody waits."""

    def __init__(self, store: Store) -> None:
        self._folder = os.path.join(store.root, TURNS) if isinstance(store, LocalStore) else None
        self._habits: dict[str, Habit] = {}
        self._lock = threading.Lock()

    def expect(self, location: str) -> None:
        """The newest version of the table is asked for. Waits for the turn if an append seems to begin."""
        if self._folder is None:
            return
        with self._lock:
            habit = self._habits.setdefault(location, Habit())
            habit.asked += 1
            begins = habit.appends and habit.asked == 1
        if habit.asked > 1:
            habit.appends = False
            self._release(location, habit)
        if begins and habit.held is None:
            habit.held = self._wait(location, LONGEST_WAIT_S)

    @contextlib.contextmanager
    def creating(self, location: str) -> Iterator[None]:
        """A version is created: in this process's turn, if it has it, which then ends."""
        if self._folder is None:
            yield
            return
        with self._lock:
            habit = self._habits.setdefault(location, Habit())
        if habit.held is not None and not self._refresh(location, habit.held):
            habit.held = None
        try:
            yield
        except ConcurrentModificationError:
            self._keep(location, habit)
            raise
        except BaseException:
            self._release(location, habit)
            raise
        habit.appends, habit.asked = habit.asked <= 1, 0
        self._release(location, habit)

    def _keep(self, location: str, habit: Habit) -> None:
        """The turn for the next attempt of a writer that was overtaken."""
        if habit.held is None or not self._refresh(location, habit.held):
            habit.held = self._wait(location, RETRY_WAIT_S)

    def _wait(self, location: str, longest_s: float) -> int | None:
        path, deadline = self._path(location), time.monotonic() + longest_s
        while True:
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            except FileExistsError:
                if self._is_void(path):
                    continue
                if time.monotonic() > deadline:
                    return None
                time.sleep(LOOK_EVERY_S)
            except FileNotFoundError:
                os.makedirs(os.path.dirname(path), exist_ok=True)
            except OSError:
                return None
            else:
                try:
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

    def _path(self, location: str) -> str:
        assert self._folder is not None
        return os.path.join(self._folder, hashlib.sha256(location.encode()).hexdigest()[:32])
