"""Columns as SQL lists them, `id BIGINT NOT NULL, total DOUBLE`, or as the first rows of a source show. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from headwater.errors import InvalidInputError
from headwater.streams.rows.column_types import parse_type
from headwater.streams.rows.input_rows import given

_COLUMN = re.compile(r"\s*(?:`([^`]+)`|(\w+))\s+(.+?)(\s+not\s+null)?\s*", re.IGNORECASE | re.DOTALL)
DIGITS = 38
ENVELOPE = {
    "_lsn": pa.int64(),
    "_ts_ms": pa.int64(),
    "_pos": pa.int64(),
    "_file": pa.string(),
    "_txid": pa.int64(),
    "_offset": pa.int64(),
    "_partition": pa.int64(),
    "_timestamp": pa.timestamp("ms", "UTC"),
}
"""What Debezium's envelope and a topic offer, for tables that order their events by it."""


def parse_columns(text: str) -> pa.Schema:
    """A schema from `name TYPE [NOT NULL], ...`; 13 names the column that is not understood."""
    fields = []
    for part in _parts(text):
        found = _COLUMN.fullmatch(part)
        if found is None:
            raise InvalidInputError(f"{part.strip()!r} is no column: write `name TYPE` or `name TYPE NOT NULL`.")
        name = found[1] or found[2]
        fields.append(pa.field(name, parse_type(found[3].strip()), nullable=found[4] is None))
    return pa.schema(fields)


def _parts(text: str) -> Iterator[str]:
    """The columns, at the commas that stand in no brackets."""
    depth, start = 0, 0
    for place, char in enumerate(text):
        depth += (char in "(<[") - (char in ")>]")
        if char == "," and depth == 0:
            yield text[start:place]
            start = place + 1
    yield text[start:]


def infer_columns(data: object, keys: Sequence[str], sequence: Sequence[str]) -> pa.Schema:
    """The schema of the first rows of a source. A column without any value has no type yet, and comes later."""
    rows = given(data)
    fields = []
    for name, values in rows.columns.items():
        kind = _type(name, values)
        if kind is None and name in (*keys, *sequence):
            raise InvalidInputError(f"The column {name!r} has no value in the first file: write the table's schema.")
        if kind is not None:
            fields.append(pa.field(name, kind))
    known = {field.name for field in fields}
    fields += [pa.field(name, ENVELOPE[name]) for name in sequence if name in ENVELOPE and name not in known]
    return pa.schema(fields)


def _roomy(kind: Any) -> Any:
    """The type of values of Python: decimals tell how many digits they have, not how many there may be."""
    return pa.decimal128(DIGITS, kind.scale) if pa.types.is_decimal(kind) and kind.precision <= DIGITS else kind


def _type(name: str, values: Any) -> Any:
    if isinstance(values, list):
        try:
            kind: Any = _roomy(pa.array(values).type)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise InvalidInputError(
                f"The column {name!r} has values of different types in the first file: {error}. Write its schema."
            ) from None
    else:
        kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    return None if pa.types.is_null(kind) else kind
