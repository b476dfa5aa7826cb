"""The metastore catalog beside our V2 directory catalog and pylance's: `python -m benchmarks.catalog [--quick]`.

Reads: ours on a metastore against ours on a directory (V2), warm, and cold (a new object and its first answer). Writes:
against pylance's V2, at 10 tables and at 10,000. Then what only a metastore does.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import lance_namespace as api
import pyarrow as pa
from lance.namespace import DirectoryNamespace as PylanceNamespace

from benchmarks.directory import MODES, creator, declarer
from benchmarks.measure import Figure, Report, Sides, compare, median
from headwater import DirectoryNamespace, MetastoreNamespace
from headwater.catalog import Catalog
from headwater.model import Add, Namespace, Table
from headwater.names import ObjectId

COLUMNS = ("what", "tables", "metastore µs", "CPU µs", "peer µs", "CPU µs", "ratio", "target", "holds")
READ, WRITE = 1.3, 10.0
SMALL = 10
OWN = "our V2 directory"


def open_metastore(root: Path) -> MetastoreNamespace:
    return MetastoreNamespace(root=str(root))


def open_directory(root: Path) -> DirectoryNamespace:
    return DirectoryNamespace(root=str(root), **MODES["V2"])


def fill(namespace: Any, tables: int) -> None:
    """So many tables in `big`, all of one dataset, and a hundred namespaces beside it."""
    namespace.registry.commit([Add(Namespace(ObjectId((name,)))) for name in ("big", "n0")])
    namespace.registry.commit([Add(Namespace(ObjectId((f"other{number}",)))) for number in range(100)])
    ids = [ObjectId(("big", f"t{number}")) for number in range(tables)]
    for first in range(0, tables, 1000):
        namespace.registry.commit([Add(Table(id, "t.lance")) for id in ids[first : first + 1000]])


def made(scratch: Path, kind: str, tables: int) -> Path:
    root = scratch / f"{kind}-{tables}"
    if kind == "metastore":
        open_metastore(root).metastore.create()
    lance.write_dataset(pa.table({"a": [1, 2, 3]}), str(root / "t.lance"))
    namespace = open_metastore(root) if kind == "metastore" else open_directory(root)
    fill(namespace, tables)
    if isinstance(namespace, MetastoreNamespace):
        namespace.metastore.close()
    return root


def questions(tables: int) -> dict[str, Callable[[Any], object]]:
    middle = ["big", f"t{tables // 2}"]
    return {
        "describe_table": lambda n: n.describe_table(api.DescribeTableRequest(id=middle)),
        "table_exists": lambda n: n.table_exists(api.TableExistsRequest(id=middle)),
        "namespace_exists": lambda n: n.namespace_exists(api.NamespaceExistsRequest(id=["big"])),
        "describe_namespace": lambda n: n.describe_namespace(api.DescribeNamespaceRequest(id=["big"])),
        "list_tables, page of 100": lambda n: n.list_tables(api.ListTablesRequest(id=["big"], limit=100)),
        "list_tables": lambda n: n.list_tables(api.ListTablesRequest(id=["big"])),
        "list_namespaces": lambda n: n.list_namespaces(api.ListNamespacesRequest(id=[])),
    }


def line(report: Report, what: str, tables: int, sides: Sides, target: float | None, peer: str) -> None:
    """Add a row. A target below 2 is the most that ours may cost of the peer; one above it, how many times faster."""
    mine, theirs = sides
    reading = target == READ
    ratio = mine.wall_us / theirs.wall_us if reading else theirs.wall_us / mine.wall_us
    shown, verdict = "", ""
    if target is not None:
        shown = f"<= {target}x the peer's" if reading else f">= {target:.0f}x the peer"
        verdict = "yes" if (ratio <= target if reading else ratio >= target) else "**no**"
    goal = 1 / target if reading and target else target
    report.compared(f"{what}, {tables:,} tables", *sides.walls, peer, goal=goal)
    cells = (mine.wall_us, mine.cpu_us, theirs.wall_us, theirs.cpu_us, f"{ratio:.2f}x", shown, verdict)
    report.add(what, tables, *cells)


def reads(report: Report, roots: dict[str, Path], tables: int) -> None:
    mine, peer = open_metastore(roots["metastore"]), open_directory(roots["directory"])
    for what, ask in questions(tables).items():
        ask(mine), ask(peer)
        calls = 20 if what in ("list_tables",) else 1000
        figures = compare(lambda ask=ask: ask(mine), lambda ask=ask: ask(peer), calls, calls, rounds=5)  # type: ignore[misc]
        line(report, f"{what}, warm", tables, figures, READ, OWN)
    for what, ask in questions(tables).items():
        figures = compare(
            lambda ask=ask: ask(open_metastore(roots["metastore"])),  # type: ignore[misc]
            lambda ask=ask: ask(open_directory(roots["directory"])),  # type: ignore[misc]
            3,
            3,
            rounds=5,
        )
        line(report, f"{what}, cold", tables, figures, READ, OWN)


def writes(report: Report, roots: dict[str, Path], tables: int) -> dict[str, float]:
    options: dict[str, Any] = MODES["V2"]
    mine, peer = open_metastore(roots["metastore"]), PylanceNamespace(root=str(roots["directory"]), **options)
    spent = {}
    for what, action in (("create_namespace", creator), ("declare_table", declarer)):
        ours, theirs = action(mine), action(peer)
        ours(), theirs()
        figures = compare(ours, theirs, 100, 10)
        spent[what] = median(figures.mine).cpu_us
        line(report, what, tables, figures, WRITE if tables > SMALL else None, "pylance")
    mine.metastore.close()
    return spent


def seconds(report: Report, what: str, tables: int, action: Callable[[], object], target: float | None) -> None:
    begin, cpu = time.perf_counter(), time.process_time()
    action()
    wall, cpu = time.perf_counter() - begin, time.process_time() - cpu
    shown = "" if target is None else f"< {target:g} s"
    verdict = "" if target is None else "yes" if wall < target else "**no**"
    report.add(what, tables, wall * 1e6, cpu * 1e6, "", "", "", shown, verdict)


def own(report: Report, root: Path, tables: int) -> None:
    """What a directory catalog does not have."""
    catalog = Catalog(str(root))
    now = open_metastore(root)
    boundary = now.metastore.boundary
    far = boundary + 2 + tables // 1000  # the last one of `fill`
    then = now.at(far)
    for what in ("describe_table", "list_tables, page of 100"):
        ask = questions(tables)[what]
        ask(now), ask(then)
        sides = compare(lambda ask=ask: ask(then), lambda ask=ask: ask(now), 500, 500)  # type: ignore[misc]
        line(report, f"{what}, at slot {far} of {now.metastore.slot}; peer: now", tables, sides, READ, "now")
    opened = median([timed_at(now, far, questions(tables)["describe_table"]) for _ in range(5)])
    report.add("describe_table, with catalog.at", tables, opened.wall_us, opened.cpu_us, "", "", "", "", "")
    seconds(report, "rename a namespace with all tables", tables, lambda: catalog.rename_namespace("big", "large"), 2)
    seconds(report, "rename it back", tables, lambda: catalog.rename_namespace("large", "big"), 2)
    seconds(report, "snapshot", tables, lambda: catalog.snapshot("all"), None)
    seconds(report, "collect, a dry run", tables, lambda: catalog.collect(keep=timedelta(0), dry_run=True), None)
    seconds(report, "collect", tables, lambda: catalog.collect(keep=timedelta(0)), None)
    catalog.close()


def timed_at(now: MetastoreNamespace, slot: int, ask: Callable[[Any], object]) -> Figure:
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(100):
        ask(now.at(slot))
    return Figure((time.perf_counter() - wall) * 1e4, (time.process_time() - cpu) * 1e4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="1,000 tables instead of 10,000")
    parser.add_argument("--root", help="where the catalogs are made; those that are there from another run are used")
    options = parser.parse_args()
    tables = 1_000 if options.quick else 10_000
    scratch = Path(options.root or tempfile.mkdtemp(prefix="headwater-bench-"))
    report = Report("catalog", "python -m benchmarks.catalog", COLUMNS)
    try:
        roots = {}
        for size in (SMALL, tables):
            for kind in ("metastore", "directory"):
                folder = scratch / f"{kind}-{size}"
                roots[kind, size] = folder if folder.exists() else made(scratch, kind, size)
        large = {kind: roots[kind, tables] for kind in ("metastore", "directory")}
        reads(report, large, tables)
        spent = [
            writes(report, {kind: roots[kind, size] for kind in ("metastore", "directory")}, size)
            for size in (SMALL, tables)
        ]
        for what, few in spent[0].items():
            grown = spent[1][what] / few
            verdict = "yes" if grown <= 1.5 else "**no**"
            report.add(
                f"{what}: CPU at {tables} / at {SMALL}", tables, "", "", "", "", f"{grown:.2f}x", "flat", verdict
            )
        own(report, large["metastore"], tables)
    finally:
        if options.root is None:
            shutil.rmtree(scratch, ignore_errors=True)
    load = f"load average at the end {os.getloadavg()[1]:.1f}"
    note = (
        "Reads: the peer is our own V2 directory catalog, warm (open, asked before) and cold (opened for this one "
        "question). create_namespace and declare_table: the peer is pylance's V2 directory catalog, which does not "
        f"fsync. Local disk, {load}."
    )
    report.write(note)


if __name__ == "__main__":
    main()
