"""Spark on TPC-H: Headwater's tables against Spark's own Parquet, the same data, warm, in turns, in one session.

    pip install tpchgen-cli
    python -m benchmarks.tpch [--scale 1] [--rounds 5] [--data FOLDER] [q1 q2 ...]

Every answer is compared before anything is timed. A ratio above 1 says Headwater is faster; the last row has the
geometric means. CPU is that of the whole process tree: the JVM and the Python worker. Chosen queries take the place of
their rows in the results of earlier runs. `--data` keeps the data of both sides for further runs.
"""

from __future__ import annotations

import argparse
import math
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks.measure import RESULTS, Report
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


def load(folder: Path) -> None:
    """The same data as Lance tables."""
    catalog = Catalog(str(folder / "lake"), impl="dir")
    for table in TABLES:
        file = pq.ParquetFile(folder / "parquet" / table / "part.parquet")
        catalog.create_table(f"tpch.{table}", file.read())


@contextmanager
def data(kept: Path | None, scale: str) -> Iterator[Path]:
    """A folder with the data of both sides: a kept one is filled once, another is gone afterwards."""
    folder = kept or Path(tempfile.mkdtemp(prefix="headwater-tpch-"))
    try:
        if not (folder / "lake").exists():
            folder.mkdir(parents=True, exist_ok=True)
            generate(folder, scale)
            load(folder)
        yield folder
    finally:
        if kept is None:
            shutil.rmtree(folder, ignore_errors=True)


def session(folder: Path, warehouse: str) -> SparkSession:
    """A session that sees the data on both sides: `lake.tpch.*` and the Parquet tables `files.*`."""
    builder: Any = SparkSession.builder.master("local[2]").config("spark.driver.memory", "6g")
    builder = builder.config("spark.sql.shuffle.partitions", "4").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.warehouse.dir", warehouse).config("spark.ui.showConsoleProgress", "false")
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
    return best(mine), best(theirs)


def best(turns: Sequence[Turn]) -> Turn:
    return Turn(min(turn.wall for turn in turns), min(turn.cpu for turn in turns))


COLUMNS = ("query", "ours, s", "Parquet, s", "ratio", "ours, CPU s", "Parquet, CPU s", "CPU ratio")


def cells(name: str, ours: Turn, parquet: Turn) -> tuple[str, ...]:
    wall, cpu = parquet.wall / ours.wall, parquet.cpu / max(ours.cpu, 0.01)
    walls = (f"{ours.wall:.2f}", f"{parquet.wall:.2f}", f"{wall:.2f}x")
    return (name, *walls, f"{ours.cpu:.2f}", f"{parquet.cpu:.2f}", f"{cpu:.2f}x")


def known(results: Path) -> dict[str, tuple[str, ...]]:
    """The rows of earlier runs, by query."""
    if not results.exists():
        return {}
    rows = [line.strip("| ").split(" | ") for line in results.read_text().splitlines() if line.startswith("| q")]
    return {row[0]: tuple(row) for row in rows if row[0] in QUERIES}


def mean(rows: Iterable[Sequence[str]], column: int) -> str:
    ratios = [float(row[column].rstrip("x")) for row in rows]
    return f"{math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}x"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tpch")
    parser.add_argument("--scale", default="1")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--data", type=Path)
    parser.add_argument("queries", nargs="*", metavar="q1", choices=[[], *QUERIES])
    told = parser.parse_args()
    command = f"python -m benchmarks.tpch --scale {told.scale} --rounds {told.rounds}"
    found = known(RESULTS / "tpch.md") if told.queries else {}
    with data(told.data, told.scale) as folder, tempfile.TemporaryDirectory() as warehouse:
        spark = session(folder, warehouse)
        measured = Report("tpch", command, COLUMNS)
        for name in told.queries or QUERIES:
            found[name] = cells(name, *measure(spark, name, told.rounds))
            measured.add(*found[name])
        spark.stop()
    measured.rows = []
    for name in (name for name in QUERIES if name in found):
        measured.rows.append(found[name])
    rows = list(found.values())
    measured.add("geometric mean", "", "", mean(rows, 3), "", "", mean(rows, 6))
    measured.write(
        f"Scale {told.scale}, best of {told.rounds} turns, all answers equal, {len(rows)} of {len(QUERIES)}."
    )


if __name__ == "__main__":
    main()
