"""The mock cluster of librdkafka in this process: a broker on loopback, and topics that are made when they are used."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import confluent_kafka


class MockKafka:
    """A cluster. `servers`: its address."""

    def __init__(self) -> None:
        quiet = {"log_level": 2, "error_cb": lambda error: None}
        self._producer = confluent_kafka.Producer(
            {"test.mock.num.brokers": 1, "bootstrap.servers": "", "partitioner": "murmur2", **quiet}
        )
        brokers = self._producer.list_topics(timeout=10).brokers
        self.servers = ",".join(f"{each.host}:{each.port}" for each in brokers.values())

    def send(self, topic: str, messages: Iterable[Any], partition: int = 0, **more: Any) -> None:
        """Send messages: bytes and None as they are, anything else as JSON."""
        for message in messages:
            value = message if isinstance(message, bytes | None) else json.dumps(message).encode()
            self._producer.produce(topic, value, partition=partition, **more)
        assert self._producer.flush(10) == 0
