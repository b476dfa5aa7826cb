"""Statements of the directory document that no suite asks of every kind of catalog (docs/documents.md)."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import lance
import lance_namespace as api
import pytest

from headwater import DirectoryNamespace
from headwater.errors import InternalError, LanceNamespaceError, PermissionDeniedError
from headwater.rest.server import start_in_thread
from headwater.tables.layout import manifest_name
from headwater.testing.namespace_suite import ROWS, code_of, ipc
from tests.versions.samples import make, open_kind, stage


def flat(root: Path) -> DirectoryNamespace:
    return DirectoryNamespace(root=str(root), manifest_enabled="false")


def test_without_a_manifest_there_are_no_namespaces(tmp_path: Path) -> None:
    catalog = flat(tmp_path)
    assert code_of(lambda: catalog.create_namespace(api.CreateNamespaceRequest(id=["a"]))) == 0
    assert code_of(lambda: catalog.describe_namespace(api.DescribeNamespaceRequest(id=["a"]))) == 0
    assert code_of(lambda: catalog.drop_namespace(api.DropNamespaceRequest(id=["a"]))) == 0
    assert code_of(lambda: catalog.declare_table(api.DeclareTableRequest(id=["a", "t"]))) == 0
    assert catalog.list_namespaces(api.ListNamespacesRequest(id=[])).namespaces == []


def test_a_deregistered_folder_is_dropped_with_its_marker(tmp_path: Path) -> None:
    catalog = flat(tmp_path)
    catalog.create_table(api.CreateTableRequest(id=["t"]), ipc(ROWS))
    catalog.deregister_table(api.DeregisterTableRequest(id=["t"]))
    assert (tmp_path / "t.lance" / ".lance-deregistered").exists()
    catalog.drop_table(api.DropTableRequest(id=["t"]))
    assert not (tmp_path / "t.lance").exists()


def test_a_namespace_is_one_row_of_the_manifest_and_no_folder(tmp_path: Path) -> None:
    catalog = DirectoryNamespace(root=str(tmp_path), dir_listing_enabled="false")
    catalog.create_namespace(api.CreateNamespaceRequest(id=["prod"]))
    catalog.create_namespace(api.CreateNamespaceRequest(id=["prod", "analytics"], properties={"owner": "ann"}))
    rows = lance.dataset(str(tmp_path / "__manifest")).to_table().to_pylist()
    (row,) = [row for row in rows if row["object_id"] == "prod$analytics"]
    assert (row["object_type"], json.loads(row["metadata"])["owner"], row["location"]) == ("namespace", "ann", None)
    assert row["created_at"] is not None
    assert {path.name for path in tmp_path.iterdir()} <= {"__manifest", ".headwater"}


@pytest.mark.parametrize("failure", [PermissionDeniedError, InternalError])
@pytest.mark.parametrize("mode", ["V1", "V2"])
def test_a_drop_that_the_storage_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, failure: type[LanceNamespaceError]
) -> None:
    """V1: an error by its code, and the drop can be repeated. V2: the name is gone, which is the drop."""
    catalog = flat(tmp_path) if mode == "V1" else DirectoryNamespace(root=str(tmp_path), dir_listing_enabled="false")
    catalog.create_table(api.CreateTableRequest(id=["t"]), ipc(ROWS))

    def refuse(*asked: Any) -> bool:
        raise failure("The storage refuses it.")

    module = "headwater.registries.listing" if mode == "V1" else "headwater.namespace.operations"
    monkeypatch.setattr(f"{module}.discard_folder", refuse)
    if mode == "V1":
        assert code_of(lambda: catalog.drop_table(api.DropTableRequest(id=["t"]))) == failure.code
        monkeypatch.undo()
    catalog.drop_table(api.DropTableRequest(id=["t"]))
    assert catalog.list_tables(api.ListTablesRequest(id=[])).tables == []


def test_a_version_that_exists_is_a_conflict_over_http(tmp_path: Path) -> None:
    catalog = open_kind("V2-managed", tmp_path / "lake")
    make(catalog, versions=2)
    staged = {key: value for key, value in stage(catalog, "t", 2, source=1).items() if key != "id"}
    with start_in_thread(catalog) as server:
        request = urllib.request.Request(
            f"{server.url}/v1/table/t/version/create", json.dumps(staged).encode(), {"Content-Type": "application/json"}
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request)
    assert (refused.value.code, json.load(refused.value)["code"]) == (409, 14)


def test_a_table_is_where_its_mode_and_its_level_say(tmp_path: Path) -> None:
    modes = {"V1": {"manifest_enabled": "false"}, "V2": {"dir_listing_enabled": "false"}, "compat": {}}
    for mode, properties in modes.items():
        catalog = DirectoryNamespace(root=str(tmp_path / mode), **properties)
        found = [str(catalog.declare_table(api.DeclareTableRequest(id=["t"])).location)]
        if mode != "V1":
            catalog.create_namespace(api.CreateNamespaceRequest(id=["n"]))
            found.append(str(catalog.declare_table(api.DeclareTableRequest(id=["n", "t"])).location))
        first, *inner = (Path(location).name for location in found)
        assert re.fullmatch(r"[0-9a-f]{8}_t" if mode == "V2" else r"t\.lance", first)
        assert all(re.fullmatch(r"[0-9a-f]{8}_n\$t", name) for name in inner)


def test_a_version_that_the_storage_keeps_takes_its_staged_manifest_along(tmp_path: Path) -> None:
    catalog = open_kind("V2", tmp_path / "lake")
    folder = Path(make(catalog))
    request = stage(catalog, "t", 2)
    assert list(folder.glob("_versions/*.manifest-*"))
    catalog.create_table_version(request)  # type: ignore[arg-type]
    assert not list(folder.glob("_versions/*.manifest-*"))
    assert (folder / "_versions" / manifest_name(2)).exists()
