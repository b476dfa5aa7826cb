"""What was dropped and can be brought back, and what can be searched: the facts behind the page's lists."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headwater import Catalog
from headwater.clock import SeededClock
from headwater.errors import InvalidTableStateError
from headwater.metastore import Metastore
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
    made.undrop(("a", "b"))
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
    found = made.searchable()
    assert sorted(found.values()) == [("a", ""), ("b", "team=vision"), ("t", ""), ("u", "")]
    with made.transaction() as tx:
        tx.drop(("a", "t"))
    assert ("t", "") not in made.searchable().values()
    assert made.searchable(found) == made.searchable()


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
