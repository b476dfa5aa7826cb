"""Indices: create, list, describe, drop."""

from __future__ import annotations

from typing import Any

import lance
import pytest
from lance.namespace import DirectoryNamespace
from lance_namespace import (
    CreateTableIndexRequest,
    DescribeTableIndexStatsRequest,
    DropTableIndexRequest,
    InsertIntoTableRequest,
    ListTableIndicesRequest,
)

from headwater.errors import (
    InvalidInputError,
    TableBranchNotFoundError,
    TableColumnNotFoundError,
    TableIndexAlreadyExistsError,
    TableIndexNotFoundError,
    TableVersionNotFoundError,
)
from headwater.namespace import data
from headwater.tables.handle import TableHandle
from tests.data.samples import ID, ROWS, body, rows, snapshot


def index(column: str, kind: str, **fields: Any) -> CreateTableIndexRequest:
    return CreateTableIndexRequest(id=ID, column=column, index_type=kind, **fields)


def listed(table: TableHandle, **fields: Any) -> list[str]:
    return [one.index_name for one in data.list_table_indices(table, ListTableIndicesRequest(id=ID, **fields)).indexes]


@pytest.mark.parametrize(
    "request_",
    [
        index("id", "BTREE"),
        index("id", "btree", name="mine"),
        index("id", "BITMAP"),
        index("tags", "LABEL_LIST"),
        index("tags", "LabelList"),
        index("s", "FTS", with_position=True, base_tokenizer="simple", language="English", lower_case=True, stem=False),
        index("s", "INVERTED", max_token_length=30, remove_stop_words=False, ascii_folding=True),
        index("vector", "IVF_FLAT", num_partitions=2, distance_type="cosine"),
        index("vector", "IVF_PQ", num_partitions=1),
        index("vector", "IVF_PQ", num_partitions=1, num_sub_vectors=2, num_bits=8, sample_rate=16, max_iterations=3),
        index("vector", "IVF_SQ", num_partitions=1),
        index("vector", "IVF_HNSW_SQ", num_partitions=1, m=8, ef_construction=40),
        index("st.a", "BTREE"),
    ],
    ids=lambda one: f"{one.index_type}-{one.column}-{one.name}",
)
def test_an_index_is_created_and_listed(table: TableHandle, request_: CreateTableIndexRequest) -> None:
    answer = data.create_table_index(table, request_)
    found = data.list_table_indices(table, ListTableIndicesRequest(id=ID)).indexes
    assert [(one.columns, one.status, one.num_indexed_rows) for one in found] == [
        ([request_.column], "SUCCEEDED", ROWS)
    ]
    if request_.name:
        assert found[0].index_name == request_.name
    assert (written := lance.dataset(table.uri).read_transaction(2)) is not None
    assert answer.transaction_id == written.uuid


def test_a_scalar_index_may_be_asked_for_by_its_own_operation(table: TableHandle) -> None:
    assert data.create_table_scalar_index(table, index("id", "BITMAP")).transaction_id
    with pytest.raises(InvalidInputError):
        data.create_table_scalar_index(table, index("vector", "IVF_FLAT"))


def test_the_list_says_what_pylance_says_also_of_rows_not_yet_indexed(
    table: TableHandle, twin: DirectoryNamespace
) -> None:
    for request in (index("id", "BTREE"), index("vector", "IVF_FLAT", num_partitions=1, distance_type="dot")):
        data.create_table_index(table, request)
        twin.create_table_index(request)
    more = InsertIntoTableRequest(id=ID), body(rows(ROWS, 7))
    data.insert_into_table(table, *more)
    twin.insert_into_table(*more)
    ours = data.list_table_indices(table, ListTableIndicesRequest(id=ID)).indexes
    theirs = twin.list_table_indices(ListTableIndicesRequest(id=ID)).indexes
    skipped = {"index_uuid", "created_at", "index_details", "size_bytes"}
    assert [one.model_dump(exclude=skipped) for one in ours] == [one.model_dump(exclude=skipped) for one in theirs]
    assert all(one.index_uuid and one.created_at and one.size_bytes and one.index_details for one in ours)
    assert [one.num_unindexed_rows for one in ours] == [7, 7]


def test_statistics_are_those_pylance_gives_and_the_distance_too(table: TableHandle, twin: DirectoryNamespace) -> None:
    for request in (index("id", "BTREE"), index("vector", "IVF_FLAT", num_partitions=1, distance_type="cosine")):
        data.create_table_index(table, request)
        twin.create_table_index(request)
    for name, distance in (("id_idx", None), ("vector_idx", "cosine")):
        asked = DescribeTableIndexStatsRequest(id=ID, index_name=name)
        ours, theirs = data.describe_table_index_stats(table, asked), twin.describe_table_index_stats(asked)
        assert ours.model_dump(exclude={"distance_type"}) == theirs.model_dump(exclude={"distance_type"})
        assert ours.distance_type == distance


def test_indices_are_listed_by_page_in_order_of_their_names(table: TableHandle) -> None:
    for name in ("b", "a", "c"):
        data.create_table_index(table, index("id", "BTREE", name=name))
    first = data.list_table_indices(table, ListTableIndicesRequest(id=ID, limit=2))
    assert [one.index_name for one in first.indexes] == ["a", "b"]
    assert first.page_token
    rest = data.list_table_indices(table, ListTableIndicesRequest(id=ID, limit=2, page_token=first.page_token))
    assert [one.index_name for one in rest.indexes] == ["c"]
    assert rest.page_token is None


def test_indices_are_listed_at_a_version(table: TableHandle) -> None:
    data.create_table_index(table, index("id", "BTREE"))
    assert listed(table, version=1) == []
    assert listed(table) == ["id_idx"]
    with pytest.raises(TableVersionNotFoundError):
        listed(table, version=9)


def test_a_dropped_index_is_gone(table: TableHandle) -> None:
    data.create_table_index(table, index("id", "BTREE"))
    assert data.drop_table_index(table, DropTableIndexRequest(id=ID, index_name="id_idx")).transaction_id
    assert listed(table) == []
    for name, error in (("id_idx", TableIndexNotFoundError), (None, InvalidInputError)):
        with pytest.raises(error):
            data.drop_table_index(table, DropTableIndexRequest(id=ID, index_name=name))
        with pytest.raises(error):
            data.describe_table_index_stats(table, DescribeTableIndexStatsRequest(id=ID, index_name=name))


def test_a_second_index_of_the_same_name_is_refused(table: TableHandle) -> None:
    data.create_table_index(table, index("id", "BTREE"))
    with pytest.raises(TableIndexAlreadyExistsError):
        data.create_table_index(table, index("id", "BTREE"))
    with pytest.raises(TableIndexAlreadyExistsError):
        data.create_table_index(table, index("s", "BTREE", name="id_idx"))


@pytest.mark.parametrize(
    ("column", "kind", "fields", "error"),
    [
        ("nope", "BTREE", {}, TableColumnNotFoundError),
        ("st.nope", "BTREE", {}, TableColumnNotFoundError),
        ("id", "WHAT", {}, InvalidInputError),
        ("id", "", {}, InvalidInputError),
        ("vector", "BTREE", {}, InvalidInputError),
        ("id", "LABEL_LIST", {}, InvalidInputError),
        ("id", "FTS", {}, InvalidInputError),
        ("s", "IVF_PQ", {}, InvalidInputError),
        ("vector", "IVF_PQ", {"num_sub_vectors": 3}, InvalidInputError),
        ("vector", "IVF_PQ", {"num_partitions": 1, "num_bits": 3}, InvalidInputError),
        ("vector", "IVF_FLAT", {"distance_type": "bogus"}, InvalidInputError),
        ("vector", "IVF_FLAT", {"num_partitions": 2**60}, InvalidInputError),
        ("s", "FTS", {"base_tokenizer": "bogus"}, InvalidInputError),
        ("s", "FTS", {"language": "Klingon"}, InvalidInputError),
        ("id", "BTREE", {"name": ""}, InvalidInputError),
        ("id", "BTREE", {"branch": "nope"}, TableBranchNotFoundError),
    ],
)
def test_an_index_that_cannot_be_made_is_refused_and_changes_nothing(
    table: TableHandle, column: str, kind: str, fields: dict[str, Any], error: type[Exception]
) -> None:
    before = snapshot(table.uri)
    with pytest.raises(error):
        data.create_table_index(table, index(column, kind, **fields))
    assert snapshot(table.uri) == before
