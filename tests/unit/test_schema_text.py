"""Types and columns as text: one grammar for Python, pipeline files and the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headwater
from headwater.errors import InvalidInputError
from headwater.schema_text import MAX_LEVELS, parse_schema, parse_type

COLUMNS: dict[str, Any] = {
    "id BIGINT NOT NULL": pa.field("id", pa.int64(), nullable=False),
    '"my, name" text': pa.field("my, name", pa.string()),
    "`a ``b` int": pa.field("a `b", pa.int32()),
    "v vector(4)": pa.field("v", pa.list_(pa.float32(), 4)),
    "v float32[4]": pa.field("v", pa.list_(pa.float32(), 4)),
    "x double  precision": pa.field("x", pa.float64()),
    "s struct<Ab: int, `c d`: decimal(5, 2) not null>": pa.field(
        "s", pa.struct([pa.field("Ab", pa.int32()), pa.field("c d", pa.decimal128(5, 2), nullable=False)])
    ),
    "m MAP<string, array<float32[3]>>": pa.field(
        "m", pa.map_(pa.string(), pa.list_(pa.list_(pa.float32(), 3)))
    ),
    "t timestamp[us, tz=UTC] not null": pa.field("t", pa.timestamp("us", "UTC"), nullable=False),
}  # fmt: skip


@pytest.mark.parametrize("text", COLUMNS)
def test_a_column_is_read_with_its_name_type_and_nullability(text: str) -> None:
    assert parse_schema(f"{text}, z int") == pa.schema([COLUMNS[text], pa.field("z", pa.int32())])


def test_a_comment_is_kept_with_its_column() -> None:
    field = parse_schema("a struct<b: int comment 'in, side'> NOT NULL COMMENT 'it''s'").field(0)
    assert field.metadata == {b"comment": b"it's"}
    assert not field.nullable
    assert field.type.field(0).metadata == {b"comment": b"in, side"}


@pytest.mark.parametrize(
    "text",
    ["", "id", "id int,", "id int, id text", "a array<int, int>", "a map<int>", "a struct<>", "a decimal(39, 2)",
     "a decimal(3, 4)", "a float32[0]", f"a float32[{'9' * 5000}]", "a array<int", "a nothing", 'a int, "x'],
)  # fmt: skip
def test_a_wrong_column_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_schema(text)


@pytest.mark.parametrize("opening", ["array<", "struct<a: "])
def test_a_type_that_nests_without_end_is_refused(opening: str) -> None:
    assert parse_type(opening * (MAX_LEVELS - 1) + "int" + ">" * (MAX_LEVELS - 1))
    for levels in (MAX_LEVELS, 50_000):
        with pytest.raises(InvalidInputError, match="nested in more than"):
            parse_type(opening * levels + "int" + ">" * levels)


def test_the_library_takes_a_schema_as_text(tmp_path: Path) -> None:
    catalog = headwater.Catalog(tmp_path / "lake")
    table = catalog.create_table("a.t", schema="id BIGINT NOT NULL, s struct<Ab: int>, v vector(2)")
    table.append([{"id": 1, "s": {"Ab": 2}, "v": [1.0, 2.0]}])
    assert table.to_arrow().to_pylist() == [{"id": 1, "s": {"Ab": 2}, "v": [1.0, 2.0]}]
    stream = catalog.create_stream_table("a.s", "id BIGINT NOT NULL, m map<string, int>", keys="id")
    stream.upsert([{"id": 1, "m": {"a": 1}}])
    assert stream.to_arrow().to_pylist() == [{"id": 1, "m": [("a", 1)]}]
    stream.publish()
    assert catalog.verify() == []
