"""A plugin of whole runs: a run fails unless each test that docs/documents.md names ran.

The plugin lists a test that was skipped with its reason. It does not judge a part of the suite (paths, `-k`,
`--deselect`), nor the tests marked long in a run with `-m "not long"`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).parents[1]
TEST = re.compile(r"`((?:tests|headwater)/[\w/]+\.py)::(test_\w+)`")
SHORT = "not long"


@cache
def functions_of(path: str, root: Path = PROJECT) -> dict[str, bool]:
    """Return the test functions of a file, those of classes too, and whether each is marked long."""
    tree = ast.parse((root / path).read_text())
    marks = [node.value for node in tree.body if isinstance(node, ast.Assign) and _named(node, "pytestmark")]
    all_long = any("mark.long" in ast.unparse(mark) for mark in marks)
    return {
        node.name: all_long or any("mark.long" in ast.unparse(each) for each in node.decorator_list)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def _named(node: ast.Assign, name: str) -> bool:
    return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)


def not_run(page: str, ran: Iterable[str], expression: str, root: Path = PROJECT) -> list[str]:
    """Return the tests of a page that a run with the mark `expression` should have run and did not.

    `ran`: node ids. A test of a shipped suite (`headwater/testing`) runs in whichever module inherits it.
    """
    ids = {_plain(id) for id in ran}
    files = {(id.partition("::")[0], id.rpartition("::")[2]) for id in ids}
    names = {name for _, name in files}
    return [
        f"{path}::{name}"
        for path, name in dict.fromkeys(TEST.findall(page))
        if not (expression == SHORT and functions_of(path, root).get(name))
        and not ((path, name) in files or (path.startswith("headwater/") and name in names))
    ]


def _plain(id: str) -> str:
    """Return a node id without its parameters, and without the group that xdist appends."""
    return re.split(r"[\[@]", id, maxsplit=1)[0]


class DocumentsRan:
    """Collects the tests that ran. `lines`: at the end of a whole run, the tests of the page that did not."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.ran: set[str] = set()
        self.skipped: dict[str, str] = {}
        self.lines: list[str] = []

    def whole(self) -> bool:
        """Return whether the run was asked for all tests, or for all that are not long."""
        option: Any = self.config.option
        parts = option.keyword or option.deselect or option.ignore or option.ignore_glob or option.collectonly
        chosen = parts or option.maxfail or self.config.getoption("lf", False)
        return not chosen and option.markexpr in ("", SHORT) and self.config.args == self.config.getini("testpaths")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped:
            self.skipped[report.nodeid] = str(report.longrepr[-1] if isinstance(report.longrepr, tuple) else "")
        elif report.when == "call":
            self.ran.add(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a whole run in which a test of the page was never collected, deselected or not reached."""
        if not self.whole():
            return
        root, expression = self.config.rootpath, self.config.option.markexpr
        page = (root / "docs" / "documents.md").read_text()
        without = not_run(page, self.ran, expression, root)
        never = set(not_run(page, {*self.ran, *self.skipped}, expression, root))
        reasons = {_plain(id): reason for id, reason in self.skipped.items()}
        self.lines = [f"{name}: {'never run' if name in never else reasons.get(name, 'skipped')}" for name in without]
        if never and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.lines:
            terminalreporter.section("docs/documents.md names tests that did not run")
            for line in self.lines:
                terminalreporter.write_line(line)
