"""Progress of a job: a bar on a terminal, else plain lines on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from headwater.cli.output import size
from headwater.pipeline.progress import NOBODY, Teller
from headwater.wording import many

PLAIN_S = 5.0
"""Without a terminal a line comes when a stage begins, and then so many seconds apart."""


class Bar:
    """A bar for each stage: tasks, rows, bytes, and the time that is left."""

    def __init__(self, console: Console) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[told]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self.progress = Progress(*columns, console=console, transient=True, expand=True)
        self._task: Any = None
        self._rows = self._bytes = self._all = self._done = self._tasks = 0

    def stage(self, name: str, tasks: int, bytes: int = 0) -> None:
        self._rows = self._bytes = 0
        self._all = bytes
        self._done, self._tasks = 0, max(tasks, 1)
        self._task = self.progress.add_task(name, total=self._tasks, told="")

    def step(self, tasks: int = 1, rows: int = 0, bytes: int = 0) -> None:
        self._rows, self._bytes = self._rows + rows, self._bytes + bytes
        self.at(self._done + tasks, self._tasks)

    def at(self, done: int, of: int) -> None:
        if self._task is None:
            return
        self._done, self._tasks = min(done, of), of
        shown = told(self._rows, self._bytes, self._all)
        self.progress.update(self._task, completed=self._done, total=of, told=shown)


class Lines:
    """Plain lines: the stages, and now and then how far one is."""

    def __init__(self) -> None:
        self._name, self._tasks, self._all = "", 0, 0
        self._done = self._rows = self._bytes = 0
        self._last = time.monotonic()

    def stage(self, name: str, tasks: int, bytes: int = 0) -> None:
        self._name, self._tasks, self._all = name, tasks, bytes
        self._done = self._rows = self._bytes = 0
        self._say(f"{name}: {many(tasks, 'task')}" + (f", {size(bytes)}" if bytes else ""))

    def step(self, tasks: int = 1, rows: int = 0, bytes: int = 0) -> None:
        self._rows, self._bytes = self._rows + rows, self._bytes + bytes
        self.at(self._done + tasks, self._tasks)

    def at(self, done: int, of: int) -> None:
        self._done, self._tasks = min(done, of), of
        if time.monotonic() - self._last >= PLAIN_S:
            self._say(f"{self._name}: {self._done}/{self._tasks} tasks {told(self._rows, self._bytes, self._all)}")

    def _say(self, text: str) -> None:
        self._last = time.monotonic()
        print(text.rstrip(), file=sys.stderr, flush=True)


def told(rows: int, bytes: int, of: int) -> str:
    parts = [many(rows, "row")] if rows else []
    if of:
        parts.append(f"{size(bytes)} of {size(of)}")
    return ", ".join(parts)


@contextmanager
def telling(quiet: bool = False) -> Iterator[Teller]:
    """Return what shows the progress of a job: a bar on a terminal, else lines; nothing with --json."""
    if quiet:
        yield NOBODY
        return
    if not sys.stderr.isatty():
        yield Lines()
        return
    bar = Bar(Console(stderr=True))
    with bar.progress:
        yield bar
