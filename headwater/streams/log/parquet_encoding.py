"""Parquet layout of change-log columns: small, and fast to write and read. Pure.

Whole numbers and times are packed by their differences (keys are sorted, row numbers dense), floats by the places of
their bytes, texts of few values by a dictionary; all of it is compressed lightly then. A few rows are written plainly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headwater.imports import pc
from headwater.streams.rows.row_keys import flat
from headwater.types import convert

SAMPLE, MANY = 4096, 1 << 14
REPEATED = 4
"""A text column has few values when each comes so many times, on average."""
SMALL = 1 << 15
"""Bytes of rows that are encoded plainly: to set up better encodings takes longer than to write the rows."""
PLAIN: dict[str, Any] = {"compression": "snappy", "use_dictionary": False, "write_statistics": False}


def by_dictionary(column: Any) -> Any:
    """Texts of few values as a dictionary of them, which is ordered and written faster; any other column as it is."""
    kind = column.type
    if len(column) < MANY or not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return column
    step = len(column) // SAMPLE
    some = column.take(pa.array(range(0, step * SAMPLE, step)))
    if pc.count_distinct(some).as_py() * REPEATED > SAMPLE:
        return column
    coded = flat(column).dictionary_encode()
    return coded if len(coded.dictionary) * REPEATED <= len(column) else column


def stored_type(kind: pa.DataType) -> Any:
    """Return the type in which a file keeps values: lists of a fixed size as lists, at any depth.

    pyarrow below 26 cannot read a fixed-size list with a NULL back from Parquet.
    """
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, kind.item_field.with_type(stored_type(kind.item_type)))
    if pa.types.is_struct(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        return pa.struct([field.with_type(stored_type(field.type)) for field in fields])
    if pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(stored_type(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(stored_type(kind.value_type)))
    return kind


def as_stored(column: Any) -> Any:
    """Return a column in the type in which a file keeps its values."""
    kind = stored_type(column.type)
    return column if kind == column.type else in_type(column, kind)


def in_type(column: Any, kind: Any) -> Any:
    """Return a column in another type: lists of a fixed size are cast by our own rule, which knows NULLs."""
    is_nested: bool = pa.types.is_nested(kind)
    if not is_nested:
        return column.cast(kind)
    return pa.chunked_array([convert(chunk, kind, exact=True) for chunk in column.chunks], kind)


def encode(table: pa.Table, parts: Sequence[int], group: int) -> bytes:
    """The rows as Parquet, in row groups of at most so many rows that end where a part of so many ends."""
    sink = pa.BufferOutputStream()
    options = PLAIN if table.nbytes <= SMALL else _packing(table.schema)
    with pq.ParquetWriter(sink, table.schema, **options) as writer:
        start = 0
        for rows in parts:
            writer.write_table(table if rows == len(table) else table.slice(start, rows), row_group_size=group)
            start += rows
    return bytes(sink.getvalue().to_pybytes())


def _packing(schema: pa.Schema) -> dict[str, object]:
    """The options of a Parquet writer for these columns.

    No lowest and highest are kept of dictionaries: finding them takes longer than writing the column.
    """
    layouts = {field.name: layout for field in schema if (layout := _layout(field.type)) is not None}
    words = [field.name for field in schema if pa.types.is_dictionary(field.type)]
    return {
        "compression": "zstd",
        "use_dictionary": words or False,
        "column_encoding": layouts or None,
        "write_statistics": [field.name for field in schema if not pa.types.is_dictionary(field.type)],
    }


def _layout(kind: pa.DataType) -> str | None:
    if pa.types.is_integer(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        return "DELTA_BINARY_PACKED"
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return "BYTE_STREAM_SPLIT"
    return None
