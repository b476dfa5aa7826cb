"""Files of the log can be read by every pyarrow that the package allows."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater.metastore import Metastore
from headwater.streams.definition import define
from headwater.streams.log import stored_events
from headwater.streams.log.batches import shape
from headwater.streams.log.log_files import encode_events
from headwater.streams.log.stored_events import events_of, read_file
from headwater.streams.rows.input_rows import as_input_rows
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
    events = shape(definition, as_input_rows(rows)).events
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


PLAIN: list[tuple[Any, list[Any]]] = [
    (pa.int8(), [1, None, -1]),
    (pa.decimal128(20, 3), [None, None, None]),
    (pa.timestamp("ns", "UTC"), [1, None, 3]),
    (pa.timestamp("s"), [1, None, 3]),
    (pa.time32("ms"), [1, None, 3]),
    (pa.date32(), [1, None, 3]),
    (pa.duration("us"), [1, None, 3]),
    (pa.float32(), [float("inf"), None, -0.0]),
    (pa.large_binary(), [b"\0", None, b""]),
    (pa.binary(2), [b"ab", None, b"cd"]),
    (pa.string(), ["", None, "\u00e9"]),
    (pa.bool_(), [True, None, False]),
]


@pytest.mark.parametrize(("kind", "values"), VALUES + PLAIN, ids=lambda each: str(each)[:40])
def test_columns_that_are_kept_when_a_file_is_written_are_those_that_are_read(kind: Any, values: list[Any]) -> None:
    definition = define(pa.schema([("id", pa.int64()), ("v", kind)]), "id")
    rows = pa.table({"id": pa.array([3, 1, 2]), "v": pa.array(values, kind)})
    file = encode_events(definition, shape(definition, as_input_rows(rows)).events, np.arange(3), 1)
    assert file.columns is not None
    read = pq.ParquetFile(io.BytesIO(file.data)).read()
    kept, read_back = (events_of(definition, definition.rules, [table])[0] for table in (file.columns, read))
    assert kept.rows.equals(read_back.rows)


def test_a_tail_of_many_small_files_is_read_as_one_that_is_opened_anew(tmp_path: Path) -> None:
    """Files of several schemas: a column is missing, comes, is renamed and comes again under its old name."""
    with Metastore(tmp_path / "lake") as metastore:
        table = StreamTable.create(metastore, ["t"], {"id": "int64", "a": "string", "b": "int32"}, keys="id")
        for number in range(6):
            table.upsert([{"id": number % 3, "a": str(number)}, {"id": number + 10, "b": number}])
        table.delete([1])
        table.evolve(rename={"b": "c"}, widen={"b": "int64"})
        table.evolve(add={"b": "int64"})
        for number in range(4):
            table.upsert([{"id": number, "b": number, "c": number}])
        kept = table.to_arrow().sort_by("id")
        with Metastore(tmp_path / "lake") as other:
            assert StreamTable(other, ["t"]).to_arrow().sort_by("id").equals(kept)
        table.publish()
        assert table.verify() == []
        assert table.to_arrow().sort_by("id").equals(kept)


def test_verify_reads_files_that_this_process_has_kept(tmp_path: Path) -> None:
    with Metastore(tmp_path / "lake") as metastore:
        table = StreamTable.create(metastore, ["t"], {"id": "int64"}, keys="id")
        table.upsert([{"id": 1}])
        assert table.to_arrow().num_rows == 1
        assert table.verify() == []
        (path,) = (tmp_path / "lake").rglob("*.parquet")
        path.write_bytes(path.read_bytes()[:-9])
        (told,) = table.verify()
        assert "cannot be read" in told


def test_small_files_are_kept_up_to_a_number_and_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"a": [1, 2, 3]})
    monkeypatch.setattr(stored_events, "FILES", 3)
    known = stored_events.SmallFiles()
    for number in range(5):
        known.keep(f"f{number}", table)
        known.keep(f"f{number}", table)
    assert [known.get(f"f{number}") is None for number in range(5)] == [True, True, False, False, False]
    monkeypatch.setattr(stored_events, "BYTES", 2 * table.nbytes)
    known.keep("g", table)
    assert known.get("f3") is None
    assert known.get("f4") is not None
    known.keep("large", pa.table({"a": range(stored_events.LARGEST)}))
    assert known.get("large") is None
