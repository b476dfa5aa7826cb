"""Rows of a task: read file by file of the log, and handed to the driver where they are few or a server writes.

A task that has few rows writes no file of the log. The driver writes those of all tasks as one, so that a small
statement, or a small batch of a stream, is one delta at one position, in however many tasks Spark divides it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, groupby, repeat
from typing import Any, TypeVar

import pyarrow as pa

FEW_ROWS, FEW_BYTES = 1000, 1 << 16
"""What a task hands over at most, so that the driver can hold those of all."""
ROWS = "arrow"
FILE_ROWS = 1 << 20
FIRST_ROWS, FIRST_FILES = 1 << 18, 4
"""A task writes a file of the log for each so many rows, the first ones of fewer, so that one is written while the rows
of the next come in. It holds no more than two files' rows."""

Json = dict[str, Any]
T = TypeVar("T")


def are_few(rows: pa.Table) -> bool:
    return rows.num_rows <= FEW_ROWS and rows.nbytes <= FEW_BYTES


def chunks(reader: pa.RecordBatchReader) -> Iterator[pa.Table]:
    """The rows of a task, as many at once as go into one file of the log; the next are read meanwhile."""
    sizes = chain(repeat(FIRST_ROWS, FIRST_FILES), repeat(FILE_ROWS))
    parts = (_rows(reader, size) for size in sizes)
    with ThreadPoolExecutor(1) as beside:
        coming = beside.submit(next, parts)
        while (found := coming.result()).num_rows:
            coming = beside.submit(next, parts)
            yield found


def _rows(reader: pa.RecordBatchReader, wanted: int) -> pa.Table:
    """About so many rows; none when there are no more."""
    batches: list[pa.RecordBatch] = []
    for batch in reader:
        batches.append(batch)
        wanted -= batch.num_rows
        if wanted <= 0:
            break
    return pa.Table.from_batches(batches, reader.schema)


def packed(rows: pa.Table) -> Json:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(rows)
    return {ROWS: base64.b64encode(sink.getvalue()).decode()}


def unpacked(parts: Iterable[Mapping[str, Any]]) -> pa.Table | None:
    """The rows of all tasks, which have the same columns; None: there are none."""
    found = [pa.ipc.open_stream(pa.py_buffer(base64.b64decode(part[ROWS]))).read_all() for part in parts]
    rows = pa.concat_tables(found) if found else None
    return rows if rows is not None and rows.num_rows else None


def gathered(parts: Iterable[Any], prepare: Callable[[pa.Table], T]) -> Iterator[T]:
    """Yield the prepared output of tasks in order; the driver prepares the rows that they returned, all together."""
    for is_handed, group in groupby(parts, key=lambda part: part is not None and ROWS in part):
        if not is_handed:
            yield from group
        elif (rows := unpacked(group)) is not None:
            yield prepare(rows)
