"""The read-only tools for agents: each reads one catalog and returns bounded JSON. They run in a worker process.

Answers to agents: JSON within limits of rows and bytes, with a note on what was cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from decimal import Decimal
from functools import wraps
from typing import Any

import msgspec
import pyarrow as pa

from headwater.cli.look import columns_of, namespace_record, table_record
from headwater.cli.lookups import NAMES, names_of, near_name, walk
from headwater.cli.output import visible
from headwater.cli.rows import vector_like
from headwater.cli.target import Target
from headwater.errors import (
    InvalidInputError,
    LanceNamespaceError,
    NamespaceNotFoundError,
    UnsupportedOperationError,
    error_for,
)
from headwater.imports import warm
from headwater.names import format_name, parse_name
from headwater.pipeline.lineage import downstream, upstream
from headwater.sql import embedded as queries
from headwater.wording import MEANT, suggests

Asked = dict[str, Any]
Method = Callable[["CatalogTools", Asked, Any], str]
NARROW = "name fewer columns, add a condition, or aggregate"


def _helpful(method: Method) -> Method:
    """An error about a name says the nearest one, or how to find out."""

    @wraps(method)
    def suggesting(self: CatalogTools, arguments: Asked, body: object) -> str:
        try:
            return method(self, arguments, body)
        except LanceNamespaceError as error:
            name = arguments.get("table") or arguments.get("name") or arguments.get("namespace")
            if int(error.code) not in NAMES or not name or suggests(error):
                raise
            near = near_name(self._target, parse_name(name))
            hint = f"{MEANT} {near}?" if near else "`list` tells the names that there are."
            raise error_for(int(error.code), f"{error.args[0]} {hint}") from None

    return suggesting


class CatalogTools:
    """The tools over one catalog. Each method takes the arguments of its class in `serving`."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def check(self, arguments: Asked, body: object) -> str:
        """Raise the error of the catalog if it does not exist."""
        names_of(self._target).children(())
        return ""

    @_helpful
    def list(self, arguments: Asked, body: object) -> str:
        parent = parse_name(arguments["namespace"])
        word, after = arguments["containing"].casefold(), arguments["after"]
        found = (
            {"name": format_name(id), "kind": "table" if child.is_table else "namespace"}
            for child, id in walk(names_of(self._target), parent)
            if word in child.name.casefold()
        )
        rest = _following(found, after) if after else found
        advice = "say a namespace, or go on with `after` the last name"
        return AgentAnswer().rows("objects", rest, advice, arguments["limit"]).text()

    @_helpful
    def describe(self, arguments: Asked, body: object) -> str:
        names = parse_name(arguments["name"])
        if not names:
            return self._namespace(names)
        try:
            table = self._table(arguments["name"])
        except LanceNamespaceError as error:
            if int(error.code) not in NAMES:
                raise
            try:
                return self._namespace(names)
            except NamespaceNotFoundError:
                raise error from None
        record = table_record(table)
        columns = record.pop("columns")
        record.pop("id")
        answer = AgentAnswer().say(**{key: value for key, value in record.items() if value not in (None, [], {})})
        answer.rows("columns", columns, "`schema` tells them all")
        if arguments["samples"] and columns:
            rows = table.to_arrow(limit=arguments["samples"])
            answer.rows("samples", _rows(rows), "`query` reads chosen columns", arguments["samples"])
        return answer.text()

    def _namespace(self, names: Sequence[str]) -> str:
        record = namespace_record(names_of(self._target), names)
        properties = record["properties"]
        answer = AgentAnswer().say(name=record["name"] or "(the root)", kind="namespace", comment=record["comment"])
        answer.say(properties=properties or None)
        for kind in ("namespaces", "tables"):
            answer.rows(kind, record[kind], "`list` goes on")
        return answer.text()

    @_helpful
    def schema(self, arguments: Asked, body: object) -> str:
        table = self._table(arguments["table"])
        if arguments["version"] is not None:
            table = table.serving.at(arguments["version"])
        answer = AgentAnswer().say(table=format_name(parse_name(arguments["table"])), version=arguments["version"])
        return answer.rows("columns", columns_of(table.schema), "`query` takes them by name all the same").text()

    @_helpful
    def search(self, arguments: Asked, body: object) -> str:
        text, vector, like = arguments["text"], arguments["vector"], arguments["like_row"]
        if text is None and vector is None and like is None:
            raise InvalidInputError("Say what to search for: text, vector, or like_row.")
        if like is not None and (text is not None or vector is not None):
            raise InvalidInputError("like_row is for itself: leave text and vector out.")
        table = self._table(arguments["table"])
        serving = table.serving
        if like is not None:
            vector = vector_like(serving, str(like), arguments["key"], arguments["column"])
        found: pa.Table = serving.search(
            vector=vector, text=text, column=arguments["column"], k=arguments["limit"], filter=arguments["where"],
            columns=arguments["columns"],
        ).to_arrow()  # fmt: skip
        rows = _rows(found, short=arguments["columns"] is None)
        return AgentAnswer().rows("rows", rows, NARROW, arguments["limit"]).text()

    def query(self, arguments: Asked, body: object) -> str:
        if not queries.is_sql(arguments["sql"]):
            raise InvalidInputError("A query is one SELECT, such as SELECT name, count(*) FROM prod.users GROUP BY 1.")
        limit = min(arguments["limit"], MAX_ROWS)
        catalog, is_near = self._target.catalog(), self._target.server is None
        found = queries.run(arguments["sql"], catalog, is_near, limit + 1, dialect=arguments["dialect"])
        return AgentAnswer().rows("rows", _rows(found, short=False), f"{NARROW}, or raise `limit`", limit).text()

    @_helpful
    def history(self, arguments: Asked, body: object) -> str:
        names = parse_name(arguments["name"])
        try:
            entries = self._target.past("history").history(list(names))
        except UnsupportedOperationError:
            seen = names_of(self._target).versions(names, None)
            versions = [{"version": item.version, "time": item.time} for item in reversed(seen)]
            answer = AgentAnswer().say(note="This catalog keeps no history: these are the versions of the table.")
            return answer.rows("versions", versions, "raise `limit`", arguments["limit"]).text()
        told = (
            {
                "slot": entry.slot, "time": entry.time, "operation": f"{entry.operation} {entry.kind}",
                "name": format_name(entry.path), "version": entry.version, "author": entry.author,
                "message": entry.message,
            }
            for entry in reversed(list(entries))
        )  # fmt: skip
        return AgentAnswer().rows("entries", told, "raise `limit`", arguments["limit"]).text()

    @_helpful
    def lineage(self, arguments: Asked, body: object) -> str:
        way = downstream if arguments["downstream"] else upstream
        name = format_name(parse_name(arguments["table"]))
        node = asdict(way(self._target.catalog(), name))
        answer = AgentAnswer().say(**{key: value for key, value in node.items() if value not in (None, ())})
        if node["origin"] is None and not node["related"]:
            answer.say(note="Nothing is known of where it comes from: only published stream tables have lineage.")
        return answer.text()

    def _table(self, name: str) -> Any:
        names = parse_name(name)
        if not names:
            raise InvalidInputError("Give the full name of a table; `list` tells them.")
        return self._target.catalog()[names]


def _following(found: Iterator[Asked], after: str) -> Iterator[Asked]:
    """Yield what follows a name. InvalidInput (13) if the name is not there: an empty list would look like the end."""
    for item in found:
        if item["name"] == after:
            yield from found
            return
    raise InvalidInputError(
        f"{after[:200]!r}, the name in `after`, is not in this list any more: start again without it."
    )


def _rows(table: pa.Table, short: bool = True) -> Iterator[dict[str, object]]:
    for batch in table.to_batches(max_chunksize=100):
        for row in batch.to_pylist():
            yield cells(row, short)


def host(named: str | None, properties: dict[str, str]) -> CatalogTools:
    """Open the catalog of a path, URI or profile for the tools."""
    warm()  # the first call does not wait for Lance
    target = Target(named)
    target.properties = dict(properties)
    return CatalogTools(target)


MAX_ROWS = 1_000
MAX_BYTES = 1_000_000
MAX_TEXT = 4_000
SHORT_VECTOR = 8
EXACT = 1 << 53
"""Whole numbers below this are the same in every reader of JSON."""
_ROOM_TO_SAY = 4_000
"""Bytes that are kept for saying what was cut."""
_ODD = re.compile(r"[^\x20-\x7e]")


class AgentAnswer:
    """An answer with fields in order of addition. Lists are cut at the limits, and `cut` names what was cut."""

    def __init__(self, room: int = MAX_BYTES) -> None:
        self._room = room - _ROOM_TO_SAY
        self._fields: list[str] = []
        self._cut: list[str] = []

    def say(self, **fields: object) -> AgentAnswer:
        """Add values, except None. A value beyond the limit is cut."""
        for key, value in fields.items():
            if value is not None and not self._add(key, as_json(shortened(value))):
                self._cut.append(f"{key} is larger than an answer may be")
        return self

    def rows(self, key: str, found: Iterable[object], advice: str, most: int = MAX_ROWS) -> AgentAnswer:
        """Add a list, as far as the limits of rows and bytes allow."""
        kept, used = list[str](), len(key) + 8
        for item in found:
            text = as_json(item)
            if len(kept) == most:
                self._cut.append(f"{key}: only the first {most:,} are here; {advice}")
                break
            if used + _size(text) + 1 > self._room:
                self._cut.append(f"{key}: only the first {len(kept):,} fit into {MAX_BYTES:,} bytes; {advice}")
                break
            kept.append(text)
            used += _size(text) + 1
        self._room -= used
        self._fields.append(f"{as_json(key)}:[{','.join(kept)}]")
        return self

    def text(self) -> str:
        """Return the answer as JSON."""
        cut = [f'"cut":{as_json(self._cut)}'] if self._cut else []
        return "{" + ",".join((*self._fields, *cut)) + "}"

    def _add(self, key: str, text: str) -> bool:
        field = f"{as_json(key)}:{text}"
        if _size(field) + 1 > self._room:
            return False
        self._room -= _size(field) + 1
        self._fields.append(field)
        return True


def shortened(value: object) -> object:
    """Return the value with long texts cut, each with its length."""
    if isinstance(value, str) and len(value) > MAX_TEXT:
        return f"{value[:MAX_TEXT]}… ({len(value):,} characters)"
    if isinstance(value, Mapping):
        return {key: shortened(item) for key, item in value.items()}
    return [shortened(item) for item in value] if isinstance(value, (list, tuple)) else value


def cells(row: Mapping[str, object], short: bool = True) -> dict[str, Any]:
    """Return a row as JSON values: bytes as their count and, if `short`, vectors as their first numbers."""
    return {key: _cell(value, short) for key, value in row.items()}


def _cell(value: object, short: bool) -> object:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"<{len(value):,} bytes>"
    if isinstance(value, Decimal) and value == value.to_integral_value() and abs(value) < EXACT:
        return int(value)
    if isinstance(value, Mapping):
        return {str(key): _cell(item, short) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        if short and len(value) > SHORT_VECTOR and all(isinstance(item, (int, float)) for item in value):
            return [*value[:SHORT_VECTOR], f"… {len(value)} numbers"]
        return [_cell(item, short) for item in value]
    return value


def as_json(value: object) -> str:
    """Return JSON with control characters escaped, so that no terminal obeys them."""
    text = msgspec.json.encode(value, enc_hook=_other).decode()
    return text if text.isascii() and text.isprintable() else _ODD.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    char = found[0]
    if visible(char) == char:
        return char
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _other(value: object) -> object:
    """Sizes are numbers; of what JSON does not know, the text."""
    return int(value) if isinstance(value, int) else str(value)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
