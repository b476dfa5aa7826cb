"""What operations cost in storage requests and bytes, and how that grows: `python -m benchmarks.scale [part ...]`.

Parts: requests (counted on a bucket), commits (writers on a far store), names (10^3 to 10^5 tables; `names-million` for
10^6), publish (into growing tables, on a far bucket). Requests wait as long
as S3 takes to answer.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from benchmarks.far import S3, FarBucket, FarStore, Throttle
from benchmarks.measure import Report
from benchmarks.metastore import build
from headwater.catalog import Catalog
from headwater.metastore import Metastore
from headwater.store import memory_store

COMMAND = "python -m benchmarks.scale"
SECONDS = 4.0
FIELDS: list[pa.Field[Any]] = [pa.field("id", pa.int64()), pa.field("at", pa.int64()), pa.field("v", pa.float64())]
SHAPE = pa.schema(FIELDS)


def rows(first: int, count: int, at: int) -> pa.Table:
    ids = range(first, first + count)
    return pa.table({"id": list(ids), "at": [at] * count, "v": [float(n) for n in ids]}, schema=SHAPE)


# Requests, counted


def counted(bucket: FarBucket) -> dict[str, tuple[dict[str, int], int, int]]:
    """Each operation of a catalog that is open and warm: requests by verb, bytes sent, bytes received."""
    found: dict[str, tuple[dict[str, int], int, int]] = {}

    def count(name: str, action: Callable[[], Any]) -> Any:
        bucket.reset()
        answer = action()
        found[name] = dict(bucket.counts), bucket.sent, bucket.received
        return answer

    catalog = Catalog(bucket.root, **bucket.properties)
    for name in ("warm", "other"):
        catalog.create_table(f"prod.{name}", rows(0, 3, 1)).append(rows(3, 3, 1))
    stream = catalog.create_stream_table("prod.events", SHAPE, keys="id", sequence="at")
    for at in (1, 2):
        stream.upsert(rows(0, 10, at))
        stream.publish()
    before = catalog.slot
    count("open a catalog and list a namespace", lambda: Catalog(bucket.root, **bucket.properties).tables("prod"))
    count("look up or list names", lambda: catalog.tables("prod"))
    count("create a table of 3 rows", lambda: catalog.create_table("prod.made", rows(0, 3, 1)))
    count("append 3 rows", lambda: catalog["prod.warm"].append(rows(6, 3, 1)))
    count("read a small table", lambda: catalog["prod.warm"].to_arrow())

    def both() -> None:
        with catalog.transaction("both") as tx:
            tx["prod.warm"].append(rows(9, 3, 1))
            tx["prod.other"].append(rows(9, 3, 1))

    count("append to two tables in one transaction", both)
    count("land 10 rows in a stream table", lambda: stream.upsert(rows(0, 10, 3)))
    count("read the stream table fresh", lambda: stream.to_arrow())
    count("publish them", lambda: stream.publish())
    count("read a table at an old moment", lambda: catalog.at(before)["prod.warm"].to_arrow())
    count("rename a table", lambda: catalog.rename_table("prod.made", "prod.named"))
    count("drop a table", lambda: catalog.drop_table("prod.named"))
    catalog.close()
    return found


def requests() -> None:
    report = Report(
        "scale-requests",
        f"{COMMAND} requests",
        ("operation", "GET", "HEAD", "PUT", "LIST", "DELETE", "kB sent", "kB received"),
    )
    with FarBucket() as bucket:
        for name, (counts, sent, received) in counted(bucket).items():
            cells = [counts.get(verb, 0) for verb in ("GET", "HEAD", "PUT", "LIST", "DELETE")]
            report.add(name, *cells, sent / 1000, received / 1000)
    report.write(
        "A metastore catalog on a bucket (moto), open and warm: all HTTP requests, those of Lance too, one at a time."
    )


# Commits


def commits() -> None:
    report = Report(
        "scale-commits", f"{COMMAND} commits", ("writers", "commits/s", "p50 ms", "p99 ms", "requests a commit")
    )
    for label, handles, threads, limit in (
        ("1 writer", 1, 1, None),
        ("8 threads of one server", 1, 8, None),
        ("64 threads of one server", 1, 64, None),
        ("2 servers with 4 writers each", 2, 4, None),
        ("8 processes' worth of writers, each on its own", 8, 1, None),
        ("8 threads of one server, at most 20 requests/s", 1, 8, 20.0),
    ):
        inner = memory_store()
        Metastore(inner).run(lambda tx: (tx.create_namespace(["a"]), tx.create_table(["a", "t"])))
        throttle = Throttle(limit) if limit else None
        stores = [FarStore(inner, S3, throttle) for _ in range(handles)]
        servers = [Metastore(store) for store in stores]
        before = sum(sum(store.counts.values()) for store in stores)
        times = _race([server for server in servers for _ in range(threads)])
        used = sum(sum(store.counts.values()) for store in stores) - before
        cuts = statistics.quantiles(times, n=100)
        report.add(label, len(times) / SECONDS, cuts[49] * 1000, cuts[98] * 1000, used / len(times))
    report.write(
        f"Appends of a delta to one table, {SECONDS:g} s each; every request waits as S3's do: {S3}. "
        "Threads of a server share slots."
    )


def _race(servers: list[Metastore]) -> list[float]:
    times: list[float] = []
    end = time.monotonic() + SECONDS

    def write(server: Metastore) -> None:
        while (began := time.monotonic()) < end:
            server.run(lambda tx: tx.append_delta(["a", "t"], ["f"]))
            times.append(time.monotonic() - began)

    threads = [threading.Thread(target=write, args=(server,)) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times


# Names


def names(sizes: tuple[int, ...] = (1_000, 10_000, 100_000), name: str = "scale-names") -> None:
    report = Report(
        name,
        f"{COMMAND} {name.removeprefix('scale-')}",
        (
            *("tables", "open: requests", "open: s", "open: MB", "first look-up, ms", "look up, ms"),
            *("first list of all names: s", "MB", "list again, ms", "commit, ms"),
        ),
    )
    for size in sizes:
        report.add(f"{size:,}", *_named(size))
    report.write(
        "A far store, each request as slow as S3's. Medians of 5 look-ups of different tables, lists and commits. "
        "Opening reads a checkpoint and its small layers."
    )


def _named(size: int) -> list[float | int]:
    inner = memory_store()
    build(inner, size)
    far = FarStore(inner)
    began = time.monotonic()
    opened = Metastore(far)
    opened.exists(["big"])
    seconds, requests, read = time.monotonic() - began, sum(far.counts.values()), far.received
    numbers = iter(range(0, size, size // 20))
    first = _ms(lambda: opened.get(["big", f"table_{next(numbers):07d}"]), 1)
    found = _ms(lambda: opened.get(["big", f"table_{next(numbers):07d}"]))
    before = far.received
    listing = _ms(lambda: opened.now().names(["big"], "table"), 1)
    return [
        *(requests, seconds, read / 1e6, first, found, listing / 1000, (far.received - before) / 1e6),
        _ms(lambda: opened.now().names(["big"], "table")),
        _ms(lambda: opened.run(lambda tx: tx.append_delta(["big", f"table_{next(numbers):07d}"], ["f"]))),
    ]


def _ms(action: Callable[[], Any], rounds: int = 5) -> float:
    times = []
    for _ in range(rounds):
        began = time.monotonic()
        action()
        times.append((time.monotonic() - began) * 1000)
    return statistics.median(times)


# Publish


def publish(sizes: tuple[int, ...] = (10_000, 100_000, 1_000_000)) -> None:
    report = Report(
        "scale-publish",
        f"{COMMAND} publish",
        ("rows there", "land 1,000 rows: s", "requests", "publish: s", "requests", "MB sent", "MB received"),
    )
    for size in sizes:
        with FarBucket(S3) as bucket:
            catalog = Catalog(bucket.root, **bucket.properties)
            stream = catalog.create_stream_table("events", SHAPE, keys="id", sequence="at")
            stream.upsert(rows(0, size, 1))
            stream.publish()
            for at in (2, 3):
                bucket.reset()
                began = time.monotonic()
                stream.upsert(rows(size // 2, 1_000, at))
                landed, land_requests = time.monotonic() - began, sum(bucket.counts.values())
                bucket.reset()
                began = time.monotonic()
                stream.publish()
                published = time.monotonic() - began
            report.add(
                f"{size:,}",
                landed,
                land_requests,
                published,
                sum(bucket.counts.values()),
                bucket.sent / 1e6,
                bucket.received / 1e6,
            )
            catalog.close()
    report.write(
        "1,000 rows with neighbouring keys into a published stream table, the second time, "
        f"on a bucket (moto) that waits: {S3}."
    )


PARTS: dict[str, Callable[[], None]] = {
    "requests": requests,
    "commits": commits,
    "names": names,
    "names-million": lambda: names((1_000_000,), "scale-names-million"),
    "publish": publish,
}


def main() -> None:
    for part in sys.argv[1:] or ("requests", "commits", "names", "publish"):
        PARTS[part]()


if __name__ == "__main__":
    main()
