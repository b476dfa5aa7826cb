"""Stream tables by their names in a catalog, beside Lance tables, now and in the past."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from headwater import Catalog, MetastoreNamespace
from headwater.errors import InvalidInputError, TableAlreadyExistsError, UnsupportedOperationError

FIELDS: list[tuple[str, pa.DataType]] = [("id", pa.int64()), ("name", pa.string()), ("at", pa.int64())]
SCHEMA = pa.schema(FIELDS)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(MetastoreNamespace(root=str(tmp_path / "lake")))


def names(rows: pa.Table) -> dict[object, object]:
    return dict(zip(rows.column("id").to_pylist(), rows.column("name").to_pylist(), strict=True))


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
    for change in (
        lambda: orders.serving.append([{"id": 9, "name": "x", "at": 1}]),
        lambda: orders.serving.delete("id = 1"),
        lambda: orders.serving.update({"name": "x"}),
        lambda: orders.serving.drop_columns("name"),
    ):
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
