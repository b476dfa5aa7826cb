"""Every type there and back, values, nulls and nesting included."""

from __future__ import annotations

import datetime as dt
import decimal
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headwater.errors import InvalidInputError
from headwater.types import (
    arrow_schema,
    arrow_type,
    convert,
    lance_schema,
    spark_schema,
    spark_type,
    wire_type,
)

UTC = dt.UTC

# Arrow column, its Spark type, and what Spark reads
COLUMNS: dict[str, tuple[Any, str, list[object]]] = {
    "bool": (pa.array([True, None]), "boolean", [True, None]),
    "i8": (pa.array([-128, None], pa.int8()), "tinyint", [-128, None]),
    "i64": (pa.array([1 << 62, None], pa.int64()), "bigint", [1 << 62, None]),
    "u8": (pa.array([255, None], pa.uint8()), "smallint", [255, None]),
    "u16": (pa.array([65535, None], pa.uint16()), "int", [65535, None]),
    "u32": (pa.array([1 << 31, None], pa.uint32()), "bigint", [1 << 31, None]),
    "u64": (pa.array([1 << 63, None], pa.uint64()), "decimal(20,0)", [decimal.Decimal(1 << 63), None]),
    "f16": (pa.array([np.float16(1.5), None], pa.float16()), "float", [1.5, None]),
    "f64": (pa.array([0.1, None]), "double", [0.1, None]),
    "dec": (
        pa.array([decimal.Decimal("1.25"), None], pa.decimal128(9, 2)), "decimal(9,2)", [decimal.Decimal("1.25"), None]
    ),
    "dec38": (
        pa.array([decimal.Decimal("-12345678901234567890123.5"), None], pa.decimal128(38, 1)),
        "decimal(38,1)",
        [decimal.Decimal("-12345678901234567890123.5"), None],
    ),
    "text": (pa.array(["é", None]), "string", ["é", None]),
    "large": (pa.array(["", None], pa.large_string()), "string", ["", None]),
    "view": (pa.array(["a string longer than a view holds", None], pa.string_view()), "string",
             ["a string longer than a view holds", None]),
    "bytes_view": (pa.array([b"more than twelve bytes", None], pa.binary_view()), "binary",
                   [b"more than twelve bytes", None]),
    "dictionary": (pa.array(["d", None]).dictionary_encode(), "string", ["d", None]),
    "bytes": (pa.array([b"\0x", None]), "binary", [b"\0x", None]),
    "fixed": (pa.array([b"abcd", None], pa.binary(4)), "binary", [b"abcd", None]),
    "date": (pa.array([dt.date(1969, 7, 20), None]), "date", [dt.date(1969, 7, 20), None]),
    "date64": (pa.array([dt.date(2020, 2, 29), None], pa.date64()), "date", [dt.date(2020, 2, 29), None]),
    "ts": (
        pa.array([dt.datetime(2020, 1, 1, 12, 0, 0, 7, UTC), None], pa.timestamp("us", tz="UTC")),
        "timestamp",
        [dt.datetime(2020, 1, 1, 12, 0, 0, 7), None],
    ),
    "ts_ns": (
        pa.array([1_577_880_000_000_007_000, None], pa.timestamp("ns", tz="Europe/Paris")),
        "timestamp",
        [dt.datetime(2020, 1, 1, 12, 0, 0, 7), None],
    ),
    "ts_s": (pa.array([0, None], pa.timestamp("s")), "timestamp_ntz", [dt.datetime(1970, 1, 1), None]),
    "span": (
        pa.array([dt.timedelta(days=1, microseconds=5), None], pa.duration("us")),
        "interval day to second",
        [dt.timedelta(days=1, microseconds=5), None],
    ),
    "time": (pa.array([dt.time(1, 2, 3, 4), None], pa.time64("us")), "time(6)", [dt.time(1, 2, 3, 4), None]),
    "list": (pa.array([[1, None], None], pa.list_(pa.int32())), "array<int>", [[1, None], None]),
    "large_list": (pa.array([["a"], None], pa.large_list(pa.string())), "array<string>", [["a"], None]),
    "vector": (pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2)), "array<float>", [[1.0, 2.0], None]),
    "half": (pa.array([[1.0, 2.0], None], pa.list_(pa.float16(), 2)), "array<float>", [[1.0, 2.0], None]),
    "struct": (
        pa.array([{"x": 1, "y": {"z": "q"}}, None]), "struct<x:bigint,y:struct<z:string>>", [(1, ("q",)), None]
    ),
    "map": (pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int32())), "map<string,int>", [{"k": 1}, None]),
    "structs": (pa.array([[{"u": 7}], None], pa.list_(pa.struct([("u", pa.uint8())]))), "array<struct<u:smallint>>",
                [[(7,)], None]),
}  # fmt: skip
KEPT = {"view": pa.string(), "bytes_view": pa.binary()}  # Lance keeps a view as what it shows


@pytest.fixture(scope="module")
def everything(spark: SparkSession, root: Path) -> str:
    """A table of all types, written by pylance into the catalog's directory."""
    spark.sql("CREATE TABLE lake.t.everything (id INT)")
    uri = dict(map(tuple, spark.sql("SHOW TBLPROPERTIES lake.t.everything").collect())).get("location")
    location = (
        uri or spark.sql("DESCRIBE TABLE EXTENDED lake.t.everything").where("col_name = 'Location'").collect()[0][1]
    )
    table = pa.table({name: array for name, (array, _, _) in COLUMNS.items()})
    lance.write_dataset(table, location, mode="overwrite", data_storage_version="2.2")
    return "lake.t.everything"


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_of_any_lance_type_is_read_in_spark(spark: SparkSession, everything: str, name: str) -> None:
    _, wanted, values = COLUMNS[name]
    frame = spark.table(everything).select(name)
    assert frame.dtypes == [(name, wanted)]
    assert [row[0] for row in frame.collect()] == values


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_of_any_lance_type_is_written_from_spark(spark: SparkSession, everything: str, name: str) -> None:
    before = spark.table(everything).select(name).collect()
    target = f"lake.t.copy_{name}"
    spark.sql(f"CREATE TABLE {target} (id INT)")
    location = spark.sql(f"DESCRIBE TABLE EXTENDED {target}").where("col_name = 'Location'").collect()[0][1]
    lance.write_dataset(pa.table({name: COLUMNS[name][0].slice(0, 0)}), location, mode="overwrite")
    spark.sql(f"INSERT INTO {target} SELECT {name} FROM {everything}")
    assert spark.table(target).collect() == before
    assert lance.dataset(location).schema.field(name).type == KEPT.get(name, COLUMNS[name][0].type)


def test_vectors_and_blobs_are_what_the_properties_say(spark: SparkSession, ns: str) -> None:
    spark.sql(f"CREATE TABLE {ns}.t (v ARRAY<FLOAT>, b BINARY) TBLPROPERTIES ('vector.v' = '2', 'blob.b' = 'true')")
    spark.sql(f"INSERT INTO {ns}.t VALUES (array(1F, 2F), X'00FF'), (NULL, NULL)")
    location = spark.sql(f"DESCRIBE TABLE EXTENDED {ns}.t").where("col_name = 'Location'").collect()[0][1]
    schema = lance.dataset(location).schema
    assert schema.field("v").type == pa.list_(pa.float32(), 2)
    assert schema.field("b").type.extension_name == "lance.blob.v2"
    assert spark.table(f"{ns}.t").dtypes == [("v", "array<float>"), ("b", "binary")]
    spark.sql(f"UPDATE {ns}.t SET v = array(3F, 4F) WHERE v IS NOT NULL")
    found = list(map(tuple, spark.table(f"{ns}.t").orderBy("v").collect()))
    assert found == [(None, None), ([3.0, 4.0], bytearray(b"\0\xff"))]


def test_the_layout_for_python_data_sources_is_sparks_own() -> None:
    text = "a INT, b ARRAY<STRING>, c MAP<STRING, DECIMAL(10,2)>, d STRUCT<x: TIMESTAMP, y: TIMESTAMP_NTZ>, e BINARY"
    schema = StructType.fromDDL(text)
    assert isinstance(schema, StructType)
    assert arrow_schema(schema.jsonValue()).equals(to_arrow_schema(schema, timezone="UTC"))


@pytest.mark.parametrize("name", COLUMNS)
def test_spark_type_of_arrow_type_of_a_spark_type_is_that_type(name: str) -> None:
    seen = spark_type(COLUMNS[name][0].type)
    assert spark_type(arrow_type(seen)) == seen


@pytest.mark.parametrize("name", COLUMNS)
def test_what_travels_to_the_jvm_says_the_same(name: str) -> None:
    array = COLUMNS[name][0]
    sliced = pa.concat_arrays([array, array]).slice(1, 3)
    assert convert(sliced, wire_type(array.type)).null_count == sliced.null_count
    assert spark_type(wire_type(array.type)) == spark_type(array.type)


def test_a_vector_property_on_another_column_is_refused() -> None:
    schema = spark_schema(pa.schema([("name", pa.string())]))
    with pytest.raises(InvalidInputError, match="dimension of an ARRAY column"):
        lance_schema(schema, {"vector.name": "3"})
