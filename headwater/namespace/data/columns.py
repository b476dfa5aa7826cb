"""Columns: add, alter, drop, backfill (lance-rest-openapi.yaml, the column operations).

A column is added with values from a SQL expression, or as *computed*: empty, with its expression kept in the field's
metadata, to be filled by a backfill. A backfill runs to its end within the call; the job id it answers with is that of
the transaction that committed it. Columns of a pickled function in a container are not run here: Unsupported (0).
"""

from __future__ import annotations

from typing import Any

import lance
import pyarrow as pa
from lance_namespace import (
    AlterTableAddColumnsRequest,
    AlterTableAddColumnsResponse,
    AlterTableAlterColumnsRequest,
    AlterTableAlterColumnsResponse,
    AlterTableBackfillColumnsRequest,
    AlterTableBackfillColumnsResponse,
    AlterTableDropColumnsRequest,
    AlterTableDropColumnsResponse,
)

from headwater.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    TableSchemaValidationError,
    UnsupportedOperationError,
)
from headwater.namespace.data.models import AddColumnsEntry, AlterColumnsEntry
from headwater.namespace.data.schema import text_metadata, type_from_json
from headwater.tables.fields import SYSTEM_COLUMNS, require_field
from headwater.tables.handle import TableHandle
from headwater.tables.sql import check_sql
from headwater.tables.transactions import transaction_id
from headwater.tables.translate import translating

COMPUTED = "headwater.computed"
"""The field metadata key that holds a computed column's expression."""
MAX_COLUMNS = 1000
MAX_NAME_CHARS = 255


def alter_table_add_columns(table: TableHandle, request: AlterTableAddColumnsRequest) -> AlterTableAddColumnsResponse:
    """AlterTableAddColumns, all in one commit: errors 0, 12, 13 InvalidInput, 14, 19, 20 schema, 22 branch."""
    entries = list(request.new_columns or [])
    _check_count("new_columns", len(entries))
    kinds = {_check_entry(entry) for entry in entries}
    if len(kinds) > 1:
        raise InvalidInputError("new_columns mixes expression and computed columns: add them in two requests.")
    dataset = table.open(branch=request.branch)
    _check_new_names(dataset, [entry.name for entry in entries])
    with translating(table, "add columns to"):
        if kinds == {"expression"}:
            dataset.add_columns({entry.name: check_sql("expression", entry.expression) or "" for entry in entries})
        else:
            dataset.add_columns(_computed_fields(dataset, entries))
        return AlterTableAddColumnsResponse(version=dataset.version)


def _check_count(field: str, count: int) -> None:
    if not 1 <= count <= MAX_COLUMNS:
        raise InvalidInputError(f"{field} must hold between 1 and {MAX_COLUMNS} entries.")


def _check_entry(entry: AddColumnsEntry) -> str:
    """Which of the three ways of adding a column this is."""
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


def _check_new_names(dataset: lance.LanceDataset, names: list[str]) -> None:
    """A new column's name is not taken, neither by the table nor by another new column."""
    taken = {name.lower() for name in dataset.schema.names}
    for name in names:
        _check_column_name(name)
        if name.lower() in taken:
            raise TableSchemaValidationError(f"The table already has a column {name!r}: choose another name.")
        taken.add(name.lower())


def _check_column_name(name: str) -> None:
    if not 0 < len(name) <= MAX_NAME_CHARS or "." in name or "`" in name or any(ord(char) < 32 for char in name):
        raise InvalidInputError(
            f"{name[:80]!r} cannot name a column: give 1 to {MAX_NAME_CHARS} characters, no dots or backticks."
        )
    if name.lower() in SYSTEM_COLUMNS:
        raise TableSchemaValidationError(f"{name!r} is a name that Lance keeps for itself: choose another.")


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
    table: TableHandle, request: AlterTableAlterColumnsRequest
) -> AlterTableAlterColumnsResponse:
    """AlterTableAlterColumns, all in one commit: errors 0, 12 column, 13 InvalidInput, 14, 19, 20 schema, 22 branch."""
    entries = list(request.alterations or [])
    _check_count("alterations", len(entries))
    dataset = table.open(branch=request.branch)
    changes = [_alteration(dataset.schema, entry) for entry in entries]
    if len({change["path"] for change in changes}) < len(changes):
        raise InvalidInputError("alterations names a column twice: put its changes into one entry.")
    with translating(table, "alter columns of"):
        dataset.alter_columns(*changes)
        return AlterTableAlterColumnsResponse(version=dataset.version)


def _alteration(schema: pa.Schema, entry: AlterColumnsEntry) -> Any:
    if entry.virtual_column is not None:
        raise UnsupportedOperationError("Virtual columns are not supported by this catalog.")
    change: dict[str, Any] = {"path": require_field(schema, entry.path)[0]}
    if entry.rename is not None:
        _check_column_name(entry.rename)
        change["name"] = entry.rename
    if entry.nullable is not None:
        change["nullable"] = entry.nullable
    if entry.data_type is not None:
        change["data_type"] = type_from_json(entry.data_type)
    if len(change) == 1:
        raise InvalidInputError(
            f"The alteration of {entry.path[:80]!r} changes nothing: rename, nullable or data_type."
        )
    return change


def alter_table_drop_columns(
    table: TableHandle, request: AlterTableDropColumnsRequest
) -> AlterTableDropColumnsResponse:
    """AlterTableDropColumns, all in one commit: errors 12 column, 13 InvalidInput, 14, 19, 22 branch."""
    _check_count("columns", len(request.columns or []))
    dataset = table.open(branch=request.branch)
    paths = list(dict.fromkeys(require_field(dataset.schema, path)[0] for path in request.columns))
    if set(dataset.schema.names) <= set(paths):
        raise InvalidInputError("A table keeps at least one column: drop the table instead.")
    with translating(table, "drop columns of"):
        dataset.drop_columns(paths)
        return AlterTableDropColumnsResponse(transaction_id=transaction_id(dataset), version=dataset.version)


def alter_table_backfill_columns(
    table: TableHandle, request: AlterTableBackfillColumnsRequest
) -> AlterTableBackfillColumnsResponse:
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
        return AlterTableBackfillColumnsResponse(job_id=transaction_id(dataset) or str(dataset.version))
