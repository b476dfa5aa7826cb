"""SQL in requests is carried out whole or not at all."""

from __future__ import annotations

from contextlib import suppress

import pytest
from lance_namespace import (
    CountTableRowsRequest,
    CreateTableIndexRequest,
    DeleteFromTableRequest,
    UpdateTableRequest,
)

from headwater.errors import InvalidInputError, LanceNamespaceError
from headwater.names import ObjectId
from headwater.namespace import data
from headwater.namespace.data.query import make_scanner
from headwater.tables.handle import TableHandle
from tests.children import PROCESSES
from tests.data.samples import ID, ROWS, query, snapshot


@pytest.mark.parametrize(
    "rest", ["; DROP TABLE t", " LIMIT 1", " ORDER BY id", " GROUP BY id", " UNION SELECT 1", ", s"]
)
def test_words_after_a_predicate_are_refused_not_ignored(table: TableHandle, rest: str) -> None:
    with pytest.raises(InvalidInputError):
        data.delete_from_table(table, DeleteFromTableRequest(id=ID, predicate="id < 5" + rest))
    assert snapshot(table.uri)[1] == ROWS


def test_a_comment_does_not_end_the_predicate_early(table: TableHandle) -> None:
    request = CountTableRowsRequest(id=ID, predicate="id < 5 -- the first five")
    assert data.count_table_rows(table, request).count == 5


def test_a_predicate_still_reaches_its_index(table: TableHandle) -> None:
    data.create_table_scalar_index(table, CreateTableIndexRequest(id=ID, column="id", index_type="BTREE"))
    plan = make_scanner(table, query(filter="id = 5"), None).explain_plan()
    assert "ScalarIndexQuery" in plan


LONG = {
    "comparison": "id > 0" + " = true" * 97,
    "is": "(id > 0)" + " IS TRUE" * 98,
    "sum": "+".join(["id"] * 98) + " = 1",
    "cast": "id" + "::bigint" * 60 + " = 1",
    "concat": "||".join(["s"] * 60) + " = 'x'",
    "in": "(id > 0)" + " IN (true, false)" * 60,
    "between": "id BETWEEN 0 AND 1" + " BETWEEN false AND true" * 8,
    "betweens": " OR ".join(["id BETWEEN 0 AND 1"] * 1000),
    "calls": "coalesce(" * 9 + "id" + ", 1)" * 9 + " = 1",
    "and": " AND ".join(["id <> 1"] * 5000),
    "or": " OR ".join(["s LIKE '%x%'"] * 3000),
    "values": "id IN (" + ", ".join(str(number) for number in range(20_000)) + ")",
    "mixed": "".join(["id = 1 AND (id = 2 OR id = 3) OR "] * 2000) + "id = 4",
    "nested": "(" * 40 + "id = 1" + ")" * 40,
}
ATTACKS = {
    "comparison": "true" + " = true" * 500,
    "is": "true" + " IS TRUE" * 500,
    "sum": "+".join(["id"] * 8000) + " = 1",
    "spaced": " + ".join(["id"] * 8000) + " = 1",
    "commented": "+/* AND */".join(["id"] * 8000) + " = 1",
    "commented line": "+-- AND\n".join(["id"] * 8000) + " = 1",
    "quoted": "||' AND '||".join(["s"] * 4000) + " = 'x'",
    "cast": "id" + "::bigint" * 8000 + " = 1",
    "in": "true" + " IN (true, false)" * 8000,
    "between": "1" + " BETWEEN 0 AND 1" * 8000 + " = 1",
    "doubling": "id BETWEEN 0 AND 1" + " BETWEEN false AND true" * 30,
    "doubling in brackets": "(" * 30 + "id BETWEEN 0 AND 1" + ") BETWEEN false AND true" * 30,
    "doubling in calls": "coalesce(" * 30 + "id" + ", 1)" * 30 + " = 1",
    "brackets": "(" * 50_000 + "true" + ")" * 50_000,
    "functions": "abs(" * 20_000 + "id" + ")" * 20_000 + " = 1",
    "not": "NOT " * 20_000 + "true",
    "minus": "- " * 20_000 + "1 = id",
    "case": "CASE WHEN true THEN " * 5000 + "true" + " ELSE false END" * 5000,
    "long": "id = 1 OR " * 100_000 + "true",
}


def ask_all(uri: str) -> None:
    """Ask every long expression of a table in every way. An expression may be refused; it must not end the process."""
    table = TableHandle(ObjectId(("t",)), uri)
    for text in LONG.values():
        assert data.count_table_rows(table, CountTableRowsRequest(id=ID, predicate=text)).count is not None
        vectors = query(filter=text, vector=[1.0] * 4, prefilter=True)
        update = UpdateTableRequest(id=ID, updates=[["id", "id"]], predicate=text)
        with suppress(LanceNamespaceError):
            data.query_table(table, vectors)
        with suppress(LanceNamespaceError):
            data.query_table(table, query(columns={"x": text}))
        with suppress(LanceNamespaceError):
            data.update_table(table, update)


def test_long_expressions_within_the_limits_never_end_the_process(table: TableHandle) -> None:
    process = PROCESSES.Process(target=ask_all, args=(table.uri,))
    process.start()
    process.join(120)
    assert process.exitcode == 0


@pytest.mark.parametrize("name", ATTACKS)
def test_an_expression_made_to_overflow_the_planner_is_refused(table: TableHandle, name: str) -> None:
    with pytest.raises(InvalidInputError):
        data.count_table_rows(table, CountTableRowsRequest(id=ID, predicate=ATTACKS[name]))
