"""The query box of a table page (filter, full-text search, nearest rows), and code snippets for other tools.

The page on which visitors write SQL: one SELECT, its rows as a table and a chart, or its plan.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from headwater.cells import Cell, cell, is_vector
from headwater.decoding.arrow import read_file
from headwater.errors import InvalidInputError, LanceNamespaceError
from headwater.names import DELIMITER, ROOT, ObjectId, format_name
from headwater.rest.page.page_facts import EmbedFacts, QueryFacts, QueryTables
from headwater.web.drawings import KINDS, chart, choose, numbers_of
from headwater.web.visit import MISSING, Page, PageTooLargeError, RequestContext
from headwater.wording import MEANT

MAX_ROWS = 100
FEW = 20
MAX_COLUMNS = 60
MAX_TEXT = 2000
MAX_NEAR = 20_000


@dataclass(frozen=True)
class Query:
    """A query of the page. `like`: the offset of the row whose nearest neighbours are wanted.

    `near`: a vector, or a text that the function of the column `by` makes a vector of.
    """

    filter: str = ""
    text: str = ""
    like: int | None = None
    near: str = ""
    by: str = ""
    version: int | None = None
    offset: int = 0
    limit: int = FEW

    @property
    def is_asked(self) -> bool:
        return bool(self.filter or self.is_search)

    @property
    def is_search(self) -> bool:
        return bool(self.text or self.near or self.like is not None)

    def address(self, **change: object) -> dict[str, object]:
        told = {
            "filter": self.filter,
            "text": self.text,
            "like": self.like,
            "near": self.near,
            "by": self.by if self.like is not None or self.near else "",
            "version": self.version,
            "offset": self.offset or None,
            "limit": self.limit if self.limit != FEW else None,
        }
        return {"view": "rows", **told, **change}


@dataclass(frozen=True)
class ShownRows:
    """Rows as cells. `version`: the version that was read."""

    names: list[str]
    types: list[str]
    rows: list[tuple[int, list[Cell]]]
    has_more: bool
    left_out: list[str]
    version: int | None


def read_query(visit: RequestContext) -> Query:
    asked = visit.query
    return Query(
        filter=asked.get("filter", "").strip()[:MAX_TEXT],
        text=asked.get("text", "").strip()[:MAX_TEXT],
        like=visit.number("like"),
        near=asked.get("near", "").strip()[:MAX_NEAR],
        by=asked.get("by", ""),
        version=visit.number("version", 1),
        offset=visit.number("offset") or 0,
        limit=min(visit.number("limit", 1) or FEW, MAX_ROWS),
    )


def run(visit: RequestContext, id: ObjectId, query: Query) -> ShownRows:
    """Run a query. Columns of bytes are left out if the rows are too large."""
    if sum((bool(query.text), bool(query.near), query.like is not None)) > 1:
        raise InvalidInputError("Search in one way at a time: by words, near a row, or near a text or vector.")
    version = query.version
    if version is None:
        version = int(visit.ask("DescribeTableExact", id)["version"])
    asked = _request(visit, id, query, version)
    try:
        return _shown(visit, id, query, version, visit.rows(id, **asked), [])
    except PageTooLargeError:
        schema = visit.rows(id, **{**asked, "k": 1, "offset": 0}).schema if not query.is_search else None
        names = [field.name for field in schema if not _is_heavy(field.type)] if schema is not None else []
        if schema is None or not names or len(names) == len(schema.names):
            raise
        left_out = [name for name in schema.names if name not in names]
        lighter = visit.rows(id, **asked, columns={"column_names": names})
        return _shown(visit, id, query, version, lighter, left_out)


def _is_heavy(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_nested(kind)


def _request(visit: RequestContext, id: ObjectId, query: Query, version: int) -> dict[str, object]:
    asked: dict[str, object] = {"version": version, "filter": query.filter or None}
    if query.text:
        return {
            **asked,
            "k": query.limit,
            "prefilter": True,
            "full_text_query": {"string_query": {"query": query.text}},
        }
    if query.like is not None or query.near:
        vector = _near_vector(visit, id, query) if query.near else _vector(visit, id, query, version)
        return {
            **asked,
            "k": query.limit,
            "prefilter": True,
            "vector": {"single_vector": vector},
            "vector_column": query.by,
        }
    return {**asked, "k": query.limit + 1, "offset": query.offset or None}


def _near_vector(visit: RequestContext, id: ObjectId, query: Query) -> list[float]:
    """Return the vector that a visitor pasted, or the one that the function of the column makes of the text."""
    numbers = query.near.strip("[]() ").replace(",", " ").split()
    try:
        found = [float(number) for number in numbers]
    except ValueError:
        found = []
    if len(found) > 1 and all(math.isfinite(number) for number in found):
        return found
    if not visit.served.has_history:
        raise InvalidInputError("Paste the numbers of a vector: this catalog knows no function that makes one.")
    made: EmbedFacts = visit.question("PageEmbed", id, name=query.by, word=query.near)
    return made.vector


def _vector(visit: RequestContext, id: ObjectId, query: Query, version: int) -> list[float]:
    """Return the vector of a row."""
    found = visit.rows(id, k=1, offset=query.like or None, version=version, columns={"column_names": [query.by]})
    if not found.num_rows or not is_vector(found.schema.field(0).type):
        raise InvalidInputError(f"There is no row {query.like} with a vector in {query.by[:80]!r}.")
    value = found.column(0)[0].as_py()
    if value is None:
        raise InvalidInputError(f"Row {query.like} has no vector in {query.by[:80]!r}: it is NULL.")
    return [float(item) for item in value]


def _shown(
    visit: RequestContext, id: ObjectId, query: Query, version: int, found: pa.Table, left_out: list[str]
) -> ShownRows:
    has_more = not query.is_search and found.num_rows > query.limit
    table = found.slice(0, query.limit).select(found.schema.names[:MAX_COLUMNS])
    columns = [table.column(position).to_pylist() for position in range(table.num_columns)]
    rows = []
    for position in range(table.num_rows):
        number = query.offset + position
        cells = []
        for field, values in zip(table.schema, columns, strict=True):
            picture = None if query.is_search else _picture(visit, id, query, version, number, field.name)
            near = None if query.is_asked else _near(visit, id, number, field.name)
            cells.append(cell(values[position], field.type, picture, near))
        rows.append((number, cells))
    left_out = [*left_out, *found.schema.names[MAX_COLUMNS:]]
    return ShownRows(table.schema.names, [str(field.type) for field in table.schema], rows, has_more, left_out, version)


def _near(visit: RequestContext, id: ObjectId, number: int, column: str) -> str:
    return visit.links.table(id, view="rows", like=str(number), by=column)


def _picture(visit: RequestContext, id: ObjectId, query: Query, version: int, number: int, column: str) -> str:
    where = {"column": column, "version": version, "offset": number or None, "filter": query.filter}
    return visit.links.to("cell", *id.names, **where)


KEY = "hw_..."


@dataclass(frozen=True)
class Snippet:
    """A code snippet for one tool."""

    name: str
    code: str


def snippets(site: str, id: ObjectId, needs_key: bool) -> list[Snippet]:
    python = _python(site, id, needs_key)
    dotted = sql_name(("lake", *id.names))
    return [
        Snippet("Python", f"{python}\nprint(table.head(10))"),
        Snippet("pandas", f"{python}\nframe = table.to_pandas(limit=1000)"),
        Snippet("LanceDB", _lancedb(site, id, needs_key)),
        Snippet("Spark", f"{_spark(site, needs_key)}\nspark.table({_text(dotted)}).show()"),
        Snippet("SQL", f"SELECT * FROM {dotted} LIMIT 10"),
        Snippet("curl", _curl(site, id, needs_key)),
    ]


def sql_name(names: Iterable[str]) -> str:
    """Return the name of a table as Spark SQL writes it."""
    return ".".join(f"`{name.replace('`', '``')}`" for name in names)


def select_from(names: tuple[str, ...]) -> Snippet:
    """Return a first query of a table, with the name to show for it."""
    return Snippet(" / ".join(names), f"SELECT * FROM {sql_name(names)} LIMIT 20")


def _python(site: str, id: ObjectId, needs_key: bool) -> str:
    key = f', **{{"headers.x-api-key": "{KEY}"}}' if needs_key else ""
    return f"from headwater import Catalog\n\ntable = Catalog({_text(site)}{key})[{_list(id.names)}]"


def _lancedb(site: str, id: ObjectId, needs_key: bool) -> str:
    key = f', "headers.x-api-key": "{KEY}"' if needs_key else ""
    opened = f"db.open_table({_text(id.name)}, namespace_path={_list(id.parent.names)})"
    return f'import lancedb\n\ndb = lancedb.connect_namespace("rest", {{"uri": {_text(site)}{key}}})\ntable = {opened}'


def _spark(site: str, needs_key: bool) -> str:
    token = f', token="{KEY}"' if needs_key else ""
    opened = f'spark = configure(SparkSession.builder, "lake", uri={_text(site)}{token}).getOrCreate()'
    return f"from headwater.spark import configure\nfrom pyspark.sql import SparkSession\n\n{opened}"


def _curl(site: str, id: ObjectId, needs_key: bool) -> str:
    key = f" -H 'x-api-key: {KEY}'" if needs_key else ""
    path = f"{site}/v1/table/{quote(DELIMITER.join(id.names), safe='')}/describe"
    return f"curl -s -X POST{key} -H 'content-type: application/json' -d '{{}}' {shlex.quote(path)}"


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _list(names: Iterable[str]) -> str:
    return json.dumps(list(names), ensure_ascii=False)


MAX_SQL = 8_000
LIMITS = (20, 100, 500, 1_000)
SHOWN = 200
"""Most rows of a result in the table of the page; a chart has all that were read."""
EXAMPLES = 8
MAX_LISTS = 6
ANSWERED = frozenset({0, 1, 4, 11, 12, 13, 15, 17})
"""Errors of a query that are shown above it: a table that is not there, a right that is missing, a mistake."""


def sql_page(visit: RequestContext) -> Page:
    """Return the page of a query: empty, with its rows, with its plan, or with the error that it made."""
    sql = visit.query.get("sql", "").strip()[:MAX_SQL]
    limit = min(visit.number("limit", 1) or LIMITS[1], LIMITS[-1])
    values: dict[str, Any] = {"sql": sql, "limit": limit, "limits": LIMITS, "error": "", "title": "SQL", "kinds": KINDS}
    values |= {"found": None, "rows": None, "examples": [] if sql else _examples(visit)}
    if sql:
        try:
            values |= _answer(visit, sql, limit)
        except LanceNamespaceError as refused:
            if int(refused.code) not in ANSWERED:
                raise
            values["error"] = f"{refused}{_meant(visit, sql) if int(refused.code) in MISSING else ''}"
    return Page("sql.html", values)


def _meant(visit: RequestContext, sql: str) -> str:
    """Return ` Did you mean NAME?` for the first table of a query that has no such name but a similar one."""
    named: QueryTables = visit.question("PageQueryTables", word=sql)
    near = next(filter(None, (visit.nearest(names) for names in named.tables)), None)
    return "" if near is None else f" {MEANT} {format_name(near)}?"


def _answer(visit: RequestContext, sql: str, limit: int) -> dict[str, Any]:
    named: QueryTables = visit.question("PageQueryTables", word=sql)
    tables = [list(names) for names in named.tables]
    is_plan = visit.query.get("show") == "plan"
    found: QueryFacts = visit.question("PageQuery", word=sql, tables=tables, limit=limit, details=is_plan)
    if is_plan:
        return {"found": found}
    return {"found": found, **_shown_rows(visit, found)}


def _shown_rows(visit: RequestContext, found: QueryFacts) -> dict[str, Any]:
    table = read_file(bytes.fromhex(found.arrow)).read_all()
    shown = table.select(range(min(table.num_columns, MAX_COLUMNS)))
    some = shown.slice(0, SHOWN)
    columns = [some.column(place).to_pylist() for place in range(some.num_columns)]
    kinds = [field.type for field in some.schema]
    rows = [
        [cell(values[place], kind) for values, kind in zip(columns, kinds, strict=True)]
        for place in range(some.num_rows)
    ]
    asked = {name: visit.query.get(name, "") for name in ("x", "y")}
    is_plain = len(set(table.schema.names)) == table.num_columns
    choice = choose(shown.schema, table.num_rows, visit.query.get("chart", ""), **asked) if is_plain else None
    return {
        "rows": rows,
        "names": some.schema.names,
        "types": [str(kind) for kind in kinds],
        "count": table.num_rows,
        "hidden": table.num_columns - shown.num_columns,
        "choice": choice,
        "heights": numbers_of(shown.schema),
        "chart": chart(choice, table) if choice is not None else "",
    }


def _examples(visit: RequestContext) -> list[Snippet]:
    """Return queries of some tables that the visitor may see, for a page without a query. Few namespaces are read."""
    found: list[tuple[str, ...]] = []
    waiting = [ROOT]
    for _ in range(MAX_LISTS):
        if not waiting or len(found) >= EXAMPLES:
            break
        parent = waiting.pop(0)
        found += [parent.child(name).names for name in _names(visit, "ListTables", parent, "tables")]
        waiting += [parent.child(name) for name in _names(visit, "ListNamespaces", parent, "namespaces")]
    return [select_from(names) for names in found[:EXAMPLES]]


def _names(visit: RequestContext, operation: str, parent: ObjectId, field: str) -> list[str]:
    try:
        return list(visit.ask(operation, parent, limit=EXAMPLES).get(field) or ())
    except LanceNamespaceError:
        return []
