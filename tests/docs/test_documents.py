"""The page of the documents: every row names a test that exists, and the numbers of the page are those of its rows."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

PROJECT = Path(__file__).parents[2]
PAGE = (PROJECT / "docs" / "documents.md").read_text()
ROW = re.compile(r"^\| ([A-Z])(\d+) \|(.*)\|$", re.MULTILINE)
TEST = re.compile(r"`((?:tests|headwater)/[\w/]+\.py)::(test_\w+)`")


@cache
def functions_of(path: str) -> frozenset[str]:
    """Return the names of the test functions of a file, also of those in classes."""
    tree = ast.parse((PROJECT / path).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_every_row_names_a_test_and_every_test_exists() -> None:
    rows = ROW.findall(PAGE)
    deviations = re.findall(r"^\| \d+ \|.*$", PAGE, re.MULTILINE)
    assert deviations
    assert [row for *_, row in rows if not TEST.search(row)] + [row for row in deviations if not TEST.search(row)] == []
    wrong = [f"{path}::{name}" for path, name in TEST.findall(PAGE) if name not in functions_of(path)]
    assert wrong == []


def test_the_rows_are_numbered_and_counted_as_the_page_says() -> None:
    rows = ROW.findall(PAGE)
    for letter, last in Counter(letter for letter, *_ in rows).items():
        assert [int(number) for each, number, _ in rows if each == letter] == list(range(1, last + 1))
    holds = Counter(row.split("|")[2].split()[0] for *_, row in rows)
    told = re.search(r"Of (\d+) statements (\d+) hold as they are written, (\d+) in part, and (\d+) stand for", PAGE)
    assert told is not None
    assert [int(number) for number in told.groups()] == [len(rows), holds["yes"], holds["part"], holds["deviation"]]
    assert set(holds) <= {"yes", "part", "deviation"}
