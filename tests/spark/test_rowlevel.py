"""MERGE, UPDATE and DELETE leave exactly the rows that the same statements leave on Parquet (facts.md: the trap)."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest
from pyspark.errors import IllegalArgumentException
from pyspark.sql import DataFrame, SparkSession

SEEDS = (1, 2, 3)


def twin(spark: SparkSession, ns: str, folder: Path, seed: int) -> tuple[str, DataFrame]:
    """The same random rows as a Lance table, in several fragments, and as Parquet."""
    chance = random.Random(seed)
    frame = spark.createDataFrame(
        [
            (key, chance.choice(["a", "b", "c", None]), chance.choice([None, chance.randint(-5, 5)]), chance.random())
            for key in range(400)
        ],
        "id BIGINT, kind STRING, n INT, x DOUBLE",
    )
    frame.write.parquet(str(folder / "twin"))
    spark.sql(f"CREATE TABLE {ns}.t (id BIGINT, kind STRING, n INT, x DOUBLE)")
    for part in range(3):
        spark.read.parquet(str(folder / "twin")).where(f"id % 3 = {part}").coalesce(1).writeTo(f"{ns}.t").append()
    return f"{ns}.t", spark.read.parquet(str(folder / "twin"))


def same(ours: DataFrame, theirs: DataFrame) -> None:
    assert sorted(map(repr, ours.collect())) == sorted(map(repr, theirs.select(*ours.columns).collect()))


@pytest.mark.parametrize("seed", SEEDS)
def test_update_changes_the_rows_that_match_and_no_other(
    spark: SparkSession, ns: str, tmp_path: Path, seed: int
) -> None:
    table, expected = twin(spark, ns, tmp_path, seed)
    spark.sql(f"UPDATE {table} SET n = coalesce(n, 0) + 1, kind = 'u' WHERE x < 0.3 OR kind = 'a'")
    chosen = "coalesce(x < 0.3 OR kind = 'a', false)"
    expected = expected.selectExpr(
        "id", f"if({chosen}, 'u', kind) AS kind", f"if({chosen}, coalesce(n, 0) + 1, n) AS n", "x"
    )
    same(spark.table(table), expected)


@pytest.mark.parametrize(
    ("seed", "condition"),
    [
        (1, "n > 0"),
        (1, "kind = 'a' AND n IS NULL"),
        (2, "n * 2 + 1 > 3"),
        (3, "id IN (SELECT id FROM chosen)"),
        (3, "true"),
    ],
)
def test_delete_takes_the_rows_that_match_and_no_other(
    spark: SparkSession, ns: str, tmp_path: Path, seed: int, condition: str
) -> None:
    table, expected = twin(spark, ns, tmp_path, seed)
    spark.range(0, 400, 7).createOrReplaceTempView("chosen")
    expected.createOrReplaceTempView("before")
    left = spark.sql(f"SELECT * FROM before EXCEPT ALL SELECT * FROM before WHERE {condition}")
    spark.sql(f"DELETE FROM {table} WHERE {condition}")
    same(spark.table(table), left)


@pytest.mark.parametrize("seed", SEEDS)
def test_merge_updates_deletes_and_inserts_as_it_says(spark: SparkSession, ns: str, tmp_path: Path, seed: int) -> None:
    table, expected = twin(spark, ns, tmp_path, seed)
    chance = random.Random(seed)
    source = [(key, chance.choice(["a", "new"]), chance.random()) for key in chance.sample(range(600), 200)]
    spark.createDataFrame(source, "id BIGINT, kind STRING, x DOUBLE").createOrReplaceTempView("source")
    spark.sql(
        f"""MERGE INTO {table} t USING source s ON t.id = s.id
            WHEN MATCHED AND s.x < 0.2 THEN DELETE
            WHEN MATCHED THEN UPDATE SET kind = s.kind, x = s.x
            WHEN NOT MATCHED AND s.x < 0.9 THEN INSERT (id, kind, x) VALUES (s.id, s.kind, s.x)
            WHEN NOT MATCHED BY SOURCE AND t.kind = 'b' THEN UPDATE SET n = 99
            WHEN NOT MATCHED BY SOURCE AND t.kind = 'c' THEN DELETE"""
    )
    expected.createOrReplaceTempView("before")
    wanted = spark.sql(
        """SELECT t.id, s.kind, t.n, s.x FROM before t JOIN source s ON t.id = s.id WHERE NOT s.x < 0.2
           UNION ALL SELECT s.id, s.kind, CAST(NULL AS INT), s.x
               FROM source s LEFT ANTI JOIN before t ON t.id = s.id WHERE s.x < 0.9
           UNION ALL SELECT t.id, t.kind, if(t.kind <=> 'b', 99, t.n), t.x
               FROM before t LEFT ANTI JOIN source s ON t.id = s.id WHERE NOT t.kind <=> 'c'"""
    )
    same(spark.table(table), wanted)


def test_updated_rows_keep_their_row_ids(spark: SparkSession, ns: str) -> None:
    spark.sql(f"CREATE TABLE {ns}.t AS SELECT id, 0 AS n FROM range(100)")
    before = {row.id: row._rowid for row in spark.sql(f"SELECT id, _rowid FROM {ns}.t").collect()}
    spark.sql(f"UPDATE {ns}.t SET n = 1 WHERE id % 7 = 0")
    after = {row.id: row._rowid for row in spark.sql(f"SELECT id, _rowid FROM {ns}.t").collect()}
    assert before == after


def test_a_merge_that_matches_a_row_twice_is_refused_and_changes_nothing(spark: SparkSession, ns: str) -> None:
    spark.sql(f"CREATE TABLE {ns}.t AS SELECT id, 0 AS n FROM range(10)")
    with pytest.raises(Exception, match="MERGE_CARDINALITY_VIOLATION"):
        spark.sql(
            f"MERGE INTO {ns}.t t USING (SELECT 1L AS id UNION ALL SELECT 1L) s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET n = 1"
        )
    assert spark.sql(f"SELECT sum(n) FROM {ns}.t").first() == (0,)


def test_two_sessions_that_count_up_one_row_never_lose_a_step(spark: SparkSession, ns: str) -> None:
    spark.sql(f"CREATE TABLE {ns}.t AS SELECT 0L AS n")
    done: list[int] = []
    refused: list[str] = []

    def count_up(session: SparkSession) -> None:
        for _ in range(6):
            try:
                session.sql(f"UPDATE {ns}.t SET n = n + 1")
                done.append(1)
            except IllegalArgumentException as error:
                refused.append(str(error))

    threads = [threading.Thread(target=count_up, args=(spark.newSession(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) + len(refused) == 12
    assert spark.table(f"{ns}.t").collect() == [(len(done),)]
    assert all("was changed by another writer" in message for message in refused)


def test_two_sessions_that_append_both_have_their_rows(spark: SparkSession, ns: str) -> None:
    spark.sql(f"CREATE TABLE {ns}.t (n BIGINT)")
    failures: list[Exception] = []

    def append(session: SparkSession, start: int) -> None:
        try:
            for turn in range(3):
                session.range(start + turn * 10, start + turn * 10 + 10).toDF("n").writeTo(f"{ns}.t").append()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=append, args=(spark.newSession(), start)) for start in (0, 1000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert spark.sql(f"SELECT count(*), count(DISTINCT n) FROM {ns}.t").first() == (60, 60)
