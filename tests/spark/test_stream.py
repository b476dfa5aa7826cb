"""Streams: offsets are versions, a batch is one commit, nothing twice and nothing lost."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import lance
import lance_namespace as api
import pytest
from pyspark.errors import IllegalArgumentException, StreamingQueryException
from pyspark.sql import SparkSession

from headwater import DirectoryNamespace


def copy(spark: SparkSession, ns: str, checkpoint: Path, **options: str) -> list[tuple[int, int]]:
    """Run the stream src -> dst over what is there; the batches that had rows, and how many."""
    reader = spark.readStream
    for name, value in options.items():
        reader = reader.option(name, value)
    writer = reader.table(f"{ns}.src").writeStream.option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).toTable(f"{ns}.dst")
    query.awaitTermination()
    batches = [(progress["batchId"], progress["numInputRows"]) for progress in query.recentProgress]
    return [batch for batch in batches if batch[1]]


@pytest.fixture
def tables(spark: SparkSession, ns: str) -> str:
    spark.sql(f"CREATE TABLE {ns}.src (id BIGINT, name STRING)")
    spark.sql(f"CREATE TABLE {ns}.dst (id BIGINT, name STRING)")
    append(spark, ns, 0, 3)
    return ns


def append(spark: SparkSession, ns: str, first: int, versions: int) -> None:
    for number in range(first, first + versions):
        spark.range(number * 10, number * 10 + 10).selectExpr("id", "'a' AS name").coalesce(1).writeTo(
            f"{ns}.src"
        ).append()


def counts(spark: SparkSession, table: str) -> tuple[int, int]:
    row = spark.sql(f"SELECT count(*), count(DISTINCT id) FROM {table}").collect()[0]
    return row[0], row[1]


def version(spark: SparkSession, table: str) -> int:
    return int(dict(map(tuple, spark.sql(f"SHOW TBLPROPERTIES {table}").collect()))["version"])


def test_a_stream_starts_with_what_is_there_and_goes_on_with_what_is_appended(
    spark: SparkSession, tables: str, tmp_path: Path
) -> None:
    assert copy(spark, tables, tmp_path / "ck") == [(0, 30)]
    assert copy(spark, tables, tmp_path / "ck") == []
    append(spark, tables, 3, 2)
    spark.sql(f"CALL lake.system.compact('{tables}.src')")
    assert sum(rows for _, rows in copy(spark, tables, tmp_path / "ck")) == 20
    assert counts(spark, f"{tables}.dst") == (50, 50)


def test_rate_limits_divide_the_snapshot_and_the_versions(spark: SparkSession, tables: str, tmp_path: Path) -> None:
    assert [rows for _, rows in copy(spark, tables, tmp_path / "ck", maxVersionsPerTrigger="1")] == [10, 10, 10]
    append(spark, tables, 3, 4)
    assert [rows for _, rows in copy(spark, tables, tmp_path / "ck", maxRowsPerTrigger="20")] == [20, 20]
    assert counts(spark, f"{tables}.dst") == (70, 70)


def test_a_stream_can_start_at_a_version(spark: SparkSession, tables: str, tmp_path: Path) -> None:
    copy(spark, tables, tmp_path / "ck", startingVersion="3")
    assert counts(spark, f"{tables}.dst") == (20, 20)
    copy(spark, tables, tmp_path / "other", startingVersion="latest")
    assert counts(spark, f"{tables}.dst") == (20, 20)


def test_a_replayed_batch_is_not_written_twice(spark: SparkSession, tables: str, tmp_path: Path) -> None:
    copy(spark, tables, tmp_path / "ck")
    append(spark, tables, 3, 1)
    copy(spark, tables, tmp_path / "ck")
    before = version(spark, f"{tables}.dst")
    for name in ("1", ".1.crc"):
        (tmp_path / "ck" / "commits" / name).unlink()  # the driver died after the commit and before it noted that
    assert copy(spark, tables, tmp_path / "ck") == [(1, 10)]
    assert counts(spark, f"{tables}.dst") == (40, 40)
    assert version(spark, f"{tables}.dst") == before


def test_an_update_in_the_source_is_an_error_or_passed_over_as_told(
    spark: SparkSession, tables: str, tmp_path: Path
) -> None:
    copy(spark, tables, tmp_path / "ck")
    spark.sql(f"UPDATE {tables}.src SET name = 'z' WHERE id = 1")
    append(spark, tables, 3, 1)
    with pytest.raises(StreamingQueryException, match="changed rows that were read before"):
        copy(spark, tables, tmp_path / "ck")
    copy(spark, tables, tmp_path / "ck", skipChangeCommits="true")
    assert counts(spark, f"{tables}.dst") == (40, 40)


def test_clean_up_spares_the_versions_a_stream_has_not_read(spark: SparkSession, tables: str, tmp_path: Path) -> None:
    copy(spark, tables, tmp_path / "ck")
    append(spark, tables, 3, 3)
    spark.sql(f"CALL lake.system.compact('{tables}.src')")
    kept = spark.sql(f"CALL lake.system.cleanup('{tables}.src', 0)").collect()[0]
    assert kept.kept_from_version == 4
    assert kept.old_versions == 3
    copy(spark, tables, tmp_path / "ck", maxVersionsPerTrigger="1")
    assert counts(spark, f"{tables}.dst") == (60, 60)


def clean_up_elsewhere(root: Path, table: str) -> None:
    """What another client does: pylance's own clean-up, which spares only the newest version and tagged ones."""
    request = api.DescribeTableRequest(id=table.split(".")[1:])
    location = DirectoryNamespace(root=str(root)).describe_table(request).location
    lance.dataset(location).cleanup_old_versions(dt.timedelta(0), error_if_tagged_old_versions=False)


def test_versions_that_another_client_cleaned_up_unread_are_read_exactly(
    spark: SparkSession, tables: str, root: Path, tmp_path: Path
) -> None:
    copy(spark, tables, tmp_path / "ck")
    append(spark, tables, 3, 3)
    spark.sql(f"CALL lake.system.create_index('{tables}.src', 'id', 'BTREE')")
    spark.sql(f"CALL lake.system.compact('{tables}.src')")
    clean_up_elsewhere(root, f"{tables}.src")
    append(spark, tables, 6, 1)
    copy(spark, tables, tmp_path / "ck")
    assert counts(spark, f"{tables}.dst") == (70, 70)


def test_a_running_stream_outlives_the_version_it_was_started_at(
    spark: SparkSession, tables: str, root: Path, tmp_path: Path
) -> None:
    writer = spark.readStream.table(f"{tables}.src").writeStream.option("checkpointLocation", str(tmp_path / "ck"))
    query = writer.toTable(f"{tables}.dst")
    try:
        query.processAllAvailable()
        append(spark, tables, 3, 1)
        query.processAllAvailable()
        append(spark, tables, 4, 1)
        query.processAllAvailable()
        clean_up_elsewhere(root, f"{tables}.src")
        append(spark, tables, 5, 1)
        query.processAllAvailable()
    finally:
        query.stop()
    with pytest.raises(IllegalArgumentException, match="has no version 4"):
        spark.sql(f"SELECT * FROM {tables}.src VERSION AS OF 4").collect()
    assert counts(spark, f"{tables}.dst") == (60, 60)


@pytest.mark.parametrize("unread", [True, False], ids=["an unread row", "a row read before"])
def test_a_row_changed_in_versions_that_were_cleaned_up_stops_the_stream_with_what_to_do(
    spark: SparkSession, tables: str, root: Path, tmp_path: Path, unread: bool
) -> None:
    copy(spark, tables, tmp_path / "ck")
    append(spark, tables, 3, 1)
    spark.sql(f"UPDATE {tables}.src SET name = 'z' WHERE id = {35 if unread else 5}")
    append(spark, tables, 4, 1)
    clean_up_elsewhere(root, f"{tables}.src")
    with pytest.raises(StreamingQueryException, match=r"versions 5 to 6 were cleaned up.*startingVersion = 8"):
        copy(spark, tables, tmp_path / "ck")
    assert counts(spark, f"{tables}.dst") == (30, 30)


def test_complete_mode_replaces_the_rows(spark: SparkSession, tables: str, tmp_path: Path) -> None:
    spark.sql(f"CREATE TABLE {tables}.counts (name STRING, n BIGINT)")

    def run() -> None:
        frame = spark.readStream.table(f"{tables}.src").groupBy("name").count().withColumnRenamed("count", "n")
        writer = frame.writeStream.outputMode("complete").option("checkpointLocation", str(tmp_path / "ck"))
        writer.trigger(availableNow=True).toTable(f"{tables}.counts").awaitTermination()

    run()
    append(spark, tables, 3, 1)
    run()
    assert spark.table(f"{tables}.counts").collect() == [("a", 40)]


def test_a_stream_reads_through_the_format_too(spark: SparkSession, tables: str, tmp_path: Path) -> None:
    name = tables.removeprefix("lake.") + ".src"
    frame = spark.readStream.format("headwater").option("catalog", "lake").load(name)
    query = frame.writeStream.format("memory").queryName("seen").trigger(availableNow=True).start()
    query.awaitTermination()
    assert spark.table("seen").count() == 30


def test_a_stream_with_a_filter_that_an_index_would_answer_is_still_a_stream(
    spark: SparkSession, tables: str, tmp_path: Path
) -> None:
    spark.sql(f"CALL lake.system.create_index('{tables}.src', 'id', 'BTREE')")
    for _ in range(2):
        found = spark.readStream.table(f"{tables}.src").where("id = 5 OR id = 35")
        writer = found.writeStream.option("checkpointLocation", str(tmp_path / "ck")).trigger(availableNow=True)
        writer.toTable(f"{tables}.dst").awaitTermination()
        append(spark, tables, 3, 1)
    assert {row.id for row in spark.table(f"{tables}.dst").collect()} == {5, 35}
