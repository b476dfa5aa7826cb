"""A metastore catalog on disk, and the same behind a server: a new one for each test, or one for a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater import Catalog, MetastoreNamespace
from headwater.rest.server import RunningServer, start_in_thread
from tests.catalog.samples import ROWS


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


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("whole") / "lake"


@pytest.fixture(scope="module")
def server(lake: Path) -> Iterator[RunningServer]:
    made = start_in_thread(MetastoreNamespace(root=str(lake)))
    yield made
    made.stop()


@pytest.fixture
def near(lake: Path) -> Catalog:
    """The catalog, with two tables that no test before has seen."""
    catalog = Catalog(MetastoreNamespace(root=str(lake)))
    for name in list(catalog):
        catalog.drop_table(name)
    for found in catalog.snapshots():
        catalog.drop_snapshot(found.name)
    catalog.create_table("a.t", ROWS)
    catalog.create_table("a.u", ROWS)
    return catalog


@pytest.fixture(params=["near", "far"])
def catalog(request: pytest.FixtureRequest, near: Catalog, server: RunningServer) -> Catalog:
    """The same catalog, in this process or behind a server."""
    return near if request.param == "near" else Catalog(server.url)
