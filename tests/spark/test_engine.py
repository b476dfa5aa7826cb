"""A pipeline in a session of somebody else: it works beside it, says where each step ran, and leaves nothing behind."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import RDD
from pyspark.sql import SparkSession

from headwater.catalog import Catalog
from headwater.cli import main
from headwater.errors import InternalError, InvalidInputError
from headwater.pipeline import read_pipeline, run_pipeline
from headwater.spark import engine_session as engines
from headwater.spark.failures import naming_failures
from headwater.streams.serving.serving_copy import CatalogLocation
from headwater.work import SparkRunner, Task, Where, runners
from headwater.work.runners import step_jobs
from headwater.work.tasks import SPARK, PipelineEngine
from tests.pipeline.shop import Shop


def test_a_run_works_beside_a_session_and_leaves_its_settings_and_views_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, seed=4)
    shop.deliver(shop.change(20))
    shop.products([{"sku": "a", "title": "Lamp", "text": "bright"}])
    settings = {"spark.sql.shuffle.partitions": "3", "spark.executor.memory": "9g"}
    engine = PipelineEngine(SPARK, "local[2]", settings)
    spark.conf.set("spark.sql.ansi.enabled", "false")
    before, views, said = dict(spark.conf.getAll), spark.catalog.listTables(), list[str]()
    try:
        done = run_pipeline(replace(read_pipeline(shop.file), engine=engine), spark, say=said.append)
        assert dict(spark.conf.getAll) == before
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
    assert spark.catalog.listTables() == views
    assert SparkSession.getActiveSession() is spark
    assert [text for text in said if "cannot take" in text] == [
        "The running session cannot take spark.executor.memory: it goes on with its own."
    ]
    assert all(report.where is not None and report.where.place in ("driver", "executors") for report in done.reports)
    with engines.engine_session(engine, spark) as session:
        assert session is not spark
        assert session.conf.get("spark.sql.ansi.enabled") == "true"
        assert session.conf.get("spark.sql.session.timeZone") == "UTC"
        assert session.conf.get("spark.sql.shuffle.partitions") == "3"
    sys.modules.pop("shop_features", None)


def test_the_tasks_and_files_of_a_view_follow_its_rows_and_not_the_partitions_of_a_shuffle(
    spark: SparkSession, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, seed=5)
    shop.deliver(shop.change(60))
    shop.products([{"sku": "a", "title": "Lamp", "text": "bright"}])
    engine = PipelineEngine(SPARK, settings={"spark.sql.shuffle.partitions": "60"}, driver_rows=0)
    done = run_pipeline(replace(read_pipeline(shop.file), engine=engine), spark, say=lambda text: None)
    (where,) = [report.where for report in done.reports if report.job == "view"]
    assert where is not None
    assert where.place == "executors"
    assert where.tasks < 60
    assert len(Catalog(str(tmp_path / "lake"))["mart.spend"].deltas()) <= 2
    sys.modules.pop("shop_features", None)


@pytest.mark.parametrize("is_other", [False, True], ids=["the given one", "another"])
def test_a_run_that_makes_frames_gives_the_active_session_back(spark: SparkSession, is_other: bool) -> None:
    before = spark.newSession() if is_other else spark
    before.createDataFrame([], "nothing int")
    bound = RDD.toDF
    with engines.engine_session(PipelineEngine(SPARK), spark) as session:
        session.createDataFrame([(1,)], "a int")
        assert SparkSession.getActiveSession() is session
    assert SparkSession.getActiveSession() is before
    assert bound is RDD.toDF
    spark.createDataFrame([], "nothing int")


def test_the_jobs_and_tasks_of_a_step_are_counted_and_named(spark: SparkSession) -> None:
    context = spark.sparkContext
    context.setJobGroup("mine", "what I do")
    with step_jobs(spark, "headwater: view v") as step:
        assert context.getLocalProperty("spark.job.description") == "headwater: view v"
        assert spark.range(0, 90, 1, 3).rdd.map(lambda row: row.id % 2).count() == 90
    assert (step.where.place, step.where.jobs, step.where.tasks) == ("executors", 1, 3)
    assert context.getLocalProperty("spark.jobGroup.id") == "mine"
    with step_jobs(spark, "headwater: nothing") as step:
        pass
    assert (step.where.place, step.where.jobs, step.where.tasks) == ("driver", 0, 0)
    context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]  # its own way to take one back
    context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]


def rows_of_task(reader: pa.RecordBatchReader) -> list[int]:
    return [reader.read_all().num_rows]


def test_a_job_of_one_plain_task_goes_through_the_jar_if_that_has_workers(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, own = SparkRunner(spark), Task("os:getpid", plain=True)
    (worker,) = runner.run([own])
    assert runner.run([own]) == [worker]  # one for the JVM
    (other,) = runner.run([Task("os:getpid")])
    assert len({worker, other, os.getpid()}) == 3
    assert runner.done == Where("executors", 3, 3)
    with pytest.raises(InternalError, match="Spark failed: ZeroDivisionError: division by zero"), naming_failures():
        runner.run([Task("operator:truediv", (1, 0), plain=True)])

    def refuse(*_: object) -> list[object]:
        raise RuntimeError("The Python worker `x -P -m headwater.spark.worker` does not start: it ended at once")

    monkeypatch.setattr(runners, "run_by_jar", refuse)
    for _ in range(2):
        assert runner.run([own])[0] not in (worker, os.getpid())
    frame, counting = spark.range(10, numPartitions=1), Task(f"{__name__}:rows_of_task")
    assert SparkRunner(spark).map(frame, counting) == [10]

    class NoWorkers:
        send = refuse

    monkeypatch.setattr(runners, "of_jar", lambda *_: NoWorkers())
    assert SparkRunner(spark).map(frame, counting) == [10]
    source = Path(__file__).parents[2] / "java" / "headwater" / "spark" / "Worker.java"
    assert runners.NO_WORKER in source.read_text()


def test_executors_and_driver_read_each_others_files_and_agree(spark: SparkSession, tmp_path: Path) -> None:
    engines.preflight(spark, CatalogLocation(str(tmp_path / "lake"), {}))
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize("sql", ["SELEC 1", "SELECT * FROM nothing_here", "SELECT 1 / 0", "SELECT cast('x' AS INT)"])
def test_sql_that_spark_refuses_is_one_sentence(spark: SparkSession, sql: str) -> None:
    with engines.engine_session(PipelineEngine(SPARK), spark) as session:
        with pytest.raises(InvalidInputError, match="Spark refuses it: ") as error, naming_failures():
            session.sql(sql).collect()
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("count(*)", "no_such(customer)", "mart.spend cannot be run: Spark does not take it: [UNRESOLVED_ROUTINE"),
        ("count(*)", "upper(customer, 1)", "mart.spend cannot be run: Spark does not take it: [WRONG_NUM_ARGS"),
        ("shop_features:embed", "shop_features:missing", "missing"),
    ],
)
def test_what_spark_refuses_of_a_pipeline_is_one_sentence_before_anything_is_written(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, told: str
) -> None:
    shop = Shop(tmp_path, seed=4)
    shop.deliver(shop.change(5))
    shop.products([{"sku": "a", "title": "Lamp", "text": "bright"}])
    shop.file.write_text(shop.file.read_text().replace(old, new))
    assert main(["run", str(shop.file), "--engine", "spark"]) == 5
    said = capsys.readouterr().err
    (line,) = [line for line in said.splitlines() if line.startswith("headwater: ")]
    assert told in line
    assert "org.apache.spark" not in said, "the trace of the JVM"
    assert not (tmp_path / "lake").exists()
    sys.modules.pop("shop_features", None)


def test_a_function_that_cannot_be_sent_is_one_sentence(spark: SparkSession) -> None:
    import threading

    lock = threading.Lock()
    with pytest.raises(InvalidInputError, match="cannot be sent to executors"), naming_failures():
        spark.sparkContext.parallelize([1]).map(lambda each: (each, lock)).collect()
