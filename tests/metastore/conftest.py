"""A metastore catalog on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headwater


@pytest.fixture
def catalog(tmp_path: Path) -> Any:
    return headwater.connect("metastore", {"root": str(tmp_path / "lake")})
