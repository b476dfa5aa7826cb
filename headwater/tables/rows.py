"""Rows in hand: Arrow data, a data frame or Python rows, as the one thing that is written: a stream of batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import InvalidInputError

MIN_DIMENSION = 2
"""Lists of one number are rather lists than vectors."""


def reader_of(data: Any, vectors: bool = False) -> pa.RecordBatchReader:
    """The rows as batches, which an iterable of batches gives as they come.

    With `vectors`, equal-length lists of floats in untyped rows become vectors.

    Arrow data and frames that keep Arrow types say what they are and are taken at their word.
    """
    if isinstance(data, pa.RecordBatchReader):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data]).to_reader()
    if type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "index"):
        return _untyped(_from_pandas(data), vectors)
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data)
    if isinstance(data, Iterable) and not isinstance(data, (str, bytes, Mapping)):
        rows = iter(data)
        first = next(rows, None)
        if isinstance(first, pa.RecordBatch):
            return pa.RecordBatchReader.from_batches(first.schema, _batches(first, rows))
        return _untyped(_from_rows([] if first is None else [first, *rows]), vectors)
    raise InvalidInputError(f"{type(data).__name__} is no table: give Arrow data, a data frame or a list of rows.")


def _batches(first: pa.RecordBatch, others: Iterable[Any]) -> Iterator[pa.RecordBatch]:
    yield first
    for number, batch in enumerate(others, start=2):
        if not isinstance(batch, pa.RecordBatch) or batch.schema != first.schema:
            raise InvalidInputError(f"Batch {number} is none, or of another schema than the first.")
        yield batch


def _untyped(table: pa.Table, vectors: bool) -> pa.RecordBatchReader:
    return (with_vectors(table) if vectors else table).to_reader()


def _from_pandas(frame: Any) -> pa.Table:
    """An index that has a name is a column; one without is only the numbering of the rows."""
    named = any(name is not None for name in frame.index.names)
    try:
        return pa.Table.from_pandas(frame, preserve_index=named)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidInputError(f"The frame cannot be read as a table: {str(error)[:200]}") from None


def _from_rows(rows: Sequence[Any]) -> pa.Table:
    """Every key of any row is a column; a row without it has null there."""
    names: dict[str, None] = {}
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            raise InvalidInputError(f"Row {number} is of type {type(row).__name__}: a row is a dict of its columns.")
        names.update(dict.fromkeys(row))
    return pa.table({name: _column(name, [row.get(name) for row in rows]) for name in names})


def _column(name: str, values: list[Any]) -> Any:
    try:
        return pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(f"The column {str(name)[:200]!r} is of no one type: {str(error)[:200]}") from None


def with_vectors(table: pa.Table) -> pa.Table:
    """The table with every column of equal-length lists of floats as vectors of 32-bit floats."""
    for position, name in enumerate(table.schema.names):
        size = _dimension(table.column(position))
        if size is not None:
            table = table.set_column(position, name, table.column(position).cast(pa.list_(pa.float32(), size)))
    return table


def _dimension(column: Any) -> int | None:
    """How long the lists of a column are, if they are vectors: floats, none missing, all finite in 32 bits."""
    if not pa.types.is_list(column.type) or not pa.types.is_floating(column.type.value_type):
        return None
    sizes = pc.unique(pc.list_value_length(column).drop_null())
    values: Any = pc.list_flatten(column)
    if len(sizes) != 1 or sizes[0].as_py() < MIN_DIMENSION or values.null_count:
        return None
    narrow = pc.all(pc.equal(pc.is_finite(values), pc.is_finite(values.cast(pa.float32())))).as_py()
    return int(sizes[0].as_py()) if narrow else None
