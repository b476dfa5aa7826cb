"""ADD, ALTER and DROP COLUMN, also inside structs and arrays. Each call is one commit.

Only a change of type rewrites rows, and of these only that column. For types that Lance does not cast between (numbers
to text, integers to fractions), `recast` writes the new values as a data file for each fragment, and one commit
replaces the fields. Every value must fit the new type exactly. Lance leaves a table unreadable when a field inside a
map is dropped, so changes inside maps raise UnsupportedOperation (0) here.
A backfill fills a new column: executors write a data file for each fragment, and the driver commits all of them. It may
take long, so its commit accepts newer versions. Rows deleted meanwhile stay deleted. Rows written meanwhile (an append,
the new state of an update) have NULL in the new column. A rewrite of fragments, columns or the schema is a conflict:
the backfill then changes nothing.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from headwater.clock import Clock
from headwater.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    LanceNamespaceError,
    TableColumnNotFoundError,
    TableSchemaValidationError,
    UnsupportedOperationError,
)
from headwater.imports import lance
from headwater.protobuf import parse, text
from headwater.retry import retry
from headwater.tables.columns.fields import SYSTEM_COLUMNS, format_path, is_list, require_trail
from headwater.tables.commit.committer import TableCommitter, fragment_from
from headwater.tables.commit.history import committed
from headwater.tables.handle import TableHandle, fragment_of
from headwater.tables.partitions import METADATA
from headwater.types import convert

if TYPE_CHECKING:
    from lance.schema import LanceSchema

Json = dict[str, Any]
ATTEMPTS = 10
HARMLESS = ("Append", "Delete", "Update", "CreateIndex", "ReserveFragments")


def fill_fragment(
    table: TableHandle,
    fragment: int,
    values: Mapping[str, str] | Callable[[pa.RecordBatch], pa.RecordBatch],
    columns: list[str] | None = None,
    field: Any = None,
    rows: int | None = None,
) -> Json:
    """Write the new column of one fragment: SQL expressions by name, or a function of its batches."""
    found = fragment_of(table.open(), fragment)
    made = dict(values) if isinstance(values, Mapping) else lance.udf.BatchUDF(values, output_schema=pa.schema([field]))
    metadata, schema = found.merge_columns(made, columns=columns, batch_size=rows)
    return {"fragment": metadata.to_json(), "schema": schema_to_json(schema)}


def commit_column(committer: TableCommitter, table: TableHandle, results: list[Json], clock: Clock) -> int:
    """Commit the written column to the newest version of the table."""
    schema = schema_from_json(results[0]["schema"])

    def look() -> tuple[TableHandle, lance.LanceOperation.Merge]:
        newest = table.at(committer.open(table).version)
        fragments = with_files(table, newest, [result["fragment"] for result in results])
        return newest, lance.LanceOperation.Merge([fragment_from(value) for value in fragments], schema)

    return retry(clock, ATTEMPTS, look, lambda seen: committer.other(*seen))


def schema_to_json(schema: LanceSchema) -> Json:
    """Return a schema with its field ids as JSON, around pylance's protobuf messages."""
    _, (metadata, *fields) = schema.__reduce__()
    return {"metadata": metadata, "fields": [base64.b64encode(field).decode() for field in fields]}


def schema_from_json(value: Json) -> LanceSchema:
    return lance.schema.LanceSchema._from_protos(
        value["metadata"], *(base64.b64decode(field) for field in value["fields"])
    )


def with_files(table: TableHandle, newest: TableHandle, filled: list[Json]) -> list[Json]:
    """Return the fragments of the newest version, with the new data files of those that were filled."""
    for version in range((table.version or 0) + 1, (newest.version or 0) + 1):
        _require_harmless(table, version)
    before = _fragments(table)
    now = _fragments(newest)
    for fragment in filled:
        found = now.get(fragment["id"])
        if found is None:  # all its rows were deleted or updated
            continue
        old = {file["path"] for file in before[fragment["id"]]["files"]}
        if {file["path"] for file in found["files"]} != old:
            raise _conflict(table, "columns were rewritten")
        found["files"] = [*found["files"], *(file for file in fragment["files"] if file["path"] not in old)]
    return list(now.values())


def _require_harmless(table: TableHandle, version: int) -> None:
    try:
        name = committed(table.at(version).open(), version).operation
    except (LanceNamespaceError, OSError, ValueError):
        raise _conflict(table, f"version {version} was cleaned up") from None
    if name not in HARMLESS:
        raise _conflict(table, f"{name} in version {version}")


def _fragments(table: TableHandle) -> dict[int, Json]:
    return {fragment.fragment_id: fragment.metadata.to_json() for fragment in table.open().get_fragments()}


def _conflict(table: TableHandle, what: str) -> ConcurrentModificationError:
    return ConcurrentModificationError(
        f"The table {table.name!r} was rewritten by another writer ({what}) while the column was filled. Nothing was "
        "written; run it again."
    )


PASSING = "__headwater_cast_"
NAME, PARENT, NONE = 2, 4, (1 << 64) - 1
"""Of Lance's protobuf message of a field: the numbers of its name and of its parent's id, and the id of no parent."""
ALIKE = (pa.types.is_integer, pa.types.is_floating, pa.types.is_nested, pa.types.is_dictionary)


def is_cast_by_lance(old: pa.DataType, new: pa.DataType) -> bool:
    """Return True for types that Lance casts between by itself, or not at all."""
    if isinstance(old, pa.BaseExtensionType) or isinstance(new, pa.BaseExtensionType):
        return True
    texts = (pa.string(), pa.large_string())
    return old == new or any(test(old) and test(new) for test in ALIKE) or (old in texts and new in texts)


def recast(dataset: lance.LanceDataset, types: Mapping[str, pa.DataType]) -> None:
    """Change the types of top-level columns in one commit. Error 20 for a value that does not fit, or an index."""
    for index in dataset.describe_indices():
        for name in set(index.field_names) & set(types):
            raise TableSchemaValidationError(
                f"The column {name!r} has the index {index.name!r}, which is of its old type: drop the index first."
            )
    names = {name: f"{PASSING}{place}" for place, name in enumerate(types)}
    fields = {name: dataset.schema.field(name).with_type(kind) for name, kind in types.items()}
    made = pa.schema([fields[name].with_name(passing) for name, passing in names.items()])

    wrong: list[TableSchemaValidationError] = []  # Lance tells what a function raised as an error of its own

    def cast(batch: pa.RecordBatch) -> pa.RecordBatch:
        try:
            return pa.RecordBatch.from_arrays([_cast(batch, fields[name]) for name in types], schema=made)
        except TableSchemaValidationError as error:
            wrong.append(error)
            raise

    fragments, schema = [], None
    for fragment in dataset.get_fragments():
        try:
            metadata, schema = fragment.merge_columns(lance.udf.BatchUDF(cast, output_schema=made), columns=list(types))
        except Exception:
            if wrong:
                raise wrong[0] from None
            raise
        fragments.append(metadata)
    if schema is None:
        new = [fields.get(field.name, field) for field in dataset.schema]
        schema = lance.schema.LanceSchema.from_pyarrow(pa.schema(new).with_metadata(dataset.schema.metadata))
    else:
        schema = _in_place(schema, names)
    lance.LanceDataset.commit(
        dataset,
        lance.LanceOperation.Merge(fragments, schema),
        read_version=dataset.version,
        namespace_client=dataset._namespace_client,
        table_id=dataset._table_id,
        namespace_client_managed_versioning=dataset._namespace_client_managed_versioning,
    )
    dataset.checkout_latest()


def _cast(batch: pa.RecordBatch, field: pa.Field[pa.DataType]) -> Any:
    try:
        return convert(batch.column(field.name), field.type, exact=True)
    except InvalidInputError as error:
        raise TableSchemaValidationError(f"The column {field.name!r} cannot become {field.type}: {error}") from None


def _in_place(schema: LanceSchema, names: Mapping[str, str]) -> object:
    """Return the schema with each new field under the name, and in the place, of the old one."""
    told = schema_to_json(schema)
    messages = [base64.b64decode(field) for field in told["fields"]]
    tops = {str(_value(each, NAME)): each for each in messages if _value(each, PARENT) == NONE}
    new = {tops[name]: _with_name(tops[passing], name) for name, passing in names.items()}
    gone = {tops[passing] for passing in names.values()}
    fields = [new.get(each, each) for each in messages if each not in gone]
    return schema_from_json({**told, "fields": [base64.b64encode(each).decode() for each in fields]})


def _value(message: bytes, wanted: int) -> int | str | None:
    found = next((value for number, value, _ in parse(message) if number == wanted), None)
    return found.decode() if isinstance(found, bytes) else found


def _with_name(message: bytes, name: str) -> bytes:
    return b"".join(text(NAME, name) if number == NAME else whole for number, _, whole in parse(message))


Field: TypeAlias = "pa.Field[Any]"
ADDS_NESTED = (2, 2)
MAX_NAME_CHARS = 255
COMMENT = "comment"


@dataclass(frozen=True)
class FieldPath:
    """A column of a table: its path in Lance's notation, and the fields from the top-level column down to it."""

    path: str
    trail: tuple[Field, ...]

    def __str__(self) -> str:
        return repr(self.path)


@dataclass(frozen=True)
class Alteration:
    """A change of one column; None keeps a property as it is."""

    column: FieldPath
    name: str | None = None
    nullable: bool | None = None
    type: Any = None


def column_of(schema: pa.Schema, path: str) -> FieldPath:
    """Return the column at a path in Lance's notation; TableColumnNotFound (12)."""
    found = require_trail(schema, path)
    return FieldPath(format_path(field.name for field in found), found)


def column_at(schema: pa.Schema, names: Sequence[str]) -> FieldPath:
    """Return the column at a path in Spark's notation for arrays and maps (`children`); TableColumnNotFound (12)."""
    found = trail(schema, names)
    segments: list[str] = []
    for index, field in enumerate(found):
        if index and pa.types.is_map(found[index - 1].type):
            segments.append("entries")
        segments.append(field.name)
    return FieldPath(format_path(segments), tuple(found))


def add(dataset: lance.LanceDataset, columns: Mapping[str, str] | pa.Schema) -> None:
    """Add columns at the end, by SQL expressions, or as fields that are NULL in existing rows. Errors 13, 20."""
    check_new_names(dataset.schema, columns.names if isinstance(columns, pa.Schema) else columns)
    dataset.add_columns(columns if isinstance(columns, pa.Schema) else dict(columns))


def add_inside(dataset: lance.LanceDataset, parents: Sequence[Field], field: Field) -> None:
    """Add a field at the end of the struct at `parents`, NULL in existing rows. Errors 0, 20."""
    shown = format_path([*(parent.name for parent in parents), field.name])
    _refuse_in_map(parents, shown, "be added")
    if any(known.name == field.name for known in fields_of(parents[-1].type)):
        raise TableSchemaValidationError(f"The column {shown!r} exists already.")
    _require_nesting(dataset, shown)
    dataset.add_columns(pa.schema([nested_in(parents, field)]))


def check_new_names(schema: pa.Schema, names: Iterable[str]) -> None:
    """Raise TableSchemaValidation (20) for a new name that the table or another new column has."""
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
    """Alter columns in one commit. A change of type needs a second one, to restore the metadata that Lance drops.

    Types that Lance does not cast to are written first, in a commit of their own.
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
    kept = {
        _renamed(change): _shared_metadata(change.column.trail[-1]) for change in changes if change.type is not None
    }
    if any(kept.values()):
        dataset.update_field_metadata({path: metadata for path, metadata in kept.items() if metadata})


def _is_recast(change: Alteration) -> bool:
    """Return True for a new type that Lance does not cast the column to."""
    is_top = len(change.column.trail) == 1
    return change.type is not None and is_top and not is_cast_by_lance(change.column.trail[0].type, change.type)


def drop(dataset: lance.LanceDataset, columns: Sequence[FieldPath]) -> None:
    """Drop columns in one commit. Dropping the last field of a struct drops the struct.

    Errors 0 (inside a map), 13 (the last column of the table).
    """
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
    """Return the path of a column after its alteration."""
    if change.name is None:
        return change.column.path
    return format_path([*(field.name for field in change.column.trail[:-1]), change.name])


def _shared_metadata(field: Field) -> dict[str, str | None]:
    """Return the metadata of a field that is independent of its type: comment and partitioning."""
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
    """Return the fields from the top-level column down to a column; TableColumnNotFound (12). Pure."""
    found: list[Field] = []
    known = {field.name: field for field in schema}
    for name in path:
        if name not in known:
            raise TableColumnNotFoundError(f"The column {'.'.join(path)!r} does not exist.")
        found.append(known[name])
        known = children(known[name].type)
    return found


def children(kind: Any) -> dict[str, Field]:
    """Return the child fields of a type by their names in Spark."""
    if pa.types.is_map(kind):
        return {"key": kind.key_field, "value": kind.item_field}
    if is_list(kind):
        return {"element": kind.value_field}
    return {field.name: field for field in fields_of(kind)}


def fields_of(kind: pa.DataType) -> list[Field]:
    return [kind.field(index) for index in range(kind.num_fields)] if pa.types.is_struct(kind) else []


def nested_in(parents: Sequence[Field], field: Field) -> Field:
    """Return the field wrapped in its parents alone: the form in which Lance takes the place of a new field. Pure."""
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
