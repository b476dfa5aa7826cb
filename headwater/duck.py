"""DuckDB in memory: the module that opens it, for queries, for views and for agents.

A database sees the tables that it is given, and nothing else: no file, no extension, no variable of Python. Its
settings cannot be changed, and it computes in UTC.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from headwater.errors import InvalidInputError
from headwater.names import parse_name

MAX_LEVEL = 3
"""So many names may stand in a table's name in SQL: catalog, schema, table."""
SETTINGS = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "temp_directory": "",
    "errors_as_json": "true",
}
"""No file is read or written, not even to make room in memory; an error tells its place in the SQL."""
Json = dict[str, Any]


class SqlError(InvalidInputError):
    """Error 13: DuckDB does not take the SQL, in its words and with the place."""


class Duck:
    """A database in memory that is there while it is used."""

    def __init__(self, connection: Any, package: Any) -> None:
        self._connection = connection
        self._package = package
        self._inputs = 0

    def query(self, sql: str, most: int | None = None) -> pa.Table:
        """Return the rows of a query, at most `most` of them."""
        with self._told(sql):
            relation = self._connection.sql(sql)
            if relation is None:
                raise SqlError(f"it is no query: {sql[:200]}")
            found: pa.Table = (relation if most is None else relation.limit(most)).to_arrow_table()
            return found

    def add(self, name: str | Sequence[str], table: Any) -> None:
        """Add Arrow data under its name in the catalog, or under the names that SQL has for it; replace an older one.

        `name`: the name in the catalog as text, or the parts of a name in SQL.
        """
        names = parse_name(name) if isinstance(name, str) else tuple(name)
        with self._told():
            self._inputs += 1
            place = f"__input_{self._inputs}"
            self._connection.register(place, table)
            if len(names) == MAX_LEVEL:
                self._connection.execute(f"ATTACH IF NOT EXISTS ':memory:' AS {quoted(names[:1])}")
            if len(names) > 1:
                self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(names[:-1])}")
            self._connection.execute(f"CREATE OR REPLACE VIEW {quoted(names)} AS SELECT * FROM temp.main.{place}")

    def is_select(self, sql: str) -> bool:
        """Return True if a text is one SELECT; SqlError if it cannot be parsed."""
        with self._told(sql):
            statements = self._connection.extract_statements(sql)
        return len(statements) == 1 and statements[0].type == self._package.StatementType.SELECT

    def table_names(self, sql: str) -> set[str] | None:
        """Return the tables of a query as DuckDB spells them; None where it wants to see their columns first."""
        with self._told(sql):
            try:
                return set(self._connection.get_table_names(sql, qualified=True))
            except self._package.BinderException:  # of JOIN ... USING
                return None

    def tree(self, sql: str) -> Json | None:
        """The one query that a text is, as DuckDB's tree; None: it is several statements."""
        with self._told():
            ((text,),) = self._connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()
        found = json.loads(text)
        if found["error"]:
            raise SqlError(str(found["error_message"])[:200] + _place(found, sql))
        nodes = [each["node"] for each in found["statements"]]
        return nodes[0] if len(nodes) == 1 else None

    def text(self, tree: Json) -> str:
        """The SQL of a tree."""
        whole = json.dumps({"error": False, "statements": [{"node": tree}]})
        with self._told():
            ((text,),) = self._connection.execute("SELECT json_deserialize_sql(?::JSON)", [whole]).fetchall()
        return str(text)

    def unstable(self, functions: Iterable[str]) -> list[str]:
        """Those of these functions that may give something else the next time, or are not known."""
        with self._told():
            asked = "SELECT function_name FROM duckdb_functions() WHERE function_name = ANY(?) GROUP BY ALL"
            asked += " HAVING bool_and(stability IS NOT DISTINCT FROM 'CONSISTENT')"
            wanted = sorted(set(functions))
            known = {name for (name,) in self._connection.execute(asked, [wanted]).fetchall()}
        return [name for name in wanted if name not in known]

    def aggregates(self, functions: Iterable[str]) -> list[str]:
        """Those of these functions that make one value of many rows."""
        with self._told():
            asked = "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_name = ANY(?)"
            asked += " AND function_type = 'aggregate'"
            return sorted(name for (name,) in self._connection.execute(asked, [sorted(set(functions))]).fetchall())

    @contextmanager
    def _told(self, sql: str | None = None) -> Iterator[None]:
        """Raise SqlError for an error of DuckDB, with its place in `sql` where that is known."""
        try:
            yield
        except self._package.Error as error:
            raise SqlError(_words(str(error), sql)) from None


def _words(text: str, sql: str | None) -> str:
    """Return an error of DuckDB as one line: its kind, its message, and its place in the SQL."""
    kind, _, rest = text.partition(": ")
    try:
        found = json.loads(rest)
        message = f"{kind}: {' '.join(str(found['exception_message']).split())}"
    except (ValueError, KeyError, TypeError):  # an error of the package itself is plain text
        return text[:500]
    return message[:500] + _place(found, sql)


def _place(found: Json, sql: str | None) -> str:
    """Return the line and column that an error names, counted from 1, or nothing."""
    position = str(found.get("position", ""))
    if sql is None or not position.isdecimal():
        return ""
    before = sql.encode()[: int(position)].decode(errors="ignore")
    return f" (line {before.count(chr(10)) + 1}, column {len(before.rpartition(chr(10))[2]) + 1})"


def quoted(names: Sequence[str]) -> str:
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def installed() -> Any:
    """The package, or None."""
    try:
        import duckdb
    except ModuleNotFoundError:
        return None
    return duckdb


@contextmanager
def opened() -> Iterator[Duck]:
    """DuckDB, with nothing in it."""
    package = installed()
    connection = package.connect(":memory:", config=SETTINGS)
    try:
        connection.execute(
            "SET python_enable_replacements = false; SET TimeZone = 'UTC'; SET lock_configuration = true"
        )
        yield Duck(connection, package)
    finally:
        connection.close()
