"""Docs cannot lie: the Python of every page that is a guide runs, block after block, as a reader would run it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
FENCE = re.compile(r"^```(?P<language>[^\n`]*)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)
RUNS = ("README.md", "docs/python.md")
"""The pages whose blocks need nothing but a folder. Others are run by the tests of what they describe."""
CODE = re.compile(r"^(import |from \w+ import |spark\.|catalog\.|curl |headwater \w+)", re.MULTILINE)


@pytest.mark.parametrize("page", RUNS)
def test_the_python_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / page).read_text()
    blocks = [found["body"] for found in FENCE.finditer(text) if found["language"].strip() == "python"]
    assert blocks
    names: dict[str, object] = {}
    for number, block in enumerate(blocks, start=1):
        exec(compile(block, f"{page}, block {number}", "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_code_hides_in_a_text_fence(page: Path) -> None:
    for found in FENCE.finditer(page.read_text()):
        if found["language"].strip() == "text":
            assert not CODE.search(found["body"]), f"{page.name}: {found['body'][:80]}"
