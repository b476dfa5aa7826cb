"""The metastore's speed, with durability on: python -m benchmarks.metastore [--peer PYTHON] [--parts ...] [--root DIR].

PYTHON is an interpreter with deltacat 2.0 installed, and is measured in turn with ours; without it, the peer's column
shows figures measured earlier on a machine of this kind. On a disk whose file system has no journal (ext4), wait some
minutes after large folders were deleted: at every create it passes over what was deleted in the last five, which took
ten times as long as the rest of a commit. The report goes to benchmarks/results/metastore.md, or to
metastore-<parts>.md if only some parts were run.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import resource
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from headwater.metastore import Metastore
from headwater.metastore.records.disk_records import Node
from headwater.metastore.records.layout import canonical, digest
from headwater.metastore.state.index import NamedChild
from headwater.store import LocalStore, PutMode, Store, WrappedStore

EARLIER = {"create_namespace": 221.0, "create_table": 86.0, "commit_delta": 45.0, "eight_processes": 12.0}
ROUNDS = 5
RESULTS = Path(__file__).parent / "results"
ALL = "commits,growth,memory,opening,dropped"


@dataclass(frozen=True)
class Row:
    what: str
    measured: str
    target: str
    holds: bool
    peer: str = ""


class OnlyPrivate(WrappedStore):
    """Keeps slots, segments and checkpoints; lets published files go. For building a million deltas in minutes."""

    def put(self, key: str, data: bytes, mode: PutMode = PutMode.OVERWRITE, durable: bool = True) -> None:
        if key.startswith(".headwater/"):
            self.inner.put(key, data, mode, durable)

    def put_all(self, items: Sequence[tuple[str, bytes]], durable: bool = True) -> None:
        super().put_all([item for item in items if item[0].startswith(".headwater/")], durable)


def rate(action: Callable[[int], Any], count: int, first: int = 0) -> float:
    begin = time.perf_counter()
    for number in range(first, first + count):
        action(number)
    return count / (time.perf_counter() - begin)


def milliseconds(action: Callable[[], Any], times: int) -> float:
    """The median of so many."""
    spent = []
    for _ in range(times):
        begin = time.perf_counter()
        action()
        spent.append((time.perf_counter() - begin) * 1000)
    return sorted(spent)[times // 2]


def create_namespace(store: Metastore, name: str) -> None:
    with store.transaction("bench") as tx:
        tx.create_namespace([name])


def create_table(store: Metastore, name: str) -> None:
    with store.transaction("bench") as tx:
        tx.create_table(["tables", name])


def append(store: Metastore, number: int) -> None:
    with store.transaction("bench") as tx:
        tx.append_delta(["t"], [(f"data/part-{number:09}.parquet", 1000, 65536)])


def in_threads(action: Callable[[int], None], count: int, threads: int = 8) -> float:
    """So many actions in all, spread over threads; how many a second."""

    def some(first: int) -> None:
        for number in range(first, count, threads):
            action(number)

    workers = [threading.Thread(target=some, args=(first,)) for first in range(threads)]
    begin = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return count / (time.perf_counter() - begin)


def append_for(root: str, start: Any, seconds: float, answers: Any) -> None:
    store = Metastore(root)
    start.wait()
    done, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        append(store, done)
        done += 1
    answers.put(done)


def in_processes(root: str, seconds: float, processes: int = 8) -> float:
    context = multiprocessing.get_context("spawn")
    answers, start = context.Queue(), context.Barrier(processes)
    workers = [context.Process(target=append_for, args=(root, start, seconds, answers)) for _ in range(processes)]
    for worker in workers:
        worker.start()
    total = sum(answers.get() for _ in workers)
    for worker in workers:
        worker.join()
    return float(total) / seconds


class Peer:
    """The peer in its own process; without an interpreter for it, what was measured earlier."""

    def __init__(self, python: str | None) -> None:
        self.process: subprocess.Popen[str] | None = None
        if python is not None:
            script = str(Path(__file__).with_name("metastore_peer.py"))
            self.process = subprocess.Popen(
                [python, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            while self._line() != "ready":
                pass

    def rate(self, name: str, count: int) -> float:
        if self.process is None:
            return EARLIER[name]
        assert self.process.stdin is not None
        self.process.stdin.write(f"{name} {count}\n")
        self.process.stdin.flush()
        return count / float(self._line())

    def _line(self) -> str:
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the peer's process ended")
        return line.strip()

    def close(self) -> None:
        if self.process is not None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            self.process.wait()


def compared(what: str, target: float, ours: Callable[[int], float], peer: Callable[[], float]) -> Row:
    """Both sides in turn, so that the machine's mood falls on both; the medians."""
    pairs = [(ours(number), peer()) for number in range(ROUNDS)]
    mine, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
    shown = f"{theirs:.0f}/s ({mine / theirs:.1f}x)"
    best = f"{mine:.0f}/s (best round {max(pair[0] for pair in pairs):.0f}/s)"
    return Row(what, best, f">= {target:.0f}/s, >= 5x peer", mine >= target and mine >= 5 * theirs, shown)


def commits(root: str, count: int, peer: Peer) -> list[Row]:
    store = Metastore(root)
    store.run(lambda tx: (tx.create_namespace(["tables"]), tx.create_table(["t"])))

    def against(name: str, amount: int = 30) -> Callable[[], float]:
        return lambda: peer.rate(name, amount)

    rows = [
        compared(
            "create_namespace, one process",
            500,
            lambda r: rate(lambda n: create_namespace(store, f"n{n}"), count, r * count),
            against("create_namespace"),
        ),
        compared(
            "one-delta commit, one process",
            1000,
            lambda r: rate(lambda n: append(store, n), count),
            against("commit_delta"),
        ),
        compared(
            "create_table, one process",
            500,
            lambda r: rate(lambda n: create_table(store, f"t{n}"), count, r * count),
            against("create_table"),
        ),
        compared(
            "create_namespace, 8 threads",
            3000,
            lambda r: in_threads(lambda n: create_namespace(store, f"g{r}-{n}"), 4 * count),
            against("create_namespace"),
        ),
    ]
    mine, theirs = in_processes(root, 6.0), peer.rate("eight_processes", 100)
    held = mine >= 300 and mine >= 5 * theirs
    shown = f"{theirs:.0f}/s ({mine / theirs:.1f}x)"
    rows.append(Row("appends to one partition, 8 processes", f"{mine:.0f}/s", ">= 300/s, >= 5x peer", held, shown))
    return rows


def flatness(root: str, transactions: int) -> list[Row]:
    """The same commits on a young and on an old catalog; what an old one costs to open, to list, to look back in."""
    store = Metastore(root)
    store.run(lambda tx: (tx.create_namespace(["tables"]), tx.create_table(["t"])))
    for number in range(100):
        create_namespace(store, f"warm{number}")
    young = young_old(store, "young")
    in_threads(lambda n: create_namespace(store, f"n{n}") if n % 4 else append(store, n), transactions)
    old = young_old(store, "old")
    rows = [
        Row(
            f"{what}: CPU at {transactions} transactions / at 100",
            f"{old[what] / young[what]:.2f}x ({old[what]:.2f} ms / {young[what]:.2f} ms)",
            "<= 1.5x",
            old[what] <= 1.5 * young[what],
        )
        for what in young
    ]
    rows += reading(store)
    gc.collect()
    opened = milliseconds(lambda: Metastore(root), 3) / 1000
    rows.append(Row(f"open after {transactions} transactions", f"{opened:.2f} s", "< 1 s", opened < 1))
    return rows


def young_old(store: Metastore, name: str) -> dict[str, float]:
    """Milliseconds of CPU for each commit at this age of the catalog, the best of three runs: the machine is shared."""
    starts = (0, 300, 600)
    return {
        "create_namespace": min(
            cpu_ms(lambda n: create_namespace(store, f"{name}{n}"), 300, start) for start in starts
        ),
        "one-delta commit": min(cpu_ms(lambda n: append(store, n), 300, start) for start in starts),
        "create_table": min(cpu_ms(lambda n: create_table(store, f"{name}{n}"), 300, start) for start in starts),
    }


def cpu_ms(action: Callable[[int], Any], count: int, first: int) -> float:
    begin = time.thread_time()
    for number in range(first, first + count):
        action(number)
    return (time.thread_time() - begin) * 1000 / count


def reading(store: Metastore) -> list[Row]:
    with store.transaction("1000 tables") as tx:
        tx.create_namespace(["thousand"])
        for number in range(1000):
            tx.create_table(["thousand", f"t{number}"])
    store.close()
    listed = milliseconds(lambda: store.list(["thousand"]), 21)
    with store.transaction("a counter") as tx:
        tx.create_namespace(["counter"], {"n": 0})
    first = store.slot
    for number in range(1500):
        with store.transaction("count") as tx:
            tx.update(["counter"], {"n": number})
    now = milliseconds(lambda: store.at(store.slot).get(["counter"]), 2001)
    past = milliseconds(lambda: store.at(first).get(["counter"]), 2001)
    now_list = milliseconds(lambda: store.list(["thousand"]), 21)
    past_list = milliseconds(lambda: store.at(first).list(["thousand"]), 21)
    return [
        Row("list of 1,000 tables", f"{listed:.2f} ms", "< 5 ms", listed < 5, "10 s (earlier)"),
        Row("get 1,500 revisions back / now", f"{past / now:.2f}x", "<= 2x", past <= 2 * now),
        Row("list 1,500 slots back / now", f"{past_list / now_list:.2f}x", "<= 2x", past_list <= 2 * now_list),
    ]


def peak_mb() -> float:
    """The most memory this process ever held (getrusage would count that of the process it was forked from)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def million(answers: Any, root: str, deltas: int) -> None:
    """The memory of a process that wrote so many deltas, and of one that opens them."""
    before = peak_mb()
    store = Metastore(OnlyPrivate(LocalStore(root)))
    if not store.exists(["t"]):
        store.run(lambda tx: tx.create_table(["t"]))
        for first in range(0, deltas, 500):
            with store.transaction("bulk") as tx:
                for number in range(first, first + 500):
                    tx.append_delta(["t"], [(f"data/part-{number:09}-of-a-usual-length.parquet", 1000, 65536)])
    begin = time.perf_counter()
    opened = Metastore(OnlyPrivate(LocalStore(root)))
    seconds = time.perf_counter() - begin
    last = opened.deltas(["t"], after=deltas - 10)[-1].position
    answers.put((before, peak_mb(), seconds, last))


def memory(root: str, deltas: int) -> list[Row]:
    context = multiprocessing.get_context("spawn")
    rows = []
    for what in ("wrote", "opened"):
        answers = context.Queue()
        worker = context.Process(target=million, args=(answers, root, deltas))
        worker.start()
        before, peak, seconds, last = answers.get()
        worker.join()
        assert last == deltas
        text = f"{peak:.0f} MB ({before:.0f} MB of it the interpreter and imports)"
        rows.append(Row(f"peak memory of a process that {what} {deltas} deltas", text, "< 300 MB", peak < 300))
    rows.append(Row(f"open with {deltas} deltas", f"{seconds:.2f} s", "", True))
    return rows


def opening(root: str, tables: int) -> list[Row]:
    """A catalog of so many tables: to open it, to look one up, to commit; each in a process that knows nothing yet.

    The catalog is made if the folder holds none, and stays for another run."""
    if not LocalStore(root).children().folders:
        build(LocalStore(root), tables)
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    runs = []
    for number in range(3):
        worker = context.Process(target=open_once, args=(answers, root, tables, number))
        worker.start()
        runs.append(answers.get(timeout=300))
        worker.join()
    wall, spent, first, cold, commit, mb = (statistics.median(side) for side in zip(*runs, strict=True))
    size = sum(entry.size for entry in LocalStore(root).list(".headwater/layers")) / 1e6
    return [
        Row(
            f"open with {tables} tables, in a new process",
            f"{wall * 1000:.1f} ms (CPU {spent * 1000:.1f} ms)",
            "< 2 s",
            wall < 2,
        ),
        Row(f"first look-up of a table among {tables} after that", f"{first:.2f} ms", "", True),
        Row(f"look-up of another table among {tables}", f"{cold:.2f} ms", "", True),
        Row(f"commit to another table among {tables}", f"{commit:.2f} ms", "", True),
        Row(f"memory that opening, 300 look-ups and 50 commits among {tables} took", f"{mb:.0f} MB", "", True),
        Row(f"layers of {tables} tables, retired ones too", f"{size:.0f} MB", "", True),
    ]


def build(inner: Store, tables: int) -> None:
    """A metastore of so many tables in the namespace `big`, without the published files."""
    store = Metastore(OnlyPrivate(inner))
    store.run(lambda tx: (tx.create_namespace(["big"]), tx.create_table(["big", "table_0000000"])))
    model = store.get(["big", "table_0000000"])
    for first in range(1, tables, 50_000):
        copies(store, model.id, first, min(first + 50_000, tables))
        store.checkpoint()
        store = Metastore(OnlyPrivate(inner))  # anew, so that it does not hold all in memory


def open_once(answers: Any, root: str, tables: int, number: int) -> None:
    """Seconds and CPU seconds to open, then milliseconds of a first look-up, others, commits; and the memory."""
    before = peak_mb()
    begin, spent = time.perf_counter(), time.process_time()
    store = Metastore(OnlyPrivate(LocalStore(root)))
    wall, cpu = time.perf_counter() - begin, time.process_time() - spent
    step = max(tables // 400, 1)
    numbers = iter(range(number, tables, step))
    first = milliseconds(lambda: store.get(["big", f"table_{next(numbers):07}"]), 1)
    cold = milliseconds(lambda: store.get(["big", f"table_{next(numbers):07}"]), 301)
    commit = milliseconds(lambda: append_to(store, f"table_{next(numbers):07}"), 51)
    answers.put((wall, cpu, first, cold, commit, peak_mb() - before))


def copies(store: Metastore, model: str, first: int, last: int) -> None:
    """Copies of a table straight into the index: a million transactions would take an hour."""
    index = store._log.index
    parts = [model, *(key for key, _ in index.cards.items() if key.startswith(f"{model}/"))]
    cards = [(key, node, index.parts(key)) for key in parts if (node := index.node(key)) is not None]
    parent = cards[0][1].versions[0].parent
    (known,) = (version for name, versions in index.names.items() for version in versions if version.object_id == model)
    for number in range(first, last):
        id, name = str(uuid.uuid4()), f"table_{number:07}"
        for key, node, below in cards:
            named = (name,) if key == model else node.versions[0].parts
            moved = [text.replace(model, id) for text in (node.versions[0].parent, node.key, node.id, node.home)]
            revision = replace(node.versions[0], parent=moved[0], parts=named)
            card = index.card(moved[1])
            card.node = Node(moved[1], moved[2], node.kind, moved[3], [revision])
            card.parts = [part.replace(model, id) for part in below]
        index.names.put(f"{parent}/{digest(canonical('big', name))}", [replace(known, object_id=id)])
        index.children.put(parent, name, NamedChild(id, "table"))


def append_to(store: Metastore, name: str) -> None:
    with store.transaction("bench") as tx:
        tx.append_delta(["big", name], ["data/part.parquet"])


def dropped(root: str, tables: int) -> list[Row]:
    """To bring a table back among so many: by who dropped it, by who opened the catalog since, by who finds the drop in
    a checkpoint; and what such a transaction relies on."""
    store, path = Metastore(root), ["big", "t0"]
    for first in range(0, tables, 1000):
        with store.transaction() as tx:
            if not first:
                tx.create_namespace(["big"])
            for number in range(first, min(first + 1000, tables)):
                tx.create_table(["big", f"t{number}"], formats=("lance",))
    same = min(_undrop(store, path, lambda: store) for _ in range(5))
    opened = min(_undrop(store, path, lambda: Metastore(root)) for _ in range(5))
    behind = min(_undrop(store, path, lambda: _checkpointed(store, root)) for _ in range(3))
    with store.transaction() as tx:
        tx.drop(path)
    tx = store.transaction()
    tx.undrop(path)
    return [
        Row(f"undrop of a table among {tables}: CPU of who dropped it", f"{same:.2f} ms", "", True),
        Row("the same by who opened the catalog since", f"{opened:.2f} ms", "", True),
        Row("the same where a checkpoint holds the drop, the first time", f"{behind:.2f} ms", "", True),
        Row("names, objects and folders that it relies on", str(len(tx.draft.reads)), "", True),
    ]


def _undrop(store: Metastore, path: list[str], by: Callable[[], Metastore]) -> float:
    with store.transaction() as tx:
        tx.drop(path)
    other = by()
    other.get(path[:1])
    with other.transaction() as tx:
        spent = cpu_ms(lambda _: tx.undrop(path), 1, 0)
    store.slot  # noqa: B018  # it looks: the next drop is of what is there now
    return spent


def _checkpointed(store: Metastore, root: str) -> Metastore:
    store.checkpoint()
    return Metastore(root)


def report(rows: list[Row], command: str, peer: str) -> str:
    load = os.getloadavg()[1]
    lines = [
        "# Metastore",
        "",
        f"`{command}` on a machine with {os.cpu_count()} cores (load average at the end {load:.1f}), every commit",
        f"fsynced before its acknowledgement. Peer: DeltaCAT 2.0 (without durability), {peer}.",
        "",
        "| what | measured | target | holds | peer |",
        "|---|---|---|---|---|",
    ]
    lines += [f"| {r.what} | {r.measured} | {r.target} | {'yes' if r.holds else '**no**'} | {r.peer} |" for r in rows]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", default=os.environ.get("DELTACAT_PYTHON"), help="an interpreter with deltacat 2.0")
    parser.add_argument("--parts", default=ALL, help="which parts to run")
    parser.add_argument("--root", help="where to make the catalogs; a new folder for temporary files otherwise")
    parser.add_argument("--catalog", help="for `opening`: the folder of a catalog to use, made if it is not there")
    parser.add_argument("--scale", type=int, default=1, help="divide all sizes by this, for a quick look")
    options = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="headwater-bench-", dir=options.root)
    rows: list[Row] = []
    peer = Peer(options.peer)
    try:
        if "commits" in options.parts:
            rows += commits(f"{folder}/commits", 400 // options.scale, peer)
        if "growth" in options.parts:
            rows += flatness(f"{folder}/flat", 100_000 // options.scale)
        if "memory" in options.parts:
            rows += memory(f"{folder}/memory", 1_000_000 // options.scale)
        if "opening" in options.parts:
            rows += opening(options.catalog or f"{folder}/opening", 1_000_000 // options.scale)
        if "dropped" in options.parts:
            rows += dropped(f"{folder}/dropped", 10_000 // options.scale)
    finally:
        peer.close()
        shutil.rmtree(folder, ignore_errors=True)
    given = " ".join(
        f"--{name} {value}" for name, value in vars(options).items() if value and name in ("parts", "scale")
    )
    text = report(rows, f"python -m benchmarks.metastore {given}", "in turn" if options.peer else "measured earlier")
    print(text)
    if options.scale == 1:
        RESULTS.mkdir(exist_ok=True)
        name = "metastore" if options.parts == ALL else f"metastore-{options.parts.replace(',', '-')}"
        (RESULTS / f"{name}.md").write_text(text)


if __name__ == "__main__":
    main()
