"""ALTER TABLE: each change of Spark as one commit of Lance.

A path is the names from the top-level column down, as Spark writes them: `element` stands for the items of an array,
`key` and `value` for those of a map.
"""

from __future__ import annotations

from typing import Any

import lance
import pyarrow as pa

from headwater.errors import InvalidInputError, TableColumnNotFoundError, UnsupportedOperationError
from headwater.tables import columns
from headwater.tables.columns import COMMENT, Alteration, column_at, fields_of
from headwater.types import arrow_field, arrow_type


def alter(dataset: lance.LanceDataset, change: dict[str, Any]) -> None:
    action = change["action"]
    if action == "set_property":
        if change["key"] == "version":
            raise InvalidInputError("The property 'version' is shown by Headwater itself: choose another name.")
        dataset.update_schema_metadata({change["key"]: change["value"]})
    elif action == "remove_property":
        dataset.update_schema_metadata({change["key"]: None})
    elif action == "add_column":
        _add(dataset, change)
    elif action == "drop_column":
        _drop(dataset, change)
    elif action in ALTERATIONS:
        columns.alter(dataset, [ALTERATIONS[action](column_at(dataset.schema, change["path"]), change)])
    elif action == "column_comment":
        column = column_at(dataset.schema, change["path"])
        dataset.update_field_metadata({column.path: {COMMENT: change["comment"]}})
    else:
        raise UnsupportedOperationError(f"A table's {action.replace('_', ' ')} cannot be altered.")


ALTERATIONS = {
    "rename_column": lambda column, change: Alteration(column, name=change["name"]),
    "column_type": lambda column, change: Alteration(column, type=arrow_type(change["type"])),
    "column_nullable": lambda column, change: Alteration(column, nullable=change["nullable"]),
}


def _add(dataset: lance.LanceDataset, change: dict[str, Any]) -> None:
    *above, name = change["path"]
    if change.get("position"):
        raise UnsupportedOperationError(f"The column {name!r} is added after the others: leave FIRST and AFTER out.")
    if change.get("nullable") is False:
        raise UnsupportedOperationError(f"The column {name!r} is NULL in the rows that are there: leave NOT NULL out.")
    field = arrow_field({"name": name, "type": change["type"], "nullable": True})
    if change.get("comment"):
        field = field.with_metadata({COMMENT: change["comment"]})
    if above:
        columns.add_inside(dataset, columns.trail(dataset.schema, above), field)
    else:
        columns.add(dataset, pa.schema([field]))


def _drop(dataset: lance.LanceDataset, change: dict[str, Any]) -> None:
    try:
        column = column_at(dataset.schema, change["path"])
    except TableColumnNotFoundError:
        if change.get("if_exists"):
            return
        raise
    if len(column.trail) > 1 and len(fields_of(column.trail[-2].type)) == 1:
        raise UnsupportedOperationError(f"The column {column} is the last one of its struct: drop the struct instead.")
    columns.drop(dataset, [column])
