"""A driver killed between write and commit, a retried task: no row twice, none lost, leftovers collected."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import lance
import pytest

HERE = Path(__file__).parent
PROGRAM = """
import sys
from pyspark.sql import SparkSession
from headwater.spark import configure

root, python, statement = sys.argv[1:4]
builder = SparkSession.builder.master("local[2,3]").config("spark.ui.enabled", "false")
builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.sql.shuffle.partitions", "2")
builder = configure(builder, "lake", root=root).config("spark.headwater.python", python)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
spark.sql("CREATE TABLE IF NOT EXISTS lake.t (id BIGINT, n INT)")
spark.sql(statement)
print("DONE", spark.sql("SELECT count(*), count(DISTINCT id), sum(n) FROM lake.t").first())
"""


def run(tmp_path: Path, statement: str, fault: str = "") -> subprocess.CompletedProcess[str]:
    """One driver of its own; its Python worker fails as `fault` says."""
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nexec {sys.executable} {HERE / 'killed_driver.py'}\n")
    python.chmod(0o755)
    environment = {
        **os.environ,
        "FAULT": fault,
        "FAULT_MARKER": str(tmp_path / "failed-once"),
        "PYTHONPATH": str(HERE.parents[1]),
        "PYTHONWARNINGS": "ignore",
    }
    command = [sys.executable, str(program), str(tmp_path / "lake"), str(python), statement]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, env=environment, cwd=tmp_path
    )


def data_files(tmp_path: Path) -> int:
    return len(list((tmp_path / "lake" / "t.lance" / "data").glob("*.lance")))


INSERT = "INSERT INTO lake.t SELECT id, 1 FROM range(0, 1000, 1, 2)"


def test_a_retried_task_writes_its_rows_once_and_a_killed_driver_writes_none(tmp_path: Path) -> None:
    done = run(tmp_path, INSERT, "fail-first-write")
    assert "DONE Row(count(1)=1000, count(DISTINCT id)=1000, sum(n)=1000)" in done.stdout, done.stderr[-2000:]
    assert (tmp_path / "failed-once").exists()
    assert data_files(tmp_path) == 3  # two of the commit, one of the attempt that failed
    killed = run(tmp_path, "UPDATE lake.t SET n = 2 WHERE id % 2 = 0", "kill-before-commit")
    assert "DONE" not in killed.stdout
    dataset = lance.dataset(str(tmp_path / "lake" / "t.lance"))
    assert dataset.version == 2
    assert dataset.count_rows("n = 1") == 1000
    assert data_files(tmp_path) > 3
    again = run(tmp_path, "CALL lake.system.cleanup('t', 0, true)")
    assert "DONE Row(count(1)=1000, count(DISTINCT id)=1000, sum(n)=1000)" in again.stdout, again.stderr[-2000:]
    assert data_files(tmp_path) == 2


@pytest.mark.long
def test_executors_in_processes_of_their_own_need_only_the_package_and_the_jar(tmp_path: Path) -> None:
    program = PROGRAM.replace("local[2,3]", "local-cluster[2,1,1024]")
    (tmp_path / "cluster.py").write_text(program)
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "PYTHONWARNINGS": "ignore"}
    environment["PYSPARK_PYTHON"] = sys.executable
    command = [sys.executable, str(tmp_path / "cluster.py"), str(tmp_path / "lake"), sys.executable, INSERT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environment)
    assert "DONE Row(count(1)=1000, count(DISTINCT id)=1000, sum(n)=1000)" in done.stdout, done.stderr[-2000:]
