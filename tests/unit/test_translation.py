"""The text of an error is understood in one place: headwater/tables/translate.py."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.parsing import IN_ONE_PROCESS, parsed

pytestmark = IN_ONE_PROCESS

PACKAGE = Path(__file__).parents[2] / "headwater"
TRANSLATION = PACKAGE / "tables" / "translate.py"
ALLOCATORS = PACKAGE / "workers" / "channel.py"
SPARK = (PACKAGE / "spark" / "failures.py", PACKAGE / "work" / "runners.py")
"""An error of an executor reaches the driver as text only."""
"""Knows neither Lance nor tables, only the words by which an allocator says that there is no memory left."""
SEARCHES = {"search", "match", "fullmatch", "findall", "startswith", "endswith", "find", "index", "count"}
TEXTS = {"str", "repr", "message_of", "first_line"}


def is_error_type(node: ast.expr | None) -> bool:
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)} if node is not None else set()
    return any(name.endswith(("Error", "Exception")) for name in names)


def errors_in(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Each piece of code that has an error in hand, and the error's name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and node.name:
            yield node, node.name
        elif isinstance(node, ast.FunctionDef):
            arguments = [*node.args.args, *node.args.kwonlyargs]
            yield from ((node, argument.arg) for argument in arguments if is_error_type(argument.annotation))


def is_text(node: ast.AST, error: str, known: set[str]) -> bool:
    """Whether an expression is made of the error's text: str(error), error.args, or a name that holds such."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and part.id in known:
            return True
        if isinstance(part, ast.Attribute) and part.attr == "args" and ast.unparse(part.value) == error:
            return True
        if isinstance(part, ast.FormattedValue) and ast.unparse(part.value) == error:
            return True
        called = isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id in TEXTS
        if called and isinstance(part, ast.Call) and any(ast.unparse(given) == error for given in part.args):
            return True
    return False


def matched(tree: ast.AST) -> list[int]:
    """The lines where a decision is made by what an error says."""
    found = []
    for code, error in errors_in(tree):
        known: set[str] = set()
        for node in ast.walk(code):
            if isinstance(node, ast.Assign) and is_text(node.value, error, known):
                known |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        for node in ast.walk(code):
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                found += [node.lineno] if any(is_text(side, error, known) for side in sides) else []
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SEARCHES:
                texts = [node.func.value, *node.args]
                found += [node.lineno] if any(is_text(text, error, known) for text in texts) else []
    return found


def test_no_decision_is_made_by_the_text_of_an_error_outside_the_translation() -> None:
    modules = [path for path in sorted(PACKAGE.rglob("*.py")) if path not in (TRANSLATION, ALLOCATORS, *SPARK)]
    lines = [f"{path.relative_to(PACKAGE.parent)}:{line}" for path in modules for line in matched(parsed(path))]
    assert lines == []


@pytest.mark.parametrize(
    "decision",
    ["'x' in str(error)", "'x' not in f'{error}'.lower()", "X.search(message_of(error))", "error.args[0] == 'x'"],
)
def test_a_decision_by_text_is_seen_wherever_the_error_comes_from(decision: str) -> None:
    caught = f"try:\n    f()\nexcept OSError as error:\n    if {decision}:\n        raise\n"
    assert matched(ast.parse(caught)) == [4]
    given = f"def kind(error: BaseException) -> bool:\n    return {decision}\n"
    assert matched(ast.parse(given)) == [2]
    held = caught.replace(f"if {decision}", "text = str(error).lower()\n    if 'x' in text")
    assert matched(ast.parse(held)) == [5]
    shown = "try:\n    f()\nexcept OSError as error:\n    raise ValueError(str(error)[:200]) from None\n"
    assert matched(ast.parse(shown)) == []
