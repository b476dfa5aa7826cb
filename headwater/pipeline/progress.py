"""How far a job is: stages, and what of each is done. Who shows it is another's matter (cli/progress.py)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from headwater.clock import unique_hex

POLLED_S = 0.5


class Teller(Protocol):
    """Who is told how far a job is."""

    def stage(self, name: str, tasks: int, bytes: int = 0) -> None:
        """A new stage begins: so many tasks, and perhaps so many bytes to go through."""
        ...

    def step(self, tasks: int = 1, rows: int = 0, bytes: int = 0) -> None:
        """So much more of the stage is done."""
        ...


class Nobody:
    """Nobody is told."""

    def stage(self, name: str, tasks: int, bytes: int = 0) -> None:
        """Nothing."""

    def step(self, tasks: int = 1, rows: int = 0, bytes: int = 0) -> None:
        """Nothing."""


NOBODY = Nobody()


@contextmanager
def spark_tasks(spark: Any, tell: Teller) -> Iterator[None]:
    """Tells of the tasks that executors finish for what this thread asks of Spark. A Connect session tells nothing."""
    context = getattr(spark, "_sc", None)
    if context is None or isinstance(tell, Nobody):
        yield
        return
    group, ended = f"headwater-{unique_hex(8)}", threading.Event()
    context.setJobGroup(group, "headwater", False)
    watching = threading.Thread(target=_watch, args=(context.statusTracker(), group, ended, tell), daemon=True)
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join()
        context.setLocalProperty("spark.jobGroup.id", None)


def _watch(tracker: Any, group: str, ended: threading.Event, tell: Teller) -> None:
    told = 0
    is_last = False
    while not is_last:
        is_last = ended.wait(POLLED_S)
        done = sum(_finished(tracker, job) for job in tracker.getJobIdsForGroup(group))
        if done > told:
            tell.step(done - told)
            told = done


def _finished(tracker: Any, job: int) -> int:
    info = tracker.getJobInfo(job)
    stages = (tracker.getStageInfo(stage) for stage in (info.stageIds if info is not None else ()))
    return sum(stage.numCompletedTasks for stage in stages if stage is not None)
