"""Rows into and out of any `LanceNamespace`: as a stream of batches where it has one, as bytes where it has not."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from lance_namespace import LanceNamespace

from headwater.tables.arrow import read_file, to_stream

READERS = {
    "create_table": "create_table_reader",
    "insert_into_table": "insert_reader",
    "merge_insert_into_table": "merge_insert_reader",
}
"""What a catalog may have beyond the interface, so that rows need no detour through bytes."""


def write_rows(namespace: LanceNamespace, method: str, request: Any, reader: pa.RecordBatchReader) -> Any:
    """Call a method that takes rows."""
    direct = getattr(namespace, READERS[method], None)
    if direct is not None:
        return direct(request, reader)
    return getattr(namespace, method)(request, to_stream(reader))


def read_rows(namespace: LanceNamespace, request: Any) -> pa.RecordBatchReader:
    """QueryTable: the rows as they are found, or from the whole answer."""
    direct = getattr(namespace, "query_batches", None)
    if direct is not None:
        found: pa.RecordBatchReader = direct(request)
        return found
    answer: Any = namespace.query_table(request)
    data = answer if isinstance(answer, (bytes, bytearray)) else bytes(answer.data)
    return read_file(data)
