"""The log of a stream table in Spark: changes by positions, streams out of it and into it, exactly once."""

from __future__ import annotations

import itertools
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from headwater.catalog import Catalog
from headwater.spark import following, fresh
from headwater.streams.log.stored_events import LogShard
from headwater.streams.reading.change_feed import changes

_numbers = itertools.count()
MARKS = ("_change_type", "_commit_version", "_commit_timestamp")


@pytest.fixture
def orders(catalog: Catalog) -> Any:
    schema = {"id": "bigint", "at": "bigint", "name": "string"}
    return catalog.create_stream_table(f"raw.followed_{next(_numbers)}", schema, keys=["id"], sequence=["at"])


@pytest.fixture
def clicks(catalog: Catalog) -> Any:
    return catalog.create_stream_table(f"raw.clicks_{next(_numbers)}", {"id": "bigint", "page": "string"})


def rows(first: int, last: int, at: int) -> list[dict[str, Any]]:
    return [{"id": n, "at": at, "name": f"{at}-{n}"} for n in range(first, last)]


def live(orders: Any) -> None:
    """Six positions: inserts, updates, a late event, a delete, an undo; a publish in the middle."""
    orders.upsert(rows(0, 6, 1))
    orders.upsert(rows(4, 8, 3), source="second", token="a")
    orders.publish()
    orders.upsert(rows(5, 7, 2))  # late: changes nothing
    orders.upsert([{"id": 1, "at": 4}])  # a partial row: the name stays
    orders.delete([0, 5])
    orders.undo(source="second")


def told(frame: DataFrame) -> list[tuple[Any, ...]]:
    names = [name for name in frame.columns if name not in MARKS]
    return sorted(tuple(row[name] for name in (*MARKS[1:], MARKS[0], *names)) for row in frame.collect())


def expected(found: Any) -> list[tuple[Any, ...]]:
    """The changes as the catalog tells them."""
    marks = ("_position", "_commit_time", "_change_type")
    made = []
    for row in found.to_pylist():
        row["_commit_time"] = row["_commit_time"].replace(tzinfo=None)
        made.append(tuple(row[name] for name in (*marks, *(n for n in row if n not in marks))))
    return sorted(made)


def drain(frame: DataFrame, checkpoint: Path, name: str) -> list[Any]:
    """Run a query over what is there; all rows it gave, batch by batch."""
    seen: list[Any] = []

    def take(batch: DataFrame, number: int) -> None:
        found = batch.collect()
        if found:
            seen.append((number, found))

    writer = frame.writeStream.option("checkpointLocation", str(checkpoint)).queryName(name).foreachBatch(take)
    writer.trigger(availableNow=True).start().awaitTermination()
    return seen


@pytest.mark.long
def test_changes_of_a_range_of_positions_are_those_of_the_catalog(spark: SparkSession, orders: Any) -> None:
    live(orders)
    table = f"streams.{orders.name}"
    for first, last in ((1, 6), (2, 2), (3, 6), (5, 5)):
        frame = spark.sql(f"SELECT * FROM {table} CHANGES FROM VERSION {first} TO VERSION {last}")
        assert told(frame) == expected(orders.changes(first - 1, last)), (first, last)
    exclusive = spark.sql(f"SELECT * FROM {table} CHANGES FROM VERSION 1 EXCLUSIVE")
    assert told(exclusive) == expected(orders.changes(1))
    api = spark.read.option("startingVersion", "4").option("endingVersion", "6").changes(table)
    assert told(api) == expected(orders.changes(3, 6))
    narrow = spark.sql(f"SELECT _change_type, count(*) FROM {table} CHANGES FROM VERSION 1 GROUP BY 1").collect()
    kinds = orders.changes().column("_change_type").to_pylist()
    assert {row[0]: row[1] for row in narrow} == {kind: kinds.count(kind) for kind in kinds}
    with pytest.raises(Exception, match="has the positions 1 to 6"):
        spark.sql(f"SELECT * FROM {table} CHANGES FROM VERSION 3 TO VERSION 9").collect()
    assert spark.sql(f"SELECT * FROM {table} CHANGES FROM VERSION 7").count() == 0
    for wrong in ("FROM VERSION 8", "FROM VERSION 2 TO VERSION 1"):
        with pytest.raises(Exception, match="no changes from"):
            spark.sql(f"SELECT * FROM {table} CHANGES {wrong}").collect()


def test_a_range_of_positions_may_begin_and_end_inside_a_transaction(spark: SparkSession, catalog: Catalog) -> None:
    """A transaction is told at its last position, whole or not at all."""
    name, schema = f"raw.parted_{next(_numbers)}", {"id": "bigint", "name": "string"}
    parted = catalog.create_stream_table(name, schema, keys=["id"], partition_by=[("id", "bucket", 4)])
    ends = [0]
    for name in ("a", "b"):
        parted.upsert([{"id": n, "name": name} for n in range(9)])
        ends.append(parted.position)
    assert ends[1] > 1
    table = f"streams.{parted.name}"
    first, both = expected(parted.changes(0, ends[1])), expected(parted.changes())
    ranges = {(2, ends[2] - 1): first, (ends[1], ends[1]): first, (2, ends[2]): both}
    for (start, end), wanted in ranges.items():
        frame = spark.sql(f"SELECT * FROM {table} CHANGES FROM VERSION {start} TO VERSION {end}")
        assert told(frame) == wanted, (start, end)


def test_changes_by_time_and_net_changes(spark: SparkSession, orders: Any) -> None:
    live(orders)
    table = f"streams.{orders.name}"
    times = {delta.position: delta.time_ms for delta in orders.deltas()}
    first, last = (datetime.fromtimestamp(times[p] / 1000, UTC).strftime("%F %T.%f") for p in (2, 4))
    low, high = (f(p for p in times if times[2] <= times[p] <= times[4]) for f in (min, max))
    frame = spark.sql(f"SELECT * FROM {table} CHANGES FROM TIMESTAMP '{first}' TO TIMESTAMP '{last}'")
    assert told(frame) == expected(orders.changes(low - 1, high))
    net = spark.sql(
        f"SELECT id, _change_type FROM {table} CHANGES FROM VERSION 1 TO VERSION 6 "
        "WITH (deduplicationMode = 'netChanges')"
    )
    assert sorted(tuple(row) for row in net.collect()) == [
        (n, "insert") for n in sorted(orders.to_arrow().column("id").to_pylist())
    ]


def test_many_changes_are_divided_in_shares_and_by_positions(
    spark: SparkSession, orders: Any, clicks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(3):
        orders.upsert(rows(n * 5, n * 5 + 20, n))
        clicks.append([{"id": i, "page": f"{n}"} for i in range(10)])
    orders.publish()
    orders.delete([1, 2, 3])
    monkeypatch.setattr(following, "SMALL_ROWS", 10)
    monkeypatch.setattr(fresh, "SMALL_ROWS", 10)
    for stream, count in ((orders, 4), (clicks, 2)):
        log = following.log_of(_table(stream))
        assert isinstance(log, following.Followed)
        parts = following._divided(log, 0, log.last, 4)
        assert len(parts) >= count
        found = []
        for part in parts:
            share = LogShard(part.share, part.shares)
            found += changes(
                log.lake, log.snapshot, log.stream, part.after, part.until, share if part.shares > 1 else None
            ).to_pylist()
        key = str
        assert sorted(found, key=key) == sorted(stream.changes().to_pylist(), key=key)


def _table(stream: Any) -> Any:
    """A stream table as a plan names it."""
    from headwater.spark.wire_values import Fold, WireTable

    root = stream.namespace.properties.root
    option = fresh.lake_option(root, {})
    return WireTable(tuple(stream.path), "", True, {}, fold=Fold(option, 0, 0, 0, True, bool(stream.definition.keys)))


def test_a_change_stream_starts_with_the_rows_and_goes_on_by_positions(
    spark: SparkSession, orders: Any, tmp_path: Path
) -> None:
    table = f"streams.{orders.name}"
    orders.upsert(rows(0, 3, 1))
    orders.publish()
    orders.upsert(rows(2, 5, 2))
    checkpoint = tmp_path / "ck"
    ((_, first),) = drain(spark.readStream.changes(table), checkpoint, "changes")
    assert sorted((row.id, row.name, row._change_type, row._commit_version) for row in first) == [
        (n, f"{1 if n < 2 else 2}-{n}", "insert", 2) for n in range(5)
    ]
    orders.publish()
    for at in (3, 4):
        orders.upsert(rows(4, 6, at))
    orders.delete([0])
    again = spark.readStream.option("maxPositionsPerTrigger", "1").changes(table)
    seen = drain(again, checkpoint, "changes")
    assert [{row._commit_version for row in found} for _, found in seen] == [{3}, {4}, {5}]
    given = [tuple(row[name] for name in ("_commit_version", "_change_type", "id", "at", "name"))
             for _, found in seen for row in found]  # fmt: skip
    wanted = orders.changes(2).select(["_position", "_change_type", "id", "at", "name"]).to_pylist()
    assert sorted(given) == sorted(tuple(row.values()) for row in wanted)
    assert drain(again, checkpoint, "changes") == []


def test_a_query_is_a_reader_whose_unread_positions_are_kept(spark: SparkSession, orders: Any, tmp_path: Path) -> None:
    orders.set_properties({"log_retention": "0 days"})
    table = f"streams.{orders.name}"
    orders.upsert(rows(0, 3, 1))
    frame = spark.readStream.option("startingVersion", "1").changes(table)
    assert len(drain(frame, tmp_path / "ck", "reader")) == 1
    (reader,) = orders.readers()
    assert reader.startswith("headwater-stream-")
    for at in (2, 3):
        orders.upsert(rows(0, 1, at))
        orders.publish()
    before = orders.readers()[reader]
    orders.collect()
    assert {delta.position for delta in orders.deltas()} >= set(range(before + 1, 4))
    seen = drain(frame, tmp_path / "ck", "reader")
    assert [row._commit_version for _, found in seen for row in found] == [2, 2, 3, 3]
    frame = spark.readStream.option("startingVersion", "latest").option("protect", "false").changes(table)
    drain(frame, tmp_path / "other", "unprotected")
    assert list(orders.readers()) == [reader]


def test_a_table_with_keys_is_not_a_stream_of_rows_unless_changes_are_passed_over(
    spark: SparkSession, orders: Any, tmp_path: Path
) -> None:
    table = f"streams.{orders.name}"
    orders.upsert(rows(0, 3, 1))
    with pytest.raises(StreamingQueryException, match=r"readStream\.changes"):
        drain(spark.readStream.table(table), tmp_path / "refused", "refused")
    frame = spark.readStream.option("skipChangeCommits", "true").table(table)
    assert [len(found) for _, found in drain(frame, tmp_path / "ck", "rows")] == [3]
    orders.upsert(rows(3, 5, 1))
    orders.upsert(rows(4, 9, 2))  # changes a row: passed over whole
    orders.upsert(rows(9, 10, 2))
    seen = [row.id for _, found in drain(frame, tmp_path / "ck", "rows") for row in found]
    assert sorted(seen) == [3, 4, 9]


def test_a_table_without_keys_is_a_stream_of_its_rows(spark: SparkSession, clicks: Any, tmp_path: Path) -> None:
    table = f"streams.{clicks.name}"
    for number in range(4):
        clicks.append([{"id": number * 10 + n, "page": "p" if n else None} for n in range(10)])
        if number == 1:
            clicks.publish()
    frame = spark.readStream.option("maxRowsPerTrigger", "20").table(table).where("page = 'p'").select("id")
    first = drain(frame, tmp_path / "ck", "log")
    assert [len(found) for _, found in first] == [18, 18]
    clicks.append([{"id": 100, "page": "p"}], token="t", source="s")
    clicks.append([{"id": 101, "page": "p"}])
    second = drain(frame, tmp_path / "ck", "log")
    assert sorted(row.id for _, found in (*first, *second) for row in found) == [
        *(n for n in range(40) if n % 10),
        100,
        101,
    ]
    clicks.undo(source="s")
    with pytest.raises(StreamingQueryException, match=r"an undo"):
        drain(frame, tmp_path / "ck", "log")
    skipping = spark.readStream.option("skipChangeCommits", "true").table(table).where("page = 'p'").select("id")
    assert drain(skipping, tmp_path / "ck", "log") == []


def test_a_stream_whose_columns_change_is_told_to_start_again(spark: SparkSession, clicks: Any, tmp_path: Path) -> None:
    frame = spark.readStream.table(f"streams.{clicks.name}")
    clicks.append([{"id": 1, "page": "a"}])
    writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "ck")).format("memory").queryName("wide")
    query = writer.start()
    try:
        query.processAllAvailable()
        clicks.evolve(add={"size": "int"})
        clicks.append([{"id": 2, "page": "b", "size": 3}])
        query.processAllAvailable()
        clicks.evolve(rename={"page": "url"})
        clicks.append([{"id": 3, "url": "c"}])
        with pytest.raises(StreamingQueryException, match="start it again"):
            query.processAllAvailable()
    finally:
        query.stop()
    assert sorted(tuple(row) for row in spark.table("wide").collect()) == [(1, "a"), (2, "b")]


def copy(frame: DataFrame, checkpoint: Path, table: str, mode: str = "append") -> Any:
    """Run a query into a table over what is there."""
    writer = frame.writeStream.option("checkpointLocation", str(checkpoint)).outputMode(mode)
    query = writer.trigger(availableNow=True).toTable(table)
    query.awaitTermination()
    return query


def forget_commits(checkpoint: Path) -> None:
    """What is left when the driver died after the last commit and before it noted that."""
    shutil.rmtree(checkpoint / "commits")


def test_a_stream_into_a_table_with_keys_upserts_each_batch_once(
    spark: SparkSession, clicks: Any, orders: Any, tmp_path: Path
) -> None:
    table = f"streams.{orders.name}"
    orders.upsert([{"id": 1, "at": 0, "name": "old"}, {"id": 50, "at": 0, "name": "kept"}])
    clicks.append([{"id": n, "page": f"p{n}"} for n in range(3)])
    source = spark.readStream.table(f"streams.{clicks.name}")
    whole = source.selectExpr("id", "id + 1 AS at", "page AS name")
    copy(whole, tmp_path / "ck", table)
    assert orders.position == 2
    clicks.append([{"id": 1, "page": "new"}, {"id": None, "page": "bad"}])
    copy(whole, tmp_path / "ck", table)
    found = {row["id"]: row["name"] for row in orders.to_arrow().to_pylist()}
    assert found == {0: "p0", 1: "new", 2: "p2", 50: "kept"}
    assert [row["reason"] for row in orders.quarantine().to_pylist()] == ["null_key"]
    before = orders.position
    forget_commits(tmp_path / "ck")
    clicks.append([{"id": 7, "page": "seven"}])
    copy(whole, tmp_path / "ck", table)
    assert orders.position == before + 1  # the replayed batch is passed over, the new one is not
    assert orders.quarantine().num_rows == 1
    assert orders.verify() == []
    partial = source.selectExpr("id", "100 AS at")
    copy(partial, tmp_path / "partial", table)
    assert {row["id"]: row["name"] for row in orders.to_arrow().to_pylist()} == {**found, 7: "seven"}
    with pytest.raises(StreamingQueryException, match="sequence column 'at' is missing"):
        copy(source.selectExpr("id", "page AS name"), tmp_path / "wrong", table)
    with pytest.raises(StreamingQueryException, match="no column 'page'"):
        copy(source.selectExpr("id", "1 AS at", "page"), tmp_path / "unknown", table)


def test_a_query_that_counts_updates_a_table_with_keys_and_a_log_takes_rows_once(
    spark: SparkSession, catalog: Catalog, clicks: Any, tmp_path: Path
) -> None:
    log = catalog.create_stream_table(f"{clicks.name}_log", {"id": "bigint", "page": "string"})
    counts = catalog.create_stream_table(f"{clicks.name}_counts", {"page": "string", "n": "bigint"}, keys=["page"])
    source = spark.readStream.table(f"streams.{clicks.name}")
    for number in range(2):
        clicks.append([{"id": n, "page": f"p{n % 2}"} for n in range(number, 4)])
        grouped = source.groupBy("page").count().withColumnRenamed("count", "n")
        copy(grouped, tmp_path / "counts", f"streams.{counts.name}", "update")
        copy(source, tmp_path / "log", f"streams.{log.name}")
    assert sorted(tuple(row.values()) for row in counts.to_arrow().to_pylist()) == [("p0", 3), ("p1", 4)]
    forget_commits(tmp_path / "log")
    copy(source, tmp_path / "log", f"streams.{log.name}")
    assert (log.count(), log.position) == (7, 2)
    with pytest.raises(StreamingQueryException, match="is a stream table"):
        copy(grouped, tmp_path / "complete", f"streams.{counts.name}", "complete")
