"""ALTER TABLE: each change of Spark as one commit of Lance.

A path is the names from the top-level column down, as Spark writes them: `element` stands for the items of an array,
`key` and `value` for those of a map.
"""

from __future__ import annotations

import lance
import pyarrow as pa

from headwater.errors import InvalidInputError, TableColumnNotFoundError, UnsupportedOperationError
from headwater.spark.protocol import (
    AddColumn,
    AnyTableChange,
    ColumnComment,
    ColumnNullable,
    ColumnType,
    DropColumn,
    RemoveProperty,
    RenameColumn,
    SetProperty,
)
from headwater.tables.columns import alter as columns
from headwater.tables.columns.alter import COMMENT, Alteration, FieldPath, column_at, fields_of
from headwater.types import arrow_field, arrow_type


def alter(dataset: lance.LanceDataset, change: AnyTableChange) -> None:
    match change:
        case SetProperty():
            _set(dataset, change)
        case RemoveProperty():
            dataset.update_schema_metadata({change.key: None})
        case AddColumn():
            _add(dataset, change)
        case DropColumn():
            _drop(dataset, change)
        case ColumnComment():
            column = column_at(dataset.schema, change.path)
            dataset.update_field_metadata({column.path: {COMMENT: change.comment}})
        case RenameColumn() | ColumnType() | ColumnNullable():
            columns.alter(dataset, [_alteration(column_at(dataset.schema, change.path), change)])


def _set(dataset: lance.LanceDataset, change: SetProperty) -> None:
    if change.key == "version":
        raise InvalidInputError("The property 'version' is shown by Headwater itself: choose another name.")
    dataset.update_schema_metadata({change.key: change.value})


def _alteration(column: FieldPath, change: RenameColumn | ColumnType | ColumnNullable) -> Alteration:
    match change:
        case RenameColumn():
            return Alteration(column, name=change.name)
        case ColumnType():
            return Alteration(column, type=arrow_type(change.type))
        case ColumnNullable():
            return Alteration(column, nullable=change.nullable)


def _add(dataset: lance.LanceDataset, change: AddColumn) -> None:
    *above, name = change.path
    if change.position:
        raise UnsupportedOperationError(f"The column {name!r} is added after the others: leave FIRST and AFTER out.")
    if not change.nullable:
        raise UnsupportedOperationError(f"The column {name!r} is NULL in the rows that are there: leave NOT NULL out.")
    field = arrow_field({"name": name, "type": change.type, "nullable": True})
    if change.comment:
        field = field.with_metadata({COMMENT: change.comment})
    if above:
        columns.add_inside(dataset, columns.trail(dataset.schema, above), field)
    else:
        columns.add(dataset, pa.schema([field]))


def _drop(dataset: lance.LanceDataset, change: DropColumn) -> None:
    try:
        column = column_at(dataset.schema, change.path)
    except TableColumnNotFoundError:
        if change.if_exists:
            return
        raise
    if len(column.trail) > 1 and len(fields_of(column.trail[-2].type)) == 1:
        raise UnsupportedOperationError(f"The column {column} is the last one of its struct: drop the struct instead.")
    columns.drop(dataset, [column])
