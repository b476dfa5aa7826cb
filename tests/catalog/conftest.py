"""A metastore catalog on disk, and the same behind a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater import Catalog, MetastoreNamespace
from headwater.rest.server import start_in_thread


@pytest.fixture(params=["disk", "server"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Catalog]:
    """A catalog whose stream tables are used in the same way wherever it is."""
    namespace = MetastoreNamespace(root=str(tmp_path / "lake"))
    if request.param == "disk":
        yield Catalog(namespace)
        return
    server = start_in_thread(namespace)
    try:
        yield Catalog(server.url)
    finally:
        server.stop()
