"""A catalog for tests of stream tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.metastore import Metastore


@pytest.fixture
def metastore(tmp_path: Path) -> Iterator[Metastore]:
    with Metastore(tmp_path / "lake") as opened:
        yield opened
