"""The properties that a table is created with are the catalog's, and travel in the Lance table too."""

from __future__ import annotations

from pathlib import Path

import lance
import lance_namespace as api
import pyarrow as pa
import pytest

from headwater import DirectoryNamespace
from headwater.errors import UnsupportedOperationError
from headwater.testing.namespace_suite import ROWS, ipc

MODES: dict[str, dict[str, str]] = {
    "V1": {"manifest_enabled": "false"},
    "V2": {"dir_listing_enabled": "false"},
    "compat": {},
    "early": {"layout": "early"},
    "managed": {"table_version_management": "true"},
}
FLAT = ("V1", "early")


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def catalog(mode: str, tmp_path: Path) -> DirectoryNamespace:
    return DirectoryNamespace(root=str(tmp_path), **MODES[mode])


def described(catalog: DirectoryNamespace) -> api.DescribeTableResponse:
    return catalog.describe_table(api.DescribeTableRequest(id=["t"], load_detailed_metadata=True))


def create(catalog: DirectoryNamespace, how: str, rows: pa.Table = ROWS, **properties: str) -> None:
    request = api.CreateTableRequest(id=["t"], mode=how, properties=properties or None)
    catalog.create_table(request, ipc(rows))


def test_properties_of_a_new_table_are_in_the_lance_table_too(catalog: DirectoryNamespace, mode: str) -> None:
    create(catalog, "create", ROWS.replace_schema_metadata({"own": "x"}), **{"owner": "ann", "naïve key": "é"})
    found = described(catalog)
    assert found.version == 1
    assert found.properties == (None if mode in FLAT else {"owner": "ann", "naïve key": "é"})
    assert found.metadata == {"own": "x", "owner": "ann", "naïve key": "é"}
    assert lance.dataset(found.location).schema_metadata == found.metadata
    catalog.insert_into_table(api.InsertIntoTableRequest(id=["t"]), ipc(ROWS))
    assert described(catalog).metadata == found.metadata


def test_properties_of_an_overwrite_take_the_place_of_the_old(catalog: DirectoryNamespace, mode: str) -> None:
    create(catalog, "create", owner="ann")
    create(catalog, "overwrite", owner="bob", more="1")
    found = described(catalog)
    assert found.metadata == {"owner": "bob", "more": "1"}
    assert found.properties == (None if mode in FLAT else {"owner": "bob", "more": "1"})


def test_what_was_declared_holds_unless_the_creation_says_otherwise(catalog: DirectoryNamespace, mode: str) -> None:
    request = api.DeclareTableRequest(id=["t"], properties={"owner": "ann"})
    if mode in FLAT:
        with pytest.raises(UnsupportedOperationError):
            catalog.declare_table(request)
        return
    catalog.declare_table(request)
    create(catalog, "create")
    assert (described(catalog).properties, described(catalog).metadata) == ({"owner": "ann"}, {"owner": "ann"})
    catalog.drop_table(api.DropTableRequest(id=["t"]))
    catalog.declare_table(request)
    create(catalog, "create", owner="bob")
    assert (described(catalog).properties, described(catalog).metadata) == ({"owner": "bob"}, {"owner": "bob"})
    catalog.drop_table(api.DropTableRequest(id=["t"]))
    catalog.declare_table(request)
    catalog.insert_into_table(api.InsertIntoTableRequest(id=["t"]), ipc(ROWS))
    assert (described(catalog).properties, described(catalog).metadata) == ({"owner": "ann"}, {"owner": "ann"})
