"""A real Kafka broker: messages land once each, whoever is killed, and a topic that was cut says what was lost.

`HEADWATER_KILLS` is the number of kills, of run and broker in turn.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="pip install 'headwater[kafka]'")

import confluent_kafka

from headwater import Catalog
from headwater.errors import InvalidInputError
from headwater.pipeline import read_pipeline, run_pipeline
from headwater.streams.sources.kafka import OffsetRange, read_range
from tests.interop.kafka.broker import KafkaBroker, fetch_jars

pytestmark = pytest.mark.long
PARTITIONS, KEYS = 3, 100
KILLS = int(os.environ.get("HEADWATER_KILLS", "30"))
TEXT = """
[pipeline]
name = "kafka"
catalog = "./lake"
engine = "embedded"
[[source]]
name = "log"
kafka = {{ servers = "{servers}", topics = "orders" }}
into = "raw.log"
[[source]]
name = "state"
kafka = {{ servers = "{servers}", topics = "orders" }}
into = "raw.state"
[table."raw.log"]
schema = "id BIGINT, n BIGINT, _partition INT, _offset BIGINT"
[table."raw.state"]
schema = "id BIGINT NOT NULL, n BIGINT"
keys = ["id"]
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    folder = tmp_path_factory.mktemp("kafka")
    why = fetch_jars(folder / "jars")
    if why:
        pytest.skip(why)
    made = KafkaBroker(folder / "jars", folder)
    yield made
    made.kill()


class Sender(threading.Thread):
    """Sends numbered messages until it is told to stop; a key has one partition."""

    def __init__(self, broker: KafkaBroker, topic: str) -> None:
        super().__init__(daemon=True)
        self._topic, self.stopped, self.sent = topic, threading.Event(), 0
        settings = {"bootstrap.servers": broker.servers, "enable.idempotence": True, "log_level": 2}
        self._producer = confluent_kafka.Producer({**settings, "error_cb": lambda error: None})

    def run(self) -> None:
        chance = random.Random(1)
        while not self.stopped.wait(0.05):
            for _ in range(20):
                id = chance.randrange(KEYS)
                value = json.dumps({"id": id, "n": self.sent}).encode()
                self._producer.produce(self._topic, value, str(id).encode(), partition=id % PARTITIONS)
                self.sent += 1
            self._producer.poll(0)
        assert self._producer.flush(120) == 0


def in_topic(broker: KafkaBroker, topic: str) -> list[tuple[int, int, int, int]]:
    """Return every message as (id, n, partition, offset), in the order of each partition."""
    found = []
    settings = {"bootstrap.servers": broker.servers}
    for partition in range(PARTITIONS):
        consumer = confluent_kafka.Consumer({**settings, "group.id": "truth"})
        _, high = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, partition), timeout=60)
        consumer.close()
        got = read_range(settings, OffsetRange(topic, partition, 0, high), frozenset())
        for value, offset in zip(got.values, got.offsets, strict=True):
            row = json.loads(value or b"")
            found.append((row["id"], row["n"], partition, offset))
    return found


def watching(file: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "headwater", "run", str(file), "--watch", "--every", "0.1s"]
    with (file.parent / "run.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def test_messages_land_once_whoever_is_killed(broker: KafkaBroker, tmp_path: Path) -> None:
    chance = random.Random(7)
    broker.create("orders", PARTITIONS)
    file = tmp_path / "pipeline.toml"
    file.write_text(TEXT.format(servers=broker.servers))
    sender = Sender(broker, "orders")
    sender.start()
    run = watching(file)
    for number in range(KILLS):
        time.sleep(chance.uniform(1, 6))
        if number % 2:
            broker.kill()
            time.sleep(chance.uniform(0, 1))
            broker.start()
        else:
            run.kill()
            run.wait()
            run = watching(file)
    run.kill()
    run.wait()
    sender.stopped.set()
    sender.join()
    run_pipeline(read_pipeline(file))
    truth = in_topic(broker, "orders")
    assert len(truth) >= sender.sent > 0
    lake = Catalog(str(tmp_path / "lake"))
    landed = lake["raw.log"].to_arrow(columns=["id", "n", "_partition", "_offset"]).to_pylist()
    assert sorted(tuple(row.values()) for row in landed) == sorted(truth)
    newest: dict[int, int] = {id: n for id, n, _, _ in truth}
    state = {row["id"]: row["n"] for row in lake["raw.state"].serving.to_arrow().to_pylist()}
    assert state == newest
    assert "raw.log__quarantine" not in lake


def test_a_topic_that_was_cut_behind_the_offset_says_what_was_lost(broker: KafkaBroker, tmp_path: Path) -> None:
    broker.create("cut", 1)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.servers})

    def send(count: int) -> None:
        for n in range(count):
            producer.produce("cut", json.dumps({"id": n}).encode(), partition=0)
        assert producer.flush(60) == 0

    def pipeline(more: str = "") -> Any:
        text = TEXT.partition("[[source]]")[0].format(servers="")
        told = f'kafka = {{ servers = "{broker.servers}", topics = "cut"{more} }}'
        (tmp_path / "pipeline.toml").write_text(f'{text}[[source]]\nname = "cut"\n{told}\ninto = "raw.cut"\n')
        return read_pipeline(tmp_path / "pipeline.toml")

    send(5)
    run_pipeline(pipeline())
    send(10)
    for done in broker.admin.delete_records([confluent_kafka.TopicPartition("cut", 0, 12)]).values():
        done.result(60)
    with pytest.raises(InvalidInputError, match=r"7 offsets of cut\[0\] \(5 to 11\)"):
        run_pipeline(pipeline())
    lake = Catalog(str(tmp_path / "lake"))
    assert lake["raw.cut"].count() == 5
    run_pipeline(pipeline(', on_lost = "continue"'))
    assert lake["raw.cut"].count() == 8
