"""Executors as the hands of a publish and a backfill: tasks are planned and committed here, and done there.

Functions of derived columns travel with the tasks: a module that is not a package's is sent as its text, and loaded
on the executor unless it has that very text already.
"""

from __future__ import annotations

import hashlib
import linecache
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from headwater.clock import SystemClock
from headwater.errors import LanceNamespaceError, error_for
from headwater.namespace.metastore import MetastoreNamespace
from headwater.pipeline.progress import NOBODY, Teller, spark_tasks
from headwater.store import is_local, open_store
from headwater.streams.backfilling import Backfill, batch_of_backfill
from headwater.streams.definition import Definition
from headwater.streams.log_files import Share, bucket_count
from headwater.streams.opening import Stream
from headwater.streams.serving_copy import Lake, lake_at
from headwater.streams.shares import Json, Publish, share_of_work
from headwater.streams.user_functions import SENT, load
from headwater.wording import many

PUBLISHED_ROWS = 2_000_000
"""Up to so many events a publish is done in one process: it holds them, and starts no Spark job."""

BATCH_ROWS = 16_384
"""So many rows are a batch of a backfill, unless told: what a killed one has to do again at most, for each core."""
WAVE = 16
"""So many batches for each core are one version of a backfill."""


@dataclass(frozen=True)
class Storehouse:
    """Where the storage of a catalog is, as an executor reaches it."""

    root: str
    storage: Mapping[str, str]

    def lake(self) -> Lake:
        return lake_at(open_store(self.root, dict(self.storage)), SystemClock(), self.root, dict(self.storage))


def storehouse_of(namespace: MetastoreNamespace) -> Storehouse:
    known = namespace.properties
    is_path = is_local(known.root) and "://" not in known.root
    return Storehouse(os.path.abspath(known.root) if is_path else known.root, dict(known.storage))


@dataclass(frozen=True)
class Code:
    """A module that executors cannot be expected to have."""

    module: str
    text: str

    def load(self) -> None:
        """Make it importable in this process, with this very text."""
        known = sys.modules.get(self.module)
        if getattr(known, SENT, None) == self.text:
            return
        name = f"<{self.module} {hashlib.blake2b(self.text.encode(), digest_size=8).hexdigest()}>"
        linecache.cache[name] = (len(self.text), None, self.text.splitlines(True), name)  # its source can be asked for
        made = ModuleType(self.module)
        made.__dict__[SENT] = self.text
        sys.modules[self.module] = made
        try:
            exec(compile(self.text, name, "exec"), made.__dict__)
        except BaseException:
            sys.modules.pop(self.module, None)
            raise


def code_of(definition: Definition) -> tuple[Code, ...]:
    """The modules of a table's functions that are single files outside of what is installed, and those that were
    imported from beside them."""
    found: dict[str, Code] = {}
    for name, derived in {each.function.partition(":")[0]: each for each in definition.derived}.items():
        if "." in name:
            continue  # a module of a package: executors have the package, or cannot have it
        load(derived)
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and file.endswith(".py") and "site-packages" not in file:
            for own, beside in {name: file, **_beside(Path(file).parent)}.items():
                found[own] = Code(own, Path(beside).read_text(encoding="utf-8"))
    return tuple(found.values())


def _beside(folder: Path) -> dict[str, str]:
    """The single modules of a folder that this process has imported."""
    known = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items()) if "." not in name}
    return {name: file for name, file in known.items() if file is not None and Path(file) == folder / f"{name}.py"}


def ready(code: Iterable[Code]) -> None:
    """Load modules, each after those among them that it imports."""
    known = {each.module: each for each in code}

    def load(each: Code, waiting: frozenset[str]) -> None:
        try:
            each.load()
        except ModuleNotFoundError as error:
            if error.name not in known or error.name in waiting:
                raise
            load(known[error.name], waiting | {each.module})
            load(each, waiting)

    for each in known.values():
        load(each, frozenset())


class SparkHands:
    """The shares of a publish as tasks of a Spark session."""

    def __init__(self, spark: Any, house: Storehouse, tell: Teller = NOBODY) -> None:
        self._spark = spark
        self._house = house
        self._tell = tell

    def shares(self, rows: int) -> int:
        if rows <= PUBLISHED_ROWS:
            return 1
        return max(2, bucket_count(rows, rows))

    def run(self, work: Publish, count: int) -> list[Json]:
        self._tell.stage(f"fold and write {work.view.stream.name}", count)
        run, told = share_runner(self._house, work, count), partial(_share_task, self._house, work, count)
        return distributed(self._spark, count, run, self._tell, told)


def distributed(
    spark: Any,
    tasks: int,
    run: Callable[[int], Json],
    tell: Teller = NOBODY,
    told: Callable[[int], Any] | None = None,
) -> list[Json]:
    """What tasks on executors answer, in their order. An error of ours comes back as a value, and is raised here."""
    from headwater.spark.python_jobs import distribute

    with spark_tasks(spark, tell):
        answers = distribute(spark, tasks, partial(guarded, run), told)
    failed = next((answer["error"] for answer in answers if "error" in answer), None)
    if failed is not None:
        raise error_for(*failed)
    return answers


def guarded(run: Callable[[Any], Json | None], what: Any) -> Any:
    """What a task answers, or an error of ours as a value."""
    try:
        return run(what)
    except LanceNamespaceError as error:
        return {"error": [int(error.code), str(error)]}


def share_runner(house: Storehouse, work: Publish, count: int) -> Callable[[int], Json]:
    """What a task does with its number; it travels to executors."""
    return partial(_share, house, work, count, code_of(work.view.stream.definition))


def _share(house: Storehouse, work: Publish, count: int, code: tuple[Code, ...], number: int) -> Json:
    ready(code)
    return share_of_work(house.lake(), work, Share(number, count))


def _share_task(house: Storehouse, work: Publish, count: int, number: int) -> Any:
    """The same as a value."""
    from headwater.spark.protocol import ShareTask

    code = [(each.module, each.text) for each in code_of(work.view.stream.definition)]
    return task_at(house, work.view.stream, work.slot, ShareTask(number, count, code))


def task_at(house: Storehouse, stream: Stream, slot: int, task: Any) -> Any:
    """A task of a procedure, about a stream table as a slot has it."""
    from headwater.spark.fresh import lake_option
    from headwater.spark.protocol import TaskRun

    return TaskRun(lake_option(house.root, house.storage), list(stream.path), slot, task)


class SparkCrew:
    """The batches of a backfill as tasks of a Spark session; a version for each wave of them."""

    def __init__(self, spark: Any, house: Storehouse, rows: int | None = None, tell: Teller = NOBODY) -> None:
        self._spark = spark
        self._house = house
        self._tell = tell
        self.rows = rows or BATCH_ROWS
        self.batches = WAVE * cores(spark)

    def backfill(self, work: Backfill) -> list[Json]:
        self._tell.stage(f"compute {many(sum(each.rows for each in work.batches), 'row')}", len(work.batches))
        return distributed(self._spark, len(work.batches), batch_runner(self._house, work), self._tell)


def batch_runner(house: Storehouse, work: Backfill) -> Callable[[int], Json]:
    """What a task does with its number; it travels to executors."""
    return partial(_batch, house, work, code_of(work.stream.definition))


def _batch(house: Storehouse, work: Backfill, code: tuple[Code, ...], number: int) -> Json:
    ready(code)
    return batch_of_backfill(house.lake(), work, work.batches[number])


def cores(spark: Any) -> int:
    context = getattr(spark, "_sc", None)  # a Connect session has none, nor has that of a procedure
    return int(context.defaultParallelism) if context is not None else int(getattr(spark, "cores", 8))
