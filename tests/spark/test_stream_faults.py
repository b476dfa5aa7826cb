"""A driver killed at the commit of a stream's batch: run again, every row of the log is there once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.catalog import Catalog

HERE = Path(__file__).parent
PROGRAM = """
import sys
from pyspark.sql import SparkSession
from headwater.spark import configure

root, python, checkpoint = sys.argv[1:4]
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.sql.shuffle.partitions", "2")
builder = configure(builder, "lake", root=root, impl="metastore").config("spark.headwater.python", python)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
frame = spark.readStream.option("maxPositionsPerTrigger", "1").option("startingVersion", "1").table("lake.raw.source")
writer = frame.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
writer.toTable("lake.raw.target").awaitTermination()
print("DONE")
"""


def run(tmp_path: Path, fault: str) -> bool:
    """One driver of its own; whether it came to its end."""
    (tmp_path / "program.py").write_text(PROGRAM)
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nexec {sys.executable} {HERE / 'killed_stream.py'}\n")
    python.chmod(0o755)
    environment = {**os.environ, "FAULT": fault, "PYTHONPATH": str(HERE.parents[1]), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "program.py", str(tmp_path / "lake"), str(python), str(tmp_path / "checkpoint")]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=False, env=environment, cwd=tmp_path
    )
    assert fault or "DONE" in done.stdout, done.stderr[-2000:]
    return "DONE" in done.stdout


@pytest.mark.long
def test_a_killed_driver_and_a_lost_commit_log_leave_every_row_once(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path / "lake"), impl="metastore")
    source, target = (
        catalog.create_stream_table(f"raw.{name}", {"id": "bigint", "at": "bigint"}) for name in ("source", "target")
    )
    for at in range(3):
        source.append([{"id": n, "at": at} for n in range(100)])
    assert not run(tmp_path, "before")
    assert target.count() == 0
    assert not run(tmp_path, "after")
    assert target.count() == 100
    assert not run(tmp_path, "after")  # the same batch is passed over, then the driver is killed again
    assert (target.count(), target.position) == (100, 1)
    assert run(tmp_path, "")
    shutil.rmtree(tmp_path / "checkpoint" / "commits")
    source.append([{"id": 1, "at": 9}])
    assert run(tmp_path, "")
    found = sorted((row["at"], row["id"]) for row in target.to_arrow().to_pylist())
    assert found == [*((at, n) for at in range(3) for n in range(100)), (9, 1)]
    assert target.position == 4
    (reader,) = source.readers().values()
    assert reader >= 3
