"""One SELECT over tables of a catalog, run by the embedded engine in this process. It reaches the tables it names."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from headwater.errors import InvalidInputError, UnsupportedOperationError
from headwater.names import format_name, parse_name
from headwater.sql.embedded import MAX_LEVEL, MISSING, installed, opened
from headwater.sql.spark_parser import DUCKDB, SPARK, SqlError, UnsupportedSqlError, parse_query, tables_in

SELECTS = re.compile(r"\s*(?:(?:select|with|from|values)\b(?!\.|\Z)|\()", re.IGNORECASE)
_NAME = re.compile(r'(?:"(?:[^"]|"")*+"|[^\s"])+')
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
_REFUSED = re.compile(
    r"(read|scan|sniff|parquet|duckdb|pragma|pg|sqlite|postgres|mysql|iceberg|delta|arrow|pandas|python|st_read)_\w*"
    r"|glob|query|query_table|getenv|getvariable|current_setting|set_config|which_secret|load_\w*|\w*_settings?"
    r"|in_search_path|write_log|parse_duckdb_log_message|repeat_row|test_\w*|checkpoint|force_checkpoint|seq_scan"
    r"|arrow_scan\w*|storage_info|summary|nextval|currval|to_arrow_ipc|version|current_(user|database|schemas?)",
    re.IGNORECASE,
)


def is_sql(text: str) -> bool:
    """Return True for SQL, also SQL with a mistake; False for a table's name."""
    return SELECTS.match(text) is not None or _NAME.fullmatch(text) is None


def run(
    sql: str,
    catalog: Any,
    is_near: bool,
    most: int | None = None,
    moment: Any = None,
    dialect: str = SPARK,
    is_fixed: bool = False,
) -> pa.Table:
    """Return the rows of one SELECT over tables of a catalog, at most `most`; all tables are read at one commit.

    `is_near`: this process can open the files of the tables. `moment`: a commit, a time or a snapshot. `dialect`: the
    language of the query, `spark` or `duckdb`. `is_fixed`: the catalog reads one state already, as a transaction does.
    """
    if dialect not in (SPARK, DUCKDB):
        raise InvalidInputError(f"A query is in the dialect {SPARK} or {DUCKDB}, not {dialect!r}.")
    if not installed():
        raise UnsupportedOperationError(MISSING)
    try:
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
            return engine.query_native(sql, most) if dialect == DUCKDB else engine.query(sql, most)
    except SqlError as error:
        raise InvalidInputError(f"The query cannot be run: {error}") from None
    except UnsupportedSqlError as error:
        raise UnsupportedOperationError(f'{error}: ask Spark, or in dialect="duckdb".') from None


def check_native(sql: str) -> None:
    """Raise InvalidInput (13) for SQL of DuckDB that reads files, URLs, settings or the environment, by its name."""
    for word in _WORD.finditer(_COMMENT.sub(lambda found: found["kept"] or " ", sql)):
        named = word["name"] or word["quoted"] or ""
        if _OWN.fullmatch(named):
            raise InvalidInputError(f"A query does not read {named}: it reads tables of the catalog, nothing else.")
        if (word["called"] or word["call"]) and _REFUSED.fullmatch(named):
            raise InvalidInputError(f"A query does not call {named}(): it reads tables of the catalog, nothing else.")


def _path(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the table that SQL names; a single name in quotes may hold all of it, as `a.b`."""
    return tuple(parse_name(names[0])) if len(names) == 1 else names


def _check_level(names: tuple[str, ...]) -> None:
    if len(names) > MAX_LEVEL:
        raise UnsupportedOperationError(
            f"SQL of DuckDB has room for {MAX_LEVEL} names of a table, not {len(names)}: write it in quotes, as "
            f'"{format_name(names)}".'
        )


def _newest(catalog: Any) -> Any:
    """Return the catalog at its newest commit; a catalog without commits, such as a directory, as it is."""
    try:
        return catalog.at(catalog.slot)
    except UnsupportedOperationError:
        return catalog


def _readable(table: Any, is_near: bool) -> Any:
    """Return the dataset itself, of which DuckDB takes only the columns and rows it needs; else the rows."""
    return table.dataset() if is_near and not table.is_stream else table.to_arrow()
