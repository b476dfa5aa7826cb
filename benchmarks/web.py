"""The page with 10,000 tables, and the API with the page and without: `python -m benchmarks.web [requests]`.

One worker on loopback. Pages: time to the last byte of warm requests, and how large they are. The API: CPU of look-ups
of two servers of one root, in turns.
"""

from __future__ import annotations

import http.client
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.measure import Report
from headwater.catalog import Catalog
from headwater.namespace.metastore import MetastoreNamespace

COMMAND = "python -m benchmarks.web"
TABLES = 10_000
PAGES = {
    "catalog": "/",
    "namespace of 10,000 tables": "/n/big",
    "the same, filtered": "/n/big?filter=0099",
    "table": "/t/prod/users",
    "its versions": "/t/prod/users?view=versions",
    "its rows": "/t/prod/users?view=rows",
    "search": "/search?q=table_0042",
    "search of a column": "/search?q=nickname",
}


def fill(root: str) -> None:
    namespace = MetastoreNamespace(root=root)
    with namespace.metastore.transaction("many") as tx:
        tx.create_namespace(("big",))
        for number in range(TABLES):
            tx.create_table(("big", f"table_{number:05d}"))
    catalog = Catalog(namespace)
    users = catalog.create_table("prod.users", [{"id": n, "nickname": f"user {n}"} for n in range(1000)])
    for n in range(10):
        users.append([{"id": 1000 + n, "nickname": "late"}])
    catalog.close()


@contextmanager
def served(root: str, *options: str) -> Iterator[tuple[http.client.HTTPConnection, int]]:
    command = [sys.executable, "-m", "headwater", "serve", root, "--port", "0", "--no-access-log", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        host = process.stdout.readline().rsplit("http://", 1)[1].strip()
        yield http.client.HTTPConnection(host), process.pid
    finally:
        process.terminate()
        process.wait(30)


def cpu_ms(pid: int) -> float:
    """What a server has used so far, on Linux: figures that other work on the machine does not blur."""
    with open(f"/proc/{pid}/stat") as told:
        used = told.read().rpartition(")")[2].split()
    return (int(used[11]) + int(used[12])) * 1000 / os.sysconf("SC_CLK_TCK")


def ask(connection: http.client.HTTPConnection, method: str, path: str, body: str | None = None) -> bytes:
    headers = {"accept": "text/html" if body is None else "application/json"}
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    data = answer.read()
    assert answer.status == 200, (path, answer.status)
    return data


def timed(connection: http.client.HTTPConnection, path: str, requests: int) -> list[float]:
    times = []
    for _ in range(requests):
        began = time.perf_counter()
        ask(connection, "GET", path)
        times.append((time.perf_counter() - began) * 1000)
    return times


def look_up_cpu(connection: http.client.HTTPConnection, pid: int, requests: int) -> float:
    """CPU ms of a look-up."""
    before = cpu_ms(pid)
    for number in range(requests):
        ask(connection, "POST", f"/v1/table/big$table_{number % TABLES:05d}/exists", "{}")
    return (cpu_ms(pid) - before) / requests


def main() -> None:
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    report = Report("web", f"{COMMAND} {requests}", ("what", "p50 ms", "p95 ms", "CPU ms", "kB of HTML", "target"))
    with tempfile.TemporaryDirectory() as folder:
        root = os.path.join(folder, "lake")
        fill(root)
        with served(root) as (with_page, pid), served(root, "--no-page") as (without, other):
            for path in PAGES.values():
                ask(with_page, "GET", path)
            while b"still being read" in ask(with_page, "GET", PAGES["search"]):
                pass
            for name, path in PAGES.items():
                size = len(ask(with_page, "GET", path)) / 1000
                before = cpu_ms(pid)
                cuts = statistics.quantiles(timed(with_page, path, requests), n=100)
                cpu = (cpu_ms(pid) - before) / requests
                met = "met" if cuts[94] < 100 and size < 300 else "missed"
                report.add(name, cuts[49], cuts[94], cpu, size, f"100 ms, 300 kB: {met}")
            calls = requests * 5
            both = [(look_up_cpu(with_page, pid, calls), look_up_cpu(without, other, calls)) for _ in range(3)]
    mine, bare = (statistics.median(side) for side in zip(*both, strict=True))
    report.write(
        f"{TABLES:,} tables, one worker, {requests} warm requests each on one connection. The API beside it: "
        f"TableExists takes {mine:.2f} ms of CPU with the page and {bare:.2f} ms without (medians of 3 rounds)."
    )
    print(f"API: {mine:.2f} ms of CPU with the page, {bare:.2f} ms without")


if __name__ == "__main__":
    main()
