"""CSV, JSON lines and compressed text from outside, in memory that follows what was sent."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json

from headwater.decoding.bounds import FILES, MAX_FIELDS, Bounds, check_types, reading
from headwater.errors import InvalidInputError

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

Source = str | bytes


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
    source: Source,
    types: Mapping[str, Any],
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


def _check_header(source: Source) -> None:
    """Raise InvalidInput (13) for too many columns, before Arrow makes a builder for each."""
    if isinstance(source, str):
        with open(source, "rb") as file:
            head = file.readline(CHUNK)
    else:
        head = source[:CHUNK].partition(b"\n")[0]
    if head.count(b",") >= MAX_FIELDS:
        raise InvalidInputError(f"The header has more than {MAX_FIELDS} columns.")


def read_json_lines(source: Source, schema: pa.Schema | None = None) -> pa.Table:
    """Return the rows of lines of JSON objects. `schema`: types of columns that are known, others are inferred."""
    with reading("The data cannot be read as JSON lines"):
        data = read_bytes(source) if isinstance(source, str) else source
        _check_depth(data)
        found = pa.json.read_json(io.BytesIO(data), parse_options=pa.json.ParseOptions(explicit_schema=schema))
        check_types(found.schema)
        found.validate(full=True)
        return found


def _check_depth(data: bytes) -> None:
    """Raise InvalidInput (13) for values that are nested too deeply for Arrow's parser."""
    try:
        for line in io.BytesIO(data):
            if not line.isspace():
                _SKIPPED.decode(line)
        return
    except RecursionError:
        is_deep = True
    except msgspec.DecodeError:  # no JSON, or a value of several lines
        codes = np.frombuffer(_TEXTS.sub(b"", data), np.uint8)
        steps = np.isin(codes, (0x5B, 0x7B)).astype(np.int32) - np.isin(codes, (0x5D, 0x7D)).astype(np.int32)
        is_deep = bool(len(steps)) and int(steps.cumsum().max()) > MAX_JSON_DEPTH
    if is_deep:
        raise InvalidInputError("The data is nested too deeply.")


def _input(source: Source) -> Any:
    return source if isinstance(source, str) else pa.BufferReader(source)
