"""Kafka on executors: tasks read ranges of offsets, and the driver commits them with the offsets."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

pytest.importorskip("confluent_kafka", reason="pip install 'headwater[kafka]'")

from headwater import Catalog
from headwater.pipeline import read_pipeline, run_pipeline
from headwater.pipeline.live.kafka_reader import has_spark_source
from headwater.streams.sources.kafka import messages_of
from tests.pipeline.mock_kafka import MockKafka

TEXT = """
[pipeline]
name = "k"
catalog = "./lake"
[pipeline.spark]
driver_rows = 0
[[source]]
name = "orders"
kafka = {{ servers = "{servers}", topics = "executors" }}
into = "raw.orders"
[table."raw.orders"]
keys = ["id"]
"""


def test_executors_read_ranges_and_a_new_column_of_one_is_in_all(spark: SparkSession, tmp_path: Path) -> None:
    cluster = MockKafka()
    for partition in range(3):
        cluster.send("executors", [{"id": 3 * n + partition, "v": n} for n in range(50)], partition)
    (tmp_path / "pipeline.toml").write_text(TEXT.format(servers=cluster.servers))
    pipeline = read_pipeline(tmp_path / "pipeline.toml")
    run_pipeline(pipeline, spark)
    cluster.send("executors", [{"id": 0, "v": 100, "more": "x"}], 0)
    cluster.send("executors", [{"id": 1, "v": 101}], 1)
    done = run_pipeline(pipeline, spark)
    table = Catalog(str(tmp_path / "lake"))["raw.orders"]
    rows = {row["id"]: (row["v"], row["more"]) for row in table.serving.to_arrow().to_pylist()}
    assert rows == {n: (n // 3, None) for n in range(150)} | {0: (100, "x"), 1: (101, None)}
    assert done.reports[0].rows == 2


def test_a_frame_of_sparks_own_source_is_the_same_messages(spark: SparkSession) -> None:
    assert has_spark_source(spark) is False, "the session has no jar of it"
    frame = spark.sql(
        "SELECT CAST('k' AS BINARY) AS key, CAST('{}' AS BINARY) AS value, 't' AS topic, 2 AS partition, 7L AS offset, "
        "TIMESTAMP '2026-01-01 00:00:00.5Z' AS timestamp, 0 AS timestampType, "
        "array(struct('h' AS key, CAST('x' AS BINARY) AS value)) AS headers"
    )
    table: pa.Table = frame.toArrow()
    found = messages_of(table)
    assert (found.topic, found.partition, found.values, found.offsets) == ("t", 2, [b"{}"], [7])
    assert (found.timestamps, found.keys, found.headers) == ([1767225600500], [b"k"], [[("h", b"x")]])
