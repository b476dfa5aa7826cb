"""The page with 10,000 tables, and the API with the page and without: `python -m benchmarks.web [requests]`.

One worker on loopback. Pages: time to the last byte of warm requests, and how large they are. The API: look-ups per
second of two servers of one root, in turns.
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
def served(root: str, *options: str) -> Iterator[http.client.HTTPConnection]:
    command = [sys.executable, "-m", "headwater", "serve", root, "--port", "0", "--no-access-log", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        host = process.stdout.readline().rsplit("http://", 1)[1].strip()
        yield http.client.HTTPConnection(host)
    finally:
        process.terminate()
        process.wait(30)


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


def look_ups(connection: http.client.HTTPConnection, requests: int) -> float:
    began = time.perf_counter()
    for number in range(requests):
        ask(connection, "POST", f"/v1/table/big$table_{number % TABLES:05d}/exists", "{}")
    return requests / (time.perf_counter() - began)


def main() -> None:
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    report = Report("web", f"{COMMAND} {requests}", ("what", "p50 ms", "p95 ms", "kB of HTML", "target"))
    with tempfile.TemporaryDirectory() as folder:
        root = os.path.join(folder, "lake")
        fill(root)
        with served(root) as with_page, served(root, "--no-page") as without:
            for path in PAGES.values():
                ask(with_page, "GET", path)
            while b"still being read" in ask(with_page, "GET", PAGES["search"]):
                pass
            for name, path in PAGES.items():
                size = len(ask(with_page, "GET", path)) / 1000
                cuts = statistics.quantiles(timed(with_page, path, requests), n=100)
                met = "met" if cuts[94] < 100 and size < 300 else "missed"
                report.add(name, cuts[49], cuts[94], size, f"100 ms, 300 kB: {met}")
            both = [(look_ups(with_page, requests * 2), look_ups(without, requests * 2)) for _ in range(5)]
    mine, bare = (statistics.median(side) for side in zip(*both, strict=True))
    report.write(
        f"{TABLES:,} tables, one worker, {requests} warm requests each on one connection. The API beside it: "
        f"TableExists {mine:,.0f}/s with the page and {bare:,.0f}/s without (medians of 5 rounds in turns)."
    )
    print(f"API: {mine:.0f}/s with the page, {bare:.0f}/s without")


if __name__ == "__main__":
    main()
