"""The demo writes a folder of its own and leaves everything else alone."""

from __future__ import annotations

import shlex
from pathlib import Path

import httpx
import pytest

from examples.demo import PAGE, main, own_folder
from headwater.cli import main as headwater
from headwater.rest.server import start_in_thread
from headwater.web import page

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_demo_takes_a_folder_that_nobody_has(tmp_path: Path) -> None:
    precious = tmp_path / "headwater-demo" / "__manifest"
    precious.mkdir(parents=True)
    assert own_folder(None) == Path("headwater-demo-2")
    assert own_folder(None) == Path("headwater-demo-3")
    assert precious.is_dir()


def test_a_given_folder_that_is_there_is_refused_whatever_is_in_it(tmp_path: Path) -> None:
    for content in ("__manifest", "notes"):
        lake = tmp_path / f"lake-{content}"
        (lake / content).mkdir(parents=True)
        with pytest.raises(SystemExit, match="not there yet"):
            own_folder(str(lake))
        assert (lake / content).is_dir()
    assert own_folder("deep/new") == Path("deep/new")


def test_make_removes_no_lake() -> None:
    """`make demo` and `make clean` name nothing but what a build makes."""
    removed = [line for line in (CHECKOUT / "Makefile").read_text().splitlines() if "rm " in line]
    assert removed == ["\trm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache"]
    assert "rmtree" not in (CHECKOUT / "examples" / "demo.py").read_text()


def test_the_demo_runs_and_leaves_a_lake_that_holds_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("duckdb")
    lake = main("demo")
    told = capsys.readouterr().out
    assert "nothing was new" in told
    assert "orders of the wrong file now: 0" in told
    last = told.strip().splitlines()
    assert last[-4] == "Three things to try:"
    assert f"http://127.0.0.1:8080/{PAGE}" in told
    with start_in_thread(lake.namespace, face=page) as server:
        assert "raw.orders" in httpx.get(f"{server.url}/{PAGE}").text
    for line in last[-3:]:
        assert headwater(shlex.split(line)[1:]) == 0, line
    assert lake["raw.orders"].verify() == []
    assert len(lake["mart.spend"]) == len(lake["mart.spend"].serving)
    assert lake["raw.products"].coverage()["text_idx"] > 0.95
