"""Stream tables in SQL: reads are fresh, and positions are versions."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from headwater.catalog import Catalog
from headwater.errors import InvalidInputError
from headwater.spark.fresh import shares_for
from headwater.spark.source import HeadwaterSource


@pytest.fixture
def orders(catalog: Catalog, request: pytest.FixtureRequest) -> Any:
    place: Any = pa.struct([("city", pa.string()), ("zip", pa.int32())])
    schema = {"id": "bigint", "at": "timestamp", "name": "string", "where": place}
    name = f"raw.orders_{abs(hash(request.node.name)) % 10**8}"
    return catalog.create_stream_table(name, schema, keys=["id"], sequence=["at"])


def rows(first: int, last: int, minute: int) -> list[dict[str, Any]]:
    at = datetime(2024, 1, 1, 0, minute, tzinfo=UTC)
    found = {"at": at, "where": {"city": f"c{minute}", "zip": minute}}
    return [{"id": n, "name": f"{minute}-{n}", **found} for n in range(first, last)]


def test_sql_reads_a_stream_table_fresh_before_and_after_its_publishes_and_at_every_position(
    spark: SparkSession, orders: Any
) -> None:
    table = f"streams.{orders.name}"
    assert spark.table(table).count() == 0
    orders.upsert(rows(0, 10, 1))
    assert spark.table(table).count() == 10
    orders.publish()
    orders.upsert(rows(5, 15, 2))
    orders.delete([0, 1])
    found = spark.sql(f"SELECT name, where.city AS city FROM {table} WHERE id >= 4 ORDER BY id LIMIT 3").collect()
    assert [tuple(row) for row in found] == [("1-4", "c1"), ("2-5", "c2"), ("2-6", "c2")]
    grouped = spark.sql(f"SELECT where.zip, count(*) FROM {table} GROUP BY 1 ORDER BY 1").collect()
    assert [tuple(row) for row in grouped] == [(1, 3), (2, 10)]
    counts = [
        spark.sql(f"SELECT count(*) FROM {table} VERSION AS OF {position}").collect()[0][0] for position in (0, 1, 2, 3)
    ]
    assert counts == [0, 10, 15, 13]
    before = spark.table(table).orderBy("id").collect()
    orders.publish()
    assert spark.table(table).orderBy("id").collect() == before
    assert spark.sql(f"SELECT id FROM {table} WHERE id = 7").collect()[0][0] == 7


def test_sql_shows_of_a_stream_table_what_it_was_created_with_and_altered_to(
    spark: SparkSession, catalog: Catalog
) -> None:
    table = "streams.raw.told"
    spark.sql(
        f"CREATE TABLE {table} (id BIGINT, at BIGINT) USING stream PARTITIONED BY (bucket(4, id)) "
        "TBLPROPERTIES ('keys' = 'id', 'sequence' = 'at', 'late' = 'quarantine')"
    )
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('contract' = 'freeze')")
    spark.sql(f"ALTER TABLE {table} UNSET TBLPROPERTIES ('late')")
    for _ in range(2):
        told = {row.key: row.value for row in spark.sql(f"SHOW TBLPROPERTIES {table}").collect()}
        assert {**told, "version": ""} == {"keys": "id", "sequence": "at", "contract": "freeze", "version": ""}
        shown = {row.col_name: row.data_type for row in spark.sql(f"DESCRIBE EXTENDED {table}").collect()}
        assert (shown["Provider"], shown["Part 0"]) == ("stream", "bucket(4, id)")
        spark.sql(f"INSERT INTO {table} VALUES (1, 1), (2, 1)")
        assert spark.sql(f"SELECT id FROM {table} WHERE id = 2").collect() == [(2,)]
        catalog["raw.told"].publish()


def test_a_position_that_is_not_there_and_a_tag_are_refused(spark: SparkSession, orders: Any) -> None:
    table = f"streams.{orders.name}"
    orders.upsert(rows(0, 3, 1))
    with pytest.raises(Exception, match="positions 0 to 1"):
        spark.sql(f"SELECT * FROM {table} VERSION AS OF 7").collect()
    with pytest.raises(Exception, match="takes a position"):
        spark.sql(f"SELECT * FROM {table} VERSION AS OF 'gold'").collect()


def test_as_of_a_time_is_the_newest_position_then_and_before_the_table_is_an_error(
    spark: SparkSession, orders: Any
) -> None:
    def counted(millis: int) -> int:
        at = datetime.fromtimestamp(millis / 1000, UTC).strftime("%F %T.%f")
        return int(spark.sql(f"SELECT count(*) FROM streams.{orders.name} TIMESTAMP AS OF '{at}'").collect()[0][0])

    for first, minute in ((0, 1), (10, 2), (20, 3)):
        orders.upsert(rows(first, first + 10, minute))
        if minute == 2:
            orders.publish()
    times = [delta.time_ms for delta in orders.deltas()]
    known = [sum(10 for each in times if each <= time) for time in times]
    assert [counted(time) for time in times] == known
    assert counted(times[-1] + 60_000) == 30
    with pytest.raises(Exception, match=r"created later|cannot be read as of"):
        counted(times[0] - 3_600_000)


def test_procedures_take_files_publish_several_tables_at_one_slot_and_undo(
    spark: SparkSession, catalog: Catalog, orders: Any, tmp_path: Path
) -> None:
    other = catalog.create_stream_table(f"{orders.name}_too", {"id": "bigint"}, keys=["id"])
    other.upsert([{"id": 1}])
    (tmp_path / "1.json").write_text('{"id": 1, "at": "2024-01-01T00:00:00Z", "name": "a"}\n')
    (tmp_path / "2.json").write_text('{"id": 2, "at": "2024-01-01T00:00:00Z", "name": "b"}\n{"id": null}\n')
    call = f"CALL streams.system.ingest('{orders.name}', '{tmp_path}/*.json', 'rows', 'files')"
    assert [tuple(row) for row in spark.sql(call).collect()] == [(2, 2, 1, 0, 2)]
    assert [tuple(row) for row in spark.sql(call).collect()] == [(0, 0, 0, 2, 2)]
    slot = catalog.slot
    published = spark.sql(f"CALL streams.system.publish('{orders.name}', '{other.name}')").collect()
    assert (published[0].rows, published[0].position) == (3, 2)
    assert catalog.slot == slot + 1
    spark.sql(f"CALL streams.system.undo('{orders.name}', 'files', '{tmp_path}/2.json')")
    assert [row.name for row in spark.table(f"streams.{orders.name}").collect()] == ["a"]
    assert [row["name"] for row in orders.serving.to_arrow().to_pylist()] == ["a"]
    assert spark.table(f"streams.{orders.name}__quarantine").count() == 0


def test_the_python_source_reads_fresh_too_and_does_not_write(orders: Any) -> None:
    orders.upsert(rows(0, 3, 1))
    orders.publish()
    orders.upsert(rows(2, 5, 2))
    source = HeadwaterSource({"catalog": "streams", "path": orders.name})
    reader = source.reader(source.schema())
    found = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert sorted(row["name"] for row in found) == ["1-0", "1-1", "2-2", "2-3", "2-4"]
    with pytest.raises(InvalidInputError, match="is a stream table"):
        source.writer(source.schema(), overwrite=False).write(iter(()))


def test_insert_appends_to_a_table_without_keys_in_one_transaction(spark: SparkSession, catalog: Catalog) -> None:
    log = catalog.create_stream_table("raw.clicks", {"id": "bigint", "page": "string"})
    table = "streams.raw.clicks"
    spark.sql(f"INSERT INTO {table} SELECT id, concat('p', id) FROM range(0, 50, 1, 4)")
    slot = catalog.slot
    spark.sql(f"INSERT INTO {table} VALUES (50, NULL)")
    assert catalog.slot == slot + 1
    assert spark.table(table).count() == 51
    log.publish()
    spark.range(100, 110).selectExpr("id", "'x' AS page").writeTo(table).append()
    assert spark.table(table).where("page = 'x'").count() == 10
    assert (log.count(), log.verify()) == (61, [])
    with pytest.raises(Exception, match="is a stream table"):
        spark.sql(f"INSERT OVERWRITE {table} VALUES (1, NULL)")


def test_the_partitions_of_a_stream_table_are_shown_by_their_values(spark: SparkSession, catalog: Catalog) -> None:
    table = "streams.raw.divided"
    spark.sql(
        f"CREATE TABLE {table} (id BIGINT, region STRING, at TIMESTAMP) USING stream "
        "PARTITIONED BY (region, days(at)) TBLPROPERTIES ('keys' = 'id')"
    )
    assert spark.sql(f"SHOW PARTITIONS {table}").count() == 0
    at = datetime(2026, 1, 31, tzinfo=UTC)
    catalog["raw.divided"].upsert([{"id": n, "region": name, "at": at} for n, name in enumerate(["us", None, "eu"])])
    values = [f"region={name}/at_days=2026-01-31" for name in ("eu", "null", "us")]
    for _ in range(2):
        assert [row.partition for row in spark.sql(f"SHOW PARTITIONS {table}").collect()] == values
        assert spark.sql(f"SHOW PARTITIONS {table} PARTITION (region = 'eu')").count() == 1
        catalog["raw.divided"].publish()
    assert spark.table(table).where("region = 'eu'").count() == 1


def test_a_stream_table_is_created_altered_and_dropped_in_sql(spark: SparkSession, catalog: Catalog) -> None:
    table = "streams.raw.made"
    spark.sql(
        f"CREATE TABLE {table} (id BIGINT NOT NULL, at TIMESTAMP, name STRING, n INT) USING stream "
        "PARTITIONED BY (name) TBLPROPERTIES ('keys' = 'id', 'sequence' = 'at', 'lateness' = '7 days')"
    )
    made = catalog["raw.made"]
    assert (made.definition.keys, made.definition.sequence) == (("id",), ("at",))
    assert made.definition.properties["lateness"] == "7 days"
    assert made.definition.partition_by[0].column == "name"
    spark.sql(f"ALTER TABLE {table} ADD COLUMN size INT")
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN size TO width")
    spark.sql(f"ALTER TABLE {table} ALTER COLUMN n TYPE BIGINT")
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('late' = 'quarantine')")
    made.upsert([{"id": 1, "at": datetime(2024, 1, 1, tzinfo=UTC), "name": "a", "n": 1 << 40, "width": 3}])
    assert spark.table(table).select("id", "n", "width").collect() == [(1, 1 << 40, 3)]
    assert made.definition.properties["late"] == "quarantine"
    for statement, told in (
        (f"CREATE OR REPLACE TABLE {table} (id BIGINT)", "is a stream table"),
        (f"CREATE TABLE {table}3 (id BIGINT) USING teapot", "teapot is not known"),
        (f"ALTER TABLE {table} DROP COLUMN id", "keys or the sequence"),
    ):
        with pytest.raises(Exception, match=told):
            spark.sql(statement)
    assert made.count() == 1
    spark.sql(f"DROP TABLE {table}")
    assert "raw.made" not in catalog


def test_what_was_undone_or_altered_after_the_last_publish_is_read_at_once(
    spark: SparkSession, catalog: Catalog
) -> None:
    table = "streams.raw.since"
    made = catalog.create_stream_table("raw.since", {"id": "bigint", "n": "int"}, keys=["id"])
    made.upsert([{"id": 1, "n": 1}], source="s")
    made.publish()
    spark.sql(f"ALTER TABLE {table} ALTER COLUMN n TYPE BIGINT")
    spark.sql(f"ALTER TABLE {table} ADD COLUMN word STRING")
    kinds = {row.col_name: row.data_type for row in spark.sql(f"DESCRIBE {table}").collect()}
    assert kinds == {"id": "bigint", "n": "bigint", "word": "string"}
    assert [tuple(row) for row in spark.table(table).collect()] == [(1, 1, None)]
    spark.sql(f"INSERT INTO {table} VALUES (2, {1 << 40}, 'b')")
    made.publish()
    made.undo(source="s")
    assert [tuple(row) for row in spark.table(table).collect()] == [(2, 1 << 40, "b")]
    made.publish()
    made.undo(txn=made.deltas()[1].txn)  # nothing is left to be read of the log either
    assert (spark.table(table).count(), made.count()) == (0, 0)
    for statement, told in (
        (f"ALTER TABLE {table} ADD COLUMN more INT DEFAULT 5", "takes no DEFAULT"),
        (f"ALTER TABLE {table} SET TBLPROPERTIES ('keys' = 'n')", "its keys stay"),
        (f"ALTER TABLE {table} UNSET TBLPROPERTIES ('sequence')", "its sequence stay"),
        (f"CREATE TABLE {table}_too (id INT) USING stream TBLPROPERTIES ('key' = 'id')", "keys are told as such"),
        (f"CREATE TABLE {table}_too USING stream TBLPROPERTIES ('Keys' = 'id') AS SELECT 1 AS id", "told as such"),
        (f"ALTER TABLE {table} SET TBLPROPERTIES ('latenes' = '7 days')", "write 'lateness'"),
    ):
        with pytest.raises(Exception, match=told):
            spark.sql(statement)


@pytest.mark.long
def test_a_large_base_is_read_in_parts_beside_what_the_log_touches(spark: SparkSession, catalog: Catalog) -> None:
    table = catalog.create_stream_table("raw.large", {"id": "bigint", "n": "bigint"}, keys=["id"])
    count = 210_000
    table.upsert(pa.table({"id": range(count), "n": [1] * count}))
    table.publish()
    table.upsert([{"id": id, "n": 5} for id in (0, 7, count)])
    table.delete([1, 2])
    frame = spark.table("streams.raw.large")
    assert frame.selectExpr("count(id)", "sum(n)", "max(id)").collect() == [(count - 1, count - 1 + 12, count)]
    assert frame.where("n = 5").count() == 3
    assert sorted(row.id for row in frame.where("id < 9 AND n = 1").collect()) == [3, 4, 5, 6, 8]
    assert frame.count() == count - 1
    assert len(frame.limit(3).collect()) == 3


def test_a_tail_is_divided_as_far_as_its_shares_take_longer_than_looking_through_the_base() -> None:
    million = 1_000_000
    assert shares_for(million, 8) == 8
    assert shares_for(million, 8, 10 * million) == 1
    assert shares_for(8 * million, 8, 10 * million) == 8
    assert shares_for(100 * million, 64, 10_000 * million) == 64  # none is larger than a task can hold
