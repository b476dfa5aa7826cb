"""Places of work: with `driver_rows` of 0 executors do every step, and functions of users run there at any size."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from headwater.catalog import Catalog
from headwater.pipeline import ingest, publish, read_pipeline, run_pipeline
from headwater.work import DRIVER, EMBEDDED, EXECUTORS, SparkRunner
from headwater.work.tasks import SPARK, PipelineEngine
from tests.pipeline.shop import FEATURES, Shop

NOTING = """
import os

def note(word):
    with open({notes!r}, "a") as file:
        file.write(f"{{word}} {{os.getpid()}}\\n")

note("loaded")
"""


class NotingShop(Shop):
    """A shop whose function notes in which processes its module was loaded and it was called."""

    def __init__(self, folder: Path, seed: int) -> None:
        folder.mkdir()
        super().__init__(folder, seed)
        self.notes = folder / "notes"
        text = FEATURES.replace("    words =", '    note("called")\n    words =')
        (folder / "shop_features.py").write_text(NOTING.format(notes=str(self.notes)) + text)

    def noted(self, word: str) -> Counter[int]:
        lines = [line.split() for line in self.notes.read_text().splitlines()]
        return Counter(int(process) for kind, process in lines if kind == word)

    def run(self, engine: PipelineEngine, spark: Any = None) -> Any:
        done = run_pipeline(replace(read_pipeline(self.file), engine=engine), spark)
        sys.modules.pop("shop_features", None)
        return done

    def rows(self) -> dict[str, list[Any]]:
        lake = Catalog(str(self.folder / "lake"))
        names = ("raw.orders", "raw.products", "raw.orders__history", "mart.spend")
        return {
            name: sorted(map(str, (getattr(lake[name], "serving", lake[name])).to_arrow().to_pylist()))
            for name in names
        }


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    sys.modules.pop("shop_features", None)


def tasks_of(events: Path) -> dict[str, int]:
    """The tasks that executors ended well, by the description of their job, as the event log has them."""
    (log,) = events.iterdir()
    found = [json.loads(line) for line in log.read_text().splitlines()]
    jobs = {
        stage: event["Properties"].get("spark.job.description", "")
        for event in found
        if event["Event"] == "SparkListenerJobStart"
        for stage in event["Stage IDs"]
    }
    ended = (event for event in found if event["Event"] == "SparkListenerTaskEnd")
    return Counter(jobs[event["Stage ID"]] for event in ended if event["Task End Reason"]["Reason"] == "Success")


def test_with_driver_rows_of_0_each_step_is_a_job_and_the_rows_are_those_of_the_embedded_engine(
    spark: SparkSession, event_log: Path, tmp_path: Path
) -> None:
    here, there = NotingShop(tmp_path / "here", 6), NotingShop(tmp_path / "there", 6)
    for number in range(2):
        for shop in (here, there):
            shop.deliver(shop.change(40))
            shop.products([{"sku": f"p{n}", "title": "Lamp", "text": "a" * n} for n in range(number, 9 + number)])
        embedded, done = here.run(PipelineEngine(EMBEDDED)), there.run(PipelineEngine(SPARK, driver_rows=0), spark)
        assert {report.where.place for report in embedded.reports} == {EMBEDDED}
        assert there.rows() == here.rows()
        assert [each for each in done.reports if each.rows and each.where.place != EXECUTORS] == []
    called, loaded = there.noted("called"), there.noted("loaded")
    assert os.getpid() not in called
    assert {loaded[process] for process in called} == {1}  # once per Python worker, in both runs
    done_by_executors = tasks_of(event_log)
    for words in (
        "take 1 file into raw.orders", "take 1 file into raw.products", "fold and write raw.orders",
        "fold and write raw.products", "history of raw.orders", "index text", "view mart.spend",
        "fold and write mart.spend",
    ):  # fmt: skip
        assert [tasks for about, tasks in done_by_executors.items() if words in about], words
    lake = Catalog(str(tmp_path / "there" / "lake"))
    assert [lake[name].verify() for name in ("raw.orders", "raw.products", "mart.spend")] == [[], [], []]


def change(id: int | None, op: str, at: int, **values: Any) -> str:
    row = {"id": id, **values}
    sides = {"before": row if op == "d" else None, "after": None if op == "d" else row}
    return json.dumps({"op": op, **sides, "source": {"lsn": at}})


MESSAGES = [
    *(change(n, "c", n, name=f"n{n}") for n in range(1, 30)),
    change(3, "u", 40, name="changed", size=7),  # of all parts only this one makes the table evolve
    change(4, "d", 41),
    *(change(None, "c", n, name="no key") for n in (50, 51)),
    *(change(n, "c", n, name=f"n{n}") for n in range(60, 70)),
]
EMPTIED = json.dumps({"op": "t", "source": {"lsn": 80}})
TRUNCATED = [change(1, "c", 70, name="gone"), EMPTIED, change(9, "c", 90, name="z")]


def intakes(spark: Any, catalog: Catalog, folder: Path, frame_of: Callable[[Any], Any]) -> Iterator[Any]:
    """Take data in every format; `frame_of` makes data of a list of rows."""
    schema = {"id": "bigint", "_lsn": "bigint", "name": "string"}
    catalog.create_stream_table("raw.t", schema, keys=["id"], sequence=["_lsn"])
    yield ingest(spark, catalog, "raw.t", frame_of([{"value": text} for text in MESSAGES]), format="debezium")
    (folder / "truncated.json").write_text("\n".join(TRUNCATED))
    file = str(folder / "truncated.json")
    yield ingest(spark, catalog, "raw.t", file, format="debezium", apply_as_truncates=True)
    catalog.create_stream_table("raw.s", {"id": "bigint", "name": "string"}, keys=["id"])
    for ids in (range(40), range(20, 60), range(0)):
        rows = frame_of([{"id": n, "name": f"s{n % 30}"} for n in ids])
        yield ingest(spark, catalog, "raw.s", rows, format="snapshot", allow_empty=True)


def test_no_row_that_is_taken_in_or_rejected_passes_the_driver(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(catalog: Catalog) -> list[Any]:
        kept = catalog["raw.t__quarantine"].to_arrow().to_pylist()
        rejected = [(sorted(json.loads(row["row"]).items()), row["reason"], row["column"]) for row in kept]
        tables = catalog["raw.t"].to_arrow(), catalog["raw.s"].changes().drop_columns(["_commit_time"])
        return [sorted(map(str, rows)) for rows in (rejected, *(table.to_pylist() for table in tables))]

    def in_driver(*_: Any) -> Any:
        raise AssertionError("a row came to the driver")

    def frame_of(rows: list[dict[str, Any]]) -> Any:
        if not rows:
            return spark.range(0).selectExpr("id", "'' AS name")
        return spark.sparkContext.parallelize(rows, 4).map(lambda row: Row(**row)).toDF()

    here, there = Catalog(str(tmp_path / "here")), Catalog(str(tmp_path / "there"))
    told = list(intakes(None, here, tmp_path, lambda rows: rows))
    for name in ("log.landing.encode_events", "log.batches.encode_events", "sources.formats.take_debezium"):
        monkeypatch.setattr(f"headwater.streams.{name}", in_driver)
    done = list(intakes(SparkRunner(spark, driver_rows=0), there, tmp_path, frame_of))
    assert [each.where and each.where.place for each in done[:4]] == [EXECUTORS] * 4
    assert [(each.rows, each.quarantined) for each in done] == [(each.rows, each.quarantined) for each in told]
    monkeypatch.undo()
    assert found(there) == found(here)
    assert "size" in there["raw.t"].schema.names


def test_functions_of_users_run_on_executors_at_any_size_and_the_rest_of_few_rows_in_the_driver(
    spark: SparkSession, tmp_path: Path
) -> None:
    shop = NotingShop(tmp_path / "shop", 3)
    shop.deliver(shop.change(5))
    shop.products([{"sku": "p", "title": "Lamp", "text": "a"}])
    reports = {(each.job, each.table): each.where for each in shop.run(PipelineEngine(SPARK), spark).reports}
    assert reports["ingest", "raw.orders"].place == reports["ingest", "raw.products"].place == DRIVER
    assert os.getpid() not in shop.noted("called")
    lake = Catalog(str(shop.folder / "lake"))
    lake["raw.orders"].upsert([{"id": 1, "customer": 1, "updated_at": 10**9}])
    done = publish(SparkRunner(spark), lake, "raw.orders")
    assert (done.where and done.where.place, done.rows) == (DRIVER, 1)
