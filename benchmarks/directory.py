"""The directory catalog beside pylance's, in one run: `python -m benchmarks.directory [--quick] [--cold]`.

`--cold` measures the listings on a cold cache alone, beside what the kernel and the disk take for one look into each
folder (`cold_floor.c`), and writes `results/directory-cold.md`.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import lance
import lance_namespace as api
import pyarrow as pa
from lance.namespace import DirectoryNamespace as PylanceNamespace

from benchmarks.figures import TURNS
from benchmarks.measure import Figure, Report, Sides, compare
from headwater import DirectoryNamespace
from headwater.model import Add, Namespace, Table
from headwater.names import ObjectId

MODES: dict[str, dict[str, str]] = {
    "V1": {"manifest_enabled": "false"},
    "V2": {"dir_listing_enabled": "false"},
    "compat": {},
}
COLUMNS = ("operation", "mode", "objects", "ours µs", "ours CPU µs", "pylance µs", "pylance CPU µs", "ratio")
COLD_NOTE = (
    "Each round in a new process whose disk cache was emptied just before, in turns; medians. The row in C looks one "
    "name up in each folder and does nothing else: a listing that honours the marker of a deregistered table takes no "
    "less. Where that row is below 10x, no listing can be 10x of pylance's; CPU time says how much of it the kernel is"
    ". Tried in C as well, on ext4: in the order of the inodes (no difference: their tables are read ahead anyway), "
    "64 threads (no difference), reading the folder instead of looking a name up (1.3 times as long). What is left is "
    "one read of 4 kB from the disk for each folder: where only the folder's inode is asked for, all take a third."
)
counter = itertools.count()
DROP_CACHES = "/proc/sys/vm/drop_caches"
COLD_LISTING = f"""
import importlib, sys
from pathlib import Path
from benchmarks.measure import measure
import lance_namespace as api
module, root, size = sys.argv[1:]
namespace = importlib.import_module(module).DirectoryNamespace(root=root, manifest_enabled="false")
Path({DROP_CACHES!r}).write_text("3")
found = []
figure = measure(lambda: found.append(namespace.list_tables(api.ListTablesRequest(id=[]))), 1)
assert len(found[0].tables) == int(size)
print(figure.wall_us, figure.cpu_us)
"""


def fill(root: Path, mode: str, tables: int) -> None:
    """A catalog of so many tables: one is real, the others are copies of its folder."""
    model = root / "t0.lance"
    lance.write_dataset(pa.table({"a": [1, 2, 3]}), str(model))
    for number in range(1, tables):
        shutil.copytree(model, root / f"t{number}.lance")
    if mode != "V1":
        registry = DirectoryNamespace(root=str(root), **MODES[mode]).registry
        ids = [ObjectId((f"t{number}",)) for number in range(tables)]
        registry.commit([Add(Table(id, f"{id.name}.lance")) for id in ids])


def reads(report: Report, scratch: Path, sizes: tuple[int, ...]) -> None:
    for size in sizes:
        for mode, properties in MODES.items():
            root = scratch / f"read-{mode}-{size}"
            root.mkdir()
            fill(root, mode, size)
            ours, peer = (
                DirectoryNamespace(root=str(root), **properties),
                PylanceNamespace(root=str(root), **properties),
            )
            wanted = [f"t{size // 2}"]
            describe, exists = api.DescribeTableRequest(id=wanted), api.TableExistsRequest(id=wanted)
            every, page = api.ListTablesRequest(id=[]), api.ListTablesRequest(id=[], limit=100)
            pairs: list[tuple[str, str, Any, int, int]] = [
                ("describe_table", "describe_table", describe, 2000, 100),
                ("table_exists", "table_exists", exists, 2000, 100),
                ("list_tables", "list_tables", every, 5, 2),
                ("list_tables, page of 100", "list_tables", page, 5, 2),
            ]
            for name, operation, asked, my_calls, their_calls in pairs:
                mine, theirs = partial(getattr(ours, operation), asked), partial(getattr(peer, operation), asked)
                line(report, name, mode, size, mine, theirs, my_calls, their_calls)
            shutil.rmtree(root)


def cold(report: Report, scratch: Path, sizes: tuple[int, ...], rounds: int = TURNS) -> None:
    """The first listing of a process whose disk cache was emptied just before. Only root may empty it."""
    if not os.access(DROP_CACHES, os.W_OK):
        print("list_tables on a cold cache: not measured, only root may empty the cache")
        return
    for size in sizes:
        root = scratch / f"cold-{size}"
        root.mkdir()
        fill(root, "V1", size)
        os.sync()
        floor = str(scratch / "floor")
        subprocess.run(
            ["cc", "-O2", "-pthread", "-o", floor, str(Path(__file__).with_name("cold_floor.c"))], check=True
        )
        commands = {
            module: [sys.executable, "-c", COLD_LISTING, module, str(root), str(size)]
            for module in ("headwater", "lance.namespace")
        } | {"floor": [floor, str(root), "32"]}
        sides: dict[str, list[Figure]] = {side: [] for side in commands}
        for _ in range(rounds):
            for side, command in commands.items():
                answer = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
                sides[side].append(Figure(*map(float, answer.split())))
        mine, theirs, least = sides.values()
        add(report, "list_tables, cold cache, new process", "V1", size, Sides(mine, theirs))
        add(report, "one look into each folder in C, 32 threads, cold cache", "V1", size, Sides(least, theirs))
        shutil.rmtree(root)


def writes(report: Report, scratch: Path, sizes: tuple[int, ...]) -> None:
    for size in sizes:
        for mode in ("V2", "compat"):
            roots = [scratch / f"write-{side}-{mode}-{size}" for side in ("ours", "peer")]
            for root in roots:
                root.mkdir()
                registry = DirectoryNamespace(root=str(root), **MODES[mode]).registry
                registry.commit([Add(Namespace(ObjectId((f"n{number}",)))) for number in range(size)])
            ours = DirectoryNamespace(root=str(roots[0]), **MODES[mode])
            peer = PylanceNamespace(root=str(roots[1]), **MODES[mode])
            line(report, "create_namespace", mode, size, creator(ours), creator(peer), 60, 20)
            line(report, "declare_table", mode, size, declarer(ours), declarer(peer), 60, 20)


def creator(namespace: Any) -> Callable[[], object]:
    return lambda: namespace.create_namespace(api.CreateNamespaceRequest(id=[f"new{next(counter)}"]))


def declarer(namespace: Any) -> Callable[[], object]:
    return lambda: namespace.declare_table(api.DeclareTableRequest(id=["n0", f"t{next(counter)}"]))


def line(
    report: Report, name: str, mode: str, size: int, ours: Any, peer: Any, our_calls: int, peer_calls: int
) -> None:
    add(report, name, mode, size, compare(ours, peer, our_calls, peer_calls))


def add(report: Report, name: str, mode: str, size: int, sides: Sides) -> None:
    mine, theirs = sides
    what = f"{name}, {mode}, {size:,} objects"
    ratio = report.compared(what, *sides.walls, "pylance")
    report.add(name, mode, size, mine.wall_us, mine.cpu_us, theirs.wall_us, theirs.cpu_us, ratio)


def threads(report: Report, scratch: Path, size: int) -> None:
    """8 threads of one process creating namespaces."""
    rates = []
    for side, kind in (("ours", DirectoryNamespace), ("peer", PylanceNamespace)):
        namespace = kind(root=str(_prepared(scratch / f"threads-{side}", size)), **MODES["V2"])
        count = 400 if side == "ours" else 80
        create = creator(namespace)
        started = time.perf_counter()
        with ThreadPoolExecutor(8) as pool:
            for future in [pool.submit(create) for _ in range(count)]:
                future.result()
        rates.append(count / (time.perf_counter() - started))
    report.add(
        "create_namespace, 8 threads (per s)", "V2", size, rates[0], "", rates[1], "", f"{rates[0] / rates[1]:.1f}x"
    )


def processes(report: Report, scratch: Path, size: int) -> None:
    """8 processes creating namespaces in one catalog; no error may surface."""
    rates = []
    for side in ("ours", "peer"):
        root = _prepared(scratch / f"processes-{side}", size)
        count = 60 if side == "ours" else 15
        context = multiprocessing.get_context("spawn")
        barrier, answers = context.Barrier(9), context.Queue()
        workers = [
            context.Process(target=_create_many, args=(side, str(root), number, count, barrier, answers))
            for number in range(8)
        ]
        for worker in workers:
            worker.start()
        barrier.wait()
        started = time.perf_counter()
        outcomes = [answers.get() for _ in workers]
        rates.append(8 * count / (time.perf_counter() - started))
        for worker in workers:
            worker.join()
        errors = [outcome for outcome in outcomes if outcome]
        if errors:
            print(f"  {side}: {errors[0]}")
        found = DirectoryNamespace(root=str(root), **MODES["V2"]).list_namespaces(api.ListNamespacesRequest(id=[]))
        assert side == "peer" or len(found.namespaces) == size + 8 * count
    report.add(
        "create_namespace, 8 processes (per s)", "V2", size, rates[0], "", rates[1], "", f"{rates[0] / rates[1]:.1f}x"
    )


def _create_many(side: str, root: str, worker: int, count: int, barrier: Any, answers: Any) -> None:
    kind: Any = DirectoryNamespace if side == "ours" else PylanceNamespace
    namespace = kind(root=root, **MODES["V2"])
    namespace.list_namespaces(api.ListNamespacesRequest(id=[]))
    barrier.wait()
    error = ""
    for number in range(count):
        try:
            namespace.create_namespace(api.CreateNamespaceRequest(id=[f"w{worker}-{number}"]))
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"[:200]
    answers.put(error)


def _prepared(root: Path, size: int) -> Path:
    root.mkdir()
    registry = DirectoryNamespace(root=str(root), **MODES["V2"]).registry
    registry.commit([Add(Namespace(ObjectId((f"n{number}",)))) for number in range(size)])
    return root


def footprint(report: Report, scratch: Path) -> None:
    """What 1,000 creates leave of `__manifest` on disk."""
    root = scratch / "footprint"
    root.mkdir()
    namespace = DirectoryNamespace(root=str(root), **MODES["V2"])
    for number in range(1000):
        namespace.create_namespace(api.CreateNamespaceRequest(id=[f"n{number}"]))
    files = [path for path in (root / "__manifest").rglob("*") if path.is_file()]
    megabytes = sum(path.stat().st_blocks * 512 for path in files) / 1e6
    report.add(
        "__manifest after 1,000 creates: MB, files", "V2", 1000, megabytes, len(files), "22.7 (facts.md)", "", ""
    )


def main() -> None:
    quick = "--quick" in sys.argv
    if "--cold" in sys.argv:
        report = Report("directory-cold", "python -m benchmarks.directory --cold", COLUMNS)
        with tempfile.TemporaryDirectory() as folder:
            cold(report, Path(folder), (1_000,) if quick else (1_000, 10_000), rounds=5)
        report.write(COLD_NOTE)
        return
    report = Report("directory", "python -m benchmarks.directory", COLUMNS)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        for size in (1_000,) if quick else (1_000, 10_000):
            folder_of_size = scratch / f"shared-{size}"
            folder_of_size.mkdir()
            threads(report, folder_of_size, size)
            processes(report, folder_of_size, size)
        writes(report, scratch, (10, 1_000 if quick else 10_000))
        footprint(report, scratch)
        reads(report, scratch, (1_000,) if quick else (1_000, 10_000))
    report.write("Rows with `per s` give operations per second instead of microseconds.")


if __name__ == "__main__":
    main()
