"""ALTER TABLE of columns inside structs, arrays and maps: what is there keeps its values, null structs stay null."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.errors import UnsupportedOperationException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from headwater.errors import TableColumnNotFoundError
from headwater.spark.catalog import alter
from headwater.spark.protocol import AddColumn
from headwater.tables.columns.alter import nested_in, trail

VALUES = (
    "(1, named_struct('a', 1, 'deep', named_struct('p', 10)), array(named_struct('a', 1), NULL)), "
    "(2, NULL, NULL), "
    "(3, named_struct('a', NULL, 'deep', NULL), array())"
)


def rows(spark: SparkSession, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in spark.sql(query).collect()]


@pytest.fixture
def table(spark: SparkSession, ns: str) -> str:
    name = f"{ns}.t"
    columns = "id INT, s STRUCT<a: INT, deep: STRUCT<p: INT>>, l ARRAY<STRUCT<a: INT>>"
    spark.sql(f"CREATE TABLE {name} ({columns})")
    spark.sql(f"INSERT INTO {name} VALUES {VALUES}")
    spark.sql(f"DELETE FROM {name} WHERE id = 3")
    spark.sql(f"INSERT INTO {name} SELECT * FROM VALUES {VALUES} WHERE col1 = 3")
    return name


@pytest.mark.long
def test_a_column_added_inside_a_struct_or_array_is_null_in_old_rows_and_is_written_read_and_filtered(
    spark: SparkSession, table: str
) -> None:
    spark.sql(f"ALTER TABLE {table} ADD COLUMNS (s.new BIGINT COMMENT 'late', s.deep.q STRING, l.element.b DOUBLE)")
    assert rows(spark, f"SELECT id, s, l FROM {table} ORDER BY id") == [
        (1, (1, (10, None), None), [(1, None), None]),
        (2, None, None),
        (3, (None, None, None), []),
    ]
    spark.sql(
        f"INSERT INTO {table} VALUES (4, named_struct('a', 4, 'deep', struct(40, 'q'), 'new', 44), array((4, 0.5)))"
    )
    assert rows(spark, f"SELECT id FROM {table} WHERE s.new = 44 AND s.deep.q = 'q'") == [(4,)]
    assert rows(spark, f"SELECT id FROM {table} WHERE s.new IS NULL ORDER BY id") == [(1,), (2,), (3,)]
    spark.sql(f"UPDATE {table} SET s.new = 11 WHERE id = 1")
    spark.sql(f"CALL lake.system.compact('{table}')")
    assert rows(spark, f"SELECT id, s.a, s.new, s.deep.q, s IS NULL FROM {table} ORDER BY id") == [
        (1, 1, 11, None, False),
        (2, None, None, None, True),
        (3, None, None, None, False),
        (4, 4, 44, "q", False),
    ]
    inner = spark.table(table).schema["s"].dataType
    assert isinstance(inner, StructType)
    assert ("late",) in [(field.metadata.get("comment"),) for field in inner]
    assert rows(spark, f"SELECT s FROM {table} VERSION AS OF 2 WHERE id = 1") == [((1, (10,)),)]


def test_columns_inside_structs_and_arrays_are_renamed_retyped_and_dropped(spark: SparkSession, table: str) -> None:
    spark.sql(f"ALTER TABLE {table} ALTER COLUMN s.deep.p TYPE BIGINT")
    spark.sql(f"ALTER TABLE {table} ALTER COLUMN l.element.a TYPE BIGINT")
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN s.deep.p TO wide")
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN l.element.a TO item")
    spark.sql(f"ALTER TABLE {table} DROP COLUMN s.a")
    spark.sql(f"ALTER TABLE {table} DROP COLUMN IF EXISTS s.a")
    assert spark.table(table).schema.simpleString() == (
        "struct<id:int,s:struct<deep:struct<wide:bigint>>,l:array<struct<item:bigint>>>"
    )
    expected = [(1, ((10,),), [(1,), None]), (2, None, None), (3, (None,), [])]
    assert rows(spark, f"SELECT * FROM {table} ORDER BY id") == expected


def test_what_lance_cannot_do_to_a_nested_column_is_refused_and_the_table_stays_readable(
    spark: SparkSession, ns: str, table: str
) -> None:
    spark.sql(f"CREATE TABLE {ns}.m AS SELECT map('k', named_struct('a', 1, 'b', 2)) AS m")
    for change in ("ADD COLUMN m.value.c INT", "DROP COLUMN m.value.a", "ALTER COLUMN m.value.a TYPE BIGINT"):
        with pytest.raises(UnsupportedOperationException, match="inside a map"):
            spark.sql(f"ALTER TABLE {ns}.m {change}")
    spark.sql(f"ALTER TABLE {ns}.m RENAME COLUMN m.value.a TO z")
    assert rows(spark, f"SELECT m['k'].z FROM {ns}.m") == [(1,)]
    with pytest.raises(UnsupportedOperationException, match="drop the struct instead"):
        spark.sql(f"ALTER TABLE {table} DROP COLUMN s.deep.p")
    with pytest.raises(UnsupportedOperationException, match="leave FIRST and AFTER out"):
        spark.sql(f"ALTER TABLE {table} ADD COLUMN first INT FIRST")
    with pytest.raises(UnsupportedOperationException, match="leave NOT NULL out"):
        spark.sql(f"ALTER TABLE {table} ADD COLUMN always INT NOT NULL")
    assert rows(spark, f"SELECT count(*) FROM {table}") == [(3,)]


def test_a_struct_in_an_older_file_format_does_not_grow_and_the_message_says_what_to_do(tmp_path: Path) -> None:
    data = pa.table({"s": pa.array([{"a": 1}, None])})
    dataset = lance.write_dataset(data, str(tmp_path / "old"), data_storage_version="2.1")
    with pytest.raises(Exception, match=r"format 2\.1, in which a struct cannot grow"):
        alter(dataset, AddColumn(["s", "b"], "integer", nullable=True, position=False))
    assert dataset.to_table() == data


def test_a_path_is_followed_by_sparks_names_and_a_missing_one_is_named() -> None:
    item = pa.field("item", pa.struct([pa.field("x.y", pa.int32())]))
    schema = pa.schema([pa.field("l", pa.large_list(item))])
    assert [field.name for field in trail(schema, ["l", "element", "x.y"])] == ["l", "item", "x.y"]
    with pytest.raises(TableColumnNotFoundError, match=r"'l.element.z' does not exist"):
        trail(schema, ["l", "element", "z"])
    inside = nested_in(trail(schema, ["l", "element"]), pa.field("z", pa.int8()))
    assert inside == pa.field("l", pa.large_list(pa.field("item", pa.struct([pa.field("z", pa.int8())]))))
