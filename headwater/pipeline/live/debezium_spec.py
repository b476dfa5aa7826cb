"""`[[source]] debezium = {...}`: a database whose changes the Debezium engine reads, as a value. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headwater.errors import InvalidInputError
from headwater.imports import when_used
from headwater.pipeline.file_values import as_mapping, as_text, as_texts, check_names
from headwater.pipeline.live.live_source import TABLE, LiveContext, LiveReader
from headwater.references import FILE, VARIABLE, is_bare_secret
from headwater.wording import did_you_mean

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


def parse_debezium(where: str, value: Any, into: str) -> DebeziumSpec:
    """The value of `debezium =`; InvalidInput (13) says what is wrong in it."""
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
            f"{where}: {connector!r} is no connector.{did_you_mean(connector, known)} Use one of {', '.join(known)}."
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
