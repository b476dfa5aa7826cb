"""Types and columns as text: `id BIGINT NOT NULL, tags array<string>, v vector(4)`. Pure.

Python, pipeline files and the command line read column lists with this grammar. Types may be written as Arrow, SQL or
Spark write them. Names are plain, or quoted with backticks or double quotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from headwater.errors import InvalidInputError, LanceNamespaceError
from headwater.types import arrow_type

DataType = Any
MAX_LEVELS = 32
"""A type that is nested deeper is a mistake, or an attack."""
MAX_VECTOR = 1 << 20

SQL_NAMES = {
    "bigint": "long",
    "int": "integer",
    "smallint": "short",
    "tinyint": "byte",
    "real": "float",
    "text": "string",
    "bytes": "binary",
    "bool": "boolean",
}
ARROW_NAMES = {
    "timestamp": pa.timestamp("us", "UTC"),
    "float": pa.float32(),
    "double": pa.float64(),
    "double precision": pa.float64(),
}
_ELEMENTS = re.compile(r"(.+)\[(\d+)\]", re.DOTALL)
_VECTOR = re.compile(r"(?:vector|fixed_size_list)\s*\(\s*(\d+)\s*\)", re.IGNORECASE)
_NESTED = re.compile(r"(array|map|struct)\s*<(.*)>", re.IGNORECASE | re.DOTALL)
_DECIMAL = re.compile(r"(?:decimal|numeric|decimal128)\s*\((\d+)(?:, *(\d+))?\)")
_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns)(?:, *tz=(.+))?\]")
_NAME = re.compile(r"""\s*(?:`((?:[^`]|``)+)`|"((?:[^"]|"")+)"|([^\s:`"<>()\[\],]+))(?:\s*:|\s)""")
_COMMENT = re.compile(r"\bcomment\s*'((?:[^']|'')*)'\Z", re.IGNORECASE)
_QUOTES = "`\"'"


def parse_schema(text: str) -> pa.Schema:
    """Return the schema of `name TYPE [NOT NULL] [COMMENT '...'], ...`; the error names the column that is wrong."""
    schema = pa.schema([_field(part, MAX_LEVELS) for part in _parts(text)])
    for name in schema.names:
        if len(schema.get_all_field_indices(name)) > 1:
            raise InvalidInputError(f"Two columns have the name {name!r}.")
    return schema


def parse_type(text: object, levels: int = MAX_LEVELS) -> DataType:
    """Return an Arrow type by its name: `int64`, `BIGINT`, `decimal(12,2)`, `float32[32]`, `array<struct<a: int>>`.

    `levels`: how deep the type may nest. An Arrow type is returned as it is.
    """
    if isinstance(text, pa.DataType):
        return text
    written = str(text).strip()
    if not levels:
        raise InvalidInputError(f"A type is nested in more than {MAX_LEVELS} levels.")
    if found := _NESTED.fullmatch(written):
        return _nested(found[1].lower(), found[2], levels - 1)
    if found := _VECTOR.fullmatch(written):
        return _vector(pa.float32(), found[1])
    if found := _ELEMENTS.fullmatch(written):
        return _vector(parse_type(found[1], levels - 1), found[2])
    return _leaf(written)


def _nested(kind: str, inside: str, levels: int) -> DataType:
    parts = list(_parts(inside))
    if kind == "struct":
        return pa.struct([_field(part, levels) for part in parts])
    types = [parse_type(part, levels) for part in parts]
    if len(types) != (2 if kind == "map" else 1):
        raise InvalidInputError(f"{kind}<{inside.strip()[:200]}>: write array<TYPE> or map<TYPE, TYPE>.")
    return pa.map_(*types) if kind == "map" else pa.list_(types[0])


def _vector(of: DataType, size: str) -> DataType:
    if len(size) > len(str(MAX_VECTOR)) or not 1 <= int(size) <= MAX_VECTOR:
        raise InvalidInputError(f"A vector has 1 to {MAX_VECTOR} elements, not {size[:20]}.")
    return pa.list_(of, int(size))


def _leaf(text: str) -> DataType:
    name: Any = " ".join(text.lower().split())
    if match := _DECIMAL.fullmatch(name):
        return _decimal(text, int(match[1][:4]), int((match[2] or "0")[:4]))
    if match := _TIMESTAMP.fullmatch(text):
        return pa.timestamp(match[1], match[2])
    if name in ARROW_NAMES:
        return ARROW_NAMES[name]
    try:
        return pa.type_for_alias(name)
    except ValueError:
        pass
    try:
        return arrow_type(SQL_NAMES.get(name, name))
    except LanceNamespaceError:
        raise InvalidInputError(
            f"{text[:200]!r} is not a type: write it like 'int64', 'string', 'decimal(12,2)', 'timestamp', "
            "'vector(32)', 'array<string>' or 'struct<a: int>'."
        ) from None


def _decimal(text: str, digits: int, scale: int) -> DataType:
    if not 1 <= digits <= 38 or scale > digits:
        raise InvalidInputError(f"{text!r}: a decimal has 1 to 38 digits, and no more of them behind the point.")
    return pa.decimal128(digits, scale)


def _field(text: str, levels: int) -> Any:
    found = _NAME.match(text)
    if found is None:
        raise InvalidInputError(f"{text.strip()[:200]!r} is not a column: write `name TYPE` or `name TYPE NOT NULL`.")
    name = (found[1] or "").replace("``", "`") or (found[2] or "").replace('""', '"') or found[3]
    kind, metadata = text[found.end() :].strip(), None
    if comment := _COMMENT.search(kind):
        kind, metadata = kind[: comment.start()].rstrip(), {"comment": comment[1].replace("''", "'")}
    words = kind.rsplit(maxsplit=2)
    required = [word.lower() for word in words[1:]] == ["not", "null"]
    return pa.field(name, parse_type(words[0] if required else kind, levels), not required, metadata)


def _parts(text: str) -> Iterator[str]:
    """Split a list at the commas that stand in no brackets and no quotes."""
    depth, start, quote = 0, 0, ""
    for place, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in _QUOTES:
            quote = char
        elif char == "," and depth == 0:
            yield text[start:place]
            start = place + 1
        else:
            depth += (char in "(<[") - (char in ")>]")
    yield text[start:]
