"""The friendly face: dotted names, Arrow in and out."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

import headwater
from headwater import Catalog, DirectoryNamespace
from headwater.errors import (
    InvalidInputError,
    NamespaceNotEmptyError,
    NamespaceNotFoundError,
    TableAlreadyExistsError,
    TableNotFoundError,
)

USERS = pa.table({"id": [1, 2], "name": ["Ada", "Grace"]})


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    (tmp_path / "lake").mkdir()
    return Catalog(str(tmp_path / "lake"))


def test_a_table_is_created_with_the_namespaces_above_it_and_read_back(catalog: Catalog) -> None:
    table = catalog.create_table("prod.eu.users", USERS)
    assert repr(table) == "CatalogTable('prod.eu.users')"
    assert catalog["prod.eu.users"].to_arrow() == USERS
    assert catalog["prod.eu.users"].schema == USERS.schema
    assert catalog.namespaces() == ["prod"]
    assert catalog.namespaces("prod") == ["eu"]
    assert catalog.tables("prod.eu") == ["users"]
    assert catalog.tables() == []


@pytest.mark.parametrize(
    "data",
    [
        USERS,
        USERS.to_batches()[0],
        USERS.to_reader(),
        USERS.to_pandas(),
        [{"id": 1, "name": "Ada"}, {"id": 2, "name": "Grace"}],
    ],
    ids=["table", "batch", "reader", "pandas", "rows"],
)
def test_anything_tabular_is_taken(catalog: Catalog, data: object) -> None:
    assert catalog.create_table("t", data).count() == 2
    assert catalog["t"].to_arrow().column("name").to_pylist() == ["Ada", "Grace"]


@pytest.mark.parametrize("data", [7, b"bytes", {"a": 1}, None])
def test_what_is_no_table_is_invalid_input(catalog: Catalog, data: object) -> None:
    with pytest.raises(InvalidInputError, match="is not a table"):
        catalog.create_table("t", data)
    assert catalog.tables() == []


def test_rows_are_appended_upserted_deleted_and_filtered(catalog: Catalog) -> None:
    table = catalog.create_table("t", USERS)
    table.append([{"id": 3, "name": "Edsger"}])
    table.upsert([{"id": 3, "name": "E. W."}, {"id": 4, "name": "Barbara"}], on="id")
    table.delete("id = 1")
    assert table.count() == 3
    assert table.count("id > 2") == 2
    found = table.to_arrow(columns=["name"], filter="id >= 3", limit=5)
    assert set(found.column("name").to_pylist()) == {"Barbara", "E. W."}
    assert table.to_arrow(version=1) == USERS
    assert isinstance(table.dataset(), lance.LanceDataset)


def test_the_modes_of_create(catalog: Catalog) -> None:
    catalog.create_table("t", USERS, properties={"owner": "ml"})
    assert catalog["t"].describe().properties == {"owner": "ml"}
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_table("t", USERS)
    assert catalog.create_table("t", USERS.slice(0, 1), mode="exist_ok").count() == 2
    assert catalog.create_table("t", USERS.slice(0, 1), mode="overwrite").count() == 1


def test_membership_and_a_missing_table(catalog: Catalog) -> None:
    catalog.create_table("a.t", USERS)
    assert "a.t" in catalog
    assert ["a", "t"] in catalog
    assert "a.u" not in catalog
    assert "no.t" not in catalog
    with pytest.raises(TableNotFoundError):
        _ = catalog["a.u"]
    with pytest.raises(InvalidInputError):
        _ = "a..t" in catalog


def test_a_name_with_a_dot_in_it_is_given_as_a_list(catalog: Catalog) -> None:
    catalog.create_table(["v1.0", "t"], USERS)
    assert catalog[["v1.0", "t"]].count() == 2
    assert catalog.namespaces() == ["v1.0"]


def test_a_table_is_renamed_and_dropped_and_a_namespace_too(catalog: Catalog) -> None:
    catalog.create_table("a.t", USERS)
    catalog.create_namespace("b")
    catalog.rename_table("a.t", "b.u")
    assert "a.t" not in catalog
    assert catalog["b.u"].count() == 2
    with pytest.raises(NamespaceNotEmptyError):
        catalog.drop_namespace("b")
    catalog.drop_namespace("b", cascade=True)
    catalog.create_table("t", USERS)
    catalog.drop_table("t")
    assert (catalog.namespaces(), catalog.tables()) == (["a"], [])


def test_the_tree_is_drawn(catalog: Catalog) -> None:
    assert catalog.tree() == "."
    for name in ("prod.eu.users", "prod.orders", "scratch"):
        catalog.create_table(name, USERS)
    assert catalog.tree().splitlines() == [
        ".",
        "├── prod/",
        "│   ├── eu/",
        "│   │   └── users",
        "│   └── orders",
        "└── scratch",
    ]


def test_an_open_namespace_is_taken_as_it_is(tmp_path: Path) -> None:
    namespace = DirectoryNamespace(root=str(tmp_path))
    catalog = Catalog(namespace)
    assert catalog.namespace is namespace
    assert repr(catalog) == f"Catalog({namespace!r})"
    assert headwater.__version__


def test_a_rename_makes_the_namespaces_above_the_new_name_and_none_for_what_does_not_exist(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path / "lake"))
    catalog.create_table("prod.users", [{"id": 1}])
    catalog.rename_table("prod.users", "a.b.people")
    catalog.rename_namespace("a.b", "c.d.e")
    assert list(catalog) == ["c.d.e.people"]
    with pytest.raises(TableNotFoundError):
        catalog.rename_table("prod.users", "x.y.users")
    with pytest.raises(NamespaceNotFoundError):
        catalog.rename_namespace("nope", "x.y.z")
    with pytest.raises(InvalidInputError):
        catalog.rename_namespace("c", "c.d.c")
    assert catalog.namespaces() == ["a", "c", "prod"]
    assert catalog.namespaces("c.d") == ["e"]
