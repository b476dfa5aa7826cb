"""Arrow types as `arrow_cast` of SQL spells them, so that an empty column can be added with any of them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as kinds

from headwater.errors import UnsupportedOperationError

_LEAVES: dict[pa.DataType, str] = {
    pa.bool_(): "Boolean",
    pa.string(): "Utf8",
    pa.large_string(): "LargeUtf8",
    pa.binary(): "Binary",
    pa.large_binary(): "LargeBinary",
    pa.date32(): "Date32",
    pa.date64(): "Date64",
    pa.float16(): "Float16",
    pa.float32(): "Float32",
    pa.float64(): "Float64",
    **{getattr(pa, f"{sign.lower()}{bits}")(): f"{sign}{bits}" for sign in ("Int", "UInt") for bits in (8, 16, 32, 64)},
}
_UNITS = {"s": "Second", "ms": "Millisecond", "us": "Microsecond", "ns": "Nanosecond"}


def sql_type(kind: pa.DataType) -> str:
    """The text of a type; Unsupported (0) for one that SQL cannot say."""
    leaf = _LEAVES.get(kind)
    if leaf is not None:
        return leaf
    if isinstance(kind, pa.TimestampType):
        zone = "None" if kind.tz is None else f'Some("{kind.tz}")'
        return f"Timestamp({_UNITS[kind.unit]}, {zone})"
    if isinstance(kind, (pa.Time32Type, pa.Time64Type)):
        return f"Time{kind.bit_width}({_UNITS[kind.unit]})"
    if isinstance(kind, pa.DurationType):
        return f"Duration({_UNITS[kind.unit]})"
    if isinstance(kind, (pa.Decimal128Type, pa.Decimal256Type)):
        return f"Decimal{kind.bit_width}({kind.precision}, {kind.scale})"
    if isinstance(kind, pa.FixedSizeListType):
        return f"FixedSizeList({kind.list_size}, {sql_type(kind.value_type)})"
    if isinstance(kind, pa.ListType):
        return f"List({sql_type(kind.value_type)})"
    if kinds.is_fixed_size_binary(kind):
        return f"FixedSizeBinary({kind.byte_width})"
    raise UnsupportedOperationError(f"An empty column of type {str(kind)[:200]} cannot be added: add it by its values.")
