"""The one conformance suite, asked through the server by every client, with more than one delimiter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance.namespace
import lance_namespace as api
import pytest
from lance_namespace import LanceNamespace

from headwater import DirectoryNamespace, MetastoreNamespace
from headwater.namespace.registered import RegisteredNamespace
from headwater.registry import Capabilities
from headwater.rest.client import connect_rest
from headwater.rest.server import start_in_thread
from headwater.testing.namespace_suite import NamespaceSuite
from tests.rest.generated import GeneratedNamespace

KINDS: dict[str, dict[str, str]] = {
    "v1": {"manifest_enabled": "false"},
    "v2": {"dir_listing_enabled": "false"},
    "compat": {},
    "metastore": {},
}
CLIENTS: dict[str, Any] = {
    "pylance": lambda url: lance.namespace.RestNamespace(uri=url),
    "generated": GeneratedNamespace,
    "headwater": lambda url: connect_rest({"uri": url}),
}
ALWAYS = [("v2", "pylance"), ("v2", "generated"), ("compat", "headwater"), ("metastore", "pylance")]
LONG = [
    ("v1", "pylance"),
    ("v2", "headwater"),
    ("compat", "generated"),
    ("metastore", "generated"),
    ("metastore", "headwater"),
]
PAIRS = [*ALWAYS, *(pytest.param(pair, marks=pytest.mark.long) for pair in LONG)]


@pytest.fixture(params=PAIRS, ids="-".join)
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    chosen: tuple[str, str] = request.param
    return chosen


@pytest.fixture
def direct(pair: tuple[str, str], tmp_path: Path) -> RegisteredNamespace:
    if pair[0] == "metastore":
        return MetastoreNamespace(root=str(tmp_path / "lake"))
    return DirectoryNamespace(root=str(tmp_path / "lake"), **KINDS[pair[0]])


class TestThroughRest(NamespaceSuite):
    """Subclasses nothing away: what holds directly holds through the server."""

    def bad_name_codes(self, name: str) -> tuple[int, ...]:
        """A client joins `a$b` into the URL of the object `b` in `a`, which is not there (or cannot be)."""
        return (0, 1, 13) if name == "a$b" else (13,)

    @pytest.fixture
    def features(self, direct: RegisteredNamespace) -> Capabilities:
        return direct.registry.capabilities

    @pytest.fixture
    def namespace(self, direct: RegisteredNamespace, pair: tuple[str, str]) -> Iterator[Any]:
        with start_in_thread(direct) as server:
            yield CLIENTS[pair[1]](server.url)


@pytest.mark.long
class TestOtherDelimiter(TestThroughRest):
    """pylance told to join names by another delimiter: the same catalog in other words."""

    @pytest.fixture
    def pair(self) -> tuple[str, str]:
        return ("v2", "pylance-other-delimiter")

    @pytest.fixture
    def namespace(self, direct: RegisteredNamespace) -> Iterator[Any]:
        with start_in_thread(direct) as server:
            yield lance.namespace.RestNamespace(uri=server.url, delimiter="::")

    def test_all_tables_are_listed_by_their_full_identifier(self, nested: LanceNamespace) -> None:
        nested.create_namespace(api.CreateNamespaceRequest(id=["a"]))
        for id in (["z"], ["a", "t"]):
            nested.declare_table(api.DeclareTableRequest(id=id))
        page = nested.list_all_tables(api.ListTablesRequest(limit=1))
        assert page.tables == ["a::t"]
        assert nested.list_all_tables(api.ListTablesRequest(page_token=page.page_token)).tables == ["z"]
