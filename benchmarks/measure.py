"""Timing two sides in one run: interleaved rounds, wall and CPU, the ratio of medians."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import TURNS, Compared, Goal, keep

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


@dataclass(frozen=True)
class Sides:
    """The turns of both sides."""

    mine: list[Figure]
    theirs: list[Figure]

    def __iter__(self) -> Iterator[Figure]:
        """Yield the median of ours and of the peer's."""
        yield from (median(self.mine), median(self.theirs))

    @property
    def walls(self) -> tuple[list[float], list[float]]:
        """The microseconds of each turn, of ours and of the peer's."""
        return [each.wall_us for each in self.mine], [each.wall_us for each in self.theirs]


def compare(
    ours: Callable[[], object], peer: Callable[[], object], our_calls: int, peer_calls: int, rounds: int = TURNS
) -> Sides:
    """Measure both sides in turn, so that the machine's mood falls on both."""
    found = Sides([], [])
    for _ in range(rounds):
        found.mine.append(measure(ours, our_calls))
        found.theirs.append(measure(peer, peer_calls))
    return found


def median(figures: Sequence[Figure]) -> Figure:
    return Figure(
        statistics.median(item.wall_us for item in figures), statistics.median(item.cpu_us for item in figures)
    )


def spread(folder: str) -> None:
    """Let each folder that is made in this one begin in a group of blocks of its own, where the file system does that.

    To create a file costs up to a hundred times more where files were deleted lately: ext4 passes over their inodes.
    """
    chattr = shutil.which("chattr")
    if chattr is not None:
        subprocess.run([chattr, "+T", folder], stderr=subprocess.DEVNULL, check=False)


class Report:
    """Rows of a table, printed as they come and written as a page at the end."""

    def __init__(self, name: str, command: str, columns: Sequence[str]) -> None:
        self.name = name
        self.command = command
        self.columns = columns
        self.rows: list[Sequence[str]] = []
        self._compared: list[Compared] = []
        self._goals: list[Goal] = []
        print(" | ".join(columns), flush=True)

    def add(self, *cells: object) -> None:
        row = [f"{cell:,.1f}" if isinstance(cell, float) else str(cell) for cell in cells]
        self.rows.append(row)
        print(" | ".join(row), flush=True)

    def compared(
        self,
        what: str,
        ours: Sequence[float],
        theirs: Sequence[float],
        peer: str,
        unit: str = "µs",
        goal: float | None = None,
    ) -> str:
        """Keep the turns of a comparison for the page of all figures; return the ratio with its spread as a cell.

        `unit`: `/s` if more is better. `goal`: the least ratio.
        """
        found = Compared(what, unit, tuple(ours), tuple(theirs), peer, goal)
        self._compared.append(found)
        low, *_, high = found.ratios if len(found.ratios) > 1 else found.ratios * 2
        return f"{found.ratio:.2f}x ({low:.2f} to {high:.2f})"

    def measured(self, what: str, turns: Sequence[float], unit: str, most: float | None = None) -> str:
        """Keep the turns of a figure that has a goal and no peer; return `yes`, `**no**`, or nothing without a goal."""
        found = Goal(what, unit, tuple(turns), most)
        self._goals.append(found)
        return "" if found.holds is None else "yes" if found.holds else "**no**"

    def write(self, note: str = "") -> None:
        """Write the page of this benchmark, and what it has for the page of all figures."""
        RESULTS.mkdir(exist_ok=True)
        if self._compared or self._goals:
            keep(self.name, self.command, self._compared, self._goals)
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
