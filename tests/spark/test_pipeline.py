"""The pipeline with a session: executors write the log of large files, and the result is that of one process."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from headwater.catalog import Catalog
from headwater.errors import InvalidInputError
from headwater.pipeline import (
    executors,
    index,
    ingest,
    jobs,
    parse_pipeline,
    publish,
    read_pipeline,
    run_pipeline,
    try_views,
)
from headwater.streams.log.checks import Check
from headwater.work import SparkRunner, runners
from tests.pipeline.shop import Shop
from tests.pipeline.source_database import create, follow
from tests.pipeline.test_files import CASES, TEXT, VARIABLES


@pytest.fixture(autouse=True)
def by_executors(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Executors do everything; the files that the driver takes itself are noted."""
    taken: list[str] = []
    here = executors._here

    def noted(stream: Any, intake: Any, tell: Any) -> Any:
        taken.extend(Path(file.path).name for file in intake.files)
        return here(stream, intake, tell)

    monkeypatch.setattr(SparkRunner, "in_driver", lambda self, rows, calls_functions=False: False)
    monkeypatch.setattr(executors, "_here", noted)
    return taken


def orders(tmp_path: Path, **properties: str) -> Catalog:
    catalog = Catalog(str(tmp_path / "lake"))
    schema = {"id": "bigint", "at": "bigint", "name": "string"}
    catalog.create_stream_table("raw.orders", schema, keys=["id"], sequence=["at"], properties=properties)
    return catalog


def test_executors_take_files_in_also_one_that_evolves_the_table(
    spark: SparkSession, tmp_path: Path, by_executors: list[str]
) -> None:
    catalog = orders(tmp_path)
    for number in range(6):
        rows = [{"id": n, "at": number, "name": f"{number}-{n}"} for n in range(number, 40)]
        extra = [{**row, "size": 1} for row in rows] if number == 3 else rows
        (tmp_path / f"{number}.json").write_text(
            "".join(json.dumps(row) + "\n" for row in extra) + ("{oops\n" * (number == 1))
        )
    report = ingest(spark, catalog, "raw.orders", str(tmp_path / "*.json"), name="s")
    assert (by_executors, report.where and report.where.place, catalog["raw.orders"].schema.names[-1]) == (
        [],
        "executors",
        "size",
    )
    assert (report.files, report.rows, report.quarantined, report.position) == (6, 225, 1, 6)
    found = {row["id"]: row["name"] for row in catalog["raw.orders"].to_arrow().to_pylist()}
    assert found == {n: f"{min(n, 5)}-{n}" for n in range(40)}
    again = ingest(spark, catalog, "raw.orders", str(tmp_path / "*.json"), name="s")
    assert (again.files, again.skipped, again.rows) == (0, 6, 0)
    assert publish(spark, catalog, "raw.orders").position == 6
    assert catalog["raw.orders"].verify() == []


def test_a_bad_file_is_the_same_clear_error_and_files_before_it_are_taken(spark: SparkSession, tmp_path: Path) -> None:
    catalog = orders(tmp_path)
    pq.write_table(pa.table({"id": [1], "at": [1], "name": ["a"]}), tmp_path / "0.parquet")
    (tmp_path / "1.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(InvalidInputError, match=r"1\.parquet' cannot be read"):
        ingest(spark, catalog, "raw.orders", str(tmp_path / "*.parquet"))
    assert catalog["raw.orders"].position == 1
    check = Check("named", "name <> 'a'", "fail")
    with pytest.raises(InvalidInputError, match="'named'"):
        ingest(spark, catalog, "raw.orders", str(tmp_path / "0.parquet"), name="other", checks=[check])


def test_a_pipeline_with_a_session_gives_what_the_source_holds(
    spark: SparkSession, tmp_path: Path, by_executors: list[str]
) -> None:
    shop = Shop(tmp_path, seed=3)
    for _ in range(2):
        shop.deliver(shop.change(40))
        shop.deliver(shop.change(40))
        shop.products([{"sku": f"p{number}", "title": "Lamp", "text": "a" * number} for number in range(9)])
        run_pipeline(read_pipeline(shop.file), spark)
    assert by_executors == []
    vectors = Catalog(str(tmp_path / "lake"))["raw.products"].serving.to_arrow().sort_by("sku")
    assert [vector[1] for vector in vectors["embedding"].to_pylist()] == [n + 1.0 for n in range(9)]
    table = Catalog(str(tmp_path / "lake"))["raw.orders"]
    found = sorted(table.serving.to_arrow().to_pylist(), key=lambda row: int(row["id"]))
    assert [{**row, "total": f"{row['total']:.2f}"} for row in found] == shop.orders()
    assert table.verify() == []
    sys.modules.pop("shop_features", None)


@pytest.mark.usefixtures("catalog")
def test_a_data_frame_is_taken_and_a_catalog_is_found_by_its_name_in_the_session(
    spark: SparkSession, tmp_path: Path
) -> None:
    catalog = orders(tmp_path)
    frame = spark.range(5).selectExpr("id", "id AS at", "concat('n', id) AS name")
    assert ingest(spark, catalog, "raw.orders", frame).rows == 5
    assert catalog["raw.orders"].count() == 5
    slot = catalog.slot
    more = spark.range(0, 40, 1, 4).selectExpr("id", "id + 10 AS at", "if(id = 3, NULL, id) AS id2", "'d' AS op")
    report = ingest(spark, catalog, "raw.orders", more.where("id < 5").drop("id2"), format="op")
    assert (report.rows, catalog["raw.orders"].count(), catalog.slot) == (5, 0, slot + 1)
    wider = spark.range(0, 8, 1, 2).selectExpr("id", "id + 50 AS at", "'x' AS name", "id * 2 AS size")
    assert ingest(spark, catalog, "raw.orders", wider, name="frame").rows == 8
    assert catalog["raw.orders"].schema.names == ["id", "at", "name", "size"]
    bad = spark.range(0, 4, 1, 2).selectExpr("nullif(id, 2) AS id", "90 AS at", "'y' AS name")
    done = ingest(spark, catalog, "raw.orders", bad, name="frame")
    assert (done.rows, done.quarantined) == (3, 1)
    assert jobs.open_lake(spark, "streams").is_there
    with pytest.raises(InvalidInputError, match="configured no catalog 'other'"):
        jobs.open_lake(spark, "other")


@pytest.mark.long  # one process does the same every time (tests/pipeline), and executors a pipeline (above)
def test_through_executors_every_way_to_read_agrees_with_the_source_database(
    spark: SparkSession, tmp_path: Path
) -> None:
    catalog = Catalog(str(tmp_path / "lake"))
    create(catalog)
    (tmp_path / "in").mkdir()
    follow(catalog, tmp_path / "in", 5, 2, spark, times=4)


def test_a_streaming_frame_is_taken_once_even_when_spark_forgets_what_it_committed(
    spark: SparkSession, tmp_path: Path
) -> None:
    catalog = orders(tmp_path)
    (tmp_path / "in").mkdir()
    frame = spark.readStream.schema("id BIGINT, at BIGINT, name STRING").json(str(tmp_path / "in"))
    checkpoint = str(tmp_path / "checkpoint")

    def land(number: int) -> None:
        lines = [json.dumps({"id": n, "at": number, "name": f"{number}"}) + "\n" for n in range(10)]
        (tmp_path / "in" / f"{number}.json").write_text("".join(lines))

    with pytest.raises(InvalidInputError, match="checkpoint"):
        ingest(spark, catalog, "raw.orders", frame)
    land(1)
    assert ingest(spark, catalog, "raw.orders", frame, name="s", checkpoint=checkpoint).rows == 10
    shutil.rmtree(tmp_path / "checkpoint" / "commits")
    position = catalog["raw.orders"].position
    assert ingest(spark, catalog, "raw.orders", frame, name="s", checkpoint=checkpoint).rows == 0
    assert catalog["raw.orders"].position == position
    land(2)
    assert ingest(spark, catalog, "raw.orders", frame, name="s", checkpoint=checkpoint).rows == 10
    assert set(catalog["raw.orders"].to_arrow()["name"].to_pylist()) == {"2"}


def test_executors_build_an_index_and_say_what_it_covers(spark: SparkSession, tmp_path: Path) -> None:
    catalog = orders(tmp_path)
    for part in range(4):
        catalog["raw.orders"].upsert([{"id": n, "at": 1, "name": f"w{n}"} for n in range(part * 50, part * 50 + 50)])
        publish(spark, catalog, "raw.orders")
    report = index(spark, catalog, "raw.orders", "name", "BTREE")
    assert (report.coverage["name_idx"], report.where and report.where.place) == (1.0, "executors")
    assert catalog["raw.orders"].serving.to_arrow(filter="name = 'w77'")["id"].to_pylist() == [77]
    assert catalog["raw.orders"].verify() == []


KINDS = (
    "id", "id AS at", "concat('n', id) AS name", "CAST(id AS DECIMAL(20, 4)) AS price",
    "timestamp_seconds(id) AS moment", "CAST(timestamp_seconds(id) AS TIMESTAMP_NTZ) AS told",
    "date_from_unix_date(CAST(id AS INT)) AS day",
    "id % 2 = 0 AS even", "CAST(concat('b', id) AS BINARY) AS bytes", "array(id, NULL) AS list",
    "map(concat('k', id), id) AS pairs", "named_struct('a', id, 'b', nullif(concat('s', id), 's3')) AS deep",
    "CAST(id AS TINYINT) AS tiny", "CAST(id AS FLOAT) AS x", "INTERVAL '1' DAY * id AS span",
)  # fmt: skip


@pytest.mark.long
def test_rows_of_a_frame_are_the_same_through_the_jar_and_through_the_workers_of_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = orders(tmp_path)
    frame = spark.range(0, 40, 1, 4).selectExpr(*KINDS)
    ingest(spark, catalog, "raw.orders", frame.limit(1))  # through the driver: the table evolves
    bad = frame.selectExpr("nullif(id, 7) AS id", "nullif(at, 9) + 100 AS at", "name", "moment", "deep", "x", "price")
    checks = [Check("even", "id % 2 = 0", "warn"), Check("small", "id < 30", "drop")]
    found, by_jar, of_jar = [], list[bool](), runners.of_jar

    def sent(session: Any, kind: str) -> Any:
        jar = of_jar(session, kind) if name == "raw.jar" else None
        by_jar.append(jar is not None)
        return jar

    monkeypatch.setattr(runners, "of_jar", sent)
    for name in ("raw.jar", "raw.spark"):
        schema = catalog["raw.orders"].schema
        catalog.create_stream_table(name, schema, keys=["id"], sequence=["at"], properties={"contract": "freeze"})
        spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
        reports = [ingest(spark, catalog, name, frame), ingest(spark, catalog, name, bad, checks=checks)]
        deleted = frame.selectExpr("id", "at + 500 AS at", "if(id < 5, 'D', 'u') AS kind")
        reports.append(ingest(spark, catalog, name, deleted, format="op", op_column="kind"))
        refused = [bad.selectExpr("*", "1 AS more"), bad.selectExpr("id", "at", "array(1) AS name"), bad.drop("at")]
        for each in refused:
            with pytest.raises(InvalidInputError, match=r"'(more|name|at)'"):
                ingest(spark, catalog, name, each)
        with pytest.raises(InvalidInputError, match="strict"):
            ingest(spark, catalog, name, bad, strict=True)
        spark.conf.unset("spark.sql.session.timeZone")
        rows = catalog[name].to_arrow().sort_by("id").to_pylist()
        kept = catalog[f"{name}__quarantine"].to_arrow().select(["row", "reason", "column"]).to_pylist()
        told = [(each.rows, each.quarantined, each.position, each.checks) for each in reports]
        found.append((told, rows, sorted(map(str, kept))))
    assert by_jar == [True] * 7 + [False] * 7
    assert found[0] == found[1]
    assert (found[0][0][0][:2], len(found[0][1])) == ((40, 0), 35)


def test_rows_that_executors_refused_are_retried_with_their_kind_and_views_are_tested_in_a_session(
    spark: SparkSession, tmp_path: Path
) -> None:
    catalog = orders(tmp_path, **{"expect_or_drop.named": "name IS NOT NULL"})
    table = catalog["raw.orders"]
    table.upsert([{"id": 1, "at": 1, "name": "a"}, {"id": 2, "at": 1, "name": "b"}])
    rows = [{"id": 1, "at": "x", "op": "delete"}, {"id": 2, "at": 2, "name": None, "op": "u"}]
    (tmp_path / "1.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = ingest(spark, catalog, "raw.orders", str(tmp_path / "1.json"), format="op", name="s")
    assert (report.quarantined, report.where and report.where.place) == (2, "executors")
    table.set_properties({"expect_or_drop.named": None})
    done = table.retry_quarantined()
    assert (done.rows, done.quarantined) == (1, 1)
    table.undo(source="s", file=str(tmp_path / "1.json"))
    assert (table.quarantine().num_rows, {row["name"] for row in table.to_arrow().to_pylist()}) == (0, {"a", "b"})
    pipeline = parse_pipeline(TEXT + CASES, tmp_path, environment=VARIABLES)
    assert [each.passed for each in try_views(pipeline, spark)] == [True] * 4
