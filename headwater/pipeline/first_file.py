"""The first pipeline file, with comments: of a folder, a source and a table for each folder of files in it, or of a
database.

The first pipeline file of a database: a live source of its tables, with comments.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import pyarrow as pa

from headwater.errors import InvalidInputError, LanceNamespaceError
from headwater.pipeline.facts import ENVELOPE, first_rows, infer_columns
from headwater.pipeline.live.source_specs import ALIASES, CONNECTORS, POSTGRES
from headwater.schema_text import parse_schema
from headwater.sql.sql_types import kind_of
from headwater.streams.rows.input_rows import as_input_rows
from headwater.streams.sources import postgres
from headwater.streams.sources.files import find_files, read_lines

LINES = (".json", ".jsonl", ".ndjson")
ENDINGS = (*LINES, ".csv", ".parquet", ".arrow")
HEAD = """# What to take in, and the tables and views it becomes. `headwater run pipeline.toml --check` checks it.
[pipeline]
name = "{name}"
catalog = "./lake"                 # a path, an address or a profile; made by the first run
engine = "embedded"                # in this process; leave this line out to run on Spark
# on_failure = "./alert.sh"        # a command, or an https:// address with hook_secret = "env:NAME"
"""
SOURCE = """
[[source]]
name = "{name}"
path = {path}
{format}into = "raw.{name}"

[table."raw.{name}"]
{schema}
{keys}
{sequence}
# expect_or_drop = {{ positive = "total >= 0" }}   # rows for which this is not TRUE go to the quarantine
"""
KEYS = "# keys = [...]                   # the columns that identify a row; without them rows are only appended"
SEQUENCE = '# sequence_by = ["updated_at"]     # orders the changes of a key; without it what comes later wins'
TAIL = """
# [view."mart.totals"]
# sql = "SELECT ... FROM {table} GROUP BY ..."
# keys = ["..."]                   # the columns that identify a row of the view
"""


def first_file(source: str | os.PathLike[str], beside: str | os.PathLike[str]) -> str:
    """Return a pipeline file for the files of a folder, as it is written in the folder `beside`, or for a database.

    `source`: the folder, or an address such as `postgres://user@host/database`.
    """
    if "://" in (text := os.fspath(source)):
        name, section = database_source(text)
        return HEAD.format(name=name) + str(section) + TAIL.format(table=f"{name}.orders")
    root = Path(text)
    if not root.is_dir():
        raise InvalidInputError(f"There is no folder {text!r}.")
    parts = [_source(root, *each, Path(beside)) for each in _groups(root)]
    if not parts:
        raise InvalidInputError(f"{root} has no file that can be taken: {', '.join(ENDINGS)}.")
    name, table = _named(root.resolve().name), _named(next(_groups(root))[0].resolve().name)
    return HEAD.format(name=name) + "".join(parts) + TAIL.format(table=f"raw.{table}")


def _groups(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield each folder with the ending of its files."""
    for place, folders, files in os.walk(root):
        folders.sort()
        endings = sorted({Path(name).suffix for name in files} & set(ENDINGS))
        for ending in endings[:1]:
            yield Path(place), ending


def _source(root: Path, folder: Path, ending: str, beside: Path) -> str:
    pattern = str(folder / f"*{ending}")
    file = next((each for each in find_files(pattern) if each.size), None)
    if file is None:
        raise InvalidInputError(f"{folder} has only empty files: its columns are not known yet.")
    line = read_lines(file).partition("\n")[0] if ending in LINES else ""
    is_debezium = '"op"' in line and ('"after"' in line or '"before"' in line)
    rows = first_rows(file, "debezium" if is_debezium else "rows")
    orders = next((name for name in ENVELOPE if is_debezium and f'"{name[1:]}"' in line), None)
    schema = infer_columns(rows, (), () if orders is None else (orders,))
    key = _key(rows)
    return SOURCE.format(
        name=_named(folder.resolve().name),
        path=_text(os.path.relpath(pattern, beside)),
        format='format = "debezium"\n' if is_debezium else "",
        schema=_schema(schema),
        keys=f"keys = [{_text(key)}]" if key else KEYS,
        sequence=f'sequence_by = ["{orders}"]' if orders else SEQUENCE,
    )


def _schema(columns: pa.Schema) -> str:
    """Return the line of the schema; without one it is as the first file has it."""
    shown = ", ".join(f"{_quoted(field.name)} {kind_of(field.type)}" for field in columns)
    try:
        is_exact = parse_schema(shown).names == columns.names
    except InvalidInputError:
        is_exact = False
    if not is_exact:
        return "# schema = ...                     # as the first file has it"
    return f"schema = {_text(shown)}         # as the first file has it"


def _text(value: str) -> str:
    """Return a text of TOML: names of folders and columns may be anybody's, and stay within it."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(rows: object) -> str | None:
    """Return the column that looks like a key: of its name, and with no value twice in the first rows."""
    data = as_input_rows(rows)
    for name in sorted(data.columns, key=lambda name: (name.lower() != "id", not name.lower().endswith("id"))):
        values = data.columns[name]
        held = values if isinstance(values, list) else values.to_pylist()
        is_plain = all(isinstance(value, (int, str)) for value in held)
        if name.lower().endswith(("id", "key", "sku", "code")) and is_plain and None not in held:
            return name
    return None


def _named(text: str) -> str:
    return "".join(char if char.isalnum() and char.isascii() else "_" for char in text).strip("_").lower() or "source"


def _quoted(name: str) -> str:
    return name if name.isidentifier() else f"`{name}`"


SCHEMES = {"postgresql": POSTGRES, **{name: name for name in (*CONNECTORS, *ALIASES)}}
MOST = 20
"""The most tables that are named one by one."""
LIVE_SOURCE = """
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
        raise InvalidInputError(f"{found.scheme}:// is not a database that a pipeline reads: {', '.join(SCHEMES)}.")
    database = unquote(found.path.strip("/"))
    if not found.hostname or not found.username or not database or "/" in database:
        raise InvalidInputError(f"Write the address of a database as {found.scheme}://USER@HOST:PORT/DATABASE.")
    try:
        port = found.port or CONNECTORS[ALIASES.get(connector, connector)].port
    except ValueError as error:
        raise InvalidInputError(f"The address has no port that can be: {error}.") from None
    name = "".join(char if char.isalnum() and char.isascii() else "_" for char in database).strip("_").lower() or "db"
    section = LIVE_SOURCE.format(
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
