"""Spark on TPC-H: Headwater's tables against Spark's own Parquet, the same data, warm, in turns, in one session.

    pip install tpchgen-cli
    python -m benchmarks.tpch [scale] [rounds] [q1 q2 ...]

Every answer is compared before anything is timed. A ratio above 1 says Headwater is faster; the last row is the
geometric mean.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks.measure import Report
from benchmarks.spark import Turn, take_turn
from benchmarks.tpch_queries import QUERIES, TABLES, query
from headwater import Catalog
from headwater.spark import configure


def generate(folder: Path, scale: str) -> None:
    """The data as Parquet files, one folder a table."""
    command = Path(sys.executable).parent / "tpchgen-cli"
    found = str(command) if command.exists() else shutil.which("tpchgen-cli")
    if found is None:
        sys.exit("tpchgen-cli is missing: pip install tpchgen-cli")
    made = folder / "generated"
    subprocess.run([found, "parquet", "-s", scale, f"--output-dir={made}"], check=True)
    for table in TABLES:
        (folder / "parquet" / table).mkdir(parents=True)
        (made / f"{table}.parquet").rename(folder / "parquet" / table / "part.parquet")


def load(folder: Path) -> SparkSession:
    """A session that sees the data on both sides: `lake.tpch.*` and the temporary schema of Parquet views."""
    catalog = Catalog(str(folder / "lake"), impl="dir")
    for table in TABLES:
        file = pq.ParquetFile(folder / "parquet" / table / "part.parquet")
        catalog.create_table(f"tpch.{table}", file.read())
    builder: Any = SparkSession.builder.master("local[2]").config("spark.driver.memory", "6g")
    builder = builder.config("spark.sql.shuffle.partitions", "4").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    spark: SparkSession = configure(builder, "lake", root=str(folder / "lake"), impl="dir").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.sql("CREATE DATABASE files")
    for table in TABLES:
        spark.sql(f"CREATE TABLE files.{table} USING parquet LOCATION '{folder}/parquet/{table}'")
        spark.sql(f"ANALYZE TABLE files.{table} COMPUTE STATISTICS")
    return spark


def rows(spark: SparkSession, text: str) -> list[Any]:
    found = spark.sql(text).collect()
    return [tuple(round(cell, 6) if isinstance(cell, float) else cell for cell in row) for row in found]


def measure(spark: SparkSession, name: str, rounds: int) -> tuple[Turn, Turn]:
    ours, parquet = query(name, "lake.tpch"), query(name, "spark_catalog.files")
    if rows(spark, ours) != rows(spark, parquet):
        sys.exit(f"{name}: the answers differ")
    mine, theirs = [], []
    for _ in range(rounds):
        mine.append(take_turn(lambda: spark.sql(ours).collect()))
        theirs.append(take_turn(lambda: spark.sql(parquet).collect()))
    return min(mine, key=lambda turn: turn.wall), min(theirs, key=lambda turn: turn.wall)


def main() -> None:
    scale, rounds = (sys.argv[1:3] + ["1", "5"][len(sys.argv[1:3]) :])[:2]
    chosen = sys.argv[3:] or list(QUERIES)
    folder = Path(tempfile.mkdtemp(prefix="headwater-tpch-"))
    try:
        generate(folder, scale)
        spark = load(folder)
        report = Report(
            "tpch",
            f"python -m benchmarks.tpch {scale} {rounds}",
            ("query", "ours, s", "Parquet, s", "ratio", "ours, CPU s", "Parquet, CPU s", "CPU ratio"),
        )
        ratios = []
        for name in chosen:
            ours, parquet = measure(spark, name, int(rounds))
            ratios.append(parquet.wall / ours.wall)
            report.add(
                name,
                f"{ours.wall:.2f}",
                f"{parquet.wall:.2f}",
                f"{ratios[-1]:.2f}x",
                f"{ours.cpu:.2f}",
                f"{parquet.cpu:.2f}",
                f"{parquet.cpu / max(ours.cpu, 0.01):.2f}x",
            )
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        report.add("geometric mean", "", "", f"{mean:.2f}x", "", "", "")
        if chosen == list(QUERIES):
            report.write(f"Scale {scale}, best of {rounds} turns, {len(chosen)} of {len(chosen)} answers equal.")
        spark.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
