"""A seeded scheduler of threads: one runs at a time, and who goes on at each step is drawn from the seed.

A task is a thread of a simulated process. It goes on until it asks the store, sleeps, or waits for a lock; there the
scheduler hands the baton to the next task. Locks, threads, clocks and random numbers of the code under test are those
of this module, so the same seed gives the same history.
"""

from __future__ import annotations

import random
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from headwater.store import Crash

try:
    import greenlet
except ImportError:  # it is not needed: the threads take the same turns
    HAS_GREENLETS = False
else:
    HAS_GREENLETS = True

NEVER = 1 << 62
START_MS = 1_700_000_000_000
MOST_STEPS = 50_000
"""The steps of a run that makes no progress: then it is ended as stuck."""


class Process:
    """One incarnation of a simulated process. A dead one makes no request, and its threads unwind."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.dead = False
        self.alive = 0


class SimulatedTask:
    """A thread of a process, and what it waits for."""

    def __init__(self, process: Process, work: Callable[[], None]) -> None:
        self.process = process
        self.work = work
        self.wake_ms = 0
        self.until: Callable[[], bool] | None = None
        self.done = False


class ThreadBaton:
    """Tasks as threads of this process: each waits at its gate until it gets the baton."""

    def __init__(self) -> None:
        self._gates: dict[SimulatedTask, threading.Lock] = {}
        self._finished = threading.Lock()
        self._finished.acquire()
        self.thread = 0
        """The identifier of the thread that has the baton."""

    def add(self, task: SimulatedTask, body: Callable[[], SimulatedTask | None]) -> None:
        """Add a task. Its body returns the task that goes on at its end, or None after the last one."""
        self._gates[task] = gate = threading.Lock()
        gate.acquire()
        threading.Thread(target=self._carry_out, args=(task, body), daemon=True).start()

    def run(self, first: SimulatedTask) -> None:
        """Give the baton to a task, and return when no task is left."""
        self._gates[first].release()
        self._finished.acquire()

    def hand_over(self, task: SimulatedTask, other: SimulatedTask) -> None:
        """Give the baton to another task, and return when this one has it again."""
        self._gates[other].release()
        self._gates[task].acquire()
        self.thread = threading.get_ident()

    def _carry_out(self, task: SimulatedTask, body: Callable[[], SimulatedTask | None]) -> None:
        self._gates[task].acquire()
        self.thread = threading.get_ident()
        following = body()
        del self._gates[task]
        (self._finished if following is None else self._gates[following]).release()


class GreenletBaton:
    """Tasks as greenlets of one thread: the same order, and a switch costs no lock and no turn of the machine's CPU."""

    def __init__(self) -> None:
        self._greenlets: dict[SimulatedTask, greenlet.greenlet] = {}
        self.thread = threading.get_ident()

    def add(self, task: SimulatedTask, body: Callable[[], SimulatedTask | None]) -> None:
        self._greenlets[task] = greenlet.greenlet(body, greenlet.getcurrent().parent or greenlet.getcurrent())

    def run(self, first: SimulatedTask) -> None:
        following: SimulatedTask | None = first
        while following is not None:
            following = self._greenlets[following].switch()

    def hand_over(self, task: SimulatedTask, other: SimulatedTask) -> None:
        self._greenlets[other].switch()


class Scheduler:
    """The tasks of one run, its virtual time and its random numbers."""

    def __init__(self, seed: int, baton: ThreadBaton | GreenletBaton | None = None) -> None:
        self.random = random.Random(seed)
        self.baton = baton or ThreadBaton()
        self.now_ms = START_MS
        self.step = 0
        self.stuck = ""
        self.tasks: list[SimulatedTask] = []
        self.current: SimulatedTask | None = None
        self.ended: Callable[[Process], None] = lambda process: None
        """Called when the last thread of a process has ended."""
        self._late: list[tuple[int, Callable[[], None]]] = []
        self._error: BaseException | None = None

    def spawn(self, process: Process, work: Callable[[], None]) -> SimulatedTask:
        """Add a thread to a process. It runs when its turn comes."""
        task = SimulatedTask(process, work)
        process.alive += 1
        self.tasks.append(task)
        self.baton.add(task, lambda: self._body(task))
        return task

    def run(self) -> None:
        """Run until all tasks have ended; raises the first error that is not a crash."""
        self.current = self._next()
        self.baton.run(self.current)
        if self._error is not None:
            raise self._error

    def switch(self) -> None:
        """Let another task go on, or this one. Raises Crash in a process that has died meanwhile."""
        task = self.current
        assert task is not None
        chosen = self._next()
        if chosen is not task:
            self.current = chosen
            self.baton.hand_over(task, chosen)
        task.until, task.wake_ms = None, 0
        if task.process.dead:
            raise Crash

    def wait(self, until: Callable[[], bool] | None, longest_ms: int = NEVER) -> None:
        """Let others go on until a condition holds, or for so many milliseconds of virtual time."""
        task = self.current
        assert task is not None
        task.until, task.wake_ms = until, min(self.now_ms + longest_ms, NEVER)
        self.switch()

    def later(self, delay_ms: int, effect: Callable[[], None]) -> None:
        """Carry out an effect at a later time, whoever runs then: a request that was on its way."""
        self._late.append((self.now_ms + delay_ms, effect))

    def is_scheduled(self) -> bool:
        """Return True in the thread of the task that runs, False in threads that it did not start through us."""
        return self.current is not None and self.baton.thread == threading.get_ident()

    def _body(self, task: SimulatedTask) -> SimulatedTask | None:
        """Carry out the work of a task; return the task that goes on after it."""
        try:
            if not task.process.dead:
                task.work()
        except Crash:
            pass
        except BaseException as error:
            self._error = self._error or error
        task.done = True
        self.tasks.remove(task)
        task.process.alive -= 1
        if not task.process.alive:
            self.ended(task.process)
        if not self.tasks:
            return None
        self.current = self._next()
        return self.current

    def _next(self) -> SimulatedTask:
        self.step += 1
        self.now_ms += 1
        if self.step > MOST_STEPS:
            self._give_up(f"no end after {MOST_STEPS} steps")
        while True:
            if self._late:
                self._land()
            now = self.now_ms
            ready = [
                task
                for task in self.tasks
                if task.wake_ms <= now or task.process.dead or (task.until is not None and task.until())
            ]
            if ready:
                return ready[0] if len(ready) == 1 else ready[int(self.random.random() * len(ready))]
            wakes = [task.wake_ms for task in self.tasks if task.wake_ms < NEVER]
            if not wakes:
                self._give_up("every thread waits for another")
            else:
                self.now_ms = min([*wakes, *(when for when, _ in self._late)])

    def _land(self) -> None:
        due = [item for item in self._late if item[0] <= self.now_ms]
        self._late = [item for item in self._late if item[0] > self.now_ms]
        for _, effect in due:
            effect()

    def _give_up(self, why: str) -> None:
        self.stuck = self.stuck or why
        for task in self.tasks:
            task.process.dead = True


class SimulatedClock:
    """The clock of one process: the virtual time with a skew of its own, ids by seed; to sleep lets others go on."""

    def __init__(self, scheduler: Scheduler, seed: str, skew_ms: int = 0) -> None:
        self._scheduler = scheduler
        self._random = random.Random(seed)
        self._skew_ms = skew_ms

    def now_ms(self) -> int:
        return self._scheduler.now_ms + self._skew_ms

    def uuid(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def hex(self, digits: int) -> str:
        return f"{self._random.getrandbits(4 * digits):0{digits}x}"

    def pause(self, attempt: int) -> None:
        self.sleep(self._random.uniform(0, min(0.001 * 2**attempt, 0.25)))

    def monotonic(self) -> float:
        return self._scheduler.now_ms / 1000

    def sleep(self, seconds: float) -> None:
        if self._scheduler.current is not None:
            self._scheduler.wait(None, max(int(seconds * 1000), 1))


class SimulatedLock:
    """A lock of a simulated process: a task that waits for it lets others go on."""

    def __init__(self, scheduler: Scheduler, reentrant: bool) -> None:
        self._scheduler = scheduler
        self._reentrant = reentrant
        self._owner: object | None = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me: object = self._scheduler.current or "setup"
        if self._count and not (self._reentrant and self._owner is me):
            if not blocking:
                return False
            deadline = self._scheduler.now_ms + int(timeout * 1000) if timeout >= 0 else NEVER
            while self._count:
                if self._scheduler.now_ms > deadline:
                    return False
                self._scheduler.wait(lambda: not self._count, deadline - self._scheduler.now_ms + 1)
        self._owner = me
        self._count += 1
        return True

    def release(self) -> None:
        self._count -= 1

    def locked(self) -> bool:
        return self._count > 0

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class SimulatedThread:
    """A thread that the code under test starts: one more task of the same process."""

    def __init__(self, scheduler: Scheduler, target: Callable[..., None], args: tuple[object, ...] = ()) -> None:
        self._scheduler = scheduler
        self._work = lambda: target(*args)
        self._task: SimulatedTask | None = None

    def start(self) -> None:
        assert self._scheduler.current is not None
        self._task = self._scheduler.spawn(self._scheduler.current.process, self._work)

    def join(self, timeout: float | None = None) -> None:
        task = self._task
        if task is not None and not task.done:
            self._scheduler.wait(lambda: task.done)


class _Threading:
    """The module `threading`, as the code under test sees it in a run."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.Lock = lambda: SimulatedLock(scheduler, reentrant=False)
        self.RLock = lambda: SimulatedLock(scheduler, reentrant=True)
        self.Thread = lambda target, args=(), **_: SimulatedThread(scheduler, target, args)
        self.Event, self.local = threading.Event, threading.local
        self.get_ident, self.current_thread = threading.get_ident, threading.current_thread


@contextmanager
def simulated_threads(scheduler: Scheduler) -> Iterator[None]:
    """Give every module of the package the locks and threads of a scheduler, but for the simulation itself."""
    names = [name for name in sys.modules if name.startswith("headwater.") and not name.startswith(__package__ or "-")]
    holders = [vars(sys.modules[name]) for name in names if vars(sys.modules[name]).get("threading") is threading]
    shim = _Threading(scheduler)
    for holder in holders:
        holder["threading"] = shim
    try:
        yield
    finally:
        for holder in holders:
            with suppress(KeyError):
                holder["threading"] = threading
