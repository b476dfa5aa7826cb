"""Given rows as events: what is cast, what is bad, what the contracts do."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headwater.errors import InvalidInputError
from headwater.streams.definition import define
from headwater.streams.log.batches import EventBatch, shape
from headwater.streams.rows.input_rows import as_input_rows, as_json

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
    return shape(TABLE, as_input_rows(rows), contract)


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


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1.5, pa.int64()),
        (Decimal("1.5"), pa.int64()),
        (2**70, pa.int64()),
        (1e300, pa.float32()),
        (AT.replace(hour=5), pa.date32()),
        (AT.replace(microsecond=5), pa.timestamp("ms", "UTC")),
        (time(1, 2, 3, 5), pa.time32("ms")),
        (timedelta(microseconds=5), pa.duration("s")),
        ([1.5], pa.list_(pa.int64())),
        ({"a": 1, "b": 2}, pa.struct([("a", pa.int64())])),
        ([5], pa.list_(pa.timestamp("us"))),
        ({"k": 1.5}, pa.map_(pa.string(), pa.int64())),
        ("\ud800", pa.string()),
        ("25:00:00", pa.time64("us")),
        (pa.scalar(0.1), pa.float32()),
        (pa.scalar(1.255), pa.decimal128(8, 2)),
        (pa.scalar([AT.replace(microsecond=5)]), pa.list_(pa.timestamp("s", "UTC"))),
    ],
)
def test_a_value_that_would_be_cut_short_does_not_fit(value: Any, kind: Any) -> None:
    """Arrow itself makes 1 of 1.5, a date of a time, and leaves out fields that a struct has not."""
    table = define(pa.schema([pa.field("id", pa.int64()), pa.field("x", kind)]), keys="id")
    rows: Any = [{"id": 1, "x": value}, {"id": 2, "x": None}]
    if isinstance(value, pa.Scalar):
        rows = pa.table({"id": [1, 2], "x": pa.array([value.as_py(), None], value.type)})
    made = shape(table, as_input_rows(rows), "freeze")
    assert [(bad.index, bad.reason, bad.column) for bad in made.bad] == [(0, "bad_value", "x")]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (2.0, pa.int32()),
        (None, pa.time64("us")),
        ("01:02:03.5", pa.time64("us")),
        (pa.scalar("01:02"), pa.time32("s")),
        (0.1, pa.float32()),
        (date(2024, 1, 2), pa.timestamp("s")),
        (AT, pa.date32()),
        ({"a": 1}, pa.struct([("a", pa.int64()), ("b", pa.int64())])),
        ([0.1], pa.list_(pa.float32(), 1)),
        ({"k": 1}, pa.map_(pa.string(), pa.int64())),
        (pa.scalar(5), pa.decimal128(3, 2)),
        (pa.scalar(0.5), pa.float32()),
        (pa.scalar([1], pa.list_view(pa.int64())), pa.list_(pa.int64())),
    ],
)
def test_what_a_type_has_a_place_for_fits(value: Any, kind: Any) -> None:
    table = define(pa.schema([pa.field("id", pa.int64()), pa.field("x", kind)]), keys="id")
    rows: Any = [{"id": 1, "x": value}]
    if isinstance(value, pa.Scalar):
        rows = pa.table({"id": [1], "x": pa.array([value.as_py()], value.type)})
    assert not shape(table, as_input_rows(rows), "freeze").bad


def test_a_nan_is_no_sequence_whatever_the_type_of_the_column() -> None:
    table = define({"id": "int64", "at": "int64"}, "id", "at")
    for rows in ([{"id": 1, "at": float("nan")}], pa.table({"id": [1], "at": [float("nan")]})):
        made = shape(table, as_input_rows(rows), "freeze")
        assert [(bad.reason, bad.column) for bad in made.bad] == [("null_sequence", "at")]


def test_a_value_of_a_new_column_that_no_type_has_makes_a_bad_row() -> None:
    deep: Any = 1
    for _ in range(2000):
        deep = [deep]
    for value in (2**70, deep):
        (bad,) = batch([{"id": 1, "at": AT, "new": value}, {"id": 2, "at": AT}], "evolve").bad
        assert (bad.index, bad.reason, bad.column) == (0, "unknown_column", "new")


def test_every_row_has_a_text_for_the_quarantine() -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    assert as_json({"id": 1, "note": deep}) == '{"id": 1, "note": "(list)"}'
    assert as_json({"note": "\ud800"}) == '{"note": "\\ud800"}'
    assert as_json({"note": {(1, 2): 3}}) == '{"note": "(dict)"}'


def test_a_nan_is_no_sequence() -> None:
    table = define({"k": "int64", "s": "double"}, keys="k", sequence="s")
    made = shape(table, as_input_rows([{"k": 1, "s": float("nan")}]), "freeze")
    assert made.bad[0].reason == "null_sequence"


def test_a_missing_column_that_may_not_be_null_is_a_bad_row() -> None:
    fields: list[Any] = [pa.field("k", pa.int64()), pa.field("v", pa.int64(), nullable=False)]
    table = define(pa.schema(fields), keys="k")
    assert shape(table, as_input_rows([{"k": 1}]), "freeze").bad[0].column == "v"


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


def test_a_row_with_a_column_that_the_table_cannot_have_is_a_bad_row_and_holds_up_no_other() -> None:
    rows = [{"id": 1}, {"id": 2, "a.b": 1}, {"id": 3, "ID": 3}, {"id": 4, "n": 1}, {"id": 5, "n": "x"}]
    rows += [{"id": 6, "N": 1}, {"id": 7, "deep": [1, "x"]}, {"id": 8, "": 0}]
    batch = shape(define({"id": "int64"}, "id"), as_input_rows(rows), "evolve")
    assert [(bad.index, bad.reason, bad.column) for bad in batch.bad] == [
        (1, "unknown_column", "a.b"),
        (2, "unknown_column", "ID"),
        (4, "bad_value", "n"),
        (5, "unknown_column", "N"),
        (6, "unknown_column", "deep"),
        (7, "unknown_column", ""),
    ]
    assert batch.added == ("n",)
    assert batch.events.rows.to_pylist() == [{"id": 1, "n": None}, {"id": 4, "n": 1}]
    with pytest.raises(InvalidInputError, match=r"'a\.b' cannot be the name of a column"):
        shape(define({"id": "int64"}, "id"), as_input_rows(pa.table({"id": [1], "a.b": [1]})), "evolve")
