"""Dates and times that come as plain numbers, from messages without a schema: days, and a unit that is told. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from headwater.errors import InvalidInputError
from headwater.streams.casting import FAILS
from headwater.streams.definition import Definition
from headwater.streams.given import Given
from headwater.streams.sources.connect import days, moment, time_of_day

UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def check_unit(unit: str | None) -> None:
    if unit is not None and unit not in UNITS:
        raise InvalidInputError(f"The time_unit {unit!r} is none of {', '.join(UNITS)}.")


def with_times(data: Given, definition: Definition, unit: str | None) -> Given:
    """The same rows: where a column has dates or times a number is one, of times only if their unit is told."""
    read = {name: _read(values, definition, name, unit) for name, values in data.columns.items()}
    return replace(data, columns=read)


def _read(values: Any, definition: Definition, name: str, unit: str | None) -> Any:
    column = definition.by_name.get(name)
    if column is None or not isinstance(values, list) or not pa.types.is_temporal(column.type):
        return values
    kinds = set(map(type, values))
    if int not in kinds:
        return values
    if pa.types.is_timestamp(column.type) and unit is not None and kinds <= {int, type(None)}:
        try:
            return pa.array(values, pa.int64()).cast(pa.timestamp(unit, column.type.tz))
        except FAILS:
            pass
    reader = _reader(column.type, unit)
    return values if reader is None else [_tried(reader, value) if type(value) is int else value for value in values]


def _reader(kind: Any, unit: str | None) -> Callable[[Any], Any] | None:
    if pa.types.is_date(kind):
        return days
    if unit is None:
        return None
    if pa.types.is_time(kind):
        return time_of_day(UNITS[unit])
    return moment(UNITS[unit]) if pa.types.is_timestamp(kind) else None


def _tried(reader: Callable[[Any], Any], value: int) -> Any:
    """A number too large for a time stays one, and will not fit its column."""
    try:
        return reader(value)
    except (OverflowError, ValueError):
        return value
