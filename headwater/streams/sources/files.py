"""Files of change data, by their ending: Parquet, Arrow, JSON lines, CSV, Lance; on local disk or an object store.

A file is taken whole or not at all. One line that cannot be parsed is quarantined, a file that cannot be is an error.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

import msgspec
import pyarrow as pa

from headwater.decoding.arrow import read_arrow_path
from headwater.decoding.bounds import FILES, Bounds
from headwater.decoding.files import read_bytes, read_csv
from headwater.decoding.parquet import ParquetRows
from headwater.errors import ConcurrentModificationError, InvalidInputError
from headwater.imports import lance
from headwater.store import is_local, local_path
from headwater.store.seam import side_by_side
from headwater.streams.definition import Definition
from headwater.streams.log.batches import Quarantined
from headwater.streams.rows.column_casts import cast_array, floats, has_decimals
from headwater.streams.rows.input_rows import InputRows, as_input_rows, without_rows
from headwater.streams.sources.format_output import UNREADABLE
from headwater.streams.sources.message_values import Messages
from headwater.streams.sources.source_files import (
    digest_of_file,
    fetched,
    find_remote,
    is_remote,
    known_digest,
    natural_order,
)

JSON = (".json", ".jsonl", ".ndjson")
ARROW = (".arrow", ".arrows", ".ipc", ".feather")
PACKED = (".gz", ".zst", ".bz2")
"""Endings of compressed files of JSON, behind their own."""
CHUNK = 1 << 20
_ARRAY = re.compile(r"\s*\[")
_RAW = msgspec.json.Decoder(list[msgspec.Raw])
_QUOTED = re.compile(r'(?:\A|(?<=[,\r\n]))"(?:[^"]++|"")*+("?)')
"""A quoted value of a CSV file, and the quote that ends it."""


class SourceFileError(InvalidInputError):
    """An error in a source file; its message names the file."""


@contextmanager
def naming(file: SourceFile | None) -> Iterator[None]:
    """Name the file in errors about its rows that are raised in the block."""
    try:
        yield
    except SourceFileError:
        raise
    except InvalidInputError as error:
        if file is None:
            raise
        raise SourceFileError(f"In the file {file.path!r}: {error}") from None


@dataclass(frozen=True)
class SourceFile:
    """A file with what makes it known again: its path or address, and a digest of its content.

    The path is that of the file itself, whatever links led to it; `named` is how it was found. `storage` opens the
    object store it is on. `stamp` is how a local file looked when its digest was taken. `bounds`: how large its rows
    may become. `sent`: where its bytes are, if a client sent them; nothing is opened under its path then.
    """

    path: str
    digest: str
    size: int = 0
    storage: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    stamp: tuple[int, int] | None = field(default=None, compare=False)
    named: str = field(default="", compare=False)
    bounds: Bounds = field(default=FILES, compare=False)
    sent: str | None = field(default=None, compare=False)


def is_files(data: object) -> bool:
    """Return True if a caller names files, rather than giving rows or JSON text."""
    if isinstance(data, os.PathLike):
        return True
    if isinstance(data, str):
        return "\n" not in data and not data.lstrip().startswith(("{", "[", "null"))
    return isinstance(data, (list, tuple)) and bool(data) and all(_is_file(each) for each in data)


def _is_file(item: object) -> bool:
    """Return True if an item of a list names a file: a text may be a message as well, so it must look like a name."""
    if not isinstance(item, str) or not is_files(item):
        return isinstance(item, os.PathLike)
    known = _ending(item) in (".parquet", ".csv", ".lance", *JSON, *ARROW)
    return known or is_remote(item) or glob.has_magic(item) or os.path.exists(item)


def find_files(data: Any, storage: Mapping[str, str] | None = None, required: bool = True) -> list[SourceFile]:
    """Return the files that a path, an address, a list of those or a glob names; none is an error if `required`.

    Those of a glob are in the order of their names, numbers in them by value.
    """
    found: dict[str, SourceFile] = {}
    for name in data if isinstance(data, (list, tuple)) else [data]:
        text = os.fspath(name)
        files = _remote(text, storage or {}) if is_remote(text) else _local(local_name(text))
        if not files and (required or not glob.has_magic(text)):
            raise InvalidInputError(f"There is no file {text!r} to ingest.")
        found |= {file.path: file for file in files}
    return list(found.values())


READERS = 4
"""Files that are not known are read by so many threads: a digest leaves Python to others."""


def local_name(text: str) -> str:
    """Return a path of this machine, which may be written as an address (`file:///...`)."""
    return local_path(text) if "://" in text and is_local(text) else text


def names_of(file: str) -> frozenset[str]:
    """Return the names of a file: as given, absolute, and with links resolved."""
    if is_remote(file):
        return frozenset([file])
    return frozenset([file, os.path.abspath(local_name(file)), os.path.realpath(local_name(file))])


def _local(text: str) -> list[SourceFile]:
    """Return the files that a glob matches, and a file of exactly that name, whose brackets are no pattern."""
    matches = {text, *(glob.glob(text, recursive=True) if glob.has_magic(text) else ())}
    names = [match for match in sorted(matches, key=natural_order) if os.path.exists(match)]
    unread = [name for name in names if known_digest(os.path.realpath(name))[0] is None]
    if len(unread) < 2:
        return [local_file(name) for name in names]
    with ThreadPoolExecutor(min(READERS, len(unread)), "headwater-files") as threads:
        read = dict(zip(unread, side_by_side(threads, local_file, unread), strict=True))
    return [read.get(name) or local_file(name) for name in names]


def local_file(name: str) -> SourceFile:
    """Return a file of this machine, with the digest of what is in it now. One that a link names is the file it leads
    to."""
    path = os.path.realpath(name)
    stamp = None if os.path.isdir(path) else _stamp(path)
    return SourceFile(path, digest_of_file(path), size_of(path), stamp=stamp, named=os.path.abspath(name))


def _stamp(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns


def _remote(uri: str, storage: Mapping[str, str]) -> list[SourceFile]:
    return [SourceFile(file.uri, file.digest, file.size, storage) for file in find_remote(uri, storage)]


def size_of(path: str) -> int:
    """Return the bytes of a file, or of a folder that is one dataset."""
    if not os.path.isdir(path):
        return os.path.getsize(path)
    return sum(os.path.getsize(name) for name in glob.glob(f"{path}/**", recursive=True) if os.path.isfile(name))


Fits = Callable[[InputRows], None]
"""Called with the columns of a file, without rows, before those are decoded. Raises an error to refuse them."""


def read_rows(
    file: SourceFile, definition: Definition, fits: Fits = lambda columns: None
) -> tuple[Any, list[Quarantined]]:
    """Return the rows of a file, and lines that could not be parsed."""
    ending = _ending(file.path)
    try:
        if ending == ".lance" and file.sent is None:
            return lance.dataset(file.path, storage_options=dict(file.storage) or None).to_table(), []
        with opened(file) as path:
            return _read(path, ending, definition, file, fits)
    except SourceFileError:
        raise
    except (InvalidInputError, OSError, ValueError) as error:
        told = f"The file {file.path!r} cannot be read: {str(error).rstrip('.')}. Nothing of it was loaded."
        raise SourceFileError(told) from None


def _read(
    path: str, ending: str, definition: Definition, file: SourceFile, fits: Fits
) -> tuple[Any, list[Quarantined]]:
    name = file.path
    if ending == ".parquet" or ending in ARROW:
        found = ParquetRows(path, file.bounds) if ending == ".parquet" else read_arrow_path(path, file.bounds)
        with naming(file):
            fits(as_input_rows(without_rows(found.schema)))
        return found.table() if isinstance(found, ParquetRows) else found.read_all(), []
    if ending == ".csv":
        return _read_csv(path, definition, file)
    if ending in JSON:
        return json_rows(_read_text(path, file), definition, name)
    raise SourceFileError(
        f"The file {name!r} is of a kind that is not known: its name ends in .parquet, .arrow, .json (also "
        "compressed, as .json.gz), .csv or .lance."
    )


@contextmanager
def opened(file: SourceFile) -> Iterator[str]:
    """The file on local disk; 14 if it is not what its digest was taken of, so that nothing of it is taken."""
    digest = file.digest
    if file.sent is not None:
        yield file.sent
    elif is_remote(file.path):
        with fetched(file.path, file.storage) as (path, digest):
            yield path
    else:
        yield file.path
        digest = digest if file.stamp in (None, _stamp(file.path)) else ""
    if digest != file.digest:
        raise ConcurrentModificationError(
            f"The file {file.path!r} was changed while it was read. Nothing of it was loaded: take it again."
        )


def _ending(name: str) -> str:
    """Return the lower-case suffix of a file's name; of compressed JSON, that of the uncompressed name."""
    stem, ending = os.path.splitext(name.lower())
    inner = os.path.splitext(stem)[1]
    return inner if ending in PACKED and inner in JSON else ending


def is_lines(file: SourceFile) -> bool:
    """Return whether a file is read as lines of JSON: every one that is no table by its name."""
    return _ending(file.path) not in (".parquet", ".lance", *ARROW)


def read_lines(file: SourceFile) -> str:
    """Return the text of a file of lines of JSON, or of one array, as lines."""
    with opened(file) as path:
        text = _read_text(path, file)
    return as_lines(text, file.path) if _is_array(text) else _whole_lines(text, file.path)


def as_lines(text: str, name: str | None = None) -> str:
    """Lines of JSON as they are; one array of values as a line of each. `name` is that of the file it is from."""
    if not _is_array(text):
        return text
    found = _parsed_array(text, _RAW, name)
    return "\n".join(bytes(each).decode().replace("\n", " ") for each in found)  # none is inside of a value


def _is_array(text: str) -> bool:
    return _ARRAY.match(text) is not None


def _parsed_array(text: str, decoder: msgspec.json.Decoder[Any], name: str | None) -> list[Any]:
    told_of = f"The file {name!r}" if name is not None else "The text"
    try:
        return list(decoder.decode(text))
    except RecursionError:
        raise SourceFileError(f"{told_of} is nested too deeply. Nothing of it was loaded.") from None
    except msgspec.DecodeError as error:
        raise SourceFileError(f"{told_of} is not JSON: {error}. Nothing of it was loaded.") from None


def _whole_lines(text: str, name: str) -> str:
    """Return the text, unless it ends inside a line: the file was cut off."""
    last = text[text.rfind("\n") + 1 :]
    if last.strip():
        try:
            msgspec.json.decode(last)
        except UNREADABLE as error:
            row = text.count("\n")
            raise SourceFileError(
                f"The file {name!r} ends inside row {row}, it was cut off ({error}). Nothing of it was loaded."
            ) from None
    return text


def _read_text(path: str, file: SourceFile) -> str:
    try:
        return read_bytes(path, file.bounds).decode("utf-8-sig")  # with the mark that some programs begin with
    except UnicodeDecodeError as error:
        row = error.object.count(b"\n", 0, error.start)
        raise SourceFileError(
            f"The file {file.path!r} is not UTF-8: row {row}, offset {error.start}. Nothing of it was loaded."
        ) from None
    except InvalidInputError as error:
        raise SourceFileError(f"The file {file.path!r}: {error} Nothing of it was loaded.") from None


def json_rows(text: str, definition: Definition, name: str | None = None) -> tuple[list[Any], list[Quarantined]]:
    """Lines of objects, or one array of them. What is no object is quarantined, `null` is passed over.

    `name` is that of the file the text is from; one that ends inside a line was cut off.
    """
    if name is None and text.strip() and not text.lstrip().startswith(("{", "[", "null")):
        raise InvalidInputError("The text is not JSON: it begins with no object and no list of them.")
    found = _JsonRows(definition)
    if _is_array(text):
        for row in _parsed_array(text, found.decoder, name):
            found.add(row, "" if isinstance(row, dict) else msgspec.json.encode(row).decode())
    else:
        found.add_lines(text if name is None else _whole_lines(text, name))
    return found.rows, found.bad


def message_rows(messages: Messages, definition: Definition) -> tuple[list[Any], list[Quarantined]]:
    """Return the rows of messages, an object each, with the columns that a topic offers."""
    found = _JsonRows(definition)
    found.add_lines(messages.text, messages.offered(definition), messages.shown)
    return found.rows, [*messages.bad, *found.bad]


class _JsonRows:
    """Objects as rows of a table: decimals are read exactly where a column has them."""

    def __init__(self, definition: Definition) -> None:
        self._exact = frozenset(column.name for column in definition.columns if has_decimals(column.type))
        self.decoder = msgspec.json.Decoder(float_hook=Decimal) if self._exact else msgspec.json.Decoder()
        self.rows: list[Any] = []
        self.bad: list[Quarantined] = []

    def add_lines(
        self,
        text: str,
        offered: Callable[[int], Mapping[str, Any]] | None = None,
        shown: Callable[[int], str] | None = None,
    ) -> None:
        """Add a row for each line. `offered`: more columns of a line. `shown`: where a line is from."""
        for number, line in enumerate(text.split("\n")):
            if not line or line.isspace():
                continue
            told, source = line.rstrip("\r"), None if shown is None else shown(number)
            try:
                row = self.decoder.decode(line)
                more = offered(number) if offered is not None and isinstance(row, dict) else {}
                self.add({**row, **more} if more else row, told, source)
            except UNREADABLE:  # also a row that nests too deeply for its numbers to be looked at
                self.bad.append(Quarantined(told, "parse", source=source))

    def add(self, row: object, told: str, source: str | None = None) -> None:
        if isinstance(row, dict):
            exact = self._exact
            self.rows.append({key: v if key in exact else floats(v) for key, v in row.items()} if exact else row)
        elif row is not None:
            self.bad.append(Quarantined(told, "parse", source=source))


def _read_csv(path: str, definition: Definition, file: SourceFile) -> tuple[object, list[Quarantined]]:
    """Read a CSV file with a header: known columns by their types, others by what their values look like."""
    bad: list[Quarantined] = []

    def skip(row: Any) -> Literal["skip"]:
        bad.append(Quarantined(str(row.text), "parse"))
        return "skip"

    name = file.path
    quoted = _whole_quotes(_read_text(path, file), name)
    texts: dict[str, object] = {column.name: pa.string() for column in definition.columns}
    table = read_csv(path, texts, skip, newlines_in_values=quoted, empty_is_null=False)
    columns: dict[str, object] = {}
    for each, found in zip(table.schema.names, table.columns, strict=True):
        if each in columns:
            raise SourceFileError(f"Two columns of the file {name!r} are named {each!r}. Nothing of it was loaded.")
        column = definition.by_name.get(each)
        columns[each] = _parsed(found, column.type) if column is not None else found
    return InputRows(columns, table.num_rows), bad


def _whole_quotes(text: str, name: str) -> bool:
    """Return True if the text has quoted values, which may hold line ends; an open quote would swallow later rows."""
    if text.count('"') % 2:
        for found in _QUOTED.finditer(text):
            if not found[1]:
                row = text.count("\n", 0, found.start())
                raise SourceFileError(
                    f"The file {name!r} ends inside a quoted value that begins in row {row}: it was cut off, or a "
                    "quote is missing. Nothing of it was loaded."
                )
    return '"' in text


def _parsed(texts: Any, kind: pa.DataType) -> Any:
    """Return texts cast to a type; if one does not parse, a list of Python values that keeps that text."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return texts
    strings = pa.array([None if text == "" else text for text in texts.to_pylist()], pa.string())
    values, wrong = cast_array(strings, kind)
    if not wrong.any():
        return values
    raw = strings.to_pylist()
    return [raw[place] if wrong[place] else value for place, value in enumerate(values.to_pylist())]
