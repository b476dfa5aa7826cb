"""The metastore's speed, with durability on: python -m benchmarks.metastore [--short] [--peer PYTHON].

PYTHON is an interpreter with deltacat 2.0 installed; without it, the peer's column shows figures measured earlier on a
machine of this kind. The report goes to benchmarks/results/metastore.md.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import resource
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.metastore import Metastore
from headwater.store import LocalStore, PutMode, WrappedStore

EARLIER = {"create_namespace": 221.0, "create_table": 86.0, "commit_delta": 45.0, "8 processes": 12.0}
RESULT = Path(__file__).parent / "results" / "metastore.md"


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


def commits(root: str, count: int) -> list[Row]:
    store = Metastore(root)
    store.run(lambda tx: (tx.create_namespace(["tables"]), tx.create_table(["t"])))
    namespaces = rate(lambda n: create_namespace(store, f"n{n}"), count)
    deltas = rate(lambda n: append(store, n), count)
    tables = rate(lambda n: create_table(store, f"t{n}"), count)
    threads = in_threads(lambda n: create_namespace(store, f"g{n}"), 4 * count)
    return [
        at_least("create_namespace, one process", namespaces, 500, "create_namespace"),
        at_least("one-delta commit, one process", deltas, 500, "commit_delta"),
        at_least("create_table, one process", tables, 250, "create_table"),
        at_least("create_namespace, 8 threads", threads, 1500, "create_namespace"),
        at_least("appends to one partition, 8 processes", in_processes(root, 6.0), 300, "8 processes"),
    ]


PEER: dict[str, float] = dict(EARLIER)


def at_least(what: str, measured: float, target: float, peer: str) -> Row:
    ratio = measured / PEER[peer]
    shown = f"{PEER[peer]:.0f}/s ({ratio:.1f}x)"
    return Row(what, f"{measured:.0f}/s", f">= {target:.0f}/s, >= 5x peer", measured >= target and ratio >= 5, shown)


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
        Row(f"{what}: at {transactions} transactions / at 100", f"{a / b:.2f}x", "<= 1.5x", a / b <= 1.5)
        for what, a, b in ((name, young[name], old[name]) for name in young)
    ]
    rows += reading(store)
    gc.collect()
    opened = milliseconds(lambda: Metastore(root), 3) / 1000
    rows.append(Row(f"open after {transactions} transactions", f"{opened:.2f} s", "< 1 s", opened < 1))
    return rows


def young_old(store: Metastore, name: str) -> dict[str, float]:
    """Rates at this age of the catalog, the best of three short runs each: the machine is shared."""
    starts = (0, 200, 400)
    return {
        "create_namespace": max(rate(lambda n: create_namespace(store, f"{name}{n}"), 200, start) for start in starts),
        "one-delta commit": max(rate(lambda n: append(store, n), 200) for _ in starts),
        "create_table": max(rate(lambda n: create_table(store, f"{name}{n}"), 200, start) for start in starts),
    }


def reading(store: Metastore) -> list[Row]:
    with store.transaction("1000 tables") as tx:
        tx.create_namespace(["thousand"])
        for number in range(1000):
            tx.create_table(["thousand", f"t{number}"])
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


def report(rows: list[Row], command: str, peer: str) -> str:
    lines = [
        "# Metastore",
        "",
        f"`{command}` on a machine with {os.cpu_count()} cores, local disk, every commit fsynced before its",
        f"acknowledgement. Peer: DeltaCAT 2.0 (without durability), {peer}.",
        "",
        "| what | measured | target | holds | peer |",
        "|---|---|---|---|---|",
    ]
    lines += [f"| {r.what} | {r.measured} | {r.target} | {'yes' if r.holds else '**no**'} | {r.peer} |" for r in rows]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="a tenth of the size, for a quick look")
    parser.add_argument("--peer", default=os.environ.get("DELTACAT_PYTHON"), help="an interpreter with deltacat")
    options = parser.parse_args()
    peer = "figures measured earlier"
    if options.peer:
        answer = subprocess.run([options.peer, str(Path(__file__).with_name("metastore_peer.py"))], capture_output=True)
        PEER.update(json.loads(answer.stdout.splitlines()[-1]))
        peer = "measured in the same run"
    scale = 10 if options.short else 1
    folder = tempfile.mkdtemp(prefix="headwater-bench-")
    try:
        rows = commits(f"{folder}/commits", 2000 // scale)
        rows += flatness(f"{folder}/flat", 100_000 // scale)
        rows += memory(f"{folder}/memory", 1_000_000 // scale)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    short, with_peer = " --short" if options.short else "", " --peer PYTHON" if options.peer else ""
    text = report(rows, f"python -m benchmarks.metastore{short}{with_peer}", peer)
    print(text)
    if not options.short:
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(text)


if __name__ == "__main__":
    main()
