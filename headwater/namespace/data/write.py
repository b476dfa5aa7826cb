"""Rows in: create, insert, merge, update, delete. Each is one commit of the table; a refused call changes nothing."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING

import lance_namespace as api
import pyarrow as pa

from headwater.decoding.arrow import Body, read_stream
from headwater.decoding.bounds import check_schema
from headwater.errors import InvalidInputError
from headwater.imports import lance
from headwater.namespace.requests import DELETED_ROWS
from headwater.tables.columns.fields import format_path, parse_path, require_field
from headwater.tables.commit.history import transaction_id
from headwater.tables.expressions import check_sql
from headwater.tables.handle import TableHandle
from headwater.tables.translate import translating
from headwater.tables.write.arrow import Counted
from headwater.tables.write.input_rows import fit, fit_new
from headwater.types import written_schema

if TYPE_CHECKING:
    from lance.dataset import MergeInsertBuilder

MAX_TIMEOUT = timedelta(hours=24)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?")
_UNITS = {"ms": 0.001, "s": 1.0, None: 1.0, "m": 60.0, "h": 3600.0}


def insert_into_table(
    table: TableHandle, request: api.InsertIntoTableRequest, body: Body
) -> api.InsertIntoTableResponse:
    """InsertIntoTable: errors 13 InvalidInput, 14 conflict, 19 InvalidTableState, 20 schema, 22 branch."""
    insert_mode(request)
    return insert_reader(table, request, read_stream(body))


def insert_reader(
    table: TableHandle, request: api.InsertIntoTableRequest, reader: pa.RecordBatchReader
) -> api.InsertIntoTableResponse:
    """InsertIntoTable of batches as they come: the commit is made after the last one."""
    mode = insert_mode(request)
    check_schema(reader.schema)
    dataset = table.open(branch=request.branch)
    fitted = fit(reader, written_schema(dataset.schema)) if mode == "append" else fit_new(reader)
    counted = Counted(fitted)
    with counted.raising(), translating(table, "insert into"):
        dataset.insert(counted.reader, mode=mode)
        return api.InsertIntoTableResponse(
            transaction_id=transaction_id(dataset), num_inserted_rows=counted.rows, version=dataset.version
        )


def insert_mode(request: api.InsertIntoTableRequest) -> str:
    """Append (the default) or Overwrite, in any case and in either style."""
    mode = (request.mode or "append").lower()
    if mode not in ("append", "overwrite"):
        raise InvalidInputError(f"mode must be Append or Overwrite, not {str(request.mode)[:80]!r}.")
    return mode


def merge_insert_into_table(
    table: TableHandle, request: api.MergeInsertIntoTableRequest, body: Body
) -> api.MergeInsertIntoTableResponse:
    """MergeInsertIntoTable: errors 12 TableColumnNotFound, 13 InvalidInput, 14 ConcurrentModification, 19, 22."""
    return merge_insert_reader(table, request, read_stream(body))


def merge_insert_reader(
    table: TableHandle, request: api.MergeInsertIntoTableRequest, reader: pa.RecordBatchReader
) -> api.MergeInsertIntoTableResponse:
    """MergeInsertIntoTable of batches as they come. Two source rows for one table row are refused (13)."""
    timeout = parse_timeout(request.timeout)
    check_schema(reader.schema)
    dataset = table.open(branch=request.branch)
    on = [_merge_key(dataset.schema, reader.schema, path) for path in merge_paths(request)]
    counted = Counted(fit(reader, written_schema(dataset.schema)))
    with counted.raising(), translating(table, "merge into"):
        builder = _merge_builder(dataset, request, on)
        if timeout is not None:
            builder = builder.retry_timeout(timeout)
        done = builder.execute(counted.reader)
        return api.MergeInsertIntoTableResponse(
            transaction_id=transaction_id(dataset),
            num_updated_rows=done["num_updated_rows"],
            num_inserted_rows=done["num_inserted_rows"],
            num_deleted_rows=done["num_deleted_rows"],
            version=dataset.version,
        )


def merge_paths(request: api.MergeInsertIntoTableRequest) -> list[str]:
    """`on` is a list in the released model and a string in the OpenAPI document: both are taken."""
    on: object = request.on
    if isinstance(on, str):
        return [on]
    if on is None:
        return []
    if not isinstance(on, (list, tuple)) or not on or len(set(on)) < len(on):
        raise InvalidInputError("on must name at least one column, and none twice.")
    return [str(path) for path in on]


def _merge_key(target: pa.Schema, source: pa.Schema, path: str) -> str:
    require_field(source, path)
    return require_field(target, path)[0]


def _merge_builder(
    dataset: lance.LanceDataset, request: api.MergeInsertIntoTableRequest, on: list[str]
) -> MergeInsertBuilder:
    builder = dataset.merge_insert(on)
    update_if, delete_if = request.when_matched_update_all_filt, request.when_not_matched_by_source_delete_filt
    if update_if is not None or request.when_matched_update_all:
        builder = builder.when_matched_update_all(check_sql("when_matched_update_all_filt", update_if))
    if request.when_not_matched_insert_all:
        builder = builder.when_not_matched_insert_all()
    if delete_if is not None or request.when_not_matched_by_source_delete:
        builder = builder.when_not_matched_by_source_delete(
            check_sql("when_not_matched_by_source_delete_filt", delete_if)
        )
    return builder if request.use_index is None else builder.use_index(request.use_index)


def parse_timeout(text: str | None) -> timedelta | None:
    """Return a duration such as "500ms", "30s", "5m" or "1h"; a bare number is seconds."""
    if text is None:
        return None
    match = _DURATION.fullmatch(text.strip().lower()) if len(text) <= 32 else None
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not 0 < seconds <= MAX_TIMEOUT.total_seconds():
        raise InvalidInputError(f'timeout must be a duration such as "30s" or "5m", at most 24h, not {text[:40]!r}.')
    return timedelta(seconds=seconds)


def update_table(table: TableHandle, request: api.UpdateTableRequest) -> api.UpdateTableResponse:
    """UpdateTable: errors 12 TableColumnNotFound, 13 InvalidInput, 14 ConcurrentModification, 19, 22."""
    where = check_sql("predicate", request.predicate)
    pairs = [_update_pair(pair) for pair in request.updates or []]
    if not pairs or len({path for path, _ in pairs}) < len(pairs):
        raise InvalidInputError("updates must set at least one column, and none twice.")
    dataset = table.open(branch=request.branch)
    updates = {require_field(dataset.schema, path)[0]: expression for path, expression in pairs}
    with translating(table, "update"):
        done = dataset.update(updates, where=where)
        return api.UpdateTableResponse(
            transaction_id=transaction_id(dataset), updated_rows=done["num_rows_updated"], version=dataset.version
        )


def _update_pair(pair: list[str]) -> tuple[str, str]:
    if len(pair) != 2:
        raise InvalidInputError("Each of updates is a pair of a column and an expression.")
    return format_path(parse_path(pair[0])), check_sql("updates", pair[1]) or ""


def delete_from_table(table: TableHandle, request: api.DeleteFromTableRequest) -> api.DeleteFromTableResponse:
    """DeleteFromTable: errors 12, 13, 14, 19, 22. A predicate is required: `true` deletes every row."""
    predicate = check_sql("predicate", request.predicate)
    if predicate is None:
        raise InvalidInputError('predicate is missing: to delete every row, say "true".')
    dataset = table.open(branch=request.branch)
    with translating(table, "delete from"):
        done = dataset.delete(predicate)
        return api.DeleteFromTableResponse(
            transaction_id=transaction_id(dataset),
            version=dataset.version,
            context={DELETED_ROWS: str(done["num_deleted_rows"])},
        )
