"""CONTRIBUTING's table of rules names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

PROJECT = Path(__file__).parents[2]
TABLE = (PROJECT / "CONTRIBUTING.md").read_text().split("## Which test guards which rule")[1].split("\n## ")[0]
GUARDS = re.findall(r"`(tests/[\w/.]+)(?:::(\w+))?`", TABLE)


def test_every_guard_of_the_table_exists() -> None:
    assert len(GUARDS) > 15
    for path, name in GUARDS:
        assert (PROJECT / path).exists(), path
        assert not name or f"def {name}(" in (PROJECT / path).read_text(), f"{path}::{name}"
