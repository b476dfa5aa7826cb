"""Counts of what the server did, in Prometheus' text format, and the pages that show the state of the server.

Every worker process keeps its own counts. With several workers each also writes them to a shared folder now
and then, and whichever worker is asked adds up what all of them wrote.
Health, metrics and the OpenAPI document are no part of the catalog. They have one thread of their own, so that they
answer while every thread of the catalog is busy.
"""

from __future__ import annotations

import asyncio
import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
from lance_namespace import LanceNamespace, ListNamespacesRequest
from starlette.types import Receive, Scope, Send

from headwater.errors import ServiceUnavailableError
from headwater.rest.call import KEY
from headwater.rest.reply import Headers, Reply, send_reply

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
CONFLICT = 14
HELP = {
    "headwater_requests_total": "Requests answered, by operation, HTTP status and error code.",
    "headwater_commits_total": "Changes acknowledged, by operation.",
    "headwater_conflicts_total": "Changes refused because another writer was first (code 14), by operation.",
    "headwater_retries_total": "Times the catalog looked again and re-planned after losing a race.",
    "headwater_request_seconds": "Time to answer, by operation.",
}


class Counts(msgspec.Struct):
    """The counts of one process."""

    requests: dict[str, int] = {}
    commits: dict[str, int] = {}
    conflicts: dict[str, int] = {}
    buckets: dict[str, list[int]] = {}
    seconds: dict[str, float] = {}
    retries: int = 0


_counts = msgspec.json.Decoder(Counts)


class Metrics:
    """The counts of this process, and through a shared folder those of its sister workers."""

    def __init__(self, folder: str | None = None) -> None:
        self._requests: Counter[tuple[str, int, int | None]] = Counter()
        self._commits: Counter[str] = Counter()
        self._conflicts: Counter[str] = Counter()
        self._buckets: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = {}
        self._folder = Path(folder) if folder else None

    def count(self, operation: str, changes: bool, status: int, code: int | None, seconds: float) -> None:
        """Count one answered request."""
        self._requests[operation, status, code] += 1
        if changes and code is None and status < 300:
            self._commits[operation] += 1
        elif code == CONFLICT:
            self._conflicts[operation] += 1
        buckets = self._buckets.get(operation)
        if buckets is None:
            buckets = self._buckets.setdefault(operation, [0] * (len(BUCKETS) + 1))
        buckets[bisect_left(BUCKETS, seconds)] += 1
        self._seconds[operation] = self._seconds.get(operation, 0.0) + seconds

    def counts(self, retries: int) -> Counts:
        return Counts(
            requests={
                f"{op}|{status}|{'' if code is None else code}": n for (op, status, code), n in self._requests.items()
            },
            commits=dict(self._commits),
            conflicts=dict(self._conflicts),
            buckets={operation: list(counts) for operation, counts in self._buckets.items()},
            seconds=dict(self._seconds),
            retries=retries,
        )

    def publish(self, retries: int) -> None:
        """Leave this process's counts where its sisters find them."""
        if self._folder is not None:
            path = self._folder / f"{os.getpid()}.json"
            temporary = path.with_suffix(".tmp")
            temporary.write_bytes(msgspec.json.encode(self.counts(retries)))
            temporary.replace(path)

    def text(self, retries: int) -> bytes:
        """Return the sum over all workers, as Prometheus reads it."""
        self.publish(retries)
        snapshots = [self.counts(retries)]
        if self._folder is not None:
            snapshots = [_read(path) for path in sorted(self._folder.glob("*.json"))]
        return render(add(snapshots)).encode()


def _read(path: Path) -> Counts:
    return _counts.decode(path.read_bytes())


def add(snapshots: list[Counts]) -> Counts:
    """The sum of several processes' counts."""
    total = Counts()
    for one in snapshots:
        for name in ("requests", "commits", "conflicts", "seconds"):
            target = getattr(total, name)
            for key, value in getattr(one, name).items():
                target[key] = target.get(key, 0) + value
        for key, counts in one.buckets.items():
            before = total.buckets.get(key, [0] * len(counts))
            total.buckets[key] = [a + b for a, b in zip(before, counts, strict=True)]
        total.retries += one.retries
    return total


def render(total: Counts) -> str:
    lines: list[str] = []
    _head(lines, "headwater_requests_total", "counter")
    for key, value in sorted(total.requests.items()):
        operation, status, code = key.split("|")
        labels = f'operation="{operation}",status="{status}",code="{code}"'
        lines.append(f"headwater_requests_total{{{labels}}} {value}")
    for name in ("commits", "conflicts"):
        _head(lines, f"headwater_{name}_total", "counter")
        for operation, value in sorted(getattr(total, name).items()):
            lines.append(f'headwater_{name}_total{{operation="{operation}"}} {value}')
    _head(lines, "headwater_retries_total", "counter")
    lines.append(f"headwater_retries_total {total.retries}")
    _head(lines, "headwater_request_seconds", "histogram")
    for operation, counts in sorted(total.buckets.items()):
        lines.extend(_histogram(operation, counts, total.seconds.get(operation, 0.0)))
    return "\n".join(lines) + "\n"


def _head(lines: list[str], name: str, kind: str) -> None:
    lines.append(f"# HELP {name} {HELP[name]}")
    lines.append(f"# TYPE {name} {kind}")


def _histogram(operation: str, counts: list[int], seconds: float) -> list[str]:
    name, label = "headwater_request_seconds", f'operation="{operation}"'
    lines, running = [], 0
    for bound, count in zip((*BUCKETS, "+Inf"), counts, strict=True):
        running += count
        lines.append(f'{name}_bucket{{{label},le="{bound}"}} {running}')
    return [*lines, f"{name}_sum{{{label}}} {seconds:.6f}", f"{name}_count{{{label}}} {running}"]


READY_SECONDS = 10.0
_JSON: Headers = ((b"content-type", b"application/json"),)
_PLAIN_TEXT: Headers = ((b"content-type", b"text/plain; version=0.0.4; charset=utf-8"),)


class HealthThread:
    """One thread, and the pages that it answers."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="health")

    async def run(self, function: Callable[..., object], *args: object) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)


class ServedPage:
    """A page whose text a function makes, in the lane."""

    def __init__(self, lane: HealthThread, make: Callable[[], bytes], headers: Headers = _JSON) -> None:
        self._lane = lane
        self._make = make
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply = Reply(200, await self._lane.run(self._make), self._headers)
        await send_reply(scope[KEY], reply, receive, send, self._lane.run)


class MetricsPage(ServedPage):
    """The metrics of a server, in the format of Prometheus."""

    def __init__(self, lane: HealthThread, make: Callable[[], bytes]) -> None:
        super().__init__(lane, make, _PLAIN_TEXT)


async def live(scope: Scope, receive: Receive, send: Send) -> None:
    """The process answers."""
    await send_reply(scope[KEY], Reply(200, b'{"status":"live"}'), receive, send, _nothing)


class Ready:
    """The catalog answers. Those who ask at the same time share one look, so that a crowd costs no more than one."""

    def __init__(self, lane: HealthThread, namespace: LanceNamespace) -> None:
        self._lane = lane
        self._namespace = namespace
        self._look: asyncio.Future[Any] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._look is None or self._look.done():
            self._look = asyncio.ensure_future(self._lane.run(self._ask))
        try:
            async with asyncio.timeout(READY_SECONDS):
                answers = await asyncio.shield(self._look)
        except TimeoutError:
            answers = False
        if not answers:
            raise ServiceUnavailableError("The catalog does not answer now.")
        await send_reply(scope[KEY], Reply(200, b'{"status":"ready"}'), receive, send, _nothing)

    def _ask(self) -> bool:
        try:
            self._namespace.list_namespaces(ListNamespacesRequest(id=[], limit=1))
        except Exception:
            return False
        return True


async def _nothing(*args: object) -> None:
    """These answers do not stream."""
