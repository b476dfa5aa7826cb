"""Settings of the Debezium engine for a source, and the orders that its process gets. Pure but for secrets."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from headwater.pipeline.live.debezium_spec import CONNECTORS, DebeziumSpec
from headwater.pipeline.live.live_source import LiveState
from headwater.references import follow

PREFIX = "headwater"
"""The beginning of the names of the topics: `headwater.schema.table`."""
COMMON = {
    "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
    "offset.flush.interval.ms": "0",
    "topic.prefix": PREFIX,
    "skipped.operations": "none",
    "tombstones.on.delete": "false",
    "snapshot.mode": "initial",
    "heartbeat.interval.ms": "1000",
    "poll.interval.ms": "50",
    "max.batch.size": "8192",
    "max.queue.size": "32768",
    "max.queue.size.in.bytes": str(64 << 20),
    "errors.max.retries": "0",
    "key.converter.schemas.enable": "true",
    "value.converter.schemas.enable": "true",
}
POSTGRES = {
    "plugin.name": "pgoutput",
    "publication.autocreate.mode": "filtered",
    "slot.max.retries": "60",
    "slot.retry.delay.ms": "500",
    "message.prefix.include.list": "headwater-.*",
    "hstore.handling.mode": "map",
    "slot.drop.on.stop": "false",
}
MYSQL = {
    "include.schema.changes": "false",
    "bigint.unsigned.handling.mode": "precise",
    "connect.keep.alive": "true",
    "enable.time.adjuster": "false",  # the database stores years as they are: 0001 is not 2001
}
JDBC = {
    "postgres": "jdbc:postgresql://{host}:{port}/{database}",
    "mysql": "jdbc:mysql://{host}:{port}/?allowPublicKeyRetrieval=true",
}


def slot_of(catalog: str, source: str) -> str:
    """Return the name of a replication slot that no other source of any catalog has."""
    return f"headwater_{hashlib.blake2b(f'{catalog}/{source}'.encode(), digest_size=8).hexdigest()}"


def engine_orders(spec: DebeziumSpec, slot: str, state: LiveState, scratch: Path) -> dict[str, Any]:
    """Return the orders of the engine's process, with secrets: they go through its pipe and to no file."""
    password = follow(spec.password, "password") if spec.password is not None else None
    offsets, history = scratch / "offsets", scratch / "history"
    settings = engine_settings(spec, slot)
    settings |= {"offset.storage.file.filename": str(offsets), "database.password": password or ""}
    settings |= {name: follow(value, name) for name, value in spec.options.items()}
    if CONNECTORS[spec.connector].has_history:
        settings["schema.history.internal"] = "io.debezium.storage.file.history.FileSchemaHistory"
        settings["schema.history.internal.file.filename"] = str(history)
    jdbc = JDBC.get(spec.connector)
    return {
        "connector": spec.connector,
        "settings": settings,
        "offset": state.offset,
        "history": list(state.journal),
        "offset_file": str(offsets),
        "history_file": str(history),
        "transactions": spec.transactions,
        "slot": spec.slot or slot,
        "owns_slot": spec.slot is None,
        "jdbc": jdbc and jdbc.format(host=spec.host, port=spec.port, database=quote(spec.database, safe="")),
        "user": spec.user,
        "password": password,
        "jvm": ["-Xmx1g"],
    }


def engine_settings(spec: DebeziumSpec, slot: str) -> dict[str, str]:
    """Return the settings of the engine, without secrets and files."""
    connector = CONNECTORS[spec.connector]
    found = {
        **COMMON,
        "name": PREFIX,
        "connector.class": connector.class_name,
        "database.hostname": spec.host,
        "database.port": str(spec.port),
        "database.user": spec.user,
        connector.names_database: spec.database,
        "provide.transaction.metadata": str(spec.transactions).lower(),
    }
    if spec.tables:
        found["table.include.list"] = ",".join(spec.tables)
    own: Mapping[str, str] = {}
    if spec.connector == "postgres":
        own = {**POSTGRES, "slot.name": spec.slot or slot, "publication.name": spec.publication or slot}
    elif spec.connector == "mysql":
        number = int(hashlib.blake2b(slot.encode(), digest_size=4).hexdigest(), 16) | 1 << 20
        own = {**MYSQL, "database.server.id": str(number)}
    return {**found, **own}
