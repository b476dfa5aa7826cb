"""Footer and page headers of a Parquet file, read without decompressing a page.

The footer of a Parquet file may lie about sizes. A reader allocates what the page headers say, so these are summed.
Both are Thrift structs in the compact protocol (parquet.thrift, `FileMetaData` and `PageHeader`). pyarrow's own views
of the metadata end the process where a struct contradicts itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

HEADER_BYTES = 1024
"""Bytes read at once for a header. One that holds long statistics is read again, with more."""
MAX_HEADER_BYTES = 1024 * 1024
DICTIONARY_PAGE = 2
DELTA_BYTE_ARRAY = 7
_TRUE, _FALSE, _BYTE, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 5, 6, 7, 8, 9, 10, 12
_MAX_DEPTH = 16
Fields = dict[tuple[int, int], Any]
"""The fields of a struct by number and kind: a reader passes over a field whose kind is not the one it knows."""


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


@dataclass(frozen=True)
class Chunk:
    """The place of a column chunk's pages, and the number of their values."""

    values: int
    start: int
    length: int


@dataclass(frozen=True)
class RowGroupFooter:
    """The rows of a row group and the column chunks that hold them, as the footer tells."""

    rows: int
    chunks: list[Chunk]


def row_groups(footer: bytes) -> tuple[int, list[RowGroupFooter]]:
    """Return the rows and the row groups of a file by its footer. ValueError: it is damaged."""
    try:
        fields, _ = _struct(footer, 0, 0)
        groups = [
            RowGroupFooter(group[3, _I64], [_chunk(column[3, _STRUCT]) for column in group[1, _LIST]])
            for group in fields[4, _LIST]
        ]
        return fields[3, _I64], groups
    except (IndexError, KeyError, TypeError):
        raise ValueError("its footer is damaged") from None


def _chunk(column: Fields) -> Chunk:
    start, dictionary = column[9, _I64], column.get((11, _I64))
    if dictionary is not None and 0 < dictionary < start:
        start = dictionary
    return Chunk(column[5, _I64], start, column[7, _I64])


def chunk_size(source: Any, start: int, length: int, values: int) -> ChunkSize:
    """Sum the page headers between two offsets, until so many `values` are found. ValueError: they are damaged."""
    found, at, end = ChunkSize(), start, start + length
    while at < end and found.values < values:
        header, used = _header(source, at, end)
        unpacked, packed = header.get((2, _I32), -1), header.get((3, _I32), -1)
        if unpacked < 0 or packed < 0 or at + used + packed > end:
            raise ValueError("a page lies outside its column chunk")
        newer, older = header.get((8, _STRUCT)), header.get((5, _STRUCT))
        data = newer or older
        if header.get((1, _I32)) == DICTIONARY_PAGE:
            found.dictionary += unpacked
        elif data is not None:
            count = data.get((1, _I32), -1)
            if count < 0 or (newer and older):
                raise ValueError("a page has a negative number of values, or two headers")
            found.values += count
            found.has_prefixes |= data.get((4 if newer else 2, _I32)) == DELTA_BYTE_ARRAY
        found.bytes += unpacked
        found.largest = max(found.largest, unpacked)
        at += used + packed
    return found


def _header(source: Any, at: int, end: int) -> tuple[Fields, int]:
    size = HEADER_BYTES
    while True:
        data = source.read_at(min(size, end - at), at)
        try:
            return _struct(data, 0, 0)
        except IndexError:
            if size >= MAX_HEADER_BYTES or len(data) < size:
                raise ValueError("a page header is damaged") from None
            size *= 32


def _struct(data: bytes, at: int, depth: int) -> tuple[Fields, int]:
    if depth > _MAX_DEPTH:
        raise ValueError("a Thrift struct is nested too deeply")
    fields: Fields = {}
    number = 0
    while data[at]:
        kind, delta = data[at] & 15, data[at] >> 4
        at += 1
        if delta:
            number += delta
        else:
            number, at = _varint(data, at)
            number = (number >> 1) ^ -(number & 1)
        fields[number, kind], at = _value(data, at, kind, depth)
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
        return _list(data, at, depth)
    raise ValueError("a Thrift field has an unknown kind")


def _list(data: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    count, kind = data[at] >> 4, data[at] & 15
    at += 1
    if count == 15:
        count, at = _varint(data, at)
    if count > len(data) - at:
        raise IndexError
    found: list[Any] = []
    for _ in range(count):
        value, at = (None, at + 1) if kind in (_TRUE, _FALSE) else _value(data, at, kind, depth + 1)
        found.append(value)
    return found, at


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
            raise ValueError("a Thrift number is too long")
