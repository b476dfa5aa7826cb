"""Events into a published table: Debezium files through Spark, Kafka, and the latency of a resident run.

`python -m benchmarks.live [events] [rows]`: batches of Debezium files (100,000 events) into one table (200,000 rows,
which a first batch lays down) on `local[2]`. Ours is a run of a pipeline file.
Beside it stands the job that one would write by hand: a stream of JSON files whose
`foreachBatch` keeps the newest event of each key and merges it into a Delta table. The merge is deltalake's
(`pip install --target D deltalake`, PYTHONPATH=D): Delta's own jar does not run on this Spark. The sides take turns.
`python -m benchmarks.live kafka SERVERS [events]`: the same events from a topic of four partitions, ours alone.
`python -m benchmarks.live latency [seconds]`: 100 rows a second into the mock cluster of librdkafka, from the send to
the published version.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import RESULTS
from headwater.catalog import Catalog
from headwater.pipeline import read_pipeline, run_pipeline, watch_pipeline

BATCHES, FILES, KEYS, PARTITIONS = 5, 4, 200_000, 4
MASTER = "local[2]"
TABLE = """
[table."raw.orders"]
schema = "id BIGINT NOT NULL, sku STRING, total DOUBLE, updated_at BIGINT, _lsn BIGINT"
keys = ["id"]
sequence_by = ["_lsn"]
"""
HEAD = '[pipeline]\nname = "live"\ncatalog = "./lake"\nengine = "{engine}"\n{master}\n[[source]]\nname = "orders"\n'


def events(batch: int, count: int, keys: int = KEYS) -> Iterator[str]:
    """Yield changes of random keys: one in ten is a delete. Batch 0 has an insert of every key."""
    chance = np.random.default_rng(batch)
    count = count if batch else keys
    ids = chance.integers(0, keys, count).tolist() if batch else range(keys)
    for n, (id, total) in enumerate(zip(ids, chance.random(count).tolist(), strict=True)):
        lsn = batch * keys * 10 + n
        row = {"id": id, "sku": f"P{id % 97}", "total": total, "updated_at": lsn}
        gone = n % 10 == 9 and batch > 0
        change = {"before": row if gone else None, "after": None if gone else row, "op": "d" if gone else "u"}
        yield json.dumps({**change, "source": {"lsn": lsn}, "ts_ms": lsn})


def write_files(folder: Path, batch: int, count: int, keys: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = list(events(batch, count, keys))
    for file in range(FILES):
        (folder / f"{batch:04}-{file}.json").write_text("\n".join(lines[file::FILES]) + "\n")


def write_pipeline(folder: Path, source: str, engine: str = "spark") -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    master = f'master = "{MASTER}"' if engine == "spark" else ""
    head = HEAD.format(engine=engine, master=master)
    (folder / "pipeline.toml").write_text(f'{head}{source}\ninto = "raw.orders"\n{TABLE}')
    return read_pipeline(folder / "pipeline.toml")


class ByHand:
    """A stream of files whose batches are merged into a Delta table."""

    def __init__(self, spark: Any, folder: Path) -> None:
        import deltalake  # type: ignore[import-not-found]

        self._deltalake, self._spark, self._folder = deltalake, spark, folder
        self._table = str(folder / "delta")

    def take(self) -> None:
        row = "STRUCT<id: BIGINT, sku: STRING, total: DOUBLE, updated_at: BIGINT>"
        schema = f"before {row}, after {row}, op STRING, source STRUCT<lsn: BIGINT>"
        stream = self._spark.readStream.schema(schema).json(str(self._folder / "in"))
        writer = stream.writeStream.foreachBatch(self._merge).option("checkpointLocation", str(self._folder / "seen"))
        writer.trigger(availableNow=True).start().awaitTermination()

    def _merge(self, batch: Any, number: int) -> None:
        newest = batch.selectExpr("coalesce(after, before) AS r", "op", "source.lsn AS lsn")
        newest = newest.selectExpr("r.id AS id", "struct(lsn, op, r.sku, r.total, r.updated_at) AS e")
        newest = newest.groupBy("id").agg({"e": "max"}).withColumnRenamed("max(e)", "e").selectExpr("id", "e.*")
        rows = newest.toArrow()
        if not self._deltalake.DeltaTable.is_deltatable(self._table):
            kept = rows.filter(np.array(rows.column("op").to_pylist()) != "d")
            self._deltalake.write_deltalake(self._table, kept)
            return
        table = self._deltalake.DeltaTable(self._table)
        merge = table.merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
        merge = merge.when_matched_delete("s.op = 'd' AND s.lsn > t.lsn").when_matched_update_all("s.lsn > t.lsn")
        merge.when_not_matched_insert_all("s.op != 'd'").execute()

    def rows(self) -> set[tuple[Any, ...]]:
        found = self._deltalake.DeltaTable(self._table).to_pyarrow_table(columns=["id", "sku", "lsn"]).to_pylist()
        return {tuple(row.values()) for row in found}


def session(folder: Path) -> Any:
    from pyspark.sql import SparkSession

    from headwater.spark import configure

    builder = SparkSession.builder.master(MASTER).config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.driver.memory", "2g")
    return configure(builder, "lake", root=str(folder / "lake")).getOrCreate()


def timed(act: Any) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def compare(count: int, keys: int, folder: Path) -> list[str]:
    spark = session(folder / "ours")
    pipeline = write_pipeline(folder / "ours", 'path = "in/*.json"\nformat = "debezium"')
    by_hand = ByHand(spark, folder / "peer") if importlib.util.find_spec("deltalake") else None
    mine, theirs = [], []
    for batch in range(BATCHES + 1):
        write_files(folder / "ours" / "in", batch, count, keys)
        (folder / "peer" / "in").mkdir(parents=True, exist_ok=True)
        for file in (folder / "ours" / "in").glob(f"{batch:04}-*"):
            os.link(file, folder / "peer" / "in" / file.name)
        mine.append(timed(lambda: run_pipeline(pipeline, spark)))
        if by_hand is not None:
            theirs.append(timed(by_hand.take))
    found = [f"ours: {rate(count, mine)} (a table of {keys:,} rows, batches of {count:,}: {shown(mine)} s)"]
    if by_hand is None:
        return [*found, "by hand: not measured, deltalake cannot be imported"]
    table = Catalog(str(folder / "ours" / "lake"))["raw.orders"].serving.to_arrow(columns=["id", "sku", "_lsn"])
    assert {tuple(row.values()) for row in table.to_pylist()} == by_hand.rows()
    found.append(f"by hand (foreachBatch, merge of deltalake): {rate(count, theirs)} ({shown(theirs)} s)")
    ratio = statistics.median(theirs[1:]) / statistics.median(mine[1:])
    return [*found, f"ratio of medians: {ratio:.2f} times its speed; both have the same rows"]


def rate(count: int, seconds: list[float]) -> str:
    """Return the events per second of the median batch. The first one fills the table."""
    return f"{count / statistics.median(seconds[1:]):,.0f} events/s"


def shown(seconds: list[float]) -> str:
    return ", ".join(f"{each:.2f}" for each in seconds)


def from_kafka(servers: str, count: int, folder: Path) -> list[str]:
    import confluent_kafka
    from confluent_kafka.admin import AdminClient, NewTopic

    topic = f"orders-{os.getpid()}"
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(60)
    spark = session(folder / "ours")
    told = f'kafka = {{ servers = "{servers}", topics = "{topic}", format = "debezium" }}'
    pipeline = write_pipeline(folder / "ours", told)
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "queue.buffering.max.messages": 2_000_000})
    seconds = []
    for batch in range(BATCHES + 1):
        for line in events(batch, count):
            producer.produce(topic, line.encode(), partition=json.loads(line)["ts_ms"] % PARTITIONS)
        producer.flush(120)
        seconds.append(timed(lambda: run_pipeline(pipeline, spark)))
    return [f"ours, from Kafka: {rate(count, seconds)} (batches of {count:,}: {shown(seconds)} s)"]


def latency(seconds: float, folder: Path) -> list[str]:
    import confluent_kafka

    quiet = {"log_level": 2, "test.mock.num.brokers": 1, "bootstrap.servers": ""}
    producer = confluent_kafka.Producer(quiet)
    brokers = producer.list_topics(timeout=10).brokers.values()
    servers = ",".join(f"{each.host}:{each.port}" for each in brokers)
    source = f'kafka = {{ servers = "{servers}", topics = "orders" }}'
    pipeline = write_pipeline(folder / "live", source, "embedded")
    sent: list[float] = []
    stop, ended = threading.Event(), threading.Event()

    def send() -> None:
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            for _ in range(10):
                n = len(sent)
                row = {"id": n, "sku": "P", "total": 1.0, "updated_at": n, "_lsn": n}
                sent.append(time.perf_counter())
                producer.produce("orders", json.dumps(row).encode(), partition=0)
            producer.flush(10)
            time.sleep(0.1)
        ended.set()

    threading.Thread(target=send, daemon=True).start()
    catalog, seen, waited = Catalog(str(folder / "live" / "lake")), 0, list[float]()
    for _ in watch_pipeline(pipeline, stop, every=0.1):
        now, there = time.perf_counter(), catalog["raw.orders"].serving.count()
        waited += [now - moment for moment in sent[seen:there]]
        seen = there
        if ended.is_set() and seen == len(sent):
            stop.set()
    waited.sort()
    parts = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    told = ", ".join(f"{name} {waited[int(len(waited) * part)]:.2f} s" for name, part in parts.items())
    return [f"--watch at 100 rows/s from Kafka, {len(waited):,} rows: {told}, most {waited[-1]:.2f} s"]


def main(arguments: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="headwater-live-") as name:
        if arguments[:1] == ["latency"]:
            lines = latency(float(arguments[1]) if len(arguments) > 1 else 30.0, Path(name))
        elif arguments[:1] == ["kafka"]:
            lines = from_kafka(arguments[1], int(arguments[2]) if len(arguments) > 2 else 100_000, Path(name))
        else:
            numbers = [int(each.replace("_", "")) for each in arguments]
            count, keys = (*numbers, *(100_000, KEYS)[len(numbers) :])
            lines = compare(count, keys, Path(name))
    load = os.getloadavg()[0]
    lines.append(f"load of the machine: {load:.1f} on {os.cpu_count()} cores")
    print("\n".join(lines))
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / "live.md").open("a") as file:
        file.write("\n".join([f"`python -m benchmarks.live {' '.join(arguments)}`", *lines, "", ""]))


if __name__ == "__main__":
    main(sys.argv[1:])
