"""The peer's side of `benchmarks/live.py`: Spark's `foreachBatch` that merges into a Delta table.

Its own interpreter runs it. Its arguments are a master, a folder and `name=value` for each property of the table. It
prints a line when it is ready. It takes what came into `in` for each line that it reads, and answers with the seconds
that took. At `end` it writes the rows of the table as Parquet, which the other side compares.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

ROW = "STRUCT<id: BIGINT, sku: STRING, total: DOUBLE, updated_at: BIGINT>"
EVENT = f"before {ROW}, after {ROW}, op STRING, source STRUCT<lsn: BIGINT>"


def newest(batch: Any) -> Any:
    """Return the newest event of each key in a frame of events."""
    events = batch.selectExpr("coalesce(after, before) AS r", "op", "source.lsn AS lsn")
    events = events.selectExpr("r.id AS id", "struct(lsn, op, r.sku, r.total, r.updated_at) AS e")
    return events.groupBy("id").agg({"e": "max"}).withColumnRenamed("max(e)", "e").selectExpr("id", "e.*")


class Peer:
    """A stream of files whose batches are merged into a Delta table, as one writes it by hand."""

    def __init__(self, spark: Any, folder: Path, properties: dict[str, str]) -> None:
        from delta.tables import DeltaTable  # type: ignore[import-not-found]

        self._spark, self._folder, self._table = spark, folder, str(folder / "delta")
        told = "".join(f" TBLPROPERTIES ({name!r} = {value!r})" for name, value in properties.items())
        columns = "id BIGINT, sku STRING, total DOUBLE, updated_at BIGINT, lsn BIGINT"
        spark.sql(f"CREATE TABLE delta.`{self._table}` ({columns}) USING DELTA{told}")
        self._delta = DeltaTable.forPath(spark, self._table)

    def take(self) -> None:
        stream = self._spark.readStream.schema(EVENT).json(str(self._folder / "in"))
        writer = stream.writeStream.foreachBatch(self._merge).option("checkpointLocation", str(self._folder / "seen"))
        writer.trigger(availableNow=True).start().awaitTermination()

    def _merge(self, batch: Any, number: int) -> None:
        columns = {name: f"s.{name}" for name in ("id", "sku", "total", "updated_at", "lsn")}
        merge = self._delta.alias("t").merge(newest(batch).alias("s"), "t.id = s.id")
        merge = merge.whenMatchedDelete("s.op = 'd' AND s.lsn > t.lsn")
        merge = merge.whenMatchedUpdate("s.lsn > t.lsn", columns)
        merge.whenNotMatchedInsert("s.op != 'd'", columns).execute()

    def write_rows(self) -> None:
        rows = self._delta.toDF().select("id", "sku", "lsn").coalesce(1)
        rows.write.mode("overwrite").parquet(str(self._folder / "rows"))


def main(master: str, folder: Path, properties: dict[str, str]) -> None:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.driver.memory", "2g")
    builder = builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    catalog = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    builder = builder.config("spark.sql.catalog.spark_catalog", catalog)
    builder = builder.config("spark.databricks.delta.snapshotPartitions", "2")
    jars = ",".join(map(str, Path(sys.prefix, "jars").glob("*.jar")))
    peer = Peer(builder.config("spark.jars", jars).getOrCreate(), folder, properties)
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "end":
            peer.write_rows()
            print("ended", flush=True)
            return
        began = time.perf_counter()
        peer.take()
        print(time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), dict(each.split("=") for each in sys.argv[3:]))
