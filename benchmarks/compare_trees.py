"""Two checkouts of Headwater against each other: the same calls in turns, CPU time, the best round of each.

    git worktree add ../before COMMIT
    python -m benchmarks.compare_trees ../before [rounds] [operation ...]

Each tree has a process of its own, anew for every forty rounds. A ratio above 1 says that this tree is slower. A run of
all operations writes `results/trees.md`. With `taskset -c 0 chrt -f 5` before the command, which takes root, what else
runs on the machine does not count.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import IO

HERE = Path(__file__).parents[1]
CALLS = {
    "describe": 300,
    "exists": 300,
    "list": 300,
    "versions": 200,
    "count": 30,
    "insert": 1,
    "create": 1,
    "namespace": 1,
    "arrow": 1,
    "metastore list": 300,
    "metastore describe": 300,
    "metastore create": 1,
}
"""How often each operation is called in one round."""
ROUNDS = 40
"""So many rounds a pair of processes lives: what one has luck or bad luck with for as long as it lives is averaged."""
COLUMNS = ("operation", "before, us of CPU", "now, us of CPU", "ratio", "median of pairs", "pairs")
NOTE = (
    "A managed directory catalog of 20 tables on local disk; CPU time of the whole process with pylance's threads, the "
    "best of all rounds in turns, the ratio of the bests, and the median and range of the ratios of the pairs of "
    "processes. BEFORE is the tree before the house was rebuilt (1426dfe). `versions` is a page of "
    "10 of 21, `create` takes an Arrow stream of 100 rows, `arrow` is the friendly `Catalog.create_table` with 500,000 "
    "rows that are in memory as Arrow. Those of `metastore` are of a metastore catalog with 20 tables."
)


def operations(root: str) -> dict[str, Callable[[], object]]:
    """The calls, in the process of one tree: only what both trees have is used."""
    import lance_namespace as api
    import pyarrow as pa

    from headwater import Catalog, DirectoryNamespace, MetastoreNamespace

    catalog = DirectoryNamespace(root=root, table_version_management="true")
    sink = pa.BufferOutputStream()
    rows = pa.table({"id": list(range(100)), "text": [str(n) for n in range(100)]})
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    body = sink.getvalue().to_pybytes()
    for name in (*(f"t{n}" for n in range(20)), "grown"):
        catalog.create_table(api.CreateTableRequest(id=[name]), body)
    for _ in range(20):
        catalog.insert_into_table(api.InsertIntoTableRequest(id=["grown"]), body)
    numbers = iter(range(10**9))
    other = MetastoreNamespace(root=f"{root}/metastore")
    other.create_namespace(api.CreateNamespaceRequest(id=["ns"]))
    for number in range(20):
        other.create_table(api.CreateTableRequest(id=["ns", f"t{number}"]), body)
    friendly = Catalog(catalog)
    many = pa.table({"id": range(500_000), "text": [f"the text of row {n}" for n in range(500_000)]})
    return {
        "describe": lambda: catalog.describe_table(api.DescribeTableRequest(id=["t3"])),
        "exists": lambda: catalog.table_exists(api.TableExistsRequest(id=["t3"])),
        "list": lambda: catalog.list_tables(api.ListTablesRequest(id=[])),
        "versions": lambda: catalog.list_table_versions(api.ListTableVersionsRequest(id=["grown"], limit=10)),
        "count": lambda: catalog.count_table_rows(api.CountTableRowsRequest(id=["t3"])),
        "insert": lambda: catalog.insert_into_table(api.InsertIntoTableRequest(id=[f"t{next(numbers) % 20}"]), body),
        "create": lambda: catalog.create_table(api.CreateTableRequest(id=[f"new{next(numbers)}"]), body),
        "namespace": lambda: catalog.create_namespace(api.CreateNamespaceRequest(id=[f"ns{next(numbers)}"])),
        "arrow": lambda: friendly.create_table(f"arrow{next(numbers)}", many),
        "metastore list": lambda: other.list_tables(api.ListTablesRequest(id=["ns"])),
        "metastore describe": lambda: other.describe_table(api.DescribeTableRequest(id=["ns", "t3"])),
        "metastore create": lambda: other.create_table(api.CreateTableRequest(id=["ns", f"new{next(numbers)}"]), body),
    }


def answer() -> None:
    """In a tree's process: for each name that is asked, one round of it, answered by its CPU seconds."""
    with tempfile.TemporaryDirectory() as root:
        known = operations(root)
        print("ready", flush=True)
        for line in sys.stdin:
            call, begun = known[line.strip()], time.process_time()
            for _ in range(CALLS[line.strip()]):
                call()
            print(time.process_time() - begun, flush=True)


def start(tree: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    command = [sys.executable, str(Path(__file__).resolve()), "--answer"]
    started = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=tree
    )
    assert started.stdout is not None
    assert started.stdout.readline().strip() == "ready"
    return started


def ask(process: subprocess.Popen[str], name: str) -> float:
    given: IO[str] | None = process.stdin
    assert given is not None
    assert process.stdout is not None
    given.write(f"{name}\n")
    given.flush()
    return float(process.stdout.readline()) / CALLS[name] * 1e6


def main() -> None:
    from benchmarks.measure import Report  # not in the process of a tree, which may be an old one

    before, rounds = Path(sys.argv[1]).resolve(), int((sys.argv[2:] or ["240"])[0])
    names = sys.argv[3:] or list(CALLS)
    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for _ in range(max(1, rounds // ROUNDS)):
        trees = [start(before), start(HERE)]
        try:
            for name in names:
                pairs[name].append(bests(trees, name))
        finally:
            for tree in trees:
                tree.kill()
                tree.wait()
    report = Report("trees", f"python -m benchmarks.compare_trees BEFORE {rounds}", COLUMNS)
    for name, found in pairs.items():
        ratios = sorted(now / then for then, now in found)
        then, now = (min(pair[at] for pair in found) for at in (0, 1))
        report.add(name, then, now, f"{now / then:.2f}", f"{median(ratios):.2f}", f"{ratios[0]:.2f}-{ratios[-1]:.2f}")
    if not sys.argv[3:]:
        report.write(NOTE)


def bests(trees: list[subprocess.Popen[str]], name: str) -> tuple[float, float]:
    """The best round of each of a pair of processes, in turns."""
    best = [float("inf"), float("inf")]
    for number in range(ROUNDS):
        for at in (0, 1) if number % 2 else (1, 0):
            best[at] = min(best[at], ask(trees[at], name))
    return best[0], best[1]


if __name__ == "__main__":
    answer() if sys.argv[1:] == ["--answer"] else main()
