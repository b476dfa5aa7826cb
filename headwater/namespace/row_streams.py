"""Rows into and out of any `LanceNamespace`: as a stream of batches where it has one, as bytes where it has not."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from lance_namespace import LanceNamespace

from headwater.decoding.arrow import read_file
from headwater.namespace.abilities import abilities_of
from headwater.tables.write.arrow import to_stream


def write_rows(namespace: LanceNamespace, method: str, request: Any, reader: pa.RecordBatchReader) -> Any:
    """Call a method that takes rows."""
    can = abilities_of(namespace)
    direct = {
        "create_table": can.create_table_rows,
        "insert_into_table": can.insert_rows,
        "merge_insert_into_table": can.merge_rows,
    }[method]
    if direct is not None:  # without a detour through bytes
        return direct(request, reader)
    return getattr(namespace, method)(request, to_stream(reader))


def read_rows(namespace: LanceNamespace, request: Any) -> pa.RecordBatchReader:
    """QueryTable: the rows as they are found, or from the whole answer."""
    direct = abilities_of(namespace).query_rows
    if direct is not None:
        return direct(request)
    answer: Any = namespace.query_table(request)
    data = answer if isinstance(answer, (bytes, bytearray)) else bytes(answer.data)
    return read_file(data)
