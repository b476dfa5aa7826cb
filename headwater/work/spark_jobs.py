"""Spark jobs counted and watched: how many jobs and tasks a step takes, and how far they are."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from headwater.clock import unique_hex
from headwater.work.tasks import DRIVER, EMBEDDED, EXECUTORS, Runner, Where

POLLED_S = 0.5
GROUP, ABOUT = "spark.jobGroup.id", "spark.job.description"
SETTLE_MS = 2_000
"""Spark's own counts follow its tasks by this much at most."""


class Progress(Protocol):
    """The part of a display of progress that runners report to."""

    def stage(self, name: str, tasks: int, bytes: int = 0) -> None:
        """Begin a stage of `tasks` tasks that reads `bytes` bytes, if that is known."""
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
def step_jobs(spark: Any, about: str, runner: Runner | None = None) -> Iterator[StepJobs]:
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
def described(spark: Any, what: str) -> Iterator[None]:
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
def more_jobs(spark: Any) -> Iterator[StepJobs]:
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
def spark_tasks(spark: Any, tell: Progress | None) -> Iterator[None]:
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
