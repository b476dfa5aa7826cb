"""Writes into stream tables on a cluster whose tasks have twins and whose executors are killed: see test_twins.py.

Arguments: the address of the master, and a folder. What there is in the end is printed as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

from headwater.catalog import Catalog
from headwater.pipeline import backfill, index, ingest, publish
from headwater.pipeline.grammar import ViewSpec
from headwater.pipeline.views import ViewMoment, make_view
from headwater.spark import configure
from headwater.work import SparkRunner, Task

ACTS = '''
import os, signal, time
from pathlib import Path

MARKS = Path({marks!r})


def stall(name, id, last):
    """The first attempt at partition 0 stops at a row until Spark takes it down, and a twin waits until it is there."""
    if id != last:
        return
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is not None and context.partitionId() == 0:
        (MARKS / f"{{name}}-{{context.attemptNumber()}}").touch()
        while context.attemptNumber() == 0 or not (MARKS / f"{{name}}-0").exists():
            time.sleep(0.1)


def die(name):
    """Kills the executor that it runs in, once."""
    mark, stat = MARKS / name, Path(f"/proc/{{os.getppid()}}/stat").read_text()
    executor = int(stat.rpartition(")")[2].split()[1])
    if not mark.exists():
        mark.touch()
        assert b"CoarseGrainedExecutorBackend" in Path(f"/proc/{{executor}}/cmdline").read_bytes()
        os.kill(executor, signal.SIGKILL)
        time.sleep(60)


def lengths(name):
    return [len(word) for word in name.to_pylist()]


def lengths_with_a_twin(name):
    stall("publish", 0, 0)
    return lengths(name)


def lengths_of_the_dead(name):
    die("publish-died")
    return lengths(name)


def negative(name):
    die("backfill-died")
    return [-len(word) for word in name.to_pylist()]
'''
ROWS = 4_000
LAST = ROWS // 2 - 1


def session(master: str, folder: Path) -> SparkSession:
    settings = {
        "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false",
        "spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.cores.max": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1",
        "spark.speculation.task.duration.threshold": "15s",
        "spark.speculation": "true", "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.5", "spark.speculation.minTaskRuntime": "100ms",
        "spark.sql.shuffle.partitions": "2",
    }  # fmt: skip
    builder = SparkSession.builder.master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    builder = configure(builder, "flow", root=str(folder / "lake"), impl="metastore")
    found: SparkSession = builder.config("spark.headwater.python", sys.executable).getOrCreate()
    found.sparkContext.setLogLevel("OFF")
    return found


def column(function: str, version: str) -> dict[str, str]:
    told = {"function": f"acts:{function}", "inputs": ["name"], "type": "int64", "version": version}
    return {"column.size": json.dumps(told)}


def kill_an_executor(spark: Any, mark: Path, group: str = "") -> None:
    """Kill an executor of this very driver once a task runs.

    `group`: a group of jobs; the executor is killed once a whole stage of it is done, with the shuffle that it wrote.
    """
    port = spark.sparkContext.getConf().get("spark.driver.port")
    tracker = spark.sparkContext.statusTracker()
    limit = time.monotonic() + 120
    while time.monotonic() < limit:
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)] if group else []
        ids = [id for job in jobs if job is not None for id in job.stageIds] if group else tracker.getActiveStageIds()
        stages = [stage for id in ids if (stage := tracker.getStageInfo(id)) is not None]
        if any(each.numCompletedTasks == each.numTasks if group else each.numActiveTasks for each in stages):
            break
        time.sleep(0.01)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        is_executor = any(word.endswith(b"CoarseGrainedExecutorBackend") for word in words)
        if is_executor and any(word.endswith(f"@127.0.0.1:{port}".encode()) for word in words):
            os.kill(int(folder.name), signal.SIGKILL)
            mark.touch()
            return


class KillingRunner(SparkRunner):
    """A runner that loses an executor in the job whose words begin with `word`."""

    def __init__(self, spark: Any, word: str, mark: Path) -> None:
        super().__init__(spark, driver_rows=0)
        self.word, self.mark = word, mark

    def run(self, tasks: Sequence[Task], what: str = "") -> list[Any]:
        if not what.startswith(self.word):
            return super().run(tasks, what)
        killer = threading.Thread(target=kill_an_executor, args=(self.spark, self.mark))
        killer.start()
        try:
            return super().run(tasks, what)
        finally:
            killer.join()


def twins(spark: Any, catalog: Catalog) -> None:
    import acts  # type: ignore[import-not-found]

    def valued(name: str, value: int) -> Any:
        def run(id: int) -> int:
            acts.stall(name, id, LAST)
            return value

        return spark.udf.register(f"{name}_twin", run, "int")

    for name, value in (("insert", 1), ("update", 2)):
        valued(name, value)
    catalog.create_stream_table("raw.log", {"id": "bigint", "n": "int"})
    spark.sql(f"INSERT INTO flow.raw.log SELECT id, insert_twin(id) FROM range(0, {ROWS}, 1, 2)")
    schema = {"id": "bigint", "n": "int", "name": "string"}
    catalog.create_stream_table("raw.twins", schema, keys=["id"], properties=column("lengths_with_a_twin", "1"))
    frame = spark.range(0, ROWS, 1, 2).withColumn("n", valued("ingest", 0)("id")).selectExpr("*", "'abc' AS name")
    ingest(SparkRunner(spark, driver_rows=0), catalog, "raw.twins", frame, name="frame")
    spark.sql("UPDATE flow.raw.twins SET n = update_twin(id)")
    publish(SparkRunner(spark, driver_rows=0), catalog, "raw.log", "raw.twins")


def dead(spark: Any, catalog: Catalog, marks: Path) -> None:
    import acts

    def dying(id: int) -> int:
        if id == LAST:
            acts.die("ingest-died")
        return 1

    schema = {"id": "bigint", "n": "int", "name": "string"}
    catalog.create_stream_table("raw.dead", schema, keys=["id"], properties=column("lengths_of_the_dead", "1"))
    frame = spark.range(0, ROWS, 1, 2).withColumn("n", udf(dying, "int")("id")).selectExpr("*", "'abc' AS name")
    ingest(SparkRunner(spark, driver_rows=0), catalog, "raw.dead", frame, name="frame")
    publish(SparkRunner(spark, driver_rows=0), catalog, "raw.dead")
    killer = threading.Thread(target=kill_an_executor, args=(spark, marks / "index-died"))
    killer.start()
    index(SparkRunner(spark, driver_rows=0), catalog, "raw.dead", "name", "BTREE")
    killer.join()
    catalog["raw.dead"].set_properties(column("negative", "2"))
    publish(SparkRunner(spark, driver_rows=0), catalog, "raw.dead")
    backfill(SparkRunner(spark, driver_rows=0), catalog, "raw.dead", batch=1_000)


def past_and_view(spark: Any, catalog: Catalog, marks: Path) -> list[Any]:
    """Lose an executor in a history and in a compaction, and one with its shuffle and cached rows in a view."""
    schema = {"id": "bigint", "at": "bigint"}
    properties = {"history": "scd2"}
    past = catalog.create_stream_table("raw.past", schema, keys=["id"], sequence=["at"], properties=properties)
    for at in (1, 2):
        past.upsert(pa.table({"id": range(ROWS), "at": [at] * ROWS}))
    publish(KillingRunner(spark, "history of", marks / "history-died"), catalog, "raw.past")
    past.delete([{"id": id} for id in range(ROWS // 2)])
    publish(KillingRunner(spark, "fold and write", marks / "tidy-died"), catalog, "raw.past")  # compacts too
    sql = "SELECT id % 100 AS part, count(*) AS orders, sum(at) AS total FROM raw.past GROUP BY id % 100"
    moment = ViewMoment(catalog.at(catalog.slot), catalog.slot, ["raw.past"])
    spark.sparkContext.setJobGroup("view", "a view")
    killer = threading.Thread(target=kill_an_executor, args=(spark, marks / "view-died", "view"))
    killer.start()
    made = make_view(catalog, ViewSpec("mart.v", sql, ("part",)), moment, SparkRunner(spark, driver_rows=0))
    killer.join()
    publish(SparkRunner(spark, driver_rows=0), catalog, "mart.v")
    rows, history = made.stream.serving.to_arrow(), catalog["raw.past__history"].to_arrow()
    sums = [pc.sum(rows[name]).as_py() for name in ("orders", "total")]
    opened = history.filter(pc.is_null(history["valid_to"])).num_rows
    return [rows.num_rows, *sums, history.num_rows, opened, past.verify(), made.stream.verify()]


def told(table: Any) -> list[Any]:
    rows = table.serving.to_arrow()
    names = [name for name in ("n", "size") if name in rows.schema.names]
    sums = [sum(rows[name].to_pylist()) for name in names]
    return [rows.num_rows, len(set(rows["id"].to_pylist())), *sums, table.count(), table.verify()]


if __name__ == "__main__":
    folder = Path(sys.argv[2])
    (folder / "acts.py").write_text(ACTS.format(marks=str(folder / "marks")))
    sys.path.insert(0, str(folder))
    running = session(sys.argv[1], folder)
    lake = Catalog(str(folder / "lake"), impl="metastore")
    lake.create_namespace("raw")
    twins(running, lake)
    dead(running, lake, folder / "marks")
    found = {name: told(lake[f"raw.{name}"]) for name in ("log", "twins", "dead")}
    found["past"] = past_and_view(running, lake, folder / "marks")
    print(json.dumps({**found, "positions": [lake[f"raw.{name}"].position for name in ("log", "dead")]}))
