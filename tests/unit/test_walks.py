"""The walks of docs/architecture.md lead through functions that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.unit.parsing import IN_ONE_PROCESS, parsed, walk

pytestmark = IN_ONE_PROCESS

PROJECT = Path(__file__).parents[2]
HOP = re.compile(r"^\d+\. `([\w/]+\.(?:py|java))` `([\w.]+)`: \S")


def walks() -> dict[str, list[str]]:
    """The lines of each walk, by its title."""
    text = (PROJECT / "docs" / "architecture.md").read_text().split("\n## Eight walks\n")[1].split("\n## ")[0]
    parts = [part.split("\n") for part in text.split("\n### ")[1:]]
    return {lines[0]: [line for line in lines[1:] if re.match(r"^\d+\. ", line)] for lines in parts}


def defined(path: Path) -> set[str]:
    """The functions of a module, those of classes with the class's name too."""
    if path.suffix == ".java":
        return set(re.findall(r"(\w+)\(", path.read_text()))
    found: set[str] = set()
    for node in walk(parsed(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            methods = (item for item in node.body if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)))
            found |= {f"{node.name}.{method.name}" for method in methods}
    return found


def test_there_are_eight_walks_and_every_hop_is_a_function_of_its_file() -> None:
    found = walks()
    assert len(found) == 8
    for title, hops in found.items():
        assert len(hops) >= 4, title
        for line in hops:
            hop = HOP.match(line)
            assert hop is not None, line
            path = PROJECT / hop[1]
            assert path.exists(), line
            assert hop[2] in defined(path), line
