"""The page of all figures: what a ratio is, what is marked, and that nothing is left out."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from benchmarks import __main__ as every
from benchmarks import figures, page
from benchmarks.figures import Compared, Goal, Run
from benchmarks.measure import RESULTS, Report


def run_of(name: str = "rest", **changed: object) -> Run:
    code = {part: figures.digest_of(part) for part in figures.measured_by(name)}
    machine = {"processor": "P", "cores": 2, "memory_gib": 4.0, "system": "Linux", "python": "3.11", "load": 0.1}
    disk = {"durable_file_ms": 0.5, "durable_append_ms": 0.2, "write_mb_per_s": 300.0}
    found = Run(name, f"python -m benchmarks.{name}", "2026-11-18", machine, disk, {"pylance": "14.0.2"}, code)
    return dataclasses.replace(found, **changed)  # type: ignore[arg-type]


def test_a_ratio_is_how_many_times_as_good_ours_is_whatever_the_unit() -> None:
    rates = Compared("a", "/s", (10, 20, 30, 40, 50), (10, 10, 10, 10, 10), "peer")
    times = Compared("a", "s", (1, 1, 1, 1, 1), (1, 2, 3, 4, 5), "peer", goal=4.0)
    assert rates.ratios == times.ratios == [1, 2, 3, 4, 5]
    assert (rates.ratio, rates.holds, times.holds) == (3, None, False)


def test_the_page_has_the_ratio_its_spread_the_peers_version_the_machine_and_the_disk() -> None:
    compared = Compared("describe", "/s", (10, 20, 30, 40, 50), (10, 10, 10, 10, 10), "pylance", goal=2.0)
    shown = page.page([run_of(compared=(compared,))], {})
    assert "| describe | 30 /s | pylance 10 /s | 3.00x | 1.00 to 5.00 | 5 | 2.00x | yes |" in shown
    assert "pylance 14.0.2" in shown
    assert "a durable file in 0.5 ms" in shown
    assert "P, 2 cores" in shown


def test_fewer_turns_than_five_and_a_missed_goal_are_marked() -> None:
    few = Compared("few", "s", (1.0,), (2.0,), "peer")
    slow = Goal("slow", "s", (3.0,) * 5, most=2.0)
    shown = page.page([run_of(compared=(few,), goals=(slow,))], {})
    assert "1, **too few**" in shown
    assert "| slow | 3 s | 3 to 3 | 5 | 2 s | **no** |" in shown


def test_a_figure_older_than_its_code_is_marked_and_names_the_code() -> None:
    current = run_of()
    assert current.changed == []
    assert "older than its code**:" not in page.page([current], {})
    older = run_of(code={**current.code, "workers": "another digest"})
    assert f"**{page.OLDER}**: `headwater/workers`." in page.page([older], {})


def test_a_result_file_of_an_earlier_day_than_its_code_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "code_day", lambda name: "2026-11-17")
    table = "| a | b |\n|---|---|\n| 1 | 2 |\n"
    shown = page.page([], {"rest": f"# rest\n\n2026-11-16\n\n{table}", "web": f"# web\n\n2026-11-17\n\n{table}"})
    assert "[rest.md](rest.md), 2026-11-16. **older than its code**, which changed on 2026-11-17." in shown
    assert "[web.md](web.md), 2026-11-17.\n" in shown
    assert shown.count("| 1 | 2 |") == 2


def test_the_page_in_the_repository_has_every_result_file() -> None:
    text = page.PAGE.read_text()
    for path in RESULTS.glob("*.md"):
        assert path == page.PAGE or f"({path.name})" in text, f"run: python -m benchmarks.page ({path.name} is new)"
    for run in figures.kept():
        assert f"## {run.name}\n" in text


def test_every_benchmark_says_which_code_it_measures() -> None:
    for name in (*every.BENCHMARKS, *(path.stem for path in RESULTS.glob("*.md") if path != page.PAGE)):
        for part in figures.measured_by(name.replace("_", "-")):
            assert figures.digest_of(part), f"{name} measures headwater/{part}, which is not there"


def test_what_a_report_keeps_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "KEPT", tmp_path / "figures")
    monkeypatch.setattr("benchmarks.measure.RESULTS", tmp_path)
    monkeypatch.setattr(figures, "disk_speed", lambda: {"durable_file_ms": 1.0})
    report = Report("rest", "python -m benchmarks.rest", ("what", "ratio"))
    assert report.compared("describe", [2.0] * 5, [1.0] * 5, "peer", "/s") == "2.00x (2.00 to 2.00)"
    assert report.measured("start", [1.0] * 5, "s", 0.5) == "**no**"
    report.write()
    (found,) = figures.kept()
    assert (found.compared[0].ratio, found.goals[0].value, found.changed) == (2.0, 1.0, [])


def test_the_speed_of_a_disk_is_measured(tmp_path: Path) -> None:
    found = figures.disk_speed(str(tmp_path), files=3, megabytes=1)
    assert all(value > 0 for value in found.values())
    assert not list(tmp_path.iterdir())
