"""Infers the columns of a source from its first rows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headwater.errors import InvalidInputError
from headwater.streams.rows.input_rows import given

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
