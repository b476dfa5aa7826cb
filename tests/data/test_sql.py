"""SQL in requests is carried out whole or not at all."""

from __future__ import annotations

import pytest
from lance_namespace import CountTableRowsRequest, CreateTableIndexRequest, DeleteFromTableRequest

from headwater.errors import InvalidInputError
from headwater.namespace import data
from headwater.namespace.data.query import make_scanner
from headwater.namespace.handle import TableHandle
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
