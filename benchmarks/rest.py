"""The REST server beside pylance's `RestAdapter`, in one run: `python -m benchmarks.rest [--quick]`.

Each serves 1,000 tables of the same names from a process of its own, to the same client (pylance's `RestNamespace`), in
turns: ours a root of the default kind, a metastore, the adapter a V2 root. Writes go to copies of these. `fixed answer`
is a server that parses HTTP and sends one answer always: nobody answers this client faster.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance.namespace
import lance_namespace as api
import pyarrow as pa

from benchmarks.measure import Report, spread
from headwater import DirectoryNamespace, MetastoreNamespace
from headwater.model import Add, Namespace, Table
from headwater.names import ObjectId

TABLES = 1000
ROWS = 1_000_000
GOALS = {"describe_table": 5.0, "table_exists": 5.0, "create_namespace": 5.0}
"""The goal of our rate as a multiple of the peer's."""
MOST_HELD_MIB = 64.0
SIDES = ("ours", "peer")
V2 = {"manifest_enabled": "true", "dir_listing_enabled": "false"}
ADAPTER = """
import sys, time
from lance.namespace import RestAdapter
properties = {"root": sys.argv[1], "manifest_enabled": "true", "dir_listing_enabled": "false"}
with RestAdapter("dir", properties, port=0) as it:
    print(f"adapter at http://127.0.0.1:{it.port}", flush=True)
    sys.stdin.read()
"""
FIXED = """
import asyncio, json, httptools, uvloop
BODY = json.dumps({"location": "x" * 64, "properties": {}}).encode()
ANSWER = b"HTTP/1.1 200 OK\\r\\ncontent-type: application/json\\r\\ncontent-length: %d\\r\\n\\r\\n" % len(BODY) + BODY
class Fixed(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.parser = transport, httptools.HttpRequestParser(self)
    def data_received(self, data):
        self.parser.feed_data(data)
    def on_message_complete(self):
        self.transport.write(ANSWER)
async def main():
    server = await asyncio.get_running_loop().create_server(Fixed, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()
uvloop.run(main())
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
    command = [sys.executable, "-m", "headwater", "serve", str(root), "--port", "0", "--no-access-log"]
    return started("headwater", command)


def peer(root: Path) -> Any:
    return started("RestAdapter", [sys.executable, "-c", ADAPTER, str(root)])


def fixed() -> Any:
    return started("fixed answer", [sys.executable, "-c", FIXED])


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
    report: Report, what: str, servers: Sequence[Server], call: Call, threads: int, seconds: float, rounds: int
) -> None:
    """Add a row: the servers in turns, the median of the rounds of each, and the ratio with its spread."""
    found: list[list[float]] = [[] for _ in servers]
    for _ in range(rounds):
        for side, server in zip(found, servers, strict=True):
            side.append(rate(server, call, threads, seconds))
    title = f"{what} over REST, {threads} client thread{'s' if threads > 1 else ''}"
    ratio = report.compared(title, found[0], found[1], peer="pylance's RestAdapter", unit="/s", goal=GOALS.get(what))
    floor = f"{statistics.median(found[2]):,.1f}" if len(found) > 2 else ""
    report.add(what, threads, statistics.median(found[0]), statistics.median(found[1]), floor, ratio)


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
    """Make both roots, with the same tables in them."""
    big = pa.table({"id": pa.array(range(ROWS), pa.int64()), "x": pa.array([0.5] * ROWS), "s": ["some text"] * ROWS})
    mine = MetastoreNamespace(root=str(root / "ours"))
    mine.metastore.create()
    for catalog in (mine, DirectoryNamespace(root=str(root / "peer"), **V2)):
        fill_one(catalog, big)
    mine.metastore.close()


def fill_one(catalog: Any, big: pa.Table) -> None:
    ids = [ObjectId(("ns", f"t{number}")) for number in range(TABLES)]
    catalog.registry.commit([Add(Namespace(ObjectId(("ns",)))), *(Add(Table(id, f"{id.name}.lance")) for id in ids)])
    lance.write_dataset(big, str(Path(catalog.properties.root) / "big.lance"))
    catalog.register_table(api.RegisterTableRequest(id=["big"], location="big.lance"))


def reads(report: Report, root: Path, seconds: float, rounds: int) -> None:
    with ours(root / "ours") as mine, peer(root / "peer") as theirs, fixed() as floor:
        for name, call in (("describe_table", describe), ("table_exists", exists)):
            for threads in (1, 8):
                rates(report, name, (mine, theirs, floor), call, threads, seconds, rounds)


def writes(report: Report, root: Path, scratch: Path, seconds: float, rounds: int) -> None:
    copies = [scratch / "copy" / side for side in SIDES]
    for side, copy in zip(SIDES, copies, strict=True):
        shutil.copytree(root / side, copy)
    with ours(copies[0]) as mine, peer(copies[1]) as theirs:
        for threads in (1, 8):
            create = create_namespaces(f"n{threads}x")
            rates(report, "create_namespace", (mine, theirs), create, threads, seconds, rounds)


def query(client: Any, number: int) -> object:
    request = api.QueryTableRequest.model_validate({"id": ["big"], "k": 2 * ROWS, "vector": {}})
    return client.query_table(request)


def queries(report: Report, root: Path, rounds: int) -> None:
    with ours(root / "ours") as mine, peer(root / "peer") as theirs:
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
        report.measured("memory that a query of 1M rows takes in the server", grown[:1], "MiB", MOST_HELD_MIB)
        report.add("query of 1M rows: memory it took, MiB", 1, *grown, "", f"{grown[1] / max(grown[0], 1.0):.2f}")


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
    columns = ("operation", "client threads", "ours /s", "peer /s", "fixed answer /s", "ratio")
    report = Report("rest", "python -m benchmarks.rest", columns)
    with tempfile.TemporaryDirectory() as folder:
        spread(folder)
        scratch = Path(folder)
        root = scratch / "lake"
        root.mkdir()
        fill(root)
        reads(report, root, seconds, rounds)
        writes(report, root, scratch, seconds, rounds)
        queries(report, root, rounds)
    if not quick:
        report.write(
            "Peer: `lance.namespace.RestAdapter` (pylance) over a V2 root with the tables that our metastore has. "
            "Client: pylance's `RestNamespace`. Medians of rounds taken in turns. Memory: how much more a warm server "
            f"and its workers hold during one query; its ratio is peer over ours. Ours ran with {parts()}. "
            f"Load average at the end: {load()}."
        )


if __name__ == "__main__":
    main()
