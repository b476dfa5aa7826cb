"""Parquet from outside: measured by footer and page headers, decoded in bounded memory, validated whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as kinds

from headwater.decoding.bounds import FILES, Bounds, check_types, reading
from headwater.decoding.parquet_pages import Chunk, ChunkSize, chunk_size, row_groups
from headwater.decoding.unpacked import unpacked_bytes
from headwater.errors import InvalidInputError

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
        """Of each leaf: its Arrow type, the slots that one NULL takes, and whether it is inside of a list."""
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


def _is_bytes(kind: Any) -> bool:
    is_text = kinds.is_string(kind) or kinds.is_large_string(kind)
    return bool(is_text or kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_dictionary(kind))


def _leaf_types(kind: Any, slots: int, in_list: bool) -> list[tuple[Any, int, bool]]:
    if isinstance(kind, pa.BaseExtensionType):
        return _leaf_types(kind.storage_type, slots, in_list)
    if kinds.is_fixed_size_list(kind):
        return _leaf_types(kind.value_type, slots * max(1, kind.list_size), in_list)
    if kinds.is_dictionary(kind) or not kind.num_fields:
        return [(kind, slots, in_list)]
    inner = in_list or not kinds.is_struct(kind)
    return [leaf for place in range(kind.num_fields) for leaf in _leaf_types(kind.field(place).type, slots, inner)]
