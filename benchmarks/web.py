"""The page with 30 tables and with 100,000, and the API with it and without: `python -m benchmarks.web [requests]`.

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
from datetime import UTC, datetime

import pyarrow as pa

from benchmarks.measure import Report
from headwater.catalog import Catalog
from headwater.namespace.metastore import MetastoreNamespace
from headwater.pipeline.run_records import SCHEMA

COMMAND = "python -m benchmarks.web"
SIZES = (30, 100_000)
AT_ONCE = 10_000
"""Tables that one transaction makes."""
PAGES = {
    "catalog": "/",
    "namespace": "/n/big",
    "the same, filtered": "/n/big?filter=0099",
    "changes": "/log",
    "snapshots": "/snapshots",
    "deleted": "/deleted",
    "table": "/t/prod/users",
    "its versions": "/t/prod/users?view=versions",
    "its rows": "/t/prod/users?view=rows",
    "its rows near a vector": "/t/prod/users?view=rows&near=1%2C+2&by=place",
    "two versions compared": "/t/prod/users?view=compare",
    "its indices": "/t/prod/users?view=indices",
    "its files": "/t/prod/users?view=files",
    "its history": "/t/prod/users?view=history",
    "stream table": "/t/raw/orders",
    "its streams": "/t/raw/orders?view=streams",
    "its quarantine": "/t/raw/orders?view=quarantine",
    "its lineage": "/t/raw/orders?view=lineage",
    "lineage of a column": "/t/sums/day_3?view=lineage&column=total",
    "lineage of the catalog": "/lineage",
    "runs": "/runs",
    "SQL, empty": "/sql",
    "SQL, joined and drawn": "/sql?sql=SELECT+nickname%2C+sum%28total%29+AS+s+FROM+prod.users+u+JOIN+sums.day_3+d"
    "+ON+u.id+%3D+d.id+GROUP+BY+1",
    "SQL, planned": "/sql?sql=SELECT+count%28*%29+FROM+prod.users&show=plan",
    "access": "/access",
    "server": "/server",
    "search": "/search?q=table_0042",
    "search of a column": "/search?q=nickname",
}


def fill(root: str, tables: int) -> None:
    """Make a catalog with many tables, one with versions and vectors, a pipeline's tables, rejected rows and runs."""
    namespace = MetastoreNamespace(root=root)
    for first in range(0, tables, AT_ONCE):
        with namespace.metastore.transaction("many") as tx:
            if not first:
                tx.create_namespace(("big",))
            for number in range(first, min(tables, first + AT_ONCE)):
                tx.create_table(("big", f"table_{number:05d}"))
    catalog = Catalog(namespace)
    users = catalog.create_table("prod.users", users_of(0, 1000))
    for n in range(10):
        users.append(users_of(1000 + n, 1))
    orders = catalog.create_stream_table("raw.orders", {"id": "int64", "total": "int64"}, keys="id")
    orders.ingest([{"id": n, "total": n} for n in range(2000)] + [{"id": None, "total": 1}] * 50, source="shop")
    orders.publish()
    for n in range(50):
        day = catalog.create_stream_table(f"sums.day_{n}", {"id": "int64", "total": "int64"}, keys="id")
        day.upsert([{"id": n, "total": n} for n in range(100)])
        day.publish(lineage={"inputs": {"raw.orders": {"version": 2}}, "sql": "SELECT id, total FROM raw.orders"})
    began = datetime(2026, 1, 1, tzinfo=UTC)
    runs = catalog.create_stream_table("system.runs", SCHEMA, keys="run")
    state = {
        "pipeline": "shop",
        "state": "done",
        "began": began,
        "seconds": 1.5,
        "rows": 2000,
        "quarantined": 0,
        "late": 0,
    }
    runs.upsert([{"run": f"{n:032x}", "steps": "[]", **state} for n in range(500)])
    runs.publish()
    catalog.close()


def users_of(first: int, count: int) -> pa.Table:
    """Rows with a name and a vector of two numbers."""
    ids = list(range(first, first + count))
    places = pa.array([[float(n % 7), float(n % 11)] for n in ids], pa.list_(pa.float32(), 2))
    return pa.table({"id": ids, "nickname": [f"user {n}" for n in ids], "place": places})


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


def look_up_cpu(connection: http.client.HTTPConnection, pid: int, requests: int, tables: int) -> float:
    """CPU ms of a look-up."""
    before = cpu_ms(pid)
    for number in range(requests):
        ask(connection, "POST", f"/v1/table/big$table_{number % tables:05d}/exists", "{}")
    return (cpu_ms(pid) - before) / requests


def measured(report: Report, tables: int, requests: int) -> tuple[float, float]:
    """Measure every page of a catalog, and return the CPU ms of a look-up with the page and without."""
    with tempfile.TemporaryDirectory() as folder:
        root = os.path.join(folder, "lake")
        fill(root, tables)
        with served(root) as (with_page, pid), served(root, "--no-page") as (without, other):
            for path in PAGES.values():
                ask(with_page, "GET", path)
            while any(b"still being" in ask(with_page, "GET", path) for path in ("/", "/lineage", PAGES["search"])):
                time.sleep(0.2)
            for name, path in PAGES.items():
                size = len(ask(with_page, "GET", path)) / 1000
                before = cpu_ms(pid)
                cuts = statistics.quantiles(timed(with_page, path, requests), n=100)
                cpu = (cpu_ms(pid) - before) / requests
                met = "met" if cuts[94] < 100 and size < 300 else "missed"
                report.add(f"{tables:,} tables: {name}", cuts[49], cuts[94], cpu, size, f"100 ms, 300 kB: {met}")
            calls = requests * 5
            both = [
                (look_up_cpu(c, p, calls, tables) for c, p in ((with_page, pid), (without, other))) for _ in range(3)
            ]
            mine, bare = (statistics.median(side) for side in zip(*both, strict=True))
            return mine, bare


def main() -> None:
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    report = Report("web", f"{COMMAND} {requests}", ("what", "p50 ms", "p95 ms", "CPU ms", "kB of HTML", "target"))
    for tables in SIZES:
        mine, bare = measured(report, tables, requests)
    report.write(
        f"One worker, {requests} warm requests each on one connection. The API beside it, with {SIZES[-1]:,} tables: "
        f"TableExists takes {mine:.2f} ms of CPU with the page and {bare:.2f} ms without (medians of 3 rounds)."
    )
    print(f"API: {mine:.2f} ms of CPU with the page, {bare:.2f} ms without")


if __name__ == "__main__":
    main()
