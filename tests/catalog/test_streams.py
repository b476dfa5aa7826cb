"""Stream tables by their names in a catalog, beside Lance tables, now and in the past."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from headwater import Catalog, MetastoreNamespace
from headwater.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    InvalidTableStateError,
    TableAlreadyExistsError,
    UnsupportedOperationError,
)
from headwater.streams import table as stream_table
from headwater.streams.log.statements import deletion
from tests.catalog.samples import SCHEMA, names


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(MetastoreNamespace(root=str(tmp_path / "lake")))


def test_a_version_that_only_changed_columns_is_no_base_and_verify_folds_from_none(catalog: Catalog) -> None:
    columns = {"id": "int64", "a": "string", "b": "int32"}
    table = catalog.create_stream_table("t", columns, "id", properties={"log_retention": "0 days"})
    table.upsert([{"id": 1, "a": "x", "b": 1}, {"id": 2, "a": "x", "b": 1}])
    table.publish()
    table.evolve(add={"c": "int64"}, rename={"a": "d"}, widen={"b": "int64"})
    table.delete([1])
    table.publish()
    table.evolve(add={"e": "int64"}, drop=["c"])
    evolved = table.publish()
    catalog.collect(timedelta(0), timedelta(0))
    table.upsert([{"id": 3, "d": "y"}])
    table.publish()
    assert (catalog.verify(), sorted(row["id"] for row in table)) == ([], [2, 3])
    _, snapshot = table.opened()
    told = {delta.position: delta.properties.get("position") for delta in snapshot.deltas(["t"], format="lance")}
    assert [told[version] for version in (evolved.version - 1, evolved.version)] == [None, 2]


def test_a_column_after_an_undone_one_is_another_one(catalog: Catalog) -> None:
    """Files of the log and versions name columns and schemas by their numbers, so an undo gives none of them again."""
    table = catalog.create_stream_table("t", {"id": "int64", "a": "string"}, "id")
    landed = table.ingest([{"id": 1, "a": "x", "undone": 7}], source="s")
    table.publish()
    catalog.undo(table.deltas()[0].txn)
    table.evolve(add={"other": "int64"})
    assert table.to_arrow(position=landed.position).to_pylist() == [{"id": 1, "a": "x", "other": None}]
    table.upsert([{"id": 2}])
    table.publish()
    assert list(table) == list(table.serving) == [{"id": 2, "a": None, "other": None}]
    evolved = [entry for entry in catalog.log() if entry.message == "evolve t"]
    catalog.undo(evolved[0])
    table.evolve(add={"last": "int64"})
    table.publish()
    assert list(table) == list(table.serving) == [{"id": 2, "a": None, "last": None}]
    assert catalog.verify() == []


def test_changes_of_columns_are_undone_one_after_the_other_and_redone(catalog: Catalog) -> None:
    table = catalog.create_stream_table("t", {"id": "int64", "a": "string"}, "id")
    table.upsert([{"id": 1, "a": "x"}])
    table.evolve(add={"b": "int64"})
    table.evolve(drop=["a"])
    first, second = list(catalog.log())[-2:]
    catalog.undo(second)
    catalog.undo(first)
    assert list(table) == [{"id": 1, "a": "x"}]
    catalog.undo(list(catalog.log())[-1])
    assert list(table) == [{"id": 1, "a": "x", "b": None}]
    table.publish()
    assert (list(table.serving), catalog.verify()) == (list(table), [])


def test_columns_that_rows_since_have_filled_are_not_taken_back(catalog: Catalog) -> None:
    table = catalog.create_stream_table("t", {"id": "int64", "n": "int32"}, "id")
    table.ingest([{"id": 1, "more": 1}], source="s")
    table.ingest([{"id": 2, "more": 2}], source="s")
    table.evolve(widen={"n": "int64"})
    table.upsert([{"id": 3, "n": 2**40}])
    added, later, widened, wide = list(catalog.log())[-4:]
    before = sorted(map(str, table))
    for entry, reason in ((added, "column that it added"), (widened, "column that it widened")):
        with pytest.raises(InvalidTableStateError, match=reason):
            catalog.undo(entry)
    assert sorted(map(str, table)) == before
    catalog.undo(wide)
    with pytest.raises(InvalidTableStateError, match="widened"):  # it is read at its position still
        catalog.undo(widened)
    assert {row["n"] for row in table.to_arrow(position=3).to_pylist()} == {None, 2**40}
    catalog.undo(later)
    assert list(table) == [{"id": 1, "n": None, "more": 1}]


def test_what_was_collected_is_not_undone_in_part(catalog: Catalog) -> None:
    table = catalog.create_stream_table("t", SCHEMA, "id", properties={"log_retention": "0 days"})
    for token, rows in (("whole", [{"id": 1}]), ("half", [{"id": 2}, {"id": None}]), ("none", [{"id": None}])):
        table.ingest(rows, source="s", token=token)
    entry = list(catalog.log())[-3]
    table.publish()
    catalog.collect(timedelta(days=7), timedelta(0))
    before = catalog.slot
    for undo in (lambda: table.undo(source="s", token="half"), lambda: catalog.undo(entry)):
        with pytest.raises(InvalidTableStateError, match="collected"):
            undo()
    assert (catalog.slot, table.count(), table.quarantine().num_rows) == (before, 2, 2)
    assert table.ingest([{"id": 2}, {"id": None}], source="s", token="half").duplicate
    table.undo(source="s", token="none")
    assert (table.count(), table.quarantine().num_rows) == (2, 1)


def test_a_repeat_answers_as_the_first_time_also_when_its_deltas_were_collected(catalog: Catalog) -> None:
    table = catalog.create_stream_table("t", SCHEMA, "id", properties={"log_retention": "0 days"})
    first = [table.upsert([{"id": number}], token=str(number)).position for number in range(3)]
    first.append(table.delete([1], token="gone").position)
    table.publish()
    catalog.collect(timedelta(0), timedelta(0))
    assert table.deltas() == []
    again = [table.upsert([{"id": number}], token=str(number)) for number in range(3)]
    again.append(table.delete([1], token="gone"))
    assert ([each.position for each in again], [each.duplicate for each in again]) == (first, [True] * 4)


def test_changes_land_are_read_fresh_and_published_for_every_lance_client(catalog: Catalog) -> None:
    orders = catalog.create_stream_table("raw.orders", SCHEMA, keys=["id"], sequence=["at"])
    orders.upsert([{"id": 1, "name": "Ada", "at": 1}, {"id": 2, "name": "Grace", "at": 1}])
    assert catalog.tree().endswith("orders")
    assert names(catalog["raw.orders"].to_arrow()) == {1: "Ada", 2: "Grace"}
    assert catalog["raw.orders"].published is None
    published = catalog["raw.orders"].publish()
    assert (published.version >= 1, published.position) == (True, 1)
    orders.upsert([{"id": 2, "name": "Grace H.", "at": 2}])
    orders.delete([{"id": 1}])
    assert names(orders.to_arrow()) == {2: "Grace H."}
    seen = lance.dataset(namespace_client=catalog.namespace, table_id=["raw", "orders"])
    assert names(seen.to_table()) == {1: "Ada", 2: "Grace"}, "a Lance client sees what was published"
    catalog.publish(["raw.orders"])
    seen = lance.dataset(namespace_client=catalog.namespace, table_id=["raw", "orders"])
    assert names(seen.to_table()) == {2: "Grace H."}
    assert len(orders) == 1
    assert orders.serving.count() == 1
    assert repr(orders) == "CatalogStream('raw.orders')"


def test_a_stream_table_keeps_its_rows_under_a_new_name(catalog: Catalog) -> None:
    log = catalog.create_stream_table("log", pa.schema([pa.field("line", pa.string())]))
    log.append([{"line": "one"}])
    log.publish()
    catalog.create_namespace("old")
    catalog.rename_table("log", "old.log")
    catalog["old.log"].append([{"line": "two"}])
    assert catalog["old.log"].count() == 2
    catalog["old.log"].publish()
    assert catalog["old.log"].serving.count() == 2
    catalog.drop_table("old.log")
    assert list(catalog) == []


def test_a_lance_client_cannot_change_the_rows_of_a_stream_table(catalog: Catalog) -> None:
    orders = catalog.create_stream_table("orders", SCHEMA, keys="id")
    orders.upsert([{"id": 1, "name": "Ada", "at": 1}])
    orders.publish()
    changes: tuple[Callable[[], object], ...] = (
        lambda: orders.serving.append([{"id": 9, "name": "x", "at": 1}]),
        lambda: orders.serving.delete("id = 1"),
        lambda: orders.serving.update({"name": "x"}),
        lambda: orders.serving.drop_columns("name"),
    )
    for change in changes:
        with pytest.raises(InvalidInputError, match="stream table"):
            change()
    assert names(orders.to_arrow()) == names(orders.serving.to_arrow()) == {1: "Ada"}


def test_the_past_of_a_stream_table_is_read_and_not_changed(catalog: Catalog) -> None:
    orders = catalog.create_stream_table("orders", SCHEMA, keys="id")
    orders.upsert([{"id": 1, "name": "Ada", "at": 1}])
    slot = catalog.slot
    orders.publish()
    orders.upsert([{"id": 1, "name": "Ada L.", "at": 2}])
    past = catalog.at(slot)["orders"]
    assert names(past.to_arrow()) == {1: "Ada"}
    assert (past.position, past.published) == (1, None)
    with pytest.raises(InvalidInputError, match="as it was at slot"):
        past.upsert([{"id": 2, "name": "x", "at": 1}])
    with pytest.raises(InvalidInputError, match="as it was at slot"):
        past.publish()


def test_a_name_is_taken_once_and_a_directory_catalog_has_no_stream_tables(catalog: Catalog, tmp_path: Path) -> None:
    catalog.create_table("t", pa.table({"id": [1]}))
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_stream_table("t", SCHEMA)
    with pytest.raises(UnsupportedOperationError, match="metastore"):
        Catalog(str(tmp_path / "dir"), impl="dir").create_stream_table("t", SCHEMA)


def test_what_lands_in_a_transaction_joins_it_and_conflicts_with_nobody(catalog: Catalog) -> None:
    orders = catalog.create_stream_table("raw.orders", SCHEMA, keys=["id"], sequence=["at"])
    orders.upsert([{"id": 1, "name": "Ada", "at": 1}, {"id": 2, "name": "Grace", "at": 1}])
    with catalog.transaction("a day's work") as tx:
        inside = tx["raw.orders"]
        report = inside.upsert([{"id": 3, "name": "Edsger", "at": 1}], token="t")
        inside.delete([{"id": 1}])
        assert inside.ingest([{"id": None, "name": "?", "at": 1}]).quarantined == 1
        made = tx.create_stream_table("raw.new", SCHEMA)
        made.append([{"id": 1, "name": "x", "at": 1}])
        tx.create_table("plain", pa.table({"id": [1]}))
        assert report.position == 2
        orders.upsert([{"id": 2, "name": "Grace H.", "at": 2}])
        assert orders.position == 2
        assert list(catalog) == ["raw.orders"]
    assert list(catalog) == ["plain", "raw.new", "raw.orders", "raw.orders__quarantine"]
    assert names(orders.to_arrow()) == {2: "Grace H.", 3: "Edsger"}
    assert orders.upsert([{"id": 3, "name": "Edsger", "at": 1}], token="t").duplicate
    assert (orders.position, len(orders.quarantine()), catalog["raw.new"].count()) == (4, 1, 1)
    assert orders.publish().position == 4
    assert orders.verify() == []


def test_a_delete_takes_no_row_that_others_changed_while_it_looked(
    either: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a sequence no event is late: what was found is what is deleted, or it is looked for again."""
    orders = either.create_stream_table("orders", SCHEMA, keys=["id"])
    ordered = either.create_stream_table("ordered", SCHEMA, keys=["id"], sequence=["at"])
    row = {"id": 1, "name": "Ada", "at": 1}
    for table in (orders, ordered):
        table.upsert([row])

    def deletes(name: str, what: object, meanwhile: Callable[[], object]) -> None:
        with either.transaction() as tx:
            tx[name].delete(what)
            meanwhile()

    for what in ("name = 'Ada'", [1]):
        with pytest.raises(ConcurrentModificationError, match="orders"):
            deletes("orders", what, lambda: orders.upsert([{**row, "name": "Ada L."}]))
        deletes("orders", what, orders.publish)
        orders.upsert([row])
    deletes("ordered", "name = 'Ada'", lambda: ordered.upsert([{**row, "name": "Ada L.", "at": 2}]))
    assert names(ordered.to_arrow()) == {1: "Ada L."}, "the delete is late"

    found, again = deletion, list[int]()

    def slow(*asked: Any) -> Any:
        made = found(*asked)
        if not again:
            again.append(1)
            orders.upsert([{**row, "name": "Ada L."}])
        return made

    monkeypatch.setattr(stream_table, "deletion", slow)
    assert orders.delete("name = 'Ada'").rows == 0
    assert names(orders.to_arrow()) == {1: "Ada L."}


def test_a_transaction_reads_what_it_landed_and_relies_on_what_it_read(catalog: Catalog) -> None:
    orders = catalog.create_stream_table("orders", SCHEMA, keys=["id"])
    orders.upsert([{"id": 1, "name": "Ada", "at": 1}])
    orders.publish()
    begun = catalog.transaction()
    tx = begun.__enter__()
    tx["orders"].upsert([{"id": 2, "name": "Grace", "at": 1}])
    assert names(tx["orders"].to_arrow()) == {1: "Ada", 2: "Grace"}
    assert (len(tx["orders"]), tx["orders"].position) == (2, 2)
    assert tx["orders"].changes(after=1).column("_change_type").to_pylist() == ["insert"]
    orders.upsert([{"id": 9, "name": "other", "at": 1}])
    with pytest.raises(ConcurrentModificationError, match="orders"):
        begun.__exit__(None, None, None)
    assert names(orders.to_arrow()) == {1: "Ada", 9: "other"}


def test_what_a_reader_is_handed_in_a_transaction_counts_if_that_says_so_and_is_committed(catalog: Catalog) -> None:
    stream = catalog.create_stream_table("s", SCHEMA, keys="id")
    stream.upsert([{"id": 1}])
    with suppress(ZeroDivisionError), catalog.transaction() as tx:
        tx["s"].upsert([{"id": 2}])
        assert len(tx["s"].changes(reader="mail")) == 2
        tx["s"].commit_reader("mail")
        assert tx["s"].readers() == {"mail": 2}
        raise ZeroDivisionError
    stream.upsert([{"id": 3}])
    assert len(stream.changes(reader="mail")) == 2, "all that there is, and no position of the one that was given up"
    with catalog.transaction() as tx:
        tx["s"].upsert([{"id": 4}])
        assert len(tx["s"].changes(after=2)) == 1
        tx["s"].commit_reader("mail", 3)
    assert (stream.readers(), len(stream.changes(reader="mail"))) == ({"mail": 3}, 0)


def test_a_transaction_that_raises_lands_and_publishes_nothing(catalog: Catalog) -> None:
    orders = catalog.create_stream_table("orders", SCHEMA, keys=["id"])
    with suppress(ZeroDivisionError), catalog.transaction() as tx:
        tx["orders"].upsert([{"id": 2, "name": "Grace", "at": 1}])
        assert tx.publish(["orders"])[0].position == 1
        with pytest.raises(InvalidInputError):
            tx["orders"].upsert([{"id": 3, "nope": 1}])
        assert len(tx["orders"]) == 1
        raise ZeroDivisionError
    assert (orders.position, len(orders), orders.published) == (0, 0, None)


def test_a_quarantine_follows_its_table(catalog: Catalog) -> None:
    orders = catalog.create_stream_table("raw.orders", SCHEMA, keys=["id"])
    orders.ingest([{"id": None, "name": "?", "at": 1}])
    catalog.rename_table("raw.orders", "raw.sales")
    assert catalog.tables("raw") == ["sales", "sales__quarantine"]
    assert len(catalog["raw.sales"].quarantine()) == 1
    catalog.drop_namespace("raw", cascade=True)
    assert list(catalog) == []


@pytest.mark.parametrize("published", [False, True])
def test_a_filter_that_cannot_be_used_is_named(catalog: Catalog, published: bool) -> None:
    fields: list[tuple[str, pa.DataType]] = [("id", pa.int64()), ("price", pa.decimal128(10, 2))]
    table = catalog.create_stream_table("t", pa.schema(fields), keys=["id"])
    table.upsert([{"id": 1, "price": Decimal("1.50")}, {"id": 2, "price": Decimal("2.50")}])
    if published:
        table.publish()
    assert table.to_arrow(filter="price > CAST('2.00' AS DECIMAL(10,2))").num_rows == 1
    for wrong in ("price = 1.5", "price > DECIMAL '2.0'", "nothing > 1", "id ="):
        with pytest.raises(InvalidInputError, match="filter"):
            table.to_arrow(filter=wrong)
