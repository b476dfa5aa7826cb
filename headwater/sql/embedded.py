"""The embedded engine: DuckDB in memory, which runs Spark SQL that was translated, or SQL of its own on request.

A database sees the tables that it is given, and nothing else: no file, no extension, no variable of Python. Its
settings cannot be changed, and it computes in UTC. One SELECT over tables of a catalog reaches the tables it names.
`DESCRIBE HISTORY name` is answered here too, from the commits.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from itertools import islice
from typing import Any, Protocol

import pyarrow as pa

from headwater.errors import InvalidInputError, UnsupportedOperationError
from headwater.imports import duckdb, exp, lance, sqlglot, when_used
from headwater.names import format_name, parse_name
from headwater.sql.casts import REFUSED
from headwater.sql.spark_parser import (
    DUCKDB,
    SPARK,
    SqlError,
    UnsupportedSqlError,
    check_quotes,
    parse_query,
    tables_in,
)
from headwater.sql.sql_types import quoted

_STATEMENT = re.compile(r"\s*desc(?:ribe)?\s+history\s+(?P<name>\S.*?)\s*;?\s*", re.IGNORECASE | re.DOTALL)
_FIELDS: list[pa.Field[Any]] = [
    pa.field("commit", pa.int64()),
    pa.field("time", pa.timestamp("ms", "UTC")),
    pa.field("author", pa.string()),
    pa.field("operation", pa.string()),
    pa.field("message", pa.string()),
    pa.field("version", pa.int64()),
    pa.field("name", pa.string()),
]
SCHEMA = pa.schema(_FIELDS)
"""`operation` is what was done to the table, such as `append 3 rows`; `message` is that of the whole transaction."""


def asked_name(sql: str) -> tuple[str, ...] | None:
    """Return the name that a DESCRIBE HISTORY asks about; None for another statement."""
    found = _STATEMENT.fullmatch(sql)
    return None if found is None else tuple(parse_name(found["name"].replace("`", '"')))


def history_rows(entries: Sequence[Any], most: int | None = None) -> pa.Table:
    """Return the entries of a history, oldest first, as rows, newest first; at most `most`."""
    rows = [
        {
            "commit": entry.slot,
            "time": entry.time,
            "author": entry.author,
            "operation": entry.summary,
            "message": entry.message,
            "version": entry.version,
            "name": format_name(entry.path) if entry.path else None,
        }
        for entry in islice(reversed(entries), most)
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


selects = when_used("headwater.sql.selects")
MAX_LEVEL = 3
"""So many names may stand in a table's name in SQL of DuckDB: catalog, schema, table."""
SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "temp_directory": "",
}
"""No file is read or written, not even to make room in memory."""
SESSION = """
SET python_enable_replacements = false; SET TimeZone = 'UTC'; SET errors_as_json = true; SET lock_configuration = true
"""
"""Settings that DuckDB 1.4 takes of a session alone: an error tells its place in the SQL."""
MISSING = "SQL without Spark needs DuckDB and sqlglot: pip install 'headwater[sql]'."


class QueriedTable(Protocol):
    """A table of a catalog, as far as a query reads it."""

    @property
    def is_stream(self) -> bool: ...

    def dataset(self) -> lance.LanceDataset: ...

    def to_arrow(self) -> pa.Table: ...


class QueriedCatalog(Protocol):
    """A catalog, as far as a query reads it."""

    @property
    def slot(self) -> int: ...

    def at(self, moment: int | datetime | str) -> QueriedCatalog: ...

    def __getitem__(self, name: Sequence[str]) -> QueriedTable: ...

    def history(self, name: Sequence[str]) -> Sequence[object]: ...


class EmbeddedEngine:
    """A database in memory that is there while it is used."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._sources: dict[str, tuple[str, pa.Schema]] = {}
        self._inputs = 0

    def close(self) -> None:
        self._connection.close()

    def add(self, name: str, rows: lance.LanceDataset | pa.Table) -> None:
        """Add Arrow data as a table of this name in the catalog; replace an older one."""
        with self._raising_sql_errors():
            self._inputs += 1
            place = f"__input_{self._inputs}"
            self._connection.register(place, rows)
            old = self._sources.pop(name, None)
            if old is not None:
                self._connection.unregister(old[0])
            self._sources[name] = (place, rows.schema)

    def query(self, query: str | exp.Expr, most: int | None = None) -> pa.Table:
        """Return the rows of a query in Spark SQL, as text or as a tree, at most `most` of them.

        UnsupportedSqlError names a part of it that DuckDB does not compute with the same meaning.
        """
        if isinstance(query, str):
            check_quotes(query, (name for _, schema in self._sources.values() for name in schema.names))
        tree = parse_query(query) if isinstance(query, str) else query
        return self._run(
            selects.translate(tree, {name: selects.SqlTable(*held) for name, held in self._sources.items()}), most
        )

    def plan(self, query: str) -> str:
        """Return how DuckDB would compute a query in Spark SQL, as a drawing in text."""
        tree = parse_query(query)
        known = {name: selects.SqlTable(*held) for name, held in self._sources.items()}
        with self._raising_sql_errors():
            return str(self._connection.sql(selects.translate(tree, known)).explain())

    def answers(self, conditions: Sequence[exp.Expr], rows: pa.Table) -> pa.Table:
        """Return what conditions (trees) answer for each row, as columns c0, c1 and so on."""
        place = "__input_rows"
        text = selects.translate_conditions(conditions, selects.SqlTable(place, rows.schema))
        with self._raising_sql_errors():
            self._connection.register(place, rows)
        try:
            return self._run(text)
        finally:
            self._connection.unregister(place)

    def add_native(self, names: Sequence[str], rows: lance.LanceDataset | pa.Table) -> None:
        """Add Arrow data under the names that SQL of DuckDB has for it."""
        with self._raising_sql_errors():
            self._inputs += 1
            place = f"__input_{self._inputs}"
            self._connection.register(place, rows)
            if len(names) == MAX_LEVEL:
                self._connection.execute(f"ATTACH IF NOT EXISTS ':memory:' AS {quoted(names[0])}")
            if len(names) > 1:
                schema = ".".join(quoted(name) for name in names[:-1])
                self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
            shown = ".".join(quoted(name) for name in names)
            self._connection.execute(f"CREATE OR REPLACE VIEW {shown} AS SELECT * FROM temp.main.{place}")

    def query_native(self, sql: str, most: int | None = None) -> pa.Table:
        """Return the rows of a query in SQL of DuckDB, over tables of `add_native`."""
        return self._run(sql, most, sql)

    def _run(self, text: str, most: int | None = None, shown: str | None = None) -> pa.Table:
        with self._raising_sql_errors(shown):
            relation = self._connection.sql(text)
            if relation is None:
                raise SqlError(f"it is not a query: {text[:200]}")
            found: pa.Table = (relation if most is None else relation.limit(most)).to_arrow_table()
            return found

    @contextmanager
    def _raising_sql_errors(self, sql: str | None = None) -> Iterator[None]:
        """Raise SqlError for an error of DuckDB, with its place in `sql` where the user wrote that."""
        try:
            yield
        except duckdb.Error as error:
            words = _words(str(error), sql)
            _, refused, construct = words.partition(REFUSED)
            raise UnsupportedSqlError(construct) if refused else SqlError(words) from None


def _words(text: str, sql: str | None) -> str:
    """Return an error of DuckDB as one line: its kind, its message, and its place in the SQL."""
    kind, _, rest = text.partition(": ")
    try:
        found = json.loads(rest)
        message = f"{kind}: {' '.join(str(found['exception_message']).split())}"
    except (ValueError, KeyError, TypeError):  # an error of the package itself is plain text
        return text[:500]
    return message[:500] + _place(found, sql)


def _place(found: Mapping[str, object], sql: str | None) -> str:
    """Return the line and column that an error names, counted from 1, or nothing."""
    position = str(found.get("position", ""))
    if sql is None or not position.isdecimal():
        return ""
    before = sql.encode()[: int(position)].decode(errors="ignore")
    return f" (line {before.count(chr(10)) + 1}, column {len(before.rpartition(chr(10))[2]) + 1})"


def installed() -> bool:
    """Return True if the packages of the embedded engine are there."""
    try:
        return callable(duckdb.connect) and callable(sqlglot.parse)
    except ModuleNotFoundError:
        return False


def _connected() -> EmbeddedEngine:
    """Return an engine over a new database, whose settings cannot be changed.

    Engines do not share a database: in DuckDB 1.4 the settings of a session do not hold for its cursors.
    """
    if not installed():
        raise UnsupportedOperationError(MISSING)
    connection = duckdb.connect(":memory:", config=SETTINGS)
    connection.execute(SESSION)
    return EmbeddedEngine(connection)


@contextmanager
def opened() -> Iterator[EmbeddedEngine]:
    """An engine with nothing in it."""
    engine = _connected()
    try:
        yield engine
    finally:
        engine.close()


_turn = threading.Lock()


@contextmanager
def shared() -> Iterator[EmbeddedEngine]:
    """The one engine of this process that answers conditions: to open one takes longer than a small batch."""
    with _turn:
        yield _of_process(os.getpid())


@lru_cache(maxsize=1)
def _of_process(process: int) -> EmbeddedEngine:
    return _connected()


SELECTS = re.compile(r"\s*(?:(?:select|with|from|values)\b(?!\.|\Z)|\()", re.IGNORECASE)
_NAME = re.compile(r'(?:"(?:[^"]|"")*+"|[^\s"])+')
_IDENTIFIER = re.compile(r'"(?P<quoted>(?:[^"]|"")*+)"|(?P<plain>[^\W\d][\w$]*+)')
_VALUES = ("comment", "string_const")
_OWN = re.compile(r"pg_catalog|information_schema|pg_settings|duckdb_\w+|sqlite_\w+|pragma_\w+", re.IGNORECASE)
"""DuckDB's own tables, which tell of its settings."""
_REFUSED = re.compile(
    r"(read|scan|sniff|parquet|duckdb|pragma|pg|sqlite|postgres|mysql|iceberg|delta|arrow|pandas|python|st_read)_\w*"
    r"|glob|query|query_table|getenv|getvariable|current_setting|set_config|which_secret|load_\w*|\w*_settings?"
    r"|in_search_path|write_log|parse_duckdb_log_message|repeat_row|test_\w*|checkpoint|force_checkpoint|seq_scan"
    r"|arrow_scan\w*|storage_info|summary|nextval|currval|to_arrow_ipc|version|current_(user|database|schemas?|query)"
    r"|json_(execute|serialize|deserialize)_\w*|(en|dis)able_\w*|\w*_external_resource\w*|truncate_duckdb_logs|sleep_ms",
    re.IGNORECASE,
)


def is_sql(text: str) -> bool:
    """Return True for SQL, also SQL with a mistake; False for a table's name."""
    return SELECTS.match(text) is not None or _NAME.fullmatch(text) is None


def run(
    sql: str,
    catalog: QueriedCatalog,
    is_near: bool,
    most: int | None = None,
    moment: int | datetime | str | None = None,
    dialect: str = SPARK,
    is_fixed: bool = False,
) -> pa.Table:
    """Return the rows of one SELECT over tables of a catalog, at most `most`; all tables are read at one commit.

    Or of a DESCRIBE HISTORY, which names a table or namespace.

    `is_near`: this process can open the files of the tables. `moment`: a commit, a time or a snapshot. `dialect`: the
    language of the query, `spark` or `duckdb`. `is_fixed`: the catalog reads one state already, as a transaction does.
    """
    named = asked_name(sql)
    if named is not None:
        return history_rows((catalog if moment is None else catalog.at(moment)).history(list(named)), most)
    with _over_tables(sql, catalog, is_near, moment, dialect, is_fixed) as engine:
        return engine.query_native(sql, most) if dialect == DUCKDB else engine.query(sql, most)


def plan(sql: str, catalog: QueriedCatalog) -> str:
    """Return the plan of one SELECT in Spark SQL over tables of a catalog that reads one state; nothing is run."""
    with _over_tables(sql, catalog, True, None, SPARK, True) as engine:
        return engine.plan(sql)


def tables_of(sql: str, dialect: str = SPARK) -> list[tuple[str, ...]]:
    """Return the names of the tables that one SELECT reads. Raise InvalidInput (13) if it is no query."""
    with _told_of_query():
        return sorted({_path(names) for names in tables_in(parse_query(sql, dialect))})


@contextmanager
def _over_tables(
    sql: str, catalog: QueriedCatalog, is_near: bool, moment: int | datetime | str | None, dialect: str, is_fixed: bool
) -> Iterator[EmbeddedEngine]:
    """Open an engine with the tables that a query names."""
    if dialect not in (SPARK, DUCKDB):
        raise InvalidInputError(f"A query is in the dialect {SPARK} or {DUCKDB}, not {dialect!r}.")
    if not installed():
        raise UnsupportedOperationError(MISSING)
    with _told_of_query():
        if dialect == DUCKDB:
            check_native(sql)
        named = tables_in(parse_query(sql, dialect))
        at = catalog.at(moment) if moment is not None else catalog if is_fixed else _newest(catalog)
        with opened() as engine:
            for names in sorted(named):
                rows = _readable(at[_path(names)], is_near)
                if dialect == DUCKDB:
                    _check_level(names)
                    engine.add_native(names, rows)
                else:
                    engine.add(format_name(names), rows)
            yield engine


@contextmanager
def _told_of_query() -> Iterator[None]:
    """Raise an error of the engine with what it is about, and the remedy."""
    try:
        yield
    except SqlError as error:
        raise InvalidInputError(f"The query cannot be run: {error}") from None
    except UnsupportedSqlError as error:
        raise UnsupportedOperationError(f'{error}: ask Spark, or in dialect="duckdb".') from None


def check_native(sql: str) -> None:
    """Raise InvalidInput (13) for SQL of DuckDB that reads files, URLs, settings or the environment, by its name."""
    tokens = _tokens(sql)
    for text, following in zip(tokens, [*tokens[1:], ""], strict=True):
        word = _IDENTIFIER.match(text)
        named = "" if word is None else word["plain"] or word["quoted"].replace('""', '"')
        if _OWN.fullmatch(named):
            raise InvalidInputError(f"A query does not read {named}: it reads tables of the catalog, nothing else.")
        if following.startswith("(") and _REFUSED.fullmatch(named):
            raise InvalidInputError(f"A query does not call {named}(): it reads tables of the catalog, nothing else.")


def _tokens(sql: str) -> list[str]:
    """Return the words and signs of SQL as DuckDB divides it, without comments and values of texts."""
    text = sql.encode()
    found = duckdb.tokenize(sql)
    ends = [place for place, _ in found[1:]] + [len(text)]
    kept = ((place, end) for (place, kind), end in zip(found, ends, strict=True) if kind.name not in _VALUES)
    return [text[place:end].decode(errors="replace") for place, end in kept]


def _path(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the table that SQL names; a single name in quotes may hold all of it, as `a.b`."""
    return tuple(parse_name(names[0])) if len(names) == 1 else names


def _check_level(names: tuple[str, ...]) -> None:
    if len(names) > MAX_LEVEL:
        raise UnsupportedOperationError(
            f"SQL of DuckDB has room for {MAX_LEVEL} names of a table, not {len(names)}: write it in quotes, as "
            f'"{format_name(names)}".'
        )


def _newest(catalog: QueriedCatalog) -> QueriedCatalog:
    """Return the catalog at its newest commit; a catalog without commits, such as a directory, as it is."""
    try:
        return catalog.at(catalog.slot)
    except UnsupportedOperationError:
        return catalog


def _readable(table: QueriedTable, is_near: bool) -> lance.LanceDataset | pa.Table:
    """Return the dataset itself, of which DuckDB takes only the columns and rows it needs; else the rows."""
    return table.dataset() if is_near and not table.is_stream else table.to_arrow()
