"""Many rows through a driver of 1 GB: what each job of the pipeline needs of memory, in the driver and elsewhere.

`python -m benchmarks.pipeline_memory [rows] [--history]` (10,000,000): files taken in, a first publish, an increment of
a million changed rows taken in and published, a derived column of all rows filled, and a view of all rows, through a
session with `spark.driver.memory=1g` whose driver touches no row (`driver_rows = 0`). The peak of each job is sampled
twenty times a second: the driver's Python process, its JVM (which is the executor too, under `local[2]`), and the
Python workers together. `--history`: a table that keeps one.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.measure import RESULTS
from benchmarks.pipeline import rows, session
from benchmarks.spark import tree_cpu
from headwater.catalog import Catalog
from headwater.pipeline import backfill, ingest, publish
from headwater.pipeline.grammar import ViewSpec
from headwater.pipeline.views import ViewMoment, make_view
from headwater.work import SparkRunner

SCHEMA = {"id": "bigint", "at": "bigint", "amount": "double", "note": "string"}
STEP = 1_000_000
PAGE = os.sysconf("SC_PAGE_SIZE")


def resident() -> dict[str, int]:
    """Bytes in memory now: of this process, of the JVM below it, of Python processes below that."""
    found = {"driver": 0, "JVM": 0, "workers": 0}
    parents: dict[int, int] = {}
    sizes: dict[int, tuple[str, int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "stat").read_text()
            size = int((entry / "statm").read_text().split()[1]) * PAGE
        except (OSError, IndexError):
            continue
        name, fields = text[text.index("(") + 1 : text.rindex(")")], text.rsplit(")", 1)[1].split()
        parents[int(entry.name)], sizes[int(entry.name)] = int(fields[1]), (name, size)
    mine = os.getpid()
    for pid, (name, size) in sizes.items():
        above = pid
        while above not in (mine, 0) and above in parents:
            above = parents[above]
        if above == mine:
            found["driver" if pid == mine else "JVM" if name == "java" else "workers"] += size
    return found


@contextmanager
def watched(peaks: dict[str, int]) -> Iterator[None]:
    """Note the most that was in memory meanwhile."""
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.05):
            for name, size in resident().items():
                peaks[name] = max(peaks.get(name, 0), size)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def written(folder: Path, total: int) -> None:
    (folder / "base").mkdir()
    for start in range(0, total, STEP):
        table = rows(np.arange(start, min(start + STEP, total)), 1)
        pq.write_table(table, folder / "base" / f"{start:012}.parquet")
    changed = np.random.default_rng(2).choice(total + total // 20, min(STEP, total // 10), replace=False)
    pq.write_table(rows(changed, 2), folder / "changed.parquet")


def length(note: Any) -> Any:
    """Return the length of each note: the function of a derived column."""
    return pc.utf8_length(note).cast(pa.int64())


def stages(spark: Any, folder: Path, catalog: Catalog, with_history: bool) -> dict[str, Callable[[], Any]]:
    properties = {"history": "scd2"} if with_history else {}
    catalog.create_stream_table("raw.t", SCHEMA, keys=["id"], sequence=["at"], properties=properties)
    view = ViewSpec("mart.v", "SELECT id, amount * 2 AS doubled FROM raw.t", ("id",))

    def filled() -> None:
        column = {"function": "benchmarks.pipeline_memory:length", "inputs": ["note"], "type": "int64", "version": "1"}
        catalog["raw.t"].set_properties({"column.size": json.dumps(column)})
        backfill(spark, catalog, "raw.t")

    def viewed() -> None:
        make_view(catalog, view, ViewMoment(catalog, catalog.slot, ["raw.t"]), spark)
        publish(spark, catalog, "mart.v")

    return {
        "ingest": lambda: ingest(spark, catalog, "raw.t", str(folder / "base" / "*.parquet")),
        "first publish": lambda: publish(spark, catalog, "raw.t"),
        "ingest of the increment": lambda: ingest(spark, catalog, "raw.t", str(folder / "changed.parquet")),
        "publish of the increment": lambda: publish(spark, catalog, "raw.t"),
        **({} if with_history else {"backfill of a column": filled, "view of all rows, and its publish": viewed}),
    }


def main(total: int, with_history: bool) -> None:
    folder = Path(tempfile.mkdtemp(prefix="headwater-bench-"))
    told = f"{total:,} rows{', with history' if with_history else ''}"
    lines = [f"| {told} | wall s | CPU s | driver's Python MB | JVM MB | workers MB |", "|---|---|---|---|---|---|"]
    try:
        written(folder, total)
        spark = SparkRunner(session("1g"), driver_rows=0)
        catalog = Catalog(str(folder / "lake"), impl="metastore")
        for name, action in stages(spark, folder, catalog, with_history).items():
            peaks: dict[str, int] = {}
            wall, cpu = time.perf_counter(), tree_cpu()
            with watched(peaks):
                action()
            wall, cpu = time.perf_counter() - wall, tree_cpu() - cpu
            sizes = " | ".join(f"{peaks.get(of, 0) / 1e6:.0f}" for of in ("driver", "JVM", "workers"))
            lines.append(f"| {name} | {wall:.1f} | {cpu:.1f} | {sizes} |")
            print(lines[-1], flush=True)
        spark.spark.stop()
    finally:
        shutil.rmtree(folder)
    RESULTS.mkdir(exist_ok=True)
    asked = f"python -m benchmarks.pipeline_memory {total}{' --history' if with_history else ''}"
    head = f"# Memory of the pipeline\n\n`{asked}`: `spark.driver.memory=1g`, `local[2]`, `driver_rows = 0`\n\n"
    (RESULTS / f"pipeline-memory{'-history' if with_history else ''}.md").write_text(head + "\n".join(lines) + "\n")


if __name__ == "__main__":
    given = [int(argument) for argument in sys.argv[1:] if argument.isdigit()]
    main(given[0] if given else 10_000_000, "--history" in sys.argv)
