"""Rows that come in are made to fit the table's own schema where nothing is lost, and refused by name where it is."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest

from headwater import Catalog
from headwater.catalog import CatalogTable
from headwater.errors import InvalidInputError, TableSchemaValidationError
from headwater.tables.write.input_rows import fit, reader_of, storable

FIELDS: list[Any] = [
    pa.field("id", pa.int64(), nullable=False),
    pa.field("text", pa.string()),
    pa.field("vector", pa.list_(pa.float32(), 3)),
    pa.field("at", pa.timestamp("us")),
    pa.field("seen", pa.timestamp("us", tz="UTC")),
    pa.field("price", pa.decimal128(10, 2)),
    pa.field("day", pa.date32()),
    pa.field("who", pa.struct([pa.field("name", pa.string()), pa.field("age", pa.int16())])),
]
SCHEMA = pa.schema(FIELDS)


@pytest.fixture
def people(tmp_path: Path) -> CatalogTable:
    return Catalog(str(tmp_path / "lake")).create_table("people", SCHEMA.empty_table())


def row(id: int, **more: Any) -> dict[str, Any]:
    return {"id": id, "text": "a", "vector": [0.1, 0.2, 0.3], **more}


def test_python_rows_are_appended_to_a_table_with_a_vector_column(people: CatalogTable) -> None:
    people.append([row(1, at=dt.datetime(2026, 1, 2), who={"name": "Ada"}), row(2, price=Decimal("1.5"), day=None)])
    found = people.to_arrow()
    assert found.schema == SCHEMA
    assert found["vector"].to_pylist()[0] == pa.array([0.1, 0.2, 0.3], pa.float32()).to_pylist()
    assert found["who"].to_pylist() == [{"name": "Ada", "age": None}, None]


def test_a_pandas_frame_is_upserted_whatever_its_index_is(people: CatalogTable) -> None:
    people.append([row(1), row(2)])
    frame = pd.DataFrame({"id": [0, 2, 3], "text": ["x", "b", "c"], "vector": [[1.0, 2.0, 3.0]] * 3})
    frame["at"] = pd.Timestamp("2026-01-02")
    people.upsert(frame[frame["id"] > 0], on="id")
    assert sorted(people.to_arrow(columns=["id", "text"]).to_pylist(), key=lambda found: found["id"]) == [
        {"id": 1, "text": "a"},
        {"id": 2, "text": "b"},
        {"id": 3, "text": "c"},
    ]


def test_what_polars_calls_text_and_lists_is_taken(people: CatalogTable) -> None:
    large = pa.table(
        {
            "text": pa.array(["a"], pa.large_string()),
            "id": pa.array([7], pa.int32()),
            "vector": pa.array([[1, 2, 3]], pa.large_list(pa.float64())),
            "at": pa.array([1], pa.timestamp("s")),
            "seen": pa.array([1], pa.timestamp("ms", tz="Europe/Paris")),
            "day": pa.array([0], pa.date64()),
        }
    )
    people.append(large)
    assert people.to_arrow().to_pylist()[0]["seen"].timestamp() == 0.001


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("vector", [0.1, 0.2], "A list has 2 values"),
        ("vector", [1e300, 0.0, 0.0], "too large"),
        ("id", 1.5, "1.5"),
        ("id", None, "must have one"),
        ("at", dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "make them one or the other"),
        ("seen", dt.datetime(2026, 1, 1), "make them one or the other"),
        ("price", Decimal("1.234"), "decimal"),
        ("price", 1.5, "is decimal128"),
        ("day", dt.datetime(2026, 1, 1, 12), "midnight"),
        ("who", {"name": "Ada", "height": 2}, "'who.height'"),
        ("who", {"age": 70_000}, "70000"),
        ("nope", 1, "no column 'nope'"),
    ],
)
def test_what_would_lose_something_is_refused_by_column_and_row(
    people: CatalogTable, column: str, value: Any, says: str
) -> None:
    with pytest.raises(TableSchemaValidationError) as refused:
        people.append([*(row(id) for id in range(40)), {**row(40), column: value}])
    assert says in str(refused.value)
    assert column in str(refused.value)
    assert people.count() == 0
    if "here" not in str(refused.value) and "no column" not in str(refused.value) and column + "." not in says:
        assert "Row 41" in str(refused.value)


def test_a_number_is_no_text(people: CatalogTable) -> None:
    with pytest.raises(TableSchemaValidationError, match="'text' is string in the table and int64 here"):
        people.append([{"id": 1, "text": 5}])


def test_rows_of_another_stream_are_numbered_on(people: CatalogTable) -> None:
    batches = [pa.record_batch({"id": pa.array([number], pa.int64()), "text": ["a"]}) for number in range(5)]
    bad = pa.record_batch({"id": pa.array([None], pa.int64()), "text": ["a"]})
    with pytest.raises(TableSchemaValidationError, match="Row 6 has no value in the column 'id'"):
        people.append(pa.RecordBatchReader.from_batches(bad.schema, [*batches, bad]))


def test_equal_length_lists_of_floats_in_rows_make_a_vector_column(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path / "lake"))
    rows = [{"v": [0.5, 1.0], "w": [0.5], "n": [1, 2], "u": [0.5] * n, "h": [1e300, 0.1]} for n in (1, 2)]
    made = catalog.create_table("made", [*rows, {"v": None, "extra": 1}]).schema
    assert made.field("v").type == pa.list_(pa.float32(), 2)
    assert [made.field(name).type for name in "wnuh"] == [
        pa.list_(pa.float64()),
        pa.list_(pa.int64()),
        pa.list_(pa.float64()),
        pa.list_(pa.float64()),
    ]
    assert "extra" in made.names
    catalog["made"].append([{"v": [3.0, 4.0]}])
    frame = pd.DataFrame({"v": [[0.5, 1.0], [2.0, 3.0]]})
    assert catalog.create_table("framed", frame).schema.field("v").type == pa.list_(pa.float32(), 2)
    typed = pa.table({"v": pa.array([[0.5, 1.0]], pa.list_(pa.float64()))})
    assert catalog.create_table("typed", typed).schema.field("v").type == pa.list_(pa.float64())


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([{"a": 1}, {"a": "x"}], "'a'"),
        ([{"a": 1}, [2]], "Row 2"),
        ("text", "is not a table"),
        ({"a": [1]}, "is not a table"),
    ],
)
def test_rows_that_are_no_table_are_refused(rows: Any, says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        reader_of(rows)


def test_a_type_that_lance_lacks_is_kept_as_its_twin() -> None:
    given = pa.schema(
        [
            ("small", pa.decimal32(5, 2)),
            ("views", pa.list_view(pa.int32())),
            ("words", pa.list_(pa.string(), 2)),
            ("inside", pa.struct([("d", pa.decimal64(10, 1))])),
            ("prices", pa.list_(pa.decimal128(10, 2), 2)),
            ("points", pa.list_(pa.struct([("x", pa.int32())]), 2)),
        ]
    )
    assert storable(given).types == [
        pa.decimal128(5, 2),
        pa.list_(pa.int32()),
        pa.list_(pa.string()),
        pa.struct([("d", pa.decimal128(10, 1))]),
        pa.list_(pa.decimal128(10, 2), 2),
        pa.list_(pa.struct([("x", pa.int32())])),
    ]


def test_rows_that_fit_already_are_passed_on_as_they_are() -> None:
    batch = pa.record_batch({"id": pa.array([1, 2], pa.int64())})
    passed = fit(pa.RecordBatchReader.from_batches(batch.schema, [batch]), batch.schema).read_next_batch()
    addresses = [buffer.address for column in (batch, passed) if (buffer := column.column(0).buffers()[1])]
    assert addresses[0] == addresses[1]
