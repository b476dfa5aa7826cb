"""The data source in Python, which stands in where there is no jar, in the session that has one: under another name."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from headwater.spark.source import HeadwaterSource


class UnderAnotherName(HeadwaterSource):
    @classmethod
    def name(cls) -> str:
        return "headwater_python"


@pytest.mark.long  # a process for each step: the tests below have a read and a write each
def test_the_python_source_reads_and_writes_what_sql_sees(spark: SparkSession, ns: str) -> None:
    spark.dataSource.register(UnderAnotherName)
    table = ns.removeprefix("lake.") + ".t"
    frame = spark.range(50).selectExpr("id", "concat('n', id) AS name", "array(float(id)) AS v")
    frame.write.format("headwater_python").option("catalog", "lake").mode("overwrite").save(table)
    spark.sql(f"INSERT INTO {ns}.t VALUES (99, NULL, NULL)")
    read = spark.read.format("headwater_python").option("catalog", "lake").load(table)
    assert sorted(read.where("id < 2 OR id = 99").collect(), key=str) == [
        (0, "n0", [0.0]),
        (1, "n1", [1.0]),
        (99, None, None),
    ]
    assert read.where("id = 7 AND name = 'n7'").count() == 1


def test_the_python_source_writes_partitions_too(spark: SparkSession, ns: str) -> None:
    spark.dataSource.register(UnderAnotherName)
    spark.sql(f"CREATE TABLE {ns}.t (id BIGINT, k BIGINT) PARTITIONED BY (k)")
    rows = spark.range(40).selectExpr("id", "id % 4 AS k").coalesce(1)
    writer = rows.write.format("headwater_python").option("catalog", "lake").mode("append")
    writer.save(ns.removeprefix("lake.") + ".t")
    assert spark.sql(f"SHOW PARTITIONS {ns}.t").count() == 4
    assert spark.sql(f"SELECT DISTINCT _rowaddr >> 32 FROM {ns}.t WHERE k = 3").count() == 1
    assert spark.table(f"{ns}.t").where("k = 3").count() == 10


@pytest.mark.parametrize("source", ["headwater", "headwater_python"])
def test_the_option_columns_chooses_what_is_read(spark: SparkSession, ns: str, source: str) -> None:
    spark.dataSource.register(UnderAnotherName)
    table = ns.removeprefix("lake.") + ".t"
    spark.sql(f"CREATE TABLE {ns}.t AS SELECT id, concat('n', id) AS name, id % 2 AS k FROM range(5)")
    reader = spark.read.format(source).option("catalog", "lake")
    chosen = reader.option("columns", "name, id").load(table)
    assert chosen.columns == ["name", "id"]
    assert chosen.where("id = 3").collect() == [("n3", 3)]
    assert reader.option("columns", "k").load(table).groupBy("k").count().count() == 2
    assert reader.option("columns", "name").option("versionAsOf", "1").load(table).columns == ["name"]
    for wrong in ("name,nope", "", "name,,id", "NAME ")[: 4 if source == "headwater" else 1]:  # a process for each
        with pytest.raises(Exception, match="has no column"):
            reader.option("columns", wrong).load(table).collect()


def test_a_catalog_that_was_not_configured_is_named(spark: SparkSession) -> None:
    spark.dataSource.register(UnderAnotherName)
    with pytest.raises(Exception, match="'nowhere' is not known here"):
        spark.read.format("headwater_python").option("catalog", "nowhere").load("t")
