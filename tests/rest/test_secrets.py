"""What a server must not give away: the catalog's storage secrets, and other tables through their locations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import lance_namespace as api
import pytest
from lance_namespace import LanceNamespace

from headwater import DirectoryNamespace, connect
from headwater.clock import SystemClock
from headwater.errors import PermissionDeniedError
from headwater.rest.auth.keys import create_key
from headwater.rest.server import start_in_thread
from headwater.rest.settings import Settings
from headwater.testing.namespace_suite import ROWS, ipc

SECRET = "hunter2-hunter2"


@pytest.fixture
def catalog(tmp_path: Path) -> DirectoryNamespace:
    catalog = DirectoryNamespace(root=str(tmp_path), **{"storage.secret_access_key": SECRET})
    catalog.create_namespace(api.CreateNamespaceRequest(id=["prod"]))
    catalog.create_table(api.CreateTableRequest(id=["private"]), ipc(ROWS))
    return catalog


@pytest.fixture
def scoped(catalog: DirectoryNamespace) -> Iterator[LanceNamespace]:
    """A client whose key is an admin of `prod` and of nothing else."""
    _, key = create_key(catalog.store, SystemClock(), "admin", ["prod"])
    with start_in_thread(catalog) as server:
        yield connect("rest", {"uri": server.url, "headers.x-api-key": key})


def test_storage_secrets_stay_in_the_server_unless_it_is_told_to_vend_them(catalog: DirectoryNamespace) -> None:
    for settings, told in ((Settings(), False), (Settings(vend_credentials=True), True)):
        with start_in_thread(catalog, settings=settings) as server:
            client = connect("rest", {"uri": server.url})
            for vend in (None, True):
                found = client.describe_table(api.DescribeTableRequest(id=["private"], vend_credentials=vend))
                assert (SECRET in str(found)) is told


@pytest.mark.parametrize("location", ["private.lance", "elsewhere"])
def test_a_location_may_only_be_chosen_by_whoever_may_see_every_table(scoped: LanceNamespace, location: str) -> None:
    with pytest.raises(PermissionDeniedError):
        scoped.register_table(api.RegisterTableRequest(id=["prod", "mine"], location=location))
    with pytest.raises(PermissionDeniedError):
        scoped.declare_table(api.DeclareTableRequest(id=["prod", "mine"], location=location))
    scoped.declare_table(api.DeclareTableRequest(id=["prod", "mine"]))
