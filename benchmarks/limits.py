"""The default catalog beside its limits, in one run: `python -m benchmarks.limits [part ...] [--root FOLDER]`.

Each line has ours, the peer or the floor, and the ratio. Parts: lookups (peer: our V2 directory), commits (floor: the
time of one durable file on the same disk), bucket (round trips of a store that counts), growth (the same work on a
small and on a large catalog), big (peer: pylance, in a namespace of 10,000 tables), versions (peer: the bytes and files
that there are). Give a folder that nothing was deleted in lately: creating a file costs more where that was.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import lance_namespace as api
import pyarrow as pa
from lance.namespace import DirectoryNamespace as PylanceNamespace

from benchmarks.directory import MODES, creator, declarer
from benchmarks.far import FarStore
from benchmarks.measure import Figure, Report, median
from headwater import Catalog, DirectoryNamespace, MetastoreNamespace
from headwater.metastore import Metastore
from headwater.model import Add, Namespace, Table
from headwater.names import ObjectId
from headwater.store import LocalStore, PutMode, open_store

COLUMNS = ("what", "ours", "beside", "", "ratio", "goal", "holds")
ROW = pa.table({"id": [1], "text": ["a"]})
ROUNDS = 7
Call = Callable[[], object]
numbers = itertools.count()


class Lines:
    """The lines of a report. A ratio is ours by the other, in costs, unless `rates` compares calls a second."""

    def __init__(self, report: Report) -> None:
        self.report = report

    def at_most(self, what: str, ours: float, other: float, beside: str, most: float, unit: str = "us") -> None:
        self._add(what, f"{ours:,.2f} {unit}", f"{other:,.2f} {unit}", beside, ours / other, f"<= {most}", most)

    def at_least(self, what: str, ours: float, other: float, beside: str, least: float) -> None:
        ratio = ours / other
        self.report.add(
            what, f"{ours:,.1f}", f"{other:,.1f}", beside, f"{ratio:.2f}", f">= {least}", _verdict(ratio >= least)
        )

    def _add(self, what: str, ours: str, other: str, beside: str, ratio: float, goal: str, most: float) -> None:
        self.report.add(what, ours, other, beside, f"{ratio:.2f}", goal, _verdict(ratio <= most))


def _verdict(holds: bool) -> str:
    return "yes" if holds else "**no**"


def in_turns(sides: Iterable[Call], calls: int, rounds: int = ROUNDS) -> list[Figure]:
    """The median of the rounds of each side, in turns."""
    every = list(sides)
    found: list[list[Figure]] = [[] for _ in every]
    for _ in range(rounds):
        for at, side in enumerate(every):
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(calls):
                side()
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            found[at].append(Figure(wall / calls * 1e6, cpu / calls * 1e6))
    return [median(side) for side in found]


def metastore(root: Path) -> MetastoreNamespace:
    return MetastoreNamespace(root=str(root))


def directory(root: Path) -> DirectoryNamespace:
    return DirectoryNamespace(root=str(root), **MODES["V2"])


def fill(namespace: Any, tables: int) -> None:
    namespace.registry.commit([Add(Namespace(ObjectId(("big",))))])
    for first in range(0, tables, 1000):
        ids = [ObjectId(("big", f"t{number}")) for number in range(first, min(first + 1000, tables))]
        namespace.registry.commit([Add(Table(id, f"{id.name}.lance")) for id in ids])


def lookups(lines: Lines, root: Path, tables: int = 1000) -> None:
    """Look-ups beside our V2 directory: warm, after a commit of somebody else, and the first of each table."""
    mine, peer = metastore(root / "m"), directory(root / "d")
    mine.metastore.create()
    for namespace in (mine, peer):
        fill(namespace, tables)
    asked = api.DescribeTableRequest(id=["big", "t5"])
    questions: dict[str, tuple[Callable[[Any], object], int]] = {
        "describe_table": (lambda n: n.describe_table(asked), 1000),
        "table_exists": (lambda n: n.table_exists(api.TableExistsRequest(id=["big", "t5"])), 1000),
        "namespace_exists": (lambda n: n.namespace_exists(api.NamespaceExistsRequest(id=["big"])), 1000),
        "list_tables, page of 100": (lambda n: n.list_tables(api.ListTablesRequest(id=["big"], limit=100)), 500),
        "list_tables, 1,000": (lambda n: n.list_tables(api.ListTablesRequest(id=["big"])), 100),
        "list_namespaces": (lambda n: n.list_namespaces(api.ListNamespacesRequest(id=[])), 1000),
    }
    for what, (ask, calls) in questions.items():
        figures = in_turns([lambda ask=ask: ask(mine), lambda ask=ask: ask(peer)], calls)  # type: ignore[misc]
        lines.at_most(f"{what}, warm, CPU", figures[0].cpu_us, figures[1].cpu_us, "V2", 1.3)
    every = [api.DescribeTableRequest(id=["big", f"t{number}"]) for number in range(tables)]
    spent = [after_commit(namespace, every) for namespace in (mine, peer)]
    lines.at_most("describe_table of each after a commit, CPU", spent[0], spent[1], "V2", 1.3)
    first, opened = zip(*(firsts(opener, every) for opener in (_opener(mine), _opener(peer))), strict=True)
    lines.at_most("describe_table of each, the first time, CPU", first[0], first[1], "V2, which read all before", 1.3)
    lines.at_most("the same with what opening reads, CPU", opened[0], opened[1], "V2", 1.3)


def _opener(namespace: Any) -> Callable[[], Any]:
    if isinstance(namespace, MetastoreNamespace):
        return lambda: MetastoreNamespace(root=namespace.properties.root)
    return lambda: directory(Path(namespace.properties.root))


def cpu_us(work: Call, by: int) -> float:
    begun = time.process_time()
    work()
    return (time.process_time() - begun) / by * 1e6


def after_commit(namespace: Any, every: list[Any]) -> float:
    spent = []
    for _ in range(ROUNDS):
        namespace.create_namespace(api.CreateNamespaceRequest(id=[f"other{next(numbers)}"]))
        namespace.namespace_exists(api.NamespaceExistsRequest(id=["big"]))
        spent.append(cpu_us(lambda: [None for asked in every if not namespace.describe_table(asked)], len(every)))
    return statistics.median(spent)


def firsts(opener: Callable[[], Any], every: list[Any]) -> tuple[float, float]:
    first, whole = [], []
    for _ in range(ROUNDS):
        begun = time.process_time()
        namespace = opener()
        namespace.namespace_exists(api.NamespaceExistsRequest(id=["big"]))
        opened = (time.process_time() - begun) / len(every) * 1e6
        first.append(cpu_us(lambda n=namespace: [None for asked in every if not n.describe_table(asked)], len(every)))  # type: ignore[misc]
        whole.append(opened + first[-1])
    return statistics.median(first), statistics.median(whole)


def commits(lines: Lines, root: Path) -> None:
    """Commits in units: the time of one durable file of a slot's size on this disk, measured in turns."""
    catalog, other = Catalog(str(root / "c")), LocalStore(root / "unit")
    catalog.create_namespace("ns")
    stream = catalog.create_stream_table("ns.log", schema={"id": "int64", "text": "string"}, keys=["id"])

    def unit() -> None:
        other.put(f"slots/{next(numbers)}", b"x" * 800, PutMode.CREATE)

    works: dict[str, tuple[Call, float]] = {
        "create_namespace": (lambda: catalog.create_namespace(f"n{next(numbers)}"), 2),
        "one row landed in a stream table": (lambda: stream.upsert(ROW), 4),
        "create_table with one row": (lambda: catalog.create_table(f"ns.t{next(numbers)}", ROW), 8),
    }
    for what, (work, most) in works.items():
        ours, floor = in_turns([work, unit], 40)
        lines.at_most(what, ours.wall_us / 1000, floor.wall_us / 1000, "one durable file", most, "ms")
        lines.at_most(f"{what}, its CPU", ours.cpu_us / 1000, floor.cpu_us / 1000, "one durable file", most, "ms")
    one = statistics.median(in_threads(works["create_namespace"][0], 1, 200) for _ in range(5))
    eight = statistics.median(in_threads(works["create_namespace"][0], 8, 800) for _ in range(5))
    lines.at_least("create_namespace by 8 threads, a second", eight, one, "one thread", 4)


def in_threads(work: Call, threads: int, calls: int) -> float:
    """Calls a second of so many threads together."""

    def some() -> None:
        for _ in range(calls // threads):
            work()

    workers = [threading.Thread(target=some) for _ in range(threads)]
    begun = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return calls / (time.perf_counter() - begun)


def bucket(lines: Lines, root: Path) -> None:
    """Round trips of commits on an object store: a round of keys side by side counts as one."""
    store = FarStore(open_store("memory://limits", {}), delay={})
    opened = Metastore(store)
    opened.run(lambda tx: (tx.create_namespace(["ns"]), tx.create_table(["ns", "t"])))
    works: dict[str, Call] = {
        "create_namespace": lambda: opened.run(lambda tx: tx.create_namespace([f"n{next(numbers)}"])),
        "append of a delta": lambda: opened.run(lambda tx: tx.append_delta(["ns", "t"], ["file"])),
    }
    for what, work in works.items():
        store.counts.clear()
        for _ in range(20):
            work()
        trips = store.counts.total() / 20
        lines.at_most(f"{what} on a bucket", trips, 2, "slot and layout", 1, "round trips")


def growth(lines: Lines, root: Path) -> None:
    """Declaring a name inside a transaction, in a namespace of 20 and of 2,000 tables."""
    spent = []
    for tables in (20, 2000):
        catalog = Catalog(str(root / f"g{tables}"))
        with catalog.transaction("fill") as tx:
            tx.create_namespace("big")
            for number in range(tables):
                tx.namespace.declare_table(api.DeclareTableRequest(id=["big", f"t{number}"]))
        found = []
        for _ in range(5):
            with catalog.transaction("one more") as tx:
                asked = api.DeclareTableRequest(id=["big", f"more{next(numbers)}"])
                found.append(cpu_us(lambda tx=tx, asked=asked: tx.namespace.declare_table(asked), 1))  # type: ignore[misc]
        spent.append(statistics.median(found) / 1000)
    lines.at_most("declare in a transaction, 2,000 tables, CPU", spent[1], spent[0], "20 tables", 2, "ms")


def big(lines: Lines, root: Path, tables: int = 10_000) -> None:
    """A namespace of 10,000 tables: rename, list, create_namespace and declare_table beside pylance."""
    mine = metastore(root / "m")
    mine.metastore.create()
    theirs = directory(root / "d")
    for namespace in (mine, theirs):
        fill(namespace, tables)
    mine.metastore.close()
    names = itertools.cycle([("big", "other"), ("other", "big")])
    moved = []
    for _ in range(4):
        old, new = next(names)
        begun = time.perf_counter()
        mine.rename_namespace({"id": [old], "new_id": [new]})  # type: ignore[arg-type]
        moved.append(time.perf_counter() - begun)
    lines.at_most("rename of the namespace", statistics.median(moved), 1.0, "goal", 1, "s")
    fill_one = mine.registry
    fill_one.commit([Add(Namespace(ObjectId(("thousand",))))])
    fill_one.commit([Add(Table(ObjectId(("thousand", f"t{n}")), f"k{n}.lance")) for n in range(1000)])
    listed = in_turns([lambda: mine.list_tables(api.ListTablesRequest(id=["thousand"]))], 20)[0]
    lines.at_most("list of 1,000 tables", listed.wall_us / 1000, 3.0, "goal", 1, "ms")
    options: dict[str, Any] = MODES["V2"]
    peer = PylanceNamespace(root=str(root / "d"), **options)
    for what, action in (("create_namespace", creator), ("declare_table", declarer)):
        ours, other = action(mine), action(peer)
        ours(), other()
        mine_, other_ = median([_timed(ours, 30) for _ in range(5)]), median([_timed(other, 5) for _ in range(5)])
        lines.at_least(f"{what}, a second", mine_.per_second, other_.per_second, "pylance", 10)


def _timed(work: Call, calls: int) -> Figure:
    return in_turns([work], calls, 1)[0]


def versions(lines: Lines, root: Path, count: int = 5000) -> None:
    """`verify` and `collect` of one table with many versions, beside one read of each of its manifests."""
    catalog = Catalog(str(root / "v"))
    catalog.create_namespace("ns")
    dataset = lance.write_dataset(ROW, str(root / "v" / "t.lance"))
    for _ in range(count - 1):
        new = lance.fragment.write_fragments(ROW, dataset, mode="append")
        append = lance.LanceOperation.Append(new)
        dataset = lance.LanceDataset.commit(dataset, append, read_version=dataset.version)
    catalog.namespace.register_table(api.RegisterTableRequest(id=["ns", "t"], location="t.lance"))
    manifests = sorted(Path(dataset.uri).glob("_versions/*.manifest"))
    floor = cpu_us(lambda: [None for path in manifests if not path.read_bytes()], 1) / 1e6
    spent = cpu_us(lambda: catalog.verify(), 1) / 1e6
    lines.at_most(f"verify of {count} versions, CPU", spent, max(floor, 0.001), "read of each manifest", 20, "s")
    spent = cpu_us(lambda: catalog.collect(keep=timedelta(0), dry_run=True), 1) / 1e6
    lines.at_most(f"collect of {count} versions, CPU", spent, max(floor, 0.001), "read of each manifest", 20, "s")


PARTS: dict[str, Callable[[Lines, Path], None]] = {
    "lookups": lookups,
    "commits": commits,
    "bucket": bucket,
    "growth": growth,
    "big": big,
    "versions": versions,
}
NOTE = (
    "A goal is that of the issue; a line that does not hold says so. Costs are medians of rounds in turns. `one "
    "durable file` is a file of a slot's size, created, synced and named durably on the same disk in turns."
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=list(PARTS))
    parser.add_argument("--root", help="where to make the catalogs; a new folder for temporary files otherwise")
    options = parser.parse_args()
    report = Report("limits", "python -m benchmarks.limits", COLUMNS)
    for part in options.parts:
        root = Path(tempfile.mkdtemp(prefix=f"headwater-{part}-", dir=options.root))
        try:
            PARTS[part](Lines(report), root)
        finally:
            shutil.rmtree(root, ignore_errors=True)
    if options.parts == list(PARTS):
        report.write(NOTE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
