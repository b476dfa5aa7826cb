"""Table versions through a catalog: made beside the active one, written, published, activated, restored; every door."""

from __future__ import annotations

import pickle
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import lance.namespace
import lance_namespace as api
import pytest

import headwater
from headwater.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    TableAlreadyExistsError,
    TableNotFoundError,
    TableVersionNotFoundError,
)
from headwater.names import ObjectId
from headwater.namespace.abilities import abilities_of
from headwater.streams.serving.publication import stage
from headwater.verbs.verb import require

OLD, NEW = {"id": "int64", "v": "text"}, {"id": "text", "w": "double"}


@pytest.fixture
def catalog(either: headwater.Catalog) -> headwater.Catalog:
    return either


def rows(table: Any) -> list[dict[str, Any]]:
    return sorted(table.to_arrow().to_pylist(), key=lambda row: row["id"])


def states(catalog: headwater.Catalog, name: str = "n.t") -> dict[str, str]:
    return {each.id: each.lifecycle for each in catalog[name].table_versions.list()}


def streamed(catalog: headwater.Catalog, **properties: str) -> Any:
    table = catalog.create_stream_table("n.t", OLD, keys="id", properties=properties)
    table.upsert([{"id": 1, "v": "a"}])
    table.publish()
    return table


def test_a_stream_table_gets_a_version_with_another_schema_in_one_commit(catalog: headwater.Catalog) -> None:
    table = streamed(catalog)
    second = table.table_versions.create("2", schema=NEW, keys="id")
    assert states(catalog) == {"1": "active", "2": "unreleased"}
    second.upsert([{"id": "x", "w": 0.5}])
    second.publish()
    second.upsert([{"id": "y", "w": 1.5}])
    table.upsert([{"id": 2, "v": "b"}])
    assert rows(catalog["n.t"]) == [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]
    assert catalog["n.t"].serving.to_arrow().num_rows == 1
    assert rows(second) == [{"id": "x", "w": 0.5}, {"id": "y", "w": 1.5}]
    assert rows(second.serving) == [{"id": "x", "w": 0.5}]
    assert catalog.verify() == []
    before = catalog.slot
    catalog["n.t"].table_versions.activate("2")
    assert catalog.slot == before + 1
    assert states(catalog) == {"1": "deprecated", "2": "active"}
    assert rows(catalog["n.t"]) == [{"id": "x", "w": 0.5}, {"id": "y", "w": 1.5}]
    assert rows(catalog["n.t"].serving) == [{"id": "x", "w": 0.5}]
    assert rows(catalog["n.t"].table_versions["1"]) == [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]
    assert rows(catalog.at(before)["n.t"]) == [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]
    assert rows(catalog.at(before)["n.t"].table_versions["2"].serving) == [{"id": "x", "w": 0.5}]
    catalog["n.t"].publish()
    assert catalog.verify() == []
    catalog["n.t"].table_versions.activate("1")
    assert rows(catalog["n.t"]) == [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]
    assert catalog["n.t"].table_versions.active == "1"


def test_a_lance_table_gets_a_version_with_other_columns(catalog: headwater.Catalog) -> None:
    catalog.create_table("n.t", [{"id": 1, "vector": [1.0, 0.0]}])
    second = catalog["n.t"].table_versions.create("2", [{"id": 1, "vector": [1.0, 0.0, 0.5, 0.25]}])
    second.append([{"id": 2, "vector": [0.0, 0.0, 0.0, 1.0]}])
    assert len(rows(catalog["n.t"])[0]["vector"]) == 2
    assert [len(row["vector"]) for row in rows(second)] == [4, 4]
    catalog["n.t"].append([{"id": 7, "vector": [0.0, 1.0]}])
    catalog["n.t"].table_versions.activate("2")
    assert [len(row["vector"]) for row in rows(catalog["n.t"])] == [4, 4]
    assert [row["id"] for row in rows(catalog["n.t"].table_versions["1"])] == [1, 7]
    assert catalog["n.t"].search(vector=[0, 0, 0, 1], k=1)["id"].to_pylist() == [2]
    catalog["n.t"].append([{"id": 3, "vector": [0.0, 0.0, 1.0, 1.0]}])
    assert lance.dataset(namespace_client=catalog.namespace, table_id=["n", "t"]).count_rows() == 3
    assert [item.version for item in catalog["n.t"].versions()] == [1, 2, 3]
    assert catalog.verify() == []


def test_versions_that_cannot_be_are_refused(catalog: headwater.Catalog) -> None:
    table = streamed(catalog)
    table.table_versions.create("2", schema=NEW, keys="id")
    with pytest.raises(TableAlreadyExistsError):
        table.table_versions.create("2", schema=NEW, keys="id")
    with pytest.raises(InvalidInputError, match="cannot be the id"):
        table.table_versions.create("rev", schema=NEW, keys="id")
    with pytest.raises((TableVersionNotFoundError, KeyError), match="no table version '3'"):
        table.table_versions["3"]
    with pytest.raises(TableVersionNotFoundError):
        table.table_versions.activate("3")
    with pytest.raises(InvalidInputError, match="activate another"):
        table.table_versions.drop("1")
    table.table_versions.drop("2")
    assert list(table.table_versions) == ["1"]
    with pytest.raises(InvalidInputError, match="drop the table"):  # it could be dropped, and left nothing to open
        table.table_versions.drop("1")
    assert (table.table_versions.active, rows(catalog["n.t"])) == ("1", [{"id": 1, "v": "a"}])
    catalog.drop_table("n.t")
    with pytest.raises(TableNotFoundError):
        table.table_versions.list()


def test_in_a_transaction_a_version_is_made_activated_written_and_published_at_one_commit(
    catalog: headwater.Catalog,
) -> None:
    streamed(catalog)
    before = catalog.slot
    with catalog.transaction("new schema") as tx:
        tx["n.t"].table_versions.create("2", schema=NEW, keys="id")
        tx["n.t"].table_versions.activate("2")
        tx["n.t"].upsert([{"id": "x", "w": 0.5}])
        tx.publish("n.t")
        with pytest.raises(InvalidInputError, match="activate the other one in it first"):
            tx["n.t"].table_versions["1"].to_arrow()
    assert catalog.slot == before + 1
    assert rows(catalog["n.t"].serving) == [{"id": "x", "w": 0.5}]
    (entry,) = catalog.log(after=before)
    catalog.undo(entry)
    assert (rows(catalog["n.t"]), states(catalog)) == ([{"id": 1, "v": "a"}], {"1": "active"})
    assert catalog.verify() == []


@pytest.mark.long
def test_rows_that_wait_in_a_transaction_stay_with_the_version_they_were_for(catalog: headwater.Catalog) -> None:
    catalog.create_table("n.t", [{"id": 1}])
    catalog["n.t"].table_versions.create("2", [{"id": "x"}])
    with catalog.transaction() as tx:
        tx["n.t"].append([{"id": 2}])
        tx["n.t"].table_versions.activate("2")
    assert rows(catalog["n.t"]) == [{"id": "x"}]
    assert rows(catalog["n.t"].table_versions["1"]) == [{"id": 1}, {"id": 2}]
    assert catalog.verify() == []


@pytest.mark.long
def test_a_name_moves_and_drops_and_comes_back_with_all_its_versions(catalog: headwater.Catalog) -> None:
    table = streamed(catalog)
    second = table.table_versions.create("2", schema=NEW, keys="id")
    second.upsert([{"id": "x", "w": 0.25}])
    second.upsert([{"id": "x", "w": 0.5}])
    second.publish()
    catalog.rename_table("n.t", "n.u")
    assert rows(catalog["n.u"].table_versions["2"]) == [{"id": "x", "w": 0.5}]
    catalog["n.u"].table_versions.activate("2")
    catalog.drop_table("n.u")
    catalog.undrop("n.u")
    assert rows(catalog["n.u"]) == rows(catalog["n.u"].serving) == [{"id": "x", "w": 0.5}]
    assert rows(catalog["n.u"].table_versions["1"]) == [{"id": 1, "v": "a"}]
    catalog.snapshot("kept")
    assert [table.position for table in catalog.snapshots()[0].tables] == [2]
    assert catalog.verify() == []


@pytest.fixture
def lake(tmp_path: Path) -> headwater.Catalog:
    return headwater.Catalog(str(tmp_path / "lake"))


def test_a_table_is_not_dropped_by_a_caller_that_chose_one_of_its_versions(catalog: headwater.Catalog) -> None:
    streamed(catalog).table_versions.create("2", schema=NEW, keys="id")
    chosen = require(abilities_of(catalog.namespace).table_version)(ObjectId(("n", "t")), "2")
    for drop in (
        lambda: chosen.drop_table(api.DropTableRequest(id=["n", "t"])),
        lambda: chosen.deregister_table(api.DeregisterTableRequest(id=["n", "t"])),
    ):
        with pytest.raises((InvalidInputError, api.InvalidInputError), match="drops all its table versions"):
            drop()
    assert states(catalog) == {"1": "active", "2": "unreleased"}


def test_the_history_by_its_name_is_that_of_the_active_version(lake: headwater.Catalog) -> None:
    table = streamed(lake, history="scd2")
    second = table.table_versions.create("2", schema=NEW, keys="id", properties={"history": "scd2"})
    for value in (0.5, 1.5):
        second.upsert([{"id": "x", "w": value}])
        second.publish()
    table.upsert([{"id": 1, "v": "b"}])
    table.publish()
    assert [row["v"] for row in lake["n.t__history"].to_arrow().sort_by("valid_from").to_pylist()] == ["a", "b"]
    lake["n.t"].table_versions.activate("2")
    assert [row["w"] for row in lake["n.t__history"].to_arrow().sort_by("valid_from").to_pylist()] == [0.5, 1.5]
    lake["n.t"].upsert([{"id": "x", "w": 2.5}])
    lake["n.t"].publish()
    assert lake["n.t__history"].count() == 3
    lake["n.t"].table_versions.activate("1")
    assert [row["v"] for row in lake["n.t__history"].to_arrow().sort_by("valid_from").to_pylist()] == ["a", "b"]
    assert lake.verify() == []


@pytest.mark.long
def test_a_history_that_begins_with_an_unreleased_version_shows_nothing_before_it_is_active(
    lake: headwater.Catalog,
) -> None:
    table = streamed(lake)
    second = table.table_versions.create("2", schema=NEW, keys="id", properties={"history": "scd2"})
    second.upsert([{"id": "x", "w": 0.5}])
    second.publish()
    assert lake["n.t__history"].versions() == []
    lake["n.t"].table_versions.activate("2")
    assert lake["n.t__history"].count() == 1


def test_an_undo_in_one_version_leaves_what_another_has_quarantined(lake: headwater.Catalog) -> None:
    bad = [{"id": None}, {"id": 1}]
    table = lake.create_stream_table("n.t", {"id": "int64"}, keys="id")
    table.ingest(bad, source="feed")
    second = table.table_versions.create("2", schema={"id": "int64", "w": "double"}, keys="id")
    second.ingest([*bad, {"id": 2}], source="feed")
    assert second.undo(source="feed").quarantined == 1
    assert (second.count(), table.count(), lake["n.t__quarantine"].count()) == (0, 1, 1)
    assert table.undo(source="feed").quarantined == 1
    assert lake["n.t__quarantine"].count() == 0


def test_a_publish_and_a_landing_that_an_activation_overtakes_go_to_the_version_they_see(
    lake: headwater.Catalog, tmp_path: Path
) -> None:
    table = streamed(lake)
    table.table_versions.create("2", schema=OLD, keys="id").upsert([{"id": 9, "v": "z"}])
    other = headwater.Catalog(str(tmp_path / "lake"))
    tx = lake.namespace.metastore.transaction()  # type: ignore[attr-defined]
    table.upsert([{"id": 2, "v": "b"}])
    stage(lake.namespace._lake(), tx, ["n", "t"])  # type: ignore[attr-defined]
    other["n.t"].table_versions.activate("2")
    with pytest.raises(ConcurrentModificationError):
        tx.commit()
    lake["n.t"].publish()
    assert rows(lake["n.t"].serving) == [{"id": 9, "v": "z"}]
    assert lake.verify() == []


@pytest.mark.long
def test_collection_keeps_every_version_and_frees_a_dropped_one(lake: headwater.Catalog, tmp_path: Path) -> None:
    table = streamed(lake)
    lake.create_table("n.p", [{"id": 1}])
    for name, how in (("n.t", {"schema": NEW, "keys": "id"}), ("n.p", {"data": [{"id": "x"}]})):
        made = lake[name].table_versions.create("2", **how)
        if name == "n.t":
            made.upsert([{"id": "x", "w": 0.5}])
            made.publish()
        lake[name].table_versions.activate("2")
    lake.collect(keep=timedelta(0), grace=timedelta(0))
    assert rows(lake["n.p"].table_versions["1"]) == [{"id": 1}]
    assert rows(lake["n.t"].table_versions["1"].serving) == [{"id": 1, "v": "a"}]
    assert lake.verify() == []
    old = lake["n.p"].table_versions["1"].describe().location
    for name in ("n.p", "n.t"):
        lake[name].table_versions.drop("1")
    lake.collect(keep=timedelta(0), grace=timedelta(0))
    assert old is not None
    assert not Path(old).exists()
    assert rows(lake["n.t"].serving) == [{"id": "x", "w": 0.5}]
    assert lake.verify() == []
    assert table.name == "n.t"


def test_a_deregistered_table_leaves_the_files_of_all_versions(lake: headwater.Catalog) -> None:
    lake.create_table("n.p", [{"id": 1}])
    lake["n.p"].table_versions.create("2", [{"id": "x"}])
    places = [Path(str(lake["n.p"].table_versions[id].describe().location)) for id in ("1", "2")]
    lake.deregister_table("n.p")
    lake.collect(keep=timedelta(0), grace=timedelta(0))
    assert all(place.exists() for place in places)


@pytest.mark.long
def test_an_undo_of_rows_in_a_version_that_is_not_active_says_what_to_do(lake: headwater.Catalog) -> None:
    lake.create_table("n.p", [{"id": 1}])
    lake["n.p"].append([{"id": 2}])
    entry = list(lake.log())[-1]
    lake["n.p"].table_versions.create("2", [{"id": "x"}])
    lake["n.p"].table_versions.activate("2")
    with pytest.raises(Exception, match="not the active table version: activate it first"):
        lake.undo(entry)
    lake["n.p"].table_versions.activate("1")
    lake.undo(entry)
    assert rows(lake["n.p"]) == [{"id": 1}]


@pytest.mark.long
def test_a_catalog_with_a_version_keeps_it_when_it_travels(lake: headwater.Catalog) -> None:
    lake.create_table("n.p", [{"id": 1}])
    second = lake["n.p"].table_versions.create("2", [{"id": "x"}])
    there = pickle.loads(pickle.dumps(second.namespace))
    assert headwater.Catalog(there)["n.p"].to_arrow().to_pylist() == [{"id": "x"}]


@pytest.mark.long
def test_the_mirror_shows_the_active_version(lake: headwater.Catalog, tmp_path: Path) -> None:
    lake.create_table("n.p", [{"id": 1}])
    lake["n.p"].table_versions.create("2", [{"id": "x"}])
    lake.mirror = True
    lake["n.p"].table_versions.activate("2")
    lake.close()
    plain = lance.namespace.DirectoryNamespace(root=str(tmp_path / "lake"), dir_listing_enabled="false")
    assert lance.dataset(namespace_client=plain, table_id=["n", "p"]).to_table().to_pylist() == [{"id": "x"}]
