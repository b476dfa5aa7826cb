"""Expectations: SQL in the properties of a table, which rows hold, are dropped for, or are refused for."""

from __future__ import annotations

from typing import Any

import pytest

from headwater.errors import InvalidInputError, TableVersionNotFoundError
from headwater.metastore import Metastore
from headwater.streams.table import StreamTable

ROWS: list[dict[str, Any]] = [{"id": 1, "price": 5}, {"id": 2, "price": -1}, {"id": 3, "price": None}, {"id": 4}]


def products(metastore: Metastore, **properties: str) -> StreamTable:
    return StreamTable.create(metastore, ["p"], {"id": "int64", "price": "int64"}, "id", properties=properties)


def test_rows_that_do_not_hold_an_expectation_are_counted_and_kept(metastore: Metastore) -> None:
    table = products(metastore, **{"expect.paid": "price > 0"})
    report = table.ingest(ROWS, source="s")
    assert (dict(report.checks), report.rows, report.quarantined) == ({"paid": 2}, 4, 0)


def test_rows_are_dropped_into_the_quarantine_with_the_name_of_the_check(metastore: Metastore) -> None:
    table = products(metastore, **{"expect_or_drop.paid": "price > 0"})
    report = table.ingest(ROWS, source="s", token="once")
    assert (report.rows, report.quarantined) == (2, 2)  # a row that lacks the column is not judged
    assert {(row["reason"], row["position"]) for row in table.quarantine().to_pylist()} == {("check:paid", 1)}
    assert table.ingest(ROWS, source="s", token="once").duplicate
    table.upsert([{"id": 9, "price": -9}])
    assert table.count() == 3  # only an ingest is judged: an upsert says what it wants


def test_a_batch_is_refused_for_one_row_and_nothing_of_it_is_taken(metastore: Metastore) -> None:
    table = products(metastore, **{"expect_or_fail.paid": "price > 0"})
    with pytest.raises(InvalidInputError, match="'paid'"):
        table.ingest(ROWS, source="s")
    assert (table.position, table.quarantine().num_rows) == (0, 0)
    table.set_properties({"expect_or_fail.paid": None})
    assert table.ingest(ROWS, source="s").rows == 4


@pytest.mark.parametrize(
    "properties",
    [
        {"expect.": "price > 0"},
        {"expect.x": " "},
        {"expect.x": "price >"},
        {"expect.x": "price + 1"},
        {"expect_or_drop.x": "missing > 0"},
        {"expect.x": "price > 0", "expect_or_drop.x": "price > 1"},
    ],
)
def test_an_expectation_that_cannot_be_is_refused_when_it_is_set(
    metastore: Metastore, properties: dict[str, str]
) -> None:
    with pytest.raises(InvalidInputError):
        products(metastore, **properties)
    table = products(metastore)
    with pytest.raises(InvalidInputError):
        table.set_properties(properties)
    assert table.definition.properties == {}


def test_a_check_that_is_refused_names_no_other_engine_since_no_other_runs_checks(metastore: Metastore) -> None:
    with pytest.raises(InvalidInputError, match=r"'odd' .*rlike.* runs in that engine on Spark too") as refused:
        products(metastore, **{"expect.odd": "cast(id AS STRING) rlike '\\\\b[13]'"})
    assert "--engine" not in str(refused.value)


def test_a_column_that_an_expectation_names_is_not_dropped(metastore: Metastore) -> None:
    table = products(metastore, **{"expect.paid": "price > 0"})
    with pytest.raises(InvalidInputError, match="'paid'"):
        table.evolve(drop=["price"])


def test_a_published_version_says_where_its_rows_come_from(metastore: Metastore) -> None:
    table = products(metastore)
    table.ingest(ROWS, source="shop", token="a")
    first = table.publish({"run": {"id": "r1"}, "inputs": {"raw.x": {"version": 3}}})
    table.upsert([{"id": 7}])
    second = table.publish()
    found = table.lineage(first.version)
    assert (found["positions"], found["run"]) == ([0, 1], {"id": "r1"})
    assert (found["inputs"], [each["source"] for each in found["sources"]]) == ({"raw.x": {"version": 3}}, ["shop"])
    assert table.lineage()["positions"] == table.lineage(second.version)["positions"] == [1, 2]
    assert "run" not in table.lineage()
    with pytest.raises(TableVersionNotFoundError, match="no published version 99"):
        table.lineage(99)
