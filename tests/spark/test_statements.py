"""Statements as transactions: CREATE TABLE ... USING stream AS SELECT, and what a statement has read is as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from headwater.catalog import Catalog
from tests.spark.catalogs import metastore_as


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("statements") / "lake")


@pytest.fixture(scope="module")
def catalog(spark: SparkSession, lake: str) -> Catalog:
    """A metastore catalog that the session knows as `tx`, with a stream table raw.source of three rows."""
    made = metastore_as(spark, "tx", Path(lake))
    source = made.create_stream_table("raw.source", {"id": "bigint", "n": "int"}, keys=["id"])
    source.upsert([{"id": id, "n": id * 10} for id in (1, 2, 3)])
    return made


@pytest.fixture(scope="module")
def landing(spark: SparkSession, lake: str) -> Callable[[str], str]:
    """The name of a function in SQL that gives its number back, after a row has landed in the table."""

    def register(name: str) -> str:
        def landed(n: int) -> int:
            from headwater.catalog import Catalog
            from headwater.catalog.streams import CatalogStream

            table = Catalog(lake, impl="metastore")[name]
            if isinstance(table, CatalogStream):
                table.upsert([{"id": 99, "n": 99}])
            else:
                table.append(pa.table({"id": [99], "n": pa.array([99], pa.int32())}))
            return n

        spark.udf.register("landed", landed, "int")
        return "landed"

    return register


def state(table: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in table.to_arrow().to_pylist())


def refused(spark: SparkSession, statement: str, match: str) -> None:
    with pytest.raises(Exception, match=match):
        spark.sql(statement)


def test_create_table_as_select_makes_a_stream_table_with_its_first_rows_in_one_transaction(
    spark: SparkSession, catalog: Catalog
) -> None:
    slot = catalog.slot
    spark.sql(
        "CREATE TABLE tx.raw.made USING stream PARTITIONED BY (part) "
        "TBLPROPERTIES ('keys' = 'id', 'sequence' = 'at', 'lateness' = '5') "
        "AS SELECT id, CAST(id AS INT) AS at, concat('p', id % 2) AS part FROM range(0, 4, 1, 1)"
    )
    assert catalog.slot == slot + 1
    made = catalog["raw.made"]
    assert (made.definition.keys, made.definition.sequence) == (("id",), ("at",))
    assert made.definition.partition_by[0].column == "part"
    want = [(0, 0, "p0"), (1, 1, "p1"), (2, 2, "p0"), (3, 3, "p1")]
    assert (state(made), len(made.deltas())) == (want, 2)
    assert sorted(tuple(row) for row in spark.table("tx.raw.made").collect()) == want
    made.publish()
    assert made.verify() == []
    refused(spark, "CREATE TABLE tx.raw.made USING stream AS SELECT 1L AS id", "already exists")
    spark.sql("CREATE TABLE IF NOT EXISTS tx.raw.made USING stream AS SELECT 1L AS id")
    refused(spark, "CREATE OR REPLACE TABLE tx.raw.made USING stream AS SELECT 1L AS id", "would lose its log")
    assert state(made) == want
    frame = spark.sql("SELECT 1L AS id, 'a' AS name")
    frame.writeTo("tx.raw.written").using("stream").tableProperty("keys", "id").create()
    frame.writeTo("tx.raw.written").append()
    assert (state(catalog["raw.written"]), catalog["raw.written"].position) == ([(1, "a")], 2)
    spark.sql("CREATE TABLE tx.raw.none USING stream AS SELECT 1L AS id WHERE false")
    assert (state(catalog["raw.none"]), catalog["raw.none"].position) == ([], 0)


def test_a_create_that_fails_leaves_nothing(spark: SparkSession, catalog: Catalog) -> None:
    slot = catalog.slot
    create = "CREATE TABLE tx.raw.failed USING {} TBLPROPERTIES ('keys' = 'id') AS SELECT {}"
    for kind, query, told in (
        ("stream", "CAST(NULL AS BIGINT) AS id", "column 'id'.*NULL"),
        ("stream", "CAST(raise_error('broken') AS BIGINT) AS id", "broken"),
        ("stream", "1 AS other", "id"),
        ("stream", "1.5D AS id", "id"),
        ("teapot", "1L AS id", "teapot is not known"),
    ):
        refused(spark, create.format(kind, query), told)
    refused(spark, "CREATE TABLE tx.nowhere.failed USING stream AS SELECT 1L AS id", "nowhere")
    assert (catalog.slot, "raw.failed" in catalog) == (slot, False)


@pytest.mark.parametrize("kind", ["stream", pytest.param("headwater", marks=pytest.mark.long)])
def test_insert_select_conflicts_when_a_table_that_it_has_read_changes_and_writes_nothing(
    spark: SparkSession, catalog: Catalog, landing: Callable[[str], str], kind: str
) -> None:
    target, keys = f"tx.raw.into_{kind}", "TBLPROPERTIES ('keys' = 'id')" if kind == "stream" else ""
    spark.sql(f"CREATE TABLE {target} (id BIGINT, n INT) USING {kind} {keys}")
    spark.sql(f"INSERT INTO {target} SELECT * FROM tx.raw.source WHERE id < 3")
    assert spark.table(target).count() == 2
    landed = landing("raw.source")
    changing = f"SELECT id, {landed}(n) AS n FROM tx.raw.source"
    refused(spark, f"INSERT INTO {target} {changing}", "raw.source was changed by another writer.*run it again")
    assert spark.table(target).count() == 2
    refused(
        spark,
        f"MERGE INTO {target} t USING ({changing}) s ON t.id = s.id WHEN MATCHED AND s.n > 0 THEN DELETE",
        "raw.source was changed by another writer",
    )
    refused(spark, f"CREATE TABLE {target}_2 USING {kind} {keys} AS {changing}", "changed by another writer")
    assert (spark.table(target).count(), f"raw.into_{kind}_2" in catalog) == (2, False)
    landing(f"raw.into_{kind}")  # what has only been written to may have other rows by now
    spark.sql(f"INSERT INTO {target} SELECT id + 10, landed(n) FROM tx.raw.source WHERE id = 1")
    assert sorted(row.id for row in spark.table(target).collect())[-2:] == [11, 99]


def test_an_insert_from_a_lance_table_conflicts_when_that_changes(
    spark: SparkSession, catalog: Catalog, landing: Callable[[str], str]
) -> None:
    spark.sql("CREATE TABLE tx.raw.plain (id BIGINT, n INT)")
    spark.sql("CREATE TABLE tx.raw.log (id BIGINT, n INT) USING stream")
    spark.sql("INSERT INTO tx.raw.plain VALUES (1, 10)")
    landed = landing("raw.plain")
    refused(spark, f"INSERT INTO tx.raw.log SELECT id, {landed}(n) FROM tx.raw.plain", "raw.plain was changed")
    refused(spark, f"INSERT INTO tx.raw.plain SELECT id, {landed}(n) FROM tx.raw.plain", "raw.plain was changed")
    assert (catalog["raw.log"].position, spark.table("tx.raw.plain").count()) == (0, 4)
    spark.sql("INSERT INTO tx.raw.log SELECT id, n FROM tx.raw.plain")
    spark.sql("INSERT INTO tx.raw.plain SELECT id, n FROM tx.raw.plain")
    assert (catalog["raw.log"].count(), spark.table("tx.raw.plain").count()) == (4, 8)


def test_a_frame_of_the_past_is_written_as_it_was(spark: SparkSession, catalog: Catalog) -> None:
    made = catalog.create_stream_table("raw.past", {"id": "bigint"}, keys=["id"])
    made.upsert([{"id": 1}])
    frame = spark.sql("SELECT * FROM tx.raw.past VERSION AS OF 1")
    made.upsert([{"id": 2}])
    frame.writeTo("tx.raw.copied").using("stream").tableProperty("keys", "id").create()
    spark.sql("CREATE TABLE tx.raw.also (id BIGINT)")
    frame.writeTo("tx.raw.also").append()
    spark.sql("INSERT INTO tx.raw.also SELECT id + 1 FROM tx.raw.past VERSION AS OF 1")
    assert state(catalog["raw.copied"]) == [(1,)]
    assert sorted(row.id for row in spark.table("tx.raw.also").collect()) == [1, 2]


def test_a_frame_reads_its_tables_anew_inside_the_statement(
    spark: SparkSession, catalog: Catalog, landing: Callable[[str], str]
) -> None:
    first = catalog.create_stream_table("raw.first", {"id": "bigint", "n": "int"}, keys=["id"])
    first.upsert([{"id": 1, "n": 10}])
    spark.sql("CREATE TABLE tx.raw.second (id BIGINT, n INT)")
    frame = spark.table("tx.raw.first")
    first.upsert([{"id": 2, "n": 20}])
    frame.writeTo("tx.raw.second").append()
    assert [tuple(row) for row in spark.table("tx.raw.second").sort("id").collect()] == [(1, 10), (2, 20)]
    for name in ("tx.raw.first", "tx.raw.second"):
        spark.table(name).selectExpr("id + 10 AS id", "n").writeTo(name).append()
        assert spark.table(name).count() == 4
    landed = landing("raw.first")
    with pytest.raises(Exception, match=r"raw\.first was changed by another writer"):
        frame.selectExpr("id", f"{landed}(n) AS n").writeTo("tx.raw.second").append()
    assert spark.table("tx.raw.second").count() == 4


def test_a_cached_frame_is_not_what_a_statement_reads(spark: SparkSession, catalog: Catalog) -> None:
    kept = catalog.create_stream_table("raw.kept", {"id": "bigint"})
    kept.append([{"id": 1}])
    spark.sql("CREATE TABLE tx.raw.out (id BIGINT)")
    frame = spark.table("tx.raw.kept").cache()
    try:
        assert frame.count() == 1
        kept.append([{"id": 2}])
        frame.writeTo("tx.raw.out").append()
        spark.sql("INSERT INTO tx.raw.out SELECT id FROM tx.raw.kept")
    finally:
        frame.unpersist()
    assert sorted(row.id for row in spark.table("tx.raw.out").collect()) == [1, 1, 2, 2]


def test_a_frame_that_reads_the_table_it_is_merged_into(spark: SparkSession, catalog: Catalog) -> None:
    spark.sql("CREATE TABLE tx.raw.merged (id BIGINT, n INT)")
    spark.sql("INSERT INTO tx.raw.merged VALUES (1, 10), (2, 20)")
    target = spark.table("tx.raw.merged")
    given = spark.sql("SELECT * FROM VALUES (2L, 0), (3L, 30) AS given(id, n)")
    fresh = given.alias("g").join(target.alias("t"), F.col("g.id") == F.col("t.id"), "left_anti")
    merge = fresh.alias("s").mergeInto("tx.raw.merged", F.col("s.id") == F.col("tx.raw.merged.id"))
    merge.whenMatched().updateAll().whenNotMatched().insertAll().merge()
    assert [tuple(row) for row in spark.table("tx.raw.merged").sort("id").collect()] == [(1, 10), (2, 20), (3, 30)]
    both = target.alias("a").join(spark.table("tx.raw.merged").alias("b"), F.col("a.id") == F.col("b.id") + 1)
    both = both.select(F.col("a.id"), (F.col("a.n") + F.col("b.n")).alias("n"))
    merge = both.alias("s").mergeInto("tx.raw.merged", F.col("s.id") == F.col("tx.raw.merged.id"))
    merge.whenMatched().updateAll().merge()
    assert [tuple(row) for row in spark.table("tx.raw.merged").sort("id").collect()] == [(1, 10), (2, 30), (3, 50)]
