"""One page of every figure, `results/README.md`, with its plot: `python -m benchmarks.page`. `make bench` ends with it.

Figures that benchmarks kept (`results/figures`) stand first: ratio and spread of their turns, and a mark when the code
that they measure has changed since. The tables of all result files follow, marked by the dates of their commits.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from benchmarks.figures import ROOT, TURNS, Compared, Goal, Run, kept, measured_by
from benchmarks.measure import RESULTS
from tools.plot_results import Bar, draw

PAGE = RESULTS / "README.md"
PLOT = RESULTS / "figures.svg"
OLDER = "older than its code"
DAY = re.compile(r"\b20\d\d-\d\d-\d\d\b")
MOST_BARS = 40
ABOUT = {
    "catalogs": ("starts", "catalog", "directory", "directory-cold", "rest", "web", "workers"),
    "versions": ("versions", "versions-appends"),
    "metastore": ("metastore-commits", "metastore-opening", "metastore-growth-memory", "metastore-dropped"),
    "streams and pipeline": ("streams", "pipeline-"),
    "Spark": ("spark", "tpch"),
    "scale": ("scale-",),
    "two trees of this project": ("trees", "rest-trees"),
}
"""The headings of the page, with the result files below each: whole names, or the beginning of several."""


def main() -> None:
    runs = kept()
    PLOT.write_text(plot(runs))
    PAGE.write_text(page(runs, files()))
    print(f"wrote {PAGE.relative_to(ROOT)} and {PLOT.relative_to(ROOT)}")


def files() -> dict[str, str]:
    """Return the result files by name."""
    return {path.stem: path.read_text() for path in sorted(RESULTS.glob("*.md")) if path != PAGE}


def page(runs: Iterable[Run], results: dict[str, str]) -> str:
    """Return the page as Markdown."""
    runs = list(runs)
    lines = [
        "# Every figure",
        "",
        "`make bench` runs all benchmarks and writes this page; `python -m benchmarks.page` writes it again from what "
        "was measured. A ratio is how many times as good as the peer's ours is: the median of the turns, with the "
        f"least and the most. Fewer than {TURNS} turns are marked.",
        "",
        f"**{OLDER}** marks a figure whose code has changed since it was taken: measure it again before relying on it.",
        "[How fast it is](../../docs/benchmarks.md) is the short page.",
        "",
    ]
    if runs:
        lines += [
            "![Bars: the speed of Headwater as a multiple of its peer's, with the spread of the turns](figures.svg)",
            "",
        ]
    lines += [line for run in runs for line in _run(run)]
    placed = {name for _, names in _placed(results) for name in names}
    rest = sorted(results.keys() - placed)
    for title, names in [*_placed(results), *([("other", rest)] if rest else [])]:
        lines += [f"## Results: {title}", ""]
        lines += [line for name in names for line in _file(name, results[name])]
    return "\n".join(lines).rstrip() + "\n"


def _run(run: Run) -> list[str]:
    """Return the section of one kept run."""
    mark = f" **{OLDER}**: {', '.join(f'`headwater/{part}`' for part in run.changed)}." if run.changed else ""
    lines = [f"## {run.name}", "", f"`{run.command}`, {run.taken}.{mark}", "", _conditions(run), ""]
    if run.compared:
        lines += ["| what | ours | peer | ratio | spread | turns | goal | holds |", "|---|---|---|---|---|---|---|---|"]
        lines += [_compared(each) for each in run.compared] + [""]
    if run.goals:
        lines += ["| what | median | spread | turns | at most | holds |", "|---|---|---|---|---|---|"]
        lines += [_goal(each) for each in run.goals] + [""]
    return lines


def _conditions(run: Run) -> str:
    """Return the machine, its disk's own speed and the versions of a run."""
    on, disk = run.machine, run.disk
    busy = " **A busy machine**: the ratios hold more than the figures." if on["load"] > on["cores"] else ""
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    return (
        f"{on['processor']}, {on['cores']} cores, {on['memory_gib']} GiB, {on['system']}, Python {on['python']}, load "
        f"{on['load']} at the end.{busy} The disk by itself: a durable file in {disk['durable_file_ms']} ms, a durable "
        f"append in {disk['durable_append_ms']} ms, {disk['write_mb_per_s']:,.0f} MB/s. Versions: {versions}."
    )


def _compared(each: Compared) -> str:
    ours, theirs = (sorted(side)[len(side) // 2] for side in (each.ours, each.theirs))
    goal = "" if each.goal is None else f"{each.goal:.2f}x"
    peer = f"{each.peer} {_number(theirs)} {each.unit}"
    spread = f"{each.ratios[0]:.2f} to {each.ratios[-1]:.2f}"
    return (
        f"| {each.what} | {_number(ours)} {each.unit} | {peer} | {each.ratio:.2f}x | {spread} | {_turns(each.ours)} "
        f"| {goal} | {_verdict(each.holds)} |"
    )


def _goal(each: Goal) -> str:
    most = "" if each.most is None else f"{each.most:g} {each.unit}"
    spread = f"{_number(min(each.turns))} to {_number(max(each.turns))}"
    value = f"{_number(each.value)} {each.unit}"
    return f"| {each.what} | {value} | {spread} | {_turns(each.turns)} | {most} | {_verdict(each.holds)} |"


def _turns(turns: tuple[float, ...]) -> str:
    return str(len(turns)) if len(turns) >= TURNS else f"{len(turns)}, **too few**"


def _verdict(holds: bool | None) -> str:
    return "" if holds is None else "yes" if holds else "**no**"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _placed(results: dict[str, str]) -> list[tuple[str, list[str]]]:
    return [
        (
            title,
            [
                name
                for name in results
                for start in starts
                if name == start or (start[-1] == "-" and name.startswith(start))
            ],
        )
        for title, starts in ABOUT.items()
    ]


def _file(name: str, text: str) -> list[str]:
    """Return the tables of a result file, with the day of its newest figures and a mark."""
    days = DAY.findall(text)
    taken, changed = max(days) if days else "", code_day(name)
    day = taken or "not dated"
    mark = f" **{OLDER}**, which changed on {changed}." if changed > (taken or "0") else ""
    lines = [f"### {name}", "", f"[{name}.md]({name}.md), {day}.{mark}", ""]
    for line in text.splitlines():
        if line.startswith("|"):
            lines.append(line)
        elif lines[-1].startswith("|"):
            lines.append("")
    return lines if not lines[-1] else [*lines, ""]


def code_day(name: str) -> str:
    """Return the day of the last commit to the code that a benchmark measures; empty where git does not know."""
    parts = [str(Path("headwater") / part) for part in measured_by(name)]
    if not parts:
        return ""
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%cs", "--", *parts]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip()


def plot(runs: Iterable[Run]) -> str:
    """Return an SVG of all comparisons: the ratio of each, with its spread, the largest first."""
    found = [
        Bar(each.what, each.ratio, each.ratios[0], each.ratios[-1], f"{each.peer}, {run.name}", bool(run.changed))
        for run in runs
        for each in run.compared
    ]
    return draw(sorted(found, key=lambda bar: -bar.ratio)[:MOST_BARS])


if __name__ == "__main__":
    main()
