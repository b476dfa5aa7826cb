"""Fixtures that tests of pipelines share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from headwater.pipeline.live.debezium_reader import PYTHON
from tests.interop.postgres.engine import engine_python


@pytest.fixture(scope="module")
def debezium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Python with Debezium's engine: the one that the variable names, or one of the test's own."""
    given = os.environ.get(PYTHON)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PYTHON, given or engine_python(tmp_path_factory.mktemp("debezium") / "venv"))
        patch.setenv("LIVE_PASSWORD", "secret")
        yield os.environ[PYTHON]
