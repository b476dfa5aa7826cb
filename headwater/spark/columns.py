"""ALTER TABLE: each change of Spark as one commit of Lance, columns inside structs and arrays too.

A path is the names from the top-level column down, as Spark writes them: `element` stands for the items of an array,
`key` and `value` for those of a map. No row is rewritten but by a change of type, which rewrites that column alone.
Lance leaves a table unreadable when a field inside a map goes, so what it cannot do there is refused before it tries.
"""

from __future__ import annotations

from typing import Any

import lance
import pyarrow as pa

from headwater.errors import InvalidInputError, TableColumnNotFoundError, UnsupportedOperationError
from headwater.spark.protocol import (
    AddColumn,
    AnyChange,
    ColumnComment,
    ColumnNullable,
    ColumnType,
    DropColumn,
    RemoveProperty,
    RenameColumn,
    SetProperty,
)
from headwater.tables.partitions import METADATA
from headwater.types import arrow_field, arrow_type

Field = Any
ADDS_NESTED = (2, 2)


def alter(dataset: lance.LanceDataset, change: AnyChange) -> None:
    match change:
        case SetProperty():
            _set(dataset, change)
        case RemoveProperty():
            dataset.update_schema_metadata({change.key: None})
        case AddColumn():
            _add(dataset, change)
        case DropColumn():
            _drop(dataset, change)
        case RenameColumn():
            dataset.alter_columns({"path": _path(dataset, change.path), "name": change.name})
        case ColumnType():
            _refuse_in_map(dataset.schema, change.path, "have its type changed")
            _retype(dataset, change)
        case ColumnNullable():
            dataset.alter_columns({"path": _path(dataset, change.path), "nullable": change.nullable})
        case ColumnComment():
            dataset.update_field_metadata({_path(dataset, change.path): {"comment": change.comment}})


def _set(dataset: lance.LanceDataset, change: SetProperty) -> None:
    if change.key == "version":
        raise InvalidInputError("The property 'version' is shown by Headwater itself: choose another name.")
    dataset.update_schema_metadata({change.key: change.value})


def _add(dataset: lance.LanceDataset, change: AddColumn) -> None:
    """A new column, at the end of the table or of a struct: NULL in the rows that are there."""
    *above, name = change.path
    if change.position:
        raise UnsupportedOperationError(f"The column {name!r} is added after the others: leave FIRST and AFTER out.")
    if not change.nullable:
        raise UnsupportedOperationError(f"The column {name!r} is NULL in the rows that are there: leave NOT NULL out.")
    _refuse_in_map(dataset.schema, change.path, "be added")
    parents = trail(dataset.schema, above)
    siblings = fields_of(parents[-1].type) if parents else list(dataset.schema)
    if any(field.name == name for field in siblings):
        raise InvalidInputError(f"The column {'.'.join(change.path)!r} exists already.")
    field = arrow_field({"name": name, "type": change.type, "nullable": True})
    if change.comment:
        field = field.with_metadata({"comment": change.comment})
    if parents:
        _require_nesting(dataset, change.path)
    dataset.add_columns(pa.schema([within(parents, field)]))


def _retype(dataset: lance.LanceDataset, change: ColumnType) -> None:
    """The column is written anew in its type; what its field says (comment, partitioning) stays."""
    known = trail(dataset.schema, change.path)[-1].metadata or {}
    path = _path(dataset, change.path)
    dataset.alter_columns({"path": path, "data_type": arrow_type(change.type)})
    told = {key.decode(): value.decode() for key, value in known.items() if key in (METADATA.encode(), b"comment")}
    if told:
        dataset.update_field_metadata({path: told})


def _require_nesting(dataset: lance.LanceDataset, path: list[str]) -> None:
    major, minor = (int(part) for part in dataset.data_storage_version.split("."))
    if (major, minor) < ADDS_NESTED:
        raise UnsupportedOperationError(
            f"The column {'.'.join(path)!r} cannot be added: the table's files are in Lance's format {major}.{minor}, "
            "in which a struct cannot grow. Copy the table (CREATE TABLE ... AS SELECT), which writes a newer format."
        )


def _drop(dataset: lance.LanceDataset, change: DropColumn) -> None:
    try:
        found = trail(dataset.schema, change.path)
    except TableColumnNotFoundError:
        if change.if_exists:
            return
        raise
    _refuse_in_map(dataset.schema, change.path, "be dropped")
    if len(found) > 1 and len(fields_of(found[-2].type)) == 1:
        raise UnsupportedOperationError(
            f"The column {'.'.join(change.path)!r} is the last one of its struct: drop the struct instead."
        )
    dataset.drop_columns([_quoted(found)])


def trail(schema: pa.Schema, path: list[str]) -> list[Field]:
    """The fields on the way to a column, itself the last; TableColumnNotFound if there is none. Pure."""
    found: list[Field] = []
    known = {field.name: field for field in schema}
    for name in path:
        if name not in known:
            raise TableColumnNotFoundError(f"The column {'.'.join(path)!r} does not exist.")
        found.append(known[name])
        known = children(known[name].type)
    return found


def children(kind: Any) -> dict[str, Field]:
    """What is inside a type, by the names Spark has for it."""
    if pa.types.is_map(kind):
        return {"key": kind.key_field, "value": kind.item_field}
    if is_list(kind):
        return {"element": kind.value_field}
    return {field.name: field for field in fields_of(kind)}


def fields_of(kind: Any) -> list[Field]:
    return [kind.field(index) for index in range(kind.num_fields)] if pa.types.is_struct(kind) else []


def is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def within(parents: list[Field], field: Field) -> Field:
    """The field inside its parents, and nothing else in them, which is how Lance is told where it goes. Pure."""
    for parent in reversed(parents):
        kind = parent.type
        if pa.types.is_struct(kind):
            field = parent.with_type(pa.struct([field]))
        elif pa.types.is_large_list(kind):
            field = parent.with_type(pa.large_list(field))
        elif pa.types.is_fixed_size_list(kind):
            field = parent.with_type(pa.list_(field, kind.list_size))
        elif pa.types.is_list(kind):
            field = parent.with_type(pa.list_(field))
        else:
            raise InvalidInputError(f"The column {parent.name!r} is a {kind} and has no columns inside.")
    return field


def _refuse_in_map(schema: pa.Schema, path: list[str], what: str) -> None:
    if any(pa.types.is_map(field.type) for field in trail(schema, path[:-1])):
        raise UnsupportedOperationError(
            f"The column {'.'.join(path)!r} is inside a map and cannot {what} by Lance. Make a new column of the map's "
            "new type, fill it with UPDATE, and drop the old one."
        )


def _path(dataset: lance.LanceDataset, path: list[str]) -> str:
    return _quoted(trail(dataset.schema, path))


def _quoted(found: list[Field]) -> str:
    """The path as Lance writes it: by the names the fields have in the table."""
    names: list[str] = []
    for index, field in enumerate(found):
        if index and pa.types.is_map(found[index - 1].type):
            names.append("entries")
        names.append(f"`{field.name}`" if "." in field.name else field.name)
    return ".".join(names)
