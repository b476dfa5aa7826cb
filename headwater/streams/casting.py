"""Values in the types of a table's columns; those that do not fit are found one by one and named. Pure."""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import LanceNamespaceError
from headwater.streams.columns import is_written_as_text
from headwater.streams.grouping import flat
from headwater.types import convert

Mask = npt.NDArray[np.bool_]
FAILS = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, ValueError, TypeError)


def cast_array(array: Any, wanted: Any) -> tuple[Any, Mask]:
    """The array in the wanted type, null where a value does not fit, and where that was."""
    array = flat(array)
    nobody = np.zeros(len(array), bool)
    if array.type == wanted:
        return array, nobody
    try:
        return _cast(array, wanted), nobody
    except (*FAILS, LanceNamespaceError):
        return _cast_parts(array, wanted)


def cast_values(values: list[Any], wanted: Any) -> tuple[Any, Mask]:
    """Python values in the wanted type."""
    if is_written_as_text(wanted) and set(map(type, values)) <= {str, type(None)}:
        return cast_array(pa.array(values, pa.string()), wanted)
    try:
        if not _looks_twice(values, wanted):
            return pa.array(values, wanted, from_pandas=False), np.zeros(len(values), bool)
    except FAILS:
        pass
    bad = np.zeros(len(values), bool)
    fitting = []
    for index, value in enumerate(values):
        try:
            fitting.append(_value(value, wanted))
        except (*FAILS, InvalidOperation):
            fitting.append(None)
            bad[index] = True
    return pa.array(fitting, wanted), bad


def _looks_twice(values: list[Any], wanted: Any) -> bool:
    """Python's True is a number to Arrow, and a number a time; they are neither to us."""
    if _takes_anything(wanted):
        return False
    kinds = (int, float) if pa.types.is_temporal(wanted) else bool
    return any(isinstance(value, kinds) for value in values)


def _takes_anything(wanted: Any) -> bool:
    return bool(pa.types.is_boolean(wanted) or pa.types.is_nested(wanted))


def _value(value: Any, wanted: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, bool) and not _takes_anything(wanted):
        raise ValueError("a truth value is neither number nor text")
    if isinstance(value, str) and is_written_as_text(wanted):
        return _cast(pa.array([value]), wanted)[0].as_py()
    if pa.types.is_decimal(wanted) and isinstance(value, (float, int)):
        value = Decimal(repr(value))
    if pa.types.is_decimal(wanted) and isinstance(value, Decimal):
        value = value.quantize(Decimal(1).scaleb(-wanted.scale)) if _exact(value, wanted.scale) else value
    if isinstance(value, (int, float)) and pa.types.is_temporal(wanted):
        raise ValueError("a number is no time: its unit is not known")
    if isinstance(value, (datetime, date, time)) and not pa.types.is_temporal(wanted):
        raise ValueError("a time is no other value")
    return pa.array([value], wanted)[0].as_py()


def _exact(value: Decimal, scale: int) -> bool:
    return bool(value.is_finite() and value == value.quantize(Decimal(1).scaleb(-scale)))


def _cast(array: Any, wanted: Any) -> Any:
    if pa.types.is_timestamp(wanted) and _is_text(array.type):
        return _parse_times(array, wanted)
    if pa.types.is_nested(wanted) or isinstance(wanted, pa.BaseExtensionType):
        return convert(array, wanted)
    return array.cast(wanted, safe=True)


def _parse_times(array: Any, wanted: Any) -> Any:
    """Texts as times; one without an offset is in UTC."""
    for read in (pa.timestamp(wanted.unit, "UTC"), pa.timestamp(wanted.unit)):
        try:
            return array.cast(read).cast(wanted)
        except FAILS as error:
            failed = error
    raise failed


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view())


def _cast_parts(array: Any, wanted: Any) -> tuple[Any, Mask]:
    """Halve what fails until the values that do not fit stand alone."""
    if len(array) == 1:
        try:
            return _cast(array, wanted), np.zeros(1, bool)
        except (*FAILS, LanceNamespaceError):
            return pa.nulls(1, wanted), np.ones(1, bool)
    middle = len(array) // 2
    parts = []
    for half in (array.slice(0, middle), array.slice(middle)):
        try:
            parts.append((_cast(half, wanted), np.zeros(len(half), bool)))
        except (*FAILS, LanceNamespaceError):
            parts.append(_cast_parts(half, wanted))
    return pa.concat_arrays([flat(values) for values, _ in parts]), np.concatenate([bad for _, bad in parts])


def nulls_of(array: Any) -> Mask:
    found: Mask = array.is_null().to_numpy(zero_copy_only=False)
    return found


def nans_of(array: Any) -> Mask:
    if not pa.types.is_floating(array.type):
        return np.zeros(len(array), bool)
    nans: Any = pc.is_nan(array).fill_null(False)
    found: Mask = nans.to_numpy(zero_copy_only=False)
    return found
