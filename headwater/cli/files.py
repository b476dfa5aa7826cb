"""Rows from the files that a verb names, and rows to a file or stdout."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import lance
import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from headwater.cli.output import print_grid
from headwater.decoding.arrow import read_arrow, read_arrow_path
from headwater.decoding.bounds import FILES
from headwater.decoding.parquet import ParquetRows
from headwater.decoding.text import read_csv, read_json_lines
from headwater.errors import InvalidInputError
from headwater.tables.write.input_rows import with_vectors

JSON_LINES = (".jsonl", ".ndjson", ".json")
SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".parquet": "parquet"}
SUFFIXES |= {".arrow": "arrow", ".ipc": "arrow", ".feather": "arrow"}


def read_rows(name: str, table: Any = None) -> pa.Table:
    """The rows of a file. Those of CSV and JSON have the types of the table they are for, if there is one."""
    if name == "-":
        return _read_stdin(table)
    path = Path(name)
    is_known = path.suffix in SUFFIXES or path.suffix == ".lance"
    if not path.is_file() and not (path.suffix == ".lance" and path.is_dir()):
        raise InvalidInputError(f"There is no file {name!r}.")
    types = column_types(table.schema) if table is not None and path.suffix in (".csv", *JSON_LINES) else {}
    try:
        return _table(path, types)
    except (InvalidInputError, pa.ArrowException, OSError, ValueError) as error:
        told = str(error).splitlines()[0][:200] if is_known else f"a file is read by its suffix, {', '.join(SUFFIXES)}"
        raise InvalidInputError(f"{name!r} cannot be read: {told}.") from None


def _read_stdin(table: Any) -> pa.Table:
    """An Arrow stream or file, or JSON lines: told by the first bytes."""
    data = sys.stdin.buffer.read()
    if data.lstrip()[:1] == b"{":
        return _json(data, column_types(table.schema) if table is not None else {})
    return read_arrow(data, FILES).read_all()


def column_types(schema: pa.Schema) -> dict[str, Any]:
    """The types that texts of a CSV file can be read as; a column of another type keeps what is guessed of it."""
    return {field.name: field.type for field in schema if _is_plain(field.type)}


def _is_plain(kind: Any) -> bool:
    nested = isinstance(kind, pa.BaseExtensionType) or kind.num_fields or pa.types.is_dictionary(kind)
    odd = pa.types.is_duration(kind) or pa.types.is_float16(kind) or pa.types.is_null(kind)
    return not (nested or odd)


def _table(path: Path, types: dict[str, Any]) -> pa.Table:
    if path.suffix == ".lance":
        return lance.dataset(str(path)).to_table()  # type: ignore[no-any-return]
    if path.suffix == ".parquet":
        return ParquetRows(str(path)).table()
    if path.suffix == ".csv":
        return read_csv(str(path), types)
    if path.suffix in JSON_LINES:
        return _json(str(path), types)
    return read_arrow_path(str(path)).read_all()


def _json(source: Any, types: dict[str, Any]) -> pa.Table:
    """JSON says nothing of types: without those of a table, equal-length lists of floats are vectors."""
    told = pa.schema(list(types.items())) if types else None
    found = read_json_lines(source, told)
    return found if types else with_vectors(found)


def write_rows(rows: pa.RecordBatchReader, out: str | None, format: str | None, as_json: bool) -> None:
    """Rows as a line asks for them: to a file by its suffix, or printed."""
    chosen = format or ("jsonl" if as_json else None)
    if out is not None:
        by_suffix = SUFFIXES.get(Path(out).suffix)
        if chosen is None and by_suffix is None:
            raise InvalidInputError(f"--out {out!r}: end it in {', '.join(sorted(SUFFIXES))}, or say --format.")
        with open(out, "wb") as sink:
            _write(rows, sink, chosen or by_suffix or "")
    elif chosen in ("csv", "arrow", "parquet"):
        _write(rows, sys.stdout.buffer, chosen)
    elif chosen == "jsonl":
        for batch in rows:
            for row in batch.to_pylist():
                print(msgspec.json.encode(row).decode())
    else:
        show_rows(rows.read_all())


def show_rows(table: pa.Table) -> None:
    """Rows as a table for people; a NULL is seen."""
    if not table.num_rows:
        print("(no rows)")
        return
    print_grid(table.to_pylist(), null="NULL")


def _write(rows: pa.RecordBatchReader, sink: Any, format: str) -> None:
    if format == "table":
        raise InvalidInputError("A file is written as jsonl, csv, arrow or parquet.")
    if format == "jsonl":
        for batch in rows:
            sink.writelines(msgspec.json.encode(row) + b"\n" for row in batch.to_pylist())
        return
    try:
        with _writer(sink, rows.schema, format) as writer:
            for batch in rows:
                writer.write_batch(batch)
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            f"These rows cannot be written as {format}: {str(error).splitlines()[0][:200]}"
        ) from None


def _writer(sink: Any, schema: pa.Schema, format: str) -> Any:
    if format == "csv":
        return pyarrow.csv.CSVWriter(sink, schema)
    if format == "parquet":
        return pyarrow.parquet.ParquetWriter(sink, schema)
    return pa.ipc.new_stream(sink, schema)
