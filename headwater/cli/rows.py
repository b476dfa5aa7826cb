"""The verbs that read rows (head, query, search, count), rows from files, and rows to a file or stdout."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from headwater.catalog.table_parts import read_file
from headwater.cli.output import print_grid, show
from headwater.cli.target import moment_of, open_table
from headwater.decoding.arrow import read_arrow
from headwater.decoding.bounds import FILES
from headwater.decoding.files import read_json_lines
from headwater.errors import InvalidInputError, TableNotFoundError
from headwater.imports import when_used
from headwater.tables.expressions import quoted
from headwater.tables.write.input_rows import with_vectors

queries = when_used("headwater.sql.embedded")


def head(args: argparse.Namespace) -> int:
    rows = _search(args, open_table(args), vector=_vector(args)) if args.vector else _rows(args, open_table(args))
    _print_rows(args, rows)
    return 0


def _rows(args: argparse.Namespace, table: Any) -> pa.RecordBatchReader:
    found: pa.RecordBatchReader = table.to_batches(args.column, args.where, args.limit)
    return found


def _print_rows(args: argparse.Namespace, rows: pa.RecordBatchReader) -> None:
    write_rows(rows, args.out, args.format, args.json)


def query(args: argparse.Namespace) -> int:
    """One SELECT; or, as in early versions, the rows of one table."""
    if not queries.is_sql(args.sql):
        args.table, args.limit = args.sql, 100 if args.limit is None else args.limit
        return head(args)
    for option in ("version", "tag", "branch", "where", "column", "vector"):
        if getattr(args, option) is not None:
            raise InvalidInputError(f"--{option} is for one table: say it in the SELECT.")
    catalog, is_near = args.target.catalog(), args.target.server is None
    answer = queries.run(args.sql, catalog, is_near, args.limit, moment_of(args), args.dialect)
    _print_rows(args, answer.to_reader())
    return 0


def search(args: argparse.Namespace) -> int:
    said = [name for name in ("text", "vector", "like_row") if getattr(args, name) is not None]
    if not said or ("like_row" in said and len(said) > 1):
        raise InvalidInputError("Say what to search for: --text, --vector (or both), or --like-row KEY.")
    table = open_table(args)
    serving = table.serving
    like = args.like_row
    vector = vector_like(serving, like, args.key, args.on) if like is not None else _vector(args)
    _print_rows(args, _search(args, serving, vector=vector, text=args.text, column=args.on))
    return 0


def _search(args: argparse.Namespace, table: Any, **what: object) -> pa.RecordBatchReader:
    found: pa.Table = table.search(k=max(args.limit or 0, 1), filter=args.where, columns=args.column, **what).to_arrow()
    return found.slice(0, args.limit).to_reader()


def _vector(args: argparse.Namespace) -> list[float] | None:
    if args.vector is None:
        return None
    try:
        return [float(part) for part in args.vector.split(",")]
    except ValueError:
        raise InvalidInputError("--vector takes numbers with commas between, such as 0.1,0.2.") from None


def vector_like(table: Any, value: str, key: str | None = None, on: str | None = None) -> list[float]:
    """Return the vector of the row with a key: of the first column unless told another, in the only vector column or
    `on`."""
    schema: pa.Schema = table.schema
    key = key or schema.names[0]
    vectors = [field.name for field in schema if pa.types.is_fixed_size_list(field.type)]
    column = on or (vectors[0] if len(vectors) == 1 else None)
    if key not in schema.names or column not in schema.names:
        raise InvalidInputError(
            f"--like-row needs a key and a vector column: say --key and --on of {', '.join(schema.names)[:300]}."
        )
    is_text = pa.types.is_string(schema.field(key).type) or pa.types.is_large_string(schema.field(key).type)
    wanted = quoted(value) if is_text else _number(value)
    found = table.to_arrow(columns=[column], filter=f"`{key}` = {wanted}", limit=1)
    if not found.num_rows or found[column][0].as_py() is None:
        raise TableNotFoundError(f"No row has {key} = {value[:200]!r} and a vector.")
    vector: list[float] = found[column][0].as_py()
    return vector


def _number(text: str) -> str:
    try:
        return repr(int(text)) if text.lstrip("-").isdigit() else repr(float(text))
    except ValueError:
        raise InvalidInputError(f"--like-row {text[:200]!r}: the key column holds numbers.") from None


def count(args: argparse.Namespace) -> int:
    table = open_table(args)
    if args.where is not None and table.is_stream:
        total = table.to_arrow(None, args.where, None).num_rows
    else:
        total = table.count(args.where) if args.where is not None else table.count()
    if args.json:
        show({"count": total}, True)
    else:
        print(total)
    return 0


JSON_LINES = (".jsonl", ".ndjson", ".json")
SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".parquet": "parquet"}
SUFFIXES |= {".arrow": "arrow", ".ipc": "arrow", ".feather": "arrow"}


def read_rows(name: str, table: Any = None) -> pa.Table:
    """Return the rows of a file. Those of CSV and JSON have the types of the table they are for, if there is one."""
    if name == "-":
        return _read_stdin(table)
    path = Path(name)
    is_known = path.suffix in SUFFIXES or path.suffix == ".lance"
    if not path.is_file() and not (path.suffix == ".lance" and path.is_dir()):
        raise InvalidInputError(f"There is no file {name!r}.")
    types = column_types(table.schema) if table is not None and path.suffix in (".csv", *JSON_LINES) else {}
    try:
        rows: pa.Table = read_file(name, types).read_all()
        return rows
    except (InvalidInputError, pa.ArrowException, OSError, ValueError) as error:
        told = str(error).splitlines()[0][:200] if is_known else f"a file is read by its suffix, {', '.join(SUFFIXES)}"
        raise InvalidInputError(f"{name!r} cannot be read: {told}.") from None


def _read_stdin(table: pa.Table) -> pa.Table:
    """Return an Arrow stream or file, or JSON lines: told by the first bytes."""
    data = sys.stdin.buffer.read()
    if data.lstrip()[:1] == b"{":
        return _json(data, column_types(table.schema) if table is not None else {})
    return read_arrow(data, FILES).read_all()


def column_types(schema: pa.Schema) -> dict[str, object]:
    """The types that texts of a CSV file can be read as; a column of another type keeps what is guessed of it."""
    return {field.name: field.type for field in schema if _is_plain(field.type)}


def _is_plain(kind: pa.DataType) -> bool:
    nested = isinstance(kind, pa.BaseExtensionType) or kind.num_fields or pa.types.is_dictionary(kind)
    odd = pa.types.is_duration(kind) or pa.types.is_float16(kind) or pa.types.is_null(kind)
    return not (nested or odd)


def _json(source: Any, types: dict[str, Any]) -> pa.Table:
    """Return JSON lines as rows. Without the types of a table, lists of floats of one length are vectors."""
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
