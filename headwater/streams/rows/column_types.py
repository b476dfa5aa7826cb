"""Types of stream columns: which may serve as key or sequence, widen, and be cast. Pure."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headwater.schema_text import MAX_LEVELS

DataType = Any


def can_be_kept(kind: DataType, levels: int = MAX_LEVELS) -> bool:
    """Return True if the files of a log have a place for values of this type, which may be nested in so many levels."""
    types = pa.types
    if not levels or types.is_union(kind) or types.is_run_end_encoded(kind) or types.is_interval(kind):
        return False
    if types.is_struct(kind) and not kind.num_fields:
        return False
    if types.is_dictionary(kind):
        return can_be_kept(kind.value_type, levels)
    if types.is_decimal(kind):
        return bool(0 <= kind.scale <= kind.precision)
    return all(can_be_kept(kind.field(place).type, levels - 1) for place in range(kind.num_fields))


def can_be_key(kind: DataType) -> bool:
    """Return True if values of this type have one identity: no floats, nothing nested."""
    return _is_plain(kind) and not pa.types.is_floating(kind)


def can_be_sequence(kind: DataType) -> bool:
    return _is_plain(kind)


def _is_plain(kind: DataType) -> bool:
    return not (pa.types.is_nested(kind) or pa.types.is_null(kind) or isinstance(kind, pa.BaseExtensionType))


def widens(old: DataType, new: DataType) -> bool:
    """Return True if every value of the old type is a value of the new one, of the same kind of type."""
    if old == new:
        return True
    if pa.types.is_integer(old) and pa.types.is_integer(new):
        signed = pa.types.is_signed_integer
        if signed(old) == signed(new):
            return bool(new.bit_width > old.bit_width)
        return bool(signed(new) and new.bit_width > old.bit_width)
    if pa.types.is_floating(old) and pa.types.is_floating(new):
        return bool(new.bit_width > old.bit_width)
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        return bool(new.scale >= old.scale and new.precision - new.scale >= old.precision - old.scale)
    return (old, new) in ((pa.string(), pa.large_string()), (pa.binary(), pa.large_binary()))


def common(old: DataType, new: DataType) -> DataType | None:
    """Return the type that a column must have to hold both, if one of them widens to it; None: there is none."""
    if widens(new, old):
        return old
    if widens(old, new):
        return new
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        scale = max(old.scale, new.scale)
        whole = max(old.precision - old.scale, new.precision - new.scale)
        return pa.decimal128(whole + scale, scale) if whole + scale <= 38 else None
    return None


def may_cast(given: DataType, wanted: DataType) -> bool:
    """Return True if values of one type may be cast to the other at all; each may still not fit.

    Numbers are taken as numbers, and texts as times and as decimals, which JSON has no other way to write; nothing is
    made a text, and no text another number.
    """
    types = pa.types
    if given == wanted or types.is_null(given):
        return True
    if isinstance(given, pa.BaseExtensionType):
        return may_cast(given.storage_type, wanted)
    if types.is_dictionary(given):
        return may_cast(given.value_type, wanted)
    if isinstance(wanted, pa.BaseExtensionType):
        return may_cast(given, wanted.storage_type)
    if _family(given) == _family(wanted) and _family(given) is not None:
        return True
    if _family(given) == "text" and is_written_as_text(wanted):
        return True
    if _family(given) == "binary" and types.is_fixed_size_binary(wanted):
        return True
    if types.is_date(given) and types.is_timestamp(wanted):
        return True
    return types.is_nested(wanted) and _nested_fits(given, wanted)


def is_written_as_text(kind: DataType) -> bool:
    """Return True if a text is taken for a value of this type: a time, or a decimal with all of its digits."""
    types = pa.types
    return (types.is_temporal(kind) and not types.is_duration(kind)) or types.is_decimal(kind)


def _family(kind: DataType) -> str | None:
    types = pa.types
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    if types.is_string(kind) or types.is_large_string(kind) or kind == pa.string_view():
        return "text"
    if types.is_binary(kind) or types.is_large_binary(kind) or kind == pa.binary_view():
        return "binary"
    for name in ("boolean", "timestamp", "date", "time", "duration"):
        if getattr(types, f"is_{name}")(kind):
            return name
    return None


def _nested_fits(given: DataType, wanted: DataType) -> bool:
    types = pa.types
    if types.is_struct(wanted):
        if not types.is_struct(given):
            return False
        names = {wanted.field(place).name: wanted.field(place).type for place in range(wanted.num_fields)}
        fields = [given.field(place) for place in range(given.num_fields)]
        return all(each.name in names and may_cast(each.type, names[each.name]) for each in fields)
    if types.is_map(wanted):
        return (
            types.is_map(given)
            and may_cast(given.key_type, wanted.key_type)
            and may_cast(given.item_type, wanted.item_type)
        )
    is_list = types.is_list(given) or types.is_large_list(given) or types.is_fixed_size_list(given)
    is_list = is_list or types.is_list_view(given) or types.is_large_list_view(given)
    return bool(is_list and may_cast(given.value_type, wanted.value_type))
