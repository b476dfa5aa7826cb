"""A catalog for tests of stream tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.metastore import Metastore
from headwater.streams.log.stored_events import SmallFiles


@pytest.fixture
def metastore(tmp_path: Path) -> Iterator[Metastore]:
    with Metastore(tmp_path / "lake") as opened:
        yield opened


@pytest.fixture(autouse=True)
def log_files_are_opened(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read every file of the log from the storage, as another process would. tests/property reads what is kept."""
    if request.path.name != "test_log_files.py":
        monkeypatch.setattr(SmallFiles, "get", lambda self, key: None)
