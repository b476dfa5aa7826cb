"""Readers of row-id sequences and deletion files: the row ids and deleted offsets of a fragment. Pure.

The messages are RowIdSequence and U64Segment of Lance's `rowids.proto`; a deletion file is an Arrow file with a column
of places, or a roaring bitmap in its portable form.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.decoding.arrow import read_file
from headwater.decoding.bounds import FILES
from headwater.errors import InvalidInputError
from headwater.protobuf import Value, as_bytes, as_number, parse

Ids = npt.NDArray[np.uint64]
MAX_ROWS = 1 << 32
"""A fragment has fewer rows: a sequence that says more is none."""
NO_RUNS, WITH_RUNS = 12346, 12347
BITMAP_BYTES = 8192


def row_ids(sequence: bytes) -> Ids:
    """Return the row ids of a fragment in row order, deleted ones included. ValueError: this is no sequence."""
    found = [_segment(as_bytes(value)) for field, value, _ in parse(sequence) if field == 1]
    return np.concatenate(found) if found else np.empty(0, np.uint64)


def row_versions(sequence: bytes) -> Ids:
    """Return the version that last changed each row of a fragment, in row order (RowDatasetVersionSequence)."""
    found = []
    for field, value, _ in parse(sequence):
        if field == 1:
            run = _values(as_bytes(value))
            rows = len(_segment(as_bytes(run.get(1, b""))))
            found.append(np.full(rows, as_number(run.get(2, 0)), np.uint64))
    return np.concatenate(found) if found else np.empty(0, np.uint64)


def deleted_places(data: bytes, is_bitmap: bool) -> Ids:
    """Return the offsets of deleted rows in a deletion file. ValueError: it cannot be read."""
    if is_bitmap:
        return _roaring(data)
    try:
        return np.concatenate(
            [batch.column(0).to_numpy(zero_copy_only=False) for batch in read_file(data, FILES)] or [np.empty(0)]
        ).astype(np.uint64)
    except (InvalidInputError, pa.ArrowException) as error:
        raise ValueError(f"a deletion file that cannot be read: {type(error).__name__}") from None


def _segment(message: bytes) -> Ids:
    for field, value, _ in parse(message):
        reader = SEGMENTS.get(field)
        if reader is not None:
            return reader(as_bytes(value))
    raise ValueError("a segment of row ids of an unknown kind")


def _range(message: bytes) -> Ids:
    values = _values(message)
    start, end = as_number(values.get(1, 0)), as_number(values.get(2, 0))
    if not 0 <= end - start <= MAX_ROWS:
        raise ValueError("a range of row ids that is too large")
    return np.arange(start, end, dtype=np.uint64)


def _with_holes(message: bytes) -> Ids:
    holes = _array(as_bytes(_values(message).get(3, b"")))
    return np.setdiff1d(_range(message), holes, assume_unique=True)


def _with_bitmap(message: bytes) -> Ids:
    found = _range(message)
    bits = np.unpackbits(np.frombuffer(as_bytes(_values(message).get(3, b"")), np.uint8), bitorder="little")
    if len(bits) < len(found):
        raise ValueError("a bitmap of row ids that is too short")
    kept: Ids = found[bits[: len(found)].astype(bool)]
    return kept


def _array(message: bytes) -> Ids:
    for field, value, _ in parse(message):
        values = _values(as_bytes(value))
        if field == 3:
            return np.frombuffer(as_bytes(values.get(2, values.get(1, b""))), "<u8").astype(np.uint64)
        if field in (1, 2):
            offsets = np.frombuffer(as_bytes(values.get(2, b"")), "<u2" if field == 1 else "<u4")
            return offsets.astype(np.uint64) + np.uint64(as_number(values.get(1, 0)))
    return np.empty(0, np.uint64)


SEGMENTS: Mapping[int, Callable[[bytes], Ids]] = {1: _range, 2: _with_holes, 3: _with_bitmap, 4: _array, 5: _array}


def _values(message: bytes) -> dict[int, Value]:
    return {field: value for field, value, _ in parse(message)}


def _roaring(data: bytes) -> Ids:
    """Return the numbers in a bitmap (RoaringFormatSpec: cookie, containers by their high bits, offsets, contents)."""
    try:
        return _containers(data)
    except (struct.error, IndexError):
        raise ValueError("a bitmap of deleted rows that is cut") from None


def _containers(data: bytes) -> Ids:
    (cookie,) = struct.unpack_from("<I", data)
    if cookie & 0xFFFF == WITH_RUNS:
        count, at = (cookie >> 16) + 1, 4 + ((cookie >> 16) + 8) // 8
        runs = np.unpackbits(np.frombuffer(data[4:at], np.uint8), bitorder="little").astype(bool).tolist()
    elif cookie == NO_RUNS:
        count, at = struct.unpack_from("<I", data, 4)[0], 8
        runs = [False] * min(count, 1 << 16)
    else:
        raise ValueError("a bitmap of deleted rows of an unknown kind")
    headers = [struct.unpack_from("<HH", data, at + 4 * number) for number in range(count)]
    at += 4 * count + (4 * count if cookie == NO_RUNS or count >= 4 else 0)
    found = []
    for (high, size), is_run in zip(headers, runs, strict=False):
        low, at = _container(data, at, size + 1, is_run)
        found.append(low.astype(np.uint64) + (np.uint64(high) << np.uint64(16)))
    return np.concatenate(found) if found else np.empty(0, np.uint64)


def _container(data: bytes, at: int, size: int, is_run: bool) -> tuple[npt.NDArray[np.int64], int]:
    if is_run:
        (count,) = struct.unpack_from("<H", data, at)
        pairs = [struct.unpack_from("<HH", data, at + 2 + 4 * number) for number in range(count)]
        runs = [np.arange(start, start + length + 1) for start, length in pairs]
        return np.concatenate(runs), at + 2 + 4 * count
    if size > 4096:
        bits = np.unpackbits(np.frombuffer(data, np.uint8, BITMAP_BYTES, at), bitorder="little")
        return np.flatnonzero(bits), at + BITMAP_BYTES
    return np.frombuffer(data, "<u2", size, at).astype(np.int64), at + 2 * size
