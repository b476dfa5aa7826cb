"""Events into a published table: Debezium files through Spark, Kafka, and the latency of a resident run.

`python -m benchmarks.live [events] [rows]`: batches of Debezium files (100,000 events) into one table (200,000 rows,
which a first batch lays down) on `local[2]`. Ours is a run of a pipeline file.
Beside it stands the job that one would write by hand: a stream of JSON files whose `foreachBatch` keeps the newest
event of each key and merges it into a Delta table. It is done twice, and all sides take turns:
- by Spark, with Delta's own MERGE (`benchmarks/live_peer.py`), in an environment of its own that DELTA_PYTHON names:
  Delta's jar does not run on PySpark 4.3. `python -m venv D`, `D/bin/pip install -r benchmarks/delta.txt`, and
  `mvn -f benchmarks/delta.xml dependency:copy-dependencies -DoutputDirectory=D/jars` make one;
- by the library deltalake in the driver (`pip install --target D deltalake`, PYTHONPATH=D), in our session of Spark.
`python -m benchmarks.live kafka SERVERS [events]`: the same events from a topic of four partitions, ours alone.
`python -m benchmarks.live latency [seconds]`: 100 rows a second into the mock cluster of librdkafka, from the send to
the published version.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet

from benchmarks.live_peer import EVENT, newest
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


class ByLibrary:
    """A stream of files whose batches the library deltalake merges into a Delta table."""

    name = "by hand (foreachBatch, merge of deltalake)"

    def __init__(self, spark: Any, folder: Path) -> None:
        import deltalake  # type: ignore[import-not-found]

        self._deltalake, self._spark, self._folder = deltalake, spark, folder
        self._table = str(folder / "delta")

    def take(self) -> float:
        began = time.perf_counter()
        stream = self._spark.readStream.schema(EVENT).json(str(self._folder / "in"))
        writer = stream.writeStream.foreachBatch(self._merge).option("checkpointLocation", str(self._folder / "seen"))
        writer.trigger(availableNow=True).start().awaitTermination()
        return time.perf_counter() - began

    def _merge(self, batch: Any, number: int) -> None:
        rows = newest(batch).toArrow()
        if not self._deltalake.DeltaTable.is_deltatable(self._table):
            kept = rows.filter(np.array(rows.column("op").to_pylist()) != "d")
            self._deltalake.write_deltalake(self._table, kept)
            return
        table = self._deltalake.DeltaTable(self._table)
        merge = table.merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
        merge = merge.when_matched_delete("s.op = 'd' AND s.lsn > t.lsn").when_matched_update_all("s.lsn > t.lsn")
        merge.when_not_matched_insert_all("s.op != 'd'").execute()

    def rows(self) -> Any:
        return self._deltalake.DeltaTable(self._table).to_pyarrow_table(columns=["id", "sku", "lsn"])

    def close(self) -> None:
        """End with the session."""


class BySpark:
    """The job by hand with Spark and Delta's MERGE, in a process and an environment of its own."""

    name = "by hand (foreachBatch, MERGE of Delta on Spark)"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        line = [os.environ["DELTA_PYTHON"], str(Path(__file__).with_name("live_peer.py")), MASTER, str(folder)]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(line, text=True, **pipes)
        self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the process of Delta has ended")
        return str(line)

    def _ask(self, word: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        return self._answer()

    def take(self) -> float:
        return float(self._ask("take"))

    def rows(self) -> Any:
        self._ask("end")
        return parquet.read_table(self._folder / "rows")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


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
    peers: list[Any] = []
    if "DELTA_PYTHON" in os.environ:
        peers.append(BySpark(made(folder / "spark")))
    if importlib.util.find_spec("deltalake"):
        peers.append(ByLibrary(spark, made(folder / "library")))
    mine, theirs = list[float](), [list[float]() for _ in peers]
    try:
        for batch in range(BATCHES + 1):
            write_files(folder / "ours" / "in", batch, count, keys)
            for peer in ("spark", "library"):
                for file in (folder / "ours" / "in").glob(f"{batch:04}-*"):
                    os.link(file, made(folder / peer / "in") / file.name)
            mine.append(timed(lambda: run_pipeline(pipeline, spark)))
            for peer, seconds in zip(peers, theirs, strict=True):
                seconds.append(peer.take())
        found = [f"ours: {rate(count, mine)} (a table of {keys:,} rows, batches of {count:,}: {shown(mine)} s)"]
        table = Catalog(str(folder / "ours" / "lake"))["raw.orders"].serving.to_arrow(columns=["id", "sku", "_lsn"])
        for peer, seconds in zip(peers, theirs, strict=True):
            assert as_set(peer.rows()) == as_set(table)
            ratio = statistics.median(seconds[1:]) / statistics.median(mine[1:])
            found.append(f"{peer.name}: {rate(count, seconds)} ({shown(seconds)} s)")
            found.append(f"ratio of medians: {ratio:.2f} times its speed; both have the same rows")
        return found
    finally:
        for peer in peers:
            peer.close()


def made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def as_set(rows: Any) -> set[tuple[Any, ...]]:
    return set(zip(*(column.to_pylist() for column in rows.columns), strict=True))


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
