"""Values of messages without a schema, by the types of their columns at any depth. Pure.

Bytes come in base64, dates as days, times as numbers whose unit is an option, decimals of any scale as an object, maps
and other nested values perhaps as a text of JSON.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

from headwater.errors import InvalidInputError
from headwater.streams.definition import Definition
from headwater.streams.rows.column_casts import FAILS, floats
from headwater.streams.rows.input_rows import Given
from headwater.streams.sources.connect_values import days, moment, time_of_day, variable_decimal

UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
NOTHING = type(None)
_DECODER: Any = msgspec.json.Decoder(float_hook=Decimal)


@dataclass(frozen=True)
class ValueReader:
    """A reader of values of some Python types; others are as they should be."""

    read: Callable[[Any], Any]
    types: frozenset[type]

    def __call__(self, value: Any) -> Any:
        """The value; one that is not what its type wants stays, and will not fit its column."""
        if type(value) not in self.types:
            return value
        try:
            return self.read(value)
        except (ArithmeticError, LookupError, TypeError, ValueError, binascii.Error, msgspec.DecodeError):
            return value


def check_unit(unit: str | None) -> None:
    if unit is not None and unit not in UNITS:
        raise InvalidInputError(f"The time_unit {unit!r} is none of {', '.join(UNITS)}.")


def with_values(data: Given, definition: Definition, unit: str | None) -> Given:
    """The same rows, with values as the types of the columns want them; a number is a time only if `unit` is told."""
    kinds = {column.name: column.type for column in definition.columns}
    return replace(data, columns={name: _read(values, kinds.get(name), unit) for name, values in data.columns.items()})


def _read(values: Any, kind: Any, unit: str | None) -> Any:
    if not isinstance(values, list):
        return values
    kinds = set(map(type, values))
    if kind is None or (Decimal in kinds and pa.types.is_floating(kind)):  # the type of a new column its values tell
        return [floats(value) for value in values]
    if pa.types.is_timestamp(kind) and unit is not None and int in kinds and kinds <= {int, NOTHING}:
        try:
            return pa.array(values, pa.int64()).cast(pa.timestamp(unit, kind.tz))
        except FAILS:
            pass
    reader = reader_of(kind, unit)
    return values if reader is None or not kinds & reader.types else [reader(value) for value in values]


def reader_of(kind: Any, unit: str | None = None) -> ValueReader | None:
    """Return the reader of values of a type; None: they are taken as they are."""
    types = pa.types
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return ValueReader(lambda value: base64.b64decode(value, validate=True), frozenset([str]))
    if types.is_decimal(kind):
        return ValueReader(variable_decimal, frozenset([dict]))
    if types.is_date(kind):
        return ValueReader(days, frozenset([int]))
    if types.is_time(kind):
        return ValueReader(time_of_day(UNITS[unit]), frozenset([int])) if unit is not None else None
    if types.is_timestamp(kind):
        return ValueReader(moment(UNITS[unit]), frozenset([int])) if unit is not None else None
    return _nested_reader(kind, unit) if types.is_nested(kind) else None


def _nested_reader(kind: Any, unit: str | None) -> ValueReader:
    """Return the reader of nested values: their parts by their own types, a text as the JSON that it is."""
    parts = _parts_reader(kind, unit)

    def read(value: Any) -> Any:
        value = _DECODER.decode(value) if isinstance(value, str) else value
        return value if parts is None else parts(value)

    return ValueReader(read, frozenset([str]) if parts is None else frozenset([str, list, dict]))


def _parts_reader(kind: Any, unit: str | None) -> Callable[[Any], Any] | None:
    if pa.types.is_struct(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        readers = {field.name: found for field in fields if (found := reader_of(field.type, unit)) is not None}

        def by_name(value: Mapping[str, Any]) -> Any:
            return {name: readers[name](part) if name in readers else part for name, part in value.items()}

        return by_name if readers else None
    item = reader_of(kind.item_type if pa.types.is_map(kind) else kind.value_type, unit)
    if item is None:
        return None
    if not pa.types.is_map(kind):
        return lambda value: [item(part) for part in value] if isinstance(value, list) else value
    return lambda value: {name: item(part) for name, part in value.items()}
