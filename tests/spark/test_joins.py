"""Tables in buckets of a column: a join or a grouping on it reads bucket by bucket and exchanges nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

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
