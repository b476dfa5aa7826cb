"""Every way a Lance client opens a catalog, and the early layout."""

from __future__ import annotations

import pickle
from pathlib import Path

import lance
import lance_namespace
import lance_namespace as api
import lancedb
import pyarrow as pa
import pytest

import headwater
from headwater.testing.namespace_suite import ROWS, code_of, ipc

IMPLEMENTATION = "headwater.DirectoryNamespace"
VECTORS = pa.table({"id": [1, 2], "vector": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2))})


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


def test_lance_namespace_connects_to_it_by_name(root: str) -> None:
    namespace = lance_namespace.connect(IMPLEMENTATION, {"root": root})
    namespace.create_table(api.CreateTableRequest(id=["t"]), ipc(ROWS))
    assert isinstance(namespace, headwater.DirectoryNamespace)
    for kind in ("dir", IMPLEMENTATION):
        again = headwater.connect(kind, {"root": root})
        assert again.list_tables(api.ListTablesRequest(id=[])).tables == ["t"]
    assert repr(namespace).startswith("DirectoryNamespace(root=")


def test_a_namespace_travels_to_another_process(root: str) -> None:
    namespace = headwater.DirectoryNamespace(root=root, dir_listing_enabled="false")
    namespace.create_namespace(api.CreateNamespaceRequest(id=["n"]))
    copy = pickle.loads(pickle.dumps(namespace))
    assert copy.list_namespaces(api.ListNamespacesRequest(id=[])).namespaces == ["n"]
    assert copy.properties == namespace.properties


@pytest.mark.parametrize("properties", [{}, {"manifest_enabled": "false"}, {"dir_listing_enabled": "false"}])
def test_lancedb_works_with_it_unchanged(root: str, properties: dict[str, str]) -> None:
    database = lancedb.connect_namespace(IMPLEMENTATION, {"root": root, **properties})
    table = database.create_table("t", VECTORS)
    table.add(pa.table({"id": [3], "vector": pa.array([[5.0, 6.0]], pa.list_(pa.float32(), 2))}))
    opened = database.open_table("t")
    assert opened.count_rows() == 3
    assert [row["id"] for row in opened.search([5.0, 6.0]).limit(1).to_list()] == [3]
    opened.delete("id = 1")
    assert database.open_table("t").count_rows() == 2
    assert list(database.list_tables().tables) == ["t"]
    database.drop_table("t")
    assert list(database.list_tables().tables) == []


def test_lancedb_nests_namespaces_in_it(root: str) -> None:
    database = lancedb.connect_namespace(IMPLEMENTATION, {"root": root})
    database.create_namespace(["n"])
    database.create_table("t", VECTORS, namespace_path=["n"])
    assert list(database.list_tables(namespace_path=["n"]).tables) == ["t"]
    assert database.open_table("t", namespace_path=["n"]).count_rows() == 2
    assert list(database.list_namespaces().namespaces) == ["n"]
    database.drop_table("t", namespace_path=["n"])
    database.drop_namespace(["n"])
    assert list(database.list_namespaces().namespaces) == []


@pytest.mark.parametrize("properties", [{}, {"manifest_enabled": "false"}, {"dir_listing_enabled": "false"}])
def test_pylance_writes_and_reads_through_it(root: str, properties: dict[str, str]) -> None:
    namespace = headwater.connect("dir", {"root": root, **properties})
    lance.write_dataset(ROWS, namespace_client=namespace, table_id=["t"])
    lance.write_dataset(ROWS, namespace_client=namespace, table_id=["t"], mode="append")
    assert lance.dataset(namespace_client=namespace, table_id=["t"]).count_rows() == 6
    lance.write_dataset(ROWS.slice(0, 1), namespace_client=namespace, table_id=["t"], mode="overwrite")
    assert lance.dataset(namespace_client=namespace, table_id=["t"]).count_rows() == 1
    assert namespace.list_tables(api.ListTablesRequest(id=[])).tables == ["t"]


def test_early_tables_are_bare_folders_that_exist_even_when_empty(tmp_path: Path) -> None:
    lance.write_dataset(ROWS, str(tmp_path / "table1"))
    (tmp_path / "table2").mkdir()
    (tmp_path / "table3").mkdir()
    (tmp_path / "table3" / "notes.txt").write_text("no Lance table")
    (tmp_path / "file").write_text("")
    namespace = headwater.connect("dir", {"path": str(tmp_path), "layout": "early"})
    assert namespace.list_tables(api.ListTablesRequest(id=[])).tables == ["table1", "table2", "table3"]
    for name in ("table1", "table2", "table3"):
        namespace.table_exists(api.TableExistsRequest(id=[name]))
    described = namespace.describe_table(api.DescribeTableRequest(id=["table1"], load_detailed_metadata=True))
    assert described.version == 1
    for name in ("table2", "table3"):
        detailed = api.DescribeTableRequest(id=[name], load_detailed_metadata=True)
        assert code_of(lambda request=detailed: namespace.describe_table(request)) == 19  # type: ignore[misc]
        counted = api.CountTableRowsRequest(id=[name])
        assert code_of(lambda request=counted: namespace.count_table_rows(request)) == 19  # type: ignore[misc]
    assert code_of(lambda: namespace.table_exists(api.TableExistsRequest(id=["file"]))) == 4
    assert (tmp_path / "table3" / "notes.txt").exists()


def test_early_tables_are_created_where_the_early_document_puts_them(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    namespace = headwater.connect("dir", {"path": str(tmp_path), "layout": "early"})
    namespace.create_table(api.CreateTableRequest(id=["new"]), ipc(ROWS))
    assert code_of(lambda: namespace.create_table(api.CreateTableRequest(id=["empty"]), ipc(ROWS))) == 5
    namespace.create_table(api.CreateTableRequest(id=["empty"], mode="overwrite"), ipc(ROWS))
    assert lance.dataset(str(tmp_path / "new")).count_rows() == 3
    assert lance.dataset(str(tmp_path / "empty")).count_rows() == 3
    for name in ("__manifest", ".headwater"):
        assert code_of(lambda id=name: namespace.declare_table(api.DeclareTableRequest(id=[id]))) == 13  # type: ignore[misc]


@pytest.mark.parametrize("properties", [{}, {"manifest_enabled": "false"}, {"dir_listing_enabled": "false"}])
def test_the_catalogs_own_names_are_ordinary_names_of_tables(root: str, properties: dict[str, str]) -> None:
    namespace = headwater.connect("dir", {"root": root, **properties})
    for name in ("__manifest", ".headwater"):
        namespace.create_table(api.CreateTableRequest(id=[name]), ipc(ROWS))
    assert namespace.list_tables(api.ListTablesRequest(id=[])).tables == [".headwater", "__manifest"]
    namespace.drop_table(api.DropTableRequest(id=["__manifest"]))
    assert namespace.list_tables(api.ListTablesRequest(id=[])).tables == [".headwater"]
