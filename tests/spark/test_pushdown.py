"""What Spark leaves to Lance, and that the answer stays Spark's own."""

from __future__ import annotations

import random
from functools import reduce
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

PREDICATES = (
    "i = 3", "i <> 3", "i > 2 AND i <= 7", "i IN (1, 5, 9)", "NOT i IN (1, 5)", "i NOT IN (1, NULL)", "i IS NULL",
    "i <=> NULL", "i <=> 4", "i = 3 OR s = 'b'", "NOT (i = 3 OR s = 'b')", "i % 4 = 1", "i + 1 = 4",
    "f > 0.5", "f = 0.0", "f >= -0.0", "f = double('NaN')", "f > 1e300", "f < 0.5 OR f IS NULL",
    "s = 'it''s'", "s > 'b'", "s LIKE 'b%'", "s LIKE '%a%'", "s LIKE '%s'", "lower(s) = 'big'", "length(s) = 1",
    "s LIKE '%b%s%'", "s NOT LIKE '%b%s%'", "s LIKE 'b%s'", "s LIKE '%u%s'", "s LIKE 'b_s'", r"s LIKE '%\\%%'",
    "s LIKE '%%'",
    "s NOT LIKE 'b%s' OR i = 3", "s LIKE '%.%s%'", "s LIKE 'bx%%s' ESCAPE 'x'", "s LIKE '%!%%' ESCAPE '!'",
    "upper(s) IN ('A', 'B')", "coalesce(s, 'x') = 'x'", "b", "NOT b", "b AND i > 3",
    "d = date'2020-01-03'", "d > date'2020-01-02'", "ts < timestamp'2020-01-01 00:00:05'",
    "ts = timestamp'2020-01-01 00:00:03.000001'", "m > 1.5", "m = 2.00", "m > 0", "m = 0.0000000001",
    "p.x = 2", "p.x > 1 AND p.y = 'a'",
    "p IS NULL", "size(l) = 2", "array_contains(l, 1)",
)  # fmt: skip
TEXTS = "|".join(map(repr, ["a", "b", "bus", "BIG", "-as", "b\ns", "bücks", "5%", "b.s"]))


@pytest.fixture(scope="module")
def twins(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[DataFrame, DataFrame]:
    chance = random.Random(7)

    def some(values: str) -> str:
        return chance.choice([*values.split("|"), "NULL"])

    rows = [
        f"({some('1|2|3|4|5|6|7|8|9')}, {some('double(0.0)|-double(0.0)|0.25|double(' + repr('NaN') + ')|1e301')}, "
        f"{some(TEXTS)}, {some('true|false')}, "
        f"date_add(date'2020-01-01', {chance.randint(0, 5)}), "
        f"timestampadd(MICROSECOND, {chance.randint(0, 3)}, timestampadd(SECOND, {chance.randint(0, 9)}, "
        f"timestamp'2020-01-01')), {some('1.25|2.00|3.5|0.0000000001')}, "
        f"{chance.choice(['NULL', 'named_struct(' + repr('x') + ', 2, ' + repr('y') + ', ' + repr('a') + ')'])}, "
        f"{some('array(1, 2)|array(3)|array()')})"
        for _ in range(200)
    ]
    frame = spark.sql(
        "SELECT CAST(i AS INT) i, CAST(f AS DOUBLE) f, s, b, d, ts, CAST(m AS DECIMAL(20,10)) m, "
        "CAST(p AS STRUCT<x: INT, y: STRING>) p, CAST(l AS ARRAY<INT>) l "
        f"FROM VALUES {', '.join(rows)} AS v(i, f, s, b, d, ts, m, p, l)"
    )
    folder = tmp_path_factory.mktemp("pushdown") / "twin"
    frame.write.parquet(str(folder))
    parquet = spark.read.parquet(str(folder))
    parquet.coalesce(1).writeTo("lake.t.twin").create()
    parquet.where("i > 4").coalesce(1).writeTo("lake.t.twin").append()
    return spark.table("lake.t.twin"), parquet.union(parquet.where("i > 4"))


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.long)])
def test_every_filter_finds_what_it_finds_in_parquet(twins: tuple[DataFrame, DataFrame], every: int) -> None:
    """`every`: the short run asks every fourth filter."""
    ours, theirs = twins
    judged = theirs.selectExpr("*", *[f"coalesce({each}, false) AS ok{n}" for n, each in enumerate(PREDICATES)])
    known = [(repr(row[:9]), row[9:]) for row in map(tuple, judged.collect())]
    chosen = list(enumerate(PREDICATES))[::every]
    for start in range(0, len(chosen), 8):  # several in one job, each with a scan of its own
        asked = chosen[start : start + 8]
        scans = [ours.where(predicate).selectExpr("*", f"{number} AS number") for number, predicate in asked]
        found = [tuple(row) for row in reduce(DataFrame.unionAll, scans).collect()]
        for number, predicate in asked:
            expected = sorted(row for row, verdicts in known if verdicts[number])
            assert sorted(repr(row[:9]) for row in found if row[9] == number) == expected, predicate
            if number % 5 == 0:
                assert ours.where(predicate).count() == len(expected), predicate


def plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def test_filters_with_or_and_functions_go_to_lance(twins: tuple[DataFrame, DataFrame]) -> None:
    text = plan(twins[0].where("i = 3 OR lower(s) = 'big'"))
    assert "pushed filter: ((`i` = 3) OR (lower(`s`) = 'big'))" in text
    assert "Filter" not in text.replace("RuntimeFilters", "")


def test_patterns_go_to_lance_where_both_read_them_alike(twins: tuple[DataFrame, DataFrame]) -> None:
    text = plan(twins[0].where("s NOT LIKE '%b%s%'").select("i"))
    assert "(NOT (`s` LIKE '%b%s%'))" in text
    assert 'columns ["i"]' in text
    assert "Filter" not in text.replace("RuntimeFilters", "")
    for kept in ("s LIKE 'b_s'", "s LIKE '%!%%s' ESCAPE '!'", r"s LIKE 'b\\%%s'"):
        assert "LIKE" not in plan(twins[0].where(kept)).split("pushed filter:")[1], kept


def test_only_the_columns_asked_for_are_read(twins: tuple[DataFrame, DataFrame]) -> None:
    assert 'columns ["s"]' in plan(twins[0].select("s").where("i > 3"))


def test_count_is_answered_without_a_scan(twins: tuple[DataFrame, DataFrame]) -> None:
    for frame in (twins[0], twins[0].where("i > 3")):
        text = plan(frame.groupBy().count())
        assert "LocalTableScan" in text
        assert "BatchScan" not in text


def test_a_limit_is_read_in_one_part(spark: SparkSession, twins: tuple[DataFrame, DataFrame]) -> None:
    assert "limit 3" in plan(twins[0].limit(3))
    assert twins[0].limit(3).count() == 3
    assert twins[0].where("i > 3").limit(2).count() == 2


def test_statistics_make_a_small_table_the_broadcast_side(spark: SparkSession, ns: str) -> None:
    spark.range(1000).writeTo(f"{ns}.small").create()
    spark.range(2_000_000).toDF("id").createOrReplaceTempView("many")
    text = plan(spark.sql(f"SELECT * FROM many JOIN {ns}.small USING (id)"))
    assert "BroadcastHashJoin" in text


def test_an_index_serves_a_pushed_filter(spark: SparkSession, ns: str, tmp_path: Path) -> None:
    spark.range(50_000).selectExpr("id", "id % 10 AS k").writeTo(f"{ns}.t").create()
    spark.sql(f"CALL lake.system.create_index('{ns}.t', 'id', 'BTREE')")
    assert spark.sql(f"SELECT k FROM {ns}.t WHERE id = 4321").collect() == [(1,)]
    assert spark.sql(f"SELECT * FROM {ns}.t WHERE id IN (1, 49999)").count() == 2
    assert spark.table(f"{ns}.t").where("id = 4321").rdd.getNumPartitions() == 1


def test_few_rows_found_by_an_index_are_fetched_without_a_job_and_many_by_one(spark: SparkSession, ns: str) -> None:
    spark.range(50_000).selectExpr("id", "id % 10 AS k").writeTo(f"{ns}.t").create()
    for column in ("id", "k"):
        spark.sql(f"CALL lake.system.create_index('{ns}.t', '{column}', 'BTREE')")
    few, many = spark.table(f"{ns}.t").where("id IN (7, 8)"), spark.table(f"{ns}.t").where("k = 3")
    assert "LocalTableScan" in plan(few)
    assert "BatchScan" in plan(many)
    assert sorted(few.collect()) == [(7, 7), (8, 8)]
    assert many.selectExpr("sum(id)").first() == (sum(range(3, 50_000, 10)),)
    assert few.join(many, few.id == many.id, "left").where(many.id.isNull()).count() == 2
    spark.sql(f"UPDATE {ns}.t SET k = -1 WHERE id = 7 OR id = -5")
    spark.sql(f"UPDATE {ns}.t SET k = -1 WHERE id = 999999")
    assert spark.table(f"{ns}.t").where("id = 7").collect() == [(7, -1)]
