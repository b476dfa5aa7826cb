"""A killed driver, a retried and a speculative task: no row twice, none lost, leftovers collected."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import lance
import pytest

from headwater.catalog import Catalog
from tests.spark.cluster import HOSTS, can_listen, cluster

HERE = Path(__file__).parent
LIMIT_S = 900
"""A driver on a busy machine takes minutes to start."""
PROGRAM = """
import sys
from pyspark.sql import SparkSession
from headwater.spark import configure

root, python, statement, kind, impl = sys.argv[1:6]
builder = SparkSession.builder.master("local[2,3]").config("spark.ui.enabled", "false")
builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.sql.shuffle.partitions", "2")
builder = configure(builder, "lake", root=root, impl=impl).config("spark.headwater.python", python)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
spark.sql(f"CREATE TABLE IF NOT EXISTS lake.t (id BIGINT, n INT) {kind}")
spark.sql(statement)
print("DONE", spark.sql("SELECT count(*), count(DISTINCT id), sum(n) FROM lake.t").first())
"""


def run(
    tmp_path: Path, statement: str, fault: str = "", kind: str = "", impl: str = "dir"
) -> subprocess.CompletedProcess[str]:
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
    command = [sys.executable, str(program), str(tmp_path / "lake"), str(python), statement, kind, impl]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment, cwd=tmp_path
    )


def cause(done: subprocess.CompletedProcess[str]) -> str:
    """What it said of its failure, without the places in the code of Spark."""
    return "\n".join(line for line in done.stderr.splitlines() if not line.lstrip().startswith("at "))[-6000:]


def data_files(tmp_path: Path) -> int:
    return len(list((tmp_path / "lake" / "t.lance" / "data").glob("*.lance")))


INSERT = "INSERT INTO lake.t SELECT id, 1 FROM range(0, 1000, 1, 2)"
MANY = INSERT.replace("1000", "6000")
"""So many rows that each task writes its own; few go to the driver."""


@pytest.mark.long
def test_a_retried_task_writes_its_rows_once_and_a_killed_driver_writes_none(tmp_path: Path) -> None:
    done = run(tmp_path, INSERT, "fail-first-write")
    assert "DONE Row(count(1)=1000, count(DISTINCT id)=1000, sum(n)=1000)" in done.stdout, cause(done)
    assert (tmp_path / "failed-once").exists()
    assert data_files(tmp_path) == 3  # two of the commit, one of the attempt that failed
    killed = run(tmp_path, "UPDATE lake.t SET n = 2 WHERE id % 2 = 0", "kill-before-commit")
    assert "DONE" not in killed.stdout
    dataset = lance.dataset(str(tmp_path / "lake" / "t.lance"))
    assert dataset.version == 2
    assert dataset.count_rows("n = 1") == 1000
    assert data_files(tmp_path) > 3
    again = run(tmp_path, "CALL lake.system.cleanup('t', 0, true)")
    assert "DONE Row(count(1)=1000, count(DISTINCT id)=1000, sum(n)=1000)" in again.stdout, cause(again)
    assert data_files(tmp_path) == 2


@pytest.mark.long
def test_a_retried_task_lands_its_rows_once_and_a_killed_driver_lands_none(tmp_path: Path) -> None:
    """In a table without keys, where a row that landed twice would be there twice."""
    kind, impl = "USING stream", "metastore"
    done = run(tmp_path, MANY, "fail-first-write", kind, impl)
    assert "DONE Row(count(1)=6000, count(DISTINCT id)=6000, sum(n)=6000)" in done.stdout, cause(done)
    assert (tmp_path / "failed-once").exists()
    assert "DONE" not in run(tmp_path, MANY, "kill-before-commit", kind, impl).stdout
    table = Catalog(str(tmp_path / "lake"), impl="metastore")["t"]
    assert (table.position, table.count()) == (2, 6000)
    again = run(tmp_path, MANY, "", kind, impl)
    assert "DONE Row(count(1)=12000, " in again.stdout, cause(again)
    table.publish()
    assert table.verify() == []


@pytest.mark.long
def test_a_retried_task_and_a_killed_driver_leave_a_table_with_keys_as_one_statement_does(tmp_path: Path) -> None:
    """Its UPDATE is a delta: of files that a lost attempt wrote nothing lands, and of a killed one nothing at all."""
    kind, impl = "USING stream TBLPROPERTIES ('keys' = 'id')", "metastore"
    assert "DONE Row(count(1)=6000, " in run(tmp_path, MANY, "", kind, impl).stdout
    update = "UPDATE lake.t SET n = n + 1 WHERE id % 2 = 0"
    assert "DONE" not in run(tmp_path, update, "kill-before-commit", kind, impl).stdout
    table = Catalog(str(tmp_path / "lake"), impl="metastore")["t"]
    assert (table.position, table.count()) == (2, 6000)
    done = run(tmp_path, update, "fail-first-write", kind, impl)
    assert "DONE Row(count(1)=6000, count(DISTINCT id)=6000, sum(n)=9000)" in done.stdout, cause(done)
    assert (tmp_path / "failed-once").exists()
    table.publish()
    assert table.verify() == []


@pytest.mark.long
def test_executors_in_processes_of_their_own_need_only_the_package_and_the_jar(tmp_path: Path) -> None:
    program = PROGRAM.replace("local[2,3]", "local-cluster[2,1,1024]")
    (tmp_path / "cluster.py").write_text(program)
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "PYTHONWARNINGS": "ignore"}
    environment["PYSPARK_PYTHON"] = sys.executable
    command = [sys.executable, str(tmp_path / "cluster.py"), str(tmp_path / "lake"), sys.executable, INSERT, "", "dir"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment)
    assert "DONE Row(count(1)=1000, count(DISTINCT id)=1000, sum(n)=1000)" in done.stdout, cause(done)


SPECULATION = """
import os, sys, time
from pathlib import Path
from pyspark import TaskContext
from pyspark.sql import SparkSession
from headwater.spark import configure

master, root, marks = sys.argv[1:4]
settings = {
    "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false",
    "spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.scheduler.minRegisteredResourcesRatio": "1",
    "spark.cores.max": "2", "spark.speculation": "true", "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5", "spark.speculation.minTaskRuntime": "100ms", "spark.task.maxFailures": "2",
}
builder = SparkSession.builder.master(master)
for key, value in settings.items():
    builder = builder.config(key, value)
spark = configure(builder, "lake", root=root, impl="dir").config("spark.headwater.python", sys.executable).getOrCreate()
spark.sparkContext.setLogLevel("OFF")


def stalling(statement: str, value: int):
    '''A function whose first attempt at partition 0 stops at its last row until Spark takes it down.'''

    def stall(id: int) -> int:
        context = TaskContext.get()
        if context.partitionId() == 0 and id % 200_000 == 199_999:
            Path(marks, f"{statement}-{context.attemptNumber()}").touch()
            while context.attemptNumber() == 0:
                time.sleep(0.1)
        return value

    return spark.udf.register(f"{statement}_stalling", stall, "int")


def files(at_least: int = 0) -> int:
    '''How many data files there are; the loser's may come a little later.'''
    limit = time.monotonic() + 60
    while len(found := list(Path(root, "t.lance", "data").iterdir())) < at_least and time.monotonic() < limit:
        time.sleep(0.1)
    return len(found)


stalling("insert", 1)
stalling("update", 2)
spark.sql("CREATE TABLE lake.t (id BIGINT, n INT)")
spark.sql("INSERT INTO lake.t SELECT id, insert_stalling(id) FROM range(0, 400000, 1, 2)")
print("INSERT", files(3), spark.sql("SELECT count(*), count(DISTINCT id), sum(n) FROM lake.t").first())
spark.sql("UPDATE lake.t SET n = update_stalling(id)")
print("UPDATE", files(6), spark.sql("SELECT count(*), count(DISTINCT id), sum(n) FROM lake.t").first())
spark.sql("CALL lake.system.cleanup('t', 0, true)")
print("LEFT", files())
"""


@pytest.mark.long
def test_of_two_attempts_of_a_speculative_task_one_counts_and_the_files_of_the_other_are_collected(
    tmp_path: Path,
) -> None:
    if not all(can_listen(host) for host in HOSTS):
        pytest.skip("this system has one loopback address: no second host for a speculative task")
    (tmp_path / "program.py").write_text(SPECULATION)
    (tmp_path / "marks").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "PYTHONWARNINGS": "ignore"}
    environment |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": HOSTS[0]}
    with cluster(tmp_path, environment) as master:
        command = [sys.executable, "program.py", master, str(tmp_path / "lake"), str(tmp_path / "marks")]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment, cwd=tmp_path
        )
    attempts = {f"{statement}-{attempt}" for statement in ("insert", "update") for attempt in (0, 1)}
    assert {path.name for path in (tmp_path / "marks").iterdir()} == attempts, done.stdout + cause(done)
    assert done.stdout.splitlines() == [
        "INSERT 3 Row(count(1)=400000, count(DISTINCT id)=400000, sum(n)=400000)",
        "UPDATE 6 Row(count(1)=400000, count(DISTINCT id)=400000, sum(n)=800000)",
        "LEFT 2",
    ]
