"""docs/scale.md: its requests are counted again, on a bucket that counts them."""

from __future__ import annotations

import re

import pytest

from benchmarks.far import FarBucket
from benchmarks.scale import counted
from tests.docs.blocks import ROOT

VERBS = ("GET", "HEAD", "PUT", "LIST", "DELETE")
SLACK = 2
"""Housekeeping beside an operation (a checkpoint, a mirror's look) may fall into another's count."""


@pytest.mark.long
def test_operations_cost_the_requests_that_the_page_says() -> None:
    text = (ROOT / "docs" / "scale.md").read_text()
    rows = re.findall(
        r"^\| ([a-z][^|]*?) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| [\d.]+ \| [\d.]+ \|$", text, re.M
    )
    told = {name: sum(map(int, numbers)) for name, *numbers in rows}
    with FarBucket() as bucket:
        found = {name: sum(counts.get(verb, 0) for verb in VERBS) for name, (counts, _, _) in counted(bucket).items()}
    assert told.keys() == found.keys()
    assert {name: (told[name], n) for name, n in found.items() if abs(told[name] - n) > SLACK} == {}


def test_the_tables_of_the_page_are_the_results() -> None:
    page = (ROOT / "docs" / "scale.md").read_text()
    for part in ("requests", "commits", "names", "publish"):
        results = (ROOT / "benchmarks" / "results" / f"scale-{part}.md").read_text()
        for line in results.splitlines():
            if line.startswith("| "):
                assert line in page, f"{part}: {line}"
