"""`headwater serve`: one process, or several workers that share one listening socket.

The parent opens the socket and watches; the workers open the catalog and answer. A worker that dies is started
again; when too many die in a short time the server gives up, and says so by its exit status. A signal to the parent
lets every worker finish what it has in flight.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from lance_namespace import LanceNamespace

from headwater.clock import Clock, SystemClock
from headwater.errors import ServiceUnavailableError
from headwater.imports import warm
from headwater.rest.app import CatalogApp, Face
from headwater.rest.coding import encode_json
from headwater.rest.server import GRACE_SECONDS, ReadyServer, bind, check_exposure, check_tls, create_app, url_of
from headwater.rest.settings import MIB, Settings
from headwater.rest.work import HOST, FarNamespace, InWorkers
from headwater.store import Store, open_store
from headwater.workers import Host, Pool, WorkerLimits

WINDOW_MS = 300_000
log = logging.getLogger("headwater.server")
Opener = Callable[[str, dict[str, str]], LanceNamespace]


@dataclass(frozen=True)
class ServePlan:
    """Everything a worker needs to serve: it is sent to worker processes whole.

    `keys` is a folder or URI for API keys and roles, of a catalog that has no storage of its own for them.
    `data_workers` is how many disposable processes each of them may have for data work (none: it does that itself),
    `data_memory` how many bytes of memory each of those may take, `long_memory` for long work (0: the same). `face` is
    the web page, None for a server without. `far` names a back end of others, whose code runs in workers alone.
    """

    target: str
    properties: dict[str, str]
    open: Opener
    settings: Settings = field(default_factory=Settings)
    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 1
    insecure: bool = False
    restarts: int = 20
    data_workers: int = 0
    data_memory: int = 4096 * MIB
    long_memory: int = 0
    face: Face | None = None
    keys: str | None = None
    far: str = ""


def serve(plan: ServePlan, announce: Callable[[str], None]) -> int:
    """Serve until told to stop; `announce` gets the URL once the server answers. Returns the exit status."""
    _log_to_stderr()
    check_tls(plan.settings)
    if plan.workers == 1:
        return _serve_here(plan, announce)
    with tempfile.TemporaryDirectory(prefix="headwater-metrics-") as folder:
        shared = replace(plan, settings=replace(plan.settings, metrics_folder=folder))
        return _Workers(shared, announce).run()


def _serve_here(plan: ServePlan, announce: Callable[[str], None]) -> int:
    with data_pool(plan) as pool:
        app = _app(plan, pool)
        check_exposure(app, plan.host, plan.insecure)
        listener = bind(plan.host, plan.port)
        server = ReadyServer(app)
        _when_ready(server, pool, lambda: announce(url_of(listener, plan.settings)))
        server.run(sockets=[listener])
    return 0


def _app(plan: ServePlan, pool: Pool | None) -> CatalogApp:
    namespace = _catalog(plan, pool)
    if pool is None:
        warm()
    work = None if pool is None else InWorkers(pool, namespace)
    return create_app(namespace, plan.settings, key_store(plan), work=work, face=plan.face)


def _catalog(plan: ServePlan, pool: Pool | None) -> LanceNamespace:
    """Return the catalog; of a back end of others only what asks the workers, where there are any."""
    if not plan.far or plan.data_workers < 1:
        return plan.open(plan.target, plan.properties)
    namespace = FarNamespace(plan.far, pool)
    if pool is not None:
        namespace.check_answers()
    return namespace


def key_store(plan: ServePlan) -> Store | None:
    """Return the store of the keys, if that is not the catalog."""
    return None if plan.keys is None else open_store(plan.keys)


@contextmanager
def data_pool(plan: ServePlan) -> Iterator[Pool | None]:
    """The disposable processes that do the data work, while there is a server; None when it does that itself.

    A catalog in memory is in no other process.
    """
    pool = _pool(plan)
    try:
        if pool is not None:
            pool.warm()
        yield pool
    finally:
        if pool is not None:
            pool.close()


def _pool(plan: ServePlan) -> Pool | None:
    opener = f"{plan.open.__module__}:{plan.open.__qualname__}"
    place = str(plan.properties.get("root") or plan.target or "")
    if plan.data_workers < 1 or place.startswith("memory:") or "<" in opener:
        return None
    asked = plan.settings.limits
    limits = WorkerLimits(
        plan.data_memory, asked.request_seconds, plan.data_workers, long_memory=plan.long_memory or plan.data_memory
    )
    return Pool(Host(HOST, [opener, plan.target, plan.properties, asdict(asked)]), limits)


def _when_ready(server: ReadyServer, pool: Pool | None, then: Callable[[], None]) -> None:
    """Tell when the server answers and a worker stands ready: the first request waits for neither."""

    def wait_and_tell() -> None:
        server.ready.wait()
        if pool is not None:
            pool.await_spare()
        then()

    threading.Thread(target=wait_and_tell, daemon=True).start()


class Restarts:
    """A limit of restarts in a window of time, after which the server ends with an error."""

    def __init__(self, most: int, clock: Clock) -> None:
        self._most = most
        self._clock = clock
        self._times: deque[int] = deque()

    def take(self) -> bool:
        """Count one more restart; False if the window has no room for it."""
        now = self._clock.now_ms()
        while self._times and now - self._times[0] >= WINDOW_MS:
            self._times.popleft()
        if len(self._times) >= self._most:
            return False
        self._times.append(now)
        return True


class _Workers:
    """The parent of several workers."""

    def __init__(self, plan: ServePlan, announce: Callable[[str], None]) -> None:
        self._plan = plan
        self._announce = announce
        self._context = multiprocessing.get_context("spawn")
        self._listener: socket.socket | None = None
        self._workers: list[tuple[BaseProcess, Connection]] = []
        self._stopping = False
        self._gave_up = False
        self._restarts = Restarts(plan.restarts, SystemClock())

    def run(self) -> int:
        plan = self._plan
        app = create_app(_catalog(plan, None), plan.settings, key_store(plan))
        check_exposure(app, self._plan.host, self._plan.insecure)
        self._listener = bind(self._plan.host, self._plan.port)
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, self._stop)
        self._workers = [self._start() for _ in range(self._plan.workers)]
        for process, ready in self._workers:
            if not self._stopping and not _is_ready(process, ready):
                self._stop()
                raise ServiceUnavailableError("A worker did not start; its reason stands above.")
        if not self._stopping:
            self._announce(url_of(self._listener, self._plan.settings))
        self._watch()
        return 1 if self._gave_up else 0

    def _start(self) -> tuple[BaseProcess, Connection]:
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_work, args=(self._plan, self._listener, theirs), daemon=False)
        process.start()
        theirs.close()
        return process, ours

    def _watch(self) -> None:
        while self._workers:
            wait([process.sentinel for process, _ in self._workers])
            alive = [worker for worker in self._workers if worker[0].is_alive()]
            dead = len(self._workers) - len(alive)
            self._workers = alive
            for _ in range(dead):
                self._replace()

    def _replace(self) -> None:
        """Start a worker for one that died, or stop them all when that happens too often."""
        if self._stopping:
            return
        if self._restarts.take():
            self._workers.append(self._start())
            return
        line = {"failure": "workers keep dying", "restarts": self._plan.restarts, "seconds": WINDOW_MS // 1000}
        log.error(encode_json(line).decode())
        self._gave_up = True
        self._stop()

    def _stop(self, *_: object) -> None:
        self._stopping = True
        for process, _ready in self._workers:
            if process.is_alive():
                process.terminate()


def _is_ready(process: BaseProcess, ready: Connection) -> bool:
    wait([ready, process.sentinel], timeout=120)
    try:
        return ready.poll() and bool(ready.recv())
    except (EOFError, OSError):
        return False


def _work(plan: ServePlan, listener: socket.socket, ready: Connection) -> None:
    """A worker: opens the catalog for itself and serves on the shared socket until SIGTERM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _log_to_stderr()
    _end_with_parent()
    with data_pool(plan) as pool:
        server = ReadyServer(_app(plan, pool))
        _when_ready(server, pool, lambda: ready.send(True))
        server.run(sockets=[listener])


def _end_with_parent() -> None:
    """A worker whose parent was killed would hold the socket and answer for ever: it stops as on SIGTERM."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def _log_to_stderr() -> None:
    """Write the log to stderr, one JSON object a line. Stdout has only the line with the URL."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    for name in ("headwater.access", "headwater.server"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(logging.INFO)
        logger.propagate = False


__all__ = ["GRACE_SECONDS", "ServePlan", "serve"]
