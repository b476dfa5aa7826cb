"""Sound data of every type and format, to be damaged."""

from __future__ import annotations

import bz2
import datetime
import decimal
import gzip
import io
import json
import uuid
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet as pq

ROWS = 9


def arrays() -> dict[str, Any]:
    """A short column of each type."""
    texts = ["a", None, "a text that is longer than twelve", "", "é"] * 2
    numbers = [1, 2, None, -4, 5, 6, 7, 8, 9]
    lists = [[1, 2], None, [], [3]] * 3
    words = pa.array(texts[:ROWS])
    maker: Any = pa.ListViewArray
    return {
        "int8": pa.array(numbers, pa.int8()),
        "int64": pa.array(numbers, pa.int64()),
        "double": pa.array([float(n or 0) for n in numbers]),
        "bool": pa.array([True, None, False] * 3),
        "null": pa.nulls(ROWS),
        "string": words,
        "large_string": words.cast(pa.large_string()),
        "string_view": words.cast(pa.string_view()),
        "binary_view": pa.array([b"x" * n for n in range(10, 10 + ROWS)], pa.binary_view()),
        "fixed": pa.array([b"abc"] * ROWS, pa.binary(3)),
        "decimal": pa.array([decimal.Decimal("1.25")] * ROWS),
        "stamp": pa.array([datetime.datetime(2026, 1, 1)] * ROWS),
        "list": pa.array(lists[:ROWS], pa.list_(pa.int32())),
        "large_list": pa.array([["a"]] * ROWS, pa.large_list(pa.string())),
        "list_view": maker.from_arrays(pa.array([0] * ROWS, pa.int32()), pa.array([2] * ROWS, pa.int32()), words),
        "vector": pa.array([[0.5, 1.5]] * 8 + [None], pa.list_(pa.float32(), 2)),
        "struct": pa.array([{"x": n, "s": "t"} for n in numbers]),
        "map": pa.array([[("k", 1)]] * ROWS, pa.map_(pa.string(), pa.int32())),
        "dictionary": words.dictionary_encode(),
        "nested_dictionary": pa.ListArray.from_arrays(pa.array(range(ROWS + 1), pa.int32()), words.dictionary_encode()),
        "runs": pa.RunEndEncodedArray.from_arrays(pa.array([4, ROWS], pa.int32()), pa.array(["x", "y"])),
        "dense": pa.UnionArray.from_dense(
            pa.array([0, 1] * 4 + [0], pa.int8()),
            pa.array([0, 0] * 4 + [0], pa.int32()),
            [pa.array([1]), pa.array(["u"])],
        ),
        "sparse": pa.UnionArray.from_sparse(pa.array([0] * ROWS, pa.int8()), [pa.array(range(ROWS)), words]),
        "uuid": pa.array([uuid.UUID(int=n).bytes for n in range(ROWS)], pa.uuid()),
        "json": pa.array(['{"a": 1}'] * ROWS, pa.json_(pa.string())),
    }


ODD = ("runs", "dense", "sparse", "list_view", "string_view", "binary_view", "null", "json", "nested_dictionary")
"""Types that Parquet does not write."""


@cache
def table() -> pa.Table:
    return pa.table(arrays())


@cache
def plain() -> pa.Table:
    return table().drop_columns([name for name in ODD if name in table().schema.names])


def stream(rows: pa.Table, compression: Any = None) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(rows)
    return sink.getvalue()


def file(rows: pa.Table, compression: Any = None) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(rows)
    return sink.getvalue()


def parquet(rows: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(rows, sink, **options)
    return sink.getvalue()


@cache
def seeds() -> dict[str, list[bytes]]:
    """Bytes of each format, by the reader that they are for."""
    some = [table().select([name]) for name in table().schema.names]
    streams = [stream(table(), how) for how in (None, "lz4", "zstd")] + [stream(each) for each in some]
    streams += [stream(pa.concat_tables([plain(), plain()])), stream(some[0].slice(0, 0))]
    files = [file(plain(), how) for how in (None, "lz4", "zstd")]
    small = [plain().select([name]) for name in plain().schema.names]
    texts = plain().select(["string", "int64"])
    delta = {"use_dictionary": False, "column_encoding": {"string": "DELTA_BYTE_ARRAY", "int64": "DELTA_BINARY_PACKED"}}
    parquets = [parquet(plain(), compression=how) for how in ("none", "zstd", "snappy", "gzip")]
    parquets += [parquet(plain(), data_page_version="2.0"), parquet(texts, **delta), parquet(texts, store_schema=False)]
    parquets += [parquet(each, compression="none") for each in small]
    sink = io.BytesIO()
    pa.csv.write_csv(texts, sink)
    orc = io.BytesIO()
    pa.orc.write_table(texts, orc)
    lines = "\n".join(json.dumps(row) for row in plain().select(["string", "int64", "list", "struct"]).to_pylist())
    zstd = pa.compress(lines.encode(), "zstd", asbytes=True)
    return {
        "stream": streams,
        "file": [*files, *(file(each) for each in small)],
        "schema": [bytes(table().schema.serialize()), bytes(plain().schema.serialize())],
        "parquet": parquets,
        "csv": [sink.getvalue(), b"a,b\n1,2\n3\n", b'a\n"x\ny"\n'],
        "json": [
            lines.encode(),
            b'{"a":[[[1]]]}\n{"a":[[[1e999]]]}\n',
            b'[{"id": 1}, {"id": 12345678901234567890123}]',
        ],
        "orc": [orc.getvalue()],
        "packed": [gzip.compress(lines.encode()), bz2.compress(lines.encode()), zstd],
    }
