"""Small requests that ask for enormous work are refused before any of it is done."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest
from lance_namespace import (
    AlterTableAddColumnsRequest,
    CountTableRowsRequest,
    DeleteFromTableRequest,
    UpdateTableRequest,
)

from headwater.decoding.arrow import read_stream
from headwater.errors import InvalidInputError
from headwater.namespace import data
from headwater.tables.expressions import check_sql
from headwater.tables.handle import TableHandle
from tests.data.samples import ID, body, query, snapshot

GROWING = (
    "repeat(s, 1000000000)",
    "REPEAT (s, 1000000000)",
    "repeat/**/(s, 1000000000)",
    '"repeat"(s, 1000000000)',
    "`repeat`(s, 1000000000)",
    "datafusion.repeat(s, 1000000000)",
    "lpad(s, 1000000000)",
    "rpad(s, 1000000000, 'x')",
    "array_repeat(1, 1000000000)",
    "list_repeat(1, 1000000000)",
    "array_resize(tags, 1000000000, 'x')",
    "generate_series(1, 1000000000)",
    "range(1, 1000000000)",
    "arrow_cast('a', 'FixedSizeBinary(1000000000)')",
    "arrow_cast(tags, 'FixedSizeList(1000000000, Utf8)')",
    "arrow_cast(NULL, 'FixedSizeList(8193, Float32)')",
    "arrow_cast(NULL, 'FixedSizeList(2, FixedSizeList(8192, Float32))')",
    f"replace(s, 'e', '{'x' * 1000}')",
    "replace(replace(replace(s, 'a', 'aaaaaaaaaa'), 'a', 'aaaaaaaaaa'), 'a', 'aaaaaaaaaa')",
    f"array_to_string(tags, '{'x' * 1000}')",
    "E'\\'' || repeat('a', 1000000000) || 'x'",
    "$$ ' $$ || repeat('a', 1000000000) || $$ ' $$",
)
TANGLED = {
    "comments that do not end": "/*" * 90_000,
    "quotes that do not end": "'" * 99_999,
    "names that do not end": '"' * 99_999,
    "backticks that do not end": "`" * 99_999,
    "stars in a comment": "/*" + "*" * 190_000,
    "cases under AND": "CASE WHEN true AND " * 5000 + "true" + " THEN true END" * 5000,
    "words": "1 OR " * 40_000 + "1" + ", 1" * 40_000,
}


@pytest.mark.parametrize("expression", GROWING)
def test_an_expression_that_makes_a_gigabyte_of_a_word_is_not_run(table: TableHandle, expression: str) -> None:
    before = snapshot(table.uri)
    columns = AlterTableAddColumnsRequest(id=ID, new_columns=[{"name": "x", "expression": expression}])  # type: ignore[list-item]
    for attempt in (
        lambda: data.count_table_rows(table, CountTableRowsRequest(id=ID, predicate=f"{expression} IS NULL")),
        lambda: data.query_table(table, query(columns={"x": expression})),
        lambda: data.query_table(table, query(filter=f"{expression} IS NOT NULL")),
        lambda: data.update_table(table, UpdateTableRequest(id=ID, updates=[["s", expression]])),
        lambda: data.delete_from_table(table, DeleteFromTableRequest(id=ID, predicate=f"{expression} = ''")),
        lambda: data.alter_table_add_columns(table, columns),
    ):
        with pytest.raises(InvalidInputError):
            attempt()
    assert snapshot(table.uri) == before


@pytest.mark.parametrize("name", TANGLED)
def test_a_text_made_to_tangle_the_tokenizer_is_refused_in_one_pass(name: str) -> None:
    with pytest.raises(InvalidInputError):
        check_sql("filter", TANGLED[name])


@pytest.mark.parametrize(
    "expression",
    [
        "lower(s) LIKE 'word%'",
        "coalesce(id, 0) = 1 AND left(s, 2) = 'wo'",
        "id IN (1, 2) OR NOT (id BETWEEN 3 AND 4)",
        "array_has(tags, 'x1')",
        "replace(s, 'o', '00') = 'w00rd'",
        "CAST(id AS decimal(10, 2)) = 1.5",
        "date_trunc('day', to_timestamp('2026-01-01')) = timestamp '2026-01-01 00:00:00'",
        "arrow_cast('2026-01-01', 'Timestamp(Microsecond, None)') IS NOT NULL",
        "s = 'it''s (quoted); repeat(1)' -- repeat(",
        "st['a'] = 1 /* range( */",
        "regexp_like(s, '^w.*d') AND (id + 1) * (id - 1) > 0",
    ],
)
def test_everyday_expressions_are_run(table: TableHandle, expression: str) -> None:
    assert data.count_table_rows(table, CountTableRowsRequest(id=ID, predicate=expression)).count is not None


@pytest.mark.parametrize(
    "fields",
    [
        {"refine_factor": 2**31 - 1},
        {"ef": 2**31 - 1},
        {"nprobes": 2**31 - 1},
        {"minimum_nprobes": 2**31 - 1},
        {"maximum_nprobes": 2**31 - 1},
        {"refine_factor": 0},
        {"k": 2**62, "offset": 2**62},
        {"k": 300, "refine_factor": 1000, "vector": [[1.0] * 4] * 1000},
    ],
)
def test_a_search_is_not_told_to_look_without_end(table: TableHandle, fields: dict[str, Any]) -> None:
    asked = {"vector": [1.0] * 4, **fields}
    try:
        found = data.query_table(table, query(**asked))
    except InvalidInputError:
        return
    assert fields == {"k": 2**62, "offset": 2**62}
    assert isinstance(found.data, bytes)


def same_text_again(count: int, size: int) -> Any:
    """`count` views of one text."""
    view = struct.pack("<i4sii", size, b"aaaa", 0, 0)
    return pa.Array.from_buffers(pa.string_view(), count, [None, pa.py_buffer(view * count), pa.py_buffer(b"a" * size)])


def same_list_again(count: int, size: int) -> Any:
    values = pa.array([0] * size, pa.int8())
    offsets = pa.array([0] * count, pa.int32())
    maker: Any = pa.ListViewArray
    return maker.from_arrays(offsets, pa.array([size] * count, pa.int32()), values)


MEGABYTE = 1 << 20
REPEATING: dict[str, Any] = {
    "views of a text": lambda: same_text_again(63_000, MEGABYTE),
    "views of a text in structs": lambda: pa.StructArray.from_arrays([same_text_again(63_000, MEGABYTE)], ["x"]),
    "views of a list": lambda: same_list_again(63_000, MEGABYTE),
    "a dictionary": lambda: pa.DictionaryArray.from_arrays(
        pa.array([0] * 63_000, pa.int32()), pa.array(["a" * MEGABYTE])
    ),
    "runs": lambda: pa.RunEndEncodedArray.from_arrays(pa.array([63_000], pa.int32()), pa.array(["a" * MEGABYTE])),
}


@pytest.mark.parametrize("name", REPEATING)
def test_a_body_that_says_one_thing_many_times_is_measured_by_what_it_says(name: str) -> None:
    sent = body(pa.table({"x": REPEATING[name]()}))
    assert len(sent) < 4 * MEGABYTE
    with pytest.raises(InvalidInputError, match="when its views, dictionaries and runs are written out"):
        read_stream(sent).read_all()


def test_views_that_say_a_little_are_read() -> None:
    sent = pa.table({"x": pa.array(["a", None, "a text that is longer than twelve"] * 1000, pa.string_view())})
    assert read_stream(body(sent)).read_all() == sent


@pytest.mark.parametrize(
    "text", ["NOT bigint true", "id = bigint 5", "date 5 = id", "id = INT null", "id < decimal 1.5"]
)
def test_a_type_before_a_number_is_refused_with_the_right_spelling(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"write cast\("):
        check_sql("filter", text)


@pytest.mark.parametrize(
    "text", ["id = bigint '5'", "cast(id AS bigint) = 5", "at > date '2026-01-01'", "date IS NULL"]
)
def test_a_type_before_a_text_and_a_column_named_like_a_type_are_taken(text: str) -> None:
    assert check_sql("filter", text) == f"({text}\n)"
