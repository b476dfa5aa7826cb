"""Values in the types of a table's columns; those that do not fit are found one by one and named. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Context, Decimal, InvalidOperation
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
INFINITE = float("inf")
DIGITS = Context(prec=100)
"""More digits than any decimal of Arrow has."""
FAILS = (pa.ArrowException, LanceNamespaceError, OverflowError, ValueError, TypeError, RecursionError)


def cast_array(array: Any, wanted: Any) -> tuple[Any, Mask]:
    """The array in the wanted type, null where a value does not fit, and where that was."""
    array = flat(array)
    nobody = np.zeros(len(array), bool)
    if array.type == wanted:
        return array, nobody
    try:
        return _cast(array, wanted), nobody
    except FAILS:
        return _cast_parts(array, wanted)


def cast_values(values: list[Any], wanted: Any) -> tuple[Any, Mask]:
    """Python values in the wanted type. Arrow would cut some of them short (1.5 is 1 to it, a time a date)."""
    kinds = set(map(type, values))
    if is_written_as_text(wanted) and kinds <= {str, type(None)}:
        return cast_array(pa.array(values, pa.string()), wanted)
    try:
        if _is_kept(values, kinds, wanted):
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


def _is_kept(values: list[Any], kinds: set[type], wanted: Any) -> bool:
    """Whether Arrow takes such values whole, or fails: else each is looked at."""
    types = pa.types
    kinds = kinds - {type(None)}
    if types.is_integer(wanted):
        return kinds <= {int}
    if types.is_floating(wanted):
        return kinds <= {float, int} and (wanted == pa.float64() or all(_is_small(v) for v in values))
    if types.is_date(wanted):
        return kinds <= {date}
    if types.is_timestamp(wanted) and wanted.unit in ("us", "ns"):
        return kinds <= {datetime}
    if types.is_temporal(wanted):
        return False
    if types.is_nested(wanted):
        return not _may_lose(wanted)
    return bool not in kinds or types.is_boolean(wanted)


def _is_small(value: Any) -> bool:
    return value is None or -60000 < value < 60000 or value != value or abs(value) == INFINITE


def _may_lose(kind: Any) -> bool:
    """Whether Arrow would lose something of a value of Python in the parts of a nested type."""
    if pa.types.is_struct(kind) or pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        return True
    return any(_may_lose(kind.field(place).type) for place in range(kind.num_fields))


def _value(value: Any, wanted: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, bool) and not (pa.types.is_boolean(wanted) or pa.types.is_nested(wanted)):
        raise ValueError("a truth value is neither number nor text")
    if isinstance(value, str) and is_written_as_text(wanted):
        return _cast(pa.array([value]), wanted)[0].as_py()
    if pa.types.is_decimal(wanted) and isinstance(value, (float, int)):
        value = Decimal(repr(value))
    if pa.types.is_decimal(wanted) and isinstance(value, Decimal):
        value = (
            value.quantize(Decimal(1).scaleb(-wanted.scale), context=DIGITS) if _exact(value, wanted.scale) else value
        )
    if isinstance(value, (datetime, date, time)) and not (pa.types.is_temporal(wanted) or pa.types.is_nested(wanted)):
        raise ValueError("a time is no other value")
    if pa.types.is_timestamp(wanted) and type(value) is date:
        value = datetime(value.year, value.month, value.day)
    found = pa.array([value], wanted)[0].as_py()
    if _loses(value, found, wanted):
        raise ValueError("the type has no such value")
    return found


def _loses(value: Any, found: Any, kind: Any) -> bool:
    """Whether Arrow made something else of a value. Floating-point numbers are rounded to the precision of the type."""
    types = pa.types
    if value is None or found is None:
        return value is not found
    if types.is_integer(kind):
        return bool(value != found)
    if types.is_floating(kind):
        return bool(abs(found) == INFINITE and abs(value) != INFINITE)
    if types.is_temporal(kind):
        return isinstance(value, (int, float)) or _is_cut(value, kind)
    if types.is_struct(kind) and isinstance(value, Mapping):
        fields = {kind.field(place).name: kind.field(place).type for place in range(kind.num_fields)}
        return any(name not in fields or _loses(part, found[name], fields[name]) for name, part in value.items())
    if types.is_map(kind):
        pairs = value.items() if isinstance(value, Mapping) else value
        return any(_loses(one[1], other[1], kind.item_type) for one, other in zip(pairs, found, strict=True))
    item: Any = getattr(kind, "value_type", None)
    if item is None or not types.is_nested(kind) or not _may_lose(item):
        return False
    return any(_loses(one, other, item) for one, other in zip(value, found, strict=True))


def _is_cut(value: Any, kind: Any) -> bool:
    """Whether a time is finer than a type of times is."""
    if pa.types.is_date(kind):
        return isinstance(value, datetime) and value.time() != time()
    step = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[kind.unit]
    micros = getattr(value, "microseconds", 0) if isinstance(value, timedelta) else getattr(value, "microsecond", 0)
    nanos = getattr(value, "nanoseconds", 0) if isinstance(value, timedelta) else getattr(value, "nanosecond", 0)
    return bool((micros * 1000 + nanos) % step)


def _exact(value: Decimal, scale: int) -> bool:
    return bool(value.is_finite() and value == value.quantize(Decimal(1).scaleb(-scale), context=DIGITS))


def _cast(array: Any, wanted: Any) -> Any:
    if pa.types.is_timestamp(wanted) and _is_text(array.type):
        return _parse_times(array, wanted)
    if pa.types.is_time(wanted) and _is_text(array.type):  # Arrow reads times of a day only behind a day
        days: Any = pc.binary_join_element_wise("1970-01-01T", array.cast(pa.string()), "")
        return days.cast(pa.timestamp(wanted.unit)).cast(wanted)
    cast = convert(array, wanted, exact=True)
    if pa.types.is_floating(array.type) and (pa.types.is_floating(wanted) or pa.types.is_decimal(wanted)):
        _check_rounded(array, cast)
    return cast


def _check_rounded(before: Any, after: Any) -> None:
    """A number of a column keeps every bit (parts of lists and structs are rounded to their precision)."""
    same: Any = pc.or_kleene(pc.equal(after.cast(before.type), before), pc.is_nan(before))
    if pc.all(same).as_py() is False:
        raise pa.ArrowInvalid(f"a number of type {before.type} is none of type {after.type}")


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
        except FAILS:
            return pa.nulls(1, wanted), np.ones(1, bool)
    middle = len(array) // 2
    parts = []
    for half in (array.slice(0, middle), array.slice(middle)):
        try:
            parts.append((_cast(half, wanted), np.zeros(len(half), bool)))
        except FAILS:
            parts.append(_cast_parts(half, wanted))
    return pa.concat_arrays([flat(values) for values, _ in parts]), np.concatenate([bad for _, bad in parts])


def as_float(value: Decimal) -> float | Decimal:
    """A number of JSON that was read to its last digit, as Python has it; one beyond all of those stays, and fits
    nowhere."""
    found = float(value)
    return value if abs(found) == INFINITE else found


def nulls_of(array: Any) -> Mask:
    found: Mask = array.is_null().to_numpy(zero_copy_only=False)
    return found


def nans_of(array: Any) -> Mask:
    """Where numbers, or values of Python, are NaN."""
    if isinstance(array, list):
        return np.fromiter((isinstance(value, float) and value != value for value in array), bool, len(array))
    if not pa.types.is_floating(array.type):
        return np.zeros(len(array), bool)
    nans: Any = pc.is_nan(array).fill_null(False)
    found: Mask = nans.to_numpy(zero_copy_only=False)
    return found
