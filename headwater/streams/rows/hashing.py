"""Hashes of Arrow values, vectorized and for ever the same: they choose buckets, prove rows and know batches again.

A hash goes by the logical value: an int32 and an int64 of one value hash alike, so do a string and a large_string, a
decimal and a wider one. So a key keeps its bucket, and a row its digest, when a column is widened. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.imports import pc

Hashes = npt.NDArray[np.uint64]
Array = Any  # the stubs of pyarrow cannot follow types that are told apart at run time

NULL = np.uint64(0x9E3779B97F4A7C15)
NAN = np.uint64(0x7FF8000000000000)
WEIGHT = 0xD6E8FEB86659FD93
MODULUS = 1 << 128
SHORT, EVEN = 24, 4
"""Runs of up to so many parts, none of them so many times as long as they are on average, are summed place by place."""


def hash_rows(columns: Sequence[Array], length: int) -> Hashes:
    """Return one hash for each row of these columns, in which the order of the columns counts."""
    found = np.full(length, 1, np.uint64)
    for column in columns:
        found = mix(found * np.uint64(WEIGHT) + hash_array(column))
    return found


def hash_array(array: Array) -> Hashes:
    """Return one hash for each value; all nulls have the same hash."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
    if isinstance(array, pa.ChunkedArray):  # no chunk at all
        return np.empty(0, np.uint64)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    found = mix(_values(array))
    if array.null_count:
        found[array.is_null().to_numpy(zero_copy_only=False)] = NULL
    return found


def mix(values: Hashes) -> Hashes:
    """Return the finalizer of splitmix64: every bit of the input reaches every bit of the output."""
    values = values ^ (values >> np.uint64(30))
    values = values * np.uint64(0xBF58476D1CE4E5B9)
    values = values ^ (values >> np.uint64(27))
    values = values * np.uint64(0x94D049BB133111EB)
    mixed: Hashes = values ^ (values >> np.uint64(31))
    return mixed


def buckets_of(hashes: Hashes, count: int) -> npt.NDArray[np.int64]:
    """Return the bucket of each key by the first bits of its hash, so that a bucket splits into two neighbours."""
    bits = count.bit_length() - 1
    if bits == 0:
        return np.zeros(len(hashes), np.int64)
    return (hashes >> np.uint64(64 - bits)).astype(np.int64)


def digest_of(hashes: Hashes) -> int:
    """Return an order-independent digest of rows, a sum modulo 2**128: rows can be added to it and taken away."""
    halves = int(np.sum(hashes & np.uint64(0xFFFFFFFF), dtype=np.uint64)), int(np.sum(hashes >> np.uint64(32)))
    high = int(np.sum(mix(hashes + np.uint64(WEIGHT)), dtype=np.uint64))
    return (halves[0] + (halves[1] << 32) + (high << 64)) % MODULUS


def content_digest(names: Sequence[str], columns: Sequence[Array], length: int) -> str:
    """Return a digest of rows in their order, by name of column: the logical content of a batch."""
    order = sorted(range(len(names)), key=lambda index: names[index])
    digest = hashlib.blake2b("\0".join(names[index] for index in order).encode(), digest_size=16)
    digest.update(hash_rows([columns[index] for index in order], length).astype("<u8").tobytes())
    return digest.hexdigest()


def _values(array: Array) -> Hashes:
    kind = array.type
    if pa.types.is_null(kind):
        return np.zeros(len(array), np.uint64)
    if pa.types.is_boolean(kind):
        return _bits(array.cast(pa.uint8()).cast(pa.uint64()))
    if pa.types.is_integer(kind):
        wide = pa.uint64() if pa.types.is_unsigned_integer(kind) else pa.int64()
        return _bits(array.cast(wide))
    if pa.types.is_floating(kind):
        return _float_bits(array)
    if pa.types.is_decimal(kind):
        return _decimal_bits(array)
    if pa.types.is_temporal(kind):
        return _bits(_instants(array))
    if pa.types.is_fixed_size_binary(kind):
        return _bytes(array.cast(pa.large_binary()))
    if _is_text(kind):
        return _bytes(array.cast(pa.large_binary() if _is_bytes(kind) else pa.large_string()))
    return _nested(array)


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or kind == pa.binary_view())


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        _is_bytes(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view()
    )


def _bits(array: Array) -> Hashes:
    filled = array.fill_null(0) if array.null_count else array
    bits: Hashes = filled.to_numpy(zero_copy_only=False).view(np.uint64)
    return bits


def _instants(array: Array) -> Array:
    """Times as whole numbers of nanoseconds where those fit, else of their own unit."""
    kind = array.type
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        return array.cast(pa.int32()).cast(pa.int64())
    return array.cast(pa.int64())


def _float_bits(array: Array) -> Hashes:
    values = array.cast(pa.float64())
    values = (values.fill_null(0.0) if values.null_count else values).to_numpy(zero_copy_only=False)
    bits: Hashes = values.view(np.uint64)
    return np.where(np.isnan(values), NAN, bits)


def _decimal_bits(array: Array) -> Hashes:
    """Return the bits of decimals without trailing zeros, so that the scale makes no difference."""
    text = array.cast(pa.string())
    if array.type.scale > 0:
        text = pc.utf8_rtrim(pc.utf8_rtrim(text, characters="0"), characters=".")
    return _bytes(text.cast(pa.large_string()))


def _bytes(array: Array) -> Hashes:
    """Return a polynomial hash of the bytes of each value."""
    array = _compact(array)
    offsets = np.frombuffer(array.buffers()[1], np.int64, len(array) + 1, array.offset * 8)
    data = array.buffers()[2]
    raw = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return _folded(raw[offsets[0] : offsets[-1]], np.diff(offsets), 1)


def _compact(array: Array) -> Array:
    """Without bytes under nulls, which offsets may still point at."""
    return array.fill_null(b"" if pa.types.is_large_binary(array.type) else "") if array.null_count else array


def _folded(parts: Any, lengths: npt.NDArray[np.int64], more: int = 0) -> Hashes:
    """Runs of parts, one run of the given length for each value, each summed up with the weights of the places.

    `more` is added to each part.
    """
    longest = int(lengths.max()) if len(lengths) else 0
    sums = lengths.astype(np.uint64)
    if not longest:
        return sums
    powers = np.cumprod(np.full(longest, WEIGHT, np.uint64), dtype=np.uint64)
    starts = np.cumsum(lengths) - lengths
    if longest <= SHORT and longest * len(lengths) <= EVEN * len(parts):  # place by place, over all values at once
        for place in range(longest):
            some = slice(None) if (there := lengths > place).all() else np.flatnonzero(there)
            sums[some] += (parts[starts[some] + place].astype(np.uint64) + np.uint64(more)) * powers[place]
        return sums
    places = np.arange(len(parts), dtype=np.int64) - np.repeat(starts, lengths)
    filled = lengths > 0
    sums[filled] += np.add.reduceat((parts.astype(np.uint64) + np.uint64(more)) * powers[places], starts[filled])
    return sums


def _nested(array: Array) -> Hashes:
    kind = array.type
    if pa.types.is_struct(kind):
        columns = [pc.struct_field(array, [index]) for index in range(kind.num_fields)]
        return hash_rows(columns, len(array))
    if pa.types.is_map(kind):
        entries = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        array = array.cast(pa.list_(entries))
    lengths = pc.list_value_length(array).fill_null(0).cast(pa.int64()).to_numpy(zero_copy_only=False)
    return _folded(hash_array(pc.list_flatten(array)), lengths)
