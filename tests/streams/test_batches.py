"""Given rows as events: what is cast, what is bad, what the contracts do."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headwater.errors import InvalidInputError
from headwater.streams.batches import EventBatch, shape
from headwater.streams.definition import define
from headwater.streams.given import given

FIELDS: list[Any] = [
    pa.field("id", pa.int32()),
    pa.field("at", pa.timestamp("us", "UTC")),
    pa.field("price", pa.decimal128(8, 2)),
    pa.field("note", pa.string()),
    pa.field("x", pa.float64()),
]
TABLE = define(pa.schema(FIELDS), keys="id", sequence="at")
AT = datetime(2024, 1, 2, tzinfo=UTC)


def batch(rows: Any, contract: str = "refuse") -> EventBatch:
    return shape(TABLE, given(rows), contract)


def test_python_rows_lack_columns_each_for_itself() -> None:
    made = batch([{"id": 1, "at": AT, "note": None}, {"id": 2, "at": AT, "x": 1.5}])
    assert made.events.present["note"].tolist() == [True, False]
    assert made.events.present["x"].tolist() == [False, True]
    assert made.events.present["price"].tolist() == [False, False]
    assert "id" not in made.events.present


def test_values_are_taken_in_the_types_of_the_columns() -> None:
    rows = [{"id": 1.0, "at": "2024-01-02T00:00:00Z", "price": 1.25}, {"id": 2, "at": "2024-01-02", "price": 3}]
    found = batch(rows).events.rows.to_pylist()
    assert [row["at"] for row in found] == [AT, AT]
    assert [row["price"] for row in found] == [Decimal("1.25"), Decimal("3.00")]


def test_a_text_is_a_decimal_if_it_is_one_to_the_last_digit() -> None:
    texts = ["1.20", "-3", "1.2500", None, "1.255", "NaN", "1_0", "", " 1", "abc", "12345678"]
    for mixed in ([], [Decimal("1.5")]):
        rows = [{"id": n, "at": AT, "price": text} for n, text in enumerate([*texts, *mixed])]
        made = batch(rows, "evolve")
        assert made.events.rows["price"].to_pylist() == [Decimal("1.20"), Decimal(-3), Decimal("1.25"), None, *mixed]
        assert {bad.reason for bad in made.bad} == {"bad_value"}
    column = pa.table({"id": [1, 2], "at": [AT, AT], "price": ["1.20", "abc"]})
    assert [bad.index for bad in batch(column, "evolve").bad] == [1]


def test_a_value_that_does_not_fit_is_shown_with_the_type_it_should_have() -> None:
    with pytest.raises(InvalidInputError, match=r"'price' of row 0 .* is 'cheap', which does not fit its type decimal"):
        batch([{"id": 1, "at": AT, "price": "cheap"}])
    with pytest.raises(InvalidInputError, match=r"'id' of row 0 .* is a value, which does not fit its type int32"):
        batch([{"id": 10**5000, "at": AT}])


@pytest.mark.parametrize(
    ("row", "reason", "column"),
    [
        ({"id": None, "at": AT}, "null_key", "id"),
        ({"id": 1, "at": None}, "null_sequence", "at"),
        ({"id": "1", "at": AT}, "bad_value", "id"),
        ({"id": 2**40, "at": AT}, "bad_value", "id"),
        ({"id": True, "at": AT}, "bad_value", "id"),
        ({"id": 1, "at": "yesterday"}, "bad_value", "at"),
        ({"id": 1, "at": 5}, "bad_value", "at"),
        ({"id": 1, "at": AT, "price": 1.255}, "bad_value", "price"),
        ({"id": 1, "at": AT, "note": 5}, "bad_value", "note"),
    ],
)
def test_a_bad_row_is_named_or_handed_back(row: dict[str, Any], reason: str, column: str) -> None:
    good = {"id": 7, "at": AT}
    with pytest.raises(InvalidInputError, match=f"{column!r} of row 1 "):
        batch([good, row, good])
    made = batch([good, row, good], "freeze")
    assert [(bad.index, bad.reason, bad.column) for bad in made.bad] == [(1, reason, column)]
    assert (len(made.events), made.numbers.tolist()) == (2, [0, 2])


def test_one_bad_value_in_many_is_found_in_arrow_data() -> None:
    table = pa.table({"id": pa.array([*range(1000), 2**40]), "at": pa.array([AT] * 1001)})
    made = batch(table, "freeze")
    assert [(bad.index, bad.column) for bad in made.bad] == [(1000, "id")]


def test_a_nan_is_no_sequence() -> None:
    table = define({"k": "int64", "s": "double"}, keys="k", sequence="s")
    made = shape(table, given([{"k": 1, "s": float("nan")}]), "freeze")
    assert made.bad[0].reason == "null_sequence"


def test_a_missing_column_that_may_not_be_null_is_a_bad_row() -> None:
    fields: list[Any] = [pa.field("k", pa.int64()), pa.field("v", pa.int64(), nullable=False)]
    table = define(pa.schema(fields), keys="k")
    assert shape(table, given([{"k": 1}]), "freeze").bad[0].column == "v"


@pytest.mark.parametrize("name", ["id", "at"])
def test_a_missing_key_or_sequence_column_is_an_error_for_the_whole_call(name: str) -> None:
    row = {"id": 1, "at": AT}
    del row[name]
    with pytest.raises(InvalidInputError, match=f"{name!r} is missing"):
        batch(pa.Table.from_pylist([row]), "evolve")


def test_an_unknown_column_goes_by_the_contract() -> None:
    rows = [{"id": 1, "at": AT, "new": 5}]
    for contract in ("refuse", "freeze"):
        with pytest.raises(InvalidInputError, match="'new'"):
            batch(rows, contract)
    evolved = batch(rows, "evolve")
    assert (evolved.added, evolved.definition.by_name["new"].type) == (("new",), pa.int64())
    discarded = batch(rows, "discard")
    assert (discarded.discarded, discarded.definition) == (1, TABLE)


def test_a_type_that_widens_goes_by_the_contract() -> None:
    data = pa.table({"id": pa.array([1], pa.int64()), "at": pa.array([AT])})
    assert batch(data, "evolve").definition.by_name["id"].type == pa.int64()
    assert batch(data, "freeze").definition == TABLE
    assert batch([{"id": 2**40, "at": AT}], "evolve").widened == ("id",)


def test_a_type_that_does_not_fit_is_an_error_or_with_discard_a_bad_row() -> None:
    data = pa.table({"id": pa.array([1, 2]), "at": pa.array([AT, AT]), "x": pa.array(["1", None])})
    with pytest.raises(InvalidInputError, match="'x'"):
        batch(data, "evolve")
    made = batch(data, "discard")
    assert [(bad.index, bad.column) for bad in made.bad] == [(0, "x")]


@pytest.mark.parametrize("data", ["text", 5, [1], [{"id": 1}, 2], [{1: 2}]])
def test_what_is_no_rows_is_refused(data: Any) -> None:
    with pytest.raises(InvalidInputError):
        batch(data)
