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
    own = {"own": "x"} if mode in FLAT else {}  # the metadata of the Lance table are its only properties
    assert found.properties == {**own, "owner": "ann", "naïve key": "é"}
    assert found.metadata == {"own": "x", "owner": "ann", "naïve key": "é"}
    assert lance.dataset(found.location).schema_metadata == found.metadata
    catalog.insert_into_table(api.InsertIntoTableRequest(id=["t"]), ipc(ROWS))
    assert described(catalog).metadata == found.metadata


def test_properties_of_an_overwrite_take_the_place_of_the_old(catalog: DirectoryNamespace, mode: str) -> None:
    create(catalog, "create", owner="ann")
    create(catalog, "overwrite", owner="bob", more="1")
    found = described(catalog)
    assert found.metadata == {"owner": "bob", "more": "1"}
    assert found.properties == {"owner": "bob", "more": "1"}


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


def test_properties_come_back_with_a_deregistered_table(catalog: DirectoryNamespace, tmp_path: Path) -> None:
    create(catalog, "create", owner="ann")
    lance.dataset(described(catalog).location).update_metadata({"team": "data", "lance.x": "not a property"})
    location = str(catalog.deregister_table(api.DeregisterTableRequest(id=["t"])).location)
    catalog.register_table(api.RegisterTableRequest(id=["t"], location=Path(location).name))
    found = described(catalog).properties or {}
    assert found["owner"] == "ann"
    assert "lance.x" not in found
    assert set(found) <= {"owner", "team"}
    location = str(catalog.deregister_table(api.DeregisterTableRequest(id=["t"])).location)
    if catalog.registry.capabilities.properties:
        request = api.RegisterTableRequest(id=["t"], location=Path(location).name, properties={"owner": "bob"})
        assert catalog.register_table(request).properties == {"owner": "bob"}


@pytest.mark.parametrize("mode", ["V1", "compat"])
def test_a_table_whose_marker_was_removed_by_hand_is_registered_again(tmp_path: Path, mode: str) -> None:
    DirectoryNamespace(root=str(tmp_path), **MODES["V1"]).create_table(api.CreateTableRequest(id=["t"]), ipc(ROWS))
    catalog = DirectoryNamespace(root=str(tmp_path), **MODES[mode])
    location = Path(str(catalog.deregister_table(api.DeregisterTableRequest(id=["t"])).location))
    (location / ".lance-deregistered").unlink()
    for place in (location.name, str(location)) if mode == "V1" else (location.name,):
        catalog.register_table(api.RegisterTableRequest(id=["t"], location=place))
        assert catalog.count_table_rows(api.CountTableRowsRequest(id=["t"])).count == 3
    assert catalog.list_tables(api.ListTablesRequest(id=[])).tables == ["t"]
