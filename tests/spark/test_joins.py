"""Tables in buckets of a column: a join or a grouping on it reads bucket by bucket and exchanges nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headwater.catalog import Catalog

BUCKETS = [{"column": "id", "transform": "bucket", "width": 4}]
SCHEMA = {"id": "bigint", "at": "bigint", "name": "string"}


@pytest.fixture(autouse=True)
def joins(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    yield
    spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")


def rows(first: int, last: int, at: int) -> pa.Table:
    ids = range(first, last)
    return pa.table({"id": list(ids), "at": [at] * len(ids), "name": [f"{at}-{n}" for n in ids]})


def plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def exchanges(frame: DataFrame) -> int:
    return len(re.findall(r"\bExchange\b", plan(frame)))


@pytest.fixture(scope="module")
def tables(spark: SparkSession, catalog: Catalog) -> tuple[Any, Any]:
    """One with a tail, of updates, a delete and new keys in its log, and one as last published."""
    fresh = catalog.create_stream_table("raw.joined_fresh", SCHEMA, ["id"], ["at"], partition_by=BUCKETS)
    published = catalog.create_stream_table("raw.joined_published", SCHEMA, ["id"], ["at"], partition_by=BUCKETS)
    for table in (fresh, published):
        table.upsert(rows(0, 100, 1))
        table.publish()
        table.upsert(rows(80, 120, 2))
        table.delete([3])
    published.publish()
    return fresh, published


def test_a_fresh_table_is_read_bucket_by_bucket(spark: SparkSession, tables: tuple[Any, Any]) -> None:
    fresh, _ = tables
    frame = spark.table(f"streams.{fresh.name}")
    found = sorted(tuple(row) for row in frame.collect())
    assert found == sorted(tuple(row.values()) for row in fresh.to_arrow().to_pylist())
    assert frame.rdd.getNumPartitions() == 4
    assert sorted(row.id for row in frame.where("name like '2-%' AND id < 90").select("id").collect()) == [
        *range(80, 90)
    ]
    assert frame.count() == 119


def test_joins_and_groupings_on_the_key_need_no_exchange(spark: SparkSession, tables: tuple[Any, Any]) -> None:
    fresh, published = (spark.table(f"streams.{table.name}") for table in tables)
    joined = fresh.join(published, "id").select("id", fresh.name.alias("a"), published.name.alias("b"))
    assert exchanges(joined) == 0, plan(joined)
    assert sorted(tuple(row) for row in joined.collect()) == sorted(
        (n, f"{at}-{n}", f"{at}-{n}") for n in range(120) if n != 3 for at in (1 if n < 80 else 2,)
    )
    grouped = fresh.groupBy("id").count()
    assert exchanges(grouped) == 0, plan(grouped)
    assert {row["count"] for row in grouped.collect()} == {1}
    by_name = fresh.groupBy("name").count()
    assert exchanges(by_name) == 1


@pytest.mark.long
def test_a_join_that_merges_gets_the_rows_of_each_bucket_in_the_order_of_the_key(
    spark: SparkSession, tables: tuple[Any, Any]
) -> None:
    """Rows of a base are in the order they were changed in: they are sorted where a join needs it, and only there."""
    fresh, published = (spark.table(f"streams.{table.name}") for table in tables)
    for kind, count in (("inner", 119), ("full", 119), ("leftanti", 0)):
        joined = fresh.join(published.where("at > 0").withColumnRenamed("id", "key"), fresh.id == F.col("key"), kind)
        assert "SortMergeJoin" in plan(joined)
        assert not re.search(r"\bSort\b", plan(joined)), plan(joined)
        assert exchanges(joined) == 0
        assert len(joined.collect()) == count
    parts = fresh.join(published, "id").select("id").rdd.glom().collect()
    assert [[row.id for row in part] for part in parts] == [sorted(row.id for row in part) for part in parts]
    assert "in the order of its key" not in plan(fresh.where("at > 0"))
    spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")
    assert "in the order of its key" not in plan(fresh.join(published, "id"))


def test_few_rows_are_one_bucket_whatever_their_table_is_divided_by(spark: SparkSession, catalog: Catalog) -> None:
    schema = {"b": "string", "a": "bigint", "at": "bigint"}
    made = [catalog.create_stream_table(f"raw.few_{n}", schema, ["a", "b"], ["at"]) for n in range(2)]
    late = catalog.create_stream_table(
        "raw.few_late", schema, ["a"], ["at"], partition_by=[("a", "bucket", 4)], properties={"lateness": "100"}
    )
    told = [{"a": n % 7, "b": f"{n // 7:02}", "at": n} for n in range(40)]
    for table in made:
        table.upsert(told[::-1])
    late.upsert(told)
    made[0].publish()
    made[0].delete([{"a": 3, "b": "02"}])
    for _ in range(2):
        first, second = (spark.table(f"streams.{table.name}") for table in made)
        joined = first.join(second, ["b", "a"]).select("a", "b")
        assert exchanges(joined) == 0, plan(joined)
        assert not re.search(r"\bSort\b", plan(joined)), plan(joined)
        assert sorted(tuple(row) for row in joined.collect()) == sorted(
            (row["a"], row["b"]) for row in told if (row["a"], row["b"]) != (3, "02")
        )
        grouped = first.groupBy("a", "b").count()
        assert exchanges(grouped) == 0, plan(grouped)
        assert grouped.count() == 39
        only = spark.table(f"streams.{late.name}").groupBy("a").count()
        assert exchanges(only) == 0, plan(only)
        assert only.count() == 7
        made[0].publish()
        made[1].publish()


def test_a_lance_table_in_the_same_buckets_joins_without_an_exchange(
    spark: SparkSession, ns: str, tables: tuple[Any, Any]
) -> None:
    spark.sql(f"CREATE TABLE {ns}.sizes (id BIGINT, size INT) PARTITIONED BY (bucket(4, id))")
    spark.sql(f"INSERT INTO {ns}.sizes SELECT id, CAST(id % 7 AS INT) FROM range(0, 200)")
    joined = spark.table(f"streams.{tables[0].name}").join(spark.table(f"{ns}.sizes"), "id").select("id", "size")
    assert exchanges(joined) == 0, plan(joined)
    assert {row.id: row.size for row in joined.collect()} == {n: n % 7 for n in range(120) if n != 3}
    spark.sql(f"CREATE TABLE {ns}.other (id BIGINT, size INT) PARTITIONED BY (bucket(3, id))")
    spark.sql(f"INSERT INTO {ns}.other SELECT id, 1 FROM range(0, 20)")
    other = spark.table(f"streams.{tables[0].name}").join(spark.table(f"{ns}.other"), "id")
    assert exchanges(other) > 0
    assert other.count() == 19
