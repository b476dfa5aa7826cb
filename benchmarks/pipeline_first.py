"""The first write of a session: a DataFrame taken into a stream table, beside the same frame written as Parquet.

`python -m benchmarks.pipeline_first [rows] [rounds]` (2,000,000 5): each turn is a new process with a new session, the
sides in turn. The frame is a Parquet file of several row groups, and its schema is all that Spark has read before.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from benchmarks.measure import Report
from benchmarks.pipeline import rows, session
from benchmarks.spark import Turn, take_turn
from headwater.catalog import Catalog
from headwater.pipeline import ingest

OURS, PARQUET = "headwater: ingest of a DataFrame", "Spark: df.write.parquet"
ROWS, ROUNDS = 2_000_000, 5


def write(side: str, folder: Path) -> Turn:
    """Return what the first write of this process takes."""
    spark = session(is_warm=False)
    frame = spark.read.parquet(str(folder / "frame.parquet"))
    own = Path(tempfile.mkdtemp(dir=folder))
    if side == PARQUET:
        taken = take_turn(lambda: frame.write.parquet(str(own / "written")))
    else:
        catalog = Catalog(str(own / "lake"), impl="metastore")
        schema = {name: kind.replace("bigint", "int64") for name, kind in frame.dtypes}
        catalog.create_stream_table("raw.t", schema, keys=["id"], sequence=["at"])
        taken = take_turn(lambda: ingest(spark, catalog, "raw.t", frame))
    spark.stop()
    return taken


def in_a_new_process(side: str, folder: Path) -> Turn:
    command = [sys.executable, "-m", "benchmarks.pipeline_first", side, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ})
    assert done.returncode == 0, done.stderr[-2000:]
    wall, cpu = done.stdout.splitlines()[-1].split()
    return Turn(float(wall), float(cpu))


def main(count: int, rounds: int) -> None:
    columns = ("turn", "ours wall s", "CPU s", "Parquet wall s", "CPU s")
    report = Report("pipeline-first", f"python -m benchmarks.pipeline_first {count} {rounds}", columns)
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as name:
        folder = Path(name)
        pq.write_table(rows(np.random.default_rng(1).permutation(count), 1), folder / "frame.parquet", 1 << 18)
        taken: dict[str, list[Turn]] = {OURS: [], PARQUET: []}
        for turn in range(rounds):
            for side, turns in taken.items():
                turns.append(in_a_new_process(side, folder))
            ours, parquet = taken[OURS][-1], taken[PARQUET][-1]
            report.add(turn + 1, *(f"{each:.2f}" for each in (ours.wall, ours.cpu, parquet.wall, parquet.cpu)))
    ours_first, theirs = taken[OURS], taken[PARQUET]
    for unit, mine, peer in (
        ("s", [each.wall for each in ours_first], [each.wall for each in theirs]),
        ("s of CPU", [each.cpu for each in ours_first], [each.cpu for each in theirs]),
    ):
        told = report.compared(f"first write of a session, {count:,} rows, {unit}", mine, peer, PARQUET, unit, 1.0)
        report.add(f"ratio, {unit}", told, "", "", "")
    report.write()


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1] in (OURS, PARQUET):
        found = write(sys.argv[1], Path(sys.argv[2]))
        print(found.wall, found.cpu)
    else:
        given = [int(each) for each in sys.argv[1:]]
        asked_rows, asked_rounds = (given + [ROWS, ROUNDS][len(given) :])[:2]
        main(asked_rows, asked_rounds)
