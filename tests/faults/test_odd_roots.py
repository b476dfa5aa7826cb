"""Roots, locations and folders as they come: URIs of any spelling, files, folders nobody may read, odd names."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import lance
import lance.namespace as pylance
import lance_namespace as api
import pyarrow as pa
import pytest

from headwater import Catalog, DirectoryNamespace
from headwater.errors import (
    InvalidInputError,
    PermissionDeniedError,
    TableAlreadyExistsError,
    UnsupportedOperationError,
)
from headwater.model import Add, Namespace
from headwater.names import ObjectId
from headwater.registries import folders
from headwater.registries.folders import check_location, table_uri
from headwater.store import is_local, local_path
from headwater.testing.namespace_suite import ROWS, ipc

ROWS_TABLE = pa.table({"n": [1, 2, 3]})
MODES: dict[str, dict[str, str]] = {
    "V1": {"manifest_enabled": "false"},
    "V2": {"dir_listing_enabled": "false"},
    "compat": {},
    "early": {"layout": "early"},
}


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:///a%20b/c", "/a b/c"),
        ("file:/x", "/x"),
        ("FILE:///x/y/", "/x/y"),
        ("File://localhost/x", "/x"),
        ("file:///caf%C3%A9", "/café"),
        ("file:///100%25", "/100%"),
    ],
)
def test_a_file_uri_is_read_as_rfc_3986_says(uri: str, path: str) -> None:
    assert is_local(uri)
    assert local_path(uri) == path


@pytest.mark.parametrize(
    "uri", ["file:x", "file://host/x", "file:///a%zz", "file:///a%2Fb", "file:///a%00", "file:///%ff", "file:///a?b#c"]
)
def test_what_is_no_uri_of_a_local_file_is_refused(uri: str) -> None:
    with pytest.raises(InvalidInputError, match="not a URI of a local file"):
        local_path(uri)


@pytest.mark.parametrize("root", ["/lake", "/a b", "s3://bucket/lake"])
@pytest.mark.parametrize("location", ["t.lance", "a b/c", "100%.lance", "café", "x%20y", "a#b?c"])
def test_every_location_is_found_again_by_its_uri(root: str, location: str) -> None:
    uri = table_uri(root, location)
    given = uri if "://" in uri else f"file://{quote(uri)}"
    assert check_location(given, root) == location


@pytest.mark.parametrize("mode", ["V2", "compat"])
def test_register_takes_the_uri_that_describe_gave(tmp_path: Path, mode: str) -> None:
    root = tmp_path / "my lake 100%"
    catalog = DirectoryNamespace(root=f"file://{quote(str(root))}", **MODES[mode])
    catalog.create_table(api.CreateTableRequest(id=["t é"]), ipc(ROWS))
    assert root.is_dir()
    told = catalog.describe_table(api.DescribeTableRequest(id=["t é"], with_table_uri=True))
    for given in (told.table_uri, told.location, str(told.table_uri).replace("file://", "FILE://localhost")):
        catalog.deregister_table(api.DeregisterTableRequest(id=["t é"]))
        catalog.register_table(api.RegisterTableRequest(id=["t é"], location=str(given)))
    assert Catalog(catalog)["t é"].count() == ROWS.num_rows


@pytest.mark.parametrize("tail", ["", "below", "deep/below"])
def test_a_root_that_is_a_file_or_in_one_is_invalid_input(tmp_path: Path, tail: str) -> None:
    (tmp_path / "file").write_text("no folder")
    for root in (str(tmp_path / "file" / tail), f"file:{tmp_path}/file/{tail}"):
        for mode in MODES.values():
            with pytest.raises(InvalidInputError, match="is not a folder"):
                DirectoryNamespace(root=root, **mode)
    assert (tmp_path / "file").read_text() == "no folder"


@pytest.mark.parametrize("mode", ["V1", "compat", "early"])
def test_a_folder_that_nobody_may_read_keeps_no_other_out_of_a_listing(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = DirectoryNamespace(root=str(tmp_path), **MODES[mode])
    suffix = "" if mode == "early" else ".lance"
    catalog.create_table(api.CreateTableRequest(id=["a"]), ipc(ROWS))
    (tmp_path / f"closed{suffix}").mkdir()
    look = folders.folder_status

    def refused(store: Any, folder: str) -> Any:
        if folder.startswith("closed"):
            raise PermissionDeniedError(f"The storage does not permit access to {folder!r}.")
        return look(store, folder)

    for module in ("registries.folders", "registries.listing"):
        monkeypatch.setattr(f"headwater.{module}.folder_status", refused)
    for request in (api.ListTablesRequest(), api.ListTablesRequest(limit=2)):
        assert catalog.list_tables(request).tables == ["a", "closed"]
    assert catalog.list_all_tables(api.ListTablesRequest(include_declared=False)).tables == ["a", "closed"]
    with pytest.raises(PermissionDeniedError):
        catalog.describe_table(api.DescribeTableRequest(id=["closed"]))


def test_in_the_early_layout_a_folder_is_a_table_and_is_not_created_over(tmp_path: Path) -> None:
    catalog = DirectoryNamespace(root=str(tmp_path), layout="early")
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    for name in ("empty", "full"):
        with pytest.raises(TableAlreadyExistsError):
            catalog.create_table(api.CreateTableRequest(id=[name]), ipc(ROWS))
        kept = catalog.create_table(api.CreateTableRequest(id=[name], mode="exist_ok"), ipc(ROWS))
        assert kept.version is None
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["notes.txt"]
    assert catalog.create_table(api.CreateTableRequest(id=["full"], mode="overwrite"), ipc(ROWS)).version == 1
    catalog.declare_table(api.DeclareTableRequest(id=["d"]))
    assert catalog.create_table(api.CreateTableRequest(id=["d"]), ipc(ROWS)).version == 1


@pytest.mark.parametrize("mode", ["V1", "compat"])
@pytest.mark.parametrize("delimiter", ["$", ".", "::"])
def test_what_cannot_be_named_is_not_listed(tmp_path: Path, mode: str, delimiter: str) -> None:
    for name in ("a$b", "a.b", "a::b", "a:", "fine", "with space", "é"):
        lance.write_dataset(ROWS_TABLE, tmp_path / f"{name}.lance")
    catalog = DirectoryNamespace(root=str(tmp_path), delimiter=delimiter, **MODES[mode])
    whole = catalog.list_tables(api.ListTablesRequest()).tables
    assert {"fine", "with space", "é"} <= set(whole)
    assert catalog.list_all_tables(api.ListTablesRequest()).tables == whole
    paged: list[str] = []
    token = None
    while True:
        page = catalog.list_tables(api.ListTablesRequest(limit=1, page_token=token))
        paged += page.tables
        token = page.page_token
        if token is None:
            break
    assert paged == whole
    for name in whole:
        catalog.describe_table(api.DescribeTableRequest(id=[name]))
    hidden = {"a$b", "a.b", "a::b", "a:"} - set(whole)
    assert ("a$b" in hidden) == (mode != "V1")  # with namespaces that is the table b of the namespace a
    for name in hidden:
        with pytest.raises(InvalidInputError):
            catalog.describe_table(api.DescribeTableRequest(id=[name]))


def test_a_folder_with_a_dollar_in_its_name_is_a_table_where_there_are_no_namespaces(tmp_path: Path) -> None:
    lance.write_dataset(ROWS_TABLE, tmp_path / "y$z.lance")
    catalog = DirectoryNamespace(root=str(tmp_path), **MODES["V1"])
    assert catalog.list_tables(api.ListTablesRequest()).tables == ["y$z"]
    catalog.table_exists(api.TableExistsRequest(id=["y$z"]))
    assert catalog.count_table_rows(api.CountTableRowsRequest(id=["y$z"])).count == 3
    for request in (api.CreateTableRequest(id=["new$name"]), api.CreateTableRequest(id=["y$z"], mode="overwrite")):
        with pytest.raises(InvalidInputError):
            catalog.create_table(request, ipc(ROWS))
    catalog.rename_table(api.RenameTableRequest(id=["y$z"], new_table_name="plain"))
    assert catalog.list_tables(api.ListTablesRequest()).tables == ["plain"]


def test_to_pylance_a_name_with_a_dollar_is_another_table_of_a_namespace(tmp_path: Path) -> None:
    """The reason why no name of ours has one: to drop `["a$b"]` drops `["a", "b"]`."""
    theirs = pylance.DirectoryNamespace(root=str(tmp_path), dir_listing_enabled="false")
    theirs.create_namespace(api.CreateNamespaceRequest(id=["a"]))
    theirs.create_table(api.CreateTableRequest(id=["a", "b"]), ipc(ROWS))
    theirs.drop_table(api.DropTableRequest(id=["a$b"]))
    assert theirs.list_tables(api.ListTablesRequest(id=["a"])).tables == []


def test_rows_of_others_with_names_that_cannot_be_asked_for_are_not_listed(tmp_path: Path) -> None:
    catalog = DirectoryNamespace(root=str(tmp_path), dir_listing_enabled="false")
    names = ("a/b", "c\nd", "fine", "..", "x" * 300)
    catalog.registry.commit([Add(Namespace(ObjectId((name,)))) for name in names])
    assert catalog.list_namespaces(api.ListNamespacesRequest()).namespaces == ["fine"]


def test_the_friendly_face_honours_the_delimiter_it_is_given(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path), impl="dir", delimiter="#")
    catalog.create_table("prod#users", ROWS_TABLE)
    assert catalog.namespaces() == ["prod"]
    assert catalog.tables("prod") == ["users"]
    assert "prod#users" in catalog
    catalog.rename_table("prod#users", "prod#people")
    assert catalog["prod#people"].count() == 3
    dotted = Catalog(DirectoryNamespace(root=str(tmp_path)), delimiter="::")
    assert "prod::people" in dotted
    with pytest.raises(InvalidInputError):
        Catalog(str(tmp_path), delimiter="/")
    catalog.create_table("a.b", ROWS_TABLE)
    assert catalog.tables() == ["a.b"]


@pytest.mark.parametrize("mode", ["V2", "compat"])
def test_properties_of_the_root_namespace_are_set_and_removed(tmp_path: Path, mode: str) -> None:
    first = DirectoryNamespace(root=str(tmp_path), **MODES[mode])
    second = DirectoryNamespace(root=str(tmp_path), **MODES[mode])
    assert first.describe_namespace(api.DescribeNamespaceRequest(id=[])).properties == {}
    first.alter_namespace_properties({"id": [], "properties": {"owner": "ann", "x": "1"}})  # type: ignore[arg-type]
    second.alter_namespace_properties({"properties": {"y": "2"}, "removed": ["x", "none"]})  # type: ignore[arg-type]
    first.create_namespace(api.CreateNamespaceRequest(id=["n"]))
    for catalog in (first, second, DirectoryNamespace(root=str(tmp_path), **MODES[mode])):
        found = catalog.describe_namespace(api.DescribeNamespaceRequest(id=[])).properties
        assert found == {"owner": "ann", "y": "2"}
    assert first.list_namespaces(api.ListNamespacesRequest()).namespaces == ["n"]
    with pytest.raises(InvalidInputError):
        first.alter_namespace_properties({"id": [], "properties": {"a": "1"}, "removed": ["a"]})  # type: ignore[arg-type]
    flat = DirectoryNamespace(root=str(tmp_path / "flat"), manifest_enabled="false")
    with pytest.raises(UnsupportedOperationError):
        flat.alter_namespace_properties({"id": [], "properties": {"a": "1"}})  # type: ignore[arg-type]
