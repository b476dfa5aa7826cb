"""Table versions beside pylance's, in one run: `python -m benchmarks.versions [--quick] [--operations | --appends]`.

`--appends --new`: to a new table only. Ours: a metastore, a directory that manages versions, and one that does not.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance.namespace import DirectoryNamespace as PylanceNamespace

from benchmarks.measure import Figure, Report, median, spread
from headwater import DirectoryNamespace, MetastoreNamespace
from headwater.tables.layout import manifest_name

SIZES = (10, 5000)
PROCESSES = 8
ROUNDS = 5
OURS = ("metastore", "managed", "not managed")
SIDES = (*OURS, "pylance")
APPENDING = ("metastore", "managed", "pylance")
TIMES, P99_MS = 2.0, 300.0
"""What is asked of appends through a metastore: so many times pylance's, and the longest of a hundred."""


def open_side(side: str, root: Path) -> Any:
    if side == "pylance":
        options: dict[str, Any] = {"table_version_tracking_enabled": "true"}
        return PylanceNamespace(root=str(root), **options)
    if side == "metastore":
        return MetastoreNamespace(root=str(root))
    return DirectoryNamespace(root=str(root))


def fill(side: str, root: Path, versions: int) -> Any:
    """A catalog with one table of so many versions; the manifests are copies of the first."""
    begin(side, root)
    folder = root / "t.lance"
    lance.write_dataset(pa.table({"a": [1, 2, 3]}), str(folder))
    first = folder / "_versions" / manifest_name(1)
    for version in range(2, versions + 1):
        shutil.copyfile(first, folder / "_versions" / manifest_name(version))
    (folder / "_versions" / "latest_version_hint.json").write_text(f'{{"version":{versions}}}')
    return adopt(side, root)


def begin(side: str, root: Path) -> None:
    """A folder with tables and no metastore yet would be taken for a directory catalog."""
    if side == "metastore":
        MetastoreNamespace(root=str(root)).metastore.create()


def adopt(side: str, root: Path) -> Any:
    catalog = open_side(side, root)
    if side == "managed":
        catalog.enable_table_version_management()
    if side == "metastore":
        catalog.register_table({"id": ["t"], "location": "t.lance"})
    return catalog


def staged(root: Path, start: int) -> Iterator[dict[str, Any]]:
    """Requests to create one version after the other; the manifests are staged in blocks, before they are asked for."""
    folder = root / "t.lance" / "_versions"
    body = (folder / manifest_name(1)).read_bytes()
    for block in itertools.count(start, 200):
        paths = [folder / f"{manifest_name(version)}-{uuid.uuid4()}" for version in range(block, block + 200)]
        for path in paths:
            path.write_bytes(body)
        for version, path in enumerate(paths, block):
            yield {"id": ["t"], "version": version, "manifest_path": str(path).lstrip("/"), "manifest_size": len(body)}


def actions(catalog: Any, root: Path, size: int) -> dict[str, Callable[[], object]]:
    requests = staged(root, size + 1)
    middle = {"id": ["t"], "version": size // 2}
    newest = {"id": ["t"], "limit": 1, "descending": True}
    return {
        "create_table_version": lambda: catalog.create_table_version(next(requests)),
        "describe_table_version": lambda: catalog.describe_table_version(dict(middle)),
        "list_table_versions(limit=1)": lambda: _list(catalog, newest),
    }


def _list(catalog: Any, request: dict[str, Any]) -> object:
    return (catalog._inner if hasattr(catalog, "_inner") else catalog).list_table_versions(dict(request))


def timed(action: Callable[[], object], calls: int) -> Figure:
    """Wall: the median call, which another process's slice does not move. CPU: the mean, which hides no rare work."""
    walls, cpu = [], time.process_time()
    for _ in range(calls):
        began = time.perf_counter()
        action()
        walls.append(time.perf_counter() - began)
    return Figure(statistics.median(walls) * 1e6, (time.process_time() - cpu) / calls * 1e6)


def operations(report: Report, scratch: Path) -> None:
    found: dict[tuple[str, str, int], Figure] = {}
    turns: dict[tuple[str, str], list[float]] = {}
    for size in SIZES:
        work = {}
        for side in SIDES:
            root = scratch / f"{side.replace(' ', '-')}-{size}"
            work[side] = actions(fill(side, root, size), root, size)
        for name in work["pylance"]:
            for side in SIDES:
                work[side][name]()
            rounds: dict[str, list[Figure]] = {side: [] for side in SIDES}
            for _ in range(ROUNDS):
                for side in SIDES:
                    calls = (10 if size > 100 else 50) if side == "pylance" else 64
                    rounds[side].append(timed(work[side][name], calls))
            for side in SIDES:
                found[side, name, size] = median(rounds[side])
                turns[side, name] = [each.wall_us for each in rounds[side]]  # of the larger size, which comes last
    for name in ("create_table_version", "describe_table_version", "list_table_versions(limit=1)"):
        for side in OURS:
            small, large = (found[side, name, size] for size in SIZES)
            peer = found["pylance", name, SIZES[1]]
            what = f"{name} at {SIZES[1]:,} versions, {side}"
            report.compared(what, turns[side, name], turns["pylance", name], "pylance")
            times = (small.wall_us, large.wall_us, small.cpu_us, large.cpu_us, peer.wall_us, peer.cpu_us)
            report.add(
                name,
                side,
                *(f"{value / 1000:.3f}" for value in times),
                f"{large.wall_us / small.wall_us:.2f} / {large.cpu_us / small.cpu_us:.2f}",
                f"{peer.wall_us / large.wall_us:,.0f} / {peer.cpu_us / large.cpu_us:,.0f}",
            )


def appending(side: str, root: str, count: int, start: Any, done: Any) -> None:
    catalog = open_side(side, Path(root))
    lance.dataset(namespace_client=catalog, table_id=["t"])
    start.wait()
    began, times, errors = time.time(), [], 0
    for _ in range(count):
        at = time.perf_counter()
        try:
            lance.write_dataset(pa.table({"a": [1]}), namespace_client=catalog, table_id=["t"], mode="append")
            times.append(time.perf_counter() - at)
        except OSError:
            errors += 1
    done.put((began, time.time(), times, errors))


def appends(side: str, root: Path, history: int, count: int) -> tuple[float, float, float, int]:
    """Appends per second of all processes, the median and the 99th percentile in ms, and how many gave up."""
    begin(side, root)
    dataset = lance.write_dataset(pa.table({"a": [1, 2, 3]}), str(root / "t.lance"))
    for number in range(1, history):
        dataset.update_metadata({"round": str(number)})
    catalog = adopt(side, root)
    context = multiprocessing.get_context("spawn")
    start, done = context.Barrier(PROCESSES), context.Queue()
    workers = [context.Process(target=appending, args=(side, str(root), count, start, done)) for _ in range(PROCESSES)]
    for worker in workers:
        worker.start()
    results = [done.get(timeout=600) for _ in workers]
    for worker in workers:
        worker.join()
    times = sorted(value for result in results for value in result[2])
    wall = max(result[1] for result in results) - min(result[0] for result in results)
    rows = lance.dataset(namespace_client=catalog, table_id=["t"]).count_rows()
    assert rows == 3 + len(times), f"{side}: {len(times)} appends were acknowledged and {rows - 3} are there"
    errors = sum(result[3] for result in results)
    return len(times) / wall, times[len(times) // 2] * 1000, times[int(len(times) * 0.99)] * 1000, errors


def concurrent(report: Report, scratch: Path, histories: tuple[int, ...], count: int) -> None:
    """The sides take turns, and the median run of each counts."""
    for history in histories:
        rounds = range(ROUNDS)
        runs: dict[str, list[tuple[float, float, float, int]]] = {side: [] for side in APPENDING}
        for number in rounds:
            for side in APPENDING:
                runs[side].append(appends(side, scratch / f"append-{side}-{history}-{number}", history, count))
        median_run = {side: sorted(found)[len(found) // 2] for side, found in runs.items()}
        peer = median_run["pylance"]
        for side in ("metastore", "managed"):
            ours = median_run[side]
            what = f"{PROCESSES} processes append, {history:,} versions before, {side}"
            mine, theirs = ([run[0] for run in runs[one]] for one in (side, "pylance"))
            report.compared(what, mine, theirs, "pylance", "/s", TIMES if side == "metastore" else None)
            holds = "yes" if ours[0] >= TIMES * peer[0] and ours[2] < P99_MS else "**no**"
            report.add(history, side, *ours, *peer, ours[0] / peer[0], holds if side == "metastore" else "")


def main() -> None:
    quick = "--quick" in sys.argv
    os.environ.setdefault("RUST_LOG", "error")
    scratch = Path(tempfile.mkdtemp(prefix="headwater-bench-"))
    spread(str(scratch))
    try:
        if "--appends" not in sys.argv:
            run_operations(scratch)
        if "--operations" not in sys.argv:
            histories = (1,) if "--new" in sys.argv else (1, 1000) if quick else (1, 2000, 5000)
            run_appends(scratch, histories, 5 if quick else 40)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def run_operations(scratch: Path) -> None:
    report = Report(
        "versions",
        "python -m benchmarks.versions --operations",
        (
            *("operation", "ours", "ms at 10", "ms at 5,000", "CPU ms at 10", "CPU ms at 5,000"),
            *("pylance ms at 5,000", "pylance CPU ms", "growth, wall / CPU", "pylance / ours, wall / CPU"),
        ),
    )
    operations(report, scratch)
    report.write(
        "Wall is the median call, CPU the mean over all calls. Manifests are staged before the clock starts. "
        "`metastore` and `managed` (a directory): the catalog keeps the versions."
    )


def run_appends(scratch: Path, histories: tuple[int, ...], count: int) -> None:
    report = Report(
        "versions-appends",
        "python -m benchmarks.versions --appends",
        (
            *("versions before", "ours", "ours /s", "p50 ms", "p99 ms", "gave up"),
            *("pylance /s", "p50 ms", "p99 ms", "gave up", "ours / pylance", "2x, p99 < 300 ms"),
        ),
    )
    concurrent(report, scratch, histories, count)
    report.write(
        f"{PROCESSES} processes append one row at a time to one table with `lance.write_dataset`; ours fsync every "
        f"commit, pylance none. Load average at the end {os.getloadavg()[1]:.1f}."
    )


if __name__ == "__main__":
    main()
