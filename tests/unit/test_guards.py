"""CONTRIBUTING's table of rules names tests that exist."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from tests.children import IMPORTED

PROJECT = Path(__file__).parents[2]
TABLE = (PROJECT / "CONTRIBUTING.md").read_text().split("## Which test guards which rule")[1].split("\n## ")[0]
GUARDS = re.findall(r"`(tests/[\w/.]+)(?:::(\w+))?`", TABLE)


def test_every_guard_of_the_table_exists() -> None:
    assert len(GUARDS) > 15
    for path, name in GUARDS:
        assert (PROJECT / path).exists(), path
        assert not name or f"def {name}(" in (PROJECT / path).read_text(), f"{path}::{name}"


def test_one_module_says_what_forked_processes_have_imported() -> None:
    """The last list that is set counts for all: with two, most processes import pylance for themselves."""
    words = "set_forkserver" + "_preload("
    setting = [path for path in (PROJECT / "tests").rglob("*.py") if words in path.read_text()]
    assert setting == [PROJECT / "tests" / "children.py"]
    assert [name for name in IMPORTED if find_spec(name) is None] == []
