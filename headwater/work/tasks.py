"""Tasks as values, the runner that runs them, and the place in which a step ran.

A task names a function and carries its arguments, so it travels by pickle. Modules of users that executors may not have
travel with it as text. An executor loads a module once per Python worker, and again only if its text differs.

The engine of a pipeline is Spark, or `embedded` in this process. The command line wins over the pipeline file, the file
over HEADWATER_ENGINE, and Spark is the default of a pipeline. A single verb runs embedded unless the command line or
the profile of its catalog names a master.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import linecache
import pickle
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, Protocol

from headwater.errors import InvalidInputError, LanceNamespaceError

Json = dict[str, Any]
EXECUTORS, DRIVER, EMBEDDED = "executors", "driver", "embedded"
"""The places of work: executors of Spark, the driver of Spark, and a process without Spark."""
DRIVER_ROWS = 10_000
"""The driver may parse, fold and write this many rows itself, unless the caller sets another number."""
SENT = "__headwater_text__"
"""The attribute under which a module keeps the text that was sent to this process."""


@dataclass(frozen=True)
class Where:
    """The place in which a step ran, with the number of Spark jobs and tasks that it took."""

    place: str = DRIVER
    jobs: int = 0
    tasks: int = 0

    def __add__(self, other: Where) -> Where:
        jobs = self.jobs + other.jobs
        return Where(EXECUTORS if jobs else self.place, jobs, self.tasks + other.tasks)

    def __sub__(self, earlier: Where) -> Where:
        jobs = self.jobs - earlier.jobs
        place = EMBEDDED if self.place == EMBEDDED else EXECUTORS if jobs else DRIVER
        return Where(place, jobs, self.tasks - earlier.tasks)


@dataclass(frozen=True)
class UserModule:
    """A module of a user that executors cannot be expected to have: its name and its text."""

    name: str
    text: str

    def load(self) -> None:
        """Make the module importable in this process, with exactly this text."""
        known = sys.modules.get(self.name)
        if getattr(known, SENT, None) == self.text:
            return
        file = f"<{self.name} {hashlib.blake2b(self.text.encode(), digest_size=8).hexdigest()}>"
        linecache.cache[file] = (len(self.text), None, self.text.splitlines(True), file)  # inspect.getsource reads it
        made = ModuleType(self.name)
        made.__dict__[SENT] = self.text
        sys.modules[self.name] = made
        try:
            exec(compile(self.text, file, "exec"), made.__dict__)
        except BaseException:
            sys.modules.pop(self.name, None)
            raise


def load_modules(modules: Iterable[UserModule]) -> None:
    """Load modules, each after those among them that it imports."""
    known = {each.name: each for each in modules}

    def load(each: UserModule, waiting: frozenset[str]) -> None:
        try:
            each.load()
        except ModuleNotFoundError as error:
            if error.name not in known or error.name in waiting:
                raise
            load(known[error.name], waiting | {each.name})
            load(each, waiting)

    for each in known.values():
        load(each, frozenset())


@dataclass(frozen=True)
class Task:
    """A call of a function of the package that answers JSON.

    `function`: its name, `module:function`.
    `arguments`: values that pickle.
    `modules`: modules of users that the function calls.
    `plain`: all arguments are values of this package, so any worker that has the package can read them.
    """

    function: str
    arguments: tuple[object, ...] = ()
    modules: tuple[UserModule, ...] = ()
    plain: bool = False

    def run(self, *more: object) -> Any:
        """Call the function with the arguments, and `more` that come to the task where it runs."""
        load_modules(self.modules)
        return named(self.function)(*self.arguments, *more)

    def answer(self, *more: object) -> Any:
        """Run the task and return its answer, or an error of the error table as a value."""
        return guarded(self.run, *more)

    def packed(self) -> str:
        """Return the task as text."""
        return base64.b64encode(pickle.dumps(self)).decode()

    @staticmethod
    def unpacked(text: str) -> Task:
        """Return the task of a text that `packed` wrote. Only the driver of the same job may have written it."""
        found: Task = pickle.loads(base64.b64decode(text))
        return found


def named(function: str) -> Callable[..., Any]:
    """Import a function by its name, `module:function`."""
    module, _, name = function.partition(":")
    found: Callable[..., object] = getattr(importlib.import_module(module), name)
    return found


def guarded(run: Callable[..., object], *arguments: object) -> Any:
    """Return the answer of a call, or an error of the error table as a value."""
    try:
        return run(*arguments)
    except LanceNamespaceError as error:
        return {"error": [int(error.code), str(error)]}


class Runner(Protocol):
    """The place in which tasks run: this process or executors of Spark."""

    @property
    def spark(self) -> Any:
        """The Spark session; None if the runner has none."""
        ...

    @property
    def cores(self) -> int:
        """The number of tasks that run at the same time."""
        ...

    @property
    def driver_rows(self) -> int | None:
        """The number of rows that the caller's process may touch in a step; None: any."""
        ...

    @property
    def done(self) -> Where:
        """All jobs and tasks so far. The difference of two values is what a step took."""
        ...

    def in_driver(self, rows: int, calls_functions: bool = False) -> bool:
        """Return True if the caller's process may do work of this many rows.

        `calls_functions`: the work calls functions of users, which executors run at any size.
        """
        ...

    def run(self, tasks: Sequence[Task], what: str = "") -> list[Any]:
        """Run tasks and return their answers in order; raise the first error. `what` is shown as the stage."""
        ...

    def map(self, frame: object, task: Task) -> list[Any]:
        """Run a task on the rows of each partition of a Spark frame, and return the answers of all in one list."""
        ...

    def counted(self) -> AbstractContextManager[None]:
        """Count the jobs that this thread starts in the block by other means, such as SQL."""
        ...


SPARK = "spark"
ENGINES = (SPARK, EMBEDDED)
VARIABLE = "HEADWATER_ENGINE"
LOCAL = "local[*]"
MASTERS = (
    r"local(\[(\*|\d+)(, ?\d+)?\])?|local-cluster\[\d+, ?\d+, ?\d+\]",
    r"yarn|spark://\S+:\d+|k8s://\S+|sc://\S+",
)
FIXED = {
    "spark.master": "write master = ... in its place",
    "spark.remote": "write master = ... in its place",
    "spark.sql.ansi.enabled": "the SQL of a pipeline is ANSI SQL everywhere",
    "spark.sql.session.timeZone": "the SQL of a pipeline has the time zone UTC everywhere",
}
"""The settings that are not to be set, and what to do instead."""
_MASTER = re.compile("|".join(MASTERS), re.ASCII)


@dataclass(frozen=True)
class PipelineEngine:
    """An engine and its settings.

    `name`: `spark` or `embedded`; empty if nobody named one.
    `master`: the address of Spark; empty if nobody named one.
    `settings`: further settings of Spark, by their full names.
    `driver_rows`: the driver may do work of this many rows itself; 0: never.
    """

    name: str = ""
    master: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    driver_rows: int = DRIVER_ROWS

    @property
    def is_spark(self) -> bool:
        return self.name == SPARK

    @property
    def address(self) -> str:
        """The master that a session of this engine is started on."""
        return self.master or LOCAL

    @property
    def shown(self) -> str:
        """The master without what only Spark may see: the address of a Connect server may end with a token."""
        return self.address.partition("/;")[0]

    @property
    def is_local(self) -> bool:
        """True if the executors are threads of the driver."""
        return self.address.startswith("local") and not self.address.startswith("local-cluster")

    @property
    def is_connect(self) -> bool:
        return self.address.startswith("sc://")

    def chosen(self, name: str | None, master: str | None, environment: Mapping[str, str]) -> PipelineEngine:
        """Return the engine of a run. `name` and `master` come from the command line."""
        if name == EMBEDDED and master:
            raise InvalidInputError("--engine embedded has no --master: give one of the two.")
        if master:
            return replace(self, name=SPARK, master=checked_master(master, "--master"))
        told = environment.get(VARIABLE) or SPARK
        return replace(self, name=checked_name(name or self.name or told, f"--engine or {VARIABLE}"))

    def of_verb(self, name: str | None, master: str | None) -> PipelineEngine:
        """Return the engine of a single verb; `self` is that of its catalog's profile."""
        told = replace(self, name=self.name or (SPARK if self.master else EMBEDDED))
        return told.chosen(name, master, {})


def checked_name(name: object, where: str) -> str:
    if name not in ENGINES:
        raise InvalidInputError(f"{where}: an engine is {' or '.join(map(repr, ENGINES))}, not {name!r}.")
    return str(name)


def checked_master(master: object, where: str) -> str:
    if not isinstance(master, str) or _MASTER.fullmatch(master) is None:
        raise InvalidInputError(
            f"{where}: {master!r} is not a Spark master. One is local[*], local[2], spark://host:7077, yarn, "
            "k8s://https://host:6443 or sc://host:15002."
        )
    return master


def parse_engine(name: object, master: object, spark: Mapping[str, object], where: str) -> PipelineEngine:
    """Return the engine that a pipeline file or a profile names. `spark`: its table of Spark settings."""
    made = PipelineEngine(
        checked_name(name, f"{where} engine") if name is not None else "",
        checked_master(master, f"{where} master") if master is not None else "",
    )
    if made.name == EMBEDDED and made.master:
        raise InvalidInputError(f'{where} has engine = "embedded" and a master: leave one of them out.')
    settings = dict(_settings(spark, ""))
    rows = settings.pop("driver_rows", DRIVER_ROWS)
    try:
        count = -1 if isinstance(rows, bool) else int(rows)
    except (TypeError, ValueError):
        count = -1
    if count < 0:
        raise InvalidInputError(f"{where} spark.driver_rows is a number of rows, 0 or more, not {rows!r}.")
    found = {key if key.startswith("spark.") else f"spark.{key}": value for key, value in settings.items()}
    for key, instead in FIXED.items():
        if key in found:
            raise InvalidInputError(f"{where} spark has {key!r}: {instead}.")
    return replace(
        made, settings={key: _text(value, f"{where} {key}") for key, value in found.items()}, driver_rows=count
    )


def _settings(values: Mapping[str, object], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield settings by their dotted names: TOML reads `executor.memory` as a table in a table."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _settings(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _text(value: object, where: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, (str, int, float)):
        raise InvalidInputError(f"{where} is a text, a number or true or false, not {value!r}.")
    return str(value)
