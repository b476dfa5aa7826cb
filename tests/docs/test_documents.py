"""The page of the documents: every row names a test that exists, and the numbers of the page are those of its rows."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from tests.documents_ran import TEST, functions_of, not_run

PROJECT = Path(__file__).parents[2]
PAGE = (PROJECT / "docs" / "documents.md").read_text()
ROW = re.compile(r"^\| ([A-Z])(\d+) \|(.*)\|$", re.MULTILINE)


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


def test_a_test_of_the_page_that_did_not_run_is_noticed() -> None:
    short, long = "tests/unit/test_names.py", "tests/adapter/test_hive.py"
    page = f"`{short}::test_a` `{long}::test_a_hive_metastore_is_served_to_the_clients_of_lance`"
    hive = f"{long}::test_a_hive_metastore_is_served_to_the_clients_of_lance"
    assert not_run(page, [], "") == [f"{short}::test_a", hive]
    assert not_run(page, [f"{short}::test_a[1]"], "not long") == []
    assert not_run(page, ["tests/other.py::test_a", f"{hive}[hive2]"], "") == [f"{short}::test_a"]
    suite = "headwater/testing/namespace_suite.py::test_the_root_is_neither_created_nor_dropped"
    assert not_run(f"`{suite}`", ["tests/x.py::TestX::test_the_root_is_neither_created_nor_dropped[dir]"], "") == []
