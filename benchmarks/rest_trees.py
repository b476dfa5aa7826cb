"""Two checkouts of Headwater as servers: the same requests in turns, CPU time of each server with its workers.

    git worktree add ../before COMMIT
    python -m benchmarks.rest_trees ../before [rounds] [request ...]

Each tree serves a metastore catalog of its own to one client. A round is a number of one request; the CPU time of all
processes of the server is read before and after it. A ratio above 1 says that this tree is slower. A run of all
requests writes `results/rest-trees.md`.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

from benchmarks.measure import Report

HERE = Path(__file__).parents[1]
CALLS = {
    "describe table": 200,
    "table exists": 200,
    "list tables": 200,
    "describe stream table": 100,
    "count": 25,
    "count at a past": 25,
    "query": 25,
    "append": 15,
    "upsert": 15,
    "transaction": 5,
    "stream count": 15,
    "stream query": 15,
    "stream query, 200k rows": 1,
}
"""Requests of one round."""
COLUMNS = ("request", "before, us of CPU", "now, us of CPU", "ratio of bests", "median of turns")
NOTE = (
    "A metastore catalog on local disk, one client, one connection. CPU time of the server and its workers for each "
    "request, the best of all rounds in turns, the ratio of the bests, and the median of the ratios of neighbours. "
    "`append` and `upsert` send 20 rows to a stream table, `stream query` reads 1,000 rows that were published and 5 "
    "upserts after them, `transaction` begins, upserts, reads what it wrote and commits."
)
Send = Callable[[str, str, Any], bytes]


class Served:
    """The server of one tree, over a root of its own, and a connection to it."""

    def __init__(self, tree: Path, root: str) -> None:
        command = [sys.executable, "-m", "headwater", "serve", root, "--port", "0", "--no-access-log"]
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        Path(root).mkdir()
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=tree)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().split()[-1]
        host, _, port = self.url.removeprefix("http://").partition(":")
        self._connection = socket.create_connection((host, int(port)), timeout=120)
        self._bodies = itertools.cycle([rows(start, 20) for start in range(1000, 3000, 20)])
        self.calls = self._prepare()

    def send(self, path: str, body: Any = None, **headers: str) -> bytes:
        data = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        kind = "application/vnd.apache.arrow.stream" if isinstance(body, bytes) else "application/json"
        sent = {"content-type": kind, "content-length": str(len(data)), "host": "127.0.0.1"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        head = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
        self._connection.sendall(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + data)
        return self._answer(path)

    def _answer(self, path: str) -> bytes:
        """Read one answer, with as little work of the client as there can be: it shares the machine's caches."""
        read = b""
        while (end := read.find(b"\r\n\r\n")) < 0:
            read += self._receive(path)
        head, parts, size = read[:end].lower(), [read[end + 4 :]], len(read) - end - 4
        length = head.partition(b"content-length:")[2].split(b"\r")[0]
        while size < int(length) if length else b"".join(parts[-2:])[-5:] != b"0\r\n\r\n":
            parts.append(self._receive(path))
            size += len(parts[-1])
        if not head.startswith(b"http/1.1 2"):
            raise RuntimeError(f"{path}: {head!r} {parts[0][:300]!r}")
        return b"".join(parts)

    def _receive(self, path: str) -> bytes:
        data = self._connection.recv(1 << 20)
        if not data:
            raise RuntimeError(f"{path}: the server ended the connection in the middle of its answer")
        return data

    def _prepare(self) -> dict[str, Callable[[], object]]:
        """Make the tables, and return the requests by name."""
        send, mine = self.send, "/headwater/v1"
        for number in range(20):
            send(f"/v1/table/t{number}/create", rows(0, 100))
        past = json.loads(send(f"{mine}/log"))["slot"]
        send("/v1/table/t3/insert", rows(0, 100))
        for name in ("changes", "read", "within"):
            send(f"{mine}/table/{name}/stream/create?keys=id", rows(0, 1))
        send(f"{mine}/table/log/stream/create", rows(0, 1))
        send(f"{mine}/table/big/stream/create?keys=id", rows(0, 1))
        send(f"{mine}/table/read/stream/upsert", rows(0, 1000))
        send(f"{mine}/table/read/stream/publish")
        for number in range(5):
            send(f"{mine}/table/read/stream/upsert", rows(number * 20, 20))
        send(f"{mine}/table/big/stream/upsert", rows(0, 200_000))
        send(f"{mine}/table/big/stream/publish")
        send(f"{mine}/table/big/stream/upsert", rows(0, 2000))

        def upsert(name: str, **headers: str) -> None:
            send(f"{mine}/table/{name}/stream/upsert", next(self._bodies), **headers)

        def transaction() -> None:
            within = {"x_headwater_transaction": json.loads(send(f"{mine}/transaction/begin"))["transaction"]}
            upsert("within", **within)
            send(f"{mine}/table/within/stream/count", **within)
            send(f"{mine}/transaction/commit", {"transaction": within["x_headwater_transaction"]})

        return {
            "describe table": lambda: send("/v1/table/t3/describe"),
            "table exists": lambda: send("/v1/table/t3/exists"),
            "list tables": self._list,
            "describe stream table": lambda: send(f"{mine}/table/read/stream/describe"),
            "count": lambda: send("/v1/table/t3/count_rows"),
            "count at a past": lambda: send("/v1/table/t3/count_rows", x_headwater_at=str(past)),
            "query": lambda: send("/v1/table/t3/query", {"k": 10, "vector": {}}),
            "append": lambda: send(f"{mine}/table/log/stream/append", next(self._bodies)),
            "upsert": lambda: upsert("changes"),
            "transaction": transaction,
            "stream count": lambda: send(f"{mine}/table/read/stream/count"),
            "stream query": lambda: send(f"{mine}/table/read/stream/query"),
            "stream query, 200k rows": lambda: send(f"{mine}/table/big/stream/query"),
        }

    def _list(self) -> None:
        self._connection.sendall(b"GET /v1/namespace/$/table/list HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        self._answer("list")

    def round(self, name: str) -> float:
        """Microseconds of CPU of one request of a round."""
        call, before = self.calls[name], self._cpu()
        for _ in range(CALLS[name]):
            call()
        after = self._cpu()
        return sum(after[pid] - before.get(pid, 0.0) for pid in after) / CALLS[name] * 1e6

    def _cpu(self) -> dict[int, float]:
        """CPU seconds of the server and of each worker, by the clock that Linux keeps of every process."""
        workers: list[int] = []
        for task in Path(f"/proc/{self._process.pid}/task").iterdir():
            with suppress(FileNotFoundError):  # a thread that ended meanwhile
                workers += map(int, (task / "children").read_text().split())
        return {pid: time.clock_gettime((~pid << 3) | 2) for pid in (self._process.pid, *workers)}

    def settle(self) -> None:
        """Wait until the server rests: a worker that is being started would count."""
        used = -1.0
        while (now := sum(self._cpu().values())) - used > 0.05:
            used = now
            time.sleep(1)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)


def rows(start: int, count: int) -> bytes:
    """An Arrow stream of rows with consecutive keys."""
    ids = range(start, start + count)
    table = pa.table({"id": ids, "text": [f"the text of row {number}" for number in ids]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def main() -> None:
    before, rounds = Path(sys.argv[1]).resolve(), int((sys.argv[2:] or ["20"])[0])
    names = sys.argv[3:] or list(CALLS)
    with tempfile.TemporaryDirectory() as folder:
        served = [Served(tree, f"{folder}/{number}") for number, tree in enumerate((before, HERE))]
        try:
            for each in served:
                each.settle()
            report = Report("rest-trees", f"python -m benchmarks.rest_trees BEFORE {rounds}", COLUMNS)
            for name in names:
                turns = [[each.round(name) for each in served] for _ in range(rounds + 1)][1:]
                then, now = (min(turn[side] for turn in turns) for side in (0, 1))
                ratios = [turn[1] / turn[0] for turn in turns]
                report.add(name, then, now, f"{now / then:.2f}", f"{median(ratios):.2f}")
        finally:
            for each in served:
                each.close()
    if not sys.argv[3:]:
        report.write(NOTE)


if __name__ == "__main__":
    main()
