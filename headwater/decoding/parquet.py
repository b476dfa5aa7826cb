"""Parquet from outside: measured by footer and page headers, decoded in bounded memory, validated whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as kinds

from headwater.decoding.bounds import FILES, Bounds, check_types, reading, unpacked_bytes
from headwater.errors import InvalidInputError

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


def chunk_size(source: object, start: int, length: int, values: int) -> ChunkSize:
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


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[object, int]:
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
    found: list[object] = []
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


MAX_FOOTER = 32 * 1024 * 1024
"""Bytes of a footer. Its Thrift structs become hundreds of times larger when they are read."""
MAX_LIST = 1_000_000
"""Elements of one list in the footer."""
BATCH_ROWS = 65_536
FIXED_WIDTH = {"BOOLEAN": 1, "INT32": 8, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8}
WIDEST = 32
"""Bytes of the widest value that bytes in a Parquet file may stand for, a decimal of 256 bits."""
PER_VALUE = 10
"""Bytes of levels, offsets and validity for each value, while it is decoded."""
TAIL = 8
MAGIC = b"PAR1"

Source = str | bytes | bytearray | memoryview | pa.Buffer


class ParquetRows:
    """One Parquet file from outside. Opening it checks the footer; a row group is measured before it is decoded."""

    def __init__(
        self, source: Source, bounds: Bounds = FILES, what: str = "The data is not a valid Parquet file"
    ) -> None:
        """`what` begins the message of an error."""
        self._what = what
        self._bounds = bounds
        with reading(self._what):
            self._input: Any = pa.OSFile(source, "rb") if isinstance(source, str) else pa.BufferReader(source)
            self._bytes = self._input.size()
            self._rows, self._groups = row_groups(self._footer())
            self._file = self._opened([])
            self.schema: pa.Schema = self._file.schema_arrow
            check_types(self.schema)
            self._check_rows()

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return all rows. Only `columns`, top-level ones, are decoded."""
        wanted = self._wanted(columns)
        with reading(self._what):
            return pa.Table.from_batches(list(self._batches(columns, whole=True)), wanted)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches, one row group in memory at a time."""
        with reading(self._what):
            yield from self._batches(columns, whole=False)

    def _footer(self) -> bytes:
        if self._bytes < TAIL + len(MAGIC):
            raise InvalidInputError(f"{self._what}: it has {self._bytes} bytes.")
        tail = self._input.read_at(TAIL, self._bytes - TAIL)
        footer = int.from_bytes(tail[:4], "little")
        if tail[4:] != MAGIC or footer > self._bytes - TAIL - len(MAGIC):
            raise InvalidInputError(f"{self._what}: its footer is missing; it was cut off.")
        if footer > MAX_FOOTER:
            raise InvalidInputError(f"{self._what}: its footer has {footer} bytes, more than {MAX_FOOTER}.")
        return bytes(self._input.read_at(footer, self._bytes - TAIL - footer))

    def _opened(self, dictionaries: list[str]) -> pq.ParquetFile:
        return pq.ParquetFile(
            self._input,
            read_dictionary=dictionaries,
            pre_buffer=False,
            thrift_string_size_limit=MAX_FOOTER,
            thrift_container_size_limit=MAX_LIST,
        )

    def _check_rows(self) -> None:
        """Row groups add up, and so do the values of columns without lists: else a reader reserves what a lie says."""
        for group in self._groups:
            if len(group.chunks) != len(self._leaves) or group.rows < 0:
                raise InvalidInputError(
                    f"{self._what}: a row group has {len(group.chunks)} columns, {group.rows} rows."
                )
            for chunk, leaf in zip(group.chunks, self._leaves, strict=True):
                is_list = leaf.max_repetition_level > 0
                if chunk.values < group.rows or (chunk.values > group.rows and not is_list):
                    raise InvalidInputError(f"{self._what}: a column has {chunk.values} values in {group.rows} rows.")
        total = sum(group.rows for group in self._groups)
        if total != self._rows:
            raise InvalidInputError(f"{self._what}: {total} rows in its row groups, {self._rows} in its footer.")

    @cached_property
    def _leaves(self) -> list[Any]:
        schema = self._file.schema
        return [schema.column(place) for place in range(len(schema))]

    @cached_property
    def _types(self) -> list[tuple[Any, int, bool]]:
        """Return of each leaf its Arrow type, the slots that one NULL takes, and whether it is inside of a list."""
        found = [leaf for field in self.schema for leaf in _leaf_types(field.type, 1, False)]
        if len(found) == len(self._leaves):
            return found
        widest = max((slots for _, slots, _ in found), default=1)
        return [(pa.null(), widest, True) for _ in self._leaves]

    def _wanted(self, columns: Sequence[str] | None) -> pa.Schema:
        if columns is None:
            return self.schema
        kept = [self.schema.field(name) for name in dict.fromkeys(columns)]
        return pa.schema(kept).with_metadata(self.schema.metadata)

    def _places(self, columns: Sequence[str] | None) -> list[int]:
        names = [leaf.path.partition(".")[0] for leaf in self._leaves]
        return [place for place, name in enumerate(names) if columns is None or name in columns]

    def _batches(self, columns: Sequence[str] | None, whole: bool) -> Iterator[pa.RecordBatch]:
        """`whole`: the bounds are of all row groups together, else of each."""
        total, wanted, places = 0, self._wanted(columns), self._places(columns)
        names = None if columns is None else wanted.names
        for number in range(len(self._groups)):
            size, loose, rows = self._measured(number, places)
            self._bounds.check(total + size, self._bytes, "A file")
            file = self._opened(loose) if loose else self._file
            seen = 0
            for batch in file.iter_batches(rows, [number], names, use_threads=False):
                if loose or rows < BATCH_ROWS:  # else the pages have said how large it is
                    seen += sum(unpacked_bytes(column) for column in batch.columns)
                    self._bounds.check(total + seen, self._bytes, "A file")
                batch.validate(full=True)
                yield batch.cast(wanted) if loose else batch
            total += max(size, seen) if whole else 0

    def _measured(self, number: int, places: Sequence[int]) -> tuple[int, list[str], int]:
        """Measure a row group: the bytes it decodes to at least, the paths of columns to decode as dictionaries, and
        the rows to decode at once."""
        group = self._groups[number]
        total, loose, rows, budget = 0, list[str](), BATCH_ROWS, self._bounds.most(self._bytes)
        for place in places:
            chunk, leaf = group.chunks[place], self._leaves[place]
            pages = self._pages(chunk)
            kind, slots, in_list = self._types[place]
            count = chunk.values if slots == 1 else slots * (chunk.values if in_list else group.rows)
            total += pages.bytes + count * (PER_VALUE + _width(leaf))
            if leaf.physical_type != "BYTE_ARRAY":
                continue
            if pages.has_prefixes and count * pages.largest > budget:
                if in_list:
                    raise InvalidInputError(f"{self._what}: {leaf.path!r} is a list in DELTA_BYTE_ARRAY: use another.")
                rows = min(rows, max(1, self._bounds.free_bytes // pages.largest // max(1, len(places))))
            elif pages.dictionary and count * pages.dictionary > budget:
                if not _is_bytes(kind):
                    raise InvalidInputError(f"{self._what}: {leaf.path!r} may unpack to far more than was sent.")
                loose.append(leaf.path)
        return total, loose, rows

    def _pages(self, chunk: Chunk) -> ChunkSize:
        if chunk.start < 0 or chunk.length < 0 or chunk.start + chunk.length > self._bytes:
            raise InvalidInputError(f"{self._what}: a column chunk lies outside of it.")
        pages = chunk_size(self._input, chunk.start, chunk.length, chunk.values)
        if pages.values != chunk.values:
            raise InvalidInputError(f"{self._what}: pages of {pages.values} values, {chunk.values} in its footer.")
        return pages


def _width(leaf: Any) -> int:
    if leaf.physical_type == "FIXED_LEN_BYTE_ARRAY":
        return max(int(leaf.length), WIDEST)
    return FIXED_WIDTH.get(leaf.physical_type, 0 if leaf.converted_type in ("UTF8", "NONE", "JSON") else WIDEST)


def _is_bytes(kind: pa.DataType) -> bool:
    is_text = kinds.is_string(kind) or kinds.is_large_string(kind)
    return bool(is_text or kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_dictionary(kind))


def _leaf_types(kind: pa.DataType, slots: int, in_list: bool) -> list[tuple[object, int, bool]]:
    if isinstance(kind, pa.BaseExtensionType):
        return _leaf_types(kind.storage_type, slots, in_list)
    if kinds.is_fixed_size_list(kind):
        return _leaf_types(kind.value_type, slots * max(1, kind.list_size), in_list)
    if kinds.is_dictionary(kind) or not kind.num_fields:
        return [(kind, slots, in_list)]
    inner = in_list or not kinds.is_struct(kind)
    return [leaf for place in range(kind.num_fields) for leaf in _leaf_types(kind.field(place).type, slots, inner)]
