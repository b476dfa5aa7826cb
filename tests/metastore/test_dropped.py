"""What was dropped and can be brought back, and what can be searched: the facts behind the page's lists."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headwater import Catalog, MetastoreNamespace
from headwater.clock import SeededClock
from headwater.errors import ConcurrentModificationError, InvalidInputError, InvalidTableStateError
from headwater.metastore import Metastore, Transaction
from headwater.metastore.commit.rules import Group, compile_txn
from headwater.store import memory_store


def metastore() -> Metastore:
    made = Metastore(memory_store(), clock=SeededClock())
    with made.transaction() as tx:
        tx.create_namespace(("a",))
        tx.create_namespace(("a", "b"), {"Team": "Vision"})
        tx.create_table(("a", "t"))
        tx.create_table(("a", "b", "u"))
    return made


def test_of_what_was_dropped_together_the_topmost_is_listed_and_comes_back_whole() -> None:
    made = metastore()
    with made.transaction() as tx:
        tx.drop(("a", "b"), cascade=True)
    assert [(one.kind, one.path) for one in made.now().dropped()] == [("namespace", ("a", "b"))]
    made.run(lambda tx: tx.undrop(("a", "b")))
    assert made.now().dropped() == []
    assert made.exists(("a", "b", "u"))


def test_a_name_that_is_taken_again_and_a_dropped_snapshot_are_not_listed() -> None:
    made = metastore()
    made.snapshot("kept")
    made.drop_snapshot("kept")
    for _ in range(2):
        with made.transaction() as tx:
            tx.drop(("a", "t"))
        assert [one.path for one in made.now().dropped()] == [("a", "t")]
        with made.transaction() as tx:
            tx.create_table(("a", "t"))
        assert made.now().dropped() == []


def test_names_and_properties_can_be_searched_and_what_is_gone_cannot() -> None:
    made = metastore()
    found = made.now().searchable()
    assert sorted(found.values()) == [("a", ""), ("b", "team=vision"), ("t", ""), ("u", "")]
    with made.transaction() as tx:
        tx.drop(("a", "t"))
    assert ("t", "") not in made.now().searchable().values()
    assert made.now().searchable(found) == made.now().searchable()


@pytest.mark.parametrize("leave", [Catalog.drop_table, Catalog.deregister_table])
def test_a_table_whose_files_were_registered_as_another_does_not_come_back(
    tmp_path: Path, leave: Callable[[Catalog, str], object]
) -> None:
    catalog = Catalog(str(tmp_path / "lake"))
    table = catalog.create_table("n.a", [{"id": 1}])
    place = Path(table.describe().location or "").name
    leave(catalog, "n.a")
    left = list(catalog.log())[-1]
    catalog.create_namespace("m")
    catalog.register_table("m.b", place)
    with pytest.raises(InvalidTableStateError, match=r"m\.b"):
        catalog.undrop("n.a")
    with pytest.raises(InvalidTableStateError, match=r"m\.b"):
        catalog.undo(left)
    with catalog.transaction() as tx:
        with pytest.raises(InvalidTableStateError):
            tx.undrop("n.a")
        tx["m.b"].append([{"id": 2}])
    assert (list(catalog), catalog["m.b"].count()) == (["m.b"], 2)


class Lake:
    """A catalog with a table that was dropped, whose files another can be made of, and others beside it."""

    def __init__(self, root: Path) -> None:
        self.catalog = Catalog(str(root), impl="metastore")
        table = self.catalog.create_table("n.a", [{"id": 1}])
        self.folder = Path(table.describe().location or "").name
        for number in range(5):
            self.catalog.create_table(f"m.t{number}", [{"id": 1}])
        self.catalog.drop_table("n.a")
        near = self.catalog.namespace
        assert isinstance(near, MetastoreNamespace)
        self.metastore = near.metastore

    def names(self) -> list[str]:
        return sorted(name for name in self.catalog if name in ("n.a", "m.b"))


def test_who_brings_a_table_back_relies_on_its_folder_and_on_no_other_table(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    tx = lake.metastore.transaction()
    tx.undrop(("n", "a"))
    assert len(tx.draft.reads) < 12
    lake.catalog.create_namespace("other")
    lake.catalog.create_table("m.u", [{"id": 1}])
    lake.catalog.drop_table("m.t0")
    tx.commit()
    assert lake.catalog["n.a"].count() == 1


def test_who_registers_a_table_relies_on_its_folder_and_on_no_other_table(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    with lake.catalog.transaction() as tx:
        tx.register_table("m.b", lake.folder)
        lake.catalog.create_namespace("other")
        lake.catalog.create_table("other.u", [{"id": 1}])
    assert lake.names() == ["m.b"]


@pytest.mark.parametrize("place", ["", "/inside.lance"])
def test_of_a_table_that_comes_back_and_one_that_is_made_of_its_files_the_first_one_stays(
    tmp_path: Path, place: str
) -> None:
    lake = Lake(tmp_path / "lake")

    def register(tx: Transaction) -> None:
        tx.create_table(("m", "b"), formats=("lance",))
        assert tx.tables_near(lake.folder + place) == []
        tx.update_stream(("m", "b"), "lance", {"location": lake.folder + place})

    first, late = lake.metastore.transaction(), lake.metastore.transaction()
    first.undrop(("n", "a"))
    register(late)
    first.commit()
    with pytest.raises(ConcurrentModificationError, match="which table has files"):
        late.commit()
    lake.catalog.drop_table("n.a")
    first, late = lake.metastore.transaction(), lake.metastore.transaction()
    register(first)
    late.undrop(("n", "a"))
    first.commit()
    with pytest.raises(ConcurrentModificationError, match="which table has files"):
        late.commit()
    assert lake.names() == ["m.b"]


def test_a_table_that_comes_back_and_one_that_is_made_of_its_files_do_not_share_a_slot(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    one, other = lake.metastore.transaction(), lake.metastore.transaction()
    one.undrop(("n", "a"))
    other.create_table(("m", "b"), formats=("lance",))
    other.tables_near(lake.folder)
    other.update_stream(("m", "b"), "lance", {"location": lake.folder})
    for first, second in ((one, other), (other, one)):
        group = Group()
        compile_txn(first.draft.base.index, first.draft, first.header, group, 1000)
        assert not group.written.isdisjoint(second.draft.reads)


def test_what_was_registered_before_a_checkpoint_is_known_to_who_opens_the_catalog_after_it(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    lake.catalog.register_table("m.b", lake.folder)
    lake.metastore.checkpoint()
    again = Catalog(str(tmp_path / "lake"))
    with pytest.raises(InvalidTableStateError, match=r"m\.b"):
        again.undrop("n.a")
    with pytest.raises(InvalidInputError, match=r"m\.b"):
        again.register_table("m.c", lake.folder)
    assert lake.names() == ["m.b"]
