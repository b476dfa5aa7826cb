"""The past of a catalog, alike on disk and through a server: history, moments, snapshots, undo, what comes back."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater import Catalog, MetastoreNamespace, connect
from headwater.errors import (
    InvalidInputError,
    InvalidTableStateError,
    TableNotFoundError,
    TableTagNotFoundError,
)
from tests.catalog.samples import SCHEMA, names


def test_the_past_is_told(either: Catalog) -> None:
    log = either.create_stream_table("raw.log", pa.schema([pa.field("line", pa.string())]))
    start = either.slot
    log.append([{"line": "one"}])
    either.drop_table("raw.log")
    with pytest.raises(TableNotFoundError):
        either["raw.log"]
    assert [item.path for item in either.diff(start, either.slot).removed] == [("raw", "log")]
    either.undrop("raw.log")
    assert either["raw.log"].count() == 1
    entries = list(either.log(after=start))
    assert [entry.slot for entry in entries] == list(range(start + 1, either.slot + 1))
    assert {change.operation for entry in entries for change in entry.changes} >= {"create", "delete"}
    assert [entry.operation for entry in either.history("raw.log")][-1] == "create"
    assert either.history("raw.log")[1].position == 1
    assert either.verify() == []
    told = either.collect(timedelta(0), timedelta(0), dry_run=True)
    assert (told.boundary, told.removed != ()) == (either.slot, True)
    assert either.history("raw.log")[0].slot <= start, "a dry run forgets nothing"


def test_every_name_and_row_is_read_as_it_was(either: Catalog) -> None:
    orders = either.create_stream_table("raw.orders", SCHEMA, keys="id")
    either.create_table("plain", pa.table({"id": [1, 2]}), properties={"a": "1"})
    orders.upsert([{"id": 1, "name": "Ada", "at": 1}])
    slot = either.slot
    either.snapshot("then")
    orders.publish()
    orders.upsert([{"id": 1, "name": "later", "at": 2}])
    either["plain"].delete("id = 1")
    either.rename_table("plain", "moved")
    either.rename_namespace("raw", "cooked")
    for moment in (slot, "then"):
        past = either.at(moment)
        assert list(past) == ["plain", "raw.orders"]
        assert sorted(past["plain"].to_arrow().column("id").to_pylist()) == [1, 2]
        assert past["plain"].properties["a"] == "1"
        assert names(past["raw.orders"].to_arrow()) == {1: "Ada"}
        assert (past["raw.orders"].position, past["raw.orders"].published) == (1, None)
        changes: list[Any] = [
            lambda it: it["raw.orders"].upsert([{"id": 2, "name": "x", "at": 1}]),
            lambda it: it["raw.orders"].publish(),
            lambda it: it["plain"].append([{"id": 3}]),
            lambda it: it.create_table("new", pa.table({"id": [1]})),
            lambda it: it.drop_table("plain"),
        ]
        for change in changes:
            with pytest.raises(InvalidInputError, match="as it was"):
                change(past)
    assert list(either) == ["cooked.orders", "moved"]
    with pytest.raises(InvalidInputError):
        list(either.at(slot + 1000))


def test_a_moment_that_is_none_is_refused_when_it_is_asked_for(either: Catalog) -> None:
    either.create_namespace("a")
    either.create_namespace("b")
    either.snapshot("1")
    assert either.at("1").namespaces() == ["a", "b"]
    assert either.at(1).namespaces() == ["a"]
    assert either.diff(1, "1").added[0].path == ("b",)
    for moment in (-1, 99, True, None, [1], datetime.now()):
        with pytest.raises(InvalidInputError):
            either.at(moment)  # type: ignore[arg-type]
    with pytest.raises(TableTagNotFoundError):
        either.at("2")
    either.collect(keep=timedelta(0), grace=timedelta(0))
    with pytest.raises(InvalidInputError, match="can be read at"):
        either.at(1)


def test_the_past_begins_no_transaction(either: Catalog) -> None:
    either.create_namespace("a")
    past = either.at(either.slot)
    with pytest.raises(InvalidInputError):
        past.run(lambda tx: tx.create_namespace("b"))
    with pytest.raises(InvalidInputError), past.transaction("now") as tx:
        tx.create_namespace("b")
    assert either.namespaces() == ["a"]


def test_what_is_no_transaction_is_not_undone(either: Catalog) -> None:
    either.create_namespace("a")
    for nothing in (5, None):
        with pytest.raises(InvalidInputError):
            either.undo(nothing)  # type: ignore[arg-type]
    assert either.namespaces() == ["a"]


def test_a_snapshot_is_read_after_a_collection(either: Catalog, tmp_path: Path) -> None:
    orders = either.create_stream_table("raw.orders", SCHEMA, keys="id")
    either.create_table("plain", pa.table({"id": [1]}))
    orders.upsert([{"id": 1, "name": "Ada", "at": 1}])
    orders.publish()
    taken = either.snapshot("monday")
    assert taken is not None
    assert {table.path: table.position for table in taken.tables}[("raw", "orders")] == 1
    orders.upsert([{"id": 1, "name": "later", "at": 2}])
    either["plain"].delete("id = 1")
    either.drop_table("plain")
    either.collect(timedelta(0), timedelta(0))
    assert either.snapshots() == [taken]
    near = Catalog(MetastoreNamespace(root=str(tmp_path / "lake"))).at("monday")
    assert names(near["raw.orders"].to_arrow()) == {1: "Ada"}
    assert near["plain"].to_arrow().to_pydict() == {"id": [1]}
    either.drop_snapshot("monday")
    assert either.snapshots() == []


def test_a_transaction_is_undone_with_what_it_landed(either: Catalog) -> None:
    orders = either.create_stream_table("raw.orders", SCHEMA, keys="id")
    orders.upsert([{"id": 1, "name": "Ada", "at": 1}])
    start = either.slot
    orders.upsert([{"id": 1, "name": "wrong", "at": 2}, {"id": 2, "name": "x", "at": 1}], token="t")
    (entry,) = either.log(after=start)
    told = either.undo(entry, dry_run=True)
    assert (told.slot, names(orders.to_arrow())) == (None, {1: "wrong", 2: "x"})
    assert either.undo(entry.txn).slot == either.slot
    assert names(orders.to_arrow()) == {1: "Ada"}
    assert not orders.upsert([{"id": 2, "name": "x", "at": 1}], token="t").duplicate, "its token is free again"
    orders.publish()
    publish = list(either.log(after=start))[-1]
    with pytest.raises(InvalidTableStateError):
        either.undo(publish)


def test_a_stream_table_comes_back_with_its_quarantine(either: Catalog) -> None:
    orders = either.create_stream_table("raw.orders", SCHEMA, keys="id")
    orders.ingest([{"id": None, "name": "?", "at": 1}, {"id": 1, "name": "Ada", "at": 1}])
    either.drop_table("raw.orders")
    assert list(either) == []
    either.undrop("raw.orders")
    assert list(either) == ["raw.orders", "raw.orders__quarantine"]
    assert (len(orders), len(orders.quarantine())) == (1, 1)


def test_an_alias_is_found_and_not_listed(either: Catalog) -> None:
    either.create_stream_table("raw.orders", SCHEMA, keys="id").upsert([{"id": 1, "name": "Ada", "at": 1}])
    either.alias("raw.orders", "sales")
    assert (either["raw.sales"].count(), either.tables("raw")) == (1, ["orders"])
    either["raw.sales"].upsert([{"id": 2, "name": "Grace", "at": 1}])
    assert either["raw.orders"].publish().rows == 2
    either.rename_namespace("raw", "cooked")
    assert len(either["cooked.sales"]) == 2
    either.unalias("cooked.orders", "sales")
    assert "cooked.sales" not in either


def test_a_moment_of_the_past_opens_a_table_once(tmp_path: Path) -> None:
    present: Any = connect("metastore", {"root": str(tmp_path / "lake")})
    lake = Catalog(present)
    table = lake.create_table("t", pa.table({"id": [1, 2]}))
    past, slot = present.at(lake.slot), lake.slot
    table.append(pa.table({"id": [3]}))
    opened = past.handle_of(["t"]).open()
    assert past.handle_of(["t"]).open() is opened
    assert past.handle_of(["t"]).open(1) is not opened
    assert opened.count_rows() == lake.at(slot)["t"].count() == 2
    assert present.handle_of(["t"]).open() is not present.handle_of(["t"]).open()
    assert table.count() == 3
