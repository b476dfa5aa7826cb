"""The public API is what docs/api.md lists, no more and no less."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import headwater

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
ROWS = re.findall(r"^\| `(headwater[\w.]*)` \| (`[^|]+`) \|", PAGE.read_text(), re.MULTILINE)


def test_the_page_lists_the_exports_of_each_public_module() -> None:
    listed = {module: set(re.findall(r"`(\w+)`", names)) for module, names in ROWS}
    assert listed == {module: set(importlib.import_module(module).__all__) for module in listed}
    assert "headwater" in listed
    assert len(listed) >= 6


def test_dir_shows_the_public_names_alone_and_each_can_be_imported() -> None:
    assert sorted(dir(headwater)) == sorted([*headwater.__all__, "__version__"])
    assert all(getattr(headwater, name) is not None for name in headwater.__all__)


def test_every_exported_name_of_the_package_has_a_docstring() -> None:
    assert [name for name in headwater.__all__ if not getattr(headwater, name).__doc__] == []
