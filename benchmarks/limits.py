"""The default catalog beside its limits, in one run: `python -m benchmarks.limits [part ...] [--root FOLDER]`.

Each line has ours, the peer or the floor, and the ratio. Parts: lookups (peer: our V2 directory), commits (floor: the
time of one durable file on the same disk), bucket (round trips of a store that counts), growth (the same work on a
small and on a large catalog), big (peer: pylance, in a namespace of 10,000 tables), versions (peer: the bytes and files
that there are).
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
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import lance_namespace as api
import pyarrow as pa
from lance.namespace import DirectoryNamespace as PylanceNamespace

from benchmarks.directory import MODES, creator, declarer
from benchmarks.far import FarStore
from benchmarks.measure import Figure, Report, spread
from headwater import Catalog, DirectoryNamespace, MetastoreNamespace
from headwater.metastore import Metastore
from headwater.model import Add, Namespace, Table
from headwater.names import ObjectId
from headwater.store import LocalStore, PutMode, open_store

COLUMNS = ("what", "ours", "beside", "", "ratio", "goal", "holds")
ROW = pa.table({"id": [1], "text": ["a"]})
ROUNDS = 7
Call = Callable[[], object]
Turns = Sequence[float]
numbers = itertools.count()


class Lines:
    """The lines of a report. A ratio is ours by the other, in costs, unless `rates` compares calls a second."""

    def __init__(self, report: Report) -> None:
        self.report = report

    def at_most(self, what: str, ours: Turns, other: Turns, beside: str, most: float, unit: str = "us") -> None:
        """Add the ratio of two costs, turn by turn. The page of all figures has it as other by ours."""
        self.report.compared(what, ours, other, beside, unit, 1 / most)
        self._add(what, ours, other, beside, unit, f"<= {most}", lambda ratio: ratio <= most)

    def at_least(self, what: str, ours: Turns, other: Turns, beside: str, least: float) -> None:
        self.report.compared(what, ours, other, beside, "/s", least)
        self._add(what, ours, other, beside, "/s", f">= {least}", lambda ratio: ratio >= least)

    def below(self, what: str, turns: Turns, most: float, unit: str) -> None:
        """Add a figure that has a goal and no peer."""
        holds = self.report.measured(what, turns, unit, most)
        self.report.add(what, f"{statistics.median(turns):,.2f} {unit}", "", "", "", f"<= {most} {unit}", holds)

    def _add(
        self, what: str, ours: Turns, other: Turns, beside: str, unit: str, goal: str, holds: Callable[[float], bool]
    ) -> None:
        ratios = sorted(mine / theirs for mine, theirs in zip(ours, other, strict=True))
        shown = (f"{statistics.median(side):,.2f} {unit}" for side in (ours, other))
        ratio = statistics.median(ratios)
        spread = f"{ratio:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        self.report.add(what, *shown, beside, spread, goal, "yes" if holds(ratio) else "**no**")


def in_turns(works: Iterable[Call], calls: int, rounds: int = ROUNDS) -> list[list[Figure]]:
    """Figures of the rounds of each work, in turns."""
    works = list(works)
    found: list[list[Figure]] = [[] for _ in works]
    for _ in range(rounds):
        for at, work in enumerate(works):
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(calls):
                work()
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            found[at].append(Figure(wall / calls * 1e6, cpu / calls * 1e6))
    return found


def sides(pairs: Iterable[Sequence[float]]) -> tuple[list[float], list[float]]:
    """Turns of two sides, from pairs."""
    ours, other = zip(*pairs, strict=True)
    return list(ours), list(other)


def wall_ms(turns: Iterable[Figure]) -> list[float]:
    return [each.wall_us / 1000 for each in turns]


def cpu_ms(turns: Iterable[Figure]) -> list[float]:
    return [each.cpu_us / 1000 for each in turns]


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
        ours, other = in_turns([lambda ask=ask: ask(mine), lambda ask=ask: ask(peer)], calls)  # type: ignore[misc]
        lines.at_most(f"{what}, warm, CPU", cpu_ms(ours), cpu_ms(other), "V2", 1.3, "ms")
    every = [api.DescribeTableRequest(id=["big", f"t{number}"]) for number in range(tables)]
    pairs = [[after_commit(namespace, every) for namespace in (mine, peer)] for _ in range(ROUNDS)]
    lines.at_most("describe_table of each after a commit, CPU", *sides(pairs), "V2", 1.3)
    openers = _opener(mine), _opener(peer)
    found = [[firsts(opener, every) for opener in openers] for _ in range(ROUNDS)]
    first, opened = ([[each[part] for each in sides] for sides in found] for part in (0, 1))
    beside = "V2, which read all before"
    lines.at_most("describe_table of each, the first time, CPU", *sides(first), beside, 1.3)
    lines.at_most("the same with what opening reads, CPU", *sides(opened), "V2", 1.3)


def _opener(namespace: Any) -> Callable[[], Any]:
    if isinstance(namespace, MetastoreNamespace):
        return lambda: MetastoreNamespace(root=namespace.properties.root)
    return lambda: directory(Path(namespace.properties.root))


def cpu_us(work: Call, by: int) -> float:
    begun = time.process_time()
    work()
    return (time.process_time() - begun) / by * 1e6


def after_commit(namespace: Any, every: list[Any]) -> float:
    namespace.create_namespace(api.CreateNamespaceRequest(id=[f"other{next(numbers)}"]))
    namespace.namespace_exists(api.NamespaceExistsRequest(id=["big"]))
    return cpu_us(lambda: [None for asked in every if not namespace.describe_table(asked)], len(every))


def firsts(opener: Callable[[], Any], every: list[Any]) -> tuple[float, float]:
    begun = time.process_time()
    namespace = opener()
    namespace.namespace_exists(api.NamespaceExistsRequest(id=["big"]))
    opened = (time.process_time() - begun) / len(every) * 1e6
    first = cpu_us(lambda: [None for asked in every if not namespace.describe_table(asked)], len(every))
    return first, opened + first


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
        lines.at_most(what, wall_ms(ours), wall_ms(floor), "one durable file", most, "ms")
        lines.at_most(f"{what}, its CPU", cpu_ms(ours), wall_ms(floor), "one durable file", most, "ms")
    create = works["create_namespace"][0]
    pairs = [(in_threads(create, 8, 400), in_threads(create, 1, 50)) for _ in range(ROUNDS)]
    lines.at_least("create_namespace by 8 threads, a second", *sides(pairs), "one thread", 4)


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
        trips = []
        for _ in range(ROUNDS):
            store.counts.clear()
            for _ in range(20):
                work()
            trips.append(store.counts.total() / 20)
        lines.below(f"{what} on a bucket", trips, 2, "round trips")


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
        spent.append([each / 1000 for each in found])
    lines.at_most("declare in a transaction, 2,000 tables, CPU", spent[1], spent[0], "20 tables", 2, "ms")


def big(lines: Lines, root: Path, tables: int = 10_000) -> None:
    """A namespace of 10,000 tables: rename, list, create_namespace and declare_table beside pylance."""
    mine = metastore(root / "m")
    mine.metastore.create()
    theirs = directory(root / "d")
    for namespace in (mine, theirs):
        fill(namespace, tables)
        namespace.registry.commit([Add(Namespace(ObjectId(("n0",))))])
    mine.metastore.close()
    names = itertools.cycle([("big", "other"), ("other", "big")])
    moved = []
    for _ in range(6):
        old, new = next(names)
        begun = time.perf_counter()
        mine.rename_namespace({"id": [old], "new_id": [new]})  # type: ignore[arg-type]
        moved.append(time.perf_counter() - begun)
    lines.below("rename of a namespace of 10,000 tables", moved, 1, "s")
    fill_one = mine.registry
    fill_one.commit([Add(Namespace(ObjectId(("thousand",))))])
    fill_one.commit([Add(Table(ObjectId(("thousand", f"t{n}")), f"k{n}.lance")) for n in range(1000)])
    listed = in_turns([lambda: mine.list_tables(api.ListTablesRequest(id=["thousand"]))], 20)[0]
    lines.below("list of 1,000 tables", wall_ms(listed), 3, "ms")
    options: dict[str, Any] = MODES["V2"]
    peer = PylanceNamespace(root=str(root / "d"), **options)
    for what, action in (("create_namespace", creator), ("declare_table", declarer)):
        ours, other = action(mine), action(peer)
        ours(), other()
        pairs = [(rate(ours, 30), rate(other, 5)) for _ in range(ROUNDS)]
        lines.at_least(f"{what}, a second", *sides(pairs), "pylance", 10)


def rate(work: Call, calls: int) -> float:
    return in_turns([work], calls, 1)[0][0].per_second


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
    works: dict[str, Call] = {
        "verify": catalog.verify,
        "collect": lambda: catalog.collect(keep=timedelta(0), dry_run=True),
    }
    for what, work in works.items():
        ours, floor = in_turns([work, lambda: [None for path in manifests if not path.read_bytes()]], 1, 5)
        lines.at_most(
            f"{what} of {count} versions, CPU", cpu_ms(ours), cpu_ms(floor), "read of each manifest", 20, "ms"
        )


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
    scratch = tempfile.mkdtemp(prefix="headwater-limits-", dir=options.root)
    spread(scratch)
    try:
        for part in options.parts:
            root = Path(scratch) / part
            root.mkdir()
            PARTS[part](Lines(report), root)
            shutil.rmtree(root, ignore_errors=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if options.parts == list(PARTS):
        report.write(NOTE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
