"""One side of a join tells the scan of the other which keys it has, and the answer stays Spark's own."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from headwater.names import ObjectId
from headwater.tables.handle import TableHandle
from headwater.tables.scan.parts import Keys, kept
from headwater.tables.scan.table_scan import Scan, rows_left

ROWS = 60_000
"""More than a table that is too small to be looked at."""
FEW = "(SELECT * FROM VALUES (3), (7), (CAST(NULL AS BIGINT)), (-1), (9000000000) AS v(id))"
JOINS = {
    "inner": f"SELECT f.* FROM {{ns}}.facts f JOIN {FEW} d ON f.k = d.id",
    "reversed": f"SELECT f.* FROM {FEW} d JOIN {{ns}}.facts f ON f.k = d.id",
    "a filter that Lance applies": "SELECT f.*, d.name FROM {ns}.facts f JOIN {ns}.dims d ON f.k = d.id "
    "WHERE d.name = 'n7'",
    "left": f"SELECT d.id, f.n FROM {FEW} d LEFT JOIN {{ns}}.facts f ON f.k = d.id",
    "right": f"SELECT d.id, f.n FROM {{ns}}.facts f RIGHT JOIN {FEW} d ON f.k = d.id",
    "the kept side": f"SELECT count(*), count(d.id) FROM {{ns}}.facts f LEFT JOIN {FEW} d ON f.k = d.id",
    "full": f"SELECT count(*), count(d.id), count(f.n) FROM {{ns}}.facts f FULL JOIN {FEW} d ON f.k = d.id",
    "semi": f"SELECT f.* FROM {{ns}}.facts f WHERE f.k IN (SELECT id FROM {FEW})",
    "semi, the other way": "SELECT d.* FROM {ns}.dims d WHERE d.name = 'n7' AND EXISTS "
    "(SELECT * FROM {ns}.facts f WHERE f.k = d.id AND f.n % 2 = 0)",
    "anti": f"SELECT d.id FROM {FEW} d WHERE NOT EXISTS (SELECT * FROM {{ns}}.facts f WHERE f.k = d.id AND f.n < 4000)",
    "anti, the other way": "SELECT count(*) FROM {ns}.facts f "
    f"WHERE NOT EXISTS (SELECT * FROM {FEW} d WHERE f.k = d.id)",
    "not in": f"SELECT count(*) FROM {{ns}}.facts WHERE k NOT IN (SELECT id FROM {FEW})",
    "null safe": f"SELECT count(*), sum(f.n) FROM {{ns}}.facts f JOIN {FEW} d ON f.k <=> d.id",
    "groups": f"SELECT d.id, g.c FROM (SELECT k, count(*) c FROM {{ns}}.facts GROUP BY k) g JOIN {FEW} d ON g.k = d.id",
    "a limit below": "SELECT count(*) FROM (SELECT * FROM {ns}.facts ORDER BY n LIMIT 20) f "
    f"JOIN {FEW} d ON f.k = d.id",
    "a window below": "SELECT f.k, f.r FROM (SELECT k, n, row_number() OVER (ORDER BY n) r FROM {ns}.facts) f "
    f"JOIN {FEW} d ON f.k = d.id",
    "short": "SELECT f.n FROM {ns}.facts f JOIN (SELECT * FROM VALUES (3S), (7S) AS v(id)) d ON f.small = d.id",
    "dates": "SELECT f.n FROM {ns}.facts f "
    "JOIN (SELECT * FROM VALUES (date'1969-12-31'), (date'1970-01-04') AS v(day)) d ON f.day = d.day",
    "text": "SELECT f.n FROM {ns}.facts f JOIN (SELECT * FROM VALUES ('n3'), ('n7') AS v(name)) d ON f.name = d.name",
    "a chain": "SELECT f.n, d.name FROM {ns}.facts f JOIN {ns}.dims d ON f.k = d.id "
    "JOIN (SELECT * FROM VALUES (4L) AS v(g)) t ON d.g = t.g",
    "the same scan twice": "SELECT count(*), sum(a.n) FROM {ns}.facts a JOIN {ns}.facts b ON a.n = b.n "
    f"WHERE a.k IN (SELECT id FROM {FEW})",
    "two keys": "SELECT f.n FROM {ns}.facts f JOIN (SELECT * FROM VALUES (3L, 3L), (7L, 1007L) AS v(a, b)) d "
    "ON f.k = d.a AND f.n = d.b",
}
NOT_TOLD = {
    "the kept side", "full", "anti, the other way", "not in", "null safe", "a limit below", "a window below", "text",
    "semi, the other way",
}  # fmt: skip
SHORT = {"inner", "left", "semi, the other way", "a chain"}


@pytest.fixture(scope="module")
def star(spark: SparkSession) -> str:
    """Facts with keys and NULLs, and the dimension of them."""
    spark.sql("CREATE NAMESPACE lake.t.star")
    frame = spark.range(ROWS).selectExpr(
        "id AS n", "CASE WHEN id % 10 <> 9 THEN id % 1000 END AS k", "CAST(id % 100 AS SMALLINT) AS small",
        "date_add(date'1969-12-30', CAST(id % 500 AS INT)) AS day", "concat('n', id % 100) AS name",
    )  # fmt: skip
    frame.coalesce(1).writeTo("lake.t.star.facts").create()
    dims = spark.range(ROWS).selectExpr("id", "concat('n', id) AS name", "id % 5000 AS g")
    dims.coalesce(1).writeTo("lake.t.star.dims").create()
    return "lake.t.star"


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.unset(name)


def rows(frame: DataFrame) -> list[str]:
    return sorted(repr(tuple(row)) for row in frame.collect())


def told(frame: DataFrame) -> bool:
    """Whether a scan of a query that was run was told keys."""
    final = str(frame._jdf.queryExecution().executedPlan().toString()).split("\n+- == Initial Plan ==")[0]
    return " IN dynamicpruning#" in final


@pytest.fixture(autouse=True)
def worth(spark: SparkSession) -> Iterator[None]:
    """Tables of a million rows take long to make: here few are worth it."""
    with setting(spark, "spark.headwater.join_keys.rows", "1000"):
        yield


@pytest.mark.parametrize(
    "name", [name if name in SHORT else pytest.param(name, marks=pytest.mark.long) for name in JOINS]
)
def test_a_join_finds_the_same_with_keys_told_and_without(spark: SparkSession, star: str, name: str) -> None:
    query = JOINS[name].format(ns=star)
    with setting(spark, "spark.sql.optimizer.dynamicPartitionPruning.enabled", "false"):
        without = rows(spark.sql(query))
    frame = spark.sql(query)
    assert rows(frame) == without
    assert told(frame) == (name not in NOT_TOLD)


def test_keys_are_found_by_a_second_read_where_nothing_is_broadcast(spark: SparkSession, star: str) -> None:
    query = JOINS["a filter that Lance applies"].format(ns=star)
    with setting(spark, "spark.sql.autoBroadcastJoinThreshold", "-1"):
        frame = spark.sql(query)
        assert len(frame.collect()) == ROWS // 1000
        assert told(frame)


def test_a_small_table_is_not_waited_for(spark: SparkSession, star: str) -> None:
    with setting(spark, "spark.sql.autoBroadcastJoinThreshold", "-1"):
        spark.conf.unset("spark.headwater.join_keys.rows")
        frame = spark.sql(JOINS["a filter that Lance applies"].format(ns=star))
        assert len(frame.collect()) == ROWS // 1000
        assert not told(frame)


def test_two_reads_of_the_same_rows_are_exchanged_once(spark: SparkSession, star: str) -> None:
    with setting(spark, "spark.sql.autoBroadcastJoinThreshold", "-1"):
        twice = (
            f"SELECT k, count(*) FROM {star}.facts GROUP BY k UNION ALL SELECT k, count(*) FROM {star}.facts GROUP BY k"
        )
        frame = spark.sql(twice)
        assert len(frame.collect()) == 2 * 901
        assert "ReusedExchange" in str(frame._jdf.queryExecution().executedPlan().toString())


@pytest.mark.parametrize("spread", [1, 1 << 40], ids=["near", "far"])
@pytest.mark.parametrize("kind", [pa.int64(), pa.int32(), pa.int16(), pa.date32()], ids=str)
def test_rows_with_other_keys_are_dropped(spread: int, kind: pa.DataType) -> None:
    told = [5, 7, -3, 2 * spread, -(2**63), 2**63 - 1]
    told = told[:4] if spread == 1 else told
    values = pa.array([5, None, 6, -3, 7, 100, 0, -(2**15)], pa.int64()).cast(pa.int32()).cast(kind)
    batch = pa.record_batch([values, pa.array(range(8))], ["k", "n"])
    keys = [Keys("k", base64.b64encode(np.array(told, "<i8").tobytes()).decode())]
    whole = batch.slice(2)
    assert pa.Table.from_batches(kept([batch, whole], keys)).column("n").to_pylist() == [0, 3, 4, 3, 4]
    assert pa.Table.from_batches(kept([whole], keys)).column("n").to_pylist() == [3, 4]
    assert list(kept([batch], [Keys("k", "")])) == []


def test_a_filter_is_tried_on_a_few_rows(tmp_path: Path) -> None:
    data = pa.table({"n": range(ROWS), "small": [n % 100 for n in range(ROWS)]})
    made = lance.write_dataset(data, str(tmp_path / "t"))

    def estimate(filter: str | None, version: int = 1) -> int:
        table = TableHandle(ObjectId(("t",)), str(tmp_path / "t"), version=version)
        return rows_left(Scan(table, ("n",), filter), ["small"] if filter else [])

    assert ROWS * 0.05 < estimate("(`small` < 10)") < ROWS * 0.2
    assert 1 <= estimate("(`small` < 0)") < ROWS * 0.01
    assert estimate(None) == ROWS
    made.delete("n % 7 = 0")
    left = made.count_rows()
    assert estimate("(`small` < 10)", version=2) == left, "rows are not taken from a fragment with deleted ones"
