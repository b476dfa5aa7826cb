"""The story's tables as stream tables, and their rows compared with those that PostgreSQL selects."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

MOMENT = pa.timestamp("us", "UTC")
SCHEMAS: dict[str, pa.Schema] = {
    "items": pa.schema(
        [
            ("id", pa.int32()),
            ("title", pa.string()),
            ("body", pa.string()),
            ("raw", pa.binary()),
            ("doc", pa.string()),
            ("attrs", pa.map_(pa.string(), pa.string())),
            ("price", pa.decimal128(12, 2)),
            ("any_number", pa.decimal128(38, 9)),
            ("f4", pa.float32()),
            ("f8", pa.float64()),
            ("big", pa.int64()),
            ("small", pa.int16()),
            ("flag", pa.bool_()),
            ("code", pa.string()),
            ("feeling", pa.string()),
            ("born", pa.date32()),
            ("at_time", pa.time64("us")),
            ("at_timetz", pa.time64("us")),
            ("made", pa.timestamp("us")),
            ("seen", MOMENT),
            ("texts", pa.list_(pa.string())),
            ("docs", pa.list_(pa.string())),
            ("ints", pa.list_(pa.int32())),
            ("bigs", pa.list_(pa.int64())),
            ("codes", pa.list_(pa.string())),
            ("born_on", pa.list_(pa.date32())),
            ("_lsn", pa.int64()),
        ]
    ),
    "vectors": pa.schema(
        [
            ("id", pa.int32()),
            ("title", pa.string()),
            ("body", pa.string()),
            ("smalls", pa.list_(pa.int16())),
            ("reals", pa.list_(pa.float32())),
            ("doubles", pa.list_(pa.float64())),
            ("flags", pa.list_(pa.bool_())),
            ("made_at", pa.list_(pa.timestamp("us"))),
            ("seen_at", pa.list_(MOMENT)),
            ("prices", pa.list_(pa.decimal128(12, 2))),
            ("embedding", pa.list_(pa.float32())),
            ("_lsn", pa.int64()),
        ]
    ),
}
JSON = ("doc", "docs")
LOST = {"texts": {"born_on"}}
"""Columns whose unchanged toasted values Debezium itself writes as NULL, in that way of writing."""
OPTIONS: dict[str, Any] = {"apply_as_truncates": True, "time_unit": "us"}


def differences(found: pa.Table, text: str, table: str, way: str = "") -> list[tuple[Any, ...]]:
    """Return (key, column, value here, value in PostgreSQL) of every value that differs."""
    here = {row["id"]: row for row in read(found, table, way)}
    there = {row["id"]: row for row in selected(text, table, way)}
    rows = [(key, "id", key in here, key in there) for key in here.keys() ^ there.keys()]
    both = [(key, here[key], there[key]) for key in here.keys() & there.keys()]
    return rows + [(key, name, a[name], b[name]) for key, a, b in both for name in a if a[name] != b[name]]


def selected(text: str, table: str, way: str) -> list[dict[str, Any]]:
    """Rows as PostgreSQL writes them in JSON, as values of Python."""
    rows = json.loads(text, parse_float=Decimal)
    kinds = {field.name: field.type for field in _compared(table, way)}
    return [{name: _value(row[name], kind, name) for name, kind in kinds.items()} for row in rows]


def read(rows: pa.Table, table: str, way: str) -> list[dict[str, Any]]:
    """Rows of the stream table, in the same form."""
    names = [field.name for field in _compared(table, way)]
    found = sorted(rows.select(names).to_pylist(), key=lambda row: int(row["id"]))
    for row in found:
        row |= {"attrs": dict(row["attrs"])} if row.get("attrs") is not None else {}
    return [{name: _parsed(row[name]) if name in JSON else _nan(row[name]) for name in names} for row in found]


def _compared(table: str, way: str) -> list[Any]:
    lost = LOST.get(way, set())
    return [field for field in SCHEMAS[table] if field.name != "_lsn" and field.name not in lost]


def _parsed(value: Any) -> Any:
    if isinstance(value, list):
        return [_parsed(part) for part in value]
    return value if value is None else json.loads(value)


def _nan(value: Any) -> Any:
    """Values that can be compared: NaN is not equal to itself."""
    if isinstance(value, list):
        return [_nan(part) for part in value]
    return "NaN" if isinstance(value, float) and value != value else value


def _value(value: Any, kind: Any, name: str) -> Any:
    types = pa.types
    if value is None or name in JSON or types.is_map(kind):
        return value
    if types.is_list(kind):
        parts = json.loads(value) if isinstance(value, str) else value
        return [_value(part, kind.value_type, name) for part in parts]
    if types.is_decimal(kind):
        return Decimal(str(value))
    if types.is_floating(kind):
        return _nan(float(np.float32(float(value))) if kind == pa.float32() else float(value))
    if types.is_binary(kind):
        return bytes.fromhex(value[2:])
    if types.is_date(kind):
        return date.fromisoformat(value)
    if types.is_time(kind):
        found = datetime.fromisoformat(f"2000-01-02T{value}")
        return (found.astimezone(UTC) if found.tzinfo else found).time()
    if types.is_timestamp(kind):
        stamp = datetime.fromisoformat(value)
        return stamp.astimezone(UTC) if kind.tz else stamp
    return value
