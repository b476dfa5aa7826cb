"""Queues of writers: threads of one process share a commit, and processes of one machine take turns at a lock file.

Turns are advisory. No promise rests on them; they keep writers from work that would conflict. The rules:

- A dead process holds nothing. A turn, or a note for others, is a file that its owner has locked; the kernel releases
  the lock when the owner dies.
- An unused turn expires. A process that waits checks its age, and deletes the file of one that is too old.
- A process that waits in a `Wakeup` is woken when the turn is free, the longest waiting first, and polls besides.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from headwater.clock import Clock

WAITING = ".waiting"


class Queued(Protocol):
    """A piece of work that a caller waits for: `done` once it is decided, with its error."""

    done: bool
    error: BaseException | None


Work = TypeVar("Work", bound=Queued)
Lead = Callable[[Sequence[Work]], None]


class _Place(Generic[Work]):
    """A caller's place in the queue. It is woken when its work is decided, or when it is its turn to lead."""

    __slots__ = ("leads", "left", "next", "woken", "work")

    def __init__(self, work: Work) -> None:
        self.work = work
        self.leads = False
        self.left = False
        self.next: _Place[Work] | None = None
        """The thread to wake after this one."""
        self.woken = threading.Lock()
        self.woken.acquire()


@dataclass
class GroupedWork(Generic[Work]):
    """A queue of work from threads: the leading thread does the work of all that wait, in one call.

    `told` makes the error of all undecided work when the leader fails. One thread works for all, because Python runs
    one at a time: handing over at every system call took three times as long.
    """

    told: Callable[[BaseException], BaseException] = lambda error: error
    largest: int = 256
    gather_s: float = 0
    """The longest time, in seconds, that a leader waits for as many callers as before. A single caller never waits."""
    _waiting: list[_Place[Work]] = field(default_factory=list)
    _queue: threading.Lock = field(default_factory=threading.Lock)
    _led: bool = False
    _served: int = 1
    _awaited: threading.Lock | None = None
    """The event that wakes the leader when enough callers have come."""

    @property
    def size(self) -> int:
        """The number of threads that wait."""
        return len(self._waiting)

    def run(self, mine: Work, lead: Lead[Work], finish: Lead[Work] = lambda works: None) -> None:
        """Have it done, by this thread or by another; raises the error it ended in.

        `lead` decides work by setting `done`; undecided work waits for the next call. `finish` is called with the work
        that was decided, before its owners are woken, each by the one before it.
        """
        place = _Place(mine)
        with self._queue:
            self._waiting.append(place)
            place.leads, self._led = not self._led, True
            if self._awaited is not None and len(self._waiting) >= self._served:
                self._awaited.release()
                self._awaited = None
        try:
            if not place.leads:
                place.woken.acquire()
            while not mine.done:
                self._lead(place, lead, finish)
        finally:
            self._leave(place)
        if mine.error is not None:
            raise mine.error

    def _leave(self, place: _Place[Work]) -> None:
        """The next one who waits leads. One that was interrupted cannot: its work is done with that of the others."""
        with self._queue:
            place.left = True
            after = place.next
            if place.leads:
                after = next((other for other in self._waiting if not other.left), None)
                self._led = after is not None
                if after is not None:
                    after.leads = True
        if after is not None:
            after.woken.release()

    def _lead(self, mine: _Place[Work], lead: Lead[Work], finish: Lead[Work]) -> None:
        if self.gather_s:
            self._gather()
        with self._queue:
            group, self._waiting = self._waiting[: self.largest], self._waiting[self.largest :]
        self._served = max(len(group), self._served - 1)
        works = [place.work for place in group]
        try:
            lead(works)
        except BaseException as error:
            for work in works:
                if not work.done:
                    work.done, work.error = True, self.told(error)
            self._wake(group, mine)
            raise
        try:
            finish([work for work in works if work.done])
        finally:
            self._wake(group, mine)

    def _gather(self) -> None:
        """Sleep until enough have come, who tell, or for as long as a leader may."""
        with self._queue:
            if len(self._waiting) >= self._served:
                return
            awaited = self._awaited = threading.Lock()
            awaited.acquire()
        awaited.acquire(timeout=self.gather_s)
        with self._queue:
            self._awaited = None

    def _wake(self, group: Sequence[_Place[Work]], mine: _Place[Work]) -> None:
        """Wake the first of those whose work is decided, who wakes the next: all at once would only fight for Python's
        lock, with the leader too. Who is undecided waits on."""
        first: _Place[Work] | None = None
        with self._queue:
            self._waiting[:0] = [place for place in group if not place.work.done]
            for place in reversed(group):
                if place.work.done and place is not mine and not place.left:
                    place.next, first = first, place
        if first is not None:
            first.woken.release()


@dataclass(frozen=True)
class HeldLock:
    """A turn that is ours, until it is released, void or the process ends."""

    turn: FileLock
    descriptor: int

    def is_ours(self) -> bool:
        """Return True if no other process has taken the turn as expired."""
        return _is_at(self.turn.path, self.descriptor)

    def refresh(self) -> None:
        """Restart the age of the turn, because it is in use."""
        self.turn.touch(self.descriptor, self.turn.valid_s)

    def release(self) -> None:
        """Give it back, and tell the one who waits longest."""
        if not self.turn.lasting and self.is_ours():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.turn.path)
        os.close(self.descriptor)
        ring(self.turn.path)


@dataclass(frozen=True)
class FileLock:
    """A turn at one path, which one process has at a time. `lasting`: its file stays after use."""

    path: str
    clock: Clock
    valid_s: float
    lasting: bool = False

    def take(self, valid_s: float | None = None) -> HeldLock | None:
        """Take the turn if it is free or expired; None otherwise. `valid_s`: a shorter time until it expires."""
        while True:
            descriptor = _open(self.path)
            if _lock(descriptor):
                if _is_at(self.path, descriptor):
                    self.touch(descriptor, self.valid_s if valid_s is None else valid_s)
                    return HeldLock(self, descriptor)
                os.close(descriptor)  # its last holder took the file away
                continue
            void = self._is_void(descriptor)
            if void and _is_at(self.path, descriptor):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self.path)
            os.close(descriptor)
            if not void:
                return None

    def wait(
        self, longest_s: float, look_s: float, valid_s: float | None = None, until: Callable[[], bool] | None = None
    ) -> HeldLock | None:
        """Call `take` every `look_s`. Returns None after `longest_s`, or when `until` returns True."""
        deadline = self.clock.monotonic() + longest_s
        while (held := self.take(valid_s)) is None:
            if (until is not None and until()) or self.clock.monotonic() > deadline:
                return None
            self.clock.sleep(look_s)
        return held

    def wait_for_wakeup(
        self,
        longest_s: float,
        look_s: float,
        valid_s: float | None = None,
        meanwhile: Callable[[], object] | None = None,
    ) -> HeldLock | None:
        """Wait for the turn until its owner wakes this process. `meanwhile` runs after each failed try."""
        held = self.take(valid_s)
        if held is not None:
            return held
        deadline = self.clock.monotonic() + longest_s
        with Wakeup(self.path, self.clock) as wakeup:  # it may have become free before the pipe was made
            while (held := self.take(valid_s)) is None and self.clock.monotonic() < deadline:
                if meanwhile is not None:
                    meanwhile()
                wakeup.wait(look_s)
        return held

    def touch(self, descriptor: int, valid_s: float) -> None:
        """Restart the age of the turn; less time is left for one with a shorter validity."""
        since = self.clock.now_ms() / 1000 - self.valid_s + valid_s
        os.utime(descriptor, (since, since))

    def _is_void(self, descriptor: int) -> bool:
        return self.clock.now_ms() / 1000 - os.fstat(descriptor).st_mtime >= self.valid_s


class Wakeup:
    """A pipe that wakes a waiting process when the turn is free. It only saves polling."""

    def __init__(self, turn: str, clock: Clock) -> None:
        name = f"{clock.now_ms():015d}-{os.getpid()}-{threading.get_ident()}"
        self._path = os.path.join(f"{turn}{WAITING}", name)
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        os.mkfifo(self._path)
        self._pipe = os.open(self._path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def __enter__(self) -> Wakeup:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        os.close(self._pipe)

    def wait(self, longest_s: float) -> None:
        rung = select.poll()  # select() takes no descriptor above 1023, and a server has more
        rung.register(self._pipe, select.POLLIN)
        if rung.poll(longest_s * 1000):
            os.read(self._pipe, 64)


def ring(turn: str) -> None:
    """Wake the process that has waited longest for the turn."""
    folder = f"{turn}{WAITING}"
    for name in sorted(names(folder)):
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


def names(folder: str) -> list[str]:
    """Return the names in a folder; an empty list if there is no folder."""
    if not os.access(folder, os.F_OK):
        return []
    try:
        return os.listdir(folder)
    except OSError:
        return []


def is_abandoned(path: str) -> bool:
    """Return True if no process locks the file, or the file is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open(path: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return os.open(path, flags, 0o666)


def _is_at(path: str, descriptor: int) -> bool:
    """Return True if the open file is the one at the path."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(descriptor))
