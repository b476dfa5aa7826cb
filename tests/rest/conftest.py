"""A catalog in a temporary folder, served for real on a loopback port."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from headwater import DirectoryNamespace
from headwater.rest.server import RunningServer, start_in_thread
from headwater.rest.settings import Settings
from tests.rest.samples import Serve


@pytest.fixture
def root(tmp_path: Path) -> str:
    """An empty catalog: a folder that is there. One that is not there is refused by whoever only reads."""
    (tmp_path / "lake").mkdir()
    return str(tmp_path / "lake")


@pytest.fixture
def catalog(root: str) -> DirectoryNamespace:
    return DirectoryNamespace(root=root)


@pytest.fixture
def serve(catalog: DirectoryNamespace) -> Iterator[Serve]:
    """Start servers that stop with the test."""
    running: list[RunningServer] = []

    def start(settings: Settings | None = None, namespace: Any = None, **more: Any) -> RunningServer:
        server = start_in_thread(namespace or catalog, settings=settings, **more)
        running.append(server)
        return server

    yield start
    for server in running:
        server.stop()


@pytest.fixture
def server(serve: Serve) -> RunningServer:
    return serve()


@pytest.fixture
def http(server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client
