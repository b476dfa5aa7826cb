"""The REST server beside pylance's `RestAdapter`, in one run: `python -m benchmarks.rest [--quick]`.

Both serve the same V2 root of 1,000 tables, each from a process of its own, to the same client (pylance's
`RestNamespace`), in turns. Writes go to two copies of that root.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance.namespace
import lance_namespace as api
import pyarrow as pa

from benchmarks.measure import Report
from headwater import DirectoryNamespace
from headwater.model import Add, Namespace, Table
from headwater.names import ObjectId

TABLES = 1000
ROWS = 1_000_000
GOALS = {"describe_table": 5.0, "table_exists": 5.0, "create_namespace": 5.0}
"""How many times the peer's rate ours should be."""
V2 = {"manifest_enabled": "true", "dir_listing_enabled": "false"}
ADAPTER = """
import sys, time
from lance.namespace import RestAdapter
properties = {"root": sys.argv[1], "manifest_enabled": "true", "dir_listing_enabled": "false"}
with RestAdapter("dir", properties, port=0) as it:
    print(f"adapter at http://127.0.0.1:{it.port}", flush=True)
    sys.stdin.read()
"""
Call = Callable[[Any, int], object]


@dataclass(frozen=True)
class Server:
    """A server process and where it answers."""

    name: str
    url: str
    pid: int

    def client(self) -> Any:
        return lance.namespace.RestNamespace(uri=self.url)

    def held_mib(self) -> float:
        """The memory that the server and its workers hold; what they share counts once."""
        return sum(map(_proportional_mib, _processes(self.pid)))

    def most_held_mib(self, call: Callable[[], object]) -> float:
        """The most that they held during a call, seen a hundred times a second."""
        done, most = threading.Event(), [self.held_mib()]

        def watch() -> None:
            while not done.wait(0.01):
                most.append(self.held_mib())

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            call()
        finally:
            done.set()
            watcher.join()
        return max(most)


def _processes(pid: int) -> list[int]:
    found = [pid]
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                found += _processes(int(child))
    return found


def _proportional_mib(pid: int) -> float:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    return 0.0


@contextmanager
def started(name: str, command: list[str]) -> Iterator[Server]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    try:
        yield Server(name, line.split()[-1], process.pid)
    finally:
        process.terminate()
        process.wait(30)


def ours(root: Path) -> Any:
    root.mkdir(parents=True, exist_ok=True)  # an empty catalog; one that is not there is not served
    properties = [part for key, value in V2.items() for part in ("--property", f"{key}={value}")]
    command = [sys.executable, "-m", "headwater", "serve", str(root), "--port", "0", "--no-access-log", *properties]
    return started("headwater", command)


def peer(root: Path) -> Any:
    return started("RestAdapter", [sys.executable, "-c", ADAPTER, str(root)])


def rate(server: Server, call: Call, threads: int, seconds: float) -> float:
    """Calls a second that so many client threads get done."""
    clients = [server.client() for _ in range(threads)]
    for number, client in enumerate(clients):
        call(client, number)
    done = [0] * threads
    end = time.perf_counter() + seconds
    counter = itertools.count(threads)

    def run(thread: int) -> None:
        while time.perf_counter() < end:
            call(clients[thread], next(counter))
            done[thread] += 1

    workers = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    began = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(done) / (time.perf_counter() - began)


def rates(
    report: Report, what: str, pair: tuple[Server, Server], call: Call, threads: int, seconds: float, rounds: int
) -> None:
    """Add a row: both servers in turns, the median of the rounds of each, and the ratio with its spread."""
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for side in (0, 1):
            found[side].append(rate(pair[side], call, threads, seconds))
    title = f"{what} over REST, {threads} client thread{'s' if threads > 1 else ''}"
    ratio = report.compared(title, *found, peer="pylance's RestAdapter", unit="/s", goal=GOALS.get(what))
    report.add(what, threads, statistics.median(found[0]), statistics.median(found[1]), ratio)


def describe(client: Any, number: int) -> object:
    return client.describe_table(api.DescribeTableRequest(id=["ns", f"t{number * 7 % TABLES}"]))


def exists(client: Any, number: int) -> object:
    return client.table_exists(api.TableExistsRequest(id=["ns", f"t{number * 7 % TABLES}"]))


def create_namespaces(tag: str) -> Call:
    numbers = itertools.count()

    def create(client: Any, number: int) -> object:
        return client.create_namespace(api.CreateNamespaceRequest(id=["ns", f"{tag}{next(numbers)}"]))

    return create


def fill(root: Path) -> None:
    catalog = DirectoryNamespace(root=str(root), **V2)
    ids = [ObjectId(("ns", f"t{number}")) for number in range(TABLES)]
    catalog.registry.commit([Add(Namespace(ObjectId(("ns",)))), *(Add(Table(id, f"{id.name}.lance")) for id in ids)])
    big = pa.table({"id": pa.array(range(ROWS), pa.int64()), "x": pa.array([0.5] * ROWS), "s": ["some text"] * ROWS})
    lance.write_dataset(big, str(root / "big.lance"))
    catalog.register_table(api.RegisterTableRequest(id=["big"], location="big.lance"))


def reads(report: Report, root: Path, seconds: float, rounds: int) -> None:
    with ours(root) as mine, peer(root) as theirs:
        for name, call in (("describe_table", describe), ("table_exists", exists)):
            for threads in (1, 8):
                rates(report, name, (mine, theirs), call, threads, seconds, rounds)


def writes(report: Report, root: Path, scratch: Path, seconds: float, rounds: int) -> None:
    copies = [scratch / "ours", scratch / "peer"]
    for copy in copies:
        shutil.copytree(root, copy)
    with ours(copies[0]) as mine, peer(copies[1]) as theirs:
        rates(report, "create_namespace", (mine, theirs), create_namespaces("n"), 8, seconds, rounds)


def query(client: Any, number: int) -> object:
    request = api.QueryTableRequest.model_validate({"id": ["big"], "k": 2 * ROWS, "vector": {}})
    return client.query_table(request)


def queries(report: Report, root: Path, rounds: int) -> None:
    with ours(root) as mine, peer(root) as theirs:
        clients = [side.client() for side in (mine, theirs)]
        for client in clients:
            client.count_table_rows(api.CountTableRowsRequest(id=["big"]))
        before = [side.held_mib() for side in (mine, theirs)]
        most = [
            side.most_held_mib(lambda client=client: query(client, 0))
            for side, client in zip((mine, theirs), clients, strict=True)
        ]
        rates(report, "query of 1M rows", (mine, theirs), query, 1, 2.0, rounds)
        grown = [held - start for held, start in zip(most, before, strict=True)]
        report.add("query of 1M rows: memory it took, MiB", 1, grown[0], grown[1], grown[1] / max(grown[0], 1.0))


def parts() -> str:
    """The HTTP parser and event loop that uvicorn finds; the faster ones are optional."""
    return " and ".join(
        fast if importlib.util.find_spec(fast) else plain
        for fast, plain in (("httptools", "h11"), ("uvloop", "asyncio"))
    )


def load() -> str:
    return f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def main() -> None:
    quick = "--quick" in sys.argv
    seconds, rounds = (1.0, 2) if quick else (3.0, 5)
    report = Report("rest", "python -m benchmarks.rest", ("operation", "client threads", "ours /s", "peer /s", "ratio"))
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        root = scratch / "lake"
        root.mkdir()
        fill(root)
        reads(report, root, seconds, rounds)
        writes(report, root, scratch, seconds, rounds)
        queries(report, root, rounds)
    if not quick:
        report.write(
            "Peer: `lance.namespace.RestAdapter` (pylance) over the same V2 root with 1,000 tables; client: pylance's "
            "`RestNamespace` for both. Medians of rounds taken in turns. Memory: how much more a warm server and its "
            f"workers hold during one query; its ratio is peer over ours. Ours ran with {parts()}. "
            f"Load average at the end: {load()}."
        )


if __name__ == "__main__":
    main()
