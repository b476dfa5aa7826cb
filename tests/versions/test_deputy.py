"""The confused deputy: what lies on the storage cannot make the catalog read, or delete, what is not the table's."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path
from typing import Any

import lance
import pytest

from headwater.catalog.table import CatalogTable
from headwater.errors import InvalidInputError, InvalidTableStateError, LanceNamespaceError
from headwater.lance_manifest import bases_of, message_of, outside
from headwater.model import Add, Namespace, Table
from headwater.names import ObjectId
from headwater.namespace.directory import DirectoryNamespace
from headwater.protobuf import number, text
from headwater.registries.layout import is_reserved
from tests.versions.samples import files, make, manifest_bytes, open_kind, rows, stage, stream

RESERVED = (
    "__manifest",
    "__manifest/_versions",
    ".headwater",
    ".headwater/tokens",
    "__MANIFEST",
    ".Headwater",
    "__manifest.",
)
OUTSIDE = ("..", "../victim", "/etc", "", ".", "a/../../victim", "s3://elsewhere/t")


def with_base(manifest: bytes, path: str) -> bytes:
    """A manifest file that has one more base path."""
    message = message_of(manifest) + text(18, number(1, 7) + number(3, 1) + text(4, path))
    return struct.pack("<I", len(message)) + message + struct.pack("<Q", 0) + manifest[-8:]


@pytest.mark.parametrize("kind", ["V1", "compat", "V2-managed"])
def test_a_version_whose_files_are_another_tables_is_refused_on_open_and_on_commit(kind: str, tmp_path: Path) -> None:
    catalog = open_kind(kind, tmp_path / "lake")
    private = make(catalog, "private")
    make(catalog, "mine")
    evil = with_base(manifest_bytes(catalog, "mine", 1), private)
    manifest = "/" + str(catalog.describe_table_version({"id": ["mine"], "version": 1}).version.manifest_path)  # type: ignore[arg-type]
    before = files(private)
    with pytest.raises(InvalidInputError, match="base path"):
        catalog.create_table_version(stage(catalog, "mine", 2, data=evil))  # type: ignore[arg-type]
    Path(manifest).write_bytes(evil)
    asked: dict[str, dict[str, Any]] = {
        "count_table_rows": {},
        "query_table": {"k": 1, "vector": {}},
        "describe_table": {"load_detailed_metadata": True},
        "get_table_stats": {},
        "delete_from_table": {"predicate": "true"},
    }
    for method, more in asked.items():
        with pytest.raises(InvalidTableStateError, match="shallow clone"):
            getattr(catalog, method)({"id": ["mine"], **more})
    assert files(private) == before


def test_a_shallow_clone_that_another_writer_put_into_a_root_is_not_read(tmp_path: Path) -> None:
    outside_table = lance.write_dataset(rows(), str(tmp_path / "private.lance"))
    (tmp_path / "lake").mkdir()
    outside_table.shallow_clone(str(tmp_path / "lake" / "clone.lance"), 1)
    catalog = open_kind("compat", tmp_path / "lake")
    with pytest.raises(InvalidTableStateError, match="shallow clone"):
        catalog.count_table_rows({"id": ["clone"]})
    with pytest.raises(InvalidTableStateError, match="shallow clone"):
        CatalogTable(catalog, ObjectId(("clone",))).dataset()


def test_a_branch_has_its_table_as_base_and_is_read(tmp_path: Path) -> None:
    catalog = open_kind("compat", tmp_path / "a b#é")
    make(catalog)
    catalog.create_table_branch({"id": ["t"], "name": "side"})
    count: Any = catalog.count_table_rows({"id": ["t"], "branch": "side"})
    assert int(getattr(count, "count", count)) == 3


def test_bases_are_compared_as_places_and_not_as_texts(tmp_path: Path) -> None:
    table = str(tmp_path / "lake" / "t.lance")
    os.makedirs(table + "/inside")
    os.makedirs(str(tmp_path / "lake" / "t.lance2"))
    os.symlink(tmp_path, table + "/link")
    inside = [table, table + "/", table + "/inside", f"file://{table}", table + "/inside/../inside"]
    assert outside(inside, table) is None
    for bad in (
        table + "2",
        table + "/..",
        f"{table}/inside/../..",
        table + "/link",
        "s3://b/t.lance",
        "",
        "/",
        f"file://{table}/../x",
    ):
        assert outside([table, bad], table) == bad
    remote = "s3://bucket/lake/a%20b.lance"
    assert outside([remote, "s3://bucket/lake/a b.lance/tree", "S3://bucket/lake/a%20b.lance"], remote) is None
    for bad in (
        "s3://bucket/lake",
        "s3://bucket/lake/a b.lance2",
        f"{remote}/..",
        f"{remote}/%2e%2e/x",
        "gs://bucket/lake/a b.lance",
        "/lake",
    ):
        assert outside([bad], remote) == bad


def test_the_bases_of_a_manifest_are_those_that_pylance_sees(tmp_path: Path) -> None:
    dataset = lance.write_dataset(rows(), str(tmp_path / "t.lance"))
    clone = dataset.shallow_clone(str(tmp_path / "c.lance"), 1)
    manifest = next((tmp_path / "c.lance" / "_versions").glob("*.manifest")).read_bytes()
    assert bases_of(message_of(manifest)) == [base.path for base in clone.base_paths().values()]


@pytest.mark.parametrize("kind", ["compat", "V2-managed"])
@pytest.mark.parametrize("location", [*RESERVED, *OUTSIDE[:3]])
def test_a_record_that_points_at_the_catalog_or_outside_it_is_never_opened_nor_deleted(
    kind: str, location: str, tmp_path: Path
) -> None:
    catalog = open_kind(kind, tmp_path / "lake")
    make(catalog, "good")
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "file").write_text("not yours")
    catalog.registry.commit([Add(Namespace(ObjectId(("ns",))))])
    for id in (("evil",), ("ns", "evil")):
        catalog.registry.commit([Add(Table(ObjectId(id), location))])
    asked: dict[str, tuple[Any, ...]] = {
        "drop_table": ({},), "describe_table": ({},), "table_exists": ({},), "count_table_rows": ({},),
        "list_table_versions": ({},), "create_table": ({"mode": "overwrite"}, stream(rows())),
        "insert_into_table": ({}, stream(rows())),
    }  # fmt: skip
    for method, arguments in asked.items():
        with pytest.raises(InvalidTableStateError, match="Deregister"):
            getattr(catalog, method)({"id": ["evil"], **arguments[0]}, *arguments[1:])
    catalog.drop_namespace({"id": ["ns"], "behavior": "cascade"})  # type: ignore[arg-type]
    catalog.deregister_table({"id": ["evil"]})  # type: ignore[arg-type]
    assert (tmp_path / "victim" / "file").read_text() == "not yours"
    again = open_kind(kind, tmp_path / "lake")
    assert again.list_tables({"id": []}).tables == ["good"]  # type: ignore[arg-type]
    count: Any = again.count_table_rows({"id": ["good"]})
    assert int(getattr(count, "count", count)) == 3


@pytest.mark.parametrize(
    "name", ["__MANIFEST", "__Manifest", ".HEADWATER", "__manifest.", "__manifest ", "．headwater"]
)
def test_a_file_system_that_folds_names_reaches_no_folder_of_the_catalogs(name: str, tmp_path: Path) -> None:
    assert is_reserved(name)
    early = DirectoryNamespace(root=str(tmp_path), layout="early")
    with pytest.raises(LanceNamespaceError):
        early.declare_table({"id": [name]})  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError):
        open_kind("V2", tmp_path).declare_table({"id": ["x"], "location": f"{name}/x"})  # type: ignore[arg-type]
    assert not is_reserved(f"{name}.lance")


OVERLAPS = {
    "the same": "{0}",
    "the same, spelled otherwise": "./{0}//",
    "inside": "{0}/data",
    "deep inside": "{0}/_versions/x",
}


@pytest.mark.parametrize("kind", ["V2", "compat", "V2-managed", "compat-managed"])
@pytest.mark.parametrize("overlap", OVERLAPS)
def test_dropping_a_row_that_overlaps_another_table_keeps_its_files(kind: str, overlap: str, tmp_path: Path) -> None:
    catalog = open_kind(kind, tmp_path / "lake")
    folder = make(catalog, "mine")
    before = files(folder)
    place = OVERLAPS[overlap].format(Path(folder).name)
    catalog.registry.commit([Add(Table(ObjectId(("evil",)), place))])
    assert "shared_location" in {problem.kind for problem in catalog.verify()}
    if place.startswith("./"):  # a spelling that is no place may only be deregistered
        with pytest.raises(InvalidTableStateError):
            catalog.drop_table({"id": ["evil"]})  # type: ignore[arg-type]
        catalog.deregister_table({"id": ["evil"]})  # type: ignore[arg-type]
    else:
        catalog.drop_table({"id": ["evil"]})  # type: ignore[arg-type]
    assert files(folder) == before
    assert catalog.count_table_rows({"id": ["mine"]}).count == 3
    reopened = open_kind(kind, tmp_path / "lake")
    assert reopened.list_tables({}).tables == ["mine"]  # type: ignore[arg-type]
    reopened.drop_table({"id": ["mine"]})  # type: ignore[arg-type]
    assert not Path(folder).exists()


@pytest.mark.parametrize("kind", ["V2", "compat"])
@pytest.mark.parametrize("how", ["drop", "cascade", "overwrite"])
def test_a_row_around_other_tables_takes_none_of_them_with_it(kind: str, how: str, tmp_path: Path) -> None:
    catalog = open_kind(kind, tmp_path / "lake")
    source = make(catalog, "source")
    inside = tmp_path / "lake" / "shelf" / "inside"
    inside.parent.mkdir()
    shutil.copytree(source, inside)
    catalog.register_table({"id": ["inside"], "location": "shelf/inside"})  # type: ignore[arg-type]
    before = files(inside)
    catalog.registry.commit([Add(Namespace(ObjectId(("n",)))), Add(Table(ObjectId(("n", "evil")), "shelf"))])
    if how == "drop":
        catalog.drop_table({"id": ["n", "evil"]})  # type: ignore[arg-type]
    elif how == "cascade":
        catalog.drop_namespace({"id": ["n"], "behavior": "cascade"})  # type: ignore[arg-type]
    else:
        catalog.create_table({"id": ["n", "evil"], "mode": "overwrite"}, stream(rows()))  # type: ignore[arg-type]
        catalog.drop_table({"id": ["n", "evil"]})  # type: ignore[arg-type]
    assert files(inside) == before


def test_a_row_inside_a_table_that_is_only_a_folder_takes_nothing_of_it(tmp_path: Path) -> None:
    catalog = open_kind("compat", tmp_path / "lake")
    lance.write_dataset(rows(), tmp_path / "lake" / "plain.lance")
    before = files(tmp_path / "lake" / "plain.lance")
    catalog.registry.commit([Add(Table(ObjectId(("evil",)), "plain.lance/data"))])
    catalog.drop_table({"id": ["evil"]})  # type: ignore[arg-type]
    assert files(tmp_path / "lake" / "plain.lance") == before


def test_of_two_rows_at_one_place_the_last_to_be_dropped_takes_the_files(tmp_path: Path) -> None:
    catalog = open_kind("V2", tmp_path / "lake")
    folder = make(catalog, "a")
    catalog.registry.commit([Add(Table(ObjectId(("b",)), Path(folder).name))])
    catalog.drop_table({"id": ["a"]})  # type: ignore[arg-type]
    assert catalog.count_table_rows({"id": ["b"]}).count == 3
    catalog.drop_table({"id": ["b"]})  # type: ignore[arg-type]
    assert not Path(folder).exists()
