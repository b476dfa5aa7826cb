"""Lance field paths (lance-rest-openapi.yaml): dots between segments, backticks around a segment that has dots.

A path names a field by the names on the way to it; inside backticks a backtick is written twice. Lists are
stepped through without a segment of their own, or by the name of their item.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from headwater.errors import InvalidInputError, TableColumnNotFoundError, UnsupportedOperationError

ROW_ID, ROW_ADDRESS = "_rowid", "_rowaddr"
SYSTEM_COLUMNS = frozenset(
    (ROW_ID, ROW_ADDRESS, "_rowoffset", "_distance", "_score", "_row_last_updated_at_version",
     "_row_created_at_version")
)  # fmt: skip
MAX_PATH_CHARS = 4096


def parse_path(text: str) -> tuple[str, ...]:
    """Return the segments of a path; InvalidInput (13) for a malformed path."""
    if not isinstance(text, str) or not text or len(text) > MAX_PATH_CHARS:
        raise InvalidInputError(f"A field path is a text of 1 to {MAX_PATH_CHARS} characters, not {str(text)[:80]!r}.")
    segments, rest = [], text
    while True:
        segment, rest = _quoted(text, rest) if rest.startswith("`") else _plain(rest)
        if not segment:
            raise InvalidInputError(f"The field path {text[:200]!r} has an empty segment.")
        segments.append(segment)
        if not rest:
            return tuple(segments)
        rest = rest[1:]


def _plain(rest: str) -> tuple[str, str]:
    end = rest.find(".")
    return (rest, "") if end < 0 else (rest[:end], rest[end:])


def _quoted(text: str, rest: str) -> tuple[str, str]:
    segment, at = "", 1
    while True:
        end = rest.find("`", at)
        if end < 0:
            raise InvalidInputError(f"The field path {text[:200]!r} has a backtick without its partner.")
        segment += rest[at:end]
        if rest[end + 1 : end + 2] != "`":
            break
        segment, at = segment + "`", end + 2
    after = rest[end + 1 :]
    if after and not after.startswith("."):
        raise InvalidInputError(f"The field path {text[:200]!r} goes on after a backtick: put a dot between segments.")
    return segment, after


def format_path(segments: Iterable[str]) -> str:
    """Return the canonical spelling of a path."""
    return ".".join(_format_segment(segment) for segment in segments)


def _format_segment(segment: str) -> str:
    if "." in segment or "`" in segment:
        return "`" + segment.replace("`", "``") + "`"
    return segment


def find_field(schema: pa.Schema, path: str) -> tuple[str, pa.Field[Any]] | None:
    """Return the canonical path and the field at `path`; None if the schema has no such field."""
    found = find_trail(schema, path)
    return None if found is None else (format_path(field.name for field in found), found[-1])


def find_trail(schema: pa.Schema, path: str) -> tuple[pa.Field[Any], ...] | None:
    """Return the fields of the segments of `path`, from the top-level column down; None if one is missing."""
    found: list[pa.Field[Any]] = []
    known = list(schema)
    for segment in parse_path(path):
        field = _named(known, segment)
        if field is None:
            return None
        found.append(field)
        known = _below(field.type)
    return tuple(found)


def require_field(schema: pa.Schema, path: str) -> tuple[str, pa.Field[Any]]:
    """Return the result of `find_field`; TableColumnNotFound (12) if there is none."""
    found = require_trail(schema, path)
    return format_path(field.name for field in found), found[-1]


def require_trail(schema: pa.Schema, path: str) -> tuple[pa.Field[Any], ...]:
    """Return the result of `find_trail`; TableColumnNotFound (12) if there is none."""
    found = find_trail(schema, path)
    if found is None:
        shown = ", ".join(schema.names[:20]) + (", ..." if len(schema.names) > 20 else "")
        raise TableColumnNotFoundError(f"The table has no column {path[:200]!r}. Its columns are: {shown}.")
    return found


def _below(kind: pa.DataType) -> list[pa.Field[Any]]:
    """Return the fields that the next segment of a path may name."""
    kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    if pa.types.is_struct(kind):
        return [kind.field(position) for position in range(kind.num_fields)]
    if is_list(kind):
        item: pa.Field[Any] = kind.field(0)
        return [item, *_below(item.type)]
    return []


def is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _named(fields: list[pa.Field[Any]], name: str) -> pa.Field[Any] | None:
    """Return the field by exact name, else, as Lance does, by the only name that is equal without case."""
    for field in fields:
        if field.name == name:
            return field
    folded = [field for field in fields if field.name.lower() == name.lower()]
    return folded[0] if len(folded) == 1 else None


def dimension(kind: pa.DataType) -> int | None:
    """Return the dimension of a vector column; None for other types."""
    kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    if is_multivector(kind):
        kind = kind.field(0).type
    return int(kind.list_size) if pa.types.is_fixed_size_list(kind) else None


def is_multivector(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) and pa.types.is_fixed_size_list(kind.field(0).type))


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
    """Return a type as `arrow_cast` of SQL spells it; raise Unsupported (0) for one that SQL cannot name."""
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
