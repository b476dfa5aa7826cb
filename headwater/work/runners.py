"""The runners: this process, a Spark session, and the jar that called a procedure.

The Spark jobs of a step are counted and watched: how many jobs and tasks it takes, and how far they are.
"""

from __future__ import annotations

import contextlib
import json
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import msgspec
import pyarrow as pa

from headwater.clock import unique_hex
from headwater.errors import ServiceUnavailableError, UnsupportedOperationError, error_for
from headwater.imports import when_used
from headwater.work.tasks import DRIVER, DRIVER_ROWS, EMBEDDED, EXECUTORS, Runner, Task, Where

java_gateway = when_used("py4j.java_gateway")
CONNECT_CORES = 8
"""The parallelism of a Spark Connect session, which does not report its own."""
NO_WORKER = "headwater.spark.worker` does not start"
"""Part of the error of `Worker.java` for a Python that lacks the package."""
_answers = msgspec.json.Decoder(list[Any])
_CLASSES: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
"""Classes of the jar, by the JVM that has them: to find one by its name Java looks through all jars, for some ms."""


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

    def _finish(self, answers: list[object]) -> list[object]:
        self.done += Where(EXECUTORS, 1, len(answers))
        failed = next((each["error"] for each in answers if isinstance(each, dict) and "error" in each), None)
        if failed is not None:
            raise error_for(*failed)
        return answers

    @contextmanager
    def counted(self) -> Iterator[None]:
        yield


class SparkRunner(_Elsewhere):
    """Runs tasks on the executors of a Spark session: also on Spark Connect and without the jar.

    `driver_rows`: the driver may do work of this many rows itself; 0 = never.
    A task that Spark runs twice leaves files that nothing refers to.
    """

    def __init__(self, spark: Any, driver_rows: int = DRIVER_ROWS, progress: Progress | None = None) -> None:
        context = getattr(spark, "_sc", None)
        cores = int(context.defaultParallelism) if context is not None else CONNECT_CORES
        super().__init__(spark, cores, driver_rows, progress)
        self._has_workers = True

    def run(self, tasks: Sequence[Task], what: str = "") -> list[Any]:
        if not tasks:
            return []
        self._begin(tasks, what)
        todo = tuple(tasks)
        with described(self.spark, what), spark_tasks(self.spark, self.progress):
            answers = self._by_jar(todo) if len(todo) == 1 and todo[0].plain else None
            if answers is None:
                answers = run_numbered(self.spark, len(todo), lambda number: todo[number].answer())
        return self._finish(answers)

    def _by_jar(self, tasks: Sequence[Task]) -> list[Any] | None:
        jar = of_jar(self.spark, "Tasks")
        return None if jar is None else self._of_workers(lambda: run_by_jar(self.spark, jar, tasks))

    def _of_workers(self, ask: Callable[[], list[Any]]) -> list[Any] | None:
        """Return what workers of the jar answer; None: the executors cannot start them."""
        if self._has_workers:
            try:
                return ask()
            except Exception as error:
                if NO_WORKER not in str(error):
                    raise
                self._has_workers = False  # the package came with the job, so that only PySpark's workers find it
        return None

    def map(self, frame: Any, task: Task) -> list[Any]:
        """Send rows through the jar if the session has it: `mapInArrow` takes half as long again for the same rows."""
        jar = of_jar(frame.sparkSession, "FrameRows")

        def sent() -> list[Any]:
            call = json.dumps({"op": "take_rows", "task": task.packed()})
            return [each for answer in jar.send(frame.select("*")._jdf, call) for each in json.loads(answer)]

        with self.counted():
            found = self._of_workers(sent) if jar is not None else None
            return _mapped(frame, task) if found is None else found

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


def runner_of(spark: object, progress: Progress | None = None, driver_rows: int = DRIVER_ROWS) -> Runner:
    """Return the runner for a Spark session, a runner itself, or None (this process)."""
    if isinstance(spark, (SparkRunner, JarRunner)) and progress is not None:
        spark.progress = progress
    if isinstance(spark, (LocalRunner, SparkRunner, JarRunner)):
        return spark
    return HERE if spark is None else SparkRunner(spark, driver_rows, progress)


def of_jar(session: object, name: str) -> Any:
    """Return a class of the jar; None if the session has no jar, as on Spark Connect."""
    jvm = getattr(session, "_jvm", None)
    known = _CLASSES.get(jvm, {}).get(name) if jvm is not None else None
    if known is not None or jvm is None:
        return known
    found = getattr(jvm.headwater.spark, name)
    if not isinstance(found, java_gateway.JavaClass):
        return None
    return _CLASSES.setdefault(jvm, {}).setdefault(name, found)


def run_by_jar(spark: Any, jar: Any, tasks: Sequence[Task]) -> list[Any]:
    """Return the answers of tasks that workers of the jar run: half of the time of a job of PySpark's own.

    The workers of an executor are threads of one process. So this is for a job of one task.
    """
    calls = spark._jvm.java.util.ArrayList()
    for task in tasks:
        calls.add(json.dumps({"op": "task_run", "task": task.packed()}))
    answers = jar.run(spark._jsc, calls)
    return [json.loads(answers[place]) for place in range(len(tasks))]  # to iterate ends with an error of Java: 11 ms


def run_numbered(spark: Any, count: int, work: Callable[[int], Any]) -> list[Any]:
    """Return the answers of `work` to 0, 1, ... `count` - 1. Each number is a task; its answer travels as JSON.

    `work` travels by value: executors need no headwater to load it. An RDD takes a third of the CPU of a frame, whose
    job Spark plans and compiles. Connect has only frames.
    """
    context = getattr(spark, "_sc", None)
    if context is not None:
        numbers = context.parallelize(range(count), count)
        return [json.loads(each) for each in numbers.map(lambda number: json.dumps(work(number))).collect()]

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_numpy().tolist():
                yield pa.RecordBatch.from_pydict({"result": [json.dumps(work(number))]})

    return _collected(spark.range(0, count, 1, count), run)


def _mapped(frame: object, task: Task) -> list[Any]:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = next(batches, None)
        if first is not None:
            reader = pa.RecordBatchReader.from_batches(first.schema, chain([first], batches))
            yield pa.RecordBatch.from_pydict({"result": [json.dumps(task.run(reader))]})

    return [each for answer in _collected(frame, work) for each in answer]


def _collected(frame: Any, work: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # about the version of pandas, which no batch goes through
        return [json.loads(row[0]) for row in frame.mapInArrow(work, "result string").collect()]


POLLED_S = 0.5
GROUP, ABOUT = "spark.jobGroup.id", "spark.job.description"
SETTLE_MS = 2_000
"""Spark's own counts follow its tasks by this much at most."""


class Progress(Protocol):
    """A display of the progress of a job."""

    def stage(self, name: str, tasks: int, bytes: int = 0) -> None:
        """Begin a stage of `tasks` tasks that reads `bytes` bytes, if that is known."""
        ...

    def step(self, tasks: int = 1, rows: int = 0, bytes: int = 0) -> None:
        """Add tasks, rows and bytes to those that are done in this stage."""
        ...

    def at(self, done: int, of: int) -> None:
        """Set how many tasks of this stage are done, and how many it has."""
        ...


class StepJobs:
    """The Spark jobs of one step. `where` is known when the step has ended."""

    def __init__(self, place: str) -> None:
        self.where = Where(place)

    def count(self, jobs: int, tasks: int) -> None:
        self.where = Where(EXECUTORS if tasks else self.where.place, jobs, tasks)


@contextmanager
def step_jobs(spark: object, about: str, runner: Runner | None = None) -> Iterator[StepJobs]:
    """Count the Spark jobs that this thread starts in the block, and name them `about` in the Spark UI.

    `runner`: the runner of the step. A Connect server reports no short operation, so the tasks of the runner count.
    """
    found = StepJobs(EMBEDDED if spark is None else DRIVER)
    context = getattr(spark, "_sc", None)
    if context is not None:
        with _group(context, about) as group:
            yield found
        found.count(*_settled(context, group))
    elif hasattr(spark, "registerProgressHandler"):
        before = runner.done if runner is not None else Where()
        with _through_connect(spark, found):
            yield found
        ran = runner.done - before if runner is not None else Where()
        found.count(max(found.where.jobs, ran.jobs), max(found.where.tasks, ran.tasks))
    else:
        yield found


@contextmanager
def _group(context: Any, about: str) -> Iterator[str]:
    """Put the jobs of this thread into a group of their own, and those after the block where they were before."""
    before = [(name, context.getLocalProperty(name)) for name in (GROUP, ABOUT)]
    group = f"headwater-{unique_hex(8)}"
    context.setJobGroup(group, about, False)
    try:
        yield group
    finally:
        with contextlib.suppress(Exception):  # a Spark that has gone away has no properties
            for name, value in before:
                context.setLocalProperty(name, value)


def _settled(context: Any, group: str) -> tuple[int, int]:
    """Return the jobs and tasks of a group when Spark has counted them; its counts follow the tasks a little later."""
    try:
        with contextlib.suppress(Exception):  # not of a public class: without it the count may be a little low
            context._jsc.sc().listenerBus().waitUntilEmpty(SETTLE_MS)
        return _counted(context.statusTracker(), group)[:2]
    except Exception:  # the step is done: what cannot be counted is not worth its failure
        return 0, 0


def _counted(tracker: Any, group: str) -> tuple[int, int, int]:
    """Return the jobs of a group, its finished tasks, and all tasks of its stages that have begun."""
    jobs = tracker.getJobIdsForGroup(group)
    infos = [info for job in jobs if (info := tracker.getJobInfo(job)) is not None]
    ids = {stage for info in infos for stage in info.stageIds}
    stages = [stage for id in ids if (stage := tracker.getStageInfo(id)) is not None]
    begun = [stage for stage in stages if stage.numCompletedTasks or stage.numActiveTasks]
    done = sum(min(stage.numCompletedTasks, stage.numTasks) for stage in begun)
    return len(jobs), done, sum(stage.numTasks for stage in begun)


@contextmanager
def described(spark: object, what: str) -> Iterator[None]:
    """Name the jobs of the block in the Spark UI and the event log, after the step that they are of."""
    context = getattr(spark, "_sc", None)
    if context is None or not what:
        yield
        return
    before = context.getLocalProperty(ABOUT)
    context.setLocalProperty(ABOUT, f"{before or 'headwater'}: {what}")
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # a Spark that has gone away has no properties
            context.setLocalProperty(ABOUT, before)


@contextmanager
def _some_group(context: Any) -> Iterator[str]:
    """Use the group that the jobs of this thread are in, so that its step counts them too; else one of their own."""
    group = context.getLocalProperty(GROUP)
    with contextlib.nullcontext(group) if group else _group(context, "headwater") as group:
        yield group


@contextmanager
def more_jobs(spark: object) -> Iterator[StepJobs]:
    """Count the Spark jobs of the block alone, inside a step or outside of one."""
    found, context = StepJobs(DRIVER), getattr(spark, "_sc", None)
    if context is None:
        yield found
        return
    with _some_group(context) as group:
        jobs, tasks = _settled(context, group)
        yield found
        now = _settled(context, group)
        found.count(now[0] - jobs, now[1] - tasks)


@contextmanager
def _through_connect(spark: Any, found: StepJobs) -> Iterator[None]:
    """Count operations and tasks as a Connect server reports them while it runs."""
    seen: dict[str | None, dict[int, int]] = {}

    def handler(stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        for stage in stages or ():
            seen.setdefault(operation_id, {})[stage.stage_id] = stage.num_completed_tasks

    spark.registerProgressHandler(handler)
    try:
        yield
    finally:
        spark.removeProgressHandler(handler)
        found.count(len(seen), sum(sum(each.values()) for each in seen.values()))


@contextmanager
def spark_tasks(spark: object, tell: Progress | None) -> Iterator[None]:
    """Show the tasks that executors finish for what this thread asks of Spark; a Connect session shows nothing."""
    context = getattr(spark, "_sc", None)
    if context is None or tell is None:
        yield
        return
    tracker, ended = context.statusTracker(), threading.Event()
    with _some_group(context) as group:
        before = _counted(tracker, group)
        watching = threading.Thread(target=_watch, args=(tracker, group, before, ended, tell), daemon=True)
        watching.start()
        try:
            yield
        finally:
            ended.set()
            watching.join()


def _watch(tracker: Any, group: str, before: tuple[int, int, int], ended: threading.Event, tell: Progress) -> None:
    is_last = False
    while not is_last:
        is_last = ended.wait(POLLED_S)
        _, done, tasks = _counted(tracker, group)
        if done > before[1]:
            tell.at(done - before[1], tasks - before[2])
