"""Catalogs that release 0.1.0 wrote (`make_catalogs.py`) are read by every later release.

The answers are written here by hand, and no code of the product computes them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headwater import Catalog
from tests.golden.make_catalogs import DIRECTORY, unpack

ROWS: dict[str, list[dict[str, Any]]] = {
    "shop.users": [{"id": 2, "name": "Grace"}],
    "shop.vectors": [{"id": 1, "v": [0.5, 0.5, 0.5]}],
    "shop.days": [{"day": "Monday"}],
    "shop.orders": [{"id": 1, "seq": 2, "item": "pencil"}],
    "shop.clicks": [{"page": "a"}, {"page": "b"}],
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden metastore, for tests that only read it."""
    return unpack("metastore", tmp_path_factory.mktemp("golden"))


@pytest.fixture
def catalog(root: Path) -> Catalog:
    return Catalog(str(root))


def sorted_rows(table: Any) -> list[dict[str, Any]]:
    return sorted(table.to_arrow().to_pylist(), key=lambda row: str(list(row.values())))


@pytest.mark.parametrize("name", ROWS)
def test_every_table_of_a_golden_metastore_has_its_rows(catalog: Catalog, name: str) -> None:
    assert sorted_rows(catalog[name]) == ROWS[name]


def test_its_lists_name_what_there_is_and_the_alias_finds_its_table(catalog: Catalog) -> None:
    companions = ["shop.orders__history", "shop.orders__quarantine"]
    assert sorted(catalog) == sorted([*ROWS, *companions])
    assert sorted_rows(catalog["shop.weekdays"]) == ROWS["shop.days"]
    assert dict(catalog.describe("shop").properties) == {"owner": "ann"}


def test_its_past_tags_and_table_versions_are_read(catalog: Catalog) -> None:
    users = catalog["shop.users"]
    assert users.at(tag="both").count() == 2
    assert sorted_rows(users.at(1)) == [{"id": 1, "name": "Ada"}]
    vectors = catalog["shop.vectors"].table_versions
    assert {each.id: each.lifecycle for each in vectors.list()} == {"1": "deprecated", "2": "active"}
    assert sorted_rows(vectors["1"]) == [{"id": 1, "v": [1.0, 0.0]}]
    assert sorted_rows(catalog["shop.orders"].table_versions["2"]) == [{"id": 1, "seq": 1, "price": 2.5}]


def test_its_named_snapshot_and_its_log_are_read(catalog: Catalog) -> None:
    assert [each.name for each in catalog.snapshots()] == ["released"]
    assert sorted_rows(catalog.at("released")["shop.orders"]) == ROWS["shop.orders"]
    messages = [entry.message for entry in catalog.log()]
    assert [message for message in messages if "two tables" in message] == ["two tables at once"]
    assert messages[0] == "create namespace shop"
    assert messages[-1].startswith("undo ")
    assert catalog.history("shop.days")[0].message == "two tables at once"


def test_its_stream_table_has_positions_readers_history_quarantine_and_a_serving_copy(catalog: Catalog) -> None:
    orders = catalog["shop.orders"]
    assert orders.readers() == {"billing": 3}
    assert orders.published.position == 2
    assert sorted_rows(orders.serving) == [{"id": 1, "seq": 2, "item": "pencil"}, {"id": 2, "seq": 1, "item": "ink"}]
    assert [row["reason"] for row in orders.quarantine().to_pylist()] == ["bad_value"]
    history = catalog["shop.orders__history"].to_arrow().to_pylist()
    assert sorted((row["id"], row["item"], row["valid_to"] is None) for row in history) == [
        (1, "pen", False),
        (1, "pencil", True),
        (2, "ink", True),
    ]
    assert orders.verify() == []


def test_a_golden_metastore_is_sound_and_can_be_changed(tmp_path: Path) -> None:
    with Catalog(str(unpack("metastore", tmp_path))) as catalog:
        assert [each for each in catalog.verify() if not each.note] == []
        catalog.undrop("shop.hours")
        assert sorted_rows(catalog["shop.hours"]) == [{"hour": 1}]
        duplicate = [{"id": 1, "seq": 1, "item": "pen"}, {"id": 2, "seq": 1, "item": "ink"}]
        assert catalog["shop.orders"].upsert(duplicate, token="t1", source="till").duplicate
        catalog["shop.orders"].upsert([{"id": 1, "seq": 3, "item": "chalk"}])
        catalog["shop.orders"].publish()
        assert sorted_rows(catalog["shop.orders"].serving) == [{"id": 1, "seq": 3, "item": "chalk"}]


@pytest.mark.parametrize("kind", DIRECTORY)
def test_a_golden_directory_catalog_has_its_rows_tags_and_versions(kind: str, tmp_path: Path) -> None:
    with Catalog(str(unpack(kind, tmp_path)), **DIRECTORY[kind]) as catalog:
        name = "users" if kind == "v1" else "shop.users"
        assert list(catalog) == [name]
        users = catalog[name]
        assert sorted_rows(users) == [{"id": 2, "name": "Grace"}]
        assert sorted_rows(users.at(tag="first")) == [{"id": 1, "name": "Ada"}]
        assert [each.version for each in users.versions()] == [1, 2, 3]
        users.append([{"id": 3, "name": "Barbara"}])
        assert users.count() == 2
