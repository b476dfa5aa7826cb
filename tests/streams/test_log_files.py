"""Files of the log can be read by every pyarrow that the package allows."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater.metastore import Metastore
from headwater.streams.definition import define
from headwater.streams.log.batches import shape
from headwater.streams.log.log_files import encode_events, read_file
from headwater.streams.rows.input_rows import given
from headwater.streams.table import StreamTable

VECTOR = pa.list_(pa.float32(), 2)
VALUES: list[tuple[Any, list[Any]]] = [
    (VECTOR, [[1.0, 2.0], None, [None, 3.0]]),
    (pa.list_(VECTOR, 1), [[[1.0, 2.0]], None, [None]]),
    (pa.list_(VECTOR), [[[1.0, 2.0], None], None, []]),
    (pa.large_list(VECTOR), [[None], None, []]),
    (pa.struct([("v", VECTOR), ("n", pa.int64())]), [{"v": None, "n": 1}, None, {"v": [1.0, 2.0], "n": None}]),
    (pa.map_(pa.string(), VECTOR), [[("a", None)], None, [("a", [1.0, 2.0])]]),
    (pa.list_(pa.decimal128(5, 2), 2), [None, None, None]),
]


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=lambda each: str(each)[:40])
def test_lists_of_a_fixed_size_are_kept_as_lists_and_read_back_as_they_were(kind: Any, values: list[Any]) -> None:
    """pyarrow 20 to 25 write a NULL in a fixed-size list to Parquet, and cannot read the file."""
    definition = define(pa.schema([("id", pa.int64()), ("v", kind)]), "id")
    rows = pa.table({"id": pa.array([1, 2, 3]), "v": pa.array(values, kind)})
    events = shape(definition, given(rows)).events
    file = encode_events(definition, events, np.arange(3), 1)
    assert "fixed_size_list" not in str(pq.ParquetFile(io.BytesIO(file.data)).schema_arrow)
    found, _ = read_file(definition, definition.rules, pa.BufferReader(file.data), "a file")
    assert found.rows.column("v").equals(events.rows.column("v"))


def test_a_vector_that_is_null_lands_and_is_read_and_published(metastore: Metastore) -> None:
    table = StreamTable.create(metastore, ["t"], {"id": "int64", "v": "float32[2]"}, keys="id")
    table.upsert([{"id": 1, "v": [1, 2]}, {"id": 2, "v": None}])
    assert sorted(map(str, table.to_arrow()["v"].to_pylist())) == ["None", "[1.0, 2.0]"]
    table.publish()
    assert table.verify() == []
    assert table.schema.field("v").type == VECTOR
