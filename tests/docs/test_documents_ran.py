"""The plugin of whole runs, in small suites of its own: which runs it fails, and which it leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = "pytester"

CONFTEST = """
import os
from documents_plugin import DocumentsRan

def pytest_configure(config):
    if "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(DocumentsRan(config))
"""
TESTS = """
import pytest

def test_short(): ...

@pytest.mark.long
def test_long(): ...

@pytest.mark.skipif(True, reason="no server here")
def test_skipped(): ...
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A suite of three tests, with a page that names all of them."""
    plugin = Path(__file__).parents[1] / "documents_ran.py"
    pytester.makepyprojecttoml(
        '[tool.pytest.ini_options]\ntestpaths = ["tests"]\npythonpath = ["."]\nmarkers = ["long"]'
    )
    pytester.makepyfile(documents_plugin=plugin.read_text())
    pytester.makepyfile(**{"tests/conftest": CONFTEST, "tests/test_a": TESTS, "tests/test_b": "def test_b(): ..."})
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    name(pytester, "test_short", "test_long", "test_skipped")
    return pytester


def name(suite: pytest.Pytester, *tests: str) -> None:
    """Write the page of the suite, which names these tests of the file `tests/test_a.py`."""
    (suite.path / "docs").mkdir(exist_ok=True)
    (suite.path / "docs" / "documents.md").write_text(" ".join(f"`tests/test_a.py::{each}`" for each in tests))


def test_a_whole_run_that_ran_all_tests_of_the_page_passes_and_lists_the_skipped(suite: pytest.Pytester) -> None:
    for chosen in ((), ("-m", "not long")):
        run = suite.runpytest_inprocess(*chosen)
        assert run.ret == pytest.ExitCode.OK
        run.stdout.fnmatch_lines(["*did not run*", "tests/test_a.py::test_skipped: Skipped: no server here"])


def test_a_whole_run_without_a_test_of_the_page_fails_and_names_it(suite: pytest.Pytester) -> None:
    name(suite, "test_short", "test_gone")
    for chosen in ((), ("tests",), ("-m", "not long")):
        run = suite.runpytest_inprocess(*chosen)
        assert run.ret == pytest.ExitCode.TESTS_FAILED
        run.stdout.fnmatch_lines(["tests/test_a.py::test_gone: never run"])


@pytest.mark.long
def test_the_controller_of_several_workers_judges_their_tests_together(suite: pytest.Pytester) -> None:
    assert suite.runpytest_subprocess("-n", "2").ret == pytest.ExitCode.OK
    name(suite, "test_short", "test_gone")
    run = suite.runpytest_subprocess("-n", "2")
    assert run.ret == pytest.ExitCode.TESTS_FAILED
    run.stdout.fnmatch_lines(["tests/test_a.py::test_gone: never run"])
    run.stdout.no_fnmatch_line("tests/test_a.py::test_short*")


@pytest.mark.parametrize(
    "chosen",
    [["tests/test_b.py"], ["-k", "test_b"], ["-m", "long"], ["-x"], ["--lf"], ["--collect-only"]],
    ids=str,
)
def test_a_part_of_the_suite_is_not_judged(suite: pytest.Pytester, chosen: list[str]) -> None:
    name(suite, "test_gone")
    run = suite.runpytest_inprocess(*chosen)
    assert run.ret == pytest.ExitCode.OK
    run.stdout.no_fnmatch_line("*did not run*")
