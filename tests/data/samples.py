"""The table that the tests of data operations work on, and requests about it."""

from __future__ import annotations

import io
from typing import Any

import lance
import pyarrow as pa
from lance_namespace import QueryTableRequest, QueryTableResponse
from lance_namespace_urllib3_client.models.query_table_request_columns import QueryTableRequestColumns
from lance_namespace_urllib3_client.models.query_table_request_full_text_query import QueryTableRequestFullTextQuery
from lance_namespace_urllib3_client.models.query_table_request_vector import QueryTableRequestVector
from lance_namespace_urllib3_client.models.string_fts_query import StringFtsQuery

ROWS = 300
DIMENSION = 4
ID = ["t"]


def rows(start: int = 0, count: int = ROWS) -> pa.Table:
    """Rows whose content follows from their number."""
    numbers = range(start, start + count)
    values = [float((number * 7 + place * 3) % 11) for number in numbers for place in range(DIMENSION)]
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "s": pa.array([f"word{number % 7} hello {number}" for number in numbers], pa.string()),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(values, pa.float32()), DIMENSION),
            "st": pa.array([{"a": number, "b.c": str(number)} for number in numbers],
                           pa.struct([("a", pa.int64()), ("b.c", pa.string())])),
            "tags": pa.array([[f"x{number % 3}"] for number in numbers], pa.list_(pa.string())),
        }
    )  # fmt: skip


def body(table: pa.Table, **options: Any) -> bytes:
    """A table as an Arrow IPC stream."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue()


def query(k: int = 3, **fields: Any) -> QueryTableRequest:
    """A query: `vector` a list of numbers or of such lists, `columns` a list or a dict, `words` a full-text query."""
    vector = fields.pop("vector", None)
    columns = fields.pop("columns", None)
    words = fields.pop("words", None)
    several = bool(vector) and isinstance(vector[0], list)
    fields["vector"] = QueryTableRequestVector(
        single_vector=None if several else vector, multi_vector=vector if several else None
    )
    if isinstance(columns, list):
        fields["columns"] = QueryTableRequestColumns(column_names=columns)
    elif columns is not None:
        fields["columns"] = QueryTableRequestColumns(column_aliases=columns)
    if isinstance(words, str):
        words = QueryTableRequestFullTextQuery(string_query=StringFtsQuery(query=words))
    return QueryTableRequest(id=ID, k=k, full_text_query=words, **fields)


def answer(response: QueryTableResponse | bytes) -> pa.Table:
    """The rows of an answer."""
    data = response if isinstance(response, bytes) else response.data
    assert isinstance(data, bytes)
    return pa.ipc.open_file(io.BytesIO(data)).read_all()


def snapshot(uri: str) -> tuple[int, int, list[str]]:
    """What a refused call must leave as it was."""
    dataset = lance.dataset(uri)
    return dataset.version, dataset.count_rows(), dataset.schema.names
