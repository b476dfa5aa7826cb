"""Stream tables in SQL, the writing side: INSERT upserts what it names, UPDATE, DELETE and MERGE write deltas."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headwater.catalog import Catalog
from headwater.pipeline import ingest
from tests.spark.catalogs import metastore_as


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("writes") / "lake")


@pytest.fixture(scope="module")
def catalog(spark: SparkSession, lake: str) -> Catalog:
    """A metastore catalog that the session knows as `writes`."""
    return metastore_as(spark, "writes", Path(lake))


@pytest.fixture
def people(catalog: Catalog, request: pytest.FixtureRequest) -> Any:
    """A keyed table without a sequence: (1, a, 10), (2, b, 20), (3, c, 30)."""
    name = f"raw.people_{abs(hash(request.node.name)) % 10**8}"
    made = catalog.create_stream_table(name, {"id": "bigint", "name": "string", "n": "int"}, keys=["id"])
    made.upsert([{"id": id, "name": name, "n": id * 10} for id, name in enumerate("abc", 1)])
    return made


@pytest.fixture
def events(catalog: Catalog, request: pytest.FixtureRequest) -> Any:
    """A keyed table with a sequence: 1 and 2, both at 5."""
    name = f"raw.events_{abs(hash(request.node.name)) % 10**8}"
    schema = {"id": "bigint", "at": "bigint", "name": "string"}
    made = catalog.create_stream_table(name, schema, keys=["id"], sequence=["at"])
    made.upsert([{"id": 1, "at": 5, "name": "a"}, {"id": 2, "at": 5, "name": "b"}])
    return made


def state(table: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in table.to_arrow().to_pylist())


def refused(spark: SparkSession, statement: str, match: str) -> None:
    with pytest.raises(Exception, match=match):
        spark.sql(statement)


def test_insert_upserts_whole_rows_and_a_column_list_or_names_are_partial_rows(
    spark: SparkSession, catalog: Catalog, people: Any
) -> None:
    table, slot = f"writes.{people.name}", catalog.slot
    spark.sql(f"INSERT INTO {table} VALUES (1, 'A', NULL), (4, 'd', 40)")
    assert catalog.slot == slot + 1
    assert state(people) == [(1, "A", None), (2, "b", 20), (3, "c", 30), (4, "d", 40)]
    spark.sql(f"INSERT INTO {table} (n, ID) VALUES (21, 2), (50, 5)")
    spark.sql(f"INSERT INTO {table} BY NAME SELECT 'C' AS name, 3L AS id")
    assert state(people)[1:] == [(2, "b", 21), (3, "C", 30), (4, "d", 40), (5, None, 50)]
    refused(spark, f"INSERT INTO {table} VALUES (4, 'D')", "not enough data columns")
    spark.sql("SELECT 1L AS id, 11 AS n").writeTo(table).append()
    spark.sql("SELECT 2L AS id, 'B' AS name").write.mode("append").saveAsTable(table)
    spark.sql("SELECT 5L, 'E', 55").write.insertInto(table)
    spark.sql("SELECT 3L AS id, 33 AS n").write.format("headwater").option("catalog", "writes").mode("append").save(
        people.name
    )
    want = [(1, "A", 11), (2, "B", 21), (3, "C", 33), (4, "d", 40), (5, "E", 55)]
    assert state(people) == want
    assert sorted(tuple(row) for row in spark.table(table).collect()) == want
    people.publish()
    assert (state(people), people.verify()) == (want, [])


def test_few_rows_are_one_position_in_however_many_tasks_spark_divides_them(
    spark: SparkSession, catalog: Catalog, people: Any, tmp_path: Path
) -> None:
    table = f"writes.{people.name}"
    spark.sql(f"INSERT INTO {table} SELECT id, 'a', 1 FROM range(1, 7, 1, 3)")
    assert people.position == 2
    spark.sql(f"UPDATE {table} SET n = n + 1")
    spark.sql(f"DELETE FROM {table} WHERE id > 4")
    assert people.position == 4
    ingest(spark, "writes", people.name, spark.range(5, 9, 1, 4).selectExpr("id", "'b' AS name"))
    assert people.position == 5
    spark.range(7, 11, 1, 3).selectExpr("id", "'c' AS name").write.parquet(str(tmp_path / "in"))
    frame = spark.readStream.schema("id BIGINT, name STRING").parquet(str(tmp_path / "in"))
    writer = frame.repartition(3).writeStream.option("checkpointLocation", str(tmp_path / "at"))
    writer.trigger(availableNow=True).toTable(table).awaitTermination()
    assert people.position == 6
    names = "aaaabbcccc"
    assert state(people) == [(id, names[id - 1], 2 if id < 5 else None) for id in range(1, 11)]
    rows = spark.sql(f"SELECT id, n FROM {table} VERSION AS OF 2 WHERE n = 1").collect()
    assert sorted(row.id for row in rows) == [1, 2, 3, 4, 5, 6]
    spark.sql(
        "CREATE TABLE writes.raw.few USING stream TBLPROPERTIES ('keys' = 'id') AS SELECT * FROM range(0, 4, 1, 2)"
    )
    assert catalog["raw.few"].position == 1


def test_insert_refuses_what_cannot_stand_and_writes_nothing(spark: SparkSession, people: Any, events: Any) -> None:
    table, position = f"writes.{people.name}", people.position
    refused(spark, f"INSERT INTO {table} (name, n) VALUES ('x', 1)", "id")
    refused(spark, f"INSERT INTO {table} VALUES (NULL, 'x', 1)", "id|NULL")
    for statement in (f"INSERT OVERWRITE {table} VALUES (9, 'x', 1)", f"TRUNCATE TABLE {table}"):
        refused(spark, statement, "is a stream table.*INSERT, UPDATE, DELETE and MERGE")
    refused(spark, f"CREATE OR REPLACE TABLE {table} AS SELECT 1 AS id", "would lose its log")
    people.publish()
    refused(spark, f"CALL writes.system.rollback('{people.name}', 1)", "is a stream table.*system.undo")
    assert people.position == position
    other = f"writes.{events.name}"
    refused(spark, f"INSERT INTO {other} VALUES (7, 9, 'x'), (1, 4, 'late')", "id = 1 would be late")
    refused(spark, f"INSERT INTO {other} (id, name) VALUES (1, 'x')", "at")
    assert state(events) == [(1, 5, "a"), (2, 5, "b")]
    spark.sql(f"INSERT INTO {other} VALUES (1, 8, 'new'), (1, 6, 'older'), (3, 1, 'c')")
    assert state(events) == [(1, 8, "new"), (2, 5, "b"), (3, 1, "c")]


def test_a_session_without_the_rules_cannot_tell_which_columns_are_given_and_says_so(
    spark: SparkSession, people: Any
) -> None:
    """The option that the rules add is what a write goes by: without it no column is filled with NULL."""
    jvm: Any = spark._jvm
    manager = spark._jsparkSession.sessionState().catalogManager()
    *names, last = people.name.split(".")
    ident = jvm.org.apache.spark.sql.connector.catalog.Identifier.of(_texts(spark, names), last)
    table = manager.catalog("writes").loadTable(ident)
    options = jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap.empty()
    empty = jvm.java.util.Optional.empty()
    write = jvm.org.apache.spark.sql.connector.write
    info = write.LogicalWriteInfoImpl("q", table.schema(), options, empty, empty)
    with pytest.raises(Exception, match="cannot tell which columns"):
        table.newWriteBuilder(info).build().toBatch()


def _texts(spark: SparkSession, names: list[str]) -> Any:
    gateway: Any = spark.sparkContext._gateway
    array = gateway.new_array(gateway.jvm.java.lang.String, len(names))
    for index, name in enumerate(names):
        array[index] = name
    return array


@pytest.mark.parametrize("is_published", [pytest.param(False, marks=pytest.mark.long), True])
def test_update_and_delete_write_deltas(spark: SparkSession, catalog: Catalog, people: Any, is_published: bool) -> None:
    table = f"writes.{people.name}"
    if is_published:
        people.publish()
    slot = catalog.slot
    spark.sql(f"UPDATE {table} SET n = n + 1, name = upper(name) WHERE id < 3")
    assert catalog.slot == slot + 1
    assert state(people) == [(1, "A", 11), (2, "B", 21), (3, "c", 30)]
    spark.sql(f"DELETE FROM {table} WHERE id = 1 OR length(name) > 7")
    spark.sql(f"DELETE FROM {table} WHERE id IN (SELECT id + 1 FROM {table} WHERE n = 21)")
    assert state(people) == [(2, "B", 21)]
    position = people.position
    spark.sql(f"DELETE FROM {table} WHERE id = 77")
    spark.sql(f"UPDATE {table} SET n = 1 WHERE id = 77")
    assert people.position == position
    people.publish()
    assert people.verify() == []
    spark.sql(f"DELETE FROM {table}")
    assert (state(people), people.deltas()[-1].type) == ([], "delete")


def test_an_update_of_the_key_moves_the_row_and_never_onto_another(spark: SparkSession, people: Any) -> None:
    table = f"writes.{people.name}"
    spark.sql(f"UPDATE {table} SET id = 9, n = 0 WHERE id = 1")
    assert state(people) == [(2, "b", 20), (3, "c", 30), (9, "a", 0)]
    refused(spark, f"UPDATE {table} SET id = 3 WHERE id = 2", "has a row with id = 3 already")
    refused(spark, f"UPDATE {table} SET id = 8", "Two rows of the statement have id = 8")
    spark.sql(f"UPDATE {table} SET id = 5 - id WHERE id < 9")
    assert state(people) == [(2, "c", 30), (3, "b", 20), (9, "a", 0)]


def test_merge_updates_deletes_and_inserts_in_one_transaction(
    spark: SparkSession, catalog: Catalog, people: Any
) -> None:
    table = f"writes.{people.name}"
    people.publish()
    spark.sql("SELECT * FROM VALUES (1L, 'x'), (2L, NULL), (7L, 'y') AS v(id, name)").createOrReplaceTempView("source")
    slot = catalog.slot
    spark.sql(
        f"MERGE INTO {table} t USING source s ON t.id = s.id WHEN MATCHED AND s.name IS NULL THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET name = s.name WHEN NOT MATCHED THEN INSERT (id, name) VALUES (s.id, s.name) "
        "WHEN NOT MATCHED BY SOURCE THEN UPDATE SET n = -1"
    )
    assert catalog.slot == slot + 1
    assert state(people) == [(1, "x", 10), (3, "c", -1), (7, "y", None)]
    merge = f"MERGE INTO {table} t USING source s ON t.id = s.id WHEN NOT MATCHED THEN INSERT (id, n) VALUES (s.id, 0)"
    spark.sql(merge)
    assert state(people) == [(1, "x", 10), (2, None, 0), (3, "c", -1), (7, "y", None)]
    merge = f"MERGE INTO {table} t USING source s ON t.id = s.id + 90 WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)"
    refused(spark, merge, "has a row with id = . already")
    people.publish()
    assert people.verify() == []


def test_statements_take_the_sequence_of_the_row_they_saw_unless_a_higher_one_is_set(
    spark: SparkSession, events: Any
) -> None:
    table = f"writes.{events.name}"
    spark.sql(f"UPDATE {table} SET name = 'A' WHERE id = 1")
    assert state(events) == [(1, 5, "A"), (2, 5, "b")]
    spark.sql(f"UPDATE {table} SET name = 'AA', at = at + 1 WHERE id = 1")
    refused(spark, f"UPDATE {table} SET at = 1", "would be late")
    assert state(events) == [(1, 6, "AA"), (2, 5, "b")]
    spark.sql(f"DELETE FROM {table} WHERE id = 1")
    refused(spark, f"INSERT INTO {table} VALUES (1, 5, 'x')", "id = 1 would be late")
    spark.sql(f"INSERT INTO {table} VALUES (1, 6, 'back')")
    assert state(events) == [(1, 6, "back"), (2, 5, "b")]


def test_a_statement_on_a_table_that_is_ordered_by_a_log_position_must_give_one(
    spark: SparkSession, catalog: Catalog
) -> None:
    schema = {"id": "bigint", "_lsn": "bigint", "n": "int"}
    made = catalog.create_stream_table("raw.sourced", schema, keys=["id"], sequence=["_lsn"])
    made.upsert([{"id": 1, "_lsn": 5, "n": 1}])
    for statement in ("UPDATE {} SET n = 2", "DELETE FROM {} WHERE id = 1"):
        refused(spark, statement.format("writes.raw.sourced"), "positions of its source's log")
    spark.sql("UPDATE writes.raw.sourced SET n = 2, _lsn = 6")
    assert state(made) == [(1, 6, 2)]


def test_a_row_beyond_the_lateness_cannot_be_changed_without_a_newer_sequence(
    spark: SparkSession, catalog: Catalog
) -> None:
    made = catalog.create_stream_table(
        "raw.old", {"id": "bigint", "at": "int"}, keys=["id"], sequence=["at"], properties={"lateness": "10"}
    )
    made.upsert([{"id": 1, "at": 1}])
    made.upsert([{"id": 2, "at": 100}])
    refused(spark, "DELETE FROM writes.raw.old WHERE id = 1", "lateness allows")
    spark.sql("DELETE FROM writes.raw.old WHERE id = 2")
    spark.sql("UPDATE writes.raw.old SET at = 95 WHERE id = 1")
    assert state(made) == [(1, 95)]


@pytest.fixture
def landing(spark: SparkSession, lake: str) -> Callable[[str], None]:
    """`landed(n)` in SQL: n, after a row with id 99 has landed in the table, while the statement runs."""

    def register(name: str) -> None:
        def landed(n: int) -> int:
            from headwater.catalog import Catalog

            Catalog(lake, impl="metastore")[name].upsert([{"id": 99}])
            return n

        spark.udf.register("landed", landed, "int")

    return register


def test_a_statement_conflicts_with_what_landed_after_it_read(
    spark: SparkSession, people: Any, landing: Callable[[str], None]
) -> None:
    table = f"writes.{people.name}"
    landing(people.name)
    refused(spark, f"UPDATE {table} SET n = landed(n) WHERE id = 2", "was changed by another writer.*again")
    assert state(people) == [(1, "a", 10), (2, "b", 20), (3, "c", 30), (99, None, None)]
    spark.sql(f"INSERT INTO {table} SELECT 4L, 'd', landed(40)")  # has not read the table: others may land
    assert state(people)[3] == (4, "d", 40)


def test_keyless_tables_refuse_to_change_rows(spark: SparkSession, catalog: Catalog) -> None:
    log = catalog.create_stream_table("raw.log", {"id": "bigint", "page": "string"})
    spark.sql("INSERT INTO writes.raw.log (id) VALUES (1), (2)")
    spark.sql("SELECT 9L AS id").createOrReplaceTempView("given")
    for statement in (
        "DELETE FROM writes.raw.log WHERE id = 1",
        "DELETE FROM writes.raw.log",
        "UPDATE writes.raw.log SET page = 'x'",
        "MERGE INTO writes.raw.log t USING given g ON t.id = g.id WHEN MATCHED THEN DELETE",
        "INSERT OVERWRITE writes.raw.log VALUES (1, 'x')",
        "TRUNCATE TABLE writes.raw.log",
    ):
        refused(spark, statement, "stream table without keys.*INSERT appends")
    assert state(log) == [(1, None), (2, None)]


def test_a_task_that_fails_half_way_leaves_nothing(spark: SparkSession, people: Any) -> None:
    table, position = f"writes.{people.name}", people.position
    broken = "IF(id = 900, CAST(raise_error('broken') AS INT), 1)"
    refused(spark, f"INSERT INTO {table} SELECT id, 'x', {broken} FROM range(0, 1000, 1, 2)", "broken")
    people.upsert([{"id": 900}])
    refused(spark, f"UPDATE {table} SET n = {broken}", "broken")
    assert (people.position, people.count()) == (position + 1, 4)


def test_alter_table_evolves_and_statements_follow(spark: SparkSession, people: Any) -> None:
    table = f"writes.{people.name}"
    spark.sql(f"ALTER TABLE {table} ADD COLUMN note STRING")
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN n TO number")
    spark.sql(f"ALTER TABLE {table} ALTER COLUMN number TYPE BIGINT")
    spark.sql(f"UPDATE {table} SET number = number << 40, note = 'big' WHERE id = 1")
    spark.sql(f"INSERT INTO {table} (id, note) VALUES (2, 'new')")
    assert state(people) == [(1, "a", 10 << 40, "big"), (2, "b", 20, "new"), (3, "c", 30, None)]
    spark.sql(f"ALTER TABLE {table} DROP COLUMN note")
    spark.sql(f"ALTER TABLE {table} ADD COLUMN note STRING")
    assert [row[3] for row in state(people)] == [None, None, None]
    refused(spark, f"ALTER TABLE {table} ALTER COLUMN number TYPE INT", "INT|int")
    refused(spark, f"ALTER TABLE {table} DROP COLUMN id", "keys or the sequence")


def test_derived_columns_are_not_set_and_do_not_hinder(spark: SparkSession, catalog: Catalog) -> None:
    derived = {"column.minus": '{"function": "operator:neg", "inputs": ["n"], "type": "int64", "version": "1"}'}
    made = catalog.create_stream_table("raw.derived", {"id": "bigint", "n": "int"}, keys=["id"], properties=derived)
    spark.sql("INSERT INTO writes.raw.derived (id, n) VALUES (1, 1)")
    spark.sql("UPDATE writes.raw.derived SET n = 2")
    refused(spark, "UPDATE writes.raw.derived SET minus = 2", "minus.*is derived from others")
    refused(spark, "INSERT INTO writes.raw.derived (id, minus) VALUES (1, 1)", "'minus'")
    merge = "MERGE INTO writes.raw.derived t USING (SELECT {} AS id, 3 AS n, 7L AS minus) s ON t.id = s.id WHEN "
    for id, given in (
        (1, "MATCHED THEN UPDATE SET n = s.n, minus = s.minus"),
        (1, "MATCHED THEN UPDATE SET *"),
        (5, "NOT MATCHED THEN INSERT *"),
        (5, "NOT MATCHED THEN INSERT (id, minus) VALUES (s.id, 9)"),
        (5, "MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, n, minus) VALUES (s.id, s.n, s.minus)"),
    ):
        refused(spark, merge.format(id) + given, "minus.*is derived from others.*without it")
    assert state(made) == [(1, 2, None)]
    both = "MATCHED THEN UPDATE SET n = s.n WHEN NOT MATCHED THEN INSERT (id, n) VALUES (s.id, s.n)"
    spark.sql(merge.format(1) + both)
    spark.sql(merge.format(5) + both)
    spark.sql(merge.format(6) + "NOT MATCHED THEN INSERT (id, n) VALUES (s.id, s.n)")
    assert state(made) == [(1, 3, None), (5, 3, None), (6, 3, None)]
    spark.sql("INSERT INTO writes.raw.derived VALUES (5, 4), (7, 4)")
    refused(spark, "INSERT INTO writes.raw.derived VALUES (9)", "not enough data columns")
    refused(spark, "INSERT INTO writes.raw.derived VALUES (9, 9, 9)", "'minus'")
    assert state(made)[1:] == [(5, 4, None), (6, 3, None), (7, 4, None)]
    spark.sql(
        "CREATE TABLE writes.raw.log_of (n INT) USING stream TBLPROPERTIES ('column.minus' = '{}')".format(
            *derived.values()
        )
    )
    spark.sql("INSERT INTO writes.raw.log_of SELECT n FROM writes.raw.derived WHERE id < 6")
    spark.sql("CALL writes.system.publish('raw.log_of')")
    assert state(catalog["raw.log_of"]) == [(3, -3), (4, -4)]


def test_collect_drops_what_no_reader_needs(spark: SparkSession, people: Any) -> None:
    people.set_properties({"log_retention": "0 days"})
    people.publish()
    spark.sql(f"INSERT INTO writes.{people.name} (id) VALUES (8)")
    call = f"CALL writes.system.collect('{people.name}')"
    assert [tuple(row) for row in spark.sql(call).collect()] == [(1, 0, 2)]
    assert (people.count(), [delta.position for delta in people.deltas()]) == (4, [2])
