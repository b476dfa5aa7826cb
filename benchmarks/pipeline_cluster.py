"""The pipeline as people run Spark: a slow function on one and on two workers, and the README's pipeline from cold.

`python -m benchmarks.pipeline_cluster [rows]` (60,000): a derived column whose function waits 2 ms for each row, on a
standalone cluster of one and of two workers with one core each; then `headwater run` of the README's pipeline as a new
process, on Spark of this machine and embedded. One run each.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from benchmarks.measure import RESULTS
from examples.cluster.standalone import cluster
from headwater.catalog import Catalog
from tests.docs.blocks import ROOT, blocks_of

WAIT_S = 0.002
SLOW = f"""
import time

def embed(text):
    time.sleep({WAIT_S} * len(text))
    return [len(word) for word in text.to_pylist()]
"""
PUBLISH = """
import sys, time
sys.path.insert(0, sys.argv[2])
from pyspark.sql import SparkSession
from headwater.catalog import Catalog
from headwater.pipeline import publish

spark = SparkSession.builder.master(sys.argv[1]).config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
spark.range(0, 8, 1, 8).mapInArrow(lambda batches: batches, "id bigint").count()
catalog, began = Catalog(sys.argv[2] + "/lake"), time.perf_counter()
publish(spark, catalog, "raw.t")
print(time.perf_counter() - began)
"""


def run(*command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def function(folder: Path, workers: int, rows: int) -> float:
    """Return the seconds of a publish that calls the function for every row, on so many workers."""
    folder.mkdir()
    (folder / "slow_features.py").write_text(SLOW)
    (folder / "publish.py").write_text(PUBLISH)
    column = {"function": "slow_features:embed", "inputs": ["text"], "type": "int64", "version": "1"}
    catalog, schema = Catalog(str(folder / "lake"), impl="metastore"), {"id": "bigint", "text": "string"}
    sys.path.insert(0, str(folder))
    table = catalog.create_stream_table("raw.t", schema, keys=["id"], properties={"column.size": json.dumps(column)})
    table.upsert(pa.table({"id": range(rows), "text": [f"text {n}" for n in range(rows)]}))
    with cluster(folder / "cluster", workers) as master:
        return float(run(str(folder / "publish.py"), master, str(folder)).splitlines()[-1])


def readme(folder: Path, *options: str) -> float:
    """Return the seconds of a new process that runs the README's pipeline."""
    for block in blocks_of("README.md"):
        if block.about.startswith("file: "):
            path = folder / block.about.removeprefix("file: ")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.body)
    began = time.perf_counter()
    run("-m", "headwater", "run", str(folder / "pipeline.toml"), *options)
    return time.perf_counter() - began


def main(rows: int) -> None:
    folder, lines = Path(tempfile.mkdtemp(prefix="headwater-bench-")), ["| what | wall s |", "|---|---|"]

    def add(what: str, seconds: float) -> float:
        lines.append(f"| {what} | {seconds:.1f} |")
        print(lines[-1], flush=True)
        return seconds

    try:
        add("the README's pipeline from cold, embedded", readme(folder / "embedded", "--engine", "embedded"))
        add("the README's pipeline from cold, `local[2]`", readme(folder / "spark", "--master", "local[2]"))
        told = f"{rows:,} rows of a function that waits {WAIT_S * 1000:.0f} ms"
        one = add(f"{told}, one worker", function(folder / "one", 1, rows))
        two = add(f"{told}, two workers", function(folder / "two", 2, rows))
    finally:
        shutil.rmtree(folder)
    load = f"Two workers are {one / two:.2f} times as fast. Load of the machine at the end: {os.getloadavg()[0]:.0f}."
    head = f"# The pipeline on a cluster\n\n`python -m benchmarks.pipeline_cluster {rows}`, one run each\n\n"
    (RESULTS / "pipeline-cluster.md").write_text(head + "\n".join(lines) + f"\n\n{load}\n")
    print(load)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 60_000)
