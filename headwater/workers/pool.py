"""A few workers, one call each at a time: warm ones are kept, dead ones replaced, callers wait their turn."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from headwater.clock import Clock, SystemClock
from headwater.errors import LanceNamespaceError, ServiceUnavailableError
from headwater.workers.channel import WorkerError
from headwater.workers.process import Answers, Body, Host, Worker, WorkerLimits


class Pool:
    """Runs calls in worker processes. Thread-safe; nothing is started before the first call or `warm`."""

    def __init__(self, host: Host, limits: WorkerLimits | None = None, clock: Clock | None = None) -> None:
        self.limits = limits or WorkerLimits()
        self.killed = 0  # workers that did not come back, for metrics
        self._host = host
        self._clock = clock or SystemClock()
        self._idle: deque[tuple[Worker, float]] = deque()
        self._busy: set[Worker] = set()
        self._long: set[Worker] = set()
        self._starting = self._starting_long = 0
        self._closed = False
        self._changed = threading.Condition()

    def run(
        self,
        method: str,
        arguments: object,
        body: Body | None = None,
        changes: bool = False,
        begun: Callable[[Callable[[], None]], None] | None = None,
        is_long: bool = False,
        answers: Answers | None = None,
        views: bool = False,
    ) -> Any:
        """Call a method of the hosted object, and return a JSON value or the chunks of a stream, a list if it is short.

        `begun` is given what stops the work from another thread, once it has a worker. A stream keeps its worker until
        it ends or is closed; closed early, the worker is killed and its work with it. `is_long`: see `WorkerLimits`.
        `answers` is asked what the work wants to know in the middle. With `views` a chunk of a stream may be a
        memoryview that holds until the next chunk is asked for: it is not copied.
        Errors: the hosted object's own; 13 when the work needs more than a worker has; 17 when it takes too long, or no
        worker is free; 17 as CommitStateUnknown when that happens to a change.
        """
        worker = self._take(is_long)
        if begun is not None:
            begun(partial(worker.stop, worker.calls + 1))
        try:
            found = worker.call(method, arguments, body, changes, is_long, answers, views)
        except BaseException:
            self._give_back(worker)
            raise
        if isinstance(found, Generator):
            return self._through(worker, found)
        self._give_back(worker)
        return found

    def warm(self) -> None:
        """Have the spare workers started, in the background."""
        with self._changed:
            missing = self.limits.spares - len(self._idle) - self._starting
            room = self.limits.most - len(self._busy) - len(self._idle) - self._starting
            count = 0 if self._closed else max(0, min(missing, room))
            self._starting += count
        for _ in range(count):
            threading.Thread(target=self._start_spare, name="headwater-spare", daemon=True).start()

    def close(self) -> None:
        """End every worker; work in progress ends with its worker."""
        with self._changed:
            self._closed = True
            workers = [*self._busy, *(worker for worker, _ in self._idle)]
            self._idle.clear()
            self._changed.notify_all()
        for worker in workers:
            worker.kill()

    def await_spare(self) -> None:
        """Wait until a worker stands ready, or none is being started."""
        with self._changed:
            self._changed.wait_for(lambda: self._idle or self._busy or not self._starting)

    @property
    def pids(self) -> list[int]:
        with self._changed:
            return [worker.pid for worker in (*self._busy, *(worker for worker, _ in self._idle))]

    def _through(self, worker: Worker, chunks: Generator[bytes, None, None]) -> Generator[bytes, None, None]:
        """The chunks; when they end, or nobody wants the rest, the worker goes back."""
        stream = self._until_done(worker, chunks)
        next(stream)  # begun, so that its end is seen even when nobody ever asks for a chunk
        return stream

    def _until_done(self, worker: Worker, chunks: Generator[bytes, None, None]) -> Generator[bytes, None, None]:
        try:
            yield b""
            yield from chunks
        finally:
            self._give_back(worker)

    def _take(self, is_long: bool = False) -> Worker:
        """A worker that is free, or a new one, or the next to become free; for long work half of them at most."""
        limit = self._clock.monotonic() + self.limits.seconds
        with self._changed:
            while True:
                if self._closed:
                    raise ServiceUnavailableError("The server is stopping: try again shortly.")
                may = not is_long or len(self._long) + self._starting_long < self.limits.most_long
                if may and self._idle:
                    worker, _ = self._idle.pop()
                    if not worker.is_alive:  # ended by somebody else, while it had nothing to do
                        worker.kill()
                        self.killed += 1
                        continue
                    self._busy.add(worker)
                    break
                if may and len(self._busy) + self._starting < self.limits.most:
                    self._starting += 1
                    self._starting_long += is_long
                    try:
                        worker = self._start_unlocked()
                    finally:
                        self._starting_long -= is_long
                    break
                if not self._changed.wait(limit - self._clock.monotonic()):
                    raise ServiceUnavailableError("All workers are busy: try again shortly.")
            if is_long:
                self._long.add(worker)
        self.warm()
        return worker

    def _start_unlocked(self) -> Worker:
        """Start a worker with the lock let go meanwhile; it counts as starting, and is then busy."""
        self._changed.release()
        worker: Worker | None = None
        try:
            worker = Worker(self._host, self.limits)
            worker.wait_until_ready()
        except OSError as error:
            raise ServiceUnavailableError(f"A worker process could not be started: {error.strerror}.") from None
        finally:
            self._changed.acquire()
            self._starting -= 1
            if worker is not None and worker.is_usable:
                self._busy.add(worker)
            self._changed.notify_all()
        return worker

    def _start_spare(self) -> None:
        with self._changed:
            try:
                worker = self._start_unlocked()
            except (LanceNamespaceError, OSError, WorkerError):
                return  # the next call will meet the same and say so
        self._give_back(worker, is_new=True)

    def _give_back(self, worker: Worker, is_new: bool = False) -> None:
        """A worker that can go on is kept; any other is killed, and a spare takes its place.

        The next call takes the worker that worked last, and not a new one, whose caches are cold.
        """
        with self._changed:
            self._busy.discard(worker)
            self._long.discard(worker)
            keep = worker.is_usable and not self._closed and worker.calls < self.limits.calls
            if keep and is_new:
                self._idle.appendleft((worker, self._clock.monotonic()))
            elif keep:
                self._idle.append((worker, self._clock.monotonic()))
            gone = [] if keep else [worker]
            gone += self._retired()
            self.killed += not worker.is_usable
            self._changed.notify_all()
        for dead in gone:
            dead.kill()
        if not keep:
            self.warm()

    def _retired(self) -> list[Worker]:
        """Those that nobody has needed for a while, beyond the spares and one more, beside which spares are started."""
        retired = []
        while (
            len(self._idle) > self.limits.spares + 1
            and self._idle[0][1] < self._clock.monotonic() - self.limits.idle_seconds
        ):
            retired.append(self._idle.popleft()[0])
        return retired
