"""Imports point down the architecture map (docs/architecture.md). Imports inside functions are exempt."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

from tests.unit.parsing import IN_ONE_PROCESS, parsed

pytestmark = IN_ONE_PROCESS

PACKAGE = Path(__file__).parents[2] / "headwater"
LAYERS = (
    (
        "imports",
        "errors",
        "wording",
        "clock",
        "names",
        "paging",
        "protobuf",
        "lance_manifest",
        "table_refs",
        "model",
        "registry",
        "types",
        "schema_text",
        "decoding",
        "store",
        "turns",
        "retry",
        "weak_methods",
        "references",
        "webhooks",
        "arguments",
        "cells",
        "notebook",
        "sql",
        "workers",
        "work",
    ),
    ("metastore",),
    ("tables",),
    ("streams",),
    ("registries",),
    ("namespace",),
    ("verbs",),
    ("adapter",),
    ("rest", "web"),
    ("config",),
    ("catalog",),
    ("loads",),
    ("moving",),
    ("spark",),
    ("pipeline",),
    ("agents", "cli", "testing", "__init__", "__main__"),
)
HEIGHT = {part: height for height, layer in enumerate(LAYERS) for part in layer}


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def upward(path: Path) -> list[str]:
    """The imports of one module that point up the map."""
    return [
        f"{path.relative_to(PACKAGE.parent)}:{line} imports {module}"
        for line, module in imports_of(path)
        if HEIGHT.get(module.split(".")[1], len(LAYERS)) > HEIGHT[part_of(path)]
    ]


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """The modules of ours that one imports, each with its line."""
    for node in parsed(path).body:
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module == "headwater":
            modules = [f"headwater.{alias.name}" for alias in node.names]
        yield from ((node.lineno, module) for module in modules if module.startswith("headwater."))


def test_every_part_of_the_package_has_its_place_on_the_map() -> None:
    parts = {part_of(path) for path in PACKAGE.rglob("*.py")}
    assert parts - set(HEIGHT) == set()


def test_the_map_names_no_part_that_does_not_exist() -> None:
    parts = {part_of(path) for path in PACKAGE.rglob("*.py")}
    assert set(HEIGHT) - parts == set()


def test_imports_point_down() -> None:
    assert [line for path in sorted(PACKAGE.rglob("*.py")) for line in upward(path)] == []


def test_the_map_of_the_page_can_be_read_downwards_alone() -> None:
    """`docs/architecture.md`: a module imports only from what stands above it."""
    rows = re.findall(r"^\| `(\w+)/?` \|", (PACKAGE.parent / "docs/architecture.md").read_text(), re.MULTILINE)
    place = {part: number for number, part in enumerate(rows)}
    assert set(HEIGHT) - set(place) == {"__init__", "__main__"}
    found = set()
    for path in PACKAGE.rglob("*.py"):
        below = {module.split(".")[1] for _, module in imports_of(path)}
        found |= {(part_of(path), each) for each in below if place.get(each, 0) > place.get(part_of(path), len(rows))}
    assert found == set()


def test_an_import_that_points_up_is_named_with_its_line() -> None:
    assert upward(PACKAGE / "config.py") == []
    assert HEIGHT["store"] < HEIGHT["registries"] < HEIGHT["namespace"] < HEIGHT["cli"]


def test_a_function_that_is_named_by_a_text_exists() -> None:
    """Tasks and workers find their functions by name, which no type checker follows."""
    texts = (path.read_text() for path in PACKAGE.rglob("*.py"))
    named = {found for text in texts for found in re.findall(r'"(headwater(?:\.\w+)+):(\w+)"', text)}
    assert len(named) > 10
    assert not [f"{module}:{name}" for module, name in named if not hasattr(importlib.import_module(module), name)]
