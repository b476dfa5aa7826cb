"""Columns of a table: add, alter, drop. Each call is one commit, columns inside structs and arrays too.

No row is rewritten but by a change of type, which rewrites that column alone. Lance leaves a table unreadable when a
field inside a map goes, so what it cannot do there is refused before it tries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from headwater.errors import (
    InvalidInputError,
    TableColumnNotFoundError,
    TableSchemaValidationError,
    UnsupportedOperationError,
)
from headwater.imports import lance
from headwater.tables.fields import SYSTEM_COLUMNS, format_path, is_list, require_trail
from headwater.tables.partitions import METADATA
from headwater.tables.recasting import is_cast_by_lance, recast

Field = Any
ADDS_NESTED = (2, 2)
MAX_NAME_CHARS = 255
COMMENT = "comment"


@dataclass(frozen=True)
class FieldPath:
    """A column that a table has: its path as Lance writes it, and the fields on the way to it, itself the last."""

    path: str
    trail: tuple[Field, ...]

    def __str__(self) -> str:
        return repr(self.path)


@dataclass(frozen=True)
class Alteration:
    """What is to change of one column; None stays as it is."""

    column: FieldPath
    name: str | None = None
    nullable: bool | None = None
    type: Any = None


def column_of(schema: pa.Schema, path: str) -> FieldPath:
    """The column that a path names in Lance's own writing: error 12."""
    found = require_trail(schema, path)
    return FieldPath(format_path(field.name for field in found), found)


def column_at(schema: pa.Schema, names: Sequence[str]) -> FieldPath:
    """The column by the names that Spark has for what is inside arrays and maps (`children`): error 12."""
    found = trail(schema, names)
    segments: list[str] = []
    for index, field in enumerate(found):
        if index and pa.types.is_map(found[index - 1].type):
            segments.append("entries")
        segments.append(field.name)
    return FieldPath(format_path(segments), tuple(found))


def add(dataset: lance.LanceDataset, columns: Mapping[str, str] | pa.Schema) -> None:
    """New columns after the others, by SQL expressions or as fields that are NULL in the rows there. Errors 13, 20."""
    check_new_names(dataset.schema, columns.names if isinstance(columns, pa.Schema) else columns)
    dataset.add_columns(columns if isinstance(columns, pa.Schema) else dict(columns))


def add_inside(dataset: lance.LanceDataset, parents: Sequence[Field], field: Field) -> None:
    """A new field at the end of the struct that `parents` lead to: NULL in the rows that are there. Errors 0, 20."""
    shown = format_path([*(parent.name for parent in parents), field.name])
    _refuse_in_map(parents, shown, "be added")
    if any(known.name == field.name for known in fields_of(parents[-1].type)):
        raise TableSchemaValidationError(f"The column {shown!r} exists already.")
    _require_nesting(dataset, shown)
    dataset.add_columns(pa.schema([within(parents, field)]))


def check_new_names(schema: pa.Schema, names: Iterable[str]) -> None:
    """A new column's name is not taken, neither by the table nor by another new column."""
    taken = {name.lower() for name in schema.names}
    for name in names:
        check_name(name)
        if name.lower() in taken:
            raise TableSchemaValidationError(f"The table already has a column {name!r}: choose another name.")
        taken.add(name.lower())


def check_name(name: str) -> None:
    if not 0 < len(name) <= MAX_NAME_CHARS or "." in name or "`" in name or any(ord(char) < 32 for char in name):
        raise InvalidInputError(
            f"{name[:80]!r} cannot name a column: give 1 to {MAX_NAME_CHARS} characters, no dots or backticks."
        )
    if name.lower() in SYSTEM_COLUMNS:
        raise TableSchemaValidationError(f"{name!r} is a name that Lance keeps for itself: choose another.")


def alter(dataset: lance.LanceDataset, changes: Sequence[Alteration]) -> None:
    """All in one commit, and a second one if types change: Lance forgets what their fields say, which is told again.

    Types that Lance does not cast to are written before the rest, in a commit of their own.
    Errors 0 (inside a map), 13, 20.
    """
    if len({change.column.path for change in changes}) < len(changes):
        raise InvalidInputError("A column is altered twice: put its changes into one.")
    own = {change.column.path: change.type for change in changes if _is_recast(change)}
    if own:
        recast(dataset, {change.column.trail[0].name: change.type for change in changes if change.column.path in own})
        changes = [replace(change, type=None) if change.column.path in own else change for change in changes]
        changes = [change for change in changes if change != Alteration(change.column)]
        if not changes:
            return
    dataset.alter_columns(*(_alteration(change) for change in changes))
    kept = {_renamed(change): _told(change.column.trail[-1]) for change in changes if change.type is not None}
    if any(kept.values()):
        dataset.update_field_metadata({path: metadata for path, metadata in kept.items() if metadata})


def _is_recast(change: Alteration) -> bool:
    """Return True for a new type that Lance does not cast the column to."""
    is_top = len(change.column.trail) == 1
    return change.type is not None and is_top and not is_cast_by_lance(change.column.trail[0].type, change.type)


def drop(dataset: lance.LanceDataset, columns: Sequence[FieldPath]) -> None:
    """All in one commit: errors 0 (inside a map), 13 (the last of the table). A struct goes with its last field."""
    paths = list(dict.fromkeys(column.path for column in columns))
    if set(dataset.schema.names) <= set(paths):
        raise InvalidInputError("A table keeps at least one column: drop the table instead.")
    for column in columns:
        _refuse_in_map(column.trail[:-1], column.path, "be dropped")
    dataset.drop_columns(paths)


def _alteration(change: Alteration) -> Any:
    made: dict[str, Any] = {"path": change.column.path}
    if change.name is not None:
        if len(change.column.trail) == 1:
            check_name(change.name)
        made["name"] = change.name
    if change.nullable is not None:
        made["nullable"] = change.nullable
    if change.type is not None:
        _refuse_in_map(change.column.trail[:-1], change.column.path, "have its type changed")
        made["data_type"] = change.type
    return made


def _renamed(change: Alteration) -> str:
    """The path of a column after its alteration."""
    if change.name is None:
        return change.column.path
    return format_path([*(field.name for field in change.column.trail[:-1]), change.name])


def _told(field: Field) -> dict[str, str | None]:
    """What a field says that is not of its type: its comment and its partitioning."""
    known = field.metadata or {}
    return {
        key.decode(): value.decode() for key, value in known.items() if key in (METADATA.encode(), COMMENT.encode())
    }


def _require_nesting(dataset: lance.LanceDataset, shown: str) -> None:
    major, minor = (int(part) for part in dataset.data_storage_version.split("."))
    if (major, minor) < ADDS_NESTED:
        raise UnsupportedOperationError(
            f"The column {shown!r} cannot be added: the table's files are in Lance's format {major}.{minor}, "
            "in which a struct cannot grow. Copy the table (CREATE TABLE ... AS SELECT), which writes a newer format."
        )


def _refuse_in_map(parents: Sequence[Field], shown: str, what: str) -> None:
    if any(pa.types.is_map(field.type) for field in parents):
        raise UnsupportedOperationError(
            f"The column {shown!r} is inside a map and cannot {what} by Lance. Make a new column of the map's "
            "new type, fill it with UPDATE, and drop the old one."
        )


def trail(schema: pa.Schema, path: Sequence[str]) -> list[Field]:
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


def within(parents: Sequence[Field], field: Field) -> Field:
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
