"""Partitioned tables: the same rows as without partitions, and only the fragments that can match are read."""

from __future__ import annotations

import datetime as dt
import json
import random
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import lance
import lancedb
import pyarrow as pa
import pytest
from lance.optimize import Compaction
from pyspark.errors import AnalysisException, IllegalArgumentException, UnsupportedOperationException
from pyspark.sql import DataFrame, SparkSession

from headwater.tables.partitions import PartitionField, field_ids, key_of, parted, parts_of

REGIONS = ["eu", "us", "a/b", "../../x", "%2F", "x=1,y", "Ünï 漢", "", "it's", "r" * 300, None]
ATOMS = (
    "region = '{r}'", "region <> '{r}'", "region > '{r}'", "region <= '{r}'", "region IN ('{r}', 'us')",
    "region IS NULL", "region IS NOT NULL", "region <=> '{r}'", "region LIKE 'e%'", "NOT region = '{r}'",
    "ts >= timestamp'2020-01-0{n}'", "ts < timestamp'2020-01-0{n} 07:00:00'", "ts = timestamp'2020-01-02 03:00:00'",
    "CAST(ts AS DATE) = date'2020-01-0{n}'", "ts IS NULL", "id = {n}", "id IN ({n}, 77, 90)", "id > 50", "id <> {n}",
    "upper(region) = 'EU'", "length(region) > 4", "region = concat('', '{r}')", "v > 20",
)  # fmt: skip


def location(spark: SparkSession, table: str) -> str:
    told = {row.col_name: row.data_type for row in spark.sql(f"DESCRIBE EXTENDED {table}").collect()}
    return unquote(str(told["Location"]).removeprefix("file://"))


def fragments_read(frame: DataFrame) -> int:
    """How many fragments the scans of a query open."""
    leaves = frame._jdf.queryExecution().executedPlan().collectLeaves()
    scans = [leaves.apply(i) for i in range(leaves.size()) if leaves.apply(i).nodeName().startswith("BatchScan")]
    parts = [scan.inputPartitions() for scan in scans]
    return sum(len(json.loads(found.apply(n).json())["fragments"]) for found in parts for n in range(found.size()))


def check_names(uri: str) -> tuple[int, int]:
    """Every file tells the truth about its rows; how many fragments tell their partition, and how many do not."""
    dataset = lance.dataset(uri)
    known = unknown = 0
    names = {id: name for name, id in field_ids(dataset).items()}
    for fragment in dataset.get_fragments():
        parts = [part for part in parts_of(fragment.metadata) if part.field in names]
        known, unknown = (known + 1, unknown) if parts else (known, unknown + 1)
        for part in parts:
            wanted = [(part.field, PartitionField(names[part.field], part.transform, part.width))]
            [(key, _)] = parted(fragment.to_table(columns=[names[part.field]]), wanted)
            assert key == key_of(fragment.metadata, wanted)
    return known, unknown


def rows(frame: DataFrame) -> list[str]:
    return sorted(map(str, frame.collect()))


@pytest.fixture(scope="module")
def twins(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    chance = random.Random(11)
    start = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    times = [None, *(start + dt.timedelta(hours=hours) for hours in range(-30, 99))]
    values = [(n, chance.choice(REGIONS), chance.choice(times), float(n % 40)) for n in range(120)]
    columns = "id BIGINT, region STRING, ts TIMESTAMP, v DOUBLE"
    spark.createDataFrame(values, columns).writeTo("lake.t.plain").create()
    plain = spark.table("lake.t.plain")
    spark.sql(f"CREATE TABLE lake.t.parted ({columns}) PARTITIONED BY (region, days(ts), bucket(3, id))")
    plain.where("id < 60").writeTo("lake.t.parted").append()
    plain.where("id >= 60").writeTo("lake.t.parted").append()
    return spark.table("lake.t.parted"), plain


@pytest.mark.parametrize("joined", [3, pytest.param(12, marks=pytest.mark.long)])
def test_random_filters_find_what_they_find_without_partitions(
    spark: SparkSession, twins: tuple[DataFrame, DataFrame], joined: int
) -> None:
    ours, theirs = twins
    chance = random.Random(5)

    def atom() -> str:
        return chance.choice(ATOMS).format(r=str(chance.choice(REGIONS)).replace("'", "''"), n=chance.randint(1, 6))

    predicates = [each.format(r="eu", n=3) for each in ATOMS]
    predicates += [f"({atom()}) {chance.choice(['AND', 'OR', 'AND NOT'])} ({atom()})" for _ in range(joined)]
    predicates += [f"NOT ({atom()} {chance.choice(['AND', 'OR'])} {atom()})" for _ in range(joined // 2)]
    judged = theirs.selectExpr("*", *[f"coalesce({each}, false) AS ok{n}" for n, each in enumerate(predicates)])
    known = [(str(row[:4]), row[4:]) for row in map(tuple, judged.collect())]
    total, skipped = fragments_read(ours), 0
    for number, predicate in enumerate(predicates):
        expected = sorted(row for row, verdicts in known if verdicts[number])
        frame = ours.where(predicate)
        assert sorted(str(tuple(row)) for row in frame.collect()) == expected, predicate
        if number % 4 == 0:
            assert frame.count() == len(expected), predicate
        skipped += fragments_read(frame) < total
    assert skipped > len(predicates) // 2


def test_hostile_values_stay_in_the_data_folder_and_every_file_tells_the_truth(
    spark: SparkSession, twins: tuple[DataFrame, DataFrame]
) -> None:
    uri = location(spark, "lake.t.parted")
    known, unknown = check_names(uri)
    assert known > 100
    assert unknown == 0
    files = list((Path(uri) / "data").rglob("*"))
    assert len(files) == known
    assert all(path.is_file() and len(path.name) < 250 and path.parent.name == "data" for path in files)


def test_a_partition_is_read_without_opening_the_files_of_others(spark: SparkSession, ns: str) -> None:
    spark.range(90).selectExpr("id", "id % 3 AS k", "id % 2 AS z").writeTo(f"{ns}.t").partitionedBy("k").create()
    for path in (Path(location(spark, f"{ns}.t")) / "data").iterdir():
        if ".1i-i2." not in path.name:
            path.unlink()
    table = spark.table(f"{ns}.t")
    assert fragments_read(table.where("k = 2")) == 1
    assert table.where("k = 2").agg({"id": "sum"}).collect()[0] == (sum(range(2, 90, 3)),)
    assert table.where("k > 1 AND z = 0").count() == 15
    assert table.where("k IN (0, 1)").count() == 60  # counted from the manifest
    assert table.where("k = 7").collect() == []
    spark.sql(f"DELETE FROM {ns}.t WHERE k = 0")
    spark.sql(f"INSERT INTO {ns}.t REPLACE WHERE k = 1 SELECT 1L, 1L, 1L")
    assert spark.sql(f"SELECT k, count(*) FROM {ns}.t GROUP BY k ORDER BY k").collect() == [(1, 1), (2, 30)]
    spark.sql(f"DELETE FROM {ns}.t WHERE k = 2 AND z = 0")
    assert spark.table(f"{ns}.t").count() == 16


@pytest.mark.long
def test_rows_and_columns_other_clients_write_are_never_skipped(spark: SparkSession, ns: str, tmp_path: Path) -> None:
    spark.sql(f"CREATE TABLE {ns}.t (id BIGINT, k STRING) PARTITIONED BY (k)")
    spark.range(40).selectExpr("id", "concat('k', id % 4)").toDF("id", "k").writeTo(f"{ns}.t").append()
    uri = location(spark, f"{ns}.t")

    def check(k: str, count: int) -> None:
        assert spark.sql(f"SELECT * FROM {ns}.t WHERE k = '{k}'").count() == count
        assert len(spark.sql(f"SELECT * FROM {ns}.t WHERE k = '{k}'").collect()) == count
        assert spark.sql(f"SELECT * FROM {ns}.t WHERE concat(k, '') = '{k}'").count() == count

    (tmp_path / "t.lance").symlink_to(uri)
    table = lancedb.connect(tmp_path).open_table("t")
    table.add([{"id": 100, "k": "k1"}])
    check("k1", 11)
    table.update(where="id < 8", values={"k": "k9"})
    check("k1", 9)
    check("k9", 8)
    dataset = lance.dataset(uri)
    fragment = next(f for f in dataset.get_fragments() if f.to_table()["k"][0].as_py() == "k2")
    ids: Any = fragment.scanner(columns=["id"], with_row_id=True).to_table()["_rowid"]
    changed, fields = fragment.update_columns(pa.table({"_rowid": ids, "k": ["k8"] * len(ids)}))
    operation = lance.LanceOperation.Update(updated_fragments=[changed], fields_modified=fields)
    lance.LanceDataset.commit(dataset.uri, operation, read_version=dataset.version)
    check("k8", 8)
    check("k2", 0)
    dataset = lance.dataset(uri)
    dataset.delete("id = 100")
    plan = Compaction.plan(dataset, {"target_rows_per_fragment": 20})
    Compaction.commit(dataset, [task.execute(dataset) for task in plan.tasks])
    check("k9", 8)
    check("k3", 8)
    check_names(uri)
    table.checkout_latest()
    assert table.count_rows("k = 'k9'") == 8
    table.optimize(cleanup_older_than=dt.timedelta(milliseconds=1))
    spark.sql(f"CALL lake.system.cleanup('{ns}.t', 0, true)")
    lance.dataset(uri).validate()
    check("k1", 8)
    shown = [row.partition for row in spark.sql(f"SHOW PARTITIONS {ns}.t").collect()]
    assert shown == ["k=k0", "k=k1", "k=k3", "k=k8", "k=k9"]


@pytest.mark.long
def test_updated_and_merged_rows_go_to_their_partition_and_keep_their_ids(spark: SparkSession, ns: str) -> None:
    spark.sql(f"CREATE TABLE {ns}.t PARTITIONED BY (k, bucket(2, id)) AS SELECT id, id % 4 AS k, 0 AS n FROM range(40)")
    before = dict(map(tuple, spark.sql(f"SELECT id, _rowid FROM {ns}.t").collect()))
    spark.sql(f"UPDATE {ns}.t SET k = 9 - k WHERE id < 10")
    spark.sql(
        f"MERGE INTO {ns}.t t USING (SELECT id, id % 5 AS k FROM range(30, 50)) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET k = s.k WHEN NOT MATCHED THEN INSERT (id, k, n) VALUES (s.id, s.k, 1)"
    )
    uri = location(spark, f"{ns}.t")
    assert check_names(uri)[1] == 0
    after = dict(map(tuple, spark.sql(f"SELECT id, _rowid FROM {ns}.t").collect()))
    assert {id: after[id] for id in before} == before
    expected = [9 - n % 4 if n < 10 else n % 5 if n >= 30 else n % 4 for n in range(50)]
    assert [row.k for row in spark.sql(f"SELECT k FROM {ns}.t ORDER BY id").collect()] == expected
    for k in range(10):
        assert spark.table(f"{ns}.t").where(f"k = {k}").count() == expected.count(k)


def test_compaction_keeps_partitions_apart(spark: SparkSession, ns: str) -> None:
    spark.sql(f"CREATE TABLE {ns}.t (id BIGINT, k STRING) PARTITIONED BY (k)")
    for start in (0, 30):
        spark.sql(f"INSERT INTO {ns}.t SELECT id, concat('k/', id % 3) FROM range({start}, {start + 30})")
    uri = location(spark, f"{ns}.t")
    lance.dataset(uri).insert(pa.table({"id": [60], "k": ["k/0"]}))
    spark.sql(f"CALL lake.system.create_index('{ns}.t', 'id', 'BTREE')")
    done = spark.sql(f"CALL lake.system.compact('{ns}.t')").collect()[0]
    assert (done.fragments_removed, done.fragments_added) == (6, 3)
    assert check_names(uri) == (3, 1)
    table = spark.table(f"{ns}.t")
    assert fragments_read(table.where("k = 'k/1'")) == 2
    assert table.where("k = 'k/0'").count() == 21
    assert table.where("id = 31").collect() == [(31, "k/1")]
    assert spark.sql(f"CALL lake.system.compact('{ns}.t')").collect()[0].fragments_removed == 0


def test_overwriting_replaces_just_the_partitions_meant(spark: SparkSession, ns: str) -> None:
    spark.sql(f"CREATE TABLE {ns}.t PARTITIONED BY (k) AS SELECT id, concat('k', id % 4) AS k FROM range(40)")
    uri = location(spark, f"{ns}.t")
    lance.dataset(uri).insert(pa.table({"id": [100, 101], "k": ["k1", "k2"]}))

    def counts() -> dict[str, int]:
        return dict(spark.sql(f"SELECT k, count(*) FROM {ns}.t GROUP BY k").collect())

    spark.createDataFrame([(7, "k1"), (8, "k5")], "id BIGINT, k STRING").writeTo(f"{ns}.t").overwritePartitions()
    assert counts() == {"k0": 10, "k1": 1, "k2": 11, "k3": 10, "k5": 1}
    spark.sql(f"INSERT OVERWRITE {ns}.t PARTITION (k = 'k2') SELECT 1L")
    assert counts() == {"k0": 10, "k1": 1, "k2": 1, "k3": 10, "k5": 1}
    spark.sql(f"INSERT INTO {ns}.t REPLACE WHERE k > 'k2' SELECT 1L, 'k3'")
    assert counts() == {"k0": 10, "k1": 1, "k2": 1, "k3": 1}
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        spark.sql(f"INSERT OVERWRITE {ns}.t SELECT 5L, 'k0'")
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    assert counts() == {"k0": 1, "k1": 1, "k2": 1, "k3": 1}
    spark.sql(f"INSERT OVERWRITE {ns}.t SELECT 5L, 'k0'")
    assert counts() == {"k0": 1}


def test_a_stream_reads_and_writes_partitioned_tables(spark: SparkSession, ns: str, tmp_path: Path) -> None:
    spark.sql(f"CREATE TABLE {ns}.src PARTITIONED BY (k) AS SELECT id, id % 3 AS k FROM range(30)")
    spark.sql(f"CREATE TABLE {ns}.dst (id BIGINT, k BIGINT) PARTITIONED BY (k)")
    for start in (30, 60):
        spark.range(start, start + 30).selectExpr("id", "id % 3 AS k").writeTo(f"{ns}.src").append()
        stream = spark.readStream.table(f"{ns}.src").where("k <> 1").writeStream
        query = stream.option("checkpointLocation", str(tmp_path / "ck")).trigger(availableNow=True)
        query.toTable(f"{ns}.dst").awaitTermination()
    assert sorted(spark.sql(f"SELECT k, count(*) FROM {ns}.dst GROUP BY k").collect()) == [(0, 30), (2, 30)]
    assert check_names(location(spark, f"{ns}.dst"))[1] == 0
    assert fragments_read(spark.table(f"{ns}.dst").where("k = 0")) * 2 == fragments_read(spark.table(f"{ns}.dst"))


@pytest.mark.long
def test_partitions_are_described_renamed_replaced_and_travelled_to(spark: SparkSession, ns: str) -> None:
    spark.sql(
        f"CREATE TABLE {ns}.t (s STRING, d DATE, ts TIMESTAMP_NTZ) "
        "PARTITIONED BY (truncate(2, s), months(d), hours(ts), years(ts), d)"
    )
    told = {row.col_name: row.data_type for row in spark.sql(f"DESCRIBE {ns}.t").collect()}
    assert [told[f"Part {n}"] for n in range(5)] == ["truncate(2, s)", "months(d)", "hours(ts)", "years(ts)", "d"]
    spark.sql(
        f"INSERT INTO {ns}.t VALUES ('abc', date'2020-02-03', timestamp_ntz'2020-01-01 10:30:00'), "
        "('abd', date'1969-02-03', timestamp_ntz'1969-12-31 23:30:00'), ('b', NULL, NULL)"
    )
    spark.sql(f"ALTER TABLE {ns}.t RENAME COLUMN s TO name")
    spark.sql(f"INSERT INTO {ns}.t VALUES ('abz', NULL, NULL)")
    now = spark.table(f"{ns}.t")
    for filter, fragments, count in [
        ("name LIKE 'ab%'", 3, 3), ("name = 'b'", 1, 1), ("d < date'1970-01-01'", 1, 1), ("d IS NULL", 2, 2),
        ("ts >= timestamp_ntz'1970-01-01 00:00:00'", 1, 1), ("name > 'abc'", 4, 3),
    ]:  # fmt: skip
        assert (fragments_read(now.where(filter)), now.where(filter).count()) == (fragments, count), filter
    assert spark.sql(f"SELECT count(*) FROM {ns}.t VERSION AS OF 2 WHERE s LIKE 'ab%'").collect()[0] == (2,)
    shown = [row.partition for row in spark.sql(f"SHOW PARTITIONS {ns}.t").collect()]
    assert len(shown) == 4
    assert shown[2] == "name_truncate=ab/d_months=null/ts_hours=null/ts_years=null/d=null"
    assert shown[1] == "name_truncate=ab/d_months=2020-02/ts_hours=2020-01-01T10/ts_years=2020/d=2020-02-03"
    assert spark.sql(f"SHOW PARTITIONS {ns}.t PARTITION (name_truncate = 'b')").count() == 1
    spark.sql(f"CREATE OR REPLACE TABLE {ns}.t PARTITIONED BY (x) AS SELECT 1 AS y, id % 2 AS x FROM range(10)")
    assert fragments_read(spark.table(f"{ns}.t").where("x = 1")) == 1
    with pytest.raises(UnsupportedOperationException, match="DELETE FROM"):
        spark.sql(f"ALTER TABLE {ns}.t DROP PARTITION (x = 1)")
    assert spark.sql(f"SELECT count(*) FROM {ns}.t VERSION AS OF 2").collect()[0] == (3,)


def test_a_join_skips_partitions_when_it_runs(spark: SparkSession, ns: str, tmp_path: Path) -> None:
    spark.range(200).selectExpr("id", "id % 20 AS k").writeTo(f"{ns}.t").partitionedBy("k").create()
    spark.range(20).selectExpr("id AS k", "id % 10 AS x").write.parquet(str(tmp_path / "side"))
    side = spark.read.parquet(str(tmp_path / "side")).where("x = 3")
    joined = spark.table(f"{ns}.t").join(side, "k").selectExpr("count(*)", "sum(id)")
    assert joined.collect() == [(20, 1960)]
    plan = joined._jdf.queryExecution().executedPlan().toString()
    assert "dynamicpruning" in plan


def test_what_cannot_be_partitioned_is_said(spark: SparkSession, ns: str) -> None:
    with pytest.raises(IllegalArgumentException, match="identity of 'f'"):
        spark.sql(f"CREATE TABLE {ns}.t (f DOUBLE) PARTITIONED BY (f)")
    with pytest.raises(IllegalArgumentException, match="blob columns"):
        spark.sql(f"CREATE TABLE {ns}.t (k INT, b BINARY) PARTITIONED BY (k) TBLPROPERTIES ('blob.b' = 'true')")
    with pytest.raises(AnalysisException):
        spark.sql(f"CREATE TABLE {ns}.t (k INT) PARTITIONED BY (missing)")
    assert spark.sql(f"SHOW TABLES IN {ns}").count() == 0
