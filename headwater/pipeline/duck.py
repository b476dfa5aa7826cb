"""DuckDB in this process: SQL over Arrow tables under the names of a catalog, and SQL as a tree.

It sees nothing but the tables it is given: no file, no variable, no setting of the user's.
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
Json = dict[str, Any]


class SqlError(InvalidInputError):
    """Error 13: DuckDB does not take the SQL, in its words."""


class Duck:
    """A database in memory that is there while it is used."""

    def __init__(self, connection: Any, error: type[Exception]) -> None:
        self._connection = connection
        self._error = error
        self._inputs = 0

    def query(self, sql: str) -> pa.Table:
        with self._told():
            relation = self._connection.sql(sql)
            if relation is None:
                raise SqlError(f"it is no query: {sql[:200]}")
            found: pa.Table = relation.to_arrow_table()
            return found

    def add(self, name: str, table: pa.Table) -> None:
        """A table under its name in the catalog; another one of the name gives way."""
        names = parse_name(name)
        with self._told():
            self._inputs += 1
            place = f"__input_{self._inputs}"
            self._connection.register(place, table)
            if len(names) == MAX_LEVEL:
                self._connection.execute(f"ATTACH IF NOT EXISTS ':memory:' AS {quoted(names[:1])}")
            if len(names) > 1:
                self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(names[:-1])}")
            self._connection.execute(f"CREATE OR REPLACE VIEW {quoted(names)} AS SELECT * FROM temp.main.{place}")

    def tree(self, sql: str) -> Json | None:
        """The one query that a text is, as DuckDB's tree; None: it is several statements."""
        with self._told():
            ((text,),) = self._connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()
        found = json.loads(text)
        if found["error"]:
            raise SqlError(str(found["error_message"])[:200])
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
    def _told(self) -> Iterator[None]:
        try:
            yield
        except self._error as error:
            raise SqlError(str(error)[:500]) from None


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
    connection = package.connect(":memory:", config={"enable_external_access": "false"})
    try:
        connection.execute("SET python_enable_replacements = false; SET TimeZone = 'UTC'")
        yield Duck(connection, package.Error)
    finally:
        connection.close()
