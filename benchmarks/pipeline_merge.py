"""A tenth of changed rows into a large table: ours through a warm session, deltalake's merge, a Spark job by hand.

`python -m benchmarks.pipeline_merge [rows] [rounds] [--merges | --frames]` (10,000,000, 10): wall and CPU seconds of
all, the best of the rounds and their mean (some publishes compact, others do not), the sides in turn. deltalake is
left out where it cannot be imported. The job by hand reads base and changes as Parquet, keeps the newest row of each
key and writes Parquet; it does the same every time, so it takes part in the first two rounds only. Beside it: a
DataFrame of the changed rows taken in, and written, in turns of their own after a few that warm both. `--merges`:
only ours and deltalake's; `--frames`: only a DataFrame of so many rows, in several row groups.
"""

from __future__ import annotations

import importlib.util
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from benchmarks.measure import RESULTS
from benchmarks.pipeline import Delta, Ours, rows, session
from benchmarks.spark import Turn, take_turn
from headwater.catalog import Catalog
from headwater.pipeline import ingest, publish

WARM, FRAMES = 4, 6
HAND, BY_HAND = "Spark by hand, to Parquet", 2
MERGES_ONLY, FRAMES_ONLY = "--merges", "--frames"


def merged(spark: Any, sources: list[str], target: Path) -> None:
    newest = F.max_by(F.struct("amount", "note"), "at").alias("row")
    grouped = spark.read.parquet(*sources).groupBy("id").agg(F.max("at").alias("at"), newest)
    grouped.select("id", "at", "row.*").write.mode("overwrite").parquet(str(target))


def turns(spark: Any, folder: Path, total: int, rounds: int, by_hand: int) -> dict[str, list[Turn]]:
    base = rows(np.arange(total), 0)
    pq.write_table(base, folder / "base.parquet", row_group_size=1 << 18)
    ours = Ours(folder, base)
    delta = Delta(folder, base) if importlib.util.find_spec("deltalake") else None
    del base
    found: dict[str, list[Turn]] = {}
    for at in range(1, rounds + 1):
        changed = rows(np.random.default_rng(at).choice(total, total // 10, replace=False), at)
        file = folder / f"changed{at}.parquet"
        pq.write_table(changed, file)
        for name, action in sides(spark, folder, ours, delta, changed, file).items():
            if name == HAND and at > by_hand:
                continue
            found.setdefault(name, []).append(take_turn(action))
            print(name, found[name][-1], flush=True)
    return {**found, **(frames(spark, folder, ours.catalog, file) if by_hand else {})}


def only_frames(spark: Any, folder: Path, total: int, rounds: int) -> dict[str, list[Turn]]:
    file = folder / "frame.parquet"
    pq.write_table(rows(np.random.default_rng(1).permutation(total), 1), file, row_group_size=1 << 18)
    return frames(spark, folder, Catalog(str(folder / "lake"), impl="metastore"), file, rounds)


def frames(spark: Any, folder: Path, catalog: Any, file: Path, rounds: int = FRAMES) -> dict[str, list[Turn]]:
    """A frame taken into tables that are empty, and written as Parquet."""
    frame = spark.read.parquet(str(file))
    schema = {name: kind.replace("bigint", "int64") for name, kind in frame.dtypes}
    found: dict[str, list[Turn]] = {"headwater: ingest of a DataFrame": [], "Spark: df.write.parquet": []}
    ours, parquet = found.values()
    for number in range(WARM + rounds):
        name = f"raw.frame{number}"
        catalog.create_stream_table(name, schema, keys=["id"], sequence=["at"])
        ours.append(take_turn(lambda: ingest(spark, catalog, name, frame)))  # noqa: B023
        parquet.append(take_turn(lambda: frame.write.mode("overwrite").parquet(str(folder / "written"))))
        print("frame", ours[-1], parquet[-1], flush=True)
    return {name: taken[WARM:] for name, taken in found.items()}


def sides(
    spark: Any, folder: Path, ours: Ours, delta: Delta | None, changed: pa.Table, file: Path
) -> dict[str, Callable[[], Any]]:
    found: dict[str, Callable[[], Any]] = {
        "headwater: ingest": lambda: ingest(spark, ours.catalog, "raw.t", str(file)),
        "headwater: publish": lambda: publish(spark, ours.catalog, "raw.t"),
        HAND: lambda: merged(spark, [str(folder / "base.parquet"), str(file)], folder / "merged"),
    }
    if delta is not None:
        found["deltalake: merge"] = lambda: delta.merge(changed)
    return found


def main(total: int, rounds: int, part: str) -> None:
    folder = Path(tempfile.mkdtemp(prefix="headwater-bench-"))
    try:
        spark = Ours.spark = session()
        if part == FRAMES_ONLY:
            found = only_frames(spark, folder, total, rounds)
        else:
            found = turns(spark, folder, total, rounds, 0 if part == MERGES_ONLY else BY_HAND)
        spark.stop()
    finally:
        shutil.rmtree(folder)
    what = f"{total:,} rows" if part == FRAMES_ONLY else f"{total // 10:,} into {total:,}"
    lines = [f"| {what} | best wall s | CPU s | mean wall s | CPU s | times |", "|---" * 6 + "|"]
    if part != FRAMES_ONLY:
        both = [found["headwater: ingest"], found["headwater: publish"]]
        added = [Turn(one.wall + other.wall, one.cpu + other.cpu) for one, other in zip(*both, strict=True)]
        found = {"headwater: ingest + publish": added, **found}
    for name, taken in found.items():
        wall, cpu = min(turn.wall for turn in taken), min(turn.cpu for turn in taken)
        mean = Turn(*(statistics.mean(each) for each in zip(*((t.wall, t.cpu) for t in taken), strict=True)))
        lines.append(f"| {name} | {wall:.2f} | {cpu:.2f} | {mean.wall:.2f} | {mean.cpu:.2f} | {len(taken)} |")
    print("\n".join(lines))
    RESULTS.mkdir(exist_ok=True)
    head = f"# Merges of a tenth\n\n`python -m benchmarks.pipeline_merge {total} {rounds} {part}".rstrip() + "`\n\n"
    (RESULTS / "pipeline-merge.md").write_text(head + "\n".join(lines) + "\n")


if __name__ == "__main__":
    given = [int(argument) for argument in sys.argv[1:] if argument.isdigit()]
    asked_rows, asked_rounds = given + [10_000_000, 10][len(given) :]
    main(asked_rows, asked_rounds, next((each for each in sys.argv[1:] if each in (MERGES_ONLY, FRAMES_ONLY)), ""))
