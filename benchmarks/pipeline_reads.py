"""The fresh read of a stream table through Spark, beside the read of it published and a merge written by hand.

`python -m benchmarks.pipeline_reads [rows] [rounds] [--ours] [--kept FOLDER]` (1,000,000, 5): a base of so many rows
and a tail of a tenth of them, half of those updates. All to the noop sink, in one warm session, in turns; the best and
the median of the rounds, wall and CPU. `--ours`: without the merges by hand. `--kept`: the data stays in the folder.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F

from benchmarks.measure import RESULTS
from benchmarks.pipeline import rows
from benchmarks.spark import Turn, take_turn
from headwater.catalog import Catalog
from headwater.spark import configure

HAND = "Spark:"
SCHEMA = {"id": "bigint", "at": "bigint", "amount": "double", "note": "string"}


def prepare(folder: Path, total: int) -> None:
    """The same base and tail three times: fresh, published, and as Parquet files."""
    numbers = np.random.default_rng(7)
    base, tail = total, total // 10
    updated = numbers.choice(base, tail // 2, replace=False)
    ids = numbers.permutation(np.concatenate([updated, np.arange(base, base + tail - len(updated))]))
    old, new = rows(np.arange(base), 1), rows(ids, 2)
    catalog = Catalog(str(folder / "lake"), impl="metastore")
    for name in ("fresh", "published"):
        table = catalog.create_stream_table(f"raw.{name}", SCHEMA, keys=["id"], sequence=["at"])
        table.upsert(old)
        table.publish()
        table.upsert(new)
        if name == "published":
            table.publish()
    for name, data in (("base", old), ("tail", new)):
        (folder / name).mkdir()
        pq.write_table(data, folder / name / "0.parquet", row_group_size=1 << 18)


def session(folder: Path) -> SparkSession:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", "4g").config("spark.ui.showConsoleProgress", "false")
    found: SparkSession = configure(builder, "lake", root=str(folder / "lake"), impl="metastore").getOrCreate()
    return found


def to_nowhere(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def actions(spark: SparkSession, folder: Path) -> dict[str, Callable[[], None]]:
    def merged() -> Any:
        both = spark.read.parquet(str(folder / "base")).unionByName(spark.read.parquet(str(folder / "tail")))
        newest = Window.partitionBy("id").orderBy(F.col("at").desc())
        return both.withColumn("_n", F.row_number().over(newest)).where("_n = 1").drop("_n")

    def grouped() -> Any:
        both = spark.read.parquet(str(folder / "base")).unionByName(spark.read.parquet(str(folder / "tail")))
        newest = F.max_by(F.struct("amount", "note"), "at").alias("row")
        return both.groupBy("id").agg(F.max("at").alias("at"), newest).select("id", "at", "row.*")

    return {
        "fresh read": lambda: to_nowhere(spark.table("lake.raw.fresh")),
        "published read": lambda: to_nowhere(spark.table("lake.raw.published")),
        "fresh sum of one column": lambda: to_nowhere(spark.table("lake.raw.fresh").agg(F.sum("amount"))),
        "published sum of one column": lambda: to_nowhere(spark.table("lake.raw.published").agg(F.sum("amount"))),
        f"{HAND} row_number over Parquet": lambda: to_nowhere(merged()),
        f"{HAND} max_by over Parquet": lambda: to_nowhere(grouped()),
    }


def run(folder: Path, total: int, rounds: int, ours: bool) -> list[str]:
    """The lines of a table of what each way costs."""
    if not (folder / "tail").exists():
        prepare(folder, total)
    spark = session(folder)
    found: dict[str, list[Turn]] = {}
    try:
        ways = {name: action for name, action in actions(spark, folder).items() if not (ours and HAND in name)}
        warm = 2 if total <= 2_000_000 or ours else 1
        for number in range(warm + rounds):
            for name, action in ways.items():
                turn = take_turn(action)
                if number >= warm:
                    found.setdefault(name, []).append(turn)
    finally:
        spark.stop()
    head = f"| {total:,} rows and a tail of {total // 10:,} | best wall s | CPU s | median wall s | CPU s |"
    lines = [head, "|---|---|---|---|---|"]
    for name, turns in found.items():
        walls, cpus = [turn.wall for turn in turns], [turn.cpu for turn in turns]
        best, middle = f"{min(walls):.3f} | {min(cpus):.2f}", f"{median(walls):.3f} | {median(cpus):.2f}"
        lines.append(f"| {name} | {best} | {middle} |")
        print(lines[-1], flush=True)
    return lines


def main(total: int, rounds: int, ours: bool, kept: str | None) -> None:
    folder = Path(kept if kept is not None else tempfile.mkdtemp(prefix="headwater-bench-"))
    folder.mkdir(exist_ok=True)
    try:
        lines = run(folder, total, rounds, ours)
    finally:
        if kept is None:
            shutil.rmtree(folder)
    RESULTS.mkdir(exist_ok=True)
    asked = f"python -m benchmarks.pipeline_reads {total} {rounds}{' --ours' if ours else ''}"
    head = f"# Fresh reads through Spark\n\n`{asked}`\n\n"
    (RESULTS / "pipeline-reads.md").write_text(head + "\n".join(lines) + "\n")


if __name__ == "__main__":
    given = [int(argument) for argument in sys.argv[1:] if argument.isdigit()]
    asked_rows, asked_rounds = given + [1_000_000, 5][len(given) :]
    kept_in = sys.argv[sys.argv.index("--kept") + 1] if "--kept" in sys.argv else None
    main(asked_rows, asked_rounds, "--ours" in sys.argv, kept_in)
