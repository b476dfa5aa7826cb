"""Views of many rows: Spark reads, computes, compares and writes them, and the driver sees no row."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headwater.catalog import Catalog
from headwater.errors import InvalidInputError
from headwater.pipeline import read_pipeline, run_pipeline, spark_views, views
from headwater.pipeline.facts import moment_of
from headwater.pipeline.grammar import ViewSpec
from headwater.pipeline.view_tables import MadeView, remember
from headwater.pipeline.views import ViewMoment, make_view
from headwater.spark import table_frames
from headwater.work import SparkRunner, runners
from headwater.work.tasks import SPARK, PipelineEngine
from tests.pipeline.shop import Shop


@pytest.fixture(autouse=True)
def by_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that come to the driver are an error."""

    def collected(*_: Any) -> Any:
        raise AssertionError("rows of a view came to the driver")

    monkeypatch.setattr("pyspark.sql.classic.dataframe.DataFrame.toArrow", collected)
    monkeypatch.setattr(views, "opened", collected)


def never(spark: SparkSession) -> SparkRunner:
    """Return a runner whose driver touches no row."""
    return SparkRunner(spark, driver_rows=0)


def made(spark: SparkSession, catalog: Catalog, sql: str, keys: tuple[str, ...], inputs: tuple[str, ...]) -> Any:
    moment = ViewMoment(catalog.at(catalog.slot), catalog.slot, inputs)
    return make_view(catalog, ViewSpec("mart.v", sql, keys), moment, never(spark))[1]


def test_a_large_view_follows_its_inputs_and_only_what_differs_is_written(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(tmp_path, seed=5)
    ends = [0]
    for times in (60, 60, 5):
        shop.deliver(shop.change(times))
        engine = PipelineEngine(SPARK, driver_rows=0)
        run_pipeline(replace(read_pipeline(shop.file), engine=engine), spark, select=["raw.orders", "mart.spend"])
        view = Catalog(str(tmp_path / "lake"))["mart.spend"]
        found = sorted((r["customer"], f"{r['spent']:.2f}", r["orders"]) for r in view.to_arrow().to_pylist())
        assert found == shop.spend()
        ends.append(view.position)
    last = view.changes(ends[-2]).to_pylist()
    assert 0 < len(last) < 20
    assert view.verify() == []


@pytest.mark.parametrize("by_jar", [True, False], ids=["by the jar", "by Spark's Python workers"])
def test_rows_that_go_columns_that_come_and_keys_that_are_not_distinct(
    spark: SparkSession, tmp_path: Path, by_jar: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (table_frames, runners):
        if not by_jar:
            monkeypatch.setattr(module, "of_jar", lambda *_: None)
    catalog = Catalog(str(tmp_path / "lake"))
    catalog.create_table("raw.plain", pa.table({"id": [1, 2, 3], "n": [1.0, float("nan"), None]}))
    items = catalog.create_stream_table("raw.items", {"id": "bigint", "word": "string"}, keys=["id"])
    items.upsert([{"id": number, "word": f"w{number}"} for number in range(1, 6)])
    inputs = ("raw.items", "raw.plain")
    join = "SELECT i.id AS key, i.word, p.n FROM raw.items i LEFT JOIN raw.plain p ON p.id = i.id"
    assert made(spark, catalog, join, ("key",), inputs).rows == 5
    assert made(spark, catalog, join, ("key",), inputs).rows == 0
    items.delete([2])
    items.upsert([{"id": 7, "word": "new"}])
    assert made(spark, catalog, join, ("key",), inputs).rows == 2
    wider = join.replace("p.n", "p.n, length(word) AS size") + " WHERE i.id <> 5"
    assert made(spark, catalog, wider, ("key",), inputs).rows == 5
    found = sorted(catalog["mart.v"].to_arrow().to_pylist(), key=lambda row: int(row["key"]))
    assert [(row["key"], row["word"], row["size"]) for row in found] == [
        (1, "w1", 2), (3, "w3", 2), (4, "w4", 2), (7, "new", 3),
    ]  # fmt: skip
    with pytest.raises(InvalidInputError, match="4 rows and 1 different keys"):
        made(spark, catalog, "SELECT 1 AS key, word FROM raw.items WHERE id < 9 LIMIT 4", ("key",), inputs[:1])


def test_a_table_of_a_catalog_that_the_session_does_not_know_is_read_at_its_moment_as_sql_would(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Only the columns and rows that a query needs; what changes later is not seen, and nothing can be written."""
    catalog = Catalog(str(tmp_path / "lake"))
    items = catalog.create_stream_table("raw.items", {"id": "bigint", "n": "bigint", "word": "string"}, keys=["id"])
    items.upsert([{"id": number, "n": number % 3, "word": f"w{number}"} for number in range(9)])
    items.publish()
    items.upsert([{"id": 8, "n": 7, "word": "tail"}])
    frame = table_frames.frame_of(spark, table_frames.readable(items, catalog.slot), 2)
    items.delete([1])
    words = frame.where("n = 7").select("word")
    assert [row.word for row in words.collect()] == ["tail"]
    plan = words._jdf.queryExecution().toString()
    assert 'columns ["word"]' in plan
    assert "`n` = 7" in plan.partition("pushed filter: ")[2].splitlines()[0]
    assert frame.count() == 9
    assert frame.groupBy("n").count().count() == 4


def test_a_view_of_spark_follows_a_few_changes_by_spark_without_reading_its_inputs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    runner = SparkRunner(spark, driver_rows=20)
    catalog, said = Catalog(str(tmp_path / "lake")), list[str]()
    schema = {"id": "bigint", "who": "string", "total": "decimal(9,2)", "made": "timestamp"}
    items = catalog.create_stream_table("raw.items", schema, keys="id")
    rows = [
        {"id": n, "who": f"w{n % 10}", "total": f"{n}.50", "made": datetime(2026, 1, 1, n, tzinfo=UTC)}
        for n in range(24)
    ]
    items.upsert(rows)
    items.publish()
    sql = "SELECT who, sum(total) AS spent, max(made) AS last, array_agg(id) AS ids FROM raw.items GROUP BY who"
    view = ViewSpec("mart.v", sql, ("who",))

    def make() -> MadeView:
        at = catalog.at(catalog.slot)
        found = make_view(catalog, view, ViewMoment(at, catalog.slot, ("raw.items",)), runner, said.append)
        remember(found, view, {"raw.items": moment_of(at, "raw.items")})
        return found

    assert (make().engine, said) == ("spark", [])
    items.upsert([{**rows[3], "total": "1000.00"}, {**rows[4], "who": "new"}])
    items.publish()
    monkeypatch.setattr(spark_views, "land_by_spark", None)
    assert (make().landed.rows, said) == (3, [])
    items.delete([{"id": 4}])
    runner.driver_rows = 0  # executors read the changes and compute their groups
    before = runner.done
    assert (make().landed.rows, said) == (1, [])
    assert (runner.done - before).jobs > 0
    found = {row["who"]: row for row in catalog["mart.v"].to_arrow().to_pylist()}
    assert "new" not in found
    assert (found["w3"]["spent"], sorted(found["w3"]["ids"])) == (Decimal("1037.00"), [3, 13, 23])
    assert (found["w4"]["ids"], found["w4"]["last"]) == ([14], rows[14]["made"])


@pytest.mark.parametrize("by_jar", [True, False], ids=["by the jar", "by Spark's Python workers"])
def test_a_key_that_cannot_be_told_is_recomputed_and_a_failed_task_is_an_error(
    spark: SparkSession, tmp_path: Path, by_jar: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (table_frames, runners):
        if not by_jar:
            monkeypatch.setattr(module, "of_jar", lambda *_: None)
    catalog, said = Catalog(str(tmp_path / "lake")), list[str]()
    items = catalog.create_stream_table("raw.items", {"id": "bigint", "note": "string"}, keys="id")
    sql = "SELECT CAST(note AS INT) AS k, count(*) AS n FROM raw.items WHERE note < 'a' GROUP BY 1"
    view = ViewSpec("mart.v", sql, ("k",))

    def make() -> None:
        at = catalog.at(catalog.slot)
        found = make_view(catalog, view, ViewMoment(at, catalog.slot, ("raw.items",)), never(spark), said.append)
        remember(found, view, {"raw.items": moment_of(at, "raw.items")})

    items.upsert([{"id": 1, "note": "1"}])
    make()
    items.upsert([{"id": 2, "note": "x"}, {"id": 3, "note": "1"}])
    make()
    assert (len(said), "cannot be told" in said[0]) == (1, True)
    assert catalog["mart.v"].to_arrow().to_pylist() == [{"k": 1, "n": 2}]
    items.upsert([{"id": 4, "note": "4"}])
    (file,) = items.deltas(items.position - 1)[0].files
    (tmp_path / "lake" / file.path).write_bytes(b"no Parquet")
    with pytest.raises((Py4JJavaError, PySparkException)):
        make()
    assert len(said) == 1


@pytest.mark.parametrize("by_jar", [True, False], ids=["by the jar", "by Spark's Python workers"])
def test_executors_follow_changes_of_joined_inputs_key_by_key_and_no_row_comes_to_the_driver(
    spark: SparkSession, tmp_path: Path, by_jar: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (table_frames, runners):
        if not by_jar:
            monkeypatch.setattr(module, "of_jar", lambda *_: None)
    catalog, said = Catalog(str(tmp_path / f"lake-{by_jar}")), list[str]()
    items = catalog.create_stream_table("raw.items", {"id": "bigint", "who": "bigint", "n": "bigint"}, keys="id")
    people = catalog.create_stream_table("raw.people", {"id": "bigint", "name": "string"}, keys="id")
    sql = "SELECT i.who % 5 AS part, count(*) AS n, sum(i.n) AS total, max(p.name) AS last FROM raw.items i "
    sql += "LEFT JOIN raw.people p ON p.id = i.who GROUP BY i.who % 5"
    view, held = ViewSpec("mart.v", sql, ("part",)), dict[int, tuple[int, int]]()
    names: dict[int, str] = {}

    def expected() -> list[tuple[object, ...]]:
        found: list[tuple[object, ...]] = []
        for part in sorted({who % 5 for who, _ in held.values()}):
            mine = [(who, n) for who, n in held.values() if who % 5 == part]
            last = max((names[who] for who, _ in mine if who in names), default=None)
            found.append((part, len(mine), sum(n for _, n in mine), last))
        return found

    def step(rows: dict[int, tuple[int, int]], gone: list[int], people_now: dict[int, str]) -> int:
        held.update(rows)
        names.update(people_now)
        if rows:
            items.upsert([{"id": id, "who": who, "n": n} for id, (who, n) in rows.items()])
        if gone:
            items.delete([{"id": id} for id in gone])
        if people_now:
            people.upsert([{"id": id, "name": name} for id, name in people_now.items()])
        for id in gone:
            del held[id]
        inputs, at = ("raw.items", "raw.people"), catalog.at(catalog.slot)
        made = make_view(catalog, view, ViewMoment(at, catalog.slot, inputs), never(spark), said.append)
        remember(made, view, {name: moment_of(at, name) for name in inputs})
        rows_now = sorted(catalog["mart.v"].to_arrow().to_pylist(), key=lambda row: int(row["part"]))
        assert [(row["part"], row["n"], row["total"], row["last"]) for row in rows_now] == expected()
        return made.landed.rows

    assert step({id: (id, id) for id in range(20)}, [], {id: f"p{id}" for id in range(0, 20, 3)}) == 5
    assert (step({3: (4, 100), 30: (30, 1)}, [19], {}), said) == (3, [])  # the parts 3, 4 and 0
    assert (step({}, [], {7: "z"}), said) == (1, [])
    assert (step({}, [2, 7, 12, 17], {11: "y"}), said) == (2, [])  # the part 2 is gone, as 1 has another name
    assert catalog["mart.v"].verify() == []


def test_sql_that_spark_does_not_take_is_an_error_and_no_other_engine_runs_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    catalog = Catalog(str(tmp_path / "lake"))
    items = catalog.create_stream_table("raw.items", {"id": "bigint"}, keys=["id"])
    items.upsert([{"id": 1}])
    view = ViewSpec("mart.v", "SELECT id, epoch_ms(0) AS at FROM raw.items", ("id",))
    moment = ViewMoment(catalog.at(catalog.slot), catalog.slot, ("raw.items",))
    with pytest.raises(InvalidInputError, match=r"mart\.v cannot be run: Spark does not take it"):
        make_view(catalog, view, moment, never(spark))
