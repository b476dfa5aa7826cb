"""Files of change data on local disk, by their ending: Parquet, Arrow, JSON lines, CSV, Lance.

A file is taken whole or not at all. One line that cannot be parsed is quarantined, a file that cannot be is an error.
"""

from __future__ import annotations

import glob
import hashlib
import os
from dataclasses import dataclass
from typing import Any, Literal

import lance
import msgspec
import pyarrow as pa
import pyarrow.csv as pc_csv
import pyarrow.parquet as pq

from headwater.errors import InvalidInputError
from headwater.streams.casting import cast_array
from headwater.streams.definition import Definition
from headwater.streams.given import Given
from headwater.streams.quarantine import Quarantined

JSON = (".json", ".jsonl", ".ndjson")
ARROW = (".arrow", ".ipc", ".feather")
CHUNK = 1 << 20


@dataclass(frozen=True)
class SourceFile:
    """A file with what makes it known again: its path, and a digest of its content."""

    path: str
    digest: str


def is_files(data: Any) -> bool:
    """Whether a caller names files, rather than giving rows or JSON text."""
    if isinstance(data, os.PathLike):
        return True
    if isinstance(data, str):
        return "\n" not in data and not data.lstrip().startswith(("{", "[", "null"))
    return isinstance(data, (list, tuple)) and bool(data) and all(isinstance(each, os.PathLike) for each in data)


def find_files(data: Any) -> list[SourceFile]:
    """The files that a path, a list of paths or a glob names, sorted; none is an error."""
    found: list[str] = []
    for name in data if isinstance(data, (list, tuple)) else [data]:
        text = os.fspath(name)
        matches = sorted(glob.glob(text, recursive=True)) if glob.has_magic(text) else [text]
        if not matches or not os.path.exists(matches[0]):
            raise InvalidInputError(f"There is no file {text!r} to ingest.")
        found.extend(os.path.abspath(match) for match in matches)
    return [SourceFile(path, digest_of_file(path)) for path in dict.fromkeys(found)]


def digest_of_file(path: str) -> str:
    digest = hashlib.blake2b(digest_size=16)
    names = sorted(glob.glob(f"{path}/**", recursive=True)) if os.path.isdir(path) else [path]
    for name in names:
        if os.path.isfile(name):
            with open(name, "rb") as file:
                while chunk := file.read(CHUNK):
                    digest.update(chunk)
    return digest.hexdigest()


def read_rows(path: str, definition: Definition) -> tuple[Any, list[Quarantined]]:
    """The rows of a file, and lines that could not be parsed."""
    ending = os.path.splitext(path)[1].lower()
    try:
        if ending == ".parquet":
            return pq.read_table(path), []
        if ending in ARROW:
            return _read_arrow(path), []
        if ending == ".lance":
            return lance.dataset(path).to_table(), []
        if ending == ".csv":
            return _read_csv(path, definition)
        if ending in JSON:
            return _read_json(path)
    except (OSError, ValueError, pa.ArrowInvalid) as error:
        raise InvalidInputError(f"The file {path!r} cannot be read: {error}. Nothing of it was taken.") from None
    raise InvalidInputError(
        f"The file {path!r} is of a kind that is not known: its name ends in .parquet, .arrow, .json, .csv or .lance."
    )


def read_text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            f"The file {path!r} is not UTF-8: offset {error.start}. Nothing of it was taken."
        ) from None
    except OSError as error:
        raise InvalidInputError(f"The file {path!r} cannot be read: {error}.") from None


def _read_arrow(path: str) -> pa.Table:
    try:
        return pa.ipc.open_file(path).read_all()
    except pa.ArrowInvalid:
        with open(path, "rb") as file:
            return pa.ipc.open_stream(file.read()).read_all()


def _read_json(path: str) -> tuple[Any, list[Quarantined]]:
    """Lines of objects, or one array of them."""
    text = read_text(path)
    if text.lstrip().startswith("["):
        return msgspec.json.decode(text), []
    decoder = msgspec.json.Decoder()
    rows: list[Any] = []
    bad: list[Quarantined] = []
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            row = decoder.decode(line)
        except msgspec.DecodeError as error:
            if number == len(lines) - 1 and not text.endswith("\n"):
                raise InvalidInputError(
                    f"The file {path!r} ends inside row {number}, it was cut off ({error}). Nothing of it was taken."
                ) from None
            bad.append(Quarantined(line, "parse", None, path))
            continue
        if isinstance(row, dict):
            rows.append(row)
        elif row is not None:
            bad.append(Quarantined(line, "parse", None, path))
    return rows, bad


def _read_csv(path: str, definition: Definition) -> tuple[Any, list[Quarantined]]:
    """With a header. Known columns are read as texts and parsed as their types, others as they look."""
    bad: list[Quarantined] = []

    def skip(row: Any) -> Literal["skip"]:
        bad.append(Quarantined(str(row.text), "parse", None, path))
        return "skip"

    read_text(path)
    texts: dict[str, Any] = {column.name: pa.string() for column in definition.columns}
    table = pc_csv.read_csv(
        path,
        parse_options=pc_csv.ParseOptions(invalid_row_handler=skip),
        convert_options=pc_csv.ConvertOptions(column_types=texts, strings_can_be_null=False),
    )
    columns: dict[str, Any] = {}
    for name in table.schema.names:
        column = definition.by_name.get(name)
        columns[name] = _parsed(table.column(name), column.type) if column is not None else table.column(name)
    return Given(columns, table.num_rows), bad


def _parsed(texts: Any, kind: Any) -> Any:
    """The texts as values; where one cannot be parsed, all as Python values with that text left in, to be found bad."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return texts
    strings = pa.array([None if text == "" else text for text in texts.to_pylist()], pa.string())
    values, wrong = cast_array(strings, kind)
    if not wrong.any():
        return values
    raw = strings.to_pylist()
    return [raw[place] if wrong[place] else value for place, value in enumerate(values.to_pylist())]
