"""The documents as a static site: pages as MkDocs reads them, and a build without a warning."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT
from tools import site


def test_a_page_is_written_as_python_markdown_reads_it() -> None:
    text = "# T\nSome text:\n- one\n- two\n\n```toml file: a.toml\n- x\n```\n```sh no-run: why\nls\n```\n| a |\n|---|\n"
    assert site.page("docs/a.md", text, set()).split("\n") == [
        *("# T", "Some text:", "", "- one", "- two", ""),
        *('```toml title="a.toml"', "- x", "```", "", "```sh", "ls", "```", "", "| a |", "|---|", ""),
    ]


def test_a_link_to_the_source_keeps_its_text_and_one_to_a_folder_leads_to_its_list() -> None:
    text = "[tests](../tests/docs) [a](b.md#c) [results](../benchmarks/results) ![p](images/p.svg) [web](https://lance.org)"
    pages = {"docs/b.md", "benchmarks/results/README.md"}
    assert site.page("docs/a.md", text, pages) == (
        "`tests` [a](b.md#c) [results](../benchmarks/results/README.md) ![p](images/p.svg) [web](https://lance.org)\n"
    )


def test_the_menu_of_the_site_has_every_guide() -> None:
    menu = set(re.findall(r"- (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert {name for name in menu if not (ROOT / name).exists()} == set()
    assert {f"docs/guides/{path.name}" for path in (ROOT / "docs" / "guides").glob("*.md")} <= menu


@pytest.mark.long
def test_the_site_builds_without_a_warning_and_asks_no_other_host(tmp_path: Path) -> None:
    """In an environment of its own, as `make docs` makes it. It skips where the packages cannot be downloaded."""
    subprocess.run([sys.executable, "-m", "venv", "env"], cwd=tmp_path, check=True)
    python = tmp_path / "env" / "bin" / "python"
    pinned = ["-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(ROOT / "requirements" / "docs.txt")]
    done = subprocess.run([python, *pinned], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"NOT TESTED: the site was not built, for its packages cannot be installed: {done.stderr[-300:]}")
    made = subprocess.run(
        [python, "-m", "tools.site", str(tmp_path / "site")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr[-3000:]
    (listed,) = json.loads((tmp_path / "site" / "versions.json").read_text())
    start = tmp_path / "site" / listed["version"]
    assert "first-pipeline.html" in (start / "docs" / "index.html").read_text()
    assert any(
        "quarantine" in each["location"]
        for each in json.loads((start / "search/search_index.json").read_text())["docs"]
    )
    for page in start.rglob("*.html"):
        asked = re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?:[^"]+)"', page.read_text())
        assert asked == [], page
