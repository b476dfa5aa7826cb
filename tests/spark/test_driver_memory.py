"""A driver that touches no row: its memory does not follow the rows that are published and computed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS, WIDTH = 1_500_000, 400
"""Of 600 MB of text the driver may hold far less than a part."""
MOST_MB = 250
PROGRAM = """
import json, resource, sys
from pyspark.sql import SparkSession
from headwater.catalog import Catalog
from headwater.pipeline import backfill, ingest, publish
from headwater.work import SparkRunner

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

folder, rows, width = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
sys.path.insert(0, folder)
spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.driver.memory", "1g")
    .config("spark.ui.showConsoleProgress", "false").config("spark.sql.execution.arrow.maxRecordsPerBatch", "20000")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
runner, catalog = SparkRunner(spark, driver_rows=0), Catalog(folder + "/lake", impl="metastore")
table = catalog.create_stream_table("raw.t", {"id": "bigint", "note": "string"}, keys=["id"])
small = spark.range(0, 1000, 1, 2).selectExpr("id", f"rpad(cast(id AS STRING), {width}, 'x') AS note")
ingest(runner, catalog, "raw.t", small)
publish(runner, catalog, "raw.t")
before = peak()
large = spark.range(0, rows, 1, 8).selectExpr("id", f"rpad(cast(id AS STRING), {width}, cast(id AS STRING)) AS note")
ingest(runner, catalog, "raw.t", large)
assert publish(runner, catalog, "raw.t").where.place == "executors"
column = {"function": "lengths:of", "inputs": ["note"], "type": "int64", "version": "1"}
table.set_properties({"column.size": json.dumps(column)})
assert backfill(runner, catalog, "raw.t").where.place == "executors"
grown = peak() - before
found = table.serving.count(), table.serving.count("size = %d" % width), table.stale()
print(json.dumps([grown, *found]))
"""
LENGTHS = "import pyarrow.compute as pc\n\n\ndef of(note):\n    return pc.utf8_length(note)\n"


@pytest.mark.long
def test_the_memory_of_a_driver_does_not_follow_the_rows_that_are_published_and_computed(tmp_path: Path) -> None:
    (tmp_path / "lengths.py").write_text(LENGTHS)
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path), str(ROWS), str(WIDTH)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    grown, *found = json.loads(done.stdout.splitlines()[-1])
    assert found == [ROWS, ROWS, {"size": 0}]
    assert grown < MOST_MB
