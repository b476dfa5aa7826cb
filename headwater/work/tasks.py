"""Tasks as values, the runner that runs them, and the place in which a step ran.

A task names a function and carries its arguments, so it travels by pickle. Modules of users that executors may not have
travel with it as text. An executor loads a module once per Python worker, and again only if its text differs.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import linecache
import pickle
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

from headwater.errors import LanceNamespaceError

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
    """

    function: str
    arguments: tuple[Any, ...] = ()
    modules: tuple[UserModule, ...] = ()

    def run(self, *more: Any) -> Any:
        """Call the function with the arguments, and `more` that come to the task where it runs."""
        load_modules(self.modules)
        return named(self.function)(*self.arguments, *more)

    def answer(self, *more: Any) -> Any:
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
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


def guarded(run: Callable[..., Any], *arguments: Any) -> Any:
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

    def map(self, frame: Any, task: Task) -> list[Any]:
        """Run a task on the rows of each partition of a Spark frame, and return the answers of all in one list."""
        ...

    def counted(self) -> AbstractContextManager[None]:
        """Count the jobs that this thread starts in the block by other means, such as SQL."""
        ...
