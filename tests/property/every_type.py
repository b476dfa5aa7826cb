"""Arrow types that Lance can keep, and tables of any number of rows with columns of them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds
from hypothesis import strategies as st

TYPES: tuple[Any, ...] = (
    pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(),
    pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(),
    pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(5),
    pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"),
    *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")), pa.timestamp("us", tz="UTC"),
    pa.timestamp("ms", tz="Europe/Paris"), *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
    pa.decimal32(5, 2), pa.decimal64(10, 2), pa.decimal128(38, 4), pa.decimal256(60, 4),
    pa.list_(pa.int32()), pa.large_list(pa.int32()), pa.list_(pa.float32(), 3), pa.list_view(pa.int32()),
    pa.large_list_view(pa.string()), pa.list_(pa.list_(pa.int32())), pa.list_(pa.string(), 2),
    pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.string())]), pa.map_(pa.string(), pa.int32()),
    pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int8(), pa.decimal128(10, 2)),
    pa.list_(pa.decimal128(10, 2)), pa.struct([pa.field("d", pa.decimal128(10, 2))]),
    pa.list_(pa.decimal128(5, 1), 2), pa.list_(pa.bool_(), 3), pa.list_(pa.float16(), 2), pa.uuid(), pa.bool8(),
    pa.list_(pa.struct([pa.field("x", pa.int32())]), 2),
)  # fmt: skip

_START = dt.datetime(2020, 1, 1)


def value(kind: Any, number: int) -> Any:
    """One value of a type; the same number gives the same value."""
    if isinstance(kind, pa.BaseExtensionType):
        return value(kind.storage_type, number)
    if kinds.is_struct(kind):
        return {kind.field(i).name: value(kind.field(i).type, number) for i in range(kind.num_fields)}
    if kinds.is_map(kind):
        return [(f"key {number}", value(kind.item_type, number))]
    if kinds.is_fixed_size_list(kind):
        return [value(kind.value_type, number + i) for i in range(kind.list_size)]
    if kinds.is_dictionary(kind):
        return value(kind.value_type, number % 3)
    if hasattr(kind, "value_type"):
        return [value(kind.value_type, number + i) for i in range(number % 3)]
    return next(make(kind, number) for test, make in _LEAVES if test(kind))


_LEAVES: tuple[tuple[Any, Any], ...] = (
    (kinds.is_null, lambda kind, number: None),
    (kinds.is_boolean, lambda kind, number: number % 2 == 0),
    (kinds.is_integer, lambda kind, number: number % 100),
    (kinds.is_floating, lambda kind, number: float(number)),
    (kinds.is_decimal, lambda kind, number: Decimal(number % 100) / 10),
    (kinds.is_fixed_size_binary, lambda kind, number: bytes([number % 256]) * kind.byte_width),
    (kinds.is_date, lambda kind, number: _START.date() + dt.timedelta(days=number)),
    (kinds.is_time, lambda kind, number: dt.time(1, 2, number % 60)),
    (kinds.is_timestamp, lambda kind, number: _START + dt.timedelta(seconds=number)),
    (kinds.is_duration, lambda kind, number: dt.timedelta(seconds=number)),
    (lambda kind: "string" in str(kind), lambda kind, number: f"a text longer than a view is {number}"),
    (lambda kind: "binary" in str(kind), lambda kind, number: b"bytes longer than a view is %d" % number),
)


def column(kind: Any, start: int, count: int) -> Any:
    """Values of a type for the rows from `start` on; every fifth is missing."""
    values = [value(kind, number) if number % 5 else None for number in range(start, start + count)]
    if not kinds.is_dictionary(kind):
        return pa.array(values, kind)
    plain = pa.array(values, kind.value_type).dictionary_encode()
    return pa.DictionaryArray.from_arrays(plain.indices.cast(kind.index_type), plain.dictionary)


def table(chosen: list[int], start: int, count: int) -> pa.Table:
    """Rows with a key, and a column of each chosen type."""
    columns = {f"c{index}": column(TYPES[index], start, count) for index in chosen}
    return pa.table({"id": pa.array(range(start, start + count), pa.int64()), **columns})


def choices() -> Any:
    """Which types, in which order: the layout of a stream, and so its alignment, follows from both."""
    return st.lists(st.sampled_from(range(len(TYPES))), min_size=1, max_size=12, unique=True)
