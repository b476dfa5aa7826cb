"""The catalog in Spark SQL: namespaces, DDL, inserts, time travel."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import lance_namespace as api
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, IllegalArgumentException
from pyspark.sql import Row, SparkSession

from headwater import DirectoryNamespace
from headwater.testing.namespace_suite import ipc
from tests.spark.catalogs import learn


def rows(spark: SparkSession, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in spark.sql(query).collect()]


def test_namespaces_nest_and_are_listed_level_by_level(spark: SparkSession, ns: str) -> None:
    spark.sql(f"CREATE NAMESPACE {ns}.inner WITH DBPROPERTIES ('k' = 'v')")
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {ns}.inner")
    assert [row[0].split(".")[-1] for row in rows(spark, f"SHOW NAMESPACES IN {ns}")] == ["inner"]
    assert "((k,v))" in str(rows(spark, f"DESCRIBE NAMESPACE EXTENDED {ns}.inner"))
    with pytest.raises(AnalysisException, match="SCHEMA_ALREADY_EXISTS"):
        spark.sql(f"CREATE NAMESPACE {ns}.inner")
    spark.sql(f"CREATE TABLE {ns}.inner.t (id INT)")
    with pytest.raises(AnalysisException, match="SCHEMA_NOT_EMPTY"):
        spark.sql(f"DROP NAMESPACE {ns}.inner")
    spark.sql(f"DROP NAMESPACE {ns}.inner CASCADE")
    assert rows(spark, f"SHOW NAMESPACES IN {ns}") == []


def test_properties_of_a_namespace_are_set_and_unset(spark: SparkSession, ns: str) -> None:
    spark.sql(f"CREATE NAMESPACE {ns}.inner WITH DBPROPERTIES ('k' = 'v', 'l' = 'w')")
    spark.sql(f"ALTER NAMESPACE {ns}.inner SET PROPERTIES ('m' = 'x', 'k' = 'V')")
    spark.sql(f"ALTER NAMESPACE {ns}.inner UNSET PROPERTIES ('l')")
    spark.sql(f"COMMENT ON NAMESPACE {ns}.inner IS 'for tests'")
    told = dict(rows(spark, f"DESCRIBE NAMESPACE EXTENDED {ns}.inner"))
    assert (told["Properties"], told["Comment"]) == ("((k,V), (m,x))", "for tests")
    with pytest.raises(AnalysisException, match="SCHEMA_NOT_FOUND"):
        spark.sql(f"ALTER NAMESPACE {ns}.missing SET PROPERTIES ('m' = 'x')")
    with pytest.raises(IllegalArgumentException, match="no location of its own"):
        spark.sql(f"ALTER NAMESPACE {ns}.inner SET LOCATION 'elsewhere'")


def test_a_table_is_created_listed_described_renamed_and_dropped(spark: SparkSession, ns: str) -> None:
    spark.sql(f"CREATE TABLE {ns}.t (id BIGINT NOT NULL, name STRING COMMENT 'who') TBLPROPERTIES ('a' = 'b')")
    spark.sql(f"CREATE TABLE IF NOT EXISTS {ns}.t (other INT)")
    assert ("name", "string", "who") in rows(spark, f"DESCRIBE TABLE {ns}.t")
    assert ("a", "b") in rows(spark, f"SHOW TBLPROPERTIES {ns}.t")
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_ALREADY_EXISTS"):
        spark.sql(f"CREATE TABLE {ns}.t (id INT)")
    with pytest.raises(Exception, match="nowhere"):
        spark.sql(f"ALTER TABLE {ns}.t RENAME TO t.nowhere.u")
    spark.sql(f"ALTER TABLE {ns}.t RENAME TO {ns.removeprefix('lake.')}.s")
    spark.sql(f"ALTER TABLE {ns}.s RENAME TO {ns}.u")
    assert [row[1] for row in rows(spark, f"SHOW TABLES IN {ns}")] == ["u"]
    spark.sql(f"DROP TABLE {ns}.u")
    spark.sql(f"DROP TABLE IF EXISTS {ns}.u")
    assert rows(spark, f"SHOW TABLES IN {ns}") == []
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.table(f"{ns}.u").collect()


def test_columns_and_properties_are_altered_without_rewriting_rows(spark: SparkSession, ns: str) -> None:
    spark.sql(f"CREATE TABLE {ns}.t AS SELECT 1 AS id, 'x' AS name")
    spark.sql(f"ALTER TABLE {ns}.t ADD COLUMNS (z DOUBLE COMMENT 'new')")
    spark.sql(f"ALTER TABLE {ns}.t RENAME COLUMN name TO label")
    spark.sql(f"ALTER TABLE {ns}.t ALTER COLUMN id TYPE BIGINT")
    spark.sql(f"ALTER TABLE {ns}.t SET TBLPROPERTIES ('k' = 'v', 'l' = 'w')")
    spark.sql(f"ALTER TABLE {ns}.t UNSET TBLPROPERTIES ('l')")
    assert rows(spark, f"SELECT * FROM {ns}.t") == [(1, "x", None)]
    assert spark.table(f"{ns}.t").dtypes == [("id", "bigint"), ("label", "string"), ("z", "double")]
    properties: dict[str, str] = dict(rows(spark, f"SHOW TBLPROPERTIES {ns}.t"))
    assert properties["k"] == "v"
    assert "l" not in properties
    spark.sql(f"ALTER TABLE {ns}.t DROP COLUMN z")
    assert spark.table(f"{ns}.t").columns == ["id", "label"]


def test_insert_appends_overwrites_and_replaces_where(spark: SparkSession, ns: str) -> None:
    spark.sql(f"CREATE TABLE {ns}.t (id INT, name STRING)")
    spark.sql(f"INSERT INTO {ns}.t VALUES (1, 'a'), (2, 'b')")
    spark.sql(f"INSERT INTO {ns}.t (name, id) VALUES ('c', 3)")
    assert rows(spark, f"SELECT * FROM {ns}.t ORDER BY id") == [(1, "a"), (2, "b"), (3, "c")]
    spark.sql(f"INSERT INTO {ns}.t REPLACE WHERE id >= 2 VALUES (2, 'B')")
    assert rows(spark, f"SELECT * FROM {ns}.t ORDER BY id") == [(1, "a"), (2, "B")]
    spark.sql(f"INSERT OVERWRITE {ns}.t VALUES (9, 'z')")
    assert rows(spark, f"SELECT * FROM {ns}.t") == [(9, "z")]
    spark.sql(f"TRUNCATE TABLE {ns}.t")
    assert rows(spark, f"SELECT count(*) FROM {ns}.t") == [(0,)]


def test_create_and_replace_as_select_make_schema_and_rows_visible_in_one_version(spark: SparkSession, ns: str) -> None:
    spark.sql(f"CREATE TABLE {ns}.t AS SELECT id, id * 2 AS twice FROM range(10)")
    assert rows(spark, f"SELECT count(*), sum(twice) FROM {ns}.t VERSION AS OF 1") == [(10, 90)]
    spark.sql(f"CREATE OR REPLACE TABLE {ns}.t AS SELECT 'only' AS word")
    assert rows(spark, f"SELECT * FROM {ns}.t") == [("only",)]
    assert rows(spark, f"SELECT count(*) FROM {ns}.t VERSION AS OF 1") == [(10,)]


def test_a_failed_create_as_select_leaves_no_table(spark: SparkSession, ns: str) -> None:
    with pytest.raises(Exception, match="no such luck"):
        spark.sql(f"CREATE TABLE {ns}.t AS SELECT raise_error('no such luck') AS x FROM range(5)")
    assert rows(spark, f"SHOW TABLES IN {ns}") == []


def test_older_versions_are_read_by_number_tag_and_time(spark: SparkSession, ns: str) -> None:
    spark.sql(f"CREATE TABLE {ns}.t AS SELECT 1 AS id")
    time.sleep(1.1)
    moment = rows(spark, "SELECT cast(current_timestamp() AS string)")[0][0]
    time.sleep(1.1)
    spark.sql(f"INSERT INTO {ns}.t VALUES (2)")
    assert rows(spark, f"SELECT count(*) FROM {ns}.t") == [(2,)]
    assert rows(spark, f"SELECT * FROM {ns}.t VERSION AS OF 1") == [(1,)]
    assert rows(spark, f"SELECT * FROM {ns}.t TIMESTAMP AS OF '{moment}'") == [(1,)]
    with pytest.raises(IllegalArgumentException, match="has no version 99"):
        spark.sql(f"SELECT * FROM {ns}.t VERSION AS OF 99").collect()
    with pytest.raises(IllegalArgumentException, match="no version as old as"):
        spark.sql(f"SELECT * FROM {ns}.t TIMESTAMP AS OF '2001-01-01'").collect()


def test_data_frames_read_and_write_through_the_format_and_by_name(spark: SparkSession, ns: str) -> None:
    name = ns.removeprefix("lake.") + ".t"
    frame = spark.range(5).selectExpr("id", "concat('n', id) AS name")
    frame.write.format("headwater").option("catalog", "lake").save(name)
    frame.write.format("headwater").option("catalog", "lake").mode("append").save(name)
    frame.write.mode("append").saveAsTable(f"{ns}.t")
    frame.writeTo(f"{ns}.t").append()
    read = spark.read.format("headwater").option("catalog", "lake")
    assert read.load(name).count() == 20
    assert read.option("versionAsOf", "1").load(name).count() == 5
    frame.write.format("headwater").option("catalog", "lake").mode("overwrite").save(name)
    assert spark.table(f"{ns}.t").orderBy("id").first() == Row(id=0, name="n0")
    assert spark.table(f"{ns}.t").count() == 5


def test_what_cannot_be_done_is_said(spark: SparkSession, ns: str) -> None:
    with pytest.raises(IllegalArgumentException, match="cannot be kept in a Lance table"):
        spark.sql(f"CREATE TABLE {ns}.t (i INTERVAL YEAR)")
    spark.sql(f"CREATE TABLE {ns}.v (v ARRAY<FLOAT>) TBLPROPERTIES ('vector.v' = '3')")
    with pytest.raises(Exception, match="A list has 2 values; the column's lists have 3") as told:
        spark.sql(f"INSERT INTO {ns}.v VALUES (array(1F, 2F))")
    assert "Traceback" not in str(told.value)
    assert rows(spark, f"SELECT count(*) FROM {ns}.v") == [(0,)]


def test_properties_that_begin_like_those_of_spark_are_kept(spark: SparkSession, ns: str) -> None:
    mine = {
        "owner-team": "blue",
        "ownership": "shared",
        "provider_id": "7",
        "is_managed_location_x": "y",
        "options": "z",
    }
    told = ", ".join(f"'{key}' = '{value}'" for key, value in mine.items())
    spark.sql(f"CREATE TABLE {ns}.a (id BIGINT) TBLPROPERTIES ({told})")
    spark.sql(f"CREATE TABLE {ns}.b TBLPROPERTIES ({told}) AS SELECT 1 AS id")
    for table in ("a", "b"):
        shown = dict(tuple(row) for row in spark.sql(f"SHOW TBLPROPERTIES {ns}.{table}").collect())
        assert mine.items() <= shown.items()
        assert shown["version"] == "1"
    for statement in (
        f"CREATE TABLE {ns}.c (id BIGINT) TBLPROPERTIES ('version' = '9')",
        f"ALTER TABLE {ns}.a SET TBLPROPERTIES ('version' = '9')",
    ):
        with pytest.raises(Exception, match="choose another name"):
            spark.sql(statement)


def test_properties_given_to_create_table_are_shown_and_what_is_set_is_shown_after_it(
    spark: SparkSession, ns: str, root: Path
) -> None:
    catalog = DirectoryNamespace(root=str(root))
    id = [*ns.split(".")[1:], "t"]
    catalog.create_table(api.CreateTableRequest(id=id, properties={"a": "1", "b": "2"}), ipc(pa.table({"n": [1]})))

    def shown() -> dict[str, str]:
        found: dict[str, str] = dict(rows(spark, f"SHOW TBLPROPERTIES {ns}.t"))
        return {key: value for key, value in found.items() if len(key) == 1}

    assert shown() == {"a": "1", "b": "2"}
    spark.sql(f"SELECT * FROM {ns}.t").collect()
    spark.sql(f"ALTER TABLE {ns}.t SET TBLPROPERTIES ('a' = '3', 'c' = '4')")
    assert shown() == {"a": "3", "b": "2", "c": "4"}
    assert rows(spark, f"SHOW TBLPROPERTIES {ns}.t ('c')") == [("c", "4")]
    spark.sql(f"ALTER TABLE {ns}.t UNSET TBLPROPERTIES ('b')")
    assert shown() == {"a": "3", "c": "4"}


def test_a_folder_that_is_no_lance_table_is_listed_and_not_read(spark: SparkSession, tmp_path: Path) -> None:
    """The early document, "Table Existence"."""
    for name in ("empty", "notes"):
        (tmp_path / "early" / name).mkdir(parents=True)
    (tmp_path / "early" / "notes" / "a.txt").write_text("mine")
    learn(spark, "early", root=str(tmp_path / "early"), impl="dir", layout="early")
    assert {row[1] for row in rows(spark, "SHOW TABLES IN early")} == {"empty", "notes"}
    for name in ("empty", "notes"):
        with pytest.raises(Exception, match="does not comply with the Lance table format"):
            rows(spark, f"SELECT * FROM early.{name}")
    assert [path.name for path in (tmp_path / "early" / "notes").iterdir()] == ["a.txt"]
