"""Docs cannot lie: what the pages tell a reader to type is typed, block after block, in an empty folder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.docs.blocks import FENCE, ROOT, RUNNABLE, Block, Reader, blocks_of
from tools import plot_results

PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"))
)
LINKED = [
    *PAGES,
    "CHANGELOG.md",
    *sorted(
        str(path.relative_to(ROOT)) for folder in ("benchmarks", "examples") for path in (ROOT / folder).rglob("*.md")
    ),
]
ELSEWHERE = {"docs/clients.md"}
"""Run by a test of their own: test_clients.py."""
RUNS = sorted(page for page in PAGES if page not in ELSEWHERE and any(block.is_run for block in blocks_of(page)))
CODE = re.compile(
    r"^(import |from \w+ import |spark\.|catalog\.|curl |headwater \w+|pip install |SELECT )", re.MULTILINE
)
LINK = re.compile(r"\[[^\]]*\]\((?P<to>[^)\s]+)\)")


def has_long(page: str) -> bool:
    """Commands are processes of their own: they, and what says so, are run by `make test-all`."""
    return any(block.is_run and (block.language == "sh" or block.is_long) for block in blocks_of(page))


def is_slow(page: str) -> bool:
    """Its Python needs its commands: it begins with one, or has no Python."""
    runs = [block for block in blocks_of(page) if block.is_run and not block.is_long]
    return not runs or runs[0].language == "sh" or all(block.language == "sh" for block in runs)


def follow(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch, blocks: list[Block], long: bool = False) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    with Reader(folder, apart=long) as reader:
        for block in blocks:
            if long or not block.is_long:
                reader.follow(block)


@pytest.mark.parametrize("page", [page for page in RUNS if not is_slow(page)])
def test_a_page_runs_as_a_reader_would_run_it(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follow(page, tmp_path, monkeypatch, [block for block in blocks_of(page) if block.language != "sh"])


@pytest.mark.long
@pytest.mark.parametrize("page", [page for page in RUNS if has_long(page)])
def test_a_page_runs_with_its_commands_and_long_blocks(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow(page, tmp_path, monkeypatch, blocks_of(page), long=True)


@pytest.mark.parametrize("page", PAGES)
def test_a_block_that_is_not_run_says_why_and_no_code_hides(page: str) -> None:
    for block in blocks_of(page):
        if block.language not in RUNNABLE and not block.about.startswith("file: "):
            assert not CODE.search(block.body), f"{block.where}: code in a block of {block.language or 'no language'}"
        if block.about:
            assert re.fullmatch(r"(no-run|long|file): \S.*", block.about), f"{block.where}: {block.about}"


def test_links_lead_somewhere_and_anchors_too() -> None:
    wrong = [f"{page}: {to}" for page in LINKED for to, there, mark in links_of(page) if not leads(there, mark)]
    assert wrong == []


def links_of(page: str) -> Iterator[tuple[str, Path, str]]:
    """Yield each link to a file of the project: its text, the file, and the anchor after `#`."""
    for found in LINK.finditer(FENCE.sub("", (ROOT / page).read_text())):
        place, _, mark = unquote(found["to"]).partition("#")
        if "://" not in place and not place.startswith("mailto:"):
            yield found["to"], ((ROOT / page).parent / place if place else ROOT / page).resolve(), mark


def leads(there: Path, mark: str) -> bool:
    return there.exists() and (not mark or there.suffix != ".md" or mark in anchors(there.read_text()))


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings. A comment in a block of code is no heading."""
    heads = re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_a_comment_in_a_block_is_no_anchor() -> None:
    assert anchors("# One\n```sh\n# two\n```\n## Three") == {"one", "three"}
    assert not leads(ROOT / "README.md", "no-such-heading")


def test_every_page_is_two_clicks_from_the_list_of_documents() -> None:
    start = {there for _, there, _ in links_of("docs/README.md")}
    near = {page for page in LINKED if (ROOT / page).resolve() in start}
    reached = start | {there for page in near for _, there, _ in links_of(page)}
    missing = [page for page in PAGES if page != "docs/README.md" and (ROOT / page).resolve() not in reached]
    assert missing == []


def test_the_questions_of_a_user_lead_to_their_answers() -> None:
    page = (ROOT / "docs" / "README.md").read_text()
    questions = re.findall(r"^(\d+)\. [^\[]*\? (.*)$", page, re.MULTILINE)
    assert [int(number) for number, _ in questions] == list(range(1, 25))
    assert [number for number, answers in questions if not LINK.search(answers)] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/guides/")])
def test_a_guide_begins_with_what_the_reader_will_have(page: str) -> None:
    title, _, first = (ROOT / page).read_text().partition("\n\n")
    assert title.startswith("# ")
    assert first.startswith("At the end ")


def test_the_figures_of_the_benchmark_page_stand_in_the_results_they_link_to() -> None:
    """A figure is what was measured, or it is not in the table."""
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("|") and "](../benchmarks/results/" in line]
    assert len(rows) >= 5
    for row in rows:
        (where,) = re.findall(r"\]\(\.\./(benchmarks/results/[^)]*\.md)\)", row)
        results = (ROOT / where).read_text()
        figures = [figure for cell in row.split("|")[2:4] for figure in re.findall(r"\d[\d,]*(?:\.\d+)?", cell)]
        assert figures
        for figure in figures:
            assert re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d.])", results), f"{where} has no {figure}"


def test_the_picture_of_the_benchmark_page_is_drawn_from_the_results() -> None:
    assert plot_results.PICTURE.read_text() == plot_results.picture(), "run: python -m tools.plot_results"


def test_the_readme_is_read_in_three_minutes() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 120
    assert "make demo" in readme
    assert "make test" in readme
