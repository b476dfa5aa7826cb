"""A catalog that was deleted, and made again, under a process that has the old one open: the new one stays whole."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headwater import Catalog
from headwater.errors import InvalidTableStateError
from headwater.metastore.records.layout import slot_key


def made(root: Path, tables: int) -> Catalog:
    catalog = Catalog(str(root))
    for number in range(tables):
        catalog.create_table(f"t{number}", [{"id": number}])
    return catalog


@pytest.mark.parametrize("tables", [1, 4, 9], ids=["fewer commits", "as many", "more"])
def test_who_has_a_catalog_open_that_was_made_again_changes_nothing_of_the_new_one(tmp_path: Path, tables: int) -> None:
    old = made(tmp_path / "lake", 4)
    shutil.rmtree(tmp_path / "lake")
    new = made(tmp_path / "lake", tables)
    for _ in range(2):
        with pytest.raises(InvalidTableStateError, match="deleted since"):
            old.create_namespace("late")
    slot = new.slot
    again = made(tmp_path / "lake", 0)
    assert (again.slot, len(again.tables())) == (slot, tables)
    assert again.verify() == []
    new.create_namespace("more")
    assert "more" in Catalog(str(tmp_path / "lake")).namespaces()


def test_who_has_a_catalog_open_that_was_deleted_makes_no_half_of_one(tmp_path: Path) -> None:
    old = made(tmp_path / "lake", 3)
    shutil.rmtree(tmp_path / "lake")
    with pytest.raises(InvalidTableStateError, match="deleted since"):
        old.create_namespace("late")
    assert not Catalog(str(tmp_path / "lake")).is_there


def test_a_slot_that_was_written_again_is_the_same_one(tmp_path: Path) -> None:
    first, second = made(tmp_path / "lake", 2), Catalog(str(tmp_path / "lake"))
    assert len(second.tables()) == 2
    path = tmp_path / "lake" / slot_key(first.slot)
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)
    second.create_namespace("more")
    assert "more" in first.namespaces()
