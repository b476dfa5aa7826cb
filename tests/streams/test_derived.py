"""Derived columns: computed for rows whose inputs changed, never of an older input."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headwater.errors import InvalidInputError
from headwater.metastore import Metastore
from headwater.streams.table import StreamTable
from tests.streams import features


def column(function: str = "embed", version: str = "1", kind: str = "float32[2]") -> str:
    known = {"function": f"tests.streams.features:{function}", "inputs": ["text"], "type": kind, "version": version}
    return json.dumps(known)


def products(metastore: Metastore, **properties: str) -> StreamTable:
    schema = {"sku": "string", "at": "int64", "text": "string", "price": "int64"}
    return StreamTable.create(metastore, ["p"], schema, "sku", "at", properties=properties)


def vectors(table: StreamTable) -> dict[str, Any]:
    return {row["sku"]: row["vector"] for row in table.to_arrow().to_pylist()}


def test_values_are_computed_for_rows_whose_inputs_changed_only(metastore: Metastore) -> None:
    table = products(metastore, **{"column.vector": column()})
    table.upsert([{"sku": sku, "at": 1, "text": sku * 2, "price": 1} for sku in ("a", "b", "c")])
    assert vectors(table) == {"a": None, "b": None, "c": None}
    features.CALLS.clear()
    table.publish()
    assert (features.CALLS, vectors(table)) == ([3], {key: [2.0, 1.0] for key in "abc"})
    table.upsert([{"sku": "a", "at": 2, "price": 9}, {"sku": "b", "at": 2, "text": "longer"}, {"sku": "d", "at": 1}])
    assert vectors(table) == {"a": [2.0, 1.0], "b": None, "c": [2.0, 1.0], "d": None}
    features.CALLS.clear()
    table.publish()
    assert sum(features.CALLS) == 2
    assert vectors(table) == {"a": [2.0, 1.0], "b": [6.0, 1.0], "c": [2.0, 1.0], "d": [0.0, 1.0]}
    assert table.to_arrow(filter="price = 9").to_pylist()[0]["vector"] == [2.0, 1.0]
    assert table.to_arrow(columns=["vector"]).num_columns == 1
    assert table.stale() == {"vector": 0}


def test_a_new_function_makes_rows_stale_until_they_are_written_again(metastore: Metastore) -> None:
    table = products(metastore)
    table.upsert([{"sku": "a", "at": 1, "text": "xx"}, {"sku": "b", "at": 1, "text": "yyy"}])
    table.publish()
    table.set_properties({"column.vector": column()})
    assert vectors(table) == {"a": None, "b": None}
    table.publish()
    assert table.stale() == {"vector": 2}
    table.upsert([{"sku": "a", "at": 2, "price": 1}])
    table.publish()
    assert (vectors(table), table.stale()) == ({"a": [2.0, 1.0], "b": None}, {"vector": 1})
    table.set_properties({"column.vector": column(version="2")})
    table.publish()
    assert (vectors(table), table.stale()) == ({"a": [2.0, 1.0], "b": None}, {"vector": 2})
    table.backfill(rows=1)
    assert table.stale() == {"vector": 1}
    table.backfill()
    assert (vectors(table), table.stale()) == ({"a": [2.0, 1.0], "b": [3.0, 1.0]}, {"vector": 0})
    version = table.publish().version
    table.backfill()
    assert table.publish().version == version
    table.set_properties({"column.vector": None})
    table.publish()
    assert "vector" not in table.to_arrow().column_names


def test_a_new_column_of_a_published_table_is_stale_at_once_and_a_backfill_computes_it(metastore: Metastore) -> None:
    table = products(metastore)
    table.upsert([{"sku": "a", "at": 1, "text": "xx"}, {"sku": "b", "at": 1, "text": "yyy"}])
    table.publish()
    table.set_properties({"column.vector": column()})
    table.upsert([{"sku": "c", "at": 1, "text": "z"}])
    assert table.stale() == table.stale(now=True) == {"vector": 2}
    assert table.backfill() > 0
    assert (vectors(table), table.stale()) == ({"a": [2.0, 1.0], "b": [3.0, 1.0], "c": [1.0, 1.0]}, {"vector": 0})
    assert [getattr(table.published, "stale", None), table.publish().stale] == [0, 0]
    table.set_properties({"column.length": column()})
    assert [table.publish().stale, table.publish().stale] == [3, 3], "a publish without effect tells it too"
    table.delete(["a"])
    assert table.publish().stale == 2
    table.upsert([{"sku": "a", "at": 2, "text": "xx"}])
    table.evolve(add={"more": "int64"})
    assert table.stale() == {"vector": 0, "length": 2}
    table.set_properties({"column.vector": None})
    assert table.stale() == {"length": 2}
    table.backfill(rows=1)
    table.backfill(rows=1)
    assert getattr(table.published, "stale", None) == 1
    table.set_properties({"column.vector": column()})
    table.backfill()
    assert table.stale() == {"vector": 0, "length": 0}
    found = table.to_arrow()
    assert found["length"].to_pylist() == found["vector"].to_pylist()
    assert table.verify() == []


def test_a_derived_column_cannot_be_given_and_its_function_must_answer_for_every_row(metastore: Metastore) -> None:
    table = products(metastore, **{"column.vector": column("wrong", kind="int64")})
    with pytest.raises(InvalidInputError, match="'vector'"):
        table.upsert([{"sku": "a", "at": 1, "vector": 1}])
    with pytest.raises(InvalidInputError, match="derived"):
        table.ingest([{"sku": "a", "at": 1, "vector": 1}])
    table.upsert([{"sku": "a", "at": 1}])
    with pytest.raises(InvalidInputError, match="2 values for 1 rows"):
        table.publish()
    table.set_properties({"column.vector": column("missing", kind="int64")})
    with pytest.raises(InvalidInputError, match="missing"):
        table.publish()
    assert table.published is None


def test_rows_with_stale_values_are_not_rewritten_before_the_backfill(metastore: Metastore) -> None:
    table = products(metastore, **{"column.vector": column()})
    table.upsert([{"sku": str(n), "at": 1, "text": "xx"} for n in range(10)])
    table.publish()
    table.set_properties({"column.vector": column(version="2")})
    table.delete([str(n) for n in range(5)])
    table.publish()
    assert table.stale() == {"vector": 5}
    assert not table.compact()
    assert table.stale() == {"vector": 5}
    table.backfill()
    assert (table.stale(), table.verify()) == ({"vector": 0}, [])
