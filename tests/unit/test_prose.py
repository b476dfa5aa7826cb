"""Docstrings open with a verb or a noun (prose guide, rule 1)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.unit.parsing import IN_ONE_PROCESS, parsed, walk

pytestmark = IN_ONE_PROCESS

PACKAGE = Path(__file__).parents[2] / "headwater"
HEADLESS = re.compile(r"(What|Whether|Who|Whose|Where|How|Which|When|Why|Whatever|Whoever)\b")


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each docstring of a module with its line."""
    for node in walk(parsed(path)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text


def headless(path: Path) -> list[str]:
    """Return the docstrings of a module that open with a clause in place of a verb or a noun."""
    shown = path.relative_to(PACKAGE.parent)
    return [f"{shown}:{line} {text.splitlines()[0]}" for line, text in docstrings(path) if HEADLESS.match(text)]


def test_no_docstring_opens_with_a_headless_clause() -> None:
    assert [line for path in sorted(PACKAGE.rglob("*.py")) for line in headless(path)] == []


def test_the_rule_knows_headless_openings() -> None:
    assert HEADLESS.match("What a version did.")
    assert not HEADLESS.match("Return the change that a version made.")
    assert not HEADLESS.match("Whatsoever is a word of its own.")
