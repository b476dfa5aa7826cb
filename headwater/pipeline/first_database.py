"""The first pipeline file of a database: a live source of its tables, with comments."""

from __future__ import annotations

import json
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from headwater.errors import InvalidInputError, LanceNamespaceError
from headwater.pipeline.live.debezium_spec import ALIASES, CONNECTORS, POSTGRES
from headwater.streams.sources import postgres

SCHEMES = {"postgresql": POSTGRES, **{name: name for name in (*CONNECTORS, *ALIASES)}}
MOST = 20
"""The most tables that are named one by one."""
SOURCE = """
[[source]]
name = "{name}"
into = "{name}.{{table}}"            # a stream table for each table of the database
[source.debezium]                  # pip install 'headwater[debezium]', and Java 17
connector = "{connector}"
host = {host}
port = {port}
user = {user}
password = "env:{variable}_PASSWORD"   # the variable that has it: this file holds no secret
database = {database}
{tables}
transactions = true                # all rows of a transaction of the database become visible in one commit

# [table."{name}.{{table}}"]          # what is so for all of its tables; keys and types are those of the database
# lateness = "7 days"
"""
ALL = '# tables = ["{example}"]         # patterns of the tables to read; default: all of the database'


def database_source(address: str) -> tuple[str, str]:
    """Return the name and the section of a source for `postgres://user@host:port/database`, or that of another kind.

    The tables of PostgreSQL are listed if the server answers; a password of the address is used for that alone.
    """
    found = urlsplit(address)
    connector = SCHEMES.get(found.scheme)
    if connector is None:
        raise InvalidInputError(f"{found.scheme}:// is no database that a pipeline reads: {', '.join(SCHEMES)}.")
    database = unquote(found.path.strip("/"))
    if not found.hostname or not found.username or not database or "/" in database:
        raise InvalidInputError(f"Write the address of a database as {found.scheme}://USER@HOST:PORT/DATABASE.")
    try:
        port = found.port or CONNECTORS[ALIASES.get(connector, connector)].port
    except ValueError as error:
        raise InvalidInputError(f"The address has no port that can be: {error}.") from None
    name = "".join(char if char.isalnum() and char.isascii() else "_" for char in database).strip("_").lower() or "db"
    section = SOURCE.format(
        name=name,
        connector=connector,
        host=json.dumps(found.hostname),
        port=port,
        user=json.dumps(unquote(found.username)),
        variable=name.upper(),
        database=json.dumps(database),
        tables=_tables(found, port, database) if connector == POSTGRES else ALL.format(example=f"{database}.orders"),
    )
    return name, section


def _tables(address: SplitResult, port: int, database: str) -> str:
    """Return the line of the tables, as the server has them."""
    everyone = ALL.format(example="public.*")
    if not postgres.is_installed():
        return everyone
    own = {"host": str(address.hostname), "port": str(port), "user": unquote(str(address.username)), "dbname": database}
    password = {"password": unquote(address.password)} if address.password else {}
    try:
        with postgres.connect({**dict(parse_qsl(address.query)), **own, **password}) as connection:
            found = connection.execute(postgres.TABLES).fetchall()
    except LanceNamespaceError as error:
        return f"{everyone}\n# They are not listed here: {error}"
    names = [f"{schema}.{table}" for schema, table, *_ in found]
    if len(names) > MOST or any(row[-1] for row in found):  # partitions follow their table
        names = sorted({f"{schema}.*" for schema, *_ in found})
    return f"tables = {json.dumps(names)}" if names else everyone
