"""Rows out: vector search, full-text search, scans, plans and counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.namespace import DirectoryNamespace
from lance_namespace import (
    AnalyzeTableQueryPlanRequest,
    CountTableRowsRequest,
    CreateTableIndexRequest,
    ExplainTableQueryPlanRequest,
)
from lance_namespace_urllib3_client.models.query_table_request_full_text_query import QueryTableRequestFullTextQuery
from lance_namespace_urllib3_client.models.query_table_request_vector import QueryTableRequestVector

from headwater.errors import (
    InvalidInputError,
    TableBranchNotFoundError,
    TableColumnNotFoundError,
    TableVersionNotFoundError,
)
from headwater.names import ObjectId
from headwater.namespace import data
from headwater.tables.handle import TableHandle
from tests.data.samples import ID, ROWS, answer, query, rows

NEAR = [1.0, 2.0, 3.0, 4.0]


def ask(table: TableHandle, **fields: Any) -> pa.Table:
    return answer(data.query_table(table, query(**fields)))


def words(**structured: Any) -> QueryTableRequestFullTextQuery:
    found = QueryTableRequestFullTextQuery.from_dict({"structured_query": {"query": structured}})
    assert found is not None
    return found


@pytest.fixture
def indexed(table: TableHandle, twin: DirectoryNamespace) -> TableHandle:
    request = CreateTableIndexRequest(id=ID, column="s", index_type="FTS", with_position=True)
    data.create_table_index(table, request)
    twin.create_table_index(request)
    return table


@pytest.mark.parametrize(
    "fields",
    [
        {"k": 5, "vector": NEAR},
        {"k": 5, "vector": NEAR, "columns": ["id", "s"]},
        {"k": 5, "vector": NEAR, "columns": {"double": "id * 2", "inner": "st.a"}},
        {"k": 5, "vector": NEAR, "columns": ["id"], "with_row_id": True},
        {"k": 5, "vector": NEAR, "filter": "id < 50"},
        {"k": 5, "vector": NEAR, "filter": "id < 50", "prefilter": True},
        {"k": 5, "vector": NEAR, "distance_type": "cosine"},
        {"k": 5, "vector": NEAR, "distance_type": "Dot"},
        {"k": 9, "vector": NEAR, "lower_bound": 20, "upper_bound": 60.5},
        {"k": 5, "vector": NEAR, "bypass_vector_index": True, "vector_column": "vector"},
        {"k": 5, "vector": NEAR, "nprobes": 2, "refine_factor": 2, "ef": 10},
        {"k": 0, "vector": NEAR},
        {"k": 7},
        {"k": 7, "vector": []},
        {"k": 0, "columns": ["id"]},
        {"k": 3, "filter": "id > 10", "offset": 4, "columns": ["st.a", "id"]},
        {"k": 3, "version": 1, "with_row_id": True},
    ],
    ids=str,
)
def test_an_answer_is_the_one_pylance_gives(
    table: TableHandle, twin: DirectoryNamespace, fields: dict[str, Any]
) -> None:
    theirs = answer(twin.query_table(query(**fields)))
    ours = ask(table, **fields)
    if isinstance(fields.get("columns"), dict):  # pylance gives aliased columns in no particular order
        theirs = theirs.select(ours.column_names)
    assert ours == theirs


@pytest.mark.parametrize("fields", [{"k": 4}, {"k": 0}, {"k": 4, "filter": "id < 100", "prefilter": True}], ids=str)
def test_a_full_text_answer_is_the_one_pylance_gives(
    indexed: TableHandle, twin: DirectoryNamespace, fields: dict[str, Any]
) -> None:
    ours = ask(indexed, words="word3", **fields)
    theirs = answer(twin.query_table(query(words="word3", **fields)))
    assert ours.schema == theirs.schema
    assert set(ours["id"].to_pylist()) == set(theirs["id"].to_pylist())
    assert ours.num_rows > 0


def test_k_results_are_returned_after_offset_are_skipped(table: TableHandle) -> None:
    first = ask(table, k=8, vector=NEAR)["id"].to_pylist()
    assert ask(table, k=3, vector=NEAR, offset=5)["id"].to_pylist() == first[5:]


def test_several_vectors_are_each_searched_for(table: TableHandle) -> None:
    found = ask(table, k=2, vector=[NEAR, [0.0] * 4], columns=["id"])
    assert found["query_index"].to_pylist() == [0, 0, 1, 1]
    assert found["id"].to_pylist()[:2] == ask(table, k=2, vector=NEAR)["id"].to_pylist()
    assert found["id"].to_pylist()[2:] == ask(table, k=2, vector=[0.0] * 4)["id"].to_pylist()


def test_the_only_vector_column_need_not_be_named(tmp_path: Any) -> None:
    uri = str(tmp_path / "v.lance")
    lance.write_dataset(rows().rename_columns(["id", "s", "embedding", "st", "tags"]), uri)
    assert ask(_handle(uri), k=2, vector=NEAR).num_rows == 2


def _handle(uri: str) -> TableHandle:
    return TableHandle(ObjectId(("v",)), uri)


def test_nested_columns_are_named_by_their_path(table: TableHandle) -> None:
    assert ask(table, k=2, columns=["st.`b.c`"]).num_rows == 2


@pytest.mark.parametrize(
    "structure",
    [
        {"match": {"terms": "word3", "column": "s"}},
        {"match": {"terms": "word3"}},
        {"match": {"terms": "word3 hello", "column": "s", "operator": "And"}},
        {"match": {"terms": "wurd3", "column": "s", "fuzziness": 1}},
        {"phrase": {"terms": "word3 hello", "column": "s"}},
        {"phrase": {"terms": "word3 hello"}},
        {"multi_match": {"match_queries": [{"terms": "word3", "column": "s"}, {"terms": "word3", "column": "s"}]}},
        {
            "boost": {
                "positive": {"match": {"terms": "word3", "column": "s"}},
                "negative": {"match": {"terms": "17", "column": "s"}},
                "negative_boost": 0.2,
            }
        },
        {
            "boolean": {
                "must": [{"match": {"terms": "word3", "column": "s"}}],
                "should": [{"match": {"terms": "hello", "column": "s"}}],
                "must_not": [{"match": {"terms": "word4", "column": "s"}}],
            }
        },
    ],
    ids=lambda structure: next(iter(structure)),
)
def test_a_structured_full_text_query_finds_its_rows(indexed: TableHandle, structure: dict[str, Any]) -> None:
    found = ask(indexed, k=0, words=words(**structure))["id"].to_pylist()
    assert set(found) == {number for number in range(ROWS) if number % 7 == 3}


def test_an_answer_is_an_arrow_file(table: TableHandle) -> None:
    sent = data.query_table(table, query()).data
    assert isinstance(sent, bytes)
    assert sent[:6] == sent[-6:] == b"ARROW1"


def test_results_come_as_a_stream_of_batches(table: TableHandle) -> None:
    reader = data.query_batches(table, query(k=0, columns=["id"]))
    assert sum(batch.num_rows for batch in reader) == ROWS


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"vector": [1.0, 2.0]}, InvalidInputError),
        ({"vector": [[1.0] * 4, [1.0] * 3]}, InvalidInputError),
        ({"vector": [[1.0] * 4, []]}, InvalidInputError),
        ({"vector": [float("nan"), 1, 1, 1]}, InvalidInputError),
        ({"vector": [float("inf"), 1, 1, 1]}, InvalidInputError),
        ({"vector": [[1.0] * 4] * 5000}, InvalidInputError),
        ({"vector": [0.0] * 100_000}, InvalidInputError),
        ({"vector": NEAR, "vector_column": "s"}, InvalidInputError),
        ({"vector": NEAR, "vector_column": "nope"}, TableColumnNotFoundError),
        ({"vector": NEAR, "distance_type": "bogus"}, InvalidInputError),
        ({"vector": NEAR, "distance_type": "hamming"}, InvalidInputError),
        ({"vector": NEAR, "nprobes": 0}, InvalidInputError),
        ({"vector": NEAR, "ef": 0}, InvalidInputError),
        ({"vector": NEAR, "refine_factor": 0}, InvalidInputError),
        ({"vector": NEAR, "minimum_nprobes": 4, "maximum_nprobes": 2}, InvalidInputError),
        ({"vector": NEAR, "upper_bound": float("nan")}, InvalidInputError),
        ({"vector": NEAR, "words": "word3"}, InvalidInputError),
        ({"vector": [NEAR, NEAR], "offset": 1}, InvalidInputError),
        ({"columns": ["nope"]}, TableColumnNotFoundError),
        ({"columns": ["st.nope"]}, TableColumnNotFoundError),
        ({"columns": ["`id"]}, InvalidInputError),
        ({"columns": {"x": "nope + 1"}}, TableColumnNotFoundError),
        ({"columns": {"x": "id +"}}, InvalidInputError),
        ({"columns": {"": "id"}}, InvalidInputError),
        ({"filter": "nope = 1"}, TableColumnNotFoundError),
        ({"filter": "id =="}, InvalidInputError),
        ({"filter": ""}, InvalidInputError),
        ({"filter": "id"}, InvalidInputError),
        ({"filter": "id = 1; DROP TABLE t"}, InvalidInputError),
        ({"version": 99}, TableVersionNotFoundError),
        ({"version": 0}, TableVersionNotFoundError),
        ({"version": 2**70}, TableVersionNotFoundError),
        ({"branch": "nope"}, TableBranchNotFoundError),
        ({"branch": "../../twin/t.lance"}, InvalidInputError),
        ({"k": 2**80}, InvalidInputError),
        ({"offset": 2**80}, InvalidInputError),
        ({"words": "word3"}, InvalidInputError),
        ({"words": " "}, InvalidInputError),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_query_that_cannot_be_answered_is_refused(
    table: TableHandle, fields: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        ask(table, **fields)


def test_a_negative_k_is_refused_even_past_the_model(table: TableHandle) -> None:
    with pytest.raises(InvalidInputError, match="k must be"):
        data.query_table(table, query().model_copy(update={"k": -1}))


@pytest.mark.parametrize(
    ("structure", "error"),
    [
        ({"match": {"terms": "x", "column": "nope"}}, TableColumnNotFoundError),
        ({"match": {"terms": "", "column": "s"}}, InvalidInputError),
        ({"match": {"terms": "x", "column": "s", "operator": "xor"}}, InvalidInputError),
        ({"match": {"terms": "x", "column": "s", "fuzziness": 2**40}}, InvalidInputError),
        ({}, InvalidInputError),
        ({"multi_match": {"match_queries": []}}, InvalidInputError),
        ({"boolean": {"must": [], "should": [], "must_not": []}}, InvalidInputError),
        (
            {"match": {"terms": "x", "column": "s"}, "phrase": {"terms": "x", "column": "s"}},
            InvalidInputError,
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_full_text_query_that_makes_no_sense_is_refused(
    indexed: TableHandle, structure: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        ask(indexed, words=words(**structure))


def test_a_full_text_query_nested_without_end_is_refused(indexed: TableHandle) -> None:
    structure: dict[str, Any] = {"match": {"terms": "x", "column": "s"}}
    for _ in range(40):
        structure = {"boolean": {"must": [structure], "should": [], "must_not": []}}
    with pytest.raises(InvalidInputError, match="too large"):
        ask(indexed, words=words(**structure))


def test_an_enormous_k_answers_with_what_there_is(table: TableHandle) -> None:
    assert ask(table, k=2**40, vector=NEAR, columns=["id"]).num_rows == ROWS
    assert ask(table, k=2**40, columns=["id"]).num_rows == ROWS


def test_a_vector_search_of_an_empty_table_finds_nothing(tmp_path: Any) -> None:
    uri = str(tmp_path / "v.lance")
    lance.write_dataset(rows().schema.empty_table(), uri)
    assert ask(_handle(uri), k=3, vector=NEAR).num_rows == 0


def test_rows_are_counted_at_a_version_and_where_a_predicate_holds(
    table: TableHandle, twin: DirectoryNamespace
) -> None:
    for fields in ({}, {"predicate": "id < 10"}, {"version": 1}):
        request = CountTableRowsRequest(id=ID, **fields)
        assert data.count_table_rows(table, request).count == twin.count_table_rows(request).count
    with pytest.raises(TableVersionNotFoundError):
        data.count_table_rows(table, CountTableRowsRequest(id=ID, version=99))
    with pytest.raises(TableColumnNotFoundError):
        data.count_table_rows(table, CountTableRowsRequest(id=ID, predicate="nope = 1"))


def test_a_plan_is_explained_and_analyzed_without_telling_where_the_data_lies(table: TableHandle) -> None:
    asked = query(vector=NEAR, filter="id < 9")
    plan = data.explain_table_query_plan(table, ExplainTableQueryPlanRequest(id=ID, query=asked, verbose=True))
    assert "KNNVectorDistance" in plan
    analyzed = data.analyze_table_query_plan(
        table, AnalyzeTableQueryPlanRequest(id=ID, k=3, vector=QueryTableRequestVector(single_vector=NEAR))
    )
    assert "output_rows" in analyzed
    for text in (plan, analyzed):
        assert table.uri.lstrip("/") not in text
    with pytest.raises(TableColumnNotFoundError):
        data.explain_table_query_plan(table, ExplainTableQueryPlanRequest(id=ID, query=query(filter="nope = 1")))


def test_scattered_rows_are_fetched_with_few_requests(tmp_path: Path) -> None:
    """Lance's own block of local files, 4 KiB, makes a request of nearly every row."""
    uri = str(tmp_path / "wide.lance")
    lance.write_dataset(pa.table({"k": np.random.default_rng(1).integers(0, 1 << 60, 200_000)}), uri)
    dataset = TableHandle(ObjectId(("wide",)), uri).open(scattered=True)
    dataset.take([0])
    dataset.io_stats_incremental()
    assert dataset._take_rows(list(range(0, 200_000, 2000)), columns=["k"]).num_rows == 100
    assert dataset.io_stats_incremental().read_iops < 10
