"""The models and the code: every action is mapped to a function that exists, and every planted fault is looked for."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from formal import check

ROOT = Path(__file__).parents[2]
README = (ROOT / "formal" / "README.md").read_text()
ROW = re.compile(r"^\| `(\w+)` \| (?:`([^`]+)` `([\w.]+)`|none: .+) \|$", re.MULTILINE)


def functions(path: Path) -> set[str]:
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
    return found


def section(model: str) -> str:
    return next(part for part in README.split("\n## ") if part.startswith(f"{model}:"))


@pytest.mark.parametrize("model", check.MODELS)
def test_every_action_of_a_model_is_mapped_to_a_function_that_exists(model: str) -> None:
    text = (ROOT / "formal" / f"{model}.tla").read_text()
    following = text[text.index("\nNext ==") : text.index("\nSpec ==")]
    actions = set(re.findall(r"\b([A-Z]\w+)", re.sub(r"\\in \w+", "", following)))
    rows = {name: (path, function) for name, path, function in ROW.findall(section(model))}
    assert actions - {"Next"} <= rows.keys()
    for path, function in rows.values():
        assert not path or function in functions(ROOT / path), f"{path} has no {function}"


@pytest.mark.parametrize("model", check.MODELS)
def test_every_mutation_of_a_model_is_looked_for_by_a_small_configuration(model: str) -> None:
    named = set(re.findall(r'Mutation (?:=|#) "([^"]+)"', (ROOT / "formal" / f"{model}.tla").read_text()))
    assert named == {each for path in check.configurations(model) for each in check.mutations(path)}
    assert check.configurations(model, large=True)
