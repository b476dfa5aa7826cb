"""Columns and metadata: add, alter, drop, backfill (lance-rest-openapi.yaml, the column operations), and restore.

A column is added with values from a SQL expression, or as *computed*: empty, with its expression kept in the field's
metadata, to be filled by a backfill. A backfill runs to its end within the call; the job id it answers with is that of
the transaction that committed it. Columns of a pickled function in a container are not run here: Unsupported (0).
Metadata belongs to the schema or to a field. `restore_table` goes back to an older version.
"""

from __future__ import annotations

import lance_namespace as api
import pyarrow as pa
from lance_namespace_urllib3_client.models.add_columns_entry import AddColumnsEntry
from lance_namespace_urllib3_client.models.alter_columns_entry import AlterColumnsEntry
from lance_namespace_urllib3_client.models.update_field_metadata_entry import UpdateFieldMetadataEntry

from headwater.errors import ConcurrentModificationError, InvalidInputError, UnsupportedOperationError
from headwater.imports import lance
from headwater.namespace.data.describe import text_metadata, type_from_json
from headwater.table_refs import check_version
from headwater.tables.columns import alter as columns
from headwater.tables.columns.alter import Alteration, column_of
from headwater.tables.columns.fields import require_field
from headwater.tables.commit.history import transaction_id
from headwater.tables.expressions import check_sql
from headwater.tables.handle import TableHandle
from headwater.tables.translate import translating

COMPUTED = "headwater.computed"
"""The field metadata key that holds a computed column's expression."""
MAX_COLUMNS = 1000


def alter_table_add_columns(
    table: TableHandle, request: api.AlterTableAddColumnsRequest
) -> api.AlterTableAddColumnsResponse:
    """AlterTableAddColumns, all in one commit: errors 0, 12, 13 InvalidInput, 14, 19, 20 schema, 22 branch."""
    entries = list(request.new_columns or [])
    _check_count("new_columns", len(entries))
    kinds = {_check_entry(entry) for entry in entries}
    if len(kinds) > 1:
        raise InvalidInputError("new_columns mixes expression and computed columns: add them in two requests.")
    dataset = table.open(branch=request.branch)
    columns.check_new_names(dataset.schema, [entry.name for entry in entries])
    with translating(table, "add columns to"):
        if kinds == {"expression"}:
            columns.add(dataset, {entry.name: check_sql("expression", entry.expression) or "" for entry in entries})
        else:
            columns.add(dataset, _computed_fields(dataset, entries))
        return api.AlterTableAddColumnsResponse(version=dataset.version)


def _check_count(field: str, count: int) -> None:
    if not 1 <= count <= MAX_COLUMNS:
        raise InvalidInputError(f"{field} must hold between 1 and {MAX_COLUMNS} entries.")


def _check_entry(entry: AddColumnsEntry) -> str:
    """Check an entry of AddColumns, which is one of three kinds."""
    if entry.virtual_column is not None:
        raise UnsupportedOperationError(
            f"The column {entry.name[:80]!r} is virtual, and functions in containers are not run by this catalog: "
            "give an expression, or declare it as computed."
        )
    given = [kind for kind in ("expression", "computed") if getattr(entry, kind) is not None]
    if len(given) != 1:
        raise InvalidInputError(f"The new column {entry.name[:80]!r} needs one of expression and computed.")
    check_sql(given[0], getattr(entry, given[0]))
    return given[0]


def _computed_fields(dataset: lance.LanceDataset, entries: list[AddColumnsEntry]) -> pa.Schema:
    """The types of the columns are those of their expressions."""
    expressions = {entry.name: entry.computed or "" for entry in entries}
    checked = {name: check_sql("computed", expression) or "" for name, expression in expressions.items()}
    types = dataset.scanner(columns=checked, limit=1).projected_schema
    return pa.schema(
        pa.field(name, types.field(name).type, nullable=True, metadata={COMPUTED: expression})
        for name, expression in expressions.items()
    )


def alter_table_alter_columns(
    table: TableHandle, request: api.AlterTableAlterColumnsRequest
) -> api.AlterTableAlterColumnsResponse:
    """AlterTableAlterColumns, all at once: errors 0, 12 column, 13 InvalidInput, 14, 19, 20 schema, 22 branch."""
    entries = list(request.alterations or [])
    _check_count("alterations", len(entries))
    dataset = table.open(branch=request.branch)
    changes = [_alteration(dataset.schema, entry) for entry in entries]
    with translating(table, "alter columns of"):
        columns.alter(dataset, changes)
        return api.AlterTableAlterColumnsResponse(version=dataset.version)


def _alteration(schema: pa.Schema, entry: AlterColumnsEntry) -> Alteration:
    if entry.virtual_column is not None:
        raise UnsupportedOperationError("Virtual columns are not supported by this catalog.")
    if entry.rename is not None:
        columns.check_name(entry.rename)
    kind = type_from_json(entry.data_type) if entry.data_type is not None else None
    change = Alteration(column_of(schema, entry.path), entry.rename, entry.nullable, kind)
    if change == Alteration(change.column):
        raise InvalidInputError(
            f"The alteration of {entry.path[:80]!r} changes nothing: rename, nullable or data_type."
        )
    return change


def alter_table_drop_columns(
    table: TableHandle, request: api.AlterTableDropColumnsRequest
) -> api.AlterTableDropColumnsResponse:
    """AlterTableDropColumns, all in one commit: errors 12 column, 13 InvalidInput, 14, 19, 22 branch."""
    _check_count("columns", len(request.columns or []))
    dataset = table.open(branch=request.branch)
    gone = [column_of(dataset.schema, path) for path in request.columns]
    with translating(table, "drop columns of"):
        columns.drop(dataset, gone)
        return api.AlterTableDropColumnsResponse(transaction_id=transaction_id(dataset), version=dataset.version)


def alter_table_backfill_columns(
    table: TableHandle, request: api.AlterTableBackfillColumnsRequest
) -> api.AlterTableBackfillColumnsResponse:
    """AlterTableBackfillColumns of a computed column, done when it answers: errors 12, 13, 14, 19, 22 branch.

    Without `where`, the rows still empty are filled. The options that tune a cluster have nothing to tune here.
    """
    where = check_sql("where", request.where)
    dataset = table.open(branch=request.branch)
    column, field = require_field(dataset.schema, request.column)
    expression = (text_metadata(field.metadata) or {}).get(COMPUTED)
    if expression is None:
        raise InvalidInputError(f"The column {column!r} is not a computed one: nothing says how to fill it.")
    if request.read_version is not None and request.read_version != dataset.version:
        raise ConcurrentModificationError(
            f"Table {table.id} is at version {dataset.version}, not at {request.read_version}: look again."
        )
    with translating(table, f"backfill {column!r} of"):
        dataset.update({column: check_sql("computed", expression) or ""}, where=where or f"`{column}` IS NULL")
        return api.AlterTableBackfillColumnsResponse(job_id=transaction_id(dataset) or str(dataset.version))


MAX_KEYS = 10_000


def restore_table(table: TableHandle, request: api.RestoreTableRequest) -> api.RestoreTableResponse:
    """RestoreTable: a new version with the content of an old one. Errors 11 version, 13, 14, 19, 22 branch."""
    check_version(table.id, request.version)
    dataset = table.open(request.version, request.branch)
    with translating(table, f"restore version {request.version} of"):
        dataset.restore()
        return api.RestoreTableResponse(transaction_id=transaction_id(dataset))


def update_table_schema_metadata(
    table: TableHandle, request: api.UpdateTableSchemaMetadataRequest
) -> api.UpdateTableSchemaMetadataResponse:
    """UpdateTableSchemaMetadata: sets the keys given and keeps the others; answers with all of them."""
    dataset = table.open(branch=request.branch)
    with translating(table, "update the schema metadata of"):
        if not request.metadata:
            return api.UpdateTableSchemaMetadataResponse(metadata=dict(dataset.schema_metadata))
        _check_keys(list(request.metadata))
        after = dataset.update_schema_metadata(dict(request.metadata))
        return api.UpdateTableSchemaMetadataResponse(metadata=dict(after), transaction_id=transaction_id(dataset))


def update_field_metadata(
    table: TableHandle, request: api.UpdateFieldMetadataRequest
) -> api.UpdateFieldMetadataResponse:
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
        return api.UpdateFieldMetadataResponse(version=dataset.version, fields=after)


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
