"""Columns: add, alter, drop, backfill."""

from __future__ import annotations

from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace import (
    AlterTableAddColumnsRequest,
    AlterTableAlterColumnsRequest,
    AlterTableBackfillColumnsRequest,
    AlterTableDropColumnsRequest,
    DescribeTransactionRequest,
    InsertIntoTableRequest,
)
from lance_namespace_urllib3_client.models.add_columns_entry import AddColumnsEntry
from lance_namespace_urllib3_client.models.add_virtual_column_entry import AddVirtualColumnEntry
from lance_namespace_urllib3_client.models.alter_columns_entry import AlterColumnsEntry

from headwater.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    TableBranchNotFoundError,
    TableColumnNotFoundError,
    TableSchemaValidationError,
    UnsupportedOperationError,
)
from headwater.namespace import data
from headwater.tables.handle import TableHandle
from tests.data.samples import ID, ROWS, body, rows, snapshot


def add(table: TableHandle, *entries: dict[str, Any], **fields: Any) -> int:
    new = [AddColumnsEntry(**entry) for entry in entries]
    return data.alter_table_add_columns(table, AlterTableAddColumnsRequest(id=ID, new_columns=new, **fields)).version


def alter(table: TableHandle, *entries: dict[str, Any]) -> int:
    changes = [AlterColumnsEntry(**entry) for entry in entries]
    return data.alter_table_alter_columns(table, AlterTableAlterColumnsRequest(id=ID, alterations=changes)).version


def drop(table: TableHandle, *columns: str) -> int:
    return data.alter_table_drop_columns(table, AlterTableDropColumnsRequest(id=ID, columns=list(columns))).version


def backfill(table: TableHandle, column: str, **fields: Any) -> str:
    request = AlterTableBackfillColumnsRequest(id=ID, column=column, **fields)
    return data.alter_table_backfill_columns(table, request).job_id


def test_columns_are_added_from_expressions_in_one_commit(table: TableHandle) -> None:
    assert add(table, {"name": "n", "expression": "id + 1"}, {"name": "u", "expression": "upper(s)"}) == 2
    found = lance.dataset(table.uri).to_table(columns=["n", "u"], limit=1).to_pylist()
    assert found == [{"n": 1, "u": "WORD0 HELLO 0"}]


def test_a_computed_column_is_empty_until_it_is_backfilled(table: TableHandle) -> None:
    add(table, {"name": "twice", "computed": "id * 2"})
    dataset = lance.dataset(table.uri)
    assert dataset.schema.field("twice").type == pa.int64()
    assert dataset.count_rows("twice IS NULL") == ROWS
    job = backfill(table, "twice", where="id < 10")
    assert lance.dataset(table.uri).count_rows("twice = id * 2") == 10
    backfill(table, "twice")
    assert lance.dataset(table.uri).count_rows("twice = id * 2") == ROWS
    status = data.describe_transaction(table, DescribeTransactionRequest(id=[*ID, job]))
    assert status.status == "SUCCEEDED"


def test_rows_that_came_after_a_backfill_are_filled_by_the_next(table: TableHandle) -> None:
    add(table, {"name": "twice", "computed": "id * 2"})
    backfill(table, "twice")
    data.insert_into_table(table, InsertIntoTableRequest(id=ID), body(rows(ROWS, 5)))
    assert lance.dataset(table.uri).count_rows("twice IS NULL") == 5
    backfill(table, "twice")
    assert lance.dataset(table.uri).count_rows("twice = id * 2") == ROWS + 5


def test_a_backfill_that_has_nothing_to_go_by_is_refused(table: TableHandle) -> None:
    with pytest.raises(InvalidInputError, match="not a computed one"):
        backfill(table, "id")
    with pytest.raises(TableColumnNotFoundError):
        backfill(table, "nope")
    add(table, {"name": "twice", "computed": "id * 2"})
    with pytest.raises(ConcurrentModificationError):
        backfill(table, "twice", read_version=1)
    with pytest.raises(TableBranchNotFoundError):
        backfill(table, "twice", branch="nope")


VIRTUAL = AddVirtualColumnEntry(
    input_columns=["id"], outputs=[], image="image", udf="cGlja2xl", udf_name="f", udf_version="1"
)


@pytest.mark.parametrize(
    ("entries", "error"),
    [
        ([], InvalidInputError),
        ([{"name": "n"}], InvalidInputError),
        ([{"name": "n", "expression": "1", "computed": "1"}], InvalidInputError),
        ([{"name": "n", "expression": "1"}, {"name": "m", "computed": "1"}], InvalidInputError),
        ([{"name": "", "expression": "1"}], InvalidInputError),
        ([{"name": "a.b", "expression": "1"}], InvalidInputError),
        ([{"name": "n", "expression": "foo("}], InvalidInputError),
        ([{"name": "n", "expression": " "}], InvalidInputError),
        ([{"name": "n", "expression": "nope + 1"}], TableColumnNotFoundError),
        ([{"name": "n", "computed": "nope + 1"}], TableColumnNotFoundError),
        ([{"name": "id", "expression": "1"}], TableSchemaValidationError),
        ([{"name": "n", "expression": "1"}, {"name": "N", "expression": "1"}], TableSchemaValidationError),
        ([{"name": "_rowid", "expression": "1"}], TableSchemaValidationError),
        ([{"name": "n", "virtual_column": VIRTUAL}], UnsupportedOperationError),
    ],
)
def test_columns_that_cannot_be_added_are_refused_and_nothing_changes(
    table: TableHandle, entries: list[dict[str, Any]], error: type[Exception]
) -> None:
    before = snapshot(table.uri)
    with pytest.raises(error):
        add(table, *entries)
    assert snapshot(table.uri) == before


def test_columns_are_renamed_retyped_and_made_nullable_in_one_commit(table: TableHandle) -> None:
    version = alter(
        table,
        {"path": "id", "data_type": {"type": "int32"}, "rename": "number"},
        {"path": "st.a", "rename": "inner"},
    )
    assert version == lance.dataset(table.uri).version == 2
    assert alter(table, {"path": "s", "nullable": False}) == 3
    dataset = lance.dataset(table.uri)
    assert dataset.schema.field("number").type == pa.int32()
    assert not dataset.schema.field("s").nullable
    assert dataset.schema.field("st").type.field(0).name == "inner"


@pytest.mark.parametrize(
    ("entries", "error"),
    [
        ([], InvalidInputError),
        ([{"path": "id"}], InvalidInputError),
        ([{"path": "nope", "rename": "x"}], TableColumnNotFoundError),
        ([{"path": "id", "rename": ""}], InvalidInputError),
        ([{"path": "id", "rename": "a.b"}], InvalidInputError),
        ([{"path": "id", "rename": "s"}], TableSchemaValidationError),
        ([{"path": "id", "rename": "x"}, {"path": "id", "nullable": True}], InvalidInputError),
        ([{"path": "s", "data_type": {"type": "int32"}}], TableSchemaValidationError),
        ([{"path": "id", "data_type": {"type": "int8"}}], TableSchemaValidationError),
        ([{"path": "id", "data_type": {"type": "bogus"}}], InvalidInputError),
        ([{"path": "id", "data_type": {}}], InvalidInputError),
    ],
)
def test_columns_that_cannot_be_altered_are_refused_and_nothing_changes(
    table: TableHandle, entries: list[dict[str, Any]], error: type[Exception]
) -> None:
    before = snapshot(table.uri)
    with pytest.raises(error):
        alter(table, *entries)
    assert snapshot(table.uri) == before


def test_a_column_with_nulls_is_not_made_non_nullable(table: TableHandle) -> None:
    add(table, {"name": "empty", "computed": "id"})
    with pytest.raises(TableSchemaValidationError):
        alter(table, {"path": "empty", "nullable": False})


def test_a_change_of_type_keeps_the_comment_and_the_partitioning_of_a_column(table: TableHandle) -> None:
    told = {"comment": "a number", "headwater.partition": '[{"transform": "identity"}]'}
    lance.dataset(table.uri).update_field_metadata({"id": dict(told)})
    assert alter(table, {"path": "id", "data_type": {"type": "int32"}, "rename": "number"}) == 4
    field = lance.dataset(table.uri).schema.field("number")
    assert (field.type, field.metadata) == (pa.int32(), {key.encode(): value.encode() for key, value in told.items()})


def test_columns_are_dropped_in_one_commit(table: TableHandle) -> None:
    assert drop(table, "s", "st.a", "s") == 2
    schema = lance.dataset(table.uri).schema
    assert schema.names == ["id", "vector", "st", "tags"]
    assert schema.field("st").type.num_fields == 1


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ([], InvalidInputError),
        (["nope"], TableColumnNotFoundError),
        (["id", "nope"], TableColumnNotFoundError),
        (["id", "s", "vector", "st", "tags"], InvalidInputError),
    ],
)
def test_columns_that_cannot_be_dropped_are_refused_and_nothing_changes(
    table: TableHandle, columns: list[str], error: type[Exception]
) -> None:
    before = snapshot(table.uri)
    with pytest.raises(error):
        drop(table, *columns)
    assert snapshot(table.uri) == before
