"""Stream tables, embedded: land, publish and fresh read beside raw `merge_insert`, in one run.

python -m benchmarks.streams [rows]
python -m benchmarks.streams flat [rows ...]     what 10 rows cost in bytes, at each size of the table
python -m benchmarks.streams --partial [rows]    what a publish of partial rows costs beside one of whole rows
python -m benchmarks.streams --key [rows]        one key by a filter, with a tail and without
python -m benchmarks.streams --positions [rows]  a publish with history over 2,000 positions, and over 10
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

from benchmarks.figures import TURNS
from benchmarks.measure import Report, spread
from headwater.metastore import Metastore
from headwater.streams import StreamTable

COLUMNS = ("what", "ours, s", "pylance `merge_insert`, s", "ratio (spread)", "deltalake, s", "goal")
RANDOM = np.random.default_rng(1)


def rows(ids: Any, at: int) -> pa.Table:
    texts = [f"name-{id}-{at}" for id in ids.tolist()]
    sequence = pa.array(np.full(len(ids), at))
    return pa.table({"id": pa.array(ids), "at": sequence, "v": pa.array(RANDOM.random(len(ids))), "s": texts})


def seconds(work: Callable[[], Any], times: int = 1) -> float:
    """The best of some runs."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return min(found)


def load() -> str:
    return f"Load average at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores."


def merge(dataset: Any, source: pa.Table) -> None:
    dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(source)


def delta_merge(path: Path, base: pa.Table) -> Callable[[pa.Table], Any] | None:
    """The same by deltalake, where that can be imported: it is not among what this project needs."""
    if importlib.util.find_spec("deltalake") is None:
        return None
    deltalake = importlib.import_module("deltalake")
    deltalake.write_deltalake(str(path), base)

    def merge(source: pa.Table) -> Any:
        merging = deltalake.DeltaTable(str(path)).merge(source, "t.id = s.id", source_alias="s", target_alias="t")
        return merging.when_matched_update_all().when_not_matched_insert_all().execute()

    return merge


def run(root: Path, count: int) -> Report:
    """Merge a tenth of the table, and ten rows, five turns each: ours, pylance and, where it is, deltalake."""
    report = Report("streams", f"python -m benchmarks.streams {count}", COLUMNS)
    with Metastore(root / "lake") as metastore:
        schema = {"id": "int64", "at": "int64", "v": "double", "s": "string"}
        table = StreamTable.create(metastore, ["t"], schema, keys="id", sequence="at")
        base = rows(np.arange(count), 1)
        raw = lance.write_dataset(base, root / "raw.lance", enable_stable_row_ids=True)
        delta = delta_merge(root / "delta", base)
        report.add(f"first load of {words(count)}: land", median([seconds(lambda: table.upsert(base))]), "", "", "", "")
        report.add(f"first load of {words(count)}: publish", median([seconds(lambda: table.publish())]), "", "", "", "")
        whole = turns(table, raw, delta, count, count // 10, range(10, 10 + TURNS))
        line(report, f"{words(count // 10)} into {words(count)}: land + publish", whole, "both", 1 / 1.5)
        line(report, f"{words(count // 10)} into {words(count)}: land + publish, CPU", whole, "both CPU", 1 / 1.5)
        table.upsert(rows(RANDOM.choice(count, count // 10, replace=False), 10 + TURNS))
        at = table.published.position if table.published is not None else 0
        reads = [(seconds(table.to_arrow), seconds(lambda: table.to_arrow(position=at))) for _ in range(TURNS)]
        fresh, alone = zip(*reads, strict=True)
        ratio = report.compared("fresh read with a tail of a tenth", fresh, alone, "the base alone", "s", 1 / 2)
        told = (median(fresh), median(alone), ratio, "", "0.5x")
        report.add("fresh read with a tail of a tenth; peer: the base alone", *told)
        table.publish()
        raw.create_scalar_index("id", "BTREE")
        few = turns(table, raw, delta, count, 10, range(20, 20 + TURNS))
        line(report, f"10 into {words(count)}: land", few, "land", None)
        line(report, f"10 into {words(count)}: publish (with a BTREE)", few, "publish", 1 / 2)
        line(report, f"10 into {words(count)}: land + publish (with a BTREE)", few, "both", 1 / 2)
    return report


def turns(table: StreamTable, raw: Any, delta: Any, count: int, size: int, ats: range) -> dict[str, list[float]]:
    """Return the seconds of each turn, wall and CPU: land, publish, both, pylance's merge, deltalake's where it is."""
    names = ("land", "publish", "both", "peer", "delta")
    found: dict[str, list[float]] = {f"{name}{unit}": [] for name in names for unit in ("", " CPU")}

    def note(name: str, work: Callable[[], Any]) -> None:
        cpu = time.process_time()
        found[name].append(seconds(work))
        found[f"{name} CPU"].append(time.process_time() - cpu)

    for at in ats:
        source = rows(RANDOM.choice(count, size, replace=False), at)
        note("land", lambda source=source: table.upsert(source))  # type: ignore[misc]
        note("publish", table.publish)
        for unit in ("", " CPU"):
            found[f"both{unit}"].append(found[f"land{unit}"][-1] + found[f"publish{unit}"][-1])
        note("peer", lambda source=source: merge(raw, source))  # type: ignore[misc]
        if delta is not None:
            note("delta", lambda source=source: delta(source))  # type: ignore[misc]
    return found


def line(report: Report, what: str, found: dict[str, list[float]], part: str, goal: float | None) -> None:
    if part == "land":
        report.measured(what, found[part], "s", 0.020)
        report.add(what, median(found[part]), "", "", "", "20 ms")
        return
    unit = " CPU" if part.endswith(" CPU") else ""
    theirs, delta = found[f"peer{unit}"], found[f"delta{unit}"]
    ratio = report.compared(what, found[part], theirs, "pylance merge_insert", "s", goal)
    other = median(delta) if delta else ""
    report.add(what, median(found[part]), median(theirs), ratio, other, f"{goal:.2f}x" if goal else "")


def median(turns: Iterable[float]) -> str:
    return f"{statistics.median(turns):.3f}"


def words(count: int) -> str:
    return f"{count // 1_000_000}M" if count >= 1_000_000 else f"{count // 1000}k" if count >= 1000 else str(count)


def transferred() -> tuple[int, int]:
    """The bytes that this process has read and written so far, whether or not they reached the disk."""
    told = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(told["rchar"]), int(told["wchar"])


def flat(root: Path, count: int) -> None:
    """Land and publish 10 random rows of a table of this size, the second time; deleted keys are looked up too."""
    with Metastore(root / str(count)) as metastore:
        schema = {"id": "int64", "at": "int64", "v": "double", "s": "string"}
        table = StreamTable.create(metastore, ["t"], schema, keys="id", sequence="at")
        for start in range(0, count, 1_000_000):
            table.upsert(rows(np.arange(start, min(start + 1_000_000, count)), 1))
            table.publish()
        table.delete(RANDOM.choice(count, count // 20, replace=False).tolist())
        table.publish()
        for at in (10, 11):
            before = transferred()
            table.upsert(rows(RANDOM.choice(count, 10, replace=False), at))
            table.publish()
            read, written = (now - then for now, then in zip(transferred(), before, strict=True))
        print(f"10 rows into {count}: {read / 1e6:.2f} MB read, {written / 1e6:.2f} MB written")


def partial(root: Path, count: int) -> None:
    """Publish a tenth of a table as whole rows and as rows that lack the text, in turn; the CPU seconds of each."""
    schema = {"id": "int64", "at": "int64", "v": "double", "s": "string"}
    spent: dict[str, list[float]] = {"whole": [], "partial": []}
    with Metastore(root / "lake") as metastore:
        tables = {kind: StreamTable.create(metastore, [kind], schema, keys="id", sequence="at") for kind in spent}
        for table in tables.values():
            table.upsert(rows(np.arange(count), 1))
            table.publish()
        for at in range(2, 9):
            source = rows(RANDOM.choice(count, count // 10, replace=False), at)
            for kind, table in tables.items():
                table.upsert(source if kind == "whole" else source.drop_columns(["s"]))
                start = time.process_time()
                table.publish()
                spent[kind].append(time.process_time() - start)
    whole, less = (float(np.median(spent[kind][1:])) for kind in ("whole", "partial"))
    print(f"publish of {count // 10} of {count}: whole {whole:.3f} s CPU, partial {less:.3f} s, {less / whole:.2f}x")


def one_key(root: Path, count: int) -> None:
    """Read single keys by a filter: of the base alone, with a tail of ten rows, and with one of a tenth."""
    schema = {"id": "int64", "at": "int64", "v": "double", "s": "string"}
    with Metastore(root / "lake") as metastore:
        table = StreamTable.create(metastore, ["t"], schema, keys="id", sequence="at")
        table.upsert(rows(np.arange(count), 1))
        table.publish()
        floor = 0.0
        for name, tail in (("without a tail", 0), ("with a tail of 10", 10), (f"of {count // 10}", count // 10)):
            if tail:
                table.upsert(rows(np.arange(0, count, count // tail), 2))
            spent = []
            for key in RANDOM.choice(count, 20, replace=False).tolist():
                start = time.process_time()
                assert table.to_arrow(filter=f"id = {key}").num_rows == 1
                spent.append(time.process_time() - start)
            middle = float(np.median(spent))
            floor = floor or middle
            print(f"one key of {count} {name}: {middle * 1000:.2f} ms CPU, {middle / floor:.1f}x")


def positions(root: Path, count: int) -> None:
    """Publish as many rows with their history from few transactions and from many, in the process that landed them and
    in one that reads their files; the CPU seconds of each."""
    schema = {"id": "int64", "at": "int64", "v": "double", "s": "string"}
    spent: dict[tuple[int, bool], float] = {}
    for opened in (False, True):
        for number in (10, 2_000):
            path, history = [f"t{number}{opened}"], {"history": "scd2"}
            with Metastore(root / "lake") as metastore:
                table = StreamTable.create(metastore, path, schema, keys="id", sequence="at", properties=history)
                for at in range(number):
                    table.upsert(rows(RANDOM.choice(count // 5, count // number, replace=False), at))
                if not opened:
                    spent[number, opened] = cpu_seconds(table.publish)
            if opened:
                with Metastore(root / "lake") as metastore:
                    spent[number, opened] = cpu_seconds(StreamTable(metastore, path).publish)
        few, many = spent[10, opened], spent[2_000, opened]
        where = "opened anew" if opened else "where they landed"
        print(f"history of {count} rows, {where}: 10 positions {few:.2f} s CPU, 2,000 {many:.2f} s, {many / few:.1f}x")


def cpu_seconds(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spread(folder)
        if sys.argv[1:2] == ["--partial"]:
            partial(Path(folder), int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000)
        elif sys.argv[1:2] == ["--key"]:
            one_key(Path(folder), int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000)
        elif sys.argv[1:2] == ["--positions"]:
            positions(Path(folder), int(sys.argv[2]) if len(sys.argv) > 2 else 20_000)
        elif sys.argv[1:2] == ["flat"]:
            for size in sys.argv[2:] or ["250000", "1000000"]:
                flat(Path(folder), int(size))
        else:
            made = run(Path(folder), int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
            if len(sys.argv) < 2 or int(sys.argv[1]) >= 1_000_000:
                made.write(f"Medians of {TURNS} turns, ratio as peer over ours, of the turns. {load()}")
