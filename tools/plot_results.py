"""Draw docs/images/benchmarks.svg, the main figures of `benchmarks/results`: `python -m tools.plot_results`.

Each bar is the speed of Headwater as a multiple of its peer's, on a logarithmic axis. `FIGURES` names the row and the
columns of a results file, so a new measurement changes the picture by itself.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PICTURE = ROOT / "docs" / "images" / "benchmarks.svg"
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
WIDTH, LEFT, TOP, ROW, BAR = 960, 350, 64, 40, 20
AXIS, LEAST = 520, 0.5
"""Pixels of the axis, and the ratio at its left end: a peer that is faster has a bar to the left of 1x."""


@dataclass(frozen=True)
class Figure:
    """One comparison: a row of a results file, and its two columns.

    `row`: the cells that the row starts with. `ours`, `theirs`: column numbers, from 0. `unit`: `/s` if more is better,
    otherwise a unit of time.
    """

    label: str
    file: str
    row: tuple[str, ...]
    ours: int
    theirs: int
    peer: str
    unit: str


@dataclass(frozen=True)
class Measured:
    """The two numbers of a figure as the results file has them."""

    figure: Figure
    ours: float
    theirs: float

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs if self.figure.unit == "/s" else self.theirs / self.ours


FIGURES = (
    Figure("append to one partition, 8 processes", "metastore-commits", ("appends to one",), 1, 4, "DeltaCAT", "/s"),
    Figure("list 10,000 tables", "directory", ("list_tables", "V2", "10000"), 3, 5, "pylance", "µs"),
    Figure("append to 5,000 versions, 8 processes", "versions-appends", ("5000",), 1, 5, "pylance", "/s"),
    Figure("describe a table over REST, 8 threads", "rest", ("describe_table", "8"), 2, 3, "pylance's adapter", "/s"),
    Figure("Spark: count(*) of 8M rows", "spark", ("count(*)",), 1, 2, "Parquet", "s"),
    Figure("Spark: full scan of 8M rows", "spark", ("full scan",), 1, 2, "Parquet", "s"),
    Figure("Spark: write 300k vectors", "spark", ("write vectors",), 1, 2, "Parquet", "s"),
    Figure("land and publish 100k rows into 1M", "streams", ("100k into 1M",), 1, 2, "pylance merge_insert", "s"),
    Figure("publish 10 rows into 1M", "streams", ("10 into 1M: publish",), 1, 2, "pylance merge_insert", "s"),
)  # fmt: skip


def measured(figure: Figure) -> Measured:
    """Return the numbers of the first matching row. Raises LookupError if the file has no such row."""
    for line in (RESULTS / f"{figure.file}.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and all(cell.startswith(start) for cell, start in zip(cells, figure.row, strict=False)):
            exact = all(cells[at] == start for at, start in enumerate(figure.row) if at)
            if exact:
                return Measured(figure, _number(cells[figure.ours]), _number(cells[figure.theirs]))
    raise LookupError(f"benchmarks/results/{figure.file}.md has no row {' | '.join(figure.row)}")


def _number(cell: str) -> float:
    found = NUMBER.search(cell)
    if found is None:
        raise LookupError(f"no number in the cell {cell!r}")
    return float(found[0].replace(",", ""))


def draw(found: list[Measured]) -> str:
    """Return the SVG: one bar for each comparison, largest ratio first."""
    found = sorted(found, key=lambda each: -each.ratio)
    most = 10 ** math.ceil(math.log10(max(each.ratio for each in found)))
    height = TOP + ROW * len(found) + 40
    text = " ".join(f"{each.figure.label}: {each.ratio:.1f} times {each.figure.peer}." for each in found)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="t d" '
        "font-family=\"system-ui, 'Segoe UI', Roboto, sans-serif\">",
        f'<title id="t">Headwater against its peers</title>\n<desc id="d">{escape(text)}</desc>',
        f'<rect width="{WIDTH}" height="{height}" rx="14" fill="#f6f8f9"/>',
        '<text x="24" y="34" font-size="15" font-weight="600" fill="#0b6e7f">'
        "Times as fast as the peer (2 cores; log scale)</text>",
    ]
    marks = [mark for power in range(3) for mark in (10**power, 3 * 10**power) if mark <= most]

    def place(ratio: float) -> float:
        return LEFT + AXIS * math.log(max(ratio, LEAST) / LEAST) / math.log(most / LEAST)

    for mark in marks:
        x = place(mark)
        lines.append(
            f'<line x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{height - 34}" stroke="#d4dee2"/>'
            f'<text x="{x:.1f}" y="{height - 16}" text-anchor="middle" font-size="12" fill="#566870">{mark}x</text>'
        )
    for at, each in enumerate(found):
        y, figure = TOP + ROW * at, each.figure
        first, last = sorted((place(1), place(each.ratio)))
        color = "#0b6e7f" if each.ratio >= 1 else "#b45309"
        numbers = f"{each.ratio:.1f}x · {each.ours:,g} {figure.unit} to {each.theirs:,g} ({figure.peer})"
        lines.append(
            f'<text x="{LEFT - 12}" y="{y + 15}" text-anchor="end" font-size="13" fill="#16242a">'
            f"{escape(figure.label)}</text>"
            f'<rect x="{first:.1f}" y="{y}" width="{last - first + 2:.1f}" height="{BAR}" rx="3" fill="{color}"/>'
            f'<text x="{place(1) + 6:.1f}" y="{y + BAR + 13}" font-size="11" fill="#566870">{escape(numbers)}</text>'
        )
    return "\n".join([*lines, "</svg>", ""])


def picture() -> str:
    return draw([measured(figure) for figure in FIGURES])


if __name__ == "__main__":
    PICTURE.write_text(picture())
    print(f"wrote {PICTURE.relative_to(ROOT)}")
