"""Progress of a job, and the place where it ran. The command line shows both (cli/pipeline.py)."""

from __future__ import annotations

from typing import Protocol


class Teller(Protocol):
    """A display of progress."""

    def stage(self, name: str, tasks: int, bytes: int = 0) -> None:
        """Begin a stage of `tasks` tasks that reads `bytes` bytes, if that is known."""
        ...

    def step(self, tasks: int = 1, rows: int = 0, bytes: int = 0) -> None:
        """Add tasks, rows and bytes to those that are done in this stage."""
        ...

    def at(self, done: int, of: int) -> None:
        """Set how many tasks of this stage are done, and how many it has."""
        ...


class Nobody:
    """A display that shows nothing."""

    def stage(self, name: str, tasks: int, bytes: int = 0) -> None:
        """Do nothing."""

    def step(self, tasks: int = 1, rows: int = 0, bytes: int = 0) -> None:
        """Do nothing."""

    def at(self, done: int, of: int) -> None:
        """Do nothing."""


NOBODY = Nobody()
