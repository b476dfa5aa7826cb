"""Values in the types of a table's columns; those that do not fit are found one by one and named. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Context, Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.errors import LanceNamespaceError
from headwater.imports import pc
from headwater.streams.rows.column_types import is_written_as_text
from headwater.streams.rows.row_keys import Mask, flat
from headwater.types import convert

INFINITE = float("inf")
DIGITS = Context(prec=100)
"""More digits than any decimal of Arrow has."""
MOST = 10**40
"""More than any whole number of Arrow is."""
NOT_FINITE = {"NaN": float("nan"), "Infinity": INFINITE, "-Infinity": -INFINITE}
"""Numbers that JSON has no other way to write than as these texts."""
FAILS = (pa.ArrowException, LanceNamespaceError, OverflowError, ValueError, TypeError, RecursionError)


def cast_array(array: Any, wanted: pa.DataType) -> tuple[Any, Mask]:
    """Return the array in the wanted type, null where a value does not fit, and a mask of those places."""
    array = flat(array)
    nobody = np.zeros(len(array), bool)
    if array.type == wanted:
        return array, nobody
    try:
        return _cast(array, wanted), nobody
    except FAILS:
        return _cast_parts(array, wanted)


def cast_values(values: list[Any], wanted: pa.DataType) -> tuple[Any, Mask]:
    """Python values in the wanted type. Arrow would cut some of them short (1.5 is 1 to it, a time a date).

    The parts of nested values are cast by their own types, at any depth.
    """
    kinds = set(map(type, values))
    if Decimal in kinds and not pa.types.is_decimal(wanted):
        values = [_number(value, wanted) if type(value) is Decimal else value for value in values]
        kinds = set(map(type, values))
    if str in kinds and pa.types.is_floating(wanted):
        values = [NOT_FINITE.get(value, value) if type(value) is str else value for value in values]
        kinds = set(map(type, values))
    if is_written_as_text(wanted) and kinds <= {str, type(None)}:
        return cast_array(pa.array(values, pa.string()), wanted)
    try:
        if _is_kept(values, kinds, wanted):
            found = pa.array(values, wanted, from_pandas=False)
            if not pa.types.is_nested(wanted) or not _has_infinite(found):
                return found, np.zeros(len(values), bool)
    except FAILS:
        pass
    nested = _cast_nested(values, wanted)
    if nested is not None:
        return nested
    bad = np.zeros(len(values), bool)
    fitting = []
    for index, value in enumerate(values):
        try:
            fitting.append(_value(value, wanted))
        except (*FAILS, InvalidOperation):
            fitting.append(None)
            bad[index] = True
    return pa.array(fitting, wanted), bad


# Nested values, part by part ------------------------------------------------------------------------------------------


def _cast_nested(values: list[object], wanted: pa.DataType) -> tuple[object, Mask] | None:
    """Return values of lists, structs and maps, whose parts are cast as columns; None for any other type."""
    types = pa.types
    if types.is_map(wanted):
        return _cast_maps(values, wanted)
    if types.is_list(wanted) or types.is_large_list(wanted) or types.is_fixed_size_list(wanted):
        return _cast_lists(values, wanted)
    return _cast_structs(values, wanted) if types.is_struct(wanted) else None


def _cast_lists(values: Sequence[object], wanted: Any) -> tuple[Any, Mask]:
    size = wanted.list_size if pa.types.is_fixed_size_list(wanted) else None
    lists, bad = _parts(values, lambda value: _items(value, size))
    items, wrong = cast_values([item for each in lists for item in each or ()], wanted.value_type)
    bad |= _any_in(lists, wrong)
    keep = [None if bad[place] else each for place, each in enumerate(lists)]
    if size is not None:
        places = np.full((len(lists), size), -1)
        start = 0
        for row, each in enumerate(lists):
            if keep[row] is not None:
                places[row] = np.arange(start, start + size)
            start += len(each or ())
        flat_places = pa.array(places.ravel(), mask=places.ravel() < 0)
        made = items.take(flat_places) if size else items.slice(0, 0)
        mask = pa.array([each is None for each in keep], pa.bool_())
        return pa.FixedSizeListArray.from_arrays(made, type=wanted, mask=mask), bad
    maker = pa.LargeListArray if pa.types.is_large_list(wanted) else pa.ListArray
    return maker.from_arrays(_offsets(lists, maker), items, type=wanted, mask=_gone(keep)), bad


def _cast_maps(values: Sequence[object], wanted: Any) -> tuple[object, Mask]:
    pairs, bad = _parts(values, _pairs)
    keys, wrong_keys = cast_values([key for each in pairs for key, _ in each or ()], wanted.key_type)
    items, wrong = cast_values([item for each in pairs for _, item in each or ()], wanted.item_type)
    bad |= _any_in(pairs, wrong | wrong_keys | nulls_of(keys))
    keep = [None if bad[place] else each for place, each in enumerate(pairs)]
    if nulls_of(keys).any():  # Arrow has no map with a key that is NULL, not even where nobody sees it
        good = [dict(each) if each is not None else None for each in keep]
        return _cast_maps(good, wanted)[0], bad
    return pa.MapArray.from_arrays(_offsets(pairs, pa.ListArray), keys, items, type=wanted, mask=_gone(keep)), bad


def _cast_structs(values: Sequence[object], wanted: pa.DataType) -> tuple[object, Mask]:
    fields = [wanted.field(place) for place in range(wanted.num_fields)]
    names = [field.name for field in fields]
    structs, bad = _parts(values, lambda value: _named(value, names))
    columns = []
    for field in fields:
        column, wrong = cast_values([None if each is None else each.get(field.name) for each in structs], field.type)
        columns.append(column)
        bad |= wrong
    gone = pa.array([bad[place] or each is None for place, each in enumerate(structs)], pa.bool_())
    return pa.StructArray.from_arrays(columns, fields=fields, mask=gone), bad


def _parts(values: Sequence[object], read: Callable[[Any], object]) -> tuple[list[Any], Mask]:
    """Return values as `read` gives them, None where one is none or cannot be read, and where that was."""
    bad = np.zeros(len(values), bool)
    found: list[object] = []
    for place, value in enumerate(values):
        try:
            found.append(None if value is None else read(value))
        except (TypeError, ValueError):
            found.append(None)
            bad[place] = True
    return found, bad


def _items(value: Any, size: int | None) -> list[Any]:
    if isinstance(value, (str, bytes, Mapping)):
        raise TypeError("no list")
    found = value if isinstance(value, list) else list(value)
    if size is not None and len(found) != size:
        raise ValueError("a list of another size")
    return found


def _pairs(value: object) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.items())
    return [(key, item) for key, item in _items(value, None)]


def _named(value: object, names: Sequence[str]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        return dict(zip(names, _items(value, None), strict=True))
    if not value.keys() <= set(names):
        raise ValueError("a field that the type lacks")
    return value


def _offsets(lists: list[Any], maker: object) -> Any:
    ends = np.cumsum([0, *(len(each or ()) for each in lists)])
    return pa.array(ends, pa.int64() if maker is pa.LargeListArray else pa.int32())


def _gone(keep: Sequence[object]) -> Any:
    return pa.array([each is None for each in keep], pa.bool_()) if None in keep else None


def _any_in(lists: list[Any], wrong: Mask) -> Mask:
    """Return a mask of the lists that have a wrong part."""
    if not wrong.any():
        return np.zeros(len(lists), bool)
    owners = np.repeat(np.arange(len(lists)), [len(each or ()) for each in lists])
    found: Mask = np.bincount(owners[wrong], minlength=len(lists)) > 0
    return found


def _has_infinite(array: Any) -> bool:
    """Return whether a part is infinite: it may have been a number that is too large for its type."""
    if pa.types.is_floating(array.type):
        return bool(pc.any(pc.is_inf(array)).as_py())
    if pa.types.is_struct(array.type):
        return any(_has_infinite(part) for part in array.flatten())
    if pa.types.is_map(array.type):
        return _has_infinite(array.keys) or _has_infinite(array.items)
    return hasattr(array, "flatten") and pa.types.is_nested(array.type) and _has_infinite(array.flatten())


# Values ---------------------------------------------------------------------------------------------------------------


def _is_kept(values: Sequence[object], kinds: set[type], wanted: pa.DataType) -> bool:
    """Return True if Arrow takes such values whole, or fails: else each is looked at."""
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


def _may_lose(kind: pa.DataType) -> bool:
    """Return True if Arrow would lose something of a value of Python in the parts of a nested type."""
    if pa.types.is_struct(kind) or pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        return True
    return any(_may_lose(kind.field(place).type) for place in range(kind.num_fields))


def _value(value: object, wanted: pa.DataType) -> Any:
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


def _loses(value: Any, found: Any, kind: pa.DataType) -> bool:
    """Return True if Arrow changed a value. Rounding of floats to the precision of the type does not count."""
    types = pa.types
    if value is None or found is None:
        return value is not found
    if types.is_integer(kind):
        return bool(value != found)
    if types.is_floating(kind):
        return bool(abs(found) == INFINITE and abs(value) != INFINITE)
    if types.is_temporal(kind):
        return isinstance(value, (int, float)) or _is_cut(value, kind)
    return False


def _is_cut(value: Any, kind: Any) -> bool:
    """Return True if a time is finer than a type of times is."""
    if pa.types.is_date(kind):
        return isinstance(value, datetime) and value.time() != time()
    step = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[kind.unit]
    micros = getattr(value, "microseconds", 0) if isinstance(value, timedelta) else getattr(value, "microsecond", 0)
    nanos = getattr(value, "nanoseconds", 0) if isinstance(value, timedelta) else getattr(value, "nanosecond", 0)
    return bool((micros * 1000 + nanos) % step)


def _exact(value: Decimal, scale: int) -> bool:
    return bool(value.is_finite() and value == value.quantize(Decimal(1).scaleb(-scale), context=DIGITS))


def _cast(array: Any, wanted: pa.DataType) -> Any:
    if pa.types.is_timestamp(wanted) and _is_text(array.type):
        return _parse_times(array, wanted)
    if pa.types.is_time(wanted) and _is_text(array.type):  # Arrow reads times of a day only behind a day
        days: Any = pc.binary_join_element_wise("1970-01-01T", array.cast(pa.string()), "")
        times: Any = _parse_times(days, pa.timestamp(wanted.unit))  # one with an offset is that time in UTC
        return times.cast(wanted)
    if pa.types.is_date(wanted) and _is_text(array.type):  # ISO dates may name their zone, which moves no day
        array = pc.replace_substring_regex(array.cast(pa.string()), r"^(\d{4}-\d{2}-\d{2})Z$", r"\1")
    cast = convert(array, wanted, exact=True)
    if pa.types.is_floating(array.type) and (pa.types.is_floating(wanted) or pa.types.is_decimal(wanted)):
        _check_rounded(array, cast)
    return cast


def _check_rounded(before: Any, after: Any) -> None:
    """A number of a column keeps every bit (parts of lists and structs are rounded to their precision)."""
    same: Any = pc.or_kleene(pc.equal(after.cast(before.type), before), pc.is_nan(before))
    if pc.all(same).as_py() is False:
        raise pa.ArrowInvalid(f"a number of type {before.type} is none of type {after.type}")


def _parse_times(array: Any, wanted: Any) -> object:
    """Texts as times; one without an offset is in UTC."""
    for read in (pa.timestamp(wanted.unit, "UTC"), pa.timestamp(wanted.unit)):
        try:
            return array.cast(read).cast(wanted)
        except FAILS as error:
            failed = error
    raise failed


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view())


def _cast_parts(array: Any, wanted: Any) -> tuple[object, Mask]:
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


def _number(value: Decimal, wanted: pa.DataType) -> Any:
    """Return a number of JSON that was read to its last digit, as a column that is no decimal takes it."""
    if pa.types.is_integer(wanted) and value.is_finite() and value == value.to_integral_value():
        return int(value) if abs(value) < MOST else value
    return as_float(value)


def floats(value: object) -> object:
    """Return a value of JSON that was read to the last digit, with numbers as Python has them."""
    if isinstance(value, dict):
        return {name: floats(part) for name, part in value.items()}
    if isinstance(value, list):
        return [floats(part) for part in value]
    return as_float(value) if isinstance(value, Decimal) else value


def has_decimals(kind: pa.DataType) -> bool:
    """Return whether values of this type have decimals in them, at any depth."""
    if pa.types.is_decimal(kind):
        return True
    return any(has_decimals(kind.field(place).type) for place in range(kind.num_fields))


def as_float(value: Decimal) -> float | Decimal:
    """Return a number of JSON that was read to its last digit, as Python has it; one beyond all of those stays, and
    fits nowhere."""
    found = float(value)
    return value if abs(found) == INFINITE else found


def nulls_of(array: Any) -> Mask:
    if not array.null_count and pa.types.is_primitive(array.type):
        return np.zeros(len(array), bool)
    found: Mask = array.is_null().to_numpy(zero_copy_only=False)
    return found


def nans_of(array: Any) -> Mask:
    """Return a mask of the values that are NaN, of numbers or of Python objects."""
    if isinstance(array, list):
        return np.fromiter((isinstance(value, float) and value != value for value in array), bool, len(array))
    if not pa.types.is_floating(array.type):
        return np.zeros(len(array), bool)
    nans: Any = pc.is_nan(array).fill_null(False)
    found: Mask = nans.to_numpy(zero_copy_only=False)
    return found
