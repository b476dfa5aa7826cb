"""Stream tables of a session on a server: the server folds, so that what is read is fresh."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from headwater.catalog import Catalog
from headwater.config import open_resolved, resolve
from headwater.errors import ConcurrentModificationError
from headwater.pipeline import ingest
from headwater.rest.server import start_in_thread
from headwater.spark.calls import ask
from headwater.streams.sources.intake import packed
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
    spark.conf.set("spark.headwater.test.served", server.url)
    yield catalog
    server.stop()


def rows(spark: SparkSession, what: str) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in spark.sql(f"SELECT * FROM served.raw.orders {what}").collect())


def test_partitions_are_shown_by_their_values_through_a_server(spark: SparkSession, lake: Catalog) -> None:
    columns = "(id BIGINT, region STRING) USING stream PARTITIONED BY (region) TBLPROPERTIES ('keys' = 'id')"
    spark.sql(f"CREATE TABLE served.raw.divided {columns}")
    lake["raw.divided"].upsert([{"id": 1, "region": "us"}, {"id": 2, "region": "eu"}])
    found = spark.sql("SHOW PARTITIONS served.raw.divided").collect()
    assert [row.partition for row in found] == ["region=eu", "region=us"]


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
    ingest(spark, "served", "raw.orders", spark.sql("SELECT 5L AS id, 5L AS at, 'f' AS note, 'x' AS extra"))
    assert rows(spark, "") == [(1, 2, "c", None), (3, 2, "d", None), (4, 4, "e", None), (5, 5, "f", "x")]


def read(spark: SparkSession, query: str) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in spark.sql(query).collect())


@pytest.fixture(scope="module")
def tables(spark: SparkSession, lake: Catalog) -> Catalog:
    lake.create_stream_table("raw.log", {"id": "bigint"})
    lake.create_stream_table("raw.keyed", {"id": "bigint", "n": "int", "s": "string"}, keys=["id"])
    return lake


def test_statements_change_rows_through_the_server(spark: SparkSession, tables: Catalog) -> None:
    keyed = tables["raw.keyed"]
    spark.sql("INSERT INTO served.raw.log VALUES (1), (2)")
    spark.sql("INSERT INTO served.raw.log SELECT id + 10 FROM served.raw.log")
    assert read(spark, "SELECT * FROM served.raw.log") == [(1,), (2,), (11,), (12,)]
    assert tables["raw.log"].position == 2  # a statement is one position
    spark.sql("INSERT INTO served.raw.keyed VALUES (1, 1, 'a'), (2, 2, 'b'), (3, 3, 'c'), (4, 4, 'd')")
    spark.sql("INSERT INTO served.raw.keyed (id, n) VALUES (1, 10)")  # what is not given stays
    spark.sql("UPDATE served.raw.keyed SET n = n + 1, s = upper(s) WHERE id <= 2")
    spark.sql("CALL served.system.publish('raw.keyed')")
    spark.sql("DELETE FROM served.raw.keyed WHERE id = 3")
    spark.sql(
        "MERGE INTO served.raw.keyed t USING (SELECT * FROM VALUES (2L, 'x'), (4L, 'y'), (5L, 'z') AS v(id, s)) s "
        "ON t.id = s.id WHEN MATCHED AND s.id = 4 THEN DELETE WHEN MATCHED THEN UPDATE SET s = s.s "
        "WHEN NOT MATCHED THEN INSERT (id, n, s) VALUES (s.id, 0, s.s)"
    )
    wanted = [(1, 11, "A"), (2, 3, "x"), (5, 0, "z")]
    assert read(spark, "SELECT * FROM served.raw.keyed") == wanted
    assert sorted(tuple(row.values()) for row in keyed.to_arrow().to_pylist()) == wanted
    assert keyed.position == 7  # the MERGE is three deltas
    spark.sql(
        "CREATE TABLE served.raw.made USING stream TBLPROPERTIES ('keys' = 'id') AS SELECT * FROM served.raw.keyed"
    )
    assert read(spark, "SELECT * FROM served.raw.made") == wanted
    assert (tables["raw.made"].definition.keys, tables["raw.made"].position) == (("id",), 1)


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("INSERT INTO served.raw.keyed VALUES (NULL, 1, 'a')", "null"),
        ("INSERT OVERWRITE served.raw.keyed VALUES (1, 1, 'a')", "nothing may replace"),
        ("DELETE FROM served.raw.log WHERE id = 1", "append-only"),
        ("CREATE TABLE served.raw.keyed USING stream AS SELECT 1 AS id", "exist"),
    ],
)
def test_what_cannot_be_done_near_a_catalog_cannot_be_done_through_a_server(
    spark: SparkSession, tables: Catalog, statement: str, says: str
) -> None:
    before = tables["raw.keyed"].position, tables["raw.log"].position
    with pytest.raises(Exception, match=rf"(?i){says}"):
        spark.sql(statement).collect()
    assert (tables["raw.keyed"].position, tables["raw.log"].position) == before


def test_a_statement_that_has_read_conflicts_with_who_was_faster(spark: SparkSession, tables: Catalog) -> None:
    """What it read is checked where it is committed: of its own table, and of others of both kinds."""
    own = tables.create_stream_table("raw.own", {"id": "bigint", "n": "int"}, keys=["id"])
    other = tables.create_stream_table("raw.other", {"id": "bigint", "n": "int"}, keys=["id"])
    own.upsert([{"id": 1, "n": 1}])
    other.upsert([{"id": 2, "n": 2}])
    plain = tables.create_table("raw.plain", [{"id": 3, "n": 3}])
    reached = {"uri": spark.conf.get("spark.headwater.test.served"), "token": KEY}
    loaded = {name: ask("load_table", catalog=reached, id=["raw", name])["table"] for name in ("own", "other", "plain")}
    rows = [packed(pa.table({"id": pa.array([9]), "n": pa.array([9], pa.int32())}))]

    def commit(reads: list[str], **more: object) -> None:
        asked = {
            "table": loaded["own"],
            "command": "insert",
            "upserted": rows,
            "reads": [loaded[name] for name in reads],
        }
        ask("commit_events", catalog=reached, **{**asked, **more})

    commit(["other", "plain"])
    assert own.count() == 2
    with pytest.raises(ConcurrentModificationError):
        commit([], has_read=True)
    other.upsert([{"id": 2, "n": 3}])
    with pytest.raises(ConcurrentModificationError):
        commit(["other"])
    plain.append([{"id": 4, "n": 4}])
    with pytest.raises(ConcurrentModificationError):
        commit(["plain"])
    assert own.count() == 2


def test_changes_are_read_through_the_server(spark: SparkSession, lake: Catalog) -> None:
    feed = lake.create_stream_table("raw.feed", {"id": "bigint", "n": "int"}, keys=["id"])
    feed.upsert([{"id": 1, "n": 1}, {"id": 2, "n": 2}])
    feed.upsert([{"id": 1, "n": 5}])
    feed.delete([2])
    columns = "id, n, _change_type, _commit_version"
    wanted = [
        (1, 1, "insert", 1),
        (1, 1, "update_preimage", 2),
        (1, 5, "update_postimage", 2),
        (2, 2, "delete", 3),
        (2, 2, "insert", 1),
    ]
    assert read(spark, f"SELECT {columns} FROM served.raw.feed CHANGES FROM VERSION 1") == wanted
    assert read(spark, f"SELECT {columns} FROM served.raw.feed CHANGES FROM VERSION 2 TO VERSION 2") == wanted[1:3]
    found = spark.read.option("startingVersion", 3).changes("served.raw.feed").select(*columns.split(", "))
    assert [tuple(row) for row in found.collect()] == [wanted[3]]


def ended(frame: DataFrame, name: str, checkpoint: Path) -> list[tuple[object, ...]]:
    """What a query over all that is there gives, and the rows so far."""
    query = (
        frame.writeStream.format("memory").queryName(name).option("checkpointLocation", str(checkpoint))
        .outputMode("append").trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    return sorted(tuple(row) for row in frame.sparkSession.table(name).collect())


def test_streams_of_rows_and_of_changes_go_through_the_server(
    spark: SparkSession, lake: Catalog, tmp_path: Path
) -> None:
    log = lake.create_stream_table("raw.events", {"id": "bigint"})
    log.append([{"id": 1}, {"id": 2}])
    log.publish()
    log.append([{"id": 3}])
    rows = spark.readStream.table("served.raw.events")
    assert ended(rows, "first", tmp_path / "a") == [(1,), (2,), (3,)]
    keyed = lake.create_stream_table("raw.changing", {"id": "bigint", "n": "int"}, keys=["id"])
    keyed.upsert([{"id": 1, "n": 1}])
    with pytest.raises(Exception, match=r"readStream\.changes"):
        ended(spark.readStream.table("served.raw.changing"), "keyed", tmp_path / "b")
    changes = spark.readStream.changes("served.raw.changing").select("id", "n", "_change_type")
    query = (
        changes.writeStream.format("memory").queryName("changes").option("checkpointLocation", str(tmp_path / "c"))
        .outputMode("append").start()
    )  # fmt: skip
    try:
        query.processAllAvailable()
        keyed.upsert([{"id": 1, "n": 2}, {"id": 2, "n": 2}])
        query.processAllAvailable()
        found = sorted(tuple(row) for row in spark.table("changes").collect())
    finally:
        query.stop()
    assert found == [(1, 1, "insert"), (1, 1, "update_preimage"), (1, 2, "update_postimage"), (2, 2, "insert")]
    assert list(keyed.readers().values()) in ([1], [2])  # a collection keeps what the query has not read
    into = lake.create_stream_table("raw.copied", {"id": "bigint"}, keys=["id"])
    for _ in range(2):
        written = (
            rows.writeStream.option("checkpointLocation", str(tmp_path / "d")).trigger(availableNow=True)
            .toTable("served.raw.copied")
        )  # fmt: skip
        written.awaitTermination()
        shutil.rmtree(tmp_path / "d" / "commits", ignore_errors=True)  # so that Spark does its last batch again
    assert sorted(row["id"] for row in into.to_arrow().to_pylist()) == [1, 2, 3]
    assert into.position == 1
