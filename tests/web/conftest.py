"""One catalog with a little of everything, served with its page."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from headwater.namespace.metastore import MetastoreNamespace
from headwater.rest.server import RunningServer, start_in_thread
from headwater.web import page
from tests.web.samples import fill_metastore


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> MetastoreNamespace:
    namespace = MetastoreNamespace(root=str(tmp_path_factory.mktemp("web") / "lake"))
    fill_metastore(namespace)
    return namespace


@pytest.fixture(scope="module")
def site(lake: MetastoreNamespace) -> Iterator[RunningServer]:
    with start_in_thread(lake, face=page) as server:
        yield server


@pytest.fixture(scope="module")
def browser(site: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=site.url, headers={"accept": "text/html"}, timeout=60) as client:
        yield client
