"""Ten changed rows into a table that grows, and a million random ones at the end: bytes read and written, by counting.

`python -m benchmarks.pipeline_growth [rows ...]` (1,000,000 10,000,000 100,000,000): one stream table of narrow rows
grows to each size, a few million new keys with every publish. At each size a new process opens it and lands and
publishes ten changed rows several times: the first time nothing is cached, the last times it is warm. The bytes are
those that went through the process's reads and writes (`/proc/self/io`: also what the system had in its cache). After
the last size a million random keys are landed and published, and what that writes is told beside the table's size.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.measure import RESULTS
from benchmarks.pipeline import size_of
from headwater.catalog import Catalog
from headwater.pipeline import ingest, publish

SCHEMA = {"id": "bigint", "at": "bigint", "value": "int"}
STEP = 5_000_000
ROUNDS = 6
FEW, MANY = 10, 1_000_000


def narrow(ids: Any, at: int) -> pa.Table:
    values = np.random.default_rng(at).integers(0, 1 << 30, len(ids)).astype(np.int32)
    return pa.table({"id": np.asarray(ids, np.int64), "at": np.full(len(ids), at), "value": values})


def counted() -> tuple[int, int]:
    """Bytes this process has read and written so far, and how often it asked for some."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["rchar"]), int(lines["wchar"])


def merged(root: str, total: int, count: int, rounds: int, at: int) -> list[dict[str, float]]:
    """What landing and publishing so many random keys costs, time after time in this process."""
    catalog = Catalog(root, impl="metastore")
    assert catalog["raw.t"].published.rows == total
    found = []
    for number in range(rounds):
        rows = narrow(np.random.default_rng(at + number).choice(total, count, replace=False), at + number)
        read, written = counted()
        wall, cpu = time.perf_counter(), time.process_time()
        ingest(None, catalog, "raw.t", rows)
        landed = counted()
        publish(None, catalog, "raw.t")
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        after = counted()
        found.append(
            {
                "land_read": landed[0] - read,
                "land_written": landed[1] - written,
                "read": after[0] - landed[0],
                "written": after[1] - landed[1],
                "wall": wall,
                "cpu": cpu,
            }
        )
    return found


def in_new_process(root: Path, total: int, count: int, rounds: int, at: int) -> list[dict[str, float]]:
    asked = [str(number) for number in (total, count, rounds, at)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.pipeline_growth", "--once", str(root), *asked],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: list[dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def grow(root: Path, start: int, total: int) -> None:
    catalog = Catalog(str(root), impl="metastore")
    if not start:
        catalog.create_stream_table("raw.t", SCHEMA, keys=["id"], sequence=["at"])
    for first in range(start, total, STEP):
        ingest(None, catalog, "raw.t", narrow(np.arange(first, min(first + STEP, total)), 1))
        publish(None, catalog, "raw.t")


def told(total: int, name: str, turns: list[dict[str, float]]) -> str:
    middle = {each: float(np.median([turn[each] for turn in turns])) for each in turns[0]}
    kilobytes = " | ".join(f"{middle[each] / 1000:,.1f}" for each in ("land_read", "land_written", "read", "written"))
    return f"| {total:,} | {name} | {kilobytes} | {middle['wall']:.3f} | {middle['cpu']:.3f} |"


def main(sizes: list[int]) -> None:
    folder = Path(tempfile.mkdtemp(prefix="headwater-bench-"))
    head = ["rows there", "changed", "land: kB read", "kB written", "publish: kB read", "kB written", "wall s", "CPU s"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    at, before = 2, 0
    try:
        for total in sizes:
            grow(folder / "lake", before, total)
            turns = in_new_process(folder / "lake", total, FEW, ROUNDS, at)
            at, before = at + ROUNDS, total
            lines.append(told(total, f"{FEW}, nothing cached", turns[:1]))
            lines.append(told(total, f"{FEW}, warm", turns[ROUNDS // 2 :]))
            print("\n".join(lines[-2:]), flush=True)
        size = size_of(folder / "lake")
        count = min(MANY, sizes[-1] // 10)
        lines.append(told(sizes[-1], f"{count:,} random", in_new_process(folder / "lake", sizes[-1], count, 2, at)))
        print(lines[-1], flush=True)
        lines += ["", f"The table and its log have {size / 1e6:,.0f} MB before the {count:,}."]
        print(lines[-1], flush=True)
    finally:
        shutil.rmtree(folder)
    RESULTS.mkdir(exist_ok=True)
    asked = f"python -m benchmarks.pipeline_growth {' '.join(map(str, sizes))}"
    told_how = (
        f"# Growth\n\n`{asked}`: medians; one process without Spark, as a publish of few rows is in any session\n\n"
    )
    (RESULTS / "pipeline-growth.md").write_text(told_how + "\n".join(lines) + "\n")


if __name__ == "__main__":
    if "--once" in sys.argv:
        place = sys.argv.index("--once")
        print(json.dumps(merged(sys.argv[place + 1], *map(int, sys.argv[place + 2 :]))))
    else:
        main([int(argument) for argument in sys.argv[1:]] or [1_000_000, 10_000_000, 100_000_000])
