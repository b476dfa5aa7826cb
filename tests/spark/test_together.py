"""Ingest, publish, compaction, index and collection of one table at the same time, by Spark and beside it."""

from __future__ import annotations

import contextlib
from pathlib import Path

import lance
import pytest
from pyspark.sql import SparkSession

from headwater.catalog import Catalog
from headwater.pipeline import ingest, publish
from headwater.work import SparkRunner
from tests.children import PROCESSES
from tests.spark.catalogs import learn
from tests.spark.together import KEEPERS, KEYED, LOG, SHARED, events, land

PATIENCE_S = 300


def expected(writers: int, rounds: int) -> dict[int, tuple[int, str]]:
    """What the events of all writers leave: of each key the one with the highest sequence, if it is no delete."""
    newest: dict[int, dict[str, object]] = {}
    every = [row for writer in range(writers) for number in range(rounds) for row in events(writer, number)]
    for row in sorted(every, key=lambda row: int(str(row["at"]))):
        newest[int(str(row["id"]))] = row
    return {id: (int(str(row["at"])), str(row["note"])) for id, row in newest.items() if row["op"] == "u"}


@pytest.mark.parametrize("rounds", [2, pytest.param(12, marks=pytest.mark.long)])
def test_jobs_of_one_table_at_the_same_time_lose_and_double_nothing(
    spark: SparkSession, tmp_path: Path, rounds: int
) -> None:
    runner = SparkRunner(spark, driver_rows=0)
    name = f"together{rounds}"  # a session keeps what it once learnt by a name, and a worker a catalog by its root
    root = tmp_path / name
    catalog = Catalog(str(root))
    properties = {"log_retention": "1 second", "history": "scd2"}
    schema = {"id": "bigint", "at": "bigint", "note": "string"}
    catalog.create_stream_table(KEYED, schema, keys=["id"], sequence=["at"], properties=properties)
    catalog.create_stream_table(LOG, {"id": "bigint"}, properties={"log_retention": "1 second"})
    learn(spark, name, root=str(root), impl="metastore")
    landers = [PROCESSES.Process(target=land, args=(str(root), writer, rounds)) for writer in (0, 1)]
    keepers = [PROCESSES.Process(target=each, args=(str(root),), name=each.__name__) for each in KEEPERS]
    try:
        for process in (*landers, *keepers):
            process.start()
        for number in range(rounds):  # the third writer is Spark: a frame, a statement, and a publish by executors
            rows = spark.createDataFrame(events(2, number))
            ingest(runner, catalog, KEYED, rows, "op", "s2")
            spark.sql(f"INSERT INTO {name}.{LOG} VALUES ({2_000 + number})")
            publish(runner, catalog, KEYED)
            assert spark.table(f"{name}.{KEYED}").where(f"id = {SHARED}").count() == 1
        for process in landers:
            process.join(PATIENCE_S)
    finally:
        (tmp_path / "stop").touch()
        for process in keepers:
            process.join(PATIENCE_S)
        for process in (*landers, *keepers):
            with contextlib.suppress(ValueError):
                process.kill()
    assert [(each.name, each.exitcode) for each in (*landers, *keepers)] == [
        (each.name, 0) for each in (*landers, *keepers)
    ]
    publish(runner, catalog, KEYED, LOG)
    table, log = catalog[KEYED], catalog[LOG]
    wanted = expected(3, rounds)
    for found in (table.to_arrow(), table.serving.to_arrow()):
        assert found.num_rows == len(wanted)
        assert {row["id"]: (row["at"], row["note"]) for row in found.to_pylist()} == wanted
    ids = sorted(1_000 * writer + number for writer in range(3) for number in range(rounds))
    assert sorted(log.to_arrow()["id"].to_pylist()) == sorted(log.serving.to_arrow()["id"].to_pylist()) == ids
    history = catalog[f"{KEYED}__history"].to_arrow().to_pylist()
    current = {row["id"]: (row["at"], row["note"]) for row in history if row["valid_to"] is None}
    assert current == wanted
    assert len([row for row in history if row["valid_to"] is None]) == len(wanted)
    assert (table.verify(), log.verify()) == ([], [])
    folder = root / table.opened()[0].serving
    assert lance.dataset(str(folder)).count_rows() == len(wanted)
