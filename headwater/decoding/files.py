"""Files of rows by their format, read a part at a time: Parquet, Feather, ORC; and folders of Parquet files.

CSV, JSON lines and compressed text from outside are read in memory that follows what was sent.
"""

from __future__ import annotations

import io
import os
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json

from headwater.decoding.arrow import read_arrow
from headwater.decoding.bounds import FILES, MAX_FIELDS, Bounds, check_types, reading
from headwater.decoding.parquet import ParquetRows, Source
from headwater.errors import InvalidInputError
from headwater.imports import when_used

dataset = when_used("pyarrow.dataset")
orc = when_used("pyarrow.orc")


class FileRows(Protocol):
    """An open file of rows. Errors 13: it cannot be read."""

    schema: pa.Schema

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]: ...


class FeatherRows:
    """An Arrow IPC file or stream."""

    def __init__(self, source: Source) -> None:
        with reading("The file cannot be read"):
            data = pa.OSFile(source, "rb").read_buffer() if isinstance(source, str) else source
        self._reader = read_arrow(data, FILES)
        self.schema: pa.Schema = self._reader.schema

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        for batch in self._reader:
            yield batch if columns is None else batch.select(list(columns))


class OrcRows:
    """An ORC file, one stripe in memory at a time. Its sizes are known only when a stripe is decoded."""

    def __init__(self, source: Source) -> None:
        with reading("The data is not a valid ORC file"):
            self._file: Any = orc.ORCFile(source if isinstance(source, str) else pa.BufferReader(source))
            self.schema: pa.Schema = self._file.schema
            check_types(self.schema)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        with reading("The data is not a valid ORC file"):
            for number in range(self._file.nstripes):
                batch = self._file.read_stripe(number, None if columns is None else list(columns))
                batch.validate(full=True)
                yield batch


FORMATS: Mapping[str, Callable[[Source], FileRows]] = {
    "application/parquet": ParquetRows,
    "application/feather": FeatherRows,
    "application/orc": OrcRows,
}
"""The formats that can be read a part at a time, by media type."""


def read_folder(files: Sequence[str], base: str | None, hive: bool, what: str) -> pa.RecordBatchReader:
    """Return a reader over Parquet files of one table, one row group in memory at a time.

    Columns are matched by name and cast to a type that fits all files. A file without a column has nulls there.
    `hive`: folders below `base`, such as `day=7`, are columns. `what` begins the message of an error.
    """
    with reading(what):
        schemas = [ParquetRows(file, what=what).schema for file in files]
        found: Any = dataset.dataset(
            list(files), format="parquet", partitioning="hive" if hive else None, partition_base_dir=base
        )
        schema = pa.unify_schemas([found.schema, *schemas], promote_options="permissive")
    return pa.RecordBatchReader.from_batches(schema, _folder_batches(found, schema, what))


def _folder_batches(found: Any, schema: pa.Schema, what: str) -> Iterator[pa.RecordBatch]:
    with reading(what):
        for fragment in found.get_fragments():
            keys: Mapping[str, Any] = dataset.get_partition_keys(fragment.partition_expression)
            for batch in ParquetRows(fragment.path, what=what).batches():
                columns: list[Any] = [_column(batch, field, keys) for field in schema]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(batch: pa.RecordBatch, field: Any, keys: Mapping[str, object]) -> object:
    if field.name in keys:
        return pa.array([keys[field.name]], field.type).take(pa.array([0] * batch.num_rows, pa.int8()))
    place = batch.schema.get_field_index(field.name)
    return batch.column(place).cast(field.type) if place >= 0 else pa.nulls(batch.num_rows, field.type)


CHUNK = 1 << 20
PACKED: dict[Literal["gzip", "zstd", "bz2"], re.Pattern[bytes]] = {
    "gzip": re.compile(rb"\x1f\x8b"),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd"),
    "bz2": re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"),  # the latter is an empty file; text may begin with BZh
}
"""Compressions by the first bytes of what they make."""
MAX_JSON_DEPTH = 200
"""Deepest nesting of JSON for `read_json_lines`. Arrow's parser calls itself for each level, without a limit."""
_SKIPPED = msgspec.json.Decoder(msgspec.Raw)
_TEXTS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)

TextSource = str | bytes
MOST_CSV = (1 << 31) - 1
"""Arrow reads at most so many bytes of CSV at once."""


def read_bytes(path: str, bounds: Bounds = FILES) -> bytes:
    """Return a file's bytes, decompressed if its first bytes are those of gzip, Zstandard or bzip2."""
    with reading("The file cannot be read"), open(path, "rb") as file:
        head = file.read(10)
        file.seek(0)
        for codec, magic in PACKED.items():
            if magic.match(head):
                return _bounded(pa.CompressedInputStream(file, codec), bounds, os.path.getsize(path))
        return file.read()


def _bounded(source: Any, bounds: Bounds, sent: int) -> bytes:
    parts, total = list[bytes](), 0
    while part := source.read(CHUNK):
        parts.append(part)
        total += len(part)
        bounds.check(total, sent, "A compressed file")
    return b"".join(parts)


def read_csv(
    source: TextSource,
    types: Mapping[str, object],
    skip: Callable[[Any], Literal["skip", "error"]] | None = None,
    newlines_in_values: bool = True,
    empty_is_null: bool = True,
) -> pa.Table:
    """Return the rows of a CSV file with a header. `types` of columns that are known, others are inferred.

    `skip`: called with each row that has too few or too many values; returns "skip" or "error".
    `empty_is_null`: an empty value of a text column is NULL.
    """
    with reading("The data cannot be read as CSV"):
        _check_header(source)
        found = pa.csv.read_csv(
            _input(source),
            parse_options=pa.csv.ParseOptions(newlines_in_values=newlines_in_values, invalid_row_handler=skip),
            convert_options=pa.csv.ConvertOptions(column_types=dict(types), strings_can_be_null=empty_is_null),
        )
        found.validate(full=True)
        return found


def read_texts(data: bytes, names: Sequence[str]) -> pa.Table:
    """Return rows of CSV without a header, each value as a text. An empty value is NULL, a quoted one an empty text."""
    numbers = [str(place) for place in range(len(names))]
    if not data:
        return pa.table({name: pa.array([], pa.string()) for name in names})
    with reading("The data cannot be read as CSV"):
        found = pa.csv.read_csv(
            io.BytesIO(data),
            read_options=pa.csv.ReadOptions(column_names=numbers, block_size=min(len(data) + 1, MOST_CSV)),
            parse_options=pa.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            convert_options=pa.csv.ConvertOptions(
                column_types=dict.fromkeys(numbers, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        return found.rename_columns(list(names))


def _check_header(source: TextSource) -> None:
    """Raise InvalidInput (13) for too many columns, before Arrow makes a builder for each."""
    if isinstance(source, str):
        with open(source, "rb") as file:
            head = file.readline(CHUNK)
    else:
        head = source[:CHUNK].partition(b"\n")[0]
    if head.count(b",") >= MAX_FIELDS:
        raise InvalidInputError(f"The header has more than {MAX_FIELDS} columns.")


def read_json_lines(source: TextSource, schema: pa.Schema | None = None) -> pa.Table:
    """Return the rows of lines of JSON objects. `schema`: types of columns that are known, others are inferred."""
    with reading("The data cannot be read as JSON lines"):
        data = read_bytes(source) if isinstance(source, str) else source
        data = data.removeprefix(BOM_UTF8)
        # Arrow divides the data at line ends, also inside a value of several lines.
        block = None if _is_object_a_line(data) else min(len(data) + 1, MOST_CSV)
        found = pa.json.read_json(
            io.BytesIO(data),
            read_options=pa.json.ReadOptions(block_size=block),
            parse_options=pa.json.ParseOptions(explicit_schema=schema),
        )
        check_types(found.schema)
        found.validate(full=True)
        return found


def _is_object_a_line(data: bytes) -> bool:
    """Return True if each line is one object, and False for other objects, such as those of several lines.

    Raises InvalidInput (13) for values that are nested too deeply for Arrow's parser, and for values outside objects:
    Arrow's parser takes a null for a row of NULLs, and crashes if it comes first.
    """
    is_deep, is_outside = False, False
    try:
        for line in io.BytesIO(data):
            if not line.isspace():
                _SKIPPED.decode(line)
                is_outside = is_outside or not line.lstrip().startswith(b"{")
        is_plain = True
    except RecursionError:
        is_deep, is_plain = True, False
    except msgspec.DecodeError:  # no JSON, or a value of several lines
        is_plain = False
        codes = np.frombuffer(_TEXTS.sub(b'""', data), np.uint8)
        opens = np.isin(codes, (0x5B, 0x7B))
        depths = (opens.astype(np.int32) - np.isin(codes, (0x5D, 0x7D))).cumsum()
        is_deep = bool(len(depths)) and int(depths.max()) > MAX_JSON_DEPTH
        is_outside = bool(np.any((depths == 0) & ~np.isin(codes, (0x7D, *b" \t\r\n"))))
    if is_deep:
        raise InvalidInputError("The data is nested too deeply.")
    if is_outside:
        raise InvalidInputError("Each line must be an object of JSON, and there is something outside of objects.")
    return is_plain


def _input(source: TextSource) -> Any:
    return source if isinstance(source, str) else pa.BufferReader(source)
