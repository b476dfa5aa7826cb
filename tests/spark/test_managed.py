"""Tables whose versions the catalog orders, behind a server: every commit of Spark goes through it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headwater import DirectoryNamespace
from headwater.errors import CommitStateUnknownError
from headwater.rest.server import start_in_thread
from headwater.spark.access_file import read_access
from tests.spark.catalogs import learn

KEY = "a-key-for-this-test"


@pytest.fixture(scope="module")
def managed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("managed")
    namespace = DirectoryNamespace(root=str(folder), table_version_management="true")
    server = start_in_thread(namespace, api_key=KEY)
    learn(spark, "managed", uri=server.url, token=KEY)
    spark.sql("CREATE NAMESPACE managed.n")
    yield "managed.n"
    server.stop()


def test_all_kinds_of_commits_are_versions_of_the_catalog(spark: SparkSession, managed: str, tmp_path: Path) -> None:
    spark.sql(f"CREATE TABLE {managed}.t AS SELECT id, 0 AS n FROM range(100)")
    spark.sql(f"INSERT INTO {managed}.t VALUES (100, 0)")
    spark.sql(f"UPDATE {managed}.t SET n = 1 WHERE id < 10")
    spark.sql(f"DELETE FROM {managed}.t WHERE id = 50")
    spark.sql(
        f"MERGE INTO {managed}.t t USING (SELECT 5L AS id UNION ALL SELECT 500L) s ON t.id = s.id "
        "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, n) VALUES (s.id, 7)"
    )
    spark.sql(f"CALL managed.system.create_index('{managed}.t', 'id', 'BTREE')")
    spark.sql(f"CALL managed.system.compact('{managed}.t')")
    spark.sql(f"ALTER TABLE {managed}.t ADD COLUMN extra STRING")
    query = spark.readStream.table(f"{managed}.t").writeStream.option("checkpointLocation", str(tmp_path / "ck"))
    query.trigger(availableNow=True).toTable(f"{managed}.copy").awaitTermination()
    assert spark.sql(f"SELECT count(*), sum(n) FROM {managed}.t").first() == (100, 16)
    assert spark.sql(f"SELECT count(*), sum(n) FROM {managed}.copy").first() == (100, 16)
    assert spark.sql(f"SELECT count(*) FROM {managed}.t VERSION AS OF 2").first() == (101,)


def test_a_write_whose_commit_is_not_answered_is_unknown_and_not_a_conflict(
    spark: SparkSession, managed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.sql(f"CREATE TABLE {managed}.dark AS SELECT id FROM range(10)")

    def silent(self: DirectoryNamespace, request: object) -> None:
        raise CommitStateUnknownError("The store did not answer. It may have landed: look before repeating it.")

    for statement in (f"INSERT INTO {managed}.dark VALUES (1)", f"DELETE FROM {managed}.dark WHERE id % 2 = 1"):
        with monkeypatch.context() as patched:
            patched.setattr(DirectoryNamespace, "create_table_version", silent)
            with pytest.raises(Exception, match="may have landed"):
                spark.sql(statement)
        assert spark.sql(f"SELECT count(*) FROM {managed}.dark").first() == (10,)


@pytest.mark.long  # every kind of commit to such a catalog is above, to a partitioned table in test_partitions.py
def test_a_partitioned_table_lives_through_all_kinds_of_commits(
    spark: SparkSession, managed: str, tmp_path: Path
) -> None:
    spark.sql(f"CREATE TABLE {managed}.p PARTITIONED BY (k) AS SELECT id, id % 4 AS k FROM range(100)")
    spark.sql(f"INSERT INTO {managed}.p VALUES (100, 0)")
    spark.sql(f"UPDATE {managed}.p SET k = 7 WHERE id < 8")
    spark.sql(f"CALL managed.system.compact('{managed}.p')")
    spark.createDataFrame([(1000, 3)], "id BIGINT, k BIGINT").writeTo(f"{managed}.p").overwritePartitions()
    spark.sql(f"CREATE TABLE {managed}.q (id BIGINT, k BIGINT) PARTITIONED BY (bucket(2, k))")
    query = spark.readStream.table(f"{managed}.p").writeStream.option("checkpointLocation", str(tmp_path / "ck"))
    query.trigger(availableNow=True).toTable(f"{managed}.q").awaitTermination()
    for table in (f"{managed}.p", f"{managed}.q"):
        found = [spark.table(table).where(f"k = {k}").count() for k in range(8)]
        assert found == [24, 23, 23, 1, 0, 0, 0, 8]


def test_a_wrong_token_is_refused(spark: SparkSession, managed: str) -> None:
    good = read_access(str(spark.conf.get("spark.sql.catalog.managed.access_file")))["uri"]
    learn(spark, "wrong", uri=good, token="not-the-right-key")
    with pytest.raises(Exception, match=r"(?i)key|token|unauthenticated|credential"):
        spark.sql("SHOW NAMESPACES IN wrong").collect()
