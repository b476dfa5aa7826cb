"""The fresh read of a stream table through Spark, beside the read of it published and a merge written by hand.

`python -m benchmarks.pipeline_reads [rows] [rounds]` (1,000,000, 5): a base of so many rows and a tail of a tenth of
them, half of those updates. All to the noop sink, in one warm session, in turns; the best wall time and its CPU.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
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

SCHEMA = {"id": "bigint", "at": "bigint", "amount": "double", "note": "string"}


def prepared(folder: Path, total: int) -> SparkSession:
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
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", "4g").config("spark.ui.showConsoleProgress", "false")
    return configure(builder, "lake", root=str(folder / "lake"), impl="metastore").getOrCreate()


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
        "Spark: row_number over Parquet": lambda: to_nowhere(merged()),
        "Spark: max_by over Parquet": lambda: to_nowhere(grouped()),
    }


def run(folder: Path, total: int, rounds: int) -> list[str]:
    """The lines of a table of what each way costs."""
    spark = prepared(folder, total)
    found: dict[str, list[Turn]] = {}
    try:
        ways = actions(spark, folder)
        warm = 2 if total <= 2_000_000 else 1
        for number in range(warm + rounds):
            for name, action in ways.items():
                turn = take_turn(action)
                if number >= warm:
                    found.setdefault(name, []).append(turn)
    finally:
        spark.stop()
    lines = [f"| {total:,} rows and a tail of {total // 10:,} | wall s | CPU s |", "|---|---|---|"]
    for name, turns in found.items():
        best = min(turns, key=lambda turn: turn.wall)
        lines.append(f"| {name} | {best.wall:.3f} | {best.cpu:.2f} |")
        print(lines[-1], flush=True)
    return lines


def main(total: int, rounds: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="headwater-bench-"))
    try:
        lines = run(folder, total, rounds)
    finally:
        shutil.rmtree(folder)
    RESULTS.mkdir(exist_ok=True)
    head = (
        f"# Fresh reads through Spark\n\n`python -m benchmarks.pipeline_reads {total} {rounds}`: best of {rounds}\n\n"
    )
    (RESULTS / "pipeline-reads.md").write_text(head + "\n".join(lines) + "\n")


if __name__ == "__main__":
    given = [int(argument) for argument in sys.argv[1:]]
    main(*(given + [1_000_000, 5][len(given) :]))
