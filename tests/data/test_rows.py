"""Rows in: insert, merge, update, delete, create."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.namespace import DirectoryNamespace
from lance_namespace import (
    CreateTableRequest,
    DeleteFromTableRequest,
    InsertIntoTableRequest,
    MergeInsertIntoTableRequest,
    UpdateTableRequest,
)

from headwater.errors import (
    InvalidInputError,
    TableAlreadyExistsError,
    TableBranchNotFoundError,
    TableColumnNotFoundError,
    TableSchemaValidationError,
    UnsupportedOperationError,
)
from headwater.namespace import data
from headwater.namespace.data.write import parse_timeout
from headwater.namespace.directory import DirectoryNamespace as OurNamespace
from headwater.tables.handle import TableHandle
from tests.data.samples import ID, ROWS, body, rows, snapshot


def insert(**fields: Any) -> InsertIntoTableRequest:
    return InsertIntoTableRequest(id=ID, **fields)


def merge(**fields: Any) -> MergeInsertIntoTableRequest:
    return MergeInsertIntoTableRequest(id=ID, **{"on": ["id"], **fields})


def test_inserted_rows_are_found_and_the_answer_tells_version_rows_and_transaction(
    table: TableHandle, twin: DirectoryNamespace
) -> None:
    ours = data.insert_into_table(table, insert(), body(rows(ROWS, 5)))
    theirs = twin.insert_into_table(insert(), body(rows(ROWS, 5)))
    assert (ours.version, ours.num_inserted_rows) == (theirs.version, theirs.num_inserted_rows) == (2, 5)
    dataset = lance.dataset(table.uri)
    assert dataset.count_rows() == ROWS + 5
    assert (written := dataset.read_transaction(2)) is not None
    assert ours.transaction_id == written.uuid


@pytest.mark.parametrize("mode", ["Overwrite", "overwrite", "OVERWRITE"])
def test_overwriting_keeps_only_the_new_rows(table: TableHandle, mode: str) -> None:
    answer = data.insert_into_table(table, insert(mode=mode), body(pa.table({"other": [1, 2]})))
    assert answer.num_inserted_rows == 2
    assert lance.dataset(table.uri).to_table().to_pydict() == {"other": [1, 2]}


def test_a_body_without_rows_inserts_none(table: TableHandle) -> None:
    assert data.insert_into_table(table, insert(), body(rows(count=0))).num_inserted_rows == 0
    assert lance.dataset(table.uri).count_rows() == ROWS


def test_a_stream_of_batches_is_inserted_as_one_commit(table: TableHandle) -> None:
    batches = rows(ROWS, 100).to_batches(max_chunksize=10)
    reader = pa.RecordBatchReader.from_batches(rows().schema, iter(batches))
    answer = data.insert_reader(table, insert(), reader)
    assert (answer.num_inserted_rows, answer.version) == (100, 2)


@pytest.mark.parametrize(
    "wrong", [pa.table({"zz": [1]}), pa.table({"id": ["text"]})], ids=["unknown column", "other type"]
)
def test_rows_of_another_schema_are_refused_with_code_20(table: TableHandle, wrong: pa.Table) -> None:
    before = snapshot(table.uri)
    with pytest.raises(TableSchemaValidationError):
        data.insert_into_table(table, insert(), body(wrong))
    assert snapshot(table.uri) == before


def test_a_type_that_lance_cannot_store_is_refused_by_name(table: TableHandle) -> None:
    odd = pa.table({"x": pa.array([1, 1, 2]).dictionary_encode()}).cast(pa.schema([("x", pa.int64())]))
    with pytest.raises(TableSchemaValidationError):
        data.insert_into_table(table, insert(), body(odd))
    gaps = pa.table({"x": pa.array([(1, 2, 3)], pa.month_day_nano_interval())})
    with pytest.raises(TableSchemaValidationError, match="'x'"):
        data.insert_into_table(table, insert(mode="overwrite"), body(gaps))
    assert snapshot(table.uri)[0] == 1


def test_an_unknown_mode_is_refused(table: TableHandle) -> None:
    with pytest.raises(InvalidInputError, match="Append or Overwrite"):
        data.insert_into_table(table, insert(mode="replace"), body(rows(count=1)))


def test_inserting_into_a_branch_that_is_not_there_does_not_reach_the_main_one(table: TableHandle) -> None:
    with pytest.raises(TableBranchNotFoundError):
        data.insert_into_table(table, insert(branch="nowhere"), body(rows(count=1)))
    assert snapshot(table.uri)[:2] == (1, ROWS)


def test_merging_updates_what_matches_and_inserts_the_rest_like_pylance(
    table: TableHandle, twin: DirectoryNamespace
) -> None:
    request = merge(when_matched_update_all=True, when_not_matched_insert_all=True)
    sent = body(rows(ROWS - 5, 10))
    ours = data.merge_insert_into_table(table, request, sent)
    theirs = twin.merge_insert_into_table(request, sent)
    assert (ours.num_updated_rows, ours.num_inserted_rows, ours.num_deleted_rows, ours.version) == (5, 5, 0, 2)
    assert ours.num_updated_rows == theirs.num_updated_rows
    assert ours.num_inserted_rows == theirs.num_inserted_rows
    assert ours.transaction_id


def test_merging_with_a_filter_updates_only_where_it_holds(table: TableHandle) -> None:
    changed = rows(0, 10).set_column(1, "s", pa.array(["new"] * 10))
    answer = data.merge_insert_into_table(table, merge(when_matched_update_all_filt="target.id < 3"), body(changed))
    assert answer.num_updated_rows == 3
    assert lance.dataset(table.uri).count_rows("s = 'new'") == 3


def test_merging_deletes_what_the_source_lacks(table: TableHandle) -> None:
    request = merge(when_not_matched_insert_all=True, when_not_matched_by_source_delete=True)
    assert data.merge_insert_into_table(table, request, body(rows(0, 10))).num_deleted_rows == ROWS - 10
    filtered = merge(when_not_matched_insert_all=True, when_not_matched_by_source_delete_filt="id >= 8")
    assert data.merge_insert_into_table(table, filtered, body(rows(0, 1))).num_deleted_rows == 2


def test_on_is_taken_as_a_string_and_as_several_columns(table: TableHandle) -> None:
    one = merge(when_matched_update_all=True).model_copy(update={"on": "id"})
    assert data.merge_insert_into_table(table, one, body(rows(0, 2))).num_updated_rows == 2
    two = merge(on=["id", "s"], when_matched_update_all=True)
    assert data.merge_insert_into_table(table, two, body(rows(0, 2))).num_updated_rows == 2


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"on": ["nope"], "when_matched_update_all": True}, TableColumnNotFoundError),
        ({}, InvalidInputError),
        ({"on": None, "when_matched_update_all": True}, InvalidInputError),
        ({"on": ["id", "id"], "when_matched_update_all": True}, InvalidInputError),
        ({"on": ["id..x"], "when_matched_update_all": True}, InvalidInputError),
        ({"when_matched_update_all_filt": "target.nope = 1"}, TableColumnNotFoundError),
        ({"when_matched_update_all_filt": "((("}, InvalidInputError),
        ({"when_matched_update_all_filt": " "}, InvalidInputError),
        ({"when_not_matched_by_source_delete_filt": "id =="}, InvalidInputError),
        ({"when_matched_update_all": True, "timeout": "soon"}, InvalidInputError),
        ({"when_matched_update_all": True, "timeout": "-3s"}, InvalidInputError),
        ({"when_matched_update_all": True, "branch": "nope"}, TableBranchNotFoundError),
        ({"when_matched_update_all": True, "branch": "../../t"}, InvalidInputError),
    ],
)
def test_a_merge_that_cannot_be_done_is_refused_and_changes_nothing(
    table: TableHandle, fields: dict[str, Any], error: type[Exception]
) -> None:
    before = snapshot(table.uri)
    with pytest.raises(error):
        data.merge_insert_into_table(table, merge(**fields), body(rows(0, 3)))
    assert snapshot(table.uri) == before


def test_two_source_rows_for_one_row_are_refused(table: TableHandle) -> None:
    twice = body(pa.concat_tables([rows(3, 1), rows(3, 1)]))
    with pytest.raises(InvalidInputError, match="Ambiguous"):
        data.merge_insert_into_table(table, merge(when_matched_update_all=True), twice)


def test_timeouts_are_durations() -> None:
    spelled = {"500ms": 0.5, "30s": 30, "5m": 300, "1h": 3600, "7": 7}
    for text, seconds in spelled.items():
        found = parse_timeout(text)
        assert found is not None
        assert found.total_seconds() == seconds


def test_updating_sets_columns_where_the_predicate_holds(table: TableHandle, twin: DirectoryNamespace) -> None:
    request = UpdateTableRequest(id=ID, predicate="id < 4", updates=[["s", "'new'"], ["id", "id + 1000"]])
    ours, theirs = data.update_table(table, request), twin.update_table(request)
    assert (ours.updated_rows, ours.version) == (theirs.updated_rows, theirs.version) == (4, 2)
    assert lance.dataset(table.uri).count_rows("s = 'new' AND id >= 1000") == 4
    assert ours.transaction_id


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"updates": [["nope", "1"]]}, TableColumnNotFoundError),
        ({"updates": [["s", "nope"]]}, TableColumnNotFoundError),
        ({"updates": [["s", "foo("]]}, InvalidInputError),
        ({"updates": [["s", ""]]}, InvalidInputError),
        ({"updates": [["id", "'text'"]]}, InvalidInputError),
        ({"updates": []}, InvalidInputError),
        ({"updates": [["id", "1"], ["id", "2"]]}, InvalidInputError),
        ({"updates": [["id", "1"]], "predicate": "nope = 1"}, TableColumnNotFoundError),
        ({"updates": [["id", "1"]], "predicate": "id"}, InvalidInputError),
        ({"updates": [["id", "1"]], "predicate": "nofunction(id)"}, InvalidInputError),
        ({"updates": [["id", "1"]], "predicate": "(" * 5000 + ")" * 5000}, InvalidInputError),
        ({"updates": [["st.a", "1"]]}, UnsupportedOperationError),
        ({"updates": [["id", "1"]], "branch": "nope"}, TableBranchNotFoundError),
    ],
)
def test_an_update_that_cannot_be_done_is_refused_and_changes_nothing(
    table: TableHandle, fields: dict[str, Any], error: type[Exception]
) -> None:
    before = snapshot(table.uri)
    with pytest.raises(error) as caught:
        data.update_table(table, UpdateTableRequest(id=ID, **fields))
    assert snapshot(table.uri) == before
    assert str(Path(table.uri).parent).lstrip("/") not in str(caught.value)
    assert ".rs:" not in str(caught.value)


def test_deleting_removes_where_the_predicate_holds(table: TableHandle, twin: DirectoryNamespace) -> None:
    request = DeleteFromTableRequest(id=ID, predicate="id >= 100")
    ours, theirs = data.delete_from_table(table, request), twin.delete_from_table(request)
    assert ours.version == theirs.version == 2
    assert lance.dataset(table.uri).count_rows() == 100


@pytest.mark.parametrize(
    ("predicate", "error"),
    [("", InvalidInputError), ("id ==", InvalidInputError), ("nope = 1", TableColumnNotFoundError)],
)
def test_a_delete_that_cannot_be_done_is_refused(table: TableHandle, predicate: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        data.delete_from_table(table, DeleteFromTableRequest(id=ID, predicate=predicate))
    assert snapshot(table.uri)[:2] == (1, ROWS)


def test_a_new_table_is_written_also_from_a_stream_without_batches(tmp_path: Path) -> None:
    catalog = OurNamespace(root=str(tmp_path), manifest_enabled="false")
    empty = catalog.create_table(CreateTableRequest(id=["new"]), body(rows(count=0)))
    uri = str(tmp_path / "new.lance")
    assert (empty.version, lance.dataset(uri).count_rows()) == (1, 0)
    assert lance.dataset(uri).schema.names == rows().schema.names
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_table(CreateTableRequest(id=["new"]), body(rows()))
    again = catalog.create_table(CreateTableRequest(id=["new"], mode="overwrite"), body(rows()))
    assert (again.version, lance.dataset(uri).count_rows()) == (2, ROWS)
