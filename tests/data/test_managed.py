"""Tables whose versions a namespace manages, and bodies that point outside the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lance import blob_array, blob_field
from lance.namespace import DirectoryNamespace
from lance_namespace import (
    CountTableRowsRequest,
    CreateTableRequest,
    DeleteFromTableRequest,
    DescribeTableRequest,
    InsertIntoTableRequest,
    RestoreTableRequest,
)

from headwater.errors import InvalidInputError, TableNotFoundError
from headwater.names import ObjectId
from headwater.namespace import data
from headwater.namespace.directory import DirectoryNamespace as OurNamespace
from headwater.tables.handle import TableHandle
from tests.data.samples import ID, ROWS, body, rows


@pytest.fixture
def managed(tmp_path: Path) -> TableHandle:
    """A table whose commits go through pylance's own namespace."""
    options: dict[str, Any] = {"table_version_tracking_enabled": "true", "manifest_enabled": "true"}
    client = DirectoryNamespace(root=str(tmp_path / "lake"), **options)
    client.create_table(CreateTableRequest(id=ID), body(rows()))
    found = client.describe_table(DescribeTableRequest(id=ID))
    assert found.managed_versioning
    assert found.location
    return TableHandle(ObjectId(("t",)), found.location, {}, client)


def test_a_managed_table_is_written_through_its_namespace(managed: TableHandle) -> None:
    assert data.insert_into_table(managed, InsertIntoTableRequest(id=ID), body(rows(ROWS, 5))).version == 2
    assert data.delete_from_table(managed, DeleteFromTableRequest(id=ID, predicate="id < 10")).version == 3
    assert data.count_table_rows(managed, CountTableRowsRequest(id=ID)).count == ROWS - 5
    assert data.count_table_rows(managed, CountTableRowsRequest(id=ID, version=1)).count == ROWS
    data.restore_table(managed, RestoreTableRequest(id=ID, version=1))
    assert data.count_table_rows(managed, CountTableRowsRequest(id=ID)).count == ROWS


def test_a_table_that_its_namespace_does_not_know_is_not_found(managed: TableHandle) -> None:
    stranger = TableHandle(ObjectId(("nope",)), managed.uri, {}, managed.client)
    with pytest.raises(TableNotFoundError):
        data.count_table_rows(stranger, CountTableRowsRequest(id=ID))


def test_a_body_cannot_make_a_table_point_to_a_file_outside_it(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("not yours")
    schema = pa.schema([pa.field("id", pa.int64()), blob_field("b")])
    sent = body(pa.table([pa.array([1]), blob_array([secret.as_uri()])], schema=schema))
    with pytest.raises(InvalidInputError):
        OurNamespace(root=str(tmp_path), manifest_enabled="false").create_table(CreateTableRequest(id=ID), sent)
    assert not (tmp_path / "t.lance" / "_versions").exists()
