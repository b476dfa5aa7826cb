"""Spark on Lance tables against Spark's own Parquet: the same data, warm, interleaved, in one run.

    python -m benchmarks.spark [rows] [vectors] [rounds]

For each case the two sides take turns, `rounds` times after one warm-up each; the figures are the best wall time and
the CPU seconds of the whole process tree (JVM, Python workers) in that turn. A ratio above 1 says Headwater is faster.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.figures import Compared, keep
from headwater.spark import configure

HERE = Path(__file__).resolve().parent
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Turn:
    wall: float
    cpu: float


@dataclass(frozen=True)
class Case:
    name: str
    target: float
    ours: Callable[[], Any]
    parquet: Callable[[], Any]


def tree_cpu() -> float:
    """CPU seconds of this process and all its descendants, ended children included."""
    stats = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text()
            except OSError:
                continue
            fields = text.rsplit(")", 1)[1].split()
            stats[int(entry.name)] = (int(fields[1]), sum(map(int, fields[11:15])) / TICKS)
    mine, total = {os.getpid()}, 0.0
    grown = True
    while grown:
        more = {pid for pid, (parent, _) in stats.items() if parent in mine} - mine
        mine |= more
        grown = bool(more)
    for pid in mine:
        total += stats.get(pid, (0, 0.0))[1]
    return total


def take_turn(action: Callable[[], Any]) -> Turn:
    cpu, wall = tree_cpu(), time.perf_counter()
    action()
    return Turn(time.perf_counter() - wall, tree_cpu() - cpu)


def measure(case: Case, rounds: int) -> tuple[list[Turn], list[Turn]]:
    case.ours(), case.parquet()
    case.ours(), case.parquet()
    ours, parquet = [], []
    for _ in range(rounds):
        ours.append(take_turn(case.ours))
        parquet.append(take_turn(case.parquet))
    return ours, parquet


def best(turns: list[Turn]) -> Turn:
    return min(turns, key=lambda turn: turn.wall)


def scan(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def narrow(spark: SparkSession, rows: int) -> DataFrame:
    return spark.range(rows).select(
        "id",
        (F.col("id") * 7919 % 8_000_009).cast("int").alias("k"),
        (F.col("id") * 0.5).alias("x"),
        F.concat(F.lit("name-"), (F.col("id") % 100000).cast("string")).alias("name"),
        (F.col("id") % 2 == 0).alias("flag"),
        F.timestamp_seconds(F.lit(1_700_000_000) + F.col("id") % 1_000_000).alias("ts"),
    )


def wide(spark: SparkSession, rows: int) -> DataFrame:
    extra = [(F.col("id") * (index + 3) % 10007).cast("double").alias(f"c{index}") for index in range(70)]
    return spark.range(rows).select("id", *extra)


def vectors(spark: SparkSession, rows: int, dimension: int = 128) -> DataFrame:
    items = [((F.col("id") * (index + 1)) % 1013 / 1013).cast("float") for index in range(dimension)]
    return spark.range(rows).select("id", F.array(*items).alias("v"))


def structs(spark: SparkSession, rows: int) -> DataFrame:
    deep = F.struct(F.col("id").alias("p"), F.concat(F.lit("q"), (F.col("id") % 1000).cast("string")).alias("q"))
    text = F.concat(F.lit("some longer text "), (F.col("id") % 99991).cast("string"))
    whole = F.struct((F.col("id") * 7919).alias("x"), text.alias("y"), (F.col("id") * 0.5).alias("z"), deep.alias("n"))
    return spark.range(rows).select("id", F.when(F.col("id") % 10 != 0, whole).alias("s"))


class Lake:
    """The data on both sides."""

    def __init__(self, folder: Path, rows: int, vector_rows: int) -> None:
        builder = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
        )
        builder = builder.config("spark.driver.memory", "4g").config("spark.sql.adaptive.enabled", "true")
        self.spark: SparkSession = configure(builder, "lake", root=str(folder / "lake")).getOrCreate()
        self.spark.sparkContext.setLogLevel("ERROR")
        self.folder, self.rows, self.vector_rows = folder, rows, vector_rows
        self.spark.sql("CREATE NAMESPACE lake.bench")
        self._turn = 0
        self._load("narrow", narrow(self.spark, rows), "")
        self._load("wide", wide(self.spark, rows // 16), "")
        self._load("vectors", vectors(self.spark, vector_rows), "TBLPROPERTIES ('vector.v' = '128')")
        self._load("structs", structs(self.spark, rows // 4), "")
        self._load("small", narrow(self.spark, 100), "")
        self.spark.sql("CALL lake.system.create_index('bench.narrow', 'k', 'BTREE')")
        self.cached = {"narrow": self._cache(narrow(self.spark, rows)), "vectors": self._cache(self.parquet("vectors"))}

    def _cache(self, frame: DataFrame) -> DataFrame:
        return frame

    def _load(self, name: str, frame: DataFrame, properties: str) -> None:
        frame.write.parquet(str(self.folder / "parquet" / name))
        columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in frame.schema)
        self.spark.sql(f"CREATE TABLE lake.bench.{name} ({columns}) {properties}")
        frame.writeTo(f"lake.bench.{name}").append()

    def ours(self, name: str) -> DataFrame:
        return self.spark.table(f"lake.bench.{name}")

    def parquet(self, name: str) -> DataFrame:
        return self.spark.read.parquet(str(self.folder / "parquet" / name))

    def write_ours(self, name: str, properties: str = "") -> None:
        source = self.cached[name]
        columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in source.schema)
        self._turn += 1
        table = f"lake.bench.w{self._turn}"
        self.spark.sql(f"CREATE TABLE {table} ({columns}) {properties}")
        source.writeTo(table).append()
        self.spark.sql(f"DROP TABLE {table}")

    def write_parquet(self, name: str) -> None:
        target = self.folder / "parquet" / "written"
        self.cached[name].write.mode("overwrite").parquet(str(target))
        shutil.rmtree(target)


def case(lake: Lake, name: str, target: float, table: str, action: Callable[[DataFrame], Any]) -> Case:
    return Case(name, target, lambda: action(lake.ours(table)), lambda: action(lake.parquet(table)))


def cases(lake: Lake) -> list[Case]:
    keys = [(index * 7907) % 8_000_009 for index in range(1000)]
    wanted = f"k IN ({', '.join(map(str, keys))})"  # text: a thousand literals made one by one cost more than the query
    both: list[tuple[str, float, str, Callable[[DataFrame], Any]]] = [
        ("full scan, 6 columns", 1.0, "narrow", scan),
        ("count(*)", 2.0, "narrow", lambda f: f.count()),
        ("count(*) where an unindexed column", 2.0, "narrow", lambda f: f.where("x > 1000.5").count()),
        ("count(*) where the indexed column", 2.0, "narrow", lambda f: f.where("k > 7200000").count()),
        ("sum of one column", 1.2, "narrow", lambda f: f.agg(F.sum("x")).collect()),
        ("sum of an expression", 0.8, "narrow", lambda f: f.agg(F.sum(F.col("x") * 2 + F.col("k"))).collect()),
        ("group by", 0.8, "narrow", lambda f: f.groupBy("flag").agg(F.sum("x")).collect()),
        ("2 of 71 columns", 1.2, "wide", lambda f: scan(f.select("id", "c35"))),
        ("rows of 1,000 indexed keys", 5.0, "narrow", lambda f: f.where(wanted).collect()),
        ("vectors, 128 dimensions", 1.0, "vectors", scan),
        ("one field of a struct of five", 1.0, "structs", lambda f: f.agg(F.sum("s.x")).collect()),
        ("a filter on 100 rows (under 0.3 s)", 1.0, "small", lambda f: f.where("k < 1000000").collect()),
    ]
    found = [case(lake, *row) for row in both]
    vector = "TBLPROPERTIES ('vector.v' = '128')"
    found.append(Case("write rows", 1.2, lambda: lake.write_ours("narrow"), lambda: lake.write_parquet("narrow")))
    found.append(
        Case("write vectors", 2.0, lambda: lake.write_ours("vectors", vector), lambda: lake.write_parquet("vectors"))
    )
    return found


def report(lake: Lake, rounds: int, only: str, compared: list[Compared]) -> str:
    lines = [
        f"# Spark on Lance and on Parquet: {lake.rows:,} x 6 rows, {lake.vector_rows:,} x 128-dim vectors",
        "",
        f"`python -m benchmarks.spark {lake.rows} {lake.vector_rows} {rounds}`, 2 cores, local[2], warm, in turns,",
        "best turn of each side. A ratio above 1 says Headwater is faster.",
        "",
        "| case | ours wall s / CPU s | Parquet wall s / CPU s | ratio wall | ratio CPU | wanted |",
        "|---|---|---|---|---|---|",
    ]
    print("\n".join(lines))
    for each in cases(lake):
        if only and only not in each.name:
            continue
        mine, theirs = measure(each, rounds)
        ours, parquet = best(mine), best(theirs)
        walls, peers = (tuple(turn.wall for turn in side) for side in (mine, theirs))
        compared.append(Compared(f"Spark: {each.name}", "s", walls, peers, "Parquet", each.target))
        lines.append(
            f"| {each.name} | {ours.wall:.2f} / {ours.cpu:.2f} | {parquet.wall:.2f} / {parquet.cpu:.2f} "
            f"| {parquet.wall / ours.wall:.2f} | {parquet.cpu / max(ours.cpu, 0.01):.2f} | {each.target} |"
        )
        print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


def main() -> None:
    rows, vector_rows, rounds = (
        int(sys.argv[i]) if len(sys.argv) > i else d for i, d in ((1, 8_000_000), (2, 300_000), (3, 5))
    )
    only = sys.argv[4] if len(sys.argv) > 4 else ""
    folder = Path(tempfile.mkdtemp(prefix="headwater-bench-"))
    try:
        compared: list[Compared] = []
        text = report(Lake(folder, rows, vector_rows), rounds, only, compared)
        if not only:
            keep("spark", f"python -m benchmarks.spark {rows} {vector_rows} {rounds}", compared, ())
            (HERE / "results").mkdir(exist_ok=True)
            (HERE / "results" / "spark.md").write_text(text)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
