"""Size of an array once decoded: view, dictionary, run-end and union arrays can be far smaller than their values.

Only counted, never decoded. Where an exact count would need that, the result is an upper bound.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

Array = Any


def unpacked_bytes(array: Array) -> int:
    """Return the bytes of an array's values when each is written out; for nested repetition, at least that."""
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return unpacked_bytes(array.storage)
    if kinds.is_dictionary(kind):
        return _repeated(array.dictionary, len(array), array.indices)
    if kinds.is_run_end_encoded(kind):
        return _repeated(array.values, len(array))
    if kinds.is_list_view(kind) or kinds.is_large_list_view(kind):
        return int(array.nbytes) + _repeated(array.values, _sum(pc.list_value_length(array)))
    if kinds.is_union(kind):
        return sum(_repeated(array.field(i), len(array)) for i in range(kind.num_fields))
    if kinds.is_struct(kind):
        return sum(unpacked_bytes(array.field(i)) for i in range(kind.num_fields))
    if kinds.is_map(kind):
        return unpacked_bytes(array.keys) + unpacked_bytes(array.items)
    if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
        return int(array.nbytes) + (unpacked_bytes(array.values) if repeats(kind.value_type) else 0)
    if kinds.is_string_view(kind) or kinds.is_binary_view(kind):
        return _sum(_lengths(array))
    return int(array.nbytes)


def _repeated(values: Array, count: int, indices: Array | None = None) -> int:
    """The size of `count` of the values: of those that `indices` name, or of the largest."""
    if len(values) == 0 or count == 0:
        return 0
    if not _has_lengths(values.type):
        each = -(-unpacked_bytes(values) // len(values)) if _has_one_width(values.type) else unpacked_bytes(values)
        return each * count
    lengths = _lengths(values)
    if indices is not None:
        return _sum(lengths.take(indices))
    return int(pc.max(lengths).as_py() or 0) * count


def _lengths(values: Array) -> Array:
    if kinds.is_string_view(values.type) or kinds.is_binary_view(values.type):
        return _view_lengths(values)
    lengths: Any = pc.binary_length(values)
    return lengths.cast(pa.int64())


def _view_lengths(values: Array) -> Array:
    """A view is 16 bytes, the first four of which are its length (Arrow's format, "Variable-size Binary View")."""
    views = values.buffers()[1]
    if views is None:
        return pa.nulls(0, pa.int64())
    words = pa.Array.from_buffers(pa.int32(), 4 * len(values), [None, views], offset=4 * values.offset)
    lengths: Any = pc.list_element(pa.FixedSizeListArray.from_arrays(words, 4), 0)
    return pc.if_else(values.is_valid(), lengths, 0).cast(pa.int64())


def _sum(lengths: Array) -> int:
    if len(lengths) and int(pc.min(lengths).as_py() or 0) < 0:
        raise ValueError("a length is negative")
    return int(pc.sum(lengths).as_py() or 0)


def _has_lengths(kind: Any) -> bool:
    is_view = kinds.is_string_view(kind) or kinds.is_binary_view(kind)
    is_text = kinds.is_string(kind) or kinds.is_large_string(kind)
    return bool(is_view or is_text or kinds.is_binary(kind) or kinds.is_large_binary(kind))


def _has_one_width(kind: Any) -> bool:
    return bool(kinds.is_primitive(kind) or kinds.is_fixed_size_binary(kind) or kinds.is_null(kind))


def repeats(kind: Any) -> bool:
    """Return whether a type holds views, dictionaries, runs or unions anywhere."""
    if isinstance(kind, pa.BaseExtensionType):
        return repeats(kind.storage_type)
    is_view = kinds.is_string_view(kind) or kinds.is_binary_view(kind) or kinds.is_list_view(kind)
    is_run = kinds.is_run_end_encoded(kind) or kinds.is_union(kind)
    if is_view or is_run or kinds.is_large_list_view(kind) or kinds.is_dictionary(kind):
        return True
    return any(repeats(kind.field(i).type) for i in range(kind.num_fields))
