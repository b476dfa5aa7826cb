"""Definition of a stream table, stored in the properties of its table version. Pure.

A column is known by its field id, so that a dropped and added one is another and a renamed one the same. Every
property is text, by the names of docs/streams.md; what cannot be understood is refused when it is set.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property, lru_cache
from math import prod
from typing import Any

import pyarrow as pa

from headwater.errors import InvalidInputError, TableColumnNotFoundError
from headwater.metastore.records.deltas import log_retention
from headwater.schema_text import parse_schema, parse_type
from headwater.streams.fold.events import Rules, parse_lateness
from headwater.streams.log.checks import Check, check_property_names, checks_of
from headwater.streams.rows.column_types import can_be_kept, can_be_key, can_be_sequence, widens
from headwater.tables.columns.fields import ROW_ADDRESS, ROW_ID
from headwater.tables.partitions import MAX_GROUPS, PartitionField, partitioned, partitioning, value_text
from headwater.tables.write.input_rows import storable

STREAM = "stream"
"""The property of a table version that makes its table a stream table."""

FIELD_ID = b"PARQUET:field_id"
CHANGE_COLUMNS = ("_change_type", "_position", "_commit_time")
"""What a change has beside its row."""
RESERVED = frozenset((*CHANGE_COLUMNS, ROW_ID, ROW_ADDRESS))
LANCE_NAMES = frozenset(("_rowoffset", "_row_created_at_version", "_row_last_updated_at_version"))
"""Names that Lance has columns of its own by."""
RESERVED_PREFIX = "__hw_"
UNSAFE = frozenset(".`\0")
"""In no name of a column: Lance takes them for parts of a path, or loses them."""
VALID_FROM, VALID_TO = "valid_from", "valid_to"
"""The columns of a history that are its own."""
CHOICES = {"late": ("ignore", "quarantine"), "contract": ("evolve", "freeze", "discard"), "history": ("scd2",)}
DERIVED = "column."
_TRANSFORM = re.compile(
    r"\s*(?P<transform>\w+)\s*\((\s*(?P<first>\d{1,9})\s*,)?(?P<column>[^,()]+)(,\s*(?P<last>\d{1,9})\s*)?\)\s*"
)


@dataclass(frozen=True)
class Column:
    """A column of a stream table."""

    id: int
    name: str
    type: Any
    nullable: bool = True

    @property
    def field(self) -> Any:
        return pa.field(self.name, self.type, self.nullable)


@dataclass(frozen=True)
class Derived:
    """A column computed at a publish from others of its row; `column.<name>` has its text."""

    name: str
    function: str
    inputs: tuple[str, ...]
    type: Any
    version: str = "1"
    folder: str | None = field(default=None, compare=False)
    """Where the function's module lies, if it is not installed; the same column elsewhere is the same column."""

    @property
    def of(self) -> str:
        """The owner of the function, as messages name it."""
        return f"the derived column {self.name!r}"


@dataclass(frozen=True)
class Definition:
    """A stream table's columns, key, order of events, partitions and properties."""

    columns: tuple[Column, ...]
    keys: tuple[str, ...] = ()
    sequence: tuple[str, ...] = ()
    partition_by: tuple[PartitionField, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    next_id: int = 1
    schema_id: int = 1

    @cached_property
    def schema(self) -> pa.Schema:
        return pa.schema([column.field for column in self.columns])

    @cached_property
    def nullable_schema(self) -> pa.Schema:
        """The columns as nullable ones: a delete, or a row that lacks a column, has NULL there."""
        return pa.schema([pa.field(column.name, column.type) for column in self.columns])

    @cached_property
    def by_name(self) -> dict[str, Column]:
        return {column.name: column for column in self.columns}

    @cached_property
    def shown(self) -> dict[str, Any]:
        """The fields a reader sees by name: the columns, and after them the derived ones."""
        fields = {column.name: column.field for column in self.columns}
        return {**fields, **{each.name: pa.field(each.name, each.type) for each in self.derived}}

    @cached_property
    def buckets(self) -> tuple[PartitionField, ...]:
        """The partitions, if they are buckets of the key and few: then the serving copy is divided by them too."""
        fields, count = self.partition_by, prod(each.width for each in self.partition_by)
        of_key = all(each.transform == "bucket" and each.column in self.keys for each in fields)
        return fields if of_key and count <= MAX_GROUPS else ()

    def partition_texts(self, values: Sequence[object] | None) -> dict[str, str | None]:
        """Return the values of a partition as SHOW PARTITIONS has them: `{"region": "eu", "at_days": "2026-01-31"}`."""
        fields = zip(self.partition_by, values or (), strict=False)
        return {each.name: value_text(value, each, self.by_name[each.column].type) for each, value in fields}

    @cached_property
    def published(self) -> pa.Schema:
        """The schema of the serving copy."""
        schema = pa.schema(list(self.shown.values()))
        return partitioned(schema, [each.to_json() for each in self.buckets]) if self.buckets else schema

    @cached_property
    def rules(self) -> Rules:
        text = self.properties.get("lateness")
        lateness = parse_lateness(text, self.by_name[self.sequence[0]].type) if text is not None else None
        return Rules(self.schema, self.keys, self.sequence, lateness)

    @property
    def contract(self) -> str:
        return self.properties.get("contract", "evolve")

    @property
    def quarantines_late(self) -> bool:
        return self.properties.get("late", "ignore") == "quarantine"

    @property
    def log_retention(self) -> timedelta:
        return log_retention(self.properties)

    @property
    def keeps_history(self) -> bool:
        return self.properties.get("history") == "scd2"

    @cached_property
    def derived(self) -> tuple[Derived, ...]:
        return derived_of(self.properties)

    @cached_property
    def checks(self) -> tuple[Check, ...]:
        """The checks that `ingest` applies to rows."""
        return checks_of(self.properties)


def define(
    schema: object,
    keys: Sequence[str] | str = (),
    sequence: Sequence[str] | str = (),
    partition_by: Sequence[Any] | str = (),
    properties: Mapping[str, object] | None = None,
) -> Definition:
    """Return a new stream table's definition, or InvalidInput (13) that names what cannot be.

    `schema` may be a whole definition already. `partition_by`: a text is what SQL has in PARTITIONED BY.
    """
    if isinstance(schema, Definition):
        return schema
    fields = fields_of(schema)
    ordering = (*_names(keys, "keys"), *_names(sequence, "sequence"))
    columns = tuple(
        Column(place, each.name, _kept(each, each.name in ordering), each.nullable)
        for place, each in enumerate(fields, 1)
    )
    made = Definition(
        columns,
        _names(keys, "keys"),
        _names(sequence, "sequence"),
        properties=_texts(properties or {}),
        next_id=len(columns) + 1,
    )
    entries = re.split(r",(?![^()]*\))", partition_by) if isinstance(partition_by, str) else partition_by
    divided = [entry.strip() for entry in entries if entry.strip()] if isinstance(partition_by, str) else entries
    marked = partitioned(made.schema, [_partition(entry, made.by_name) for entry in divided])
    return check(replace(made, partition_by=partitioning(marked)))


def check(definition: Definition, before: Definition | None = None) -> Definition:
    """Return the definition, if a table can be so; `before` is what it was."""
    _check_names(definition)
    _check_case(definition, before)
    for what, names, allowed in (
        ("key", definition.keys, can_be_key),
        ("sequence", definition.sequence, can_be_sequence),
    ):
        for name in names:
            column = definition.by_name.get(name)
            if column is None:
                raise TableColumnNotFoundError(f"The {what} column {name!r} is not in the schema.")
            if not allowed(column.type):
                raise InvalidInputError(f"The column {name!r} of type {column.type} cannot be a {what} column.")
    for name, choices in CHOICES.items():
        text = definition.properties.get(name, choices[0])
        if text not in choices:
            raise InvalidInputError(f"{name} = {text!r} is not known: use one of {', '.join(choices)}.")
    if "lateness" in definition.properties and not definition.sequence:
        raise InvalidInputError("lateness needs a sequence: name the columns that order the events.")
    if definition.keeps_history and not definition.keys:
        raise InvalidInputError("history = scd2 needs keys: an append-only log is its own history.")
    _ = definition.log_retention, definition.rules, definition.checks
    for derived in definition.derived:
        _check_derived(definition, derived)
    return definition


def evolve(
    definition: Definition,
    add: Mapping[str, object] | None = None,
    rename: Mapping[str, str] | None = None,
    widen: Mapping[str, object] | None = None,
    drop: Sequence[str] = (),
) -> Definition:
    """Return the definition with columns added, renamed, widened and dropped; renames are all done at once."""
    drop = (drop,) if isinstance(drop, str) else tuple(drop)
    columns = {column.name: column for column in definition.columns}
    names = {name: name for name in columns}
    for name in (*(rename or {}), *(widen or {}), *drop):
        if name not in columns:
            raise TableColumnNotFoundError(f"There is no column {name!r} in the stream table.")
    for name in (*(rename or {}), *(widen or {})):
        if name in drop:
            raise InvalidInputError(f"The column {name!r} is dropped, and renamed or widened too: say one of them.")
    for name in (*(rename or {}), *drop):
        if name in (*definition.keys, *definition.sequence):
            raise InvalidInputError(
                f"The column {name!r} is of the keys or the sequence: it cannot be renamed or dropped."
            )
        if any(name == each.column for each in definition.partition_by):
            raise InvalidInputError(f"The table is partitioned by {name!r}: it cannot be renamed or dropped.")
        if any(name in each.inputs for each in definition.derived):
            raise InvalidInputError(f"A derived column has {name!r} as its input: it cannot be renamed or dropped.")
    for name, text in (widen or {}).items():
        wide = _kept(pa.field(name, parse_type(text)))
        if not widens(columns[name].type, wide):
            raise InvalidInputError(f"The column {name!r} is {columns[name].type}, which does not widen to {wide}.")
        columns[name] = replace(columns[name], type=wide)
    for name, new in (rename or {}).items():
        names[name] = new
    made = [replace(columns[name], name=names[name]) for name in columns if name not in set(drop)]
    next_id = definition.next_id
    for name, text in (add or {}).items():
        made.append(Column(next_id, name, _kept(pa.field(name, parse_type(text)))))
        next_id += 1
    if tuple(made) == definition.columns:
        return definition
    changed = replace(definition, columns=tuple(made), next_id=next_id, schema_id=definition.schema_id + 1)
    return check(changed, definition)


def with_properties(definition: Definition, properties: Mapping[str, object]) -> Definition:
    """Return the definition with other properties: a text sets one, None takes it away."""
    kept = {name: text for name, text in definition.properties.items() if properties.get(name, text) is not None}
    given = _texts({name: text for name, text in properties.items() if text is not None})
    changed = replace(definition, properties={**kept, **given})
    if changed.properties == definition.properties:
        return definition
    is_new = changed.derived != definition.derived or (changed.keeps_history and not definition.keeps_history)
    return check(replace(changed, schema_id=definition.schema_id + 1) if is_new else changed, definition)


def to_properties(definition: Definition) -> dict[str, object]:
    """Return a definition as the properties of a table version."""
    known = {
        "schema": encode_schema(definition),
        "keys": list(definition.keys),
        "sequence": list(definition.sequence),
        "partition_by": [[each.column, each.transform, each.width] for each in definition.partition_by],
        "next_id": definition.next_id,
        "schema_id": definition.schema_id,
    }
    return {**definition.properties, STREAM: known}


def from_properties(properties: Mapping[str, object]) -> Definition | None:
    """Return the definition in the properties of a table version; None if it is no stream table."""
    known = properties.get(STREAM)
    if not isinstance(known, Mapping):
        return None
    return _decode(
        known["schema"],
        tuple(known["keys"]),
        tuple(known["sequence"]),
        tuple(PartitionField(*entry) for entry in known["partition_by"]),
        tuple((name, text) for name, text in properties.items() if name != STREAM),
        known["next_id"],
        known["schema_id"],
    )


@lru_cache(maxsize=256)
def _decode(
    schema: str,
    keys: tuple[str, ...],
    sequence: tuple[str, ...],
    partition_by: tuple[PartitionField, ...],
    properties: tuple[tuple[str, str], ...],
    next_id: int,
    schema_id: int,
) -> Definition:
    """Return a definition by its parts as they are stored. Every call on a table asks for it, so it is kept."""
    fields = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(schema)))
    columns = tuple(Column(field_id(each) or 0, each.name, each.type, each.nullable) for each in fields)
    return Definition(columns, keys, sequence, partition_by, dict(properties), next_id, schema_id)


def encode_schema(definition: Definition) -> str:
    """Return the schema with its field ids, as Arrow IPC in base64."""
    return base64.b64encode(stored_schema(definition).serialize()).decode()


def stored_schema(definition: Definition) -> pa.Schema:
    return pa.schema([with_id(column.field, column.id) for column in definition.columns])


def with_id(column: Any, id: int) -> Any:
    return column.with_metadata({**(column.metadata or {}), FIELD_ID: str(id).encode()})


def field_id(column: Any) -> int | None:
    text = (column.metadata or {}).get(FIELD_ID)
    return int(text) if text is not None else None


def fields_of(schema: object) -> list[Any]:
    """Return the fields of a schema, of a text such as `id BIGINT NOT NULL`, or of a mapping from names to types."""
    if isinstance(schema, str):
        schema = parse_schema(schema)
    if isinstance(schema, pa.Schema):
        return list(schema)
    if isinstance(schema, Mapping):
        return [pa.field(name, parse_type(text)) for name, text in schema.items()]
    raise InvalidInputError("schema is a pyarrow.Schema, a mapping from names to types, or a text: id BIGINT NOT NULL.")


def _kept(column: Any, orders: bool = False) -> Any:
    """Return the type that a column is stored as: of equivalent types, the one that all file formats have.

    A column of the key or the sequence (`orders`) has plain values and no dictionary of them.
    """
    if not can_be_kept(column.type):
        raise InvalidInputError(f"The column {column.name!r} has the type {column.type}, which cannot be kept.")
    kind: Any = storable(pa.schema([column])).field(0).type
    return kind.value_type if orders and pa.types.is_dictionary(kind) else kind


def _names(names: Sequence[str] | str, what: str) -> tuple[str, ...]:
    """`'a,b'` or a list of names."""
    found = tuple(part.strip() for part in names.split(",") if part.strip()) if isinstance(names, str) else tuple(names)
    if len(set(found)) != len(found):
        raise InvalidInputError(f"{what} names a column twice: {', '.join(found)}.")
    return found


def _texts(properties: Mapping[str, Any]) -> dict[str, str]:
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str) or name == STREAM:
            raise InvalidInputError(f"The property {name!r} must be a text with a name of its own, not {value!r}.")
    check_property_names(properties)
    return dict(properties)


def _partition(entry: object, columns: Mapping[str, Column]) -> dict[str, object]:
    """Return a partition given as a column, in SQL (`days(at)`, `bucket(16, id)`) or as (column, transform, width)."""
    if isinstance(entry, str) and (match := _TRANSFORM.fullmatch(entry)) and entry not in columns:
        width, name = match["first"] or match["last"] or 0, match["column"].strip("` ")
        return {"column": name, "transform": match["transform"].lower(), "width": int(width)}
    if isinstance(entry, str):
        return {"column": entry, "transform": "identity"}
    if isinstance(entry, PartitionField):
        return entry.to_json()
    if isinstance(entry, Mapping) and "column" in entry:
        return dict(entry)
    if not isinstance(entry, Sequence) or isinstance(entry, bytes) or not 2 <= len(entry) <= 3:
        raise InvalidInputError(f"A partition is a column, or (column, transform, width), not {str(entry)[:80]!r}.")
    column, transform, *width = entry
    return {"column": column, "transform": transform, "width": width[0] if width else 0}


def _check_names(definition: Definition) -> None:
    names = [*definition.schema.names, *(derived.name for derived in definition.derived)]
    if not definition.columns:
        raise InvalidInputError("A stream table has at least one column.")
    reserved = RESERVED | LANCE_NAMES | ({VALID_FROM, VALID_TO} if definition.keeps_history else set())
    for name in names:
        if not name or name in reserved or name.startswith(RESERVED_PREFIX) or UNSAFE & set(name):
            raise InvalidInputError(f"{name[:80]!r} cannot be the name of a column of this stream table.")
        if names.count(name) > 1:
            raise InvalidInputError(f"Two columns are named {name!r}.")


def _check_case(definition: Definition, before: Definition | None) -> None:
    """Error 13 for a new name that differs from another one only in its case: SQL could not tell them apart."""
    known, by_case = set(before.shown) if before is not None else set(), dict[str, str]()
    for name in definition.shown:
        other = by_case.setdefault(name.lower(), name)
        if other != name and not {name, other} <= known:
            raise InvalidInputError(
                f"The columns {other!r} and {name!r} differ only in upper and lower case, and SQL could not tell them "
                "apart: name one of them otherwise."
            )


def derived_of(properties: Mapping[str, str]) -> tuple[Derived, ...]:
    """Return the derived columns that properties tell of."""
    return tuple(
        _derived(name.removeprefix(DERIVED), text)
        for name, text in sorted(properties.items())
        if name.startswith(DERIVED)
    )


def _derived(name: str, text: str) -> Derived:
    try:
        known = json.loads(text)
        version, folder = str(known.get("version", "1")), known.get("folder")
        made = Derived(name, known["function"], tuple(known["inputs"]), parse_type(known["type"]), version, folder)
    except (ValueError, KeyError, TypeError):
        raise InvalidInputError(
            f"{DERIVED}{name} = {text!r} is not understood: it is JSON with function, inputs, type and version."
        ) from None
    module, _, function = str(made.function).partition(":")
    if not module or not function:
        raise InvalidInputError(f"{DERIVED}{name}: the function {made.function!r} is written 'module:function'.")
    return made


def _check_derived(definition: Definition, derived: Derived) -> None:
    for name in derived.inputs:
        if name not in definition.by_name:
            raise TableColumnNotFoundError(f"The derived column {derived.name!r} has no input column {name!r}.")
