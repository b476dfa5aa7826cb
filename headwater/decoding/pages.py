"""Page headers of a Parquet column chunk, read without decompressing a page.

The footer of a Parquet file may lie about sizes. A reader allocates what the page headers say, so these are summed.
The headers are Thrift structs in the compact protocol (parquet.thrift, `PageHeader`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

HEADER_BYTES = 1024
"""Bytes read at once for a header. One that holds long statistics is read again, with more."""
MAX_HEADER_BYTES = 1024 * 1024
DICTIONARY_PAGE = 2
PLAIN_DICTIONARY, DELTA_BYTE_ARRAY, RLE_DICTIONARY = 2, 7, 8
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12
_MAX_DEPTH = 8


@dataclass
class ChunkSize:
    """The pages of one column chunk.

    `values`: in all data pages, nulls included.
    `bytes`: of all pages when decompressed; `largest`: of the largest.
    `dictionary`: bytes of the dictionary page when decompressed.
    `has_prefixes`: a page repeats prefixes of earlier values, so that its values may be longer than itself.
    """

    values: int = 0
    bytes: int = 0
    largest: int = 0
    dictionary: int = 0
    has_prefixes: bool = False


def chunk_size(source: Any, start: int, length: int, values: int) -> ChunkSize:
    """Sum the page headers between two offsets, until so many `values` are found. ValueError: they are damaged."""
    found, at, end = ChunkSize(), start, start + length
    while at < end and found.values < values:
        header, used = _header(source, at, end)
        unpacked, packed = header.get(2, -1), header.get(3, -1)
        if unpacked < 0 or packed < 0 or at + used + packed > end:
            raise ValueError("a page lies outside its column chunk")
        data = header.get(8) or header.get(5)
        if header.get(1) == DICTIONARY_PAGE:
            found.dictionary += unpacked
        elif isinstance(data, dict):
            count = data.get(1, -1)
            if count < 0:
                raise ValueError("a page has a negative number of values")
            found.values += count
            found.has_prefixes |= data.get(4 if 8 in header else 2) == DELTA_BYTE_ARRAY
        found.bytes += unpacked
        found.largest = max(found.largest, unpacked)
        at += used + packed
    return found


def _header(source: Any, at: int, end: int) -> tuple[dict[int, Any], int]:
    size = HEADER_BYTES
    while True:
        data = source.read_at(min(size, end - at), at)
        try:
            return _struct(data, 0, 0)
        except (IndexError, struct.error):
            if size >= MAX_HEADER_BYTES or len(data) < size:
                raise ValueError("a page header is damaged") from None
            size *= 32


def _struct(data: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    if depth > _MAX_DEPTH:
        raise ValueError("a page header is nested too deeply")
    fields: dict[int, Any] = {}
    number = 0
    while data[at]:
        kind, delta = data[at] & 15, data[at] >> 4
        at += 1
        if delta:
            number += delta
        else:
            number, at = _varint(data, at)
            number = (number >> 1) ^ -(number & 1)
        fields[number], at = _value(data, at, kind, depth)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (_TRUE, _FALSE):
        return kind == _TRUE, at
    if kind == _BYTE:
        return data[at], at + 1
    if kind < _DOUBLE:
        number, at = _varint(data, at)
        return (number >> 1) ^ -(number & 1), at
    if kind == _DOUBLE:
        return None, at + 8
    if kind == _BINARY:
        size, at = _varint(data, at)
        if at + size > len(data):
            raise IndexError
        return None, at + size
    if kind == _STRUCT:
        return _struct(data, at, depth + 1)
    if kind in (_LIST, _SET):
        return None, _skip_list(data, at, depth)
    raise ValueError("a page header has a field of an unknown kind")


def _skip_list(data: bytes, at: int, depth: int) -> int:
    count, kind = data[at] >> 4, data[at] & 15
    at += 1
    if count == 15:
        count, at = _varint(data, at)
    for _ in range(count):
        at = at + 1 if kind in (_TRUE, _FALSE) else _value(data, at, kind, depth)[1]
        if at > len(data):
            raise IndexError
    return at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return number, at
        shift += 7
        if shift > 63:
            raise ValueError("a number in a page header is too long")
