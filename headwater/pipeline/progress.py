"""How far a job is: stages, and what of each is done. Who shows it is another's matter (cli/progress.py)."""

from __future__ import annotations

from typing import Protocol


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
