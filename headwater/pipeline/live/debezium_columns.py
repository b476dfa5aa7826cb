"""Columns of a table by the schema part of its Debezium messages. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from headwater.streams.sources.debezium_envelopes import OFFERED
from headwater.streams.sources.message_values import fields_of

_MOMENT: Any = pa.timestamp("us")
_ZONED: Any = pa.timestamp("us", "UTC")
_NANOS: Any = pa.timestamp("ns")
_TIME: Any = pa.time64("us")
PLAIN: Mapping[str, Any] = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "float32": pa.float32(),
    "double": pa.float64(),
    "float64": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
NAMED: Mapping[str, Any] = {
    "org.apache.kafka.connect.data.Date": pa.date32(),
    "io.debezium.time.Date": pa.date32(),
    "org.apache.kafka.connect.data.Timestamp": _MOMENT,
    "io.debezium.time.Timestamp": _MOMENT,
    "io.debezium.time.MicroTimestamp": _MOMENT,
    "io.debezium.time.NanoTimestamp": _NANOS,
    "io.debezium.time.ZonedTimestamp": _ZONED,
    "org.apache.kafka.connect.data.Time": _TIME,
    "io.debezium.time.Time": _TIME,
    "io.debezium.time.MicroTime": _TIME,
    "io.debezium.time.NanoTime": pa.time64("ns"),
    "io.debezium.time.ZonedTime": _TIME,
    "io.debezium.data.VariableScaleDecimal": pa.decimal128(38, 9),
}
DIGITS = 38
BELOW_ZERO = 2048
"""PostgreSQL's scale below zero comes in eleven bits: 2046 is -2."""
PLACES: Mapping[str, Any] = {
    "_lsn": pa.int64(),
    "_file_no": pa.int64(),
    "_pos": pa.int64(),
    "_row": pa.int64(),
    "_scn": pa.decimal128(38, 0),
    "_change_lsn": pa.string(),
    "_ord": pa.int64(),
}
"""The types of the envelope's columns that order changes."""


def column_type(schema: Mapping[str, Any]) -> Any:
    """Return the Arrow type for the schema of a field."""
    name, kind = str(schema.get("name")), str(schema.get("type"))
    if name in NAMED:
        return NAMED[name]
    if name == "org.apache.kafka.connect.data.Decimal":
        told = schema.get("parameters") or {}
        scale, digits = int(told.get("scale", 0)), int(told.get("connect.decimal.precision", DIGITS))
        scale -= BELOW_ZERO if scale >= BELOW_ZERO // 2 else 0
        behind = min(max(scale, 0), DIGITS)  # of NUMERIC(5, -2) none, and two digits more before the point
        return pa.decimal128(min(DIGITS, max(digits, behind, digits - scale)), behind)
    if kind == "array":
        return pa.list_(column_type(schema.get("items") or {}))
    if kind == "map":
        return pa.map_(pa.string(), column_type(schema.get("values") or {}))
    if kind == "struct":
        fields = [pa.field(each, column_type(inner)) for each, inner in fields_of(schema).items()]
        return pa.struct(fields)
    return PLAIN.get(kind, pa.string())


def table_columns(schema: Mapping[str, Any], sequence: tuple[str, ...]) -> dict[str, Any]:
    """Return the columns of the rows in an envelope, with those of the envelope that order its changes."""
    row = fields_of(schema).get("after") or fields_of(schema).get("before") or {}
    found = {name: column_type(each) for name, each in fields_of(row).items() if name not in OFFERED}
    return {**found, **{name: PLACES[name] for name in sequence}}


def key_columns(schema: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the columns of the key; none of a table without one."""
    return tuple(fields_of(schema)) if schema is not None else ()
