"""The runners: this process, a Spark session, and the jar that called a procedure."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from headwater.clock import unique_hex
from headwater.errors import ServiceUnavailableError, error_for
from headwater.work.tasks import DRIVER_ROWS, EXECUTORS, Runner, Task, Where

POLLED_S = 0.5
CONNECT_CORES = 8
"""The parallelism of a Spark Connect session, which does not report its own."""
_answers = msgspec.json.Decoder(list[Any])


class Progress(Protocol):
    """The part of a progress display that a runner reports to."""

    def stage(self, name: str, tasks: int, bytes: int = 0) -> None:
        """Begin a stage."""
        ...

    def step(self, tasks: int = 1, rows: int = 0, bytes: int = 0) -> None:
        """Add to the finished tasks, rows and bytes of the stage."""
        ...


class LocalRunner:
    """Runs tasks in this process, one after another."""

    spark: Any = None
    cores = 1
    done = Where()

    def in_driver(self, rows: int, calls_functions: bool = False) -> bool:
        return True

    def run(self, tasks: Sequence[Task], what: str = "") -> list[Any]:
        return [task.run() for task in tasks]

    @contextmanager
    def counted(self) -> Iterator[None]:
        yield


class _Elsewhere:
    """The parts that runners on executors share."""

    def __init__(self, spark: Any, cores: int, driver_rows: int, progress: Progress | None) -> None:
        self.spark = spark
        self.cores = cores
        self.driver_rows = driver_rows
        self.progress = progress
        self.done = Where()

    def in_driver(self, rows: int, calls_functions: bool = False) -> bool:
        return not calls_functions and rows <= self.driver_rows and self.driver_rows > 0

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
        context = _context(spark)
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
        with watched(self.spark, self.progress), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # about the version of pandas, which no batch goes through
            found = frame.mapInArrow(work, "result string").collect()
        return self._finish([json.loads(row[0]) for row in found])

    @contextmanager
    def counted(self) -> Iterator[None]:
        context = _context(self.spark)
        if context is None:
            yield
            return
        with _tagged(context) as tag:
            yield
            jobs, tasks = _count(context, tag)
            self.done += Where(EXECUTORS, jobs, tasks)


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


def runner_of(spark: Any, progress: Progress | None = None) -> Runner:
    """Return the runner for a Spark session, a runner itself, or None (this process)."""
    if isinstance(spark, (SparkRunner, JarRunner)) and progress is not None:
        spark.progress = progress
    if isinstance(spark, (LocalRunner, SparkRunner, JarRunner)):
        return spark
    return LocalRunner() if spark is None else SparkRunner(spark, progress=progress)


# Jobs of Spark -------------------------------------------------------------------------------------------------------


def _context(spark: Any) -> Any:
    """Return the context of a classic session; None on Spark Connect."""
    return getattr(spark, "_sc", None)


@contextmanager
def _tagged(context: Any) -> Iterator[str]:
    """Tag the jobs that this thread starts in the block. A tag leaves the job group of others alone."""
    tag = f"headwater-{unique_hex(8)}"
    context.addJobTag(tag)
    try:
        yield tag
    finally:
        context.removeJobTag(tag)


def _count(context: Any, tag: str) -> tuple[int, int]:
    """Return the number of jobs with a tag, and of the tasks that they finished."""
    scala = context._jsc.sc()
    scala.listenerBus().waitUntilEmpty(10_000)
    jobs = list(scala.statusTracker().getJobIdsForTag(tag))
    return len(jobs), _finished(context.statusTracker(), jobs)


def _finished(tracker: Any, jobs: Sequence[int]) -> int:
    stages = {stage for job in jobs if (info := tracker.getJobInfo(job)) is not None for stage in info.stageIds}
    return sum(info.numCompletedTasks for stage in stages if (info := tracker.getStageInfo(stage)) is not None)


@contextmanager
def watched(spark: Any, progress: Progress | None) -> Iterator[None]:
    """Report the tasks that executors finish for this thread. A Connect session reports nothing."""
    context = _context(spark)
    if context is None or progress is None:
        yield
        return
    ended = threading.Event()
    with _tagged(context) as tag:
        watching = threading.Thread(target=_watch, args=(context, tag, ended, progress), daemon=True)
        watching.start()
        try:
            yield
        finally:
            ended.set()
            watching.join()


def _watch(context: Any, tag: str, ended: threading.Event, progress: Progress) -> None:
    reported, is_last = 0, False
    while not is_last:
        is_last = ended.wait(POLLED_S)
        done = _finished(context.statusTracker(), list(context._jsc.sc().statusTracker().getJobIdsForTag(tag)))
        if done > reported:
            progress.step(done - reported)
            reported = done
