"""Unmodified clients through the server: pylance, the generated client, LanceDB, curl, and ours over pylance's."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

import lance
import lance.namespace
import lance_namespace as api
import lancedb
import pyarrow as pa
import pytest
from lance_namespace_urllib3_client.api.namespace_api import NamespaceApi
from lance_namespace_urllib3_client.api.table_api import TableApi
from lance_namespace_urllib3_client.api_client import ApiClient
from lance_namespace_urllib3_client.configuration import Configuration
from lance_namespace_urllib3_client.exceptions import BadRequestException, ConflictException, NotFoundException

import headwater
import headwater.rest.client
from headwater import DirectoryNamespace
from headwater.errors import (
    CommitStateUnknownError,
    InvalidInputError,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
    TableNotFoundError,
    TableVersionNotFoundError,
    UnauthenticatedError,
    UnsupportedOperationError,
)
from headwater.names import ObjectId
from headwater.rest.client import connect_rest, refused
from headwater.rest.server import RunningServer
from tests.rest.samples import PEOPLE, Serve, ipc, make

T = ["ns one", "t"]


@pytest.fixture(params=["pylance", "headwater"])
def client(request: pytest.FixtureRequest, server: RunningServer) -> Any:
    if request.param == "pylance":
        return lance.namespace.RestNamespace(uri=server.url)
    return headwater.connect("rest", {"uri": server.url})


@pytest.fixture
def table(client: Any) -> list[str]:
    client.create_namespace(api.CreateNamespaceRequest(id=T[:1], properties={"owner": "ann"}))
    client.create_table(api.CreateTableRequest(id=T, properties={"k": "v"}), ipc(PEOPLE))
    return T


def test_namespaces_and_tables(client: Any, table: list[str]) -> None:
    assert client.describe_namespace(api.DescribeNamespaceRequest(id=T[:1])).properties == {"owner": "ann"}
    client.namespace_exists(api.NamespaceExistsRequest(id=T[:1]))
    assert client.list_namespaces(api.ListNamespacesRequest(id=[])).namespaces == T[:1]
    assert client.list_tables(api.ListTablesRequest(id=T[:1])).tables == ["t"]
    assert client.list_all_tables(api.ListTablesRequest()).tables == ["ns one$t"]
    described = client.describe_table(api.DescribeTableRequest(id=T, load_detailed_metadata=True))
    assert described.version == 1
    assert [field.name for field in described.var_schema.fields] == ["id", "name"]
    client.table_exists(api.TableExistsRequest(id=T))
    client.rename_table(api.RenameTableRequest(id=T, new_table_name="u", new_namespace_id=[]))
    assert client.list_tables(api.ListTablesRequest(id=[])).tables == ["u"]
    client.deregister_table(api.DeregisterTableRequest(id=["u"]))
    with pytest.raises(TableNotFoundError):
        client.describe_table(api.DescribeTableRequest(id=["u"]))


def test_rows(client: Any, table: list[str]) -> None:
    client.insert_into_table(api.InsertIntoTableRequest(id=T), ipc(PEOPLE))
    assert client.count_table_rows(api.CountTableRowsRequest(id=T)).count == 6
    merge = api.MergeInsertIntoTableRequest(
        id=T, on=["id", "name"], when_matched_update_all=True, when_not_matched_insert_all=True
    )
    answer = client.merge_insert_into_table(merge, ipc(pa.table({"id": [9], "name": ["zoe"]})))
    assert answer.num_inserted_rows == 1
    client.update_table(api.UpdateTableRequest(id=T, updates=[["name", "'eve'"]], predicate="id = 9"))
    client.delete_from_table(api.DeleteFromTableRequest(id=T, predicate="id < 9"))
    data = client.query_table(make(api.QueryTableRequest, id=T, k=10, vector={}, filter="name = 'eve'")).data
    assert pa.ipc.open_file(data).read_all().to_pylist() == [{"id": 9, "name": "eve"}]
    plan = client.explain_table_query_plan(
        api.ExplainTableQueryPlanRequest(id=T, query=make(api.QueryTableRequest, k=1, vector={}))
    )
    assert "LanceRead" in plan or "LanceScan" in plan
    assert client.get_table_stats(api.GetTableStatsRequest(id=T)).num_rows == 1


def test_columns_indices_tags_branches_and_metadata(client: Any, table: list[str]) -> None:
    add = make(api.AlterTableAddColumnsRequest, id=T, new_columns=[{"name": "twice", "expression": "id * 2"}])
    assert client.alter_table_add_columns(add).version == 2
    client.alter_table_alter_columns(
        make(api.AlterTableAlterColumnsRequest, id=T, alterations=[{"path": "twice", "rename": "double"}])
    )
    client.alter_table_drop_columns(api.AlterTableDropColumnsRequest(id=T, columns=["double"]))
    index = api.CreateTableIndexRequest(id=T, column="id", index_type="BTREE", name="by_id")
    client.create_table_scalar_index(index)
    assert [i.index_name for i in client.list_table_indices(api.ListTableIndicesRequest(id=T)).indexes] == ["by_id"]
    client.describe_table_index_stats(api.DescribeTableIndexStatsRequest(id=T, index_name="by_id"))
    client.drop_table_index(api.DropTableIndexRequest(id=T, index_name="by_id"))
    client.create_table_tag(api.CreateTableTagRequest(id=T, tag="first", version=1))
    assert client.get_table_tag_version(api.GetTableTagVersionRequest(id=T, tag="first")).version == 1
    client.update_table_tag(api.UpdateTableTagRequest(id=T, tag="first", version=2))
    assert client.list_table_tags(api.ListTableTagsRequest(id=T)).tags["first"].version == 2
    client.delete_table_tag(api.DeleteTableTagRequest(id=T, tag="first"))
    client.create_table_branch(api.CreateTableBranchRequest(id=T, name="dev"))
    assert "dev" in client.list_table_branches(api.ListTableBranchesRequest(id=T)).branches
    client.delete_table_branch(api.DeleteTableBranchRequest(id=T, name="dev"))
    metadata = client.update_table_schema_metadata(
        api.UpdateTableSchemaMetadataRequest(id=T, metadata={"team": "blue"})
    )
    assert metadata.metadata["team"] == "blue"
    client.restore_table(api.RestoreTableRequest(id=T, version=1))


def test_errors_arrive_as_the_exceptions_of_their_codes(client: Any, table: list[str]) -> None:
    cases: list[tuple[type[Exception], Any]] = [
        (NamespaceNotFoundError, lambda: client.describe_namespace(api.DescribeNamespaceRequest(id=["x"]))),
        (NamespaceAlreadyExistsError, lambda: client.create_namespace(api.CreateNamespaceRequest(id=T[:1]))),
        (NamespaceNotEmptyError, lambda: client.drop_namespace(api.DropNamespaceRequest(id=T[:1]))),
        (TableNotFoundError, lambda: client.table_exists(api.TableExistsRequest(id=["x"]))),
        (TableAlreadyExistsError, lambda: client.create_table(api.CreateTableRequest(id=T), ipc(PEOPLE))),
        (InvalidInputError, lambda: client.create_namespace(api.CreateNamespaceRequest(id=["a/b"]))),
        (UnsupportedOperationError, lambda: client.refresh_materialized_view(api.RefreshMaterializedViewRequest(id=T))),
    ]
    for expected, call in cases:
        with pytest.raises(expected):
            call()


def test_pylance_writes_and_reads_a_dataset_through_the_server(client: Any) -> None:
    client.create_namespace(api.CreateNamespaceRequest(id=["a"]))
    written = lance.write_dataset(PEOPLE, namespace_client=client, table_id=["a", "t"])
    assert written.count_rows() == 3
    lance.write_dataset(PEOPLE, namespace_client=client, table_id=["a", "t"], mode="append")
    assert lance.dataset(namespace_client=client, table_id=["a", "t"]).count_rows() == 6


@pytest.fixture
def managed(serve: Serve, tmp_path: Path) -> RunningServer:
    return serve(namespace=DirectoryNamespace(root=str(tmp_path / "managed"), table_version_management="true"))


@pytest.mark.parametrize("connect", [lance.namespace.RestNamespace, headwater.rest.client.CompleteRestNamespace])
def test_pylance_commits_managed_versions_through_the_server(managed: RunningServer, connect: Any) -> None:
    client = connect(uri=managed.url)
    client.create_namespace(api.CreateNamespaceRequest(id=["a"]))
    lance.write_dataset(PEOPLE, namespace_client=client, table_id=["a", "t"])
    described = client.describe_table(api.DescribeTableRequest(id=["a", "t"]))
    assert described.managed_versioning is True
    lance.write_dataset(PEOPLE, namespace_client=client, table_id=["a", "t"], mode="append")
    dataset = lance.dataset(namespace_client=client, table_id=["a", "t"])
    dataset.delete("id = 1")
    assert lance.dataset(namespace_client=client, table_id=["a", "t"]).count_rows() == 4
    newest = client.list_table_versions(api.ListTableVersionsRequest(id=["a", "t"], limit=1, descending=True))
    assert [version.version for version in newest.versions] == [3]


def test_managed_appends_of_many_writers_through_the_server_are_all_there(managed: RunningServer) -> None:
    first = lance.namespace.RestNamespace(uri=managed.url)
    lance.write_dataset(PEOPLE, namespace_client=first, table_id=["t"])
    failures: list[BaseException] = []

    def append() -> None:
        client = lance.namespace.RestNamespace(uri=managed.url)
        try:
            for _ in range(4):
                lance.write_dataset(PEOPLE, namespace_client=client, table_id=["t"], mode="append")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=append) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert lance.dataset(namespace_client=first, table_id=["t"]).count_rows() == 3 * 17
    listed = first.list_table_versions(api.ListTableVersionsRequest(id=["t"], limit=100)).versions
    assert sorted(version.version for version in listed) == list(range(1, 18))


def test_a_batch_commit_is_all_or_nothing_through_our_client(managed: RunningServer) -> None:
    client = headwater.connect("rest", {"uri": managed.url})
    client.declare_table(api.DeclareTableRequest(id=["old"]))
    changes = [{"declare_table": {"id": ["new"]}}, {"deregister_table": {"id": ["old"]}}]
    bad = [*changes, {"deregister_table": {"id": ["missing"]}}]
    with pytest.raises(TableNotFoundError):
        client.batch_commit_tables(make(api.BatchCommitTablesRequest, operations=bad))
    assert client.list_tables(api.ListTablesRequest(id=[])).tables == ["old"]
    answer = client.batch_commit_tables(make(api.BatchCommitTablesRequest, operations=changes))
    assert len(answer.results) == 2
    assert client.list_tables(api.ListTablesRequest(id=[])).tables == ["new"]


def test_versions_are_described_and_deleted_through_our_client(managed: RunningServer) -> None:
    client: Any = headwater.connect("rest", {"uri": managed.url})
    for mode in ("create", "append", "append"):
        lance.write_dataset(PEOPLE, namespace_client=client, table_id=["t"], mode=mode)
    described = client.describe_table_version(api.DescribeTableVersionRequest(id=["t"], version=2))
    assert described.version.version == 2
    ranges = [{"start_version": 1, "end_version": 2}]
    deleted = client.batch_delete_table_versions(make(api.BatchDeleteTableVersionsRequest, id=["t"], ranges=ranges))
    assert deleted.deleted_count == 1
    left = client.list_table_versions(api.ListTableVersionsRequest(id=["t"])).versions
    assert sorted(version.version for version in left) == [2, 3]
    with pytest.raises(TableVersionNotFoundError):
        client.describe_table_version(api.DescribeTableVersionRequest(id=["t"], version=1))


def test_the_generated_client(server: RunningServer) -> None:
    with ApiClient(Configuration(host=server.url)) as transport:
        namespaces, tables = NamespaceApi(transport), TableApi(transport)
        namespaces.create_namespace("ns one", api.CreateNamespaceRequest(properties={"a": "b"}))
        with pytest.raises(ConflictException):
            namespaces.create_namespace("ns one", api.CreateNamespaceRequest())
        assert namespaces.list_namespaces("$").namespaces == ["ns one"]
        assert namespaces.list_namespaces(".", delimiter=".").namespaces == ["ns one"]
        created = tables.create_table("ns one$t", ipc(PEOPLE), mode="create")
        assert created.version == 1
        assert tables.count_table_rows("ns one$t", api.CountTableRowsRequest()) == 3
        described = tables.describe_table("ns one.t", api.DescribeTableRequest(), delimiter=".")
        assert described.table == "t"
        tables.merge_insert_into_table("ns one$t", ["id"], ipc(PEOPLE), when_not_matched_insert_all=True)
        data = tables.query_table("ns one$t", make(api.QueryTableRequest, k=10, vector={}))
        assert pa.ipc.open_file(bytes(data)).read_all().num_rows == 3
        with pytest.raises(NotFoundException):
            tables.table_exists("nope", api.TableExistsRequest())
        with pytest.raises(BadRequestException):
            tables.describe_table("ns one$t", api.DescribeTableRequest(id=["other"]))


def test_lancedb_connects_creates_opens_and_searches(server: RunningServer) -> None:
    db = lancedb.connect_namespace("rest", {"uri": server.url})
    db.create_namespace(["a"])
    table = db.create_table(
        "vectors", [{"id": 1, "vector": [1.0, 0.0]}, {"id": 2, "vector": [0.0, 1.0]}], namespace_path=["a"]
    )
    table.add([{"id": 3, "vector": [0.9, 0.1]}])
    assert list(db.list_tables(namespace_path=["a"]).tables) == ["vectors"]
    again = db.open_table("vectors", namespace_path=["a"])
    assert again.count_rows() == 3
    assert [row["id"] for row in again.search([1.0, 0.0]).limit(2).to_list()] == [1, 3]
    db.drop_table("vectors", namespace_path=["a"])
    assert list(db.list_tables(namespace_path=["a"]).tables) == []


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not on this machine")
def test_curl(server: RunningServer, tmp_path: Path) -> None:
    def curl(*args: str) -> bytes:
        return subprocess.run(["curl", "-sS", "--fail-with-body", *args], check=True, capture_output=True).stdout

    url = server.url
    curl("-X", "POST", f"{url}/v1/namespace/a/create", "-d", "{}")
    (tmp_path / "rows").write_bytes(ipc(PEOPLE))
    created = curl("-X", "POST", f"{url}/v1/table/a%24t/create", "--data-binary", f"@{tmp_path / 'rows'}")
    assert json.loads(created)["version"] == 1
    assert json.loads(curl(f"{url}/v1/namespace/a/table/list")) == {"tables": ["t"]}
    assert curl("-X", "POST", f"{url}/v1/table/a.t/count_rows?delimiter=.", "-d", "{}") == b"3"
    with pytest.raises(subprocess.CalledProcessError) as refused_call:
        curl("-X", "POST", f"{url}/v1/table/a%24x/describe", "-d", "{}")
    assert json.loads(refused_call.value.stdout)["code"] == 4


def test_headers_of_the_client_carry_the_key(serve: Serve) -> None:
    url = serve(api_key="open-sesame").url
    for properties in ({"headers.x-api-key": "open-sesame"}, {"header.Authorization": "Bearer open-sesame"}):
        client = connect_rest({"uri": url, **properties})
        assert client.list_namespaces(api.ListNamespacesRequest(id=[])).namespaces == []
        update = make(api.UpdateFieldMetadataRequest, id=["t"], updates=[])
        with pytest.raises((InvalidInputError, TableNotFoundError)):
            client.update_field_metadata(update)
    with pytest.raises(UnauthenticatedError):
        connect_rest({"uri": url}).list_namespaces(api.ListNamespacesRequest(id=[]))


def test_the_client_completes_what_pylance_lacks(server: RunningServer) -> None:
    client = headwater.connect("rest", {"uri": server.url})
    client.create_table(api.CreateTableRequest(id=["t"]), ipc(PEOPLE))
    update = make(api.UpdateFieldMetadataRequest, id=["t"], updates=[{"path": "name", "metadata": {"unit": "text"}}])
    client.update_field_metadata(update)
    described = client.describe_table(api.DescribeTableRequest(id=["t"], load_detailed_metadata=True))
    assert described.var_schema is not None
    assert {f.name: f.metadata for f in described.var_schema.fields}["name"] == {"unit": "text"}


def test_a_client_needs_an_address() -> None:
    for properties in ({}, {"uri": "file:///x"}, {"uri": "http://127.0.0.1:1", "delimiter": "/"}):
        with pytest.raises(InvalidInputError):
            connect_rest(properties)
    assert isinstance(refused(502, b"<html>"), ServiceUnavailableError)
    assert isinstance(refused(403, b'{"code": 15, "error": "no"}'), PermissionDeniedError)


def test_a_server_stands_before_another_server(
    serve: Serve, server: RunningServer, catalog: DirectoryNamespace
) -> None:
    """The server is an adapter over any catalog, one behind REST too."""
    front = serve(namespace=connect_rest({"uri": server.url}))
    client = lance.namespace.RestNamespace(uri=front.url)
    client.create_namespace(api.CreateNamespaceRequest(id=["a"]))
    client.create_table(api.CreateTableRequest(id=["a", "t"]), ipc(PEOPLE))
    assert client.count_table_rows(api.CountTableRowsRequest(id=["a", "t"])).count == 3
    catalog.namespace_exists(api.NamespaceExistsRequest(id=["a"]))


def test_a_lost_answer_is_told_from_a_server_that_is_not_there() -> None:
    """Rows that were sent and not acknowledged may be there: who is told that nothing was reached sends them again."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def hang_up() -> None:
            taken, _ = listening.accept()
            with taken:
                taken.recv(1 << 16)

        threading.Thread(target=hang_up, daemon=True).start()
        stream = connect_rest({"uri": f"http://127.0.0.1:{port}"}).stream_table(ObjectId(("a", "log")), lambda: None)
        with pytest.raises(CommitStateUnknownError, match="may be done: look before you ask again"):
            stream.append(pa.table({"id": [1]}))
    with pytest.raises(ServiceUnavailableError, match="cannot be reached") as refused_at_once:
        stream.append(pa.table({"id": [1]}))
    assert not isinstance(refused_at_once.value, CommitStateUnknownError)
