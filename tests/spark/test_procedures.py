"""CALL publish and ingest of what is large: executors do it, through the jar that called."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from headwater.catalog import Catalog
from headwater.errors import InvalidInputError, ServiceUnavailableError
from headwater.pipeline import ingest, publish
from headwater.spark.worker import Wire
from headwater.work import JarRunner, Task


class Jar(threading.Thread):
    """The other side of a procedure's call: runs tasks, as workers of executors do, and sends what they gave."""

    def __init__(self, wire: Wire, rounds: int = 1) -> None:
        super().__init__(daemon=True)
        self.wire, self.rounds, self.tasks = wire, rounds, 0

    def run(self) -> None:
        for _ in range(self.rounds):
            frame = self.wire.receive()
            assert frame is not None
            asked = msgspec.json.decode(frame)["ok"]["tasks"]
            self.tasks += len(asked)
            self.wire.send([Task.unpacked(task["task"]).answer() for task in asked])  # type: ignore[arg-type]


@pytest.fixture
def ends() -> tuple[Wire, Wire]:
    ours, theirs = socket.socketpair()
    return Wire(ours), Wire(theirs)


def test_errors_of_tasks_come_back_and_a_jar_that_is_gone_is_said(tmp_path: Path, ends: tuple[Wire, Wire]) -> None:
    catalog = Catalog(str(tmp_path / "lake"))
    table = catalog.create_stream_table("raw.t", {"id": "bigint"}, keys=["id"])
    (tmp_path / "0.json").write_text('{"id": 1}\n')
    (tmp_path / "1.csv").write_text("nothing\n1\n")
    session = JarRunner(ends[0], 2, driver_rows=0)
    Jar(ends[1]).start()
    with pytest.raises(InvalidInputError, match=r"1\.csv.*'id' is missing"):
        ingest(session, catalog, "raw.t", [tmp_path / "0.json", tmp_path / "1.csv"])
    assert (table.count(), table.verify()) == (1, [])
    ends[1].close()
    with pytest.raises((ServiceUnavailableError, OSError)):
        ingest(session, catalog, "raw.t", tmp_path / "1.csv")


def test_an_ingest_and_a_publish_without_a_session_of_python_are_done_in_tasks(
    tmp_path: Path, ends: tuple[Wire, Wire]
) -> None:
    catalog = Catalog(str(tmp_path / "lake"))
    catalog.create_stream_table("raw.t", {"id": "bigint", "at": "bigint"}, keys=["id"], sequence=["at"])
    for number in range(3):
        lines = (json.dumps({"id": id, "at": number}) + "\n" for id in range(50))
        (tmp_path / f"{number}.json").write_text("".join(lines))
    jar = Jar(ends[1], 2)
    jar.start()
    session = JarRunner(ends[0], 2, driver_rows=0)
    assert ingest(session, catalog, "raw.t", str(tmp_path / "*.json"), name="s").rows == 150
    assert jar.tasks == 3
    assert publish(session, catalog, "raw.t").position == 3
    assert jar.tasks == 4  # one folds, writes, commits and builds the BTREE of the key
    assert {row["at"] for row in catalog["raw.t"].serving.to_arrow().to_pylist()} == {2}
    assert (catalog["raw.t"].serving.count(), catalog["raw.t"].verify()) == (50, [])


@pytest.mark.long
def test_large_files_and_a_large_publish_are_jobs_of_spark(
    spark: SparkSession, catalog: Catalog, tmp_path: Path
) -> None:
    table = catalog.create_stream_table("raw.procedures", {"id": "bigint", "name": "string"}, keys=["id"])
    for number in range(2):
        lines = (json.dumps({"id": id, "name": "x" * 1000}) + "\n" for id in range(number * 6000, number * 6000 + 6000))
        (tmp_path / f"{number}.json").write_text("".join(lines))
    context = spark.sparkContext

    def called(statement: str) -> tuple[Any, int]:
        """The answer of a procedure, and how many tasks of Spark it took."""
        context.setJobGroup(statement[:40], "a procedure")
        row = spark.sql(statement).first()
        tracker = context.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(statement[:40])]
        stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
        return row, sum(stage.numCompletedTasks for stage in stages if stage)

    row, tasks = called(f"CALL streams.system.ingest('raw.procedures', '{tmp_path}/*.json', 'rows', 'files')")
    assert (row.rows, row.files, tasks) == (12_000, 2, 2)
    spark.sql("INSERT INTO streams.raw.procedures SELECT id, 'y' FROM range(0, 2100000, 1, 2)")
    row, tasks = called("CALL streams.system.publish('raw.procedures')")
    assert (row.rows, tasks > 1) == (2_112_000, True)
    assert table.serving.count() == table.count() == 2_100_000
    assert table.serving.count("name <> 'y'") == 0
    assert table.verify() == []
