"""Timing two sides in one run: interleaved rounds, wall and CPU, the ratio of medians."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Figure:
    """What one action cost: the median of its rounds, in microseconds per call."""

    wall_us: float
    cpu_us: float

    @property
    def per_second(self) -> float:
        return 1e6 / self.wall_us


def measure(action: Callable[[], object], calls: int) -> Figure:
    """The cost of one call, over a number of calls."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(calls):
        action()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Figure(wall / calls * 1e6, cpu / calls * 1e6)


def compare(
    ours: Callable[[], object], peer: Callable[[], object], our_calls: int, peer_calls: int, rounds: int = 3
) -> tuple[Figure, Figure]:
    """Both sides in turn, so that the machine's mood falls on both."""
    mine: list[Figure] = []
    theirs: list[Figure] = []
    for _ in range(rounds):
        mine.append(measure(ours, our_calls))
        theirs.append(measure(peer, peer_calls))
    return median(mine), median(theirs)


def median(figures: Sequence[Figure]) -> Figure:
    return Figure(
        statistics.median(item.wall_us for item in figures), statistics.median(item.cpu_us for item in figures)
    )


class Report:
    """Rows of a table, printed as they come and written as a page at the end."""

    def __init__(self, name: str, command: str, columns: Sequence[str]) -> None:
        self.name = name
        self.command = command
        self.columns = columns
        self.rows: list[Sequence[str]] = []
        print(" | ".join(columns), flush=True)

    def add(self, *cells: object) -> None:
        row = [f"{cell:,.1f}" if isinstance(cell, float) else str(cell) for cell in cells]
        self.rows.append(row)
        print(" | ".join(row), flush=True)

    def write(self, note: str = "") -> None:
        RESULTS.mkdir(exist_ok=True)
        lines = [
            f"# {self.name}",
            "",
            f"`{self.command}` on {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}. Both sides in one run.",
            "",
            "| " + " | ".join(self.columns) + " |",
            "|" + "---|" * len(self.columns),
            *("| " + " | ".join(row) + " |" for row in self.rows),
            "",
            note,
        ]
        (RESULTS / f"{self.name}.md").write_text("\n".join(lines).rstrip() + "\n")
