"""A pool of worker processes: warm ones are kept, dead ones replaced, callers wait their turn.

A `Worker` is one process as its caller holds it: started, called, and killed when it misses its deadline.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from headwater.clock import Clock, SystemClock
from headwater.errors import (
    CommitStateUnknownError,
    InvalidInputError,
    LanceNamespaceError,
    ServiceUnavailableError,
    UnsupportedOperationError,
)
from headwater.workers.channel import (
    MIB,
    BrokenChannelError,
    Channel,
    WorkerError,
    error_of,
    failure,
    shared_memory,
    stream_chunks,
)

START_SECONDS = 60.0
DYING_SECONDS = 0.05

BEATS = 4
"""Progress reports of a long call in the longest silence."""
Answers = Callable[[bytes], Any]
"""Answers what the work asks in the middle of a call: bytes, with a JSON value."""
Body = bytes | memoryview | pa.RecordBatchReader | int
"""Bytes, batches, or the descriptor of a file to map."""


@dataclass(frozen=True)
class Host:
    """The object that a worker hosts: `function` ("module:name") makes it from JSON arguments."""

    function: str
    arguments: list[object] = field(default_factory=list)


@dataclass(frozen=True)
class WorkerLimits:
    """Limits of workers. `memory`: bytes beyond those of an idle worker; `seconds`: the longest silence of a call.

    Long calls have a memory of their own (0: the same), take at most half of the workers, and are ended when they have
    done nothing for `seconds`, however long they take.
    """

    memory: int = 4096 * MIB
    seconds: float = 600.0
    most: int = 8
    spares: int = 1
    calls: int = 10_000
    idle_seconds: float = 60.0
    long_memory: int = 0

    @property
    def most_long(self) -> int:
        return max(1, self.most // 2)

    def memory_of(self, is_long: bool) -> int:
        return self.long_memory or self.memory if is_long else self.memory


class Worker:
    """One process. It answers one call at a time; after an error it reports `is_usable` False and is to be killed."""

    def __init__(self, host: Host, limits: WorkerLimits) -> None:
        self._limits = limits
        self._memory = limits.memory
        self.calls = 0
        self.is_usable = self._is_calling = False
        self._killing = threading.Lock()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        lifeline, self._lifeline = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "headwater.workers.child", str(theirs.fileno()), str(lifeline)],
                pass_fds=(theirs.fileno(), lifeline),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(place for place in sys.path if place)},
                start_new_session=True,
            )
        finally:
            theirs.close()
            os.close(lifeline)
        self._channel = Channel(ours)
        self._channel.wait_at_most(START_SECONDS)
        memory = shared_memory()
        try:
            self._channel.share(memory)
            most = max(limits.memory, limits.long_memory)
            first = {"function": host.function, "arguments": host.arguments, "memory": limits.memory}
            first["most_memory"] = most
            self._channel.send(first, file=memory)
        finally:
            os.close(memory)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def wait_until_ready(self) -> None:
        """Wait until the worker hosts the object and takes calls, or raise the error that prevented it."""
        try:
            told = self._channel.receive()
        except (BrokenChannelError, OSError):
            self.kill()
            raise ServiceUnavailableError("A worker process could not be started: see the server's log.") from None
        if "error" in told:
            self.kill()
            raise error_of(told["error"], self._memory)
        self.is_usable = True

    def call(
        self,
        method: str,
        arguments: object,
        body: Body | None = None,
        changes: bool = False,
        is_long: bool = False,
        answers: Answers | None = None,
        views: bool = False,
    ) -> object:
        """Return the answer: a JSON value, the chunks of a stream, or of a short one a list of them.

        `views`: see `Channel.receive_chunks`.
        Any error but the catalog's own ends the worker.
        """
        self.calls += 1
        self._memory = self._limits.memory_of(is_long)
        self.is_usable, self._is_calling = False, True
        self._channel.wait_at_most(self._limits.seconds)
        try:
            self._send(method, arguments, body, is_long)
            told = self._receive_answer(answers)
            whole = list(self._channel.receive_chunks()) if "whole" in told else None
        except TimeoutError:
            raise self._overdue(changes) from None
        except (BrokenChannelError, OSError):
            raise self._died(changes) from None
        if "stream" in told:
            return self._chunks(changes, views)
        self._is_calling = False
        self.is_usable = not told.get("error", {}).get("memory")
        if "error" in told:
            raise error_of(told["error"], self._memory)
        return told["ok"] if whole is None else whole

    def _receive_answer(self, answers: Answers | None) -> dict[str, Any]:
        """Return the worker's answer to a call. Before it, the worker may ask and report progress."""
        while True:
            told = self._channel.receive()
            if "ask" in told:
                self._channel.send(_answer(answers, b"".join(self._channel.receive_chunks())))
            elif "progress" not in told:
                return told

    def _send(self, method: str, arguments: object, body: Body | None, is_long: bool) -> None:
        message = {"method": method, "arguments": arguments, "body": None, "memory": self._memory}
        message["beat"] = self._limits.seconds / BEATS if is_long else None
        if body is None:
            self._channel.send(message)
        elif isinstance(body, int):
            self._channel.send({**message, "body": "file"}, file=body)
        elif isinstance(body, pa.RecordBatchReader):
            self._channel.send({**message, "body": "stream"})
            self._channel.send_chunks(stream_chunks(body))
        else:
            self._channel.send({**message, "body": "bytes"}, [[body]])

    def _chunks(self, changes: bool, views: bool) -> Generator[bytes, None, None]:
        try:
            yield from self._channel.receive_chunks(views)
            told = self._channel.receive()
        except TimeoutError:
            raise self._overdue(changes) from None
        except (BrokenChannelError, OSError):
            raise self._died(changes) from None
        self._is_calling = False
        self.is_usable = "error" not in told
        if "error" in told:
            raise error_of(told["error"], self._memory)

    def _overdue(self, changes: bool) -> LanceNamespaceError:
        self.kill()
        if changes:
            return CommitStateUnknownError(
                f"The change was not finished within {self._limits.seconds:g} seconds and was ended: it may have "
                "landed. Look before repeating it."
            )
        return ServiceUnavailableError(
            f"The work was not finished within {self._limits.seconds:g} seconds and was ended: ask for less."
        )

    def _died(self, changes: bool) -> LanceNamespaceError:
        self.kill()
        if changes:
            return CommitStateUnknownError(
                f"The process that made the change ended in the middle ({self._how()}): it may have landed. Look "
                "before repeating it, and send less at a time."
            )
        return InvalidInputError(
            f"The request needs more than a worker may take ({self._how()}; memory {self._memory // MIB} MiB): "
            "ask for less at a time."
        )

    def _how(self) -> str:
        status = self._process.returncode
        if status is None or status >= 0:
            return "it ended"
        with suppress(ValueError):
            return f"ended by {signal.Signals(-status).name}"
        return "it ended"

    def stop(self, number: int) -> None:
        """Nobody waits for this call any more: end it if it is still the one, without waiting for that to happen."""
        if self._is_calling and self.calls == number:
            self._process.kill()

    def kill(self) -> None:
        """The process is gone when this returns. Twice does no harm."""
        self.is_usable = False
        with self._killing:
            if self._lifeline < 0:
                return
            with suppress(subprocess.TimeoutExpired):  # one that is dying anyway tells how
                self._process.wait(DYING_SECONDS)
            self._process.kill()
            self._process.wait()
            os.close(self._lifeline)
            self._lifeline = -1
            self._channel.close()


def _answer(answers: Answers | None, question: bytes) -> dict[str, object]:
    try:
        if answers is None:
            raise UnsupportedOperationError("This caller answers no questions.")
        return {"ok": answers(question)}
    except Exception as error:
        return {"error": failure(error)}


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
        """Return the chunks; when they end, or nobody wants the rest, the worker goes back."""
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
        """Return a free worker, a new one, or the next to become free; long work gets at most half of them."""
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
        """Return the workers that no call has needed for a while, beyond the spares and one more."""
        retired = []
        while (
            len(self._idle) > self.limits.spares + 1
            and self._idle[0][1] < self._clock.monotonic() - self.limits.idle_seconds
        ):
            retired.append(self._idle.popleft()[0])
        return retired
