"""A display of progress that shows nothing. The command line has others (cli/pipeline.py)."""

from __future__ import annotations


class NoProgress:
    """A display that shows nothing."""

    def stage(self, name: str, tasks: int, bytes: int = 0) -> None:
        """Do nothing."""

    def step(self, tasks: int = 1, rows: int = 0, bytes: int = 0) -> None:
        """Do nothing."""

    def at(self, done: int, of: int) -> None:
        """Do nothing."""


NO_PROGRESS = NoProgress()
