"""Tags, branches, restore, metadata and transactions."""

from __future__ import annotations

from typing import Any

import lance
import pytest
from lance.namespace import DirectoryNamespace
from lance_namespace import (
    AlterTransactionRequest,
    CountTableRowsRequest,
    CreateTableBranchRequest,
    CreateTableTagRequest,
    DeleteFromTableRequest,
    DeleteTableBranchRequest,
    DeleteTableTagRequest,
    DescribeTransactionRequest,
    GetTableTagVersionRequest,
    InsertIntoTableRequest,
    ListTableBranchesRequest,
    ListTableTagsRequest,
    RestoreTableRequest,
    UpdateFieldMetadataRequest,
    UpdateTableSchemaMetadataRequest,
    UpdateTableTagRequest,
)
from lance_namespace_urllib3_client.models.update_field_metadata_entry import UpdateFieldMetadataEntry

from headwater.errors import (
    InvalidInputError,
    TableBranchAlreadyExistsError,
    TableBranchNotFoundError,
    TableColumnNotFoundError,
    TableTagAlreadyExistsError,
    TableTagNotFoundError,
    TableVersionNotFoundError,
    TransactionNotFoundError,
    UnsupportedOperationError,
)
from headwater.namespace import data
from headwater.tables.handle import TableHandle
from tests.data.samples import ID, ROWS, body, rows, snapshot

BAD_NAMES = ["", "..", ".", "../../x", "a b", "a\\b", "ä", "a..b", "x.lock", "a\0b", "a" * 300, "$", "-\n"]


def branch(table: TableHandle, name: str, **fields: Any) -> None:
    data.create_table_branch(table, CreateTableBranchRequest(id=ID, name=name, **fields))


def tag(table: TableHandle, name: str, version: int, **fields: Any) -> None:
    data.create_table_tag(table, CreateTableTagRequest(id=ID, tag=name, version=version, **fields))


def count(table: TableHandle, **fields: Any) -> int | None:
    return data.count_table_rows(table, CountTableRowsRequest(id=ID, **fields)).count


def test_a_tag_points_to_its_version_until_it_is_moved_or_deleted(table: TableHandle, twin: DirectoryNamespace) -> None:
    data.delete_from_table(table, DeleteFromTableRequest(id=ID, predicate="id < 10"))
    tag(table, "v1.0", 1)
    found = data.get_table_tag_version(table, GetTableTagVersionRequest(id=ID, tag="v1.0"))
    assert (found.version, found.branch) == (1, None)
    data.update_table_tag(table, UpdateTableTagRequest(id=ID, tag="v1.0", version=2))
    listed = data.list_table_tags(table, ListTableTagsRequest(id=ID)).tags
    assert listed["v1.0"].version == 2
    assert listed["v1.0"].manifest_size > 0
    data.delete_table_tag(table, DeleteTableTagRequest(id=ID, tag="v1.0"))
    assert data.list_table_tags(table, ListTableTagsRequest(id=ID)).tags == {}
    twin.create_table_tag(CreateTableTagRequest(id=ID, tag="x", version=1))
    tag(table, "x", 1)
    ours = data.list_table_tags(table, ListTableTagsRequest(id=ID)).tags["x"]
    theirs = twin.list_table_tags(ListTableTagsRequest(id=ID)).tags["x"]
    assert (ours.version, ours.branch, ours.manifest_size) == (theirs.version, theirs.branch, theirs.manifest_size)


def test_tags_and_branches_are_listed_by_page(table: TableHandle) -> None:
    for name in ("b", "a", "c"):
        tag(table, name, 1)
        branch(table, name)
    tags = data.list_table_tags(table, ListTableTagsRequest(id=ID, limit=2))
    branches = data.list_table_branches(table, ListTableBranchesRequest(id=ID, limit=2))
    assert list(tags.tags) == list(branches.branches) == ["a", "b"]
    more = data.list_table_tags(table, ListTableTagsRequest(id=ID, limit=2, page_token=tags.page_token))
    assert (list(more.tags), more.page_token) == (["c"], None)
    rest = data.list_table_branches(table, ListTableBranchesRequest(id=ID, page_token=branches.page_token))
    assert (list(rest.branches), rest.page_token) == (["c"], None)
    with pytest.raises(InvalidInputError):
        data.list_table_tags(table, ListTableTagsRequest(id=ID, limit=0))


def test_tag_operations_that_cannot_be_done_are_refused(table: TableHandle) -> None:
    tag(table, "here", 1)
    with pytest.raises(TableTagAlreadyExistsError):
        tag(table, "here", 1)
    with pytest.raises(TableVersionNotFoundError):
        tag(table, "new", 99)
    with pytest.raises(TableVersionNotFoundError):
        tag(table, "new", 0)
    with pytest.raises(TableBranchNotFoundError):
        tag(table, "new", 1, branch="nope")
    with pytest.raises(TableTagNotFoundError):
        data.update_table_tag(table, UpdateTableTagRequest(id=ID, tag="nope", version=1))
    with pytest.raises(TableVersionNotFoundError):
        data.update_table_tag(table, UpdateTableTagRequest(id=ID, tag="here", version=99))
    with pytest.raises(TableTagNotFoundError):
        data.delete_table_tag(table, DeleteTableTagRequest(id=ID, tag="nope"))
    with pytest.raises(TableTagNotFoundError):
        data.get_table_tag_version(table, GetTableTagVersionRequest(id=ID, tag="nope"))


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_could_leave_the_table_is_refused_everywhere(table: TableHandle, name: str) -> None:
    for attempt in (
        lambda: tag(table, name, 1),
        lambda: data.get_table_tag_version(table, GetTableTagVersionRequest(id=ID, tag=name)),
        lambda: data.delete_table_tag(table, DeleteTableTagRequest(id=ID, tag=name)),
        lambda: branch(table, name),
        lambda: data.delete_table_branch(table, DeleteTableBranchRequest(id=ID, name=name)),
    ):
        with pytest.raises(InvalidInputError):
            attempt()
    if name:
        with pytest.raises(InvalidInputError):
            count(table, branch=name)


def test_a_branch_has_its_own_rows(table: TableHandle) -> None:
    branch(table, "dev")
    answer = data.insert_into_table(table, InsertIntoTableRequest(id=ID, branch="dev"), body(rows(ROWS, 5)))
    assert answer.version == 2
    assert (count(table), count(table, branch="dev"), count(table, branch="main")) == (ROWS, ROWS + 5, ROWS)
    tag(table, "on-dev", 2, branch="dev")
    found = data.get_table_tag_version(table, GetTableTagVersionRequest(id=ID, tag="on-dev"))
    assert (found.version, found.branch) == (2, "dev")
    assert data.describe_data(table, tag="on-dev").version == 2
    branch(table, "team/next", from_branch="dev", from_version=1)
    listed = data.list_table_branches(table, ListTableBranchesRequest(id=ID)).branches
    assert listed["team/next"].parent_branch == "dev"
    assert listed["team/next"].parent_version == 1
    assert listed["dev"].parent_branch is None
    assert listed["dev"].create_at > 0
    assert count(table, branch="team/next") == ROWS


def test_branch_operations_that_cannot_be_done_are_refused(table: TableHandle) -> None:
    branch(table, "dev")
    branch(table, "child", from_branch="dev")
    with pytest.raises(TableBranchAlreadyExistsError):
        branch(table, "dev")
    with pytest.raises(TableBranchNotFoundError):
        branch(table, "x", from_branch="nope")
    with pytest.raises(TableVersionNotFoundError):
        branch(table, "x", from_version=99)
    for name in ("main", "dev"):
        with pytest.raises(InvalidInputError):
            data.delete_table_branch(table, DeleteTableBranchRequest(id=ID, name=name))
    with pytest.raises(TableBranchNotFoundError):
        data.delete_table_branch(table, DeleteTableBranchRequest(id=ID, name="nope"))
    data.delete_table_branch(table, DeleteTableBranchRequest(id=ID, name="child"))
    data.delete_table_branch(table, DeleteTableBranchRequest(id=ID, name="dev"))
    assert data.list_table_branches(table, ListTableBranchesRequest(id=ID)).branches == {}


def test_restoring_makes_an_old_version_the_newest(table: TableHandle) -> None:
    data.delete_from_table(table, DeleteFromTableRequest(id=ID, predicate="true"))
    answer = data.restore_table(table, RestoreTableRequest(id=ID, version=1))
    dataset = lance.dataset(table.uri)
    assert (dataset.version, dataset.count_rows()) == (3, ROWS)
    assert (written := dataset.read_transaction(3)) is not None
    assert answer.transaction_id == written.uuid
    with pytest.raises(TableVersionNotFoundError):
        data.restore_table(table, RestoreTableRequest(id=ID, version=99))
    with pytest.raises(TableBranchNotFoundError):
        data.restore_table(table, RestoreTableRequest(id=ID, version=1, branch="nope"))


def test_restoring_a_branch_leaves_the_main_one_alone(table: TableHandle) -> None:
    branch(table, "dev")
    data.delete_from_table(table, DeleteFromTableRequest(id=ID, branch="dev", predicate="true"))
    data.restore_table(table, RestoreTableRequest(id=ID, branch="dev", version=1))
    assert count(table, branch="dev") == ROWS
    assert snapshot(table.uri)[0] == 1


def test_schema_metadata_is_merged_as_pylance_does(table: TableHandle, twin: DirectoryNamespace) -> None:
    for change in ({"a": "1"}, {"b": "2"}):
        request = UpdateTableSchemaMetadataRequest(id=ID, metadata=change)
        ours, theirs = data.update_table_schema_metadata(table, request), twin.update_table_schema_metadata(request)
        assert ours.metadata == theirs.metadata
        assert ours.transaction_id
    version = snapshot(table.uri)[0]
    unchanged = data.update_table_schema_metadata(table, UpdateTableSchemaMetadataRequest(id=ID))
    assert unchanged.metadata == {"a": "1", "b": "2"}
    assert snapshot(table.uri)[0] == version


def test_field_metadata_of_several_fields_is_merged_replaced_and_deleted_in_one_commit(table: TableHandle) -> None:
    def update(*entries: dict[str, Any]) -> Any:
        updates = [UpdateFieldMetadataEntry(**entry) for entry in entries]
        return data.update_field_metadata(table, UpdateFieldMetadataRequest(id=ID, updates=updates))

    first = update({"path": "id", "metadata": {"a": "1", "b": "2"}}, {"path": "st.`b.c`", "metadata": {"x": "y"}})
    assert first.version == 2
    assert first.fields == {"id": {"a": "1", "b": "2"}, "st.`b.c`": {"x": "y"}}
    second = update(
        {"path": "id", "metadata": {"a": None, "c": "3"}}, {"path": "st.`b.c`", "metadata": {"z": "1"}, "replace": True}
    )
    assert second.version == 3
    assert second.fields == {"id": {"b": "2", "c": "3"}, "st.`b.c`": {"z": "1"}}
    for entries, error in (
        ([], InvalidInputError),
        ([{"path": "nope", "metadata": {"a": "b"}}], TableColumnNotFoundError),
        ([{"path": "id", "metadata": {"": "b"}}], InvalidInputError),
        ([{"path": "id", "metadata": {"a": "b"}}] * 2, InvalidInputError),
    ):
        with pytest.raises(error):
            update(*entries)
    assert snapshot(table.uri)[0] == 3


def test_a_transaction_is_found_behind_a_compaction_that_rewrote_an_index(table: TableHandle) -> None:
    """pylance 14 cannot show such a compaction ("RewrittenIndex ... missing ... arguments")."""
    done = data.insert_into_table(table, InsertIntoTableRequest(id=ID), body(rows(ROWS, 1)))
    dataset = table.open()
    dataset.create_scalar_index("id", "BTREE")
    dataset.optimize.compact_files()
    with pytest.raises(TypeError, match="RewrittenIndex"):  # when this is repaired, the rule can go
        table.open().read_transaction(table.open().version)
    found = data.describe_transaction(table, DescribeTransactionRequest(id=[*ID, str(done.transaction_id)]))
    assert found.properties is not None
    assert found.properties["uuid"] == done.transaction_id


def test_a_transaction_is_found_by_its_id_and_by_its_version_as_pylance_finds_it(
    table: TableHandle, twin: DirectoryNamespace
) -> None:
    done = data.insert_into_table(table, InsertIntoTableRequest(id=ID), body(rows(ROWS, 1)))
    assert done.transaction_id
    by_id = data.describe_transaction(table, DescribeTransactionRequest(id=[*ID, done.transaction_id]))
    by_version = data.describe_transaction(table, DescribeTransactionRequest(id=[*ID, "2"]))
    assert by_id == by_version
    theirs = twin.describe_transaction(DescribeTransactionRequest(id=[*ID, "1"]))
    ours = data.describe_transaction(table, DescribeTransactionRequest(id=[*ID, "1"]))
    assert ours.status == theirs.status
    assert ours.properties is not None
    assert theirs.properties is not None
    assert set(ours.properties) == set(theirs.properties)
    assert ours.properties["operation"] == theirs.properties["operation"]
    for name in ("nope", "99", "0"):
        with pytest.raises(TransactionNotFoundError):
            data.describe_transaction(table, DescribeTransactionRequest(id=[*ID, name]))


def test_a_committed_transaction_does_not_change(table: TableHandle) -> None:
    def alter(action: dict[str, Any]) -> Any:
        request = AlterTransactionRequest.from_dict({"id": [*ID, "1"], "actions": [action]})
        assert request is not None
        return data.alter_transaction(table, request)

    assert alter({"setStatusAction": {"status": "Succeeded"}}).status == "SUCCEEDED"
    with pytest.raises(InvalidInputError):
        alter({"setStatusAction": {"status": "Canceled"}})
    with pytest.raises(InvalidInputError):
        alter({"setStatusAction": {"status": "bogus"}})
    with pytest.raises(UnsupportedOperationError):
        alter({"setPropertyAction": {"key": "a", "value": "b"}})
