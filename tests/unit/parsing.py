"""The modules of the package, each parsed once for all tests that read its source: one group of xdist, `claims`."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

IN_ONE_PROCESS = pytest.mark.xdist_group("claims")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def walk(tree: ast.AST) -> list[ast.AST]:
    """Every node of a tree, listed once: most of these tests walk the whole package."""
    return list(ast.walk(tree))
