"""Draw docs/images/benchmarks.svg, the main figures of `benchmarks/results`: `python -m tools.plot_results`.

Each bar is the speed of Headwater as a multiple of its peer's, on a logarithmic axis. `FIGURES` names the row and the
columns of a results file, so a new measurement changes the picture by itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PICTURE = ROOT / "docs" / "images" / "benchmarks.svg"
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
WIDTH, LEFT, TOP, ROW, BAR = 960, 350, 64, 40, 20
AXIS, LEAST, LONGEST = 520, 0.5, 50
"""Pixels of the axis, the ratio at its left end (a faster peer has a bar to the left of 1x), letters of a label."""


@dataclass(frozen=True)
class Figure:
    """One comparison: a row of a results file, and its two columns.

    `row`: the cells that the row starts with. `ours`, `theirs`: titles of columns. `unit`: `/s` if more is better,
    otherwise a unit of time.
    """

    label: str
    file: str
    row: tuple[str, ...]
    ours: str
    theirs: str
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


@dataclass(frozen=True)
class Bar:
    """One bar: a ratio, the least and the most of its turns, and a note under it. `older`: drawn pale."""

    label: str
    ratio: float
    low: float
    high: float
    note: str
    older: bool = False

    @property
    def text(self) -> str:
        """The note with the ratio, as it stands under the bar."""
        spread = f" ({self.low:.2g} to {self.high:.2g})" if self.low != self.high else ""
        return f"{self.ratio:.1f}x{spread} · {self.note}{', older than its code' if self.older else ''}"


SPARK = ("ours wall s / CPU s", "Parquet wall s / CPU s")
MERGES = ("ours, s", "pylance `merge_insert`, s")
FIGURES = (
    Figure(
        "append to one partition, 8 processes",
        "metastore-commits",
        ("appends to one",),
        "measured",
        "peer",
        "DeltaCAT",
        "/s",
    ),
    Figure("list 10,000 tables", "directory", ("list_tables", "V2", "10000"), "ours µs", "pylance µs", "pylance", "µs"),
    Figure(
        "append to 5,000 versions, 8 processes", "versions-appends", ("5000",), "ours /s", "pylance /s", "pylance", "/s"
    ),
    Figure(
        "describe a table over REST, 8 threads",
        "rest",
        ("describe_table", "8"),
        "ours /s",
        "peer /s",
        "pylance's adapter",
        "/s",
    ),
    Figure("Spark: count(*) of 8M rows", "spark", ("count(*)",), *SPARK, "Parquet", "s"),
    Figure("Spark: full scan of 8M rows", "spark", ("full scan",), *SPARK, "Parquet", "s"),
    Figure("Spark: write 300k vectors", "spark", ("write vectors",), *SPARK, "Parquet", "s"),
    Figure("land and publish 100k rows into 1M", "streams", ("100k into 1M",), *MERGES, "pylance merge_insert", "s"),
    Figure("publish 10 rows into 1M", "streams", ("10 into 1M: publish",), *MERGES, "pylance merge_insert", "s"),
)


def measured(figure: Figure) -> Measured:
    """Return the numbers of the first matching row. Raises LookupError if the file has no such row."""
    titles: list[str] = []
    for line in (RESULTS / f"{figure.file}.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells or not titles:
            titles = cells
        elif cells[0].startswith(figure.row[0]) and cells[1 : len(figure.row)] == list(figure.row[1:]):
            row = dict(zip(titles, cells, strict=True))
            return Measured(figure, _number(row[figure.ours]), _number(row[figure.theirs]))
    raise LookupError(f"benchmarks/results/{figure.file}.md has no row {' | '.join(figure.row)}")


def _number(cell: str) -> float:
    found = NUMBER.search(cell)
    if found is None:
        raise LookupError(f"no number in the cell {cell!r}")
    return float(found[0].replace(",", ""))


def draw(found: Sequence[Bar]) -> str:
    """Return the SVG: one bar for each comparison, with a line from its least to its most if they differ."""
    most = 10 ** math.ceil(math.log10(max([*(each.high for each in found), 10])))
    height = TOP + ROW * len(found) + 40
    text = " ".join(f"{each.label}: {each.text}." for each in found)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="t d" '
        "font-family=\"system-ui, 'Segoe UI', Roboto, sans-serif\">",
        f'<title id="t">Headwater against its peers</title>\n<desc id="d">{escape(text)}</desc>',
        f'<rect width="{WIDTH}" height="{height}" rx="14" fill="#f6f8f9"/>',
        '<text x="24" y="34" font-size="15" font-weight="600" fill="#0b6e7f">'
        "Times as fast as the peer (log scale)</text>",
    ]
    marks = [mark for power in range(4) for mark in (10**power, 3 * 10**power) if mark <= most]

    def place(ratio: float) -> float:
        return LEFT + AXIS * math.log(max(ratio, LEAST) / LEAST) / math.log(most / LEAST)

    for mark in marks:
        x = place(mark)
        lines.append(
            f'<line x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{height - 34}" stroke="#d4dee2"/>'
            f'<text x="{x:.1f}" y="{height - 16}" text-anchor="middle" font-size="12" fill="#566870">{mark}x</text>'
        )
    for at, each in enumerate(found):
        y, middle = TOP + ROW * at, TOP + ROW * at + BAR / 2
        first, last = sorted((place(1), place(each.ratio)))
        color = "#0b6e7f" if each.ratio >= 1 else "#b45309"
        pale = ' opacity="0.45"' if each.older else ""
        lines.append(
            f'<text x="{LEFT - 12}" y="{y + 15}" text-anchor="end" font-size="13" fill="#16242a">'
            f"{escape(_short(each.label))}</text>"
            f'<rect x="{first:.1f}" y="{y}" width="{last - first + 2:.1f}" height="{BAR}" rx="3" fill="{color}"{pale}/>'
            f'<text x="{place(1) + 6:.1f}" y="{y + BAR + 13}" font-size="11" fill="#566870">{escape(each.text)}</text>'
        )
        if each.low != each.high:
            low, high = place(each.low), place(each.high)
            lines.append(
                f'<path d="M{low:.1f} {middle}H{high:.1f}M{low:.1f} {middle - 4}v8M{high:.1f} {middle - 4}v8" '
                'stroke="#16242a" fill="none"/>'
            )
    return "\n".join([*lines, "</svg>", ""])


def _short(label: str) -> str:
    return label if len(label) <= LONGEST else f"{label[: LONGEST - 1]}…"


def picture() -> str:
    """Return the picture of the main figures, the largest ratio first."""
    found = sorted((measured(figure) for figure in FIGURES), key=lambda each: -each.ratio)
    return draw([_bar(each) for each in found])


def _bar(each: Measured) -> Bar:
    figure = each.figure
    note = f"{each.ours:,g} {figure.unit} to {each.theirs:,g} ({figure.peer})"
    return Bar(figure.label, each.ratio, each.ratio, each.ratio, note)


if __name__ == "__main__":
    PICTURE.write_text(picture())
    print(f"wrote {PICTURE.relative_to(ROOT)}")
