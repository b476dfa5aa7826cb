"""The rows of a file that a verb names: Parquet, CSV, Arrow IPC, or a stream on standard input."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from headwater.catalog import CatalogTable
from headwater.errors import InvalidInputError
from headwater.tables.arrow import read_stream


def read_rows(name: str, table: CatalogTable | None = None) -> pa.Table:
    """The rows of a file. Those of a CSV file have the types of the table they are for, if there is one."""
    if name == "-":
        return read_stream(sys.stdin.buffer.read()).read_all()
    path = Path(name)
    if not path.is_file():
        raise InvalidInputError(f"There is no file {name!r}.")
    types = column_types(table.schema) if table is not None and path.suffix == ".csv" else {}
    try:
        return _table(path, types)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{name!r} cannot be read: {str(error).splitlines()[0][:200]}") from None


def column_types(schema: pa.Schema) -> dict[str, Any]:
    """The types that texts of a CSV file can be read as; a column of another type keeps what is guessed of it."""
    return {field.name: field.type for field in schema if _is_plain(field.type)}


def _is_plain(kind: Any) -> bool:
    nested = isinstance(kind, pa.BaseExtensionType) or kind.num_fields or pa.types.is_dictionary(kind)
    odd = pa.types.is_duration(kind) or pa.types.is_float16(kind) or pa.types.is_null(kind)
    return not (nested or odd)


def _table(path: Path, types: dict[str, Any]) -> pa.Table:
    if path.suffix == ".parquet":
        return pyarrow.parquet.read_table(path)
    if path.suffix == ".csv":
        return pyarrow.csv.read_csv(path, convert_options=pyarrow.csv.ConvertOptions(column_types=types))
    with pa.memory_map(str(path)) as source:
        is_file = bytes(source.read(6)) == b"ARROW1"
        source.seek(0)
        return (pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)).read_all()
