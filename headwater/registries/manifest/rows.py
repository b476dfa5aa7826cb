"""Rows of the `__manifest` table (docs/formats/directory.md), and the objects they stand for.

A row that is no object we know (a kind from the future, broken JSON) is kept as it is and left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa

from headwater.errors import CorruptFileError, UnsupportedOperationError
from headwater.model import CatalogObject, Namespace, Table, Version
from headwater.names import DELIMITER, ObjectId
from headwater.registries.layout import MANIFEST

Row = tuple[Any, ...]

SCHEMA = pa.schema(
    [
        pa.field("object_id", pa.string(), False, {"lance-schema:unenforced-primary-key:position": "0"}),
        pa.field("object_type", pa.string(), False),
        pa.field("location", pa.string()),
        pa.field("metadata", pa.string()),
        pa.field("base_objects", pa.list_(pa.field("object_id", pa.string()))),
        pa.field("created_at", pa.timestamp("us", "UTC")),
    ]
)
OWN = ("object_id", "object_type", "location", "metadata", "created_at")
"""The columns that Headwater fills; the last only if it is a time as Python has it. All others are kept as they are."""
REQUIRED = ("object_id", "object_type", "location", "metadata", "base_objects")


class _Row(msgspec.Struct):
    object_id: str
    object_type: str
    location: str | None = None
    metadata: str | None = None
    created_at: datetime | None = None


class _Change(msgspec.Struct):
    removed: list[str]
    added: list[_Row]


_changes = msgspec.json.Decoder(_Change)


class Codec:
    """Rows to objects and back, for a table with these columns. Other writers may have more columns, or fewer."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        missing = [name for name in REQUIRED if name not in schema.names]
        if missing:
            raise CorruptFileError(MANIFEST, f"it has no column {missing[0]!r}, so it is no catalog table")
        self._at = {name: schema.names.index(name) for name in schema.names}
        self._own = [name for name in OWN if name in self._at and (name != "created_at" or _is_time(schema))]
        self._kept = [at for name, at in self._at.items() if name not in self._own or name == "created_at"]
        self._foreign = [at for name, at in self._at.items() if name not in self._own]

    def object_id(self, row: Row) -> str:
        return str(row[self._at["object_id"]])

    def decode(self, row: Row) -> CatalogObject | None:
        """The object of a row; None for a row that is not ours to understand."""
        get = self._at
        id = ObjectId(tuple(self.object_id(row).split(DELIMITER)))
        try:
            return _object(id, row[get["object_type"]], row[get["location"]], _json(row[get["metadata"]]))
        except (ValueError, TypeError, KeyError, msgspec.DecodeError):
            return None

    def encode(self, item: CatalogObject, now_ms: int, old: Row | None = None) -> Row:
        """The row of an object. What the columns of others said of it, and when it was created, is taken from `old`."""
        kind, location, metadata = _fields(item)
        values = {
            "object_id": item.id.format(DELIMITER),
            "object_type": kind,
            "location": location,
            "metadata": metadata,
            "created_at": datetime.fromtimestamp(now_ms / 1000, UTC),
        }
        row = [values[name] if name in self._own else None for name in self.schema.names]
        for at in self._kept if old is not None else ():
            row[at] = old[at] if old is not None else None
        return tuple(row)

    def is_foreign(self, row: Row) -> bool:
        """Whether the row holds something in a column that is not ours."""
        return any(row[at] is not None for at in self._foreign)

    def to_json(self, removed: Iterable[str], added: Sequence[Row]) -> str:
        """A change of the table as text: ids whose rows go, and rows that `encode` has made."""
        rows = [{name: row[self._at[name]] for name in self._own} for row in added]
        return msgspec.json.encode({"removed": sorted(removed), "added": rows}).decode()

    def from_json(self, data: str) -> tuple[frozenset[str], list[Row]]:
        """The change again, or ValueError."""
        change = _changes.decode(data)
        return frozenset(change.removed), [
            tuple(getattr(row, name) if name in self._own else None for name in self.schema.names)
            for row in change.added
        ]

    def to_arrow(self, rows: Sequence[Row]) -> pa.Table:
        """Unsupported (0): a column that is not ours wants a value that only its owner knows."""
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(self.schema)
        for column, field in zip(columns, self.schema, strict=True):
            if not field.nullable and None in column:
                raise UnsupportedOperationError(
                    f"The column {field.name!r} of {MANIFEST} must not be null, and headwater does not know what to "
                    "write into it: make it nullable."
                )
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self.schema, strict=True)]
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def from_arrow(self, table: pa.Table) -> list[Row]:
        columns = [
            table.column(name).to_pylist() if name in self._own else _scalars(table.column(name))
            for name in self.schema.names
        ]
        return list(zip(*columns, strict=True))


def _is_time(schema: pa.Schema) -> bool:
    kind = schema.field("created_at").type
    return bool(pa.types.is_timestamp(kind) and kind.unit != "ns")


def _scalars(column: Any) -> list[Any]:
    """Values of a column that is not ours, unchanged whatever they are; Python could not hold them all."""
    if column.null_count == len(column):
        return [None] * len(column)
    return [value if value.is_valid else None for value in column]


def _object(id: ObjectId, kind: str, location: str | None, values: Mapping[str, Any]) -> CatalogObject | None:
    if kind == "namespace":
        return Namespace(id, _strings(values))
    if kind == "table" and location:
        return Table(id, location, _strings(values))
    if kind == "table_version":
        int(id.name)
        return Version(
            id,
            str(values["manifest_path"]),
            values.get("manifest_size"),
            values.get("e_tag"),
            values.get("naming_scheme") or "V2",
            values.get("timestamp_millis"),
            _strings(values.get("metadata") or {}),
            values.get("manifest_digest"),
        )
    return None


def _fields(item: CatalogObject) -> tuple[str, str | None, str | None]:
    match item:
        case Namespace(_, properties):
            return "namespace", None, _text(properties)
        case Table(_, location, properties):
            return "table", location, _text(properties)
        case Version():
            values = {
                "manifest_path": item.manifest_path,
                "manifest_size": item.manifest_size,
                "e_tag": item.e_tag,
                "naming_scheme": item.naming_scheme,
                "timestamp_millis": item.timestamp_ms,
                "metadata": dict(item.metadata),
                "manifest_digest": item.digest,
            }
            return "table_version", None, _text({key: value for key, value in values.items() if value is not None})


def _json(text: str | None) -> Mapping[str, Any]:
    if not text:
        return {}
    values = msgspec.json.decode(text)
    if not isinstance(values, dict):
        raise ValueError("metadata is no JSON object")
    return values


def _text(values: Mapping[str, Any]) -> str | None:
    return msgspec.json.encode(dict(values)).decode() if values else None


def _strings(values: Mapping[str, Any]) -> dict[str, str]:
    return {
        key: value if isinstance(value, str) else msgspec.json.encode(value).decode() for key, value in values.items()
    }
