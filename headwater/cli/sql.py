"""One SELECT over tables of a catalog, run by DuckDB in this process. It reaches the tables it names, nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from headwater.duck import MAX_LEVEL, Duck, SqlError, installed, opened
from headwater.errors import InvalidInputError, UnsupportedOperationError
from headwater.names import format_name, parse_name

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


def is_sql(text: str) -> bool:
    """Return True for SQL, also SQL with a mistake; False for a table's name, which early versions took."""
    return SELECTS.match(text) is not None or _NAME.fullmatch(text) is None


def check(sql: str) -> None:
    """InvalidInput (13) for a function that reads files, URLs, settings or the environment, by its name."""
    for word in _WORD.finditer(_COMMENT.sub(lambda found: found["kept"] or " ", sql)):
        named = word["name"] or word["quoted"] or ""
        if _OWN.fullmatch(named):
            raise InvalidInputError(f"A query does not read {named}: it reads tables of the catalog, nothing else.")
        called = named if word["called"] or word["call"] else ""
        if _REFUSED.fullmatch(called):
            raise InvalidInputError(f"A query does not call {called}(): it reads tables of the catalog, nothing else.")


def run(sql: str, catalog: Any, is_near: bool, most: int | None = None, moment: Any = None) -> pa.Table:
    """Return the rows of one SELECT over tables of a catalog, at most `most`; all tables are read at one commit.

    `is_near`: this process can open the files of the tables. `moment`: a commit, a time or a snapshot.
    """
    if installed() is None:
        raise UnsupportedOperationError("`headwater query` needs duckdb: pip install 'headwater[sql]'.")
    check(sql)
    with opened() as duck, _said():
        named = sorted(_tables(duck, sql))
        at = _newest(catalog) if moment is None else catalog.at(moment)
        for names in named:
            duck.add(names, _readable(at[parse_name(names[0]) if len(names) == 1 else names], is_near))
        return duck.query(sql, most)


def _newest(catalog: Any) -> Any:
    """Return the catalog at its newest commit; a catalog without commits, such as a directory, as it is."""
    try:
        return catalog.at(catalog.slot)
    except UnsupportedOperationError:
        return catalog


def _readable(table: Any, is_near: bool) -> Any:
    """Return what DuckDB reads: the dataset, of which it takes only the columns and rows it needs; else the rows."""
    return table.dataset() if is_near and not table.is_stream else table.to_arrow()


def _tables(duck: Duck, sql: str) -> set[tuple[str, ...]]:
    """The names of the tables of a query. InvalidInput (13) unless it is one SELECT."""
    if not duck.is_select(sql) or SELECTS.match(sql) is None:
        raise InvalidInputError("A query is one SELECT: other statements, and several at once, are refused.")
    spelled = duck.table_names(sql)
    if spelled is not None:
        return {_names(each) for each in spelled}
    nodes = list(_nodes(duck.tree(sql)))
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
    if len(names) > MAX_LEVEL:
        raise UnsupportedOperationError(
            f"SQL has room for {MAX_LEVEL} names of a table, not {len(names)}: write it in quotes, as "
            f'"{format_name(names)}".'
        )
    return names


@contextmanager
def _said() -> Iterator[None]:
    """DuckDB's refusals, as those of a query."""
    try:
        yield
    except SqlError as error:
        raise InvalidInputError(f"The query cannot be run: {error}") from None
