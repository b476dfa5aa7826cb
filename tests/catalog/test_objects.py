"""The DeltaCAT model in the user's hands: ids, locators, aliases and partition values, here and through a server."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater import Catalog, MetastoreNamespace
from headwater.clock import SystemClock
from headwater.errors import InvalidInputError, TableNotFoundError, UnsupportedOperationError
from headwater.metastore import Locator
from headwater.namespace import metastore as metastore_module
from headwater.rest.auth.keys import create_key
from headwater.rest.server import start_in_thread
from headwater.store import CountingStore, LocalStore
from headwater.verbs.object_verbs import ListObjects

KINDS = ["table_version", "stream", "partition", "partition"]


def fill(catalog: Catalog) -> None:
    table = catalog.create_stream_table(
        "prod.orders", {"id": "bigint", "region": "string"}, "id", partition_by="region"
    )
    table.upsert([{"id": 1, "region": "eu"}, {"id": 2, "region": None}])
    catalog.alias("prod.orders", "sales")


@pytest.fixture
def catalog(either: Catalog) -> Catalog:
    fill(either)
    return either


def test_a_table_has_an_id_a_locator_and_its_aliases(catalog: Catalog) -> None:
    table = catalog.describe("prod.orders")
    assert (table.kind, table.path, table.locator) == ("table", ("prod", "orders"), "prod|orders")
    assert uuid.UUID(table.id).version == 4
    assert table.aliases == ("sales",)
    assert catalog.find("prod|orders") == catalog.find(Locator(("prod", "orders"))) == table
    assert catalog.find("prod|sales") == catalog.by_id(table.id) == table
    assert table.time is not None
    catalog.rename_table("prod.orders", "prod.bought")
    moved = catalog.by_id(table.id)
    assert (moved.locator, moved.id) == ("prod|bought", table.id)


def test_every_object_is_found_by_its_locator_and_by_its_key(catalog: Catalog) -> None:
    (namespace,) = catalog.objects()
    (table,) = catalog.objects("prod")
    parts = catalog.objects("prod.orders")
    assert [(namespace.kind, namespace.locator), (table.kind, table.key)] == [
        ("namespace", "prod"),
        ("table", table.id),
    ]
    assert [part.kind for part in parts if "/delta" in part.key or part.kind == "table_version"] == KINDS
    (delta, _) = catalog["prod.orders"].deltas()
    found = catalog.find(delta.locator)
    assert (found.kind, found.id, found.type, found.files) == ("delta", "1", "upsert", delta.files)
    for each in (namespace, table, *parts, found):
        assert catalog.find(each.locator) == catalog.by_id(each.key) == each
        assert each.locator == Locator.parse(each.locator).format()
    assert catalog.describe("").locator == ""


def test_the_values_of_a_partition_stand_beside_its_id(catalog: Catalog) -> None:
    parts = {part.id: part.values for part in catalog.objects("prod.orders") if part.kind == "partition"}
    deltas = catalog["prod.orders"].deltas()
    assert {delta.values for delta in deltas} == {("eu",), (None,)}
    assert {delta.partition: catalog.by_id(delta.key).values for delta in deltas} == parts
    assert sorted(str(values["region"]) for values in parts.values()) == ["None", "eu"]


def test_objects_are_those_of_the_session(catalog: Catalog) -> None:
    before = catalog.slot
    id = catalog.describe("prod.orders").id
    with catalog.transaction() as tx:
        tx.rename_table("prod.orders", "prod.bought")
        tx.create_namespace("prod.fresh")
        assert tx.by_id(id).path == tx.describe("prod.bought").path == ("prod", "bought")
        assert [each.name for each in tx.objects("prod")] == ["bought", "fresh"]
    assert catalog.at(before).by_id(id).locator == "prod|orders"
    assert catalog.describe("prod.bought").id == id


def test_what_nothing_has_is_not_found_and_what_is_no_locator_is_refused(catalog: Catalog) -> None:
    for locator in (
        "nothing",
        "prod|nothing",
        "prod|orders|9",
        "prod|orders|1|delta",
        "prod|orders|1|delta|lance",
        "a||b",
    ):
        with pytest.raises(TableNotFoundError, match="No object has the locator"):
            catalog.find(locator)
    for id in ("nothing", str(uuid.uuid4()), f"{catalog.describe('prod.orders').id}/2"):
        with pytest.raises(TableNotFoundError, match="No object has the id"):
            catalog.by_id(id)
    with pytest.raises(InvalidInputError, match="backslash"):
        catalog.find("prod\\orders")
    with pytest.raises(InvalidInputError):
        catalog.by_id(5)  # type: ignore[arg-type]


def test_objects_come_in_pages_in_the_order_of_their_names(catalog: Catalog) -> None:
    for number in range(5):
        catalog.create_namespace(f"prod.n{number}")
    seen, token = list[str](), None
    for _ in range(3):
        page = catalog._transport.call(ListObjects(id=("prod",), limit=2, page_token=token))
        seen, token = [*seen, *(each.name for each in page.objects)], page.page_token
    assert (seen, token) == (["n0", "n1", "n2", "n3", "n4", "orders"], None)
    assert [each.name for each in catalog.objects("prod")] == seen


def test_a_catalog_without_a_metastore_has_no_ids(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path / "dir"), impl="dir")
    catalog.create_table("t", [{"id": 1}])
    with pytest.raises(UnsupportedOperationError, match="no immutable ids"):
        catalog.describe("t")


def test_an_object_that_a_caller_may_not_describe_is_not_found(tmp_path: Path) -> None:
    namespace = MetastoreNamespace(root=str(tmp_path / "lake"))
    near = Catalog(namespace)
    fill(near)
    near.create_table("open.t", [{"id": 1}])
    near.create_table("open.moved", [{"id": 1}])
    then = near.slot
    near.rename_table("open.moved", "prod.moved")
    near.alias("open.t", "seen")
    server = start_in_thread(namespace)
    try:
        key = create_key(namespace.store, SystemClock(), "reader", ["open"])[1]
        scoped = Catalog(server.url, **{"headers.x-api-key": key})
        hidden = [near.describe("prod"), *near.objects("prod"), *near.objects("prod.orders")]
        for each in hidden:
            with pytest.raises(TableNotFoundError, match="No object has the locator"):
                scoped.find(each.locator)
            with pytest.raises(TableNotFoundError, match="No object has the id"):
                scoped.by_id(each.key)
        with pytest.raises(TableNotFoundError, match="No object has the locator"):
            scoped.find("prod|orders|1|delta")  # no hint that there is a table of this name
        own = scoped.describe("open.t")
        assert (own, own.aliases) == (near.describe("open.t"), ("seen",))
        assert [each.name for each in scoped.objects("open")] == ["t"]
        assert [each.name for each in scoped.at(then).objects("open")] == ["t"], "where it is now decides"
        key = create_key(namespace.store, SystemClock(), "writer", ["open"])[1]
        with Catalog(server.url, **{"headers.x-api-key": key}).transaction() as tx:
            tx.create_namespace("open.fresh")
            assert [tx.describe(name).name for name in ("open.t", "open.fresh")] == ["t", "fresh"]
        key = create_key(namespace.store, SystemClock(), "reader", ["open", "t"])[1]
        assert Catalog(server.url, **{"headers.x-api-key": key}).describe("open.t").aliases == ()
    finally:
        server.stop()


def test_ids_locators_and_values_cost_no_request_more_than_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = CountingStore(LocalStore(tmp_path))
    monkeypatch.setattr(metastore_module, "open_store", lambda *_: counting)
    catalog = Catalog(MetastoreNamespace(root=str(tmp_path)))
    fill(catalog)

    def cost(ask: Callable[[], object]) -> dict[str, int]:
        counting.reset()
        ask()
        return dict(counting.counts)

    stream = catalog["prod.orders"]
    stream.serving.describe()  # the schema of a version is read once
    lists, looks = cost(lambda: catalog.tables("prod")), cost(stream.serving.describe)
    assert lists == looks == {"get": 1}, "one look for newer commits"
    table, delta = catalog.describe("prod.orders"), stream.deltas()[0]
    asked: list[Callable[[], object]] = [
        lambda: catalog.objects("prod"),
        lambda: catalog.objects("prod.orders"),
        lambda: catalog.describe("prod.orders"),
        lambda: catalog.by_id(table.id),
        lambda: catalog.find(delta.locator),
        lambda: stream.deltas()[0].locator,
    ]
    assert [cost(ask) for ask in asked] == [lists] * len(asked)
