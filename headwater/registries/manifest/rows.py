"""Rows of the `__manifest` table (docs/formats/directory.md), decoded to catalog objects, and their index in memory.

A row that is no known object (a kind of a newer writer, broken JSON) is kept unchanged.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from headwater.errors import CorruptFileError, UnsupportedOperationError
from headwater.metastore.commit.root_kinds import MANIFEST
from headwater.model import NEW, CatalogObject, Namespace, Table, Version
from headwater.names import DELIMITER, ObjectId
from headwater.registry import Kind

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
    """A codec between rows and objects, for a table with these columns. Other writers may have more or fewer."""

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
        """Return the object of a row; None for a row of an unknown kind."""
        get = self._at
        id = ObjectId(tuple(self.object_id(row).split(DELIMITER)))
        try:
            return _object(id, row[get["object_type"]], row[get["location"]], _json(row[get["metadata"]]))
        except (ValueError, TypeError, KeyError, msgspec.DecodeError):
            return None

    def encode(self, item: CatalogObject, now_ms: int, old: Row | None = None) -> Row:
        """Return the row of an object. Columns of other writers, and the creation time, come from `old`."""
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
        """Return True if the row has a value in a column of another writer."""
        return any(row[at] is not None for at in self._foreign)

    def to_json(self, removed: Iterable[str], added: Sequence[Row]) -> str:
        """Return a change of the table as text: ids of removed rows, and rows of `encode`."""
        rows = [{name: row[self._at[name]] for name in self._own} for row in added]
        return msgspec.json.encode({"removed": sorted(removed), "added": rows}).decode()

    def from_json(self, data: str) -> tuple[frozenset[str], list[Row]]:
        """Decode a change of `to_json`. ValueError."""
        change = _changes.decode(data)
        return frozenset(change.removed), [
            tuple(getattr(row, name) if name in self._own else None for name in self.schema.names)
            for row in change.added
        ]

    def to_arrow(self, rows: Sequence[Row]) -> pa.Table:
        """Return rows as Arrow; UnsupportedOperation (0) if a column of another writer must not be NULL."""
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


def _scalars(column: Any) -> list[object]:
    """Return values of a column that is not ours, unchanged whatever they are; Python could not hold them all."""
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
            values.get("change"),
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
                "change": item.change,
            }
            return "table_version", None, _text({key: value for key, value in values.items() if value is not None})


def _json(text: str | None) -> Mapping[str, Any]:
    if not text:
        return {}
    values = msgspec.json.decode(text)
    if not isinstance(values, dict):
        raise ValueError("metadata is not JSON object")
    return values


def _text(values: Mapping[str, object]) -> str | None:
    return msgspec.json.encode(dict(values)).decode() if values else None


def _strings(values: Mapping[str, object]) -> dict[str, str]:
    return {
        key: value if isinstance(value, str) else msgspec.json.encode(value).decode() for key, value in values.items()
    }


Item = TypeVar("Item", str, int)


class RowIndex:
    """An index of objects by id, parent, location and version. Costs grow with the answer, not with the catalog."""

    def __init__(self) -> None:
        self._objects: dict[ObjectId, CatalogObject] = {}
        self._names: dict[tuple[ObjectId, Kind], list[str]] = {}
        self._versions: dict[ObjectId, list[int]] = {}
        self._holders: dict[str, set[ObjectId]] = {}
        self._locations: list[str] = []

    @property
    def has_tables(self) -> bool:
        return bool(self._holders)

    def get(self, id: ObjectId) -> CatalogObject | None:
        return self._objects.get(id)

    def put(self, item: CatalogObject) -> None:
        """Add the object, or let it take the place of the one with its id."""
        self.remove(item.id)
        if isinstance(item, Table) and item.known is not NEW:
            item = Table(item.id, item.location, item.properties)  # what was known of it was known before
        self._objects[item.id] = item
        if isinstance(item, Version):
            insort(self._versions.setdefault(item.table, []), item.number)
            return
        insort(self._names.setdefault((item.id.parent, _kind(item)), []), item.id.name)
        if isinstance(item, Table):
            place = _place(item.location)
            if place not in self._holders:
                insort(self._locations, place)
            self._holders.setdefault(place, set()).add(item.id)

    def remove(self, id: ObjectId) -> None:
        item = self._objects.pop(id, None)
        if item is None:
            return
        if isinstance(item, Version):
            _discard(self._versions[item.table], item.number)
            return
        _discard(self._names[item.id.parent, _kind(item)], id.name)
        if isinstance(item, Table):
            place = _place(item.location)
            self._holders[place].discard(id)
            if not self._holders[place]:
                del self._holders[place]
                _discard(self._locations, place)

    def children(self, parent: ObjectId, kind: Kind, after: str, limit: int | None) -> Sequence[str]:
        names = self._names.get((parent, kind), [])
        start = bisect_right(names, after) if after else 0
        return names[start : None if limit is None else start + limit]

    def count_children(self, id: ObjectId) -> int:
        return sum(len(self._names.get((id, kind), ())) for kind in Kind)

    def descendants(self, parent: ObjectId) -> Iterator[CatalogObject]:
        """Yield namespaces and tables below `parent`, children before their parents."""
        for name in tuple(self._names.get((parent, Kind.NAMESPACE), ())):
            yield from self.descendants(parent.child(name))
            yield self._objects[parent.child(name)]
        for name in tuple(self._names.get((parent, Kind.TABLE), ())):
            yield self._objects[parent.child(name)]

    def versions(self, table: ObjectId) -> Sequence[int]:
        """Return the version numbers of a managed table, ascending."""
        return self._versions.get(table, ())

    def version_page(self, table: ObjectId, after: int | None, limit: int | None, descending: bool) -> Sequence[int]:
        """Return at most `limit` version numbers that follow `after` in the given order."""
        numbers = self._versions.get(table, [])
        if not descending:
            start = bisect_right(numbers, after) if after is not None else 0
            return numbers[start : None if limit is None else start + limit]
        end = bisect_left(numbers, after) if after is not None else len(numbers)
        return numbers[0 if limit is None else max(end - limit, 0) : end][::-1]

    def newest_version(self, table: ObjectId) -> int:
        numbers = self._versions.get(table)
        return numbers[-1] if numbers else 0

    def location_holders(self, location: str) -> set[ObjectId]:
        """Return the tables at, inside and around a location. Rows of other writers may share one."""
        location = _place(location)
        parts = location.split("/")
        around = ("/".join(parts[:end]) for end in range(1, len(parts) + 1))
        start = bisect_left(self._locations, location + "/")
        end = bisect_left(self._locations, location + "0")  # "0" follows "/"
        found: set[ObjectId] = set()
        for place in (*around, *self._locations[start:end]):
            found |= self._holders.get(place, set())
        return found


def _place(location: str) -> str:
    """Return the canonical spelling of a location, for comparison."""
    return "/".join(part for part in location.split("/") if part not in ("", "."))


def _kind(item: Namespace | Table) -> Kind:
    return Kind.NAMESPACE if isinstance(item, Namespace) else Kind.TABLE


def _discard(items: list[Item], item: Item) -> None:
    at = bisect_left(items, item)
    if at < len(items) and items[at] == item:
        del items[at]
