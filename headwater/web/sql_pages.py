"""The page on which visitors write SQL: one SELECT, its rows as a table and a chart, or its plan."""

from __future__ import annotations

from typing import Any

from headwater.cells import cell
from headwater.decoding.arrow import read_file
from headwater.errors import LanceNamespaceError
from headwater.names import ROOT, ObjectId
from headwater.rest.page.page_facts import QueryFacts, QueryTables
from headwater.web.charts import KINDS, chart, choose, numbers_of
from headwater.web.queries import Snippet, select_from
from headwater.web.visit import Page, Visit

MAX_SQL = 8_000
MAX_COLUMNS = 60
LIMITS = (20, 100, 500, 1_000)
SHOWN = 200
"""Most rows of a result in the table of the page; a chart has all that were read."""
EXAMPLES = 8
MAX_LISTS = 6
ANSWERED = frozenset({0, 1, 4, 11, 12, 13, 15, 17})
"""Errors of a query that are shown above it: a table that is not there, a right that is missing, a mistake."""


def sql_page(visit: Visit) -> Page:
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
            values["error"] = str(refused)
    return Page("sql.html", values)


def _answer(visit: Visit, sql: str, limit: int) -> dict[str, Any]:
    named: QueryTables = visit.question("PageQueryTables", word=sql)
    tables = [list(names) for names in named.tables]
    is_plan = visit.query.get("show") == "plan"
    found: QueryFacts = visit.question("PageQuery", word=sql, tables=tables, limit=limit, details=is_plan)
    if is_plan:
        return {"found": found}
    return {"found": found, **_shown(visit, found)}


def _shown(visit: Visit, found: QueryFacts) -> dict[str, Any]:
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


def _examples(visit: Visit) -> list[Snippet]:
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


def _names(visit: Visit, operation: str, parent: ObjectId, field: str) -> list[str]:
    try:
        return list(visit.ask(operation, parent, limit=EXAMPLES).get(field) or ())
    except LanceNamespaceError:
        return []
