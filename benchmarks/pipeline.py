"""The pipeline against merges of others: land + publish into a table that is there, wall seconds and bytes written.

`python -m benchmarks.pipeline [rows] [rounds] [--spark]` (1,000,000 6): 10 and rows/10 changed rows into so many;
beside it `merge_insert` of pylance with a BTREE on the key and without, deltalake where it can be imported
(`pip install --target D deltalake`, PYTHONPATH=D), and Debezium files taken in. With --spark ours goes through a warm
session (a small table is published a few times first), and beside the Debezium files stands the job that one would
write by hand: `spark.read.json`, the newest event of each key, Parquet. One run, the sides in turn; means and best of
wall and CPU, and each peer's mean in units of ours.
`python -m benchmarks.pipeline shares [rows]` (10,000,000): a first publish by executors, and the driver's peak memory.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

from benchmarks.measure import RESULTS
from benchmarks.spark import Turn, take_turn
from headwater.catalog import Catalog
from headwater.pipeline import ingest, publish

ROUNDS = 6
WARM = 40
"""Publishes of a small table before the turns. The JVM compiles what serializes jobs after 30 to 45 of them, which
takes 0.2 s of CPU each time, and belongs to no publish."""


def rows(ids: Any, at: int) -> pa.Table:
    count = len(ids)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "at": pa.array(np.full(count, at), pa.int64()),
            "amount": pa.array(np.random.default_rng(at).random(count)),
            "note": pa.array([f"note {n % 1000}" for n in range(count)]),
        }
    )


def mean_of(turns: list[Turn]) -> Turn:
    """The means. A process that ends takes its CPU seconds with it: such a turn does not count for those."""
    cpu = [turn.cpu for turn in turns if turn.cpu >= 0]
    return Turn(statistics.mean(turn.wall for turn in turns), statistics.mean(cpu or [0.0]))


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


class Ours:
    name = "headwater: ingest + publish"

    spark: Any = None

    def __init__(self, folder: Path, base: pa.Table) -> None:
        self.folder = folder / "ours"
        self.catalog = Catalog(str(self.folder), impl="metastore")
        schema = {name: str(base.schema.field(name).type) for name in base.schema.names}
        self.catalog.create_stream_table("raw.t", schema, keys=["id"], sequence=["at"])
        self.merge(base)

    def merge(self, changed: pa.Table) -> None:
        ingest(self.spark, self.catalog, "raw.t", changed)
        publish(self.spark, self.catalog, "raw.t")


class Raw:
    name = "pylance: merge_insert"

    def __init__(self, folder: Path, base: pa.Table) -> None:
        self.folder = folder / "raw.lance"
        lance.write_dataset(base, self.folder).create_scalar_index("id", "BTREE")

    def merge(self, changed: pa.Table) -> None:
        merging = lance.dataset(self.folder).merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        merging.execute(changed)


class Unindexed(Raw):
    name = "pylance: merge_insert, no index"

    def __init__(self, folder: Path, base: pa.Table) -> None:
        self.folder = folder / "unindexed.lance"
        lance.write_dataset(base, self.folder)


class Delta:
    name = "deltalake: merge"

    def __init__(self, folder: Path, base: pa.Table) -> None:
        import deltalake  # type: ignore[import-not-found]

        self.folder = folder / "delta"
        self._open: Any = lambda: deltalake.DeltaTable(str(self.folder))
        deltalake.write_deltalake(str(self.folder), base)

    def merge(self, changed: pa.Table) -> None:
        merging = self._open().merge(changed, "t.id = s.id", source_alias="s", target_alias="t")
        merging.when_matched_update_all().when_not_matched_insert_all().execute()


FILES = 4


def debezium(folder: Path, count: int, spark: Any) -> tuple[float, float | None, int]:
    """Seconds to take Debezium files of so many events, by us and by hand, and their bytes."""
    events = folder / "events"
    events.mkdir()
    for part in range(FILES):
        with (events / f"{part}.json").open("w") as out:
            for n in range(part, count, FILES):
                row = {"id": n, "at": n, "amount": n / 7, "note": f"note {n % 1000}"}
                out.write(json.dumps({"op": "c", "before": None, "after": row, "source": {"lsn": n}}) + "\n")
    schema = {"id": "bigint", "at": "bigint", "amount": "double", "note": "string"}
    walls = []
    by_hand = []
    for turn in range(2):  # the first warms both
        catalog = Catalog(str(folder / f"cdc{turn}"), impl="metastore")
        catalog.create_stream_table("raw.t", schema, keys=["id"], sequence=["at"])
        source = str(events / "*.json")
        walls.append(timed(lambda: ingest(spark, catalog, "raw.t", source, format="debezium")))  # noqa: B023
        if spark is not None:
            by_hand.append(timed(lambda: merged_by_hand(spark, str(events), str(folder / f"hand{turn}"))))  # noqa: B023
    return walls[-1], by_hand[-1] if by_hand else None, size_of(events)


def merged_by_hand(spark: Any, events: str, target: str) -> None:
    """The newest event of each key, as one writes it in Spark."""
    from pyspark.sql import functions as F

    kinds = "op STRING, before STRUCT<id: BIGINT>, source STRUCT<lsn: BIGINT>, "
    kinds += "after STRUCT<id: BIGINT, at: BIGINT, amount: DOUBLE, note: STRING>"
    frame = spark.read.schema(kinds).json(events)
    keyed = frame.withColumn("key", F.coalesce("after.id", "before.id"))
    newest = keyed.groupBy("key").agg(F.max_by(F.struct("op", "after"), "source.lsn").alias("last"))
    newest.where("last.op <> 'd'").select("last.after.*").write.parquet(target)


def session(memory: str = "2g", is_warm: bool = True) -> Any:
    from pyspark.sql import SparkSession

    from headwater.spark.build import ensure_jar

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: Any = SparkSession.builder.master("local[2]").config("spark.driver.memory", memory)
    builder = builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "4")
    for key, value in (("sql.execution.arrow.maxRecordsPerBatch", "65536"), ("headwater.python", sys.executable)):
        builder = builder.config(f"spark.{key}", value)  # as `configure` sets it
    builder = builder.config("spark.jars", str(ensure_jar()))
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    if is_warm:
        spark.range(10).mapInArrow(lambda batches: batches, "id bigint").count()
    return spark


def shares(total: int) -> None:
    """A first publish of so many rows by executors: seconds, and how much memory this process needed at most."""
    import resource

    spark = session()
    folder = Path(tempfile.mkdtemp(prefix="headwater-bench-"))
    try:
        catalog = Catalog(str(folder / "lake"), impl="metastore")
        schema = {"id": "bigint", "at": "bigint", "amount": "double", "note": "string"}
        catalog.create_stream_table("raw.t", schema, keys=["id"], sequence=["at"])
        for start in range(0, total, 1_000_000):
            ingest(None, catalog, "raw.t", rows(np.arange(start, min(start + 1_000_000, total)), 1))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        seconds = timed(lambda: publish(spark, catalog, "raw.t"))
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        published = catalog["raw.t"].published
        assert published is not None
        line = (
            f"| first publish of {published.rows:,} rows by executors | {seconds:.1f} s | peak of the driver's Python "
        )
        line += f"{after:.0f} MB (before it {before:.0f} MB) |"
        print(line)
        RESULTS.mkdir(exist_ok=True)
        told = f"# Publishing in shares\n\n`python -m benchmarks.pipeline shares {total}`\n\n{line}\n"
        (RESULTS / "pipeline-shares.md").write_text(told)
    finally:
        shutil.rmtree(folder)


def warm(folder: Path) -> None:
    """Publish a small table several times, so that the session has run such jobs before."""
    small = Ours(folder / "warm", rows(np.arange(30_000), 0))
    for at in range(1, WARM):
        small.merge(rows(np.arange(at, 20_000 + at), at))


def main(total: int, rounds: int, with_spark: bool) -> None:
    Ours.spark = session() if with_spark else None
    folder = Path(tempfile.mkdtemp(prefix="headwater-bench-"))
    asked = f"{total} {rounds}{' --spark' if with_spark else ''}"
    lines = [f"`python -m benchmarks.pipeline {asked}`: means (best) of {rounds}; bytes written in all rounds", ""]
    head = ("side", "wall s", "CPU s", "ours / it, wall", "CPU", "bytes")
    lines += ["| changed rows | " + " | ".join(head) + " |", "|---" * 7 + "|"]
    try:
        warm(folder)
        base = rows(np.arange(total), 0)
        kinds: list[Any] = [Ours, Raw, Unindexed, *([Delta] if importlib.util.find_spec("deltalake") else [])]
        sides = [kind(folder, base) for kind in kinds]
        at = 0
        for count in (10, total // 10):
            turns: dict[str, list[Turn]] = {side.name: [] for side in sides}
            before = {side.name: size_of(side.folder) for side in sides}
            for _ in range(rounds):
                at += 1
                changed = rows(np.random.default_rng(at).choice(total, count, replace=False), at)
                for side in sides:
                    turns[side.name].append(take_turn(lambda side=side, changed=changed: side.merge(changed)))  # type: ignore[misc]
            ours = mean_of(turns[Ours.name])
            for side in sides:
                taken = turns[side.name]
                mean, best = (
                    mean_of(taken),
                    Turn(min(each.wall for each in taken), min(max(each.cpu, 0.0) for each in taken)),
                )
                told = [f"{mean.wall:.3f} ({best.wall:.3f})", f"{mean.cpu:.2f} ({best.cpu:.2f})"]
                told += [f"{ours.wall / mean.wall:.2f}", f"{ours.cpu / max(mean.cpu, 0.001):.2f}"]
                told.append(f"{size_of(side.folder) - before[side.name]:,}")
                lines.append(f"| {count:,} into {total:,} | {side.name} | {' | '.join(told)} |")
                print(lines[-1], flush=True)
        events = total // 10
        seconds, by_hand, size = debezium(folder, events, Ours.spark)
        lines.append(f"| {events:,} Debezium events | headwater: ingest | {seconds:.3f} | | | | {size:,} read |")
        if by_hand is not None:
            told_size = f"{by_hand:.3f} | | {seconds / by_hand:.2f} | | {size:,} read"
            lines.append(f"| {events:,} Debezium events | Spark by hand, to Parquet | {told_size} |")
        print("\n".join(lines[-2:]), flush=True)
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"pipeline{'-spark' if with_spark else ''}.md").write_text(
            "# Pipeline\n\n" + "\n".join(lines) + "\n"
        )
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1:] if text.isdigit()]
    if "shares" in sys.argv:
        shares(numbers[0] if numbers else 10_000_000)
    else:
        asked_rows, asked_rounds = (numbers + [1_000_000, ROUNDS][len(numbers) :])[:2]
        main(asked_rows, asked_rounds, "--spark" in sys.argv)
