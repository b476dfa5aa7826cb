"""Metadata of the schema and its fields, and going back to an older version."""

from __future__ import annotations

from lance_namespace import (
    RestoreTableRequest,
    RestoreTableResponse,
    UpdateFieldMetadataRequest,
    UpdateFieldMetadataResponse,
    UpdateTableSchemaMetadataRequest,
    UpdateTableSchemaMetadataResponse,
)

from headwater.errors import InvalidInputError
from headwater.imports import lance
from headwater.namespace.data.models import UpdateFieldMetadataEntry
from headwater.namespace.data.schema import text_metadata
from headwater.table_refs import check_version
from headwater.tables.columns.fields import require_field
from headwater.tables.commit.history import transaction_id
from headwater.tables.handle import TableHandle
from headwater.tables.translate import translating

MAX_KEYS = 10_000


def restore_table(table: TableHandle, request: RestoreTableRequest) -> RestoreTableResponse:
    """RestoreTable: a new version with the content of an old one. Errors 11 version, 13, 14, 19, 22 branch."""
    check_version(table.id, request.version)
    dataset = table.open(request.version, request.branch)
    with translating(table, f"restore version {request.version} of"):
        dataset.restore()
        return RestoreTableResponse(transaction_id=transaction_id(dataset))


def update_table_schema_metadata(
    table: TableHandle, request: UpdateTableSchemaMetadataRequest
) -> UpdateTableSchemaMetadataResponse:
    """UpdateTableSchemaMetadata: sets the keys given and keeps the others; answers with all of them."""
    dataset = table.open(branch=request.branch)
    with translating(table, "update the schema metadata of"):
        if not request.metadata:
            return UpdateTableSchemaMetadataResponse(metadata=dict(dataset.schema_metadata))
        _check_keys(list(request.metadata))
        after = dataset.update_schema_metadata(dict(request.metadata))
        return UpdateTableSchemaMetadataResponse(metadata=dict(after), transaction_id=transaction_id(dataset))


def update_field_metadata(table: TableHandle, request: UpdateFieldMetadataRequest) -> UpdateFieldMetadataResponse:
    """UpdateFieldMetadata of several fields in one commit; a null value deletes its key. Errors 12, 13, 14, 19, 22."""
    if not request.updates:
        raise InvalidInputError("updates must name at least one field.")
    dataset = table.open(branch=request.branch)
    changes: dict[str, dict[str, str | None]] = {}
    for entry in request.updates:
        path, change = _field_change(dataset, entry)
        if path in changes:
            raise InvalidInputError(f"updates names the field {path[:200]!r} twice: put its changes into one entry.")
        changes[path] = change
    with translating(table, "update the field metadata of"):
        dataset.update_field_metadata(changes)
        schema = dataset.schema
        after = {path: text_metadata(require_field(schema, path)[1].metadata) or {} for path in changes}
        return UpdateFieldMetadataResponse(version=dataset.version, fields=after)


def _field_change(dataset: lance.LanceDataset, entry: UpdateFieldMetadataEntry) -> tuple[str, dict[str, str | None]]:
    """The keys to set and to delete. Replacing is deleting every key that is not given, so that one commit does all."""
    path, field = require_field(dataset.schema, entry.path)
    _check_keys(list(entry.metadata))
    change: dict[str, str | None] = dict(entry.metadata)
    if entry.replace:
        for key in text_metadata(field.metadata) or {}:
            change.setdefault(key, None)
    return path, change


def _check_keys(keys: list[str]) -> None:
    if len(keys) > MAX_KEYS or not all(keys):
        raise InvalidInputError(f"Metadata has at most {MAX_KEYS} keys, none of them empty.")
