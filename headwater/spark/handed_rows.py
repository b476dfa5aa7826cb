"""Rows that tasks hand to the driver: all of them where a server writes, and few ones everywhere.

A task that has few rows writes no file of the log. The driver writes those of all tasks as one, so that a small
statement, or a small batch of a stream, is one delta at one position, in however many tasks Spark divides it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, TypeVar

import pyarrow as pa

FEW_ROWS, FEW_BYTES = 1000, 1 << 16
"""What a task hands over at most, so that the driver can hold those of all."""
ROWS = "arrow"

Json = dict[str, Any]
T = TypeVar("T")


def are_few(rows: pa.Table) -> bool:
    return rows.num_rows <= FEW_ROWS and rows.nbytes <= FEW_BYTES


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
    """What tasks have prepared, in their order; rows that they handed over are prepared together, by the driver."""
    for is_handed, group in groupby(parts, key=lambda part: part is not None and ROWS in part):
        if not is_handed:
            yield from group
        elif (rows := unpacked(group)) is not None:
            yield prepare(rows)
