"""Changes of a real PostgreSQL, as Debezium writes them, by every way in: each table is what the database selects."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headwater.catalog import Catalog
from headwater.pipeline import ingest, read_pipeline, run_pipeline
from headwater.work import SparkRunner
from tests.interop.postgres.compared import OPTIONS, SCHEMAS, differences
from tests.interop.postgres.engine import engine_python
from tests.interop.postgres.recording import Recording, load, of_table, record

MANY = 1229
NUMBERS = itertools.count()
UNSENT = "__debezium_unavailable_value"


def test_a_streaming_frame_of_texts_is_taken_whole(spark: SparkSession, tmp_path: Path) -> None:
    """As a topic of Kafka comes: before, all of it became one quarantined row, and the checkpoint went on."""
    catalog = Catalog(str(tmp_path / "lake"))
    table = catalog.create_stream_table(
        "raw.t", {"id": "bigint", "_lsn": "bigint", "v": "array<float>"}, keys=["id"], sequence=["_lsn"]
    )
    (tmp_path / "in").mkdir()
    events = [{"op": "c", "after": {"id": n, "v": [n, 0.5]}, "source": {"lsn": n}} for n in range(MANY)]
    (tmp_path / "in" / "1.txt").write_text("\n".join(map(json.dumps, events)))
    frame = spark.readStream.text(str(tmp_path / "in"))
    report = ingest(spark, catalog, "raw.t", frame, "debezium", checkpoint=str(tmp_path / "checkpoint"))
    assert (report.rows, report.quarantined, table.count()) == (MANY, 0, MANY)


@pytest.mark.long
def test_a_file_in_which_a_key_changed_is_compared_with_the_rows_before_it(spark: SparkSession, tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path / "lake"))
    table = catalog.create_stream_table(
        "raw.t", {"id": "bigint", "_lsn": "bigint", "body": "string"}, keys=["id"], sequence=["_lsn"]
    )
    first = [{"op": "c", "after": {"id": 1, "body": "long"}, "source": {"lsn": 1}}]
    moved = [{"op": "d", "before": {"id": 1}, "source": {"lsn": 2}}]
    moved += [{"op": "c", "after": {"id": 2, "body": UNSENT}, "source": {"lsn": 2}}]
    for number, events in enumerate((first, moved, [{**first[0], "after": {"id": 3}}])):
        (tmp_path / f"{number}.json").write_text("\n".join(map(json.dumps, events)))
    runner = SparkRunner(spark, driver_rows=0)
    report = ingest(runner, catalog, "raw.t", str(tmp_path / "*.json"), "debezium", name="s")
    assert (report.files, report.quarantined, report.where and report.where.place) == (3, 0, "executors")
    assert {row["id"]: row["body"] for row in table.to_arrow().to_pylist()} == {2: "long", 3: None}


# Every way in


@pytest.fixture(scope="module", params=["recorded", pytest.param("real", marks=pytest.mark.long)])
def changes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    if request.param == "recorded":
        return load()
    return record(engine_python(tmp_path_factory.mktemp("debezium") / "venv"))


Take = Callable[[Path], Any]
"""Takes a file of records into a table."""


def by_python(spark: SparkSession, catalog: Catalog, name: str, folder: Path) -> Take:
    return lambda file: catalog[name].ingest(str(file), format="debezium", **OPTIONS)


def by_procedure(spark: SparkSession, catalog: Catalog, name: str, folder: Path) -> Take:
    return lambda file: spark.sql(f"CALL streams.system.ingest('{name}', '{file}', 'debezium', 's')").first()


def by_stream(spark: SparkSession, catalog: Catalog, name: str, folder: Path) -> Take:
    """Keys and values are bytes, as in a frame from Kafka."""
    (folder / "in").mkdir()
    frame = spark.readStream.schema("key STRING, value STRING").json(str(folder / "in"))
    frame = frame.selectExpr("CAST(key AS BINARY) AS key", "CAST(value AS BINARY) AS value")

    def take(file: Path) -> Any:
        (folder / "in" / file.name).write_bytes(file.read_bytes())
        return ingest(spark, catalog, name, frame, "debezium", checkpoint=str(folder / "checkpoint"), **OPTIONS)

    return take


def by_pipeline(spark: SparkSession, catalog: Catalog, name: str, folder: Path) -> Take:
    text = f"""
[pipeline]
name = "database"
catalog = "{folder / "lake"}"
[[source]]
name = "s"
into = "{name}"
path = "{folder / "pipe"}/*.json"
format = "debezium"
time_unit = "us"
apply_as_truncates = true
[table."{name}"]
keys = ["id"]
sequence_by = ["_lsn"]
[publish]
tables = ["{name}"]
"""
    (folder / "pipe").mkdir()
    (folder / "pipeline.toml").write_text(text)

    def take(file: Path) -> Any:
        (folder / "pipe" / file.name).write_bytes(file.read_bytes())
        return run_pipeline(read_pipeline(folder / "pipeline.toml"), spark)

    return take


WAYS: dict[str, Callable[..., Take]] = {
    "python": by_python,
    "procedure": by_procedure,
    "stream": by_stream,
    "pipeline": by_pipeline,
}


@pytest.mark.long
@pytest.mark.parametrize("table", SCHEMAS)
@pytest.mark.parametrize("way", WAYS)
def test_every_way_in_gives_what_the_database_selects_at_every_moment(
    spark: SparkSession, catalog: Catalog, tmp_path: Path, changes: Recording, way: str, table: str
) -> None:
    catalog = Catalog(str(tmp_path / "lake")) if way == "pipeline" else catalog
    name = f"raw.{table}_{way}_{next(NUMBERS)}"
    stream = catalog.create_stream_table(name, SCHEMAS[table], keys=["id"], sequence=["_lsn"])
    take = WAYS[way](spark, catalog, name, tmp_path)
    for number, lines in enumerate(changes.lines["schemas"]):
        records = list(of_table(lines, table))
        if way == "procedure" and number == len(changes.rows) - 1:
            break  # a procedure has no option for the truncation of the last moment
        if records:
            (tmp_path / f"{number}.json").write_text("\n".join(records))
            take(tmp_path / f"{number}.json")
        assert differences(stream.to_arrow(), changes.rows[number][table], table) == []
    assert stream.quarantine().num_rows == 0
