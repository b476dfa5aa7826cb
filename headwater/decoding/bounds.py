"""Limits on data from outside, and the checks of a schema that every format shares. Pure."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from headwater.errors import InvalidInputError
from headwater.imports import pc
from headwater.types import Array

MAX_FIELDS = 10_000
MAX_DEPTH = 32
MAX_METADATA = 4 * 1024 * 1024
"""Size of names of fields, and of keys and values in the metadata of a schema and its fields."""
FREE_ROWS = 1_000_000
"""Data may have this many rows whatever its size. Each further row takes at least one bit."""

Accept = Callable[[int], None]
"""Called with the decoded size in bytes before anything is decoded. Raises an error to refuse it."""


@dataclass(frozen=True)
class Bounds:
    """Limits on the decoded size of data from outside.

    `free_bytes`: allowed whatever was sent.
    `ratio`: beyond `free_bytes`, how many times the size that was sent.
    """

    free_bytes: int
    ratio: int = 64

    def most(self, sent: int) -> int:
        return max(self.free_bytes, self.ratio * sent)

    def check(self, size: int, sent: int, what: str) -> None:
        """Raise InvalidInput (13) if `sent` bytes decode to more than is allowed."""
        if size > self.most(sent):
            raise InvalidInputError(
                f"{what} of {sent} bytes unpacks to {size} bytes, far more than was sent: send it in smaller parts."
            )

    def check_rows(self, rows: int, size: int, what: str) -> None:
        """Raise InvalidInput (13) for rows that hold no data."""
        if rows < 0 or rows > FREE_ROWS + 8 * size:
            raise InvalidInputError(f"{what} claims {rows} rows in {size} bytes: send rows that hold data.")


REQUEST = Bounds(256 * 1024 * 1024)
"""Data that a request carries."""
FILES = Bounds(4 * 1024 * 1024 * 1024)
"""Files that a person named on this machine: in a pipeline file, on a command line, in a call of the library."""


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Raise InvalidInput (13) for whatever a reader raises on data that it cannot read."""
    try:
        yield
    except InvalidInputError:
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError, IndexError, KeyError, ArithmeticError, struct.error,
            MemoryError, RecursionError, NotImplementedError) as error:  # fmt: skip
        raise InvalidInputError(f"{what}: {first_line(error)}") from None


def first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]


def check_schema(schema: pa.Schema) -> None:
    """Raise InvalidInput (13) unless a schema has columns, each with its own name, and a sane depth and width."""
    if not schema.names:
        raise InvalidInputError("The data has no columns: send at least one.")
    if len(set(schema.names)) < len(schema.names):
        raise InvalidInputError("Two columns of the data have the same name: give every column its own.")
    if "" in schema.names:
        raise InvalidInputError("A column of the data has an empty name: name it.")
    check_types(schema)


def check_types(schema: pa.Schema) -> None:
    """Raise InvalidInput (13) for a schema of absurd depth, width or metadata."""
    seen, noted = 0, _size(schema.metadata)
    level = list(schema)
    for _ in range(MAX_DEPTH):
        seen += len(level)
        if seen > MAX_FIELDS:
            raise InvalidInputError(f"The data has more than {MAX_FIELDS} fields.")
        noted += sum(len(field.name) + _size(field.metadata) for field in level)  # a name that is no UTF-8 raises
        if noted > MAX_METADATA:
            raise InvalidInputError(f"The metadata of the data's schema holds more than {MAX_METADATA} bytes.")
        level = [child for field in level for child in _children(field.type)]
        if not level:
            return
    raise InvalidInputError(f"The data's types are nested deeper than {MAX_DEPTH} levels.")


def _size(metadata: Mapping[bytes, bytes] | None) -> int:
    return sum(len(key) + len(value) for key, value in (metadata or {}).items())


def _children(kind: pa.DataType) -> list[Any]:
    if isinstance(kind, pa.BaseExtensionType):
        return [pa.field("", kind.storage_type)]
    if pa.types.is_dictionary(kind):
        return [pa.field("", kind.value_type)]
    return [kind.field(position) for position in range(kind.num_fields)]


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
    """Return the size of `count` of the values: of those that `indices` name, or of the largest."""
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


def _has_lengths(kind: pa.DataType) -> bool:
    is_view = kinds.is_string_view(kind) or kinds.is_binary_view(kind)
    is_text = kinds.is_string(kind) or kinds.is_large_string(kind)
    return bool(is_view or is_text or kinds.is_binary(kind) or kinds.is_large_binary(kind))


def _has_one_width(kind: pa.DataType) -> bool:
    return bool(kinds.is_primitive(kind) or kinds.is_fixed_size_binary(kind) or kinds.is_null(kind))


def repeats(kind: pa.DataType) -> bool:
    """Return whether a type holds views, dictionaries, runs or unions anywhere."""
    if isinstance(kind, pa.BaseExtensionType):
        return repeats(kind.storage_type)
    is_view = kinds.is_string_view(kind) or kinds.is_binary_view(kind) or kinds.is_list_view(kind)
    is_run = kinds.is_run_end_encoded(kind) or kinds.is_union(kind)
    if is_view or is_run or kinds.is_large_list_view(kind) or kinds.is_dictionary(kind):
        return True
    return any(repeats(kind.field(i).type) for i in range(kind.num_fields))
