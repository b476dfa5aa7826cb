"""Stream tables of a session on a server: the server folds, so that what is read is fresh."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headwater.catalog import Catalog
from headwater.config import open_resolved, resolve
from headwater.rest.server import start_in_thread
from tests.spark.catalogs import learn

KEY = "a-key-for-this-test"


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    """A catalog that a server has, which the session knows as `served`."""
    root = str(tmp_path_factory.mktemp("served") / "lake")
    catalog = Catalog(root, impl="metastore")
    catalog.create_namespace("raw")
    server = start_in_thread(open_resolved(resolve(root, {"impl": "metastore"})), api_key=KEY)
    learn(spark, "served", uri=server.url, token=KEY)
    yield catalog
    server.stop()


def rows(spark: SparkSession, what: str) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in spark.sql(f"SELECT * FROM served.raw.orders {what}").collect())


def test_rows_are_fresh_through_a_server_and_in_the_past_as_they_were(
    spark: SparkSession, lake: Catalog, tmp_path: Path
) -> None:
    columns = "(id BIGINT, at BIGINT, note STRING) USING stream TBLPROPERTIES ('keys' = 'id', 'sequence' = 'at')"
    spark.sql(f"CREATE TABLE served.raw.orders {columns}")
    orders = lake["raw.orders"]
    orders.upsert([{"id": 1, "at": 1, "note": "a"}, {"id": 2, "at": 1, "note": "b"}])
    assert rows(spark, "") == [(1, 1, "a"), (2, 1, "b")]
    spark.sql("CALL served.system.publish('raw.orders')")
    assert rows(spark, "") == [(1, 1, "a"), (2, 1, "b")]
    orders.upsert([{"id": 1, "at": 2, "note": "c"}, {"id": 3, "at": 2, "note": "d"}])
    orders.delete([2])
    assert rows(spark, "") == [(1, 2, "c"), (3, 2, "d")]
    assert rows(spark, "WHERE note = 'd' AND at > 1") == [(3, 2, "d")]
    assert spark.sql("SELECT count(*) FROM served.raw.orders").first() == (2,)
    assert spark.sql("SELECT count(*) FROM served.raw.orders WHERE id > 1").first() == (1,)
    assert [tuple(row) for row in spark.sql("SELECT note FROM served.raw.orders LIMIT 1").collect()] == [("c",)]
    assert rows(spark, "VERSION AS OF 1") == [(1, 1, "a"), (2, 1, "b")]
    assert rows(spark, "TIMESTAMP AS OF current_timestamp()") == [(1, 2, "c"), (3, 2, "d")]
    for past, says in (("VERSION AS OF 9", "0 to 3"), ("TIMESTAMP AS OF '2001-01-01'", "cannot be read as of")):
        with pytest.raises(Exception, match=says):
            rows(spark, past)
    file = tmp_path / "more.json"
    file.write_text('{"id": 4, "at": 4, "note": "e"}\n')
    spark.sql(f"CALL served.system.ingest('raw.orders', '{file}', 'rows', 'more')")
    spark.sql("ALTER TABLE served.raw.orders ADD COLUMN extra STRING")
    assert rows(spark, "") == [(1, 2, "c", None), (3, 2, "d", None), (4, 4, "e", None)]


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO served.raw.log VALUES (1)",
        "DELETE FROM served.raw.keyed WHERE id = 1",
        "UPDATE served.raw.keyed SET n = 2",
        "CREATE TABLE served.raw.made USING stream AS SELECT 1 AS id",
        "SELECT * FROM served.raw.keyed CHANGES FROM VERSION 1",
    ],
)
def test_what_a_session_on_a_server_cannot_do_says_where_it_can_be_done(
    spark: SparkSession, lake: Catalog, statement: str
) -> None:
    if "raw.log" not in lake:
        lake.create_stream_table("raw.log", {"id": "bigint"})
        lake.create_stream_table("raw.keyed", {"id": "bigint", "n": "int"}, keys=["id"]).upsert([{"id": 1, "n": 1}])
    with pytest.raises(Exception, match="root="):
        spark.sql(statement).collect()
    assert lake["raw.keyed"].to_arrow().to_pylist() == [{"id": 1, "n": 1}]
