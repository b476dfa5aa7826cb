"""One SELECT over tables of a catalog, run by DuckDB in this process. It reaches the tables it names, nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import pyarrow as pa

from headwater.errors import InvalidInputError, UnsupportedOperationError
from headwater.names import format_name, parse_name

MAX_NAMES = 3
"""DuckDB names a table by a database, a schema and itself."""
SELECTS = re.compile(r"\s*(?:(?:select|with|from|values)\b(?!\.|\Z)|\()", re.IGNORECASE)
_WORD = re.compile(
    r"""'(?:[^']|'')*+' | "(?P<quoted>(?:[^"]|"")*+)"\s*(?P<call>\()? | --[^\n]*+ | /\*.*?\*/
    | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$ | (?P<name>[A-Za-z_]\w*+)\s*(?P<called>\()?""",
    re.VERBOSE | re.DOTALL,
)
_COMMENT = re.compile(
    r"""(?P<kept>'(?:[^']|'')*+' | "(?:[^"]|"")*+") | --[^\n]*+ | /\*.*?\*/""", re.VERBOSE | re.DOTALL
)
_OWN = re.compile(r"pg_catalog|information_schema|pg_settings|duckdb_\w+|sqlite_\w+|pragma_\w+", re.IGNORECASE)
"""DuckDB's own tables, which tell of its settings."""
_PART = re.compile(r'"(?:[^"]|"")*"|[^."\s]+')
_SPELLED = re.compile(rf"(?:{_PART.pattern})(?:\.(?:{_PART.pattern}))*|")
"""A table as DuckDB spells it, which an alias may follow."""
_REFUSED = re.compile(
    r"(read|scan|sniff|parquet|duckdb|pragma|pg|sqlite|postgres|mysql|iceberg|delta|arrow|pandas|python|st_read)_\w*"
    r"|glob|query|query_table|getenv|getvariable|current_setting|set_config|which_secret|load_\w*|\w*_settings?"
    r"|in_search_path|write_log|parse_duckdb_log_message|repeat_row|test_\w*|checkpoint|force_checkpoint|seq_scan"
    r"|arrow_scan\w*|storage_info|summary|nextval|currval|to_arrow_ipc|version|current_(user|database|schemas?)",
    re.IGNORECASE,
)


def is_select(text: str) -> bool:
    """Whether this is SQL and not, as in early versions, the name of a table."""
    return SELECTS.match(text) is not None


def check(sql: str) -> None:
    """InvalidInput (13) for a function that reads files, URLs, settings or the environment, by its name."""
    for word in _WORD.finditer(_COMMENT.sub(lambda found: found["kept"] or " ", sql)):
        named = word["name"] or word["quoted"] or ""
        if _OWN.fullmatch(named):
            raise InvalidInputError(f"A query does not read {named}: it reads tables of the catalog, nothing else.")
        called = named if word["called"] or word["call"] else ""
        if _REFUSED.fullmatch(called):
            raise InvalidInputError(f"A query does not call {called}(): it reads tables of the catalog, nothing else.")


def run(sql: str, open_table: Callable[[tuple[str, ...]], Any], most: int | None = None) -> pa.Table:
    """The answer of one SELECT, `most` rows of it. `open_table` gives what DuckDB can read of the table of a name."""
    try:
        import duckdb
    except ModuleNotFoundError:
        raise UnsupportedOperationError("`headwater query` needs duckdb: pip install 'headwater[sql]'.") from None
    check(sql)
    with _said(duckdb.Error):
        named = _tables(duckdb, sql)
    connection = _connect(duckdb)
    for number, names in enumerate(sorted(named)):
        found = open_table(parse_name(names[0]) if len(names) == 1 else names)
        with _said(duckdb.Error):
            connection.register(f"__headwater_{number}", found)
            _view(connection, names, f"__headwater_{number}")
    with _said(duckdb.Error):
        _lock(connection)
        found = connection.sql(sql)
        answer: pa.Table = (found if most is None else found.limit(most)).to_arrow_table()
        return answer


def _connect(duckdb: Any) -> Any:
    settings = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
    connection = duckdb.connect(":memory:", config=settings)
    connection.execute("SET python_enable_replacements = false")
    return connection


def _lock(connection: Any) -> None:
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def _tables(duckdb: Any, sql: str) -> set[tuple[str, ...]]:
    """The names of the tables of a query. InvalidInput (13) unless it is one SELECT."""
    connection = _connect(duckdb)
    _lock(connection)
    statements = connection.extract_statements(sql)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT or not is_select(sql):
        raise InvalidInputError("A query is one SELECT: other statements, and several at once, are refused.")
    try:
        return {_names(spelled) for spelled in connection.get_table_names(sql, qualified=True)}
    except duckdb.BinderException:  # it looks for the columns of JOIN ... USING in tables that it has not got yet
        (parsed,) = connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchone()
        nodes = list(_nodes(msgspec.json.decode(parsed)))
        own = {(each["key"],) for node in nodes for each in node.get("cte_map", {}).get("map", ())}
        tables = (node for node in nodes if node.get("type") == "BASE_TABLE")
        parts = ((table["catalog_name"], table["schema_name"], table["table_name"]) for table in tables)
        return {tuple(part for part in names if part) for names in parts} - own


def _nodes(parsed: Any) -> Iterator[dict[str, Any]]:
    """Every node of a parsed query."""
    if isinstance(parsed, dict):
        yield parsed
    for value in parsed.values() if isinstance(parsed, dict) else parsed if isinstance(parsed, list) else ():
        yield from _nodes(value)


def _names(text: str) -> tuple[str, ...]:
    """The names of a table as DuckDB spells them; a quoted one that is the only one may hold the whole name."""
    spelled = _SPELLED.match(text)
    parts = _PART.findall(spelled[0] if spelled else "")
    names = tuple(part[1:-1].replace('""', '"') if part.startswith('"') else part for part in parts)
    if len(names) > MAX_NAMES:
        raise UnsupportedOperationError(
            f"SQL has room for {MAX_NAMES} names of a table, not {len(names)}: write it in quotes, as "
            f'"{format_name(names)}".'
        )
    return names


def _view(connection: Any, names: Sequence[str], source: str) -> None:
    *above, name = (f'"{part.replace(chr(34), chr(34) * 2)}"' for part in names)
    if len(above) == 2:
        connection.execute(f"ATTACH IF NOT EXISTS ':memory:' AS {above[0]}")
    if above:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {'.'.join(above)}")
    connection.execute(f"CREATE TEMP VIEW {name} AS SELECT * FROM {source}" if not above else
                       f"CREATE VIEW {'.'.join((*above, name))} AS SELECT * FROM temp.main.{source}")  # fmt: skip


@contextmanager
def _said(errors: type[Exception]) -> Iterator[None]:
    """DuckDB's refusals as InvalidInput (13), in its own first words."""
    try:
        yield
    except errors as error:
        raise InvalidInputError(f"The query cannot be run: {str(error).splitlines()[0][:300]}") from None
