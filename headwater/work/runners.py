"""The runners: this process, a Spark session, and the jar that called a procedure."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import msgspec
import pyarrow as pa

from headwater.errors import ServiceUnavailableError, UnsupportedOperationError, error_for
from headwater.imports import when_used
from headwater.work.spark_jobs import Progress, described, more_jobs, spark_tasks
from headwater.work.tasks import DRIVER_ROWS, EMBEDDED, EXECUTORS, Runner, Task, Where

java_gateway = when_used("py4j.java_gateway")
CONNECT_CORES = 8
"""The parallelism of a Spark Connect session, which does not report its own."""
_answers = msgspec.json.Decoder(list[Any])


class LocalRunner:
    """Runs tasks in this process, one after another."""

    spark: Any = None
    cores = 1
    driver_rows: int | None = None
    done = Where(EMBEDDED)

    def in_driver(self, rows: int, calls_functions: bool = False) -> bool:
        return True

    def run(self, tasks: Sequence[Task], what: str = "") -> list[Any]:
        return [task.run() for task in tasks]

    def map(self, frame: Any, task: Task) -> list[Any]:
        return list(task.run(frame.toArrow().to_reader()))

    @contextmanager
    def counted(self) -> Iterator[None]:
        yield


HERE = LocalRunner()


class _Elsewhere:
    """The parts that runners on executors share."""

    def __init__(self, spark: Any, cores: int, driver_rows: int, progress: Progress | None) -> None:
        self.spark = spark
        self.cores = cores
        self.driver_rows: int | None = driver_rows
        self.progress = progress
        self.done = Where()

    def in_driver(self, rows: int, calls_functions: bool = False) -> bool:
        return not calls_functions and rows <= (self.driver_rows or -1)

    def _begin(self, tasks: Sequence[Task], what: str) -> None:
        if self.progress is not None and what:
            self.progress.stage(what, len(tasks))

    def _finish(self, answers: list[Any]) -> list[Any]:
        self.done += Where(EXECUTORS, 1, len(answers))
        failed = next((each["error"] for each in answers if isinstance(each, dict) and "error" in each), None)
        if failed is not None:
            raise error_for(*failed)
        return answers

    @contextmanager
    def counted(self) -> Iterator[None]:
        yield


class SparkRunner(_Elsewhere):
    """Runs tasks on the executors of a Spark session, by `mapInArrow`: also on Spark Connect and without the jar.

    `driver_rows`: the driver may do work of this many rows itself; 0 = never.
    A task that Spark runs twice leaves files that nothing refers to.
    """

    def __init__(self, spark: Any, driver_rows: int = DRIVER_ROWS, progress: Progress | None = None) -> None:
        context = getattr(spark, "_sc", None)
        cores = int(context.defaultParallelism) if context is not None else CONNECT_CORES
        super().__init__(spark, cores, driver_rows, progress)

    def run(self, tasks: Sequence[Task], what: str = "") -> list[Any]:
        if not tasks:
            return []
        self._begin(tasks, what)
        todo = tuple(tasks)

        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_numpy().tolist():
                    yield pa.RecordBatch.from_pydict({"result": [json.dumps(todo[number].answer())]})

        frame = self.spark.range(0, len(todo), 1, len(todo))
        with described(self.spark, what), spark_tasks(self.spark, self.progress), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # about the version of pandas, which no batch goes through
            found = frame.mapInArrow(work, "result string").collect()
        return self._finish([json.loads(row[0]) for row in found])

    def map(self, frame: Any, task: Task) -> list[Any]:
        """Send rows through the jar if the session has it: `mapInArrow` takes half as long again for the same rows."""
        jar = of_jar(frame.sparkSession, "FrameRows")
        with self.counted():
            if jar is not None:
                call = json.dumps({"op": "take_rows", "task": task.packed()})
                return [each for answer in jar.send(frame.select("*")._jdf, call) for each in json.loads(answer)]
            return _mapped(frame, task)

    @contextmanager
    def counted(self) -> Iterator[None]:
        with more_jobs(self.spark) as found:
            yield
        self.done += found.where


class JarRunner(_Elsewhere):
    """Runs tasks through the jar that called a procedure. The driver's worker has no session, but the jar has one.

    The answer `{"tasks": [...]}` to an open call asks the jar to run each as a `task_run` of an executor's worker.
    """

    def __init__(self, wire: Any, cores: int, driver_rows: int = DRIVER_ROWS) -> None:
        super().__init__(None, cores, driver_rows, None)
        self._wire = wire

    def run(self, tasks: Sequence[Task], what: str = "") -> list[Any]:
        if not tasks:
            return []
        self._wire.send({"ok": {"tasks": [{"op": "task_run", "task": task.packed()} for task in tasks]}})
        answers = self._wire.receive()
        if answers is None:
            raise ServiceUnavailableError("Spark did not finish the tasks of this procedure: see the error it raised.")
        return self._finish(_answers.decode(answers))

    def map(self, frame: Any, task: Task) -> list[Any]:
        raise UnsupportedOperationError("A procedure takes files and tables, not frames.")


def runner_of(spark: Any, progress: Progress | None = None, driver_rows: int = DRIVER_ROWS) -> Runner:
    """Return the runner for a Spark session, a runner itself, or None (this process)."""
    if isinstance(spark, (SparkRunner, JarRunner)) and progress is not None:
        spark.progress = progress
    if isinstance(spark, (LocalRunner, SparkRunner, JarRunner)):
        return spark
    return HERE if spark is None else SparkRunner(spark, driver_rows, progress)


def of_jar(session: Any, name: str) -> Any:
    """Return a class of the jar; None if the session has no jar, as on Spark Connect."""
    jvm = getattr(session, "_jvm", None)
    found = getattr(jvm.headwater.spark, name) if jvm is not None else None
    return found if isinstance(found, java_gateway.JavaClass) else None


def _mapped(frame: Any, task: Task) -> list[Any]:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = next(batches, None)
        if first is not None:
            reader = pa.RecordBatchReader.from_batches(first.schema, chain([first], batches))
            yield pa.RecordBatch.from_pydict({"result": [json.dumps(task.run(reader))]})

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return [each for row in frame.mapInArrow(work, "result string").collect() for each in json.loads(row[0])]
