"""Imports point down the architecture map (docs/architecture.md). Imports inside functions are exempt."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "headwater"
LAYERS = (
    (
        "imports",
        "errors",
        "clock",
        "names",
        "paging",
        "wording",
        "protobuf",
        "lance_manifest",
        "table_refs",
        "model",
        "registry",
        "types",
        "store",
        "turns",
        "retry",
        "references",
        "workers",
    ),
    ("metastore",),
    ("tables",),
    ("streams",),
    ("registries",),
    ("namespace",),
    ("adapter",),
    ("rest", "web"),
    ("config",),
    ("catalog",),
    ("moving",),
    ("spark", "pipeline"),
    ("agents", "cli", "testing", "__init__", "__main__"),
)
HEIGHT = {part: height for height, layer in enumerate(LAYERS) for part in layer}


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def upward(path: Path) -> list[str]:
    """The imports of one module that point up the map."""
    found = []
    for node in ast.parse(path.read_text()).body:
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module == "headwater":
            modules = [f"headwater.{alias.name}" for alias in node.names]
        for module in (name for name in modules if name.startswith("headwater.")):
            if HEIGHT.get(module.split(".")[1], len(LAYERS)) > HEIGHT[part_of(path)]:
                found.append(f"{path.relative_to(PACKAGE.parent)}:{node.lineno} imports {module}")
    return found


def test_every_part_of_the_package_has_its_place_on_the_map() -> None:
    parts = {part_of(path) for path in PACKAGE.rglob("*.py")}
    assert parts - set(HEIGHT) == set()


def test_the_map_names_no_part_that_does_not_exist() -> None:
    parts = {part_of(path) for path in PACKAGE.rglob("*.py")}
    assert set(HEIGHT) - parts == set()


def test_imports_point_down() -> None:
    assert [line for path in sorted(PACKAGE.rglob("*.py")) for line in upward(path)] == []


def test_an_import_that_points_up_is_named_with_its_line() -> None:
    assert upward(PACKAGE / "config.py") == []
    assert HEIGHT["store"] < HEIGHT["registries"] < HEIGHT["namespace"] < HEIGHT["cli"]
