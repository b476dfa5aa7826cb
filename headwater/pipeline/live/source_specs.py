"""`[[source]] debezium = {...}`: a database whose changes the Debezium engine reads, as a value. Pure.

The kinds of live sources by the name that [[source]] gives them, and how each is parsed.

`[[source]] dlt = "module:source"`: a source of dlt whose state is kept in the catalog, as a value.

`[[source]] kafka = {...}`: topics whose messages are taken, as a value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headwater.errors import InvalidInputError
from headwater.imports import when_used
from headwater.metastore.records.deltas import parse_duration
from headwater.pipeline.file_values import as_mapping, as_text, as_texts, check_names, naming_section
from headwater.pipeline.live.live_source import TABLE, LiveContext, LiveReader, LiveSpec
from headwater.references import FILE, VARIABLE, follow, is_bare_secret
from headwater.streams.sources.formats import FORMATS, SNAPSHOT, check_format
from headwater.streams.sources.kafka import EARLIEST, FIXED, LATEST
from headwater.wording import did_you_mean

kafka_reader = when_used("headwater.pipeline.live.kafka_reader")
KAFKA_KEYS = ("servers", "topics", "format", "start", "on_lost", "settings", "spark")
STOP, CONTINUE = "stop", "continue"


@dataclass(frozen=True)
class KafkaSpec:
    """Topics as a live source.

    `start`: where a topic begins that was not read before. `on_lost`: `stop` or `continue` where a topic was cut.
    `settings`: of the client, by the names of librdkafka. `spark`: options of Spark's own source, where its jar is.
    """

    servers: str
    topics: tuple[str, ...]
    format: str = "rows"
    options: Mapping[str, Any] = field(default_factory=dict)
    start: str = EARLIEST
    on_lost: str = STOP
    settings: Mapping[str, str] = field(default_factory=dict)
    spark: Mapping[str, str] = field(default_factory=dict)
    kind = "kafka"

    @property
    def shown(self) -> str:
        return f"{', '.join(self.topics)} at {self.servers}"

    def connected(self) -> dict[str, str]:
        """Return the settings of the client, with the secrets that they refer to."""
        own = {name: follow(value, f"kafka {name}") for name, value in self.settings.items()}
        return {**own, "bootstrap.servers": self.servers}

    def opened(self, context: LiveContext) -> LiveReader:
        found: LiveReader = kafka_reader.KafkaReader(self, context)
        return found


def parse_kafka(where: str, value: object, into: str) -> KafkaSpec:
    """Return the value of `kafka =`; InvalidInput (13) says what is wrong in it."""
    where = f"{where}: kafka"
    values = as_mapping(value, where)
    format = as_text(values.get("format", "rows"), f"{where} format")
    with naming_section(where):
        check_format(format, {})
    if format == SNAPSHOT:
        raise InvalidInputError(f"{where}: messages are changes, not a snapshot. The format is rows, op or debezium.")
    check_names(values, (*KAFKA_KEYS, *FORMATS[format]), where)
    options = {name: each for name, each in values.items() if name in FORMATS[format]}
    with naming_section(where):
        check_format(format, options)
    topics = values.get("topics")
    names = as_texts([topics] if isinstance(topics, str) else topics, f"{where} topics")
    if not names:
        raise InvalidInputError(f"{where}: topics names no topic.")
    if len(names) > 1 and TABLE not in into:
        raise InvalidInputError(
            f'{where}: {len(names)} topics need {TABLE} in into, such as into = "raw.{TABLE}": a topic is one table.'
        )
    chosen = {
        "start": _one_of(values.get("start", EARLIEST), (EARLIEST, LATEST), f"{where} start"),
        "on_lost": _one_of(values.get("on_lost", STOP), (STOP, CONTINUE), f"{where} on_lost"),
    }
    settings, spark = (_settings(values.get(name, {}), f"{where} {name}") for name in ("settings", "spark"))
    servers = as_text(values.get("servers"), f"{where} servers")
    return KafkaSpec(servers, names, format, options, settings=settings, spark=spark, **chosen)


def _one_of(value: object, words: tuple[str, ...], where: str) -> str:
    if value not in words:
        raise InvalidInputError(f"{where} is {' or '.join(map(repr, words))}, not {value!r}.")
    return str(value)


def _settings(value: object, where: str) -> dict[str, str]:
    found = {name: as_text(each, f"{where} {name}") for name, each in as_mapping(value, where).items()}
    for name, text in found.items():
        if name.removeprefix("kafka.") in FIXED:
            raise InvalidInputError(f"{where} has {name!r}, which the source itself sets.")
        if is_bare_secret(name, text) or ("jaas" in name and not text.startswith((VARIABLE, FILE))):
            raise InvalidInputError(
                f'{where} {name} is a secret: write where it is, {name} = "env:NAME" or "file:PATH".'
            )
    return found


dlt_reader = when_used("headwater.pipeline.live.dlt_reader")
DLT_KEYS = ("source", "arguments", "every")
EVERY = "1 minute"


@dataclass(frozen=True)
class DltSpec:
    """A source of dlt.

    `source`: the function that makes it, `module:name`; a module beside the pipeline file, or an installed one.
    `arguments`: of that function. `every_s`: a resident run asks the source so often.
    """

    source: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    every_s: float = 60.0
    kind = "dlt"

    @property
    def shown(self) -> str:
        return f"dlt {self.source}"

    def opened(self, context: LiveContext) -> LiveReader:
        found: LiveReader = dlt_reader.DltReader(self, context)
        return found


def parse_dlt(where: str, value: object, into: str) -> DltSpec:
    """Return the value of `dlt =`; InvalidInput (13) says what is wrong in it."""
    where = f"{where}: dlt"
    values = {"source": value} if isinstance(value, str) else as_mapping(value, where)
    check_names(values, DLT_KEYS, where)
    source = as_text(values.get("source"), f"{where} source")
    module, _, name = source.partition(":")
    if not module or not name.isidentifier():
        raise InvalidInputError(f"{where}: {source!r} is not a source: write module:function.")
    if TABLE not in into:
        raise InvalidInputError(f'{where}: a source has tables, so into needs {TABLE}: into = "raw.{TABLE}".')
    with naming_section(where):
        every = parse_duration(as_text(values.get("every", EVERY), f"{where} every"))
    return DltSpec(source, dict(as_mapping(values.get("arguments", {}), f"{where} arguments")), every.total_seconds())


reader = when_used("headwater.pipeline.live.debezium_reader")
copying = when_used("headwater.pipeline.live.postgres_copy")
POSTGRES = "postgres"


@dataclass(frozen=True)
class Connector:
    """A connector of the engine: its class, its port, and the columns of the envelope that order its changes."""

    class_name: str
    port: int
    sequence: tuple[str, ...]
    has_history: bool = True
    """True for a connector that keeps a history of the schema beside its offset."""
    names_database: str = "database.dbname"


CONNECTORS: Mapping[str, Connector] = {
    POSTGRES: Connector("io.debezium.connector.postgresql.PostgresConnector", 5432, ("_lsn",), has_history=False),
    "mysql": Connector(
        "io.debezium.connector.mysql.MySqlConnector", 3306, ("_file_no", "_pos", "_row"), True, "database.include.list"
    ),
    "sqlserver": Connector(
        "io.debezium.connector.sqlserver.SqlServerConnector", 1433, ("_change_lsn", "_ord"), True, "database.names"
    ),
    "oracle": Connector("io.debezium.connector.oracle.OracleConnector", 1521, ("_scn",)),
}
"""The connectors whose envelopes have columns of rows."""
ALIASES = {"mariadb": "mysql"}
KEYS = (
    "connector",
    "host",
    "port",
    "user",
    "password",
    "database",
    "tables",
    "slot",
    "publication",
    "transactions",
    "copy",
    "options",
)
ENGINE, RANGES = "engine", "ranges"
"""The maker of the first copy, if the file names one."""
TEXTS = ("host", "user", "password", "database", "slot", "publication")
OURS = (
    "name",
    "connector.class",
    "offset.storage",
    "offset.flush",
    "offset.commit",
    "schema.history.internal",
    "topic.prefix",
    "provide.transaction.metadata",
    "skipped.operations",
    "tombstones.on.delete",
    "transforms",
    "converter",
    "key.converter",
    "value.converter",
)
"""Settings of the engine that this program gives, with all that begin so."""


@dataclass(frozen=True)
class DebeziumSpec:
    """A database as a live source. `password` and secrets of `options` are references (`env:NAME`, `file:PATH`)."""

    connector: str
    host: str
    user: str
    database: str
    port: int
    password: str | None = None
    tables: tuple[str, ...] = ()
    slot: str | None = None
    publication: str | None = None
    transactions: bool = False
    copy: str | None = None
    """`engine` or `ranges`; None: ranges for large tables of PostgreSQL that can be copied so."""
    options: Mapping[str, str] = field(default_factory=dict)
    kind = "debezium"

    @property
    def shown(self) -> str:
        return f"{self.connector} at {self.host}:{self.port}/{self.database}"

    def opened(self, context: LiveContext) -> LiveReader:
        may_copy = self.connector == POSTGRES and context.state.offset is None and self.copy != ENGINE
        found: LiveReader = (may_copy and copying.opened_copy(self, context)) or reader.DebeziumReader(self, context)
        return found


def parse_debezium(where: str, value: object, into: str) -> DebeziumSpec:
    """Return the value of `debezium =`; InvalidInput (13) says what is wrong in it."""
    where = f"{where}: debezium"
    values = as_mapping(value, where)
    check_names(values, KEYS, where)
    connector = as_text(values.get("connector"), f"{where} connector")
    connector = ALIASES.get(connector, connector)
    if connector == "mongodb":
        raise InvalidInputError(
            f"{where}: MongoDB is not read: its connector gives a document as one text of JSON, without columns."
        )
    if connector not in CONNECTORS:
        known = [*CONNECTORS, *ALIASES]
        raise InvalidInputError(
            f"{where}: {connector!r} is not a connector.{did_you_mean(connector, known)} Use one of {', '.join(known)}."
        )
    texts = {name: as_text(values[name], f"{where} {name}") for name in TEXTS if name in values}
    for name in ("host", "user", "database"):
        as_text(values.get(name), f"{where} {name}")
    port = values.get("port", CONNECTORS[connector].port)
    if not isinstance(port, int) or isinstance(port, bool) or not 0 < port < 1 << 16:
        raise InvalidInputError(f"{where}: port is a number below 65536, not {port!r}.")
    transactions = values.get("transactions", False)
    if not isinstance(transactions, bool):
        raise InvalidInputError(f"{where}: transactions is true or false.")
    copy = values.get("copy")
    if copy not in (None, ENGINE, RANGES) or (copy == RANGES and connector != POSTGRES):
        raise InvalidInputError(f"{where}: copy is {ENGINE!r} or, of {POSTGRES}, {RANGES!r}, not {copy!r}.")
    tables = as_texts(values.get("tables", []), f"{where} tables")
    if TABLE not in into and len(tables) != 1:
        raise InvalidInputError(f'{where}: several tables need {TABLE} in into, such as into = "raw.{TABLE}".')
    options = _options(where, values.get("options", {}))
    if "password" in texts and not texts["password"].startswith((VARIABLE, FILE)):
        raise InvalidInputError(f'{where}: write the password as a reference: "env:NAME" or "file:PATH".')
    given: dict[str, Any] = {**texts, "port": port, "tables": tables, "transactions": transactions, "copy": copy}
    return DebeziumSpec(connector, options=options, **given)


def _options(where: str, value: object) -> dict[str, str]:
    found = {}
    for name, each in as_mapping(value, f"{where} options").items():
        if name.startswith(OURS):
            raise InvalidInputError(f"{where} options: {name} is given by Headwater and cannot be set.")
        text = str(each).lower() if isinstance(each, bool) else str(each)
        if is_bare_secret(name, text):
            raise InvalidInputError(f'{where} options: write {name} as a reference: "env:NAME" or "file:PATH".')
        found[name] = text
    return found


Parse = Callable[[str, Any, str], LiveSpec]
"""Parses what [[source]] says under the kind's name. Arguments: the section for errors, the value, and `into`."""
KINDS: Mapping[str, Parse] = {"debezium": parse_debezium, "dlt": parse_dlt, "kafka": parse_kafka}
"""One row for each kind: a new kind is a row here, a `LiveSpec` and a `LiveReader`."""
