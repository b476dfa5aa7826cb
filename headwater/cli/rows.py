"""The verbs that read rows: head, query, search, count."""

from __future__ import annotations

import argparse
from typing import Any

import pyarrow as pa

from headwater.cli.files import write_rows
from headwater.cli.output import show
from headwater.cli.table_at import moment_of, open_table
from headwater.errors import InvalidInputError, TableNotFoundError
from headwater.imports import when_used
from headwater.tables.expressions import quoted

queries = when_used("headwater.sql.catalog_queries")


def head(args: argparse.Namespace) -> int:
    rows = _search(args, open_table(args), vector=_vector(args)) if args.vector else _rows(args, open_table(args))
    _write(args, rows)
    return 0


def _rows(args: argparse.Namespace, table: Any) -> pa.RecordBatchReader:
    found: pa.RecordBatchReader = table.to_batches(args.column, args.where, args.limit)
    return found


def _write(args: argparse.Namespace, rows: pa.RecordBatchReader) -> None:
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
    _write(args, answer.to_reader())
    return 0


def search(args: argparse.Namespace) -> int:
    said = [name for name in ("text", "vector", "like_row") if getattr(args, name) is not None]
    if not said or ("like_row" in said and len(said) > 1):
        raise InvalidInputError("Say what to search for: --text, --vector (or both), or --like-row KEY.")
    table = open_table(args)
    serving = table.serving
    like = args.like_row
    vector = vector_like(serving, like, args.key, args.on) if like is not None else _vector(args)
    _write(args, _search(args, serving, vector=vector, text=args.text, column=args.on))
    return 0


def _search(args: argparse.Namespace, table: Any, **what: Any) -> pa.RecordBatchReader:
    found: pa.Table = table.search(k=max(args.limit or 0, 1), filter=args.where, columns=args.column, **what)
    return found.slice(0, args.limit).to_reader()


def _vector(args: argparse.Namespace) -> list[float] | None:
    if args.vector is None:
        return None
    try:
        return [float(part) for part in args.vector.split(",")]
    except ValueError:
        raise InvalidInputError("--vector takes numbers with commas between, such as 0.1,0.2.") from None


def vector_like(table: Any, value: str, key: str | None = None, on: str | None = None) -> list[float]:
    """The vector of the row with a key: of the first column unless told another, in the only vector column or `on`."""
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
