"""The root namespace of a metastore has properties like any other, with a past, an undo and a place in the layout."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headwater import Catalog, MetastoreNamespace
from headwater.cli.main import main
from headwater.errors import ConcurrentModificationError, InvalidInputError
from headwater.metastore.records.layout import ROOT_RECORD, SLOTS
from headwater.moving.import_export import export
from headwater.rest.server import start_in_thread


def opened(root: Path) -> Catalog:
    return Catalog(MetastoreNamespace(root=str(root)))


def test_they_are_set_and_removed_by_several_and_nothing_else_shows_them(tmp_path: Path) -> None:
    first, second = opened(tmp_path), opened(tmp_path)
    assert first.namespace_properties() == {}
    assert first.alter_namespace("", {"owner": "ann", "x": "1"}) == {"owner": "ann", "x": "1"}
    second.alter_namespace("", {"y": "2"}, removed=["x", "none"])
    slot = second.slot
    second.alter_namespace("", {"y": "2"})
    assert second.slot == slot, "nothing changes"
    for catalog in (first, second, opened(tmp_path)):
        assert catalog.namespace_properties() == {"owner": "ann", "y": "2"}
        assert (catalog.namespaces(), catalog.tables(), catalog.snapshots()) == ([], [], [])
    with pytest.raises(InvalidInputError, match="at once"):
        first.alter_namespace("", {"a": "1"}, removed=["a"])
    assert [entry.message for entry in first.log()] == ["alter the root namespace"] * 2
    assert first.verify() == []


def test_they_have_a_past_an_undo_and_are_kept_by_snapshots_and_collections(tmp_path: Path) -> None:
    catalog = opened(tmp_path)
    catalog.alter_namespace("", {"v": "1"})
    begin = catalog.slot
    catalog.snapshot("one")
    catalog.alter_namespace("", {"v": "2"})
    assert catalog.at(begin).namespace_properties() == {"v": "1"}
    with pytest.raises(InvalidInputError, match="as it was"):
        catalog.at(begin).alter_namespace("", {"v": "3"})
    changed = catalog.diff(begin, catalog.slot).changed
    assert [(each.path, each.old_properties, each.properties) for each in changed] == [((), {"v": "1"}, {"v": "2"})]
    assert catalog.diff("one", begin).changed == ()
    told = [(entry.operation, entry.kind, entry.path) for entry in catalog.history("")]
    assert told == [("create", "root", ()), ("update", "root", ())]
    catalog.undo(list(catalog.log())[-1])
    assert catalog.namespace_properties() == {"v": "1"}
    catalog.alter_namespace("", {"v": "4"})
    namespace = catalog.namespace
    assert isinstance(namespace, MetastoreNamespace)
    namespace.metastore.collect(keep=0)
    for found in (catalog, opened(tmp_path)):
        assert found.namespace_properties() == {"v": "4"}
        assert found.at("one").namespace_properties() == {"v": "1"}
        assert found.verify() == []


def test_the_first_ones_can_be_undone_and_set_again(tmp_path: Path) -> None:
    catalog = opened(tmp_path)
    catalog.alter_namespace("", {"v": "1"})
    catalog.undo(list(catalog.log())[-1])
    assert catalog.namespace_properties() == {}
    catalog.alter_namespace("", {"v": "2"})
    assert opened(tmp_path).namespace_properties() == {"v": "2"}
    assert catalog.verify() == []


def test_they_are_part_of_a_transaction_and_conflict(tmp_path: Path) -> None:
    catalog, other = opened(tmp_path), opened(tmp_path)
    with catalog.transaction() as tx:
        tx.create_namespace("a")
        tx.alter_namespace("", {"v": "1"})
        assert tx.namespace_properties() == {"v": "1"}
        assert other.namespace_properties() == {}
    begun = catalog.transaction()
    tx = begun.__enter__()
    assert tx.namespace_properties() == {"v": "1"}
    tx.create_namespace("b")
    other.alter_namespace("", {"w": "2"})
    with pytest.raises(ConcurrentModificationError):
        begun.__exit__(None, None, None)
    assert other.namespace_properties() == {"v": "1", "w": "2"}


def test_lost_slots_are_rebuilt_with_them(tmp_path: Path) -> None:
    opened(tmp_path).alter_namespace("", {"v": "1"})
    opened(tmp_path).create_namespace("a")
    shutil.rmtree(tmp_path / SLOTS)
    catalog = opened(tmp_path)
    assert (catalog.namespace_properties(), catalog.namespaces()) == ({"v": "1"}, ["a"])
    assert len(list((tmp_path / ROOT_RECORD / "rev").iterdir())) == 1
    assert catalog.verify() == []


def test_they_go_through_a_server_the_command_line_and_an_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = start_in_thread(MetastoreNamespace(root=str(tmp_path / "lake")))
    try:
        far = Catalog(server.url)
        far.alter_namespace("", {"owner": "ann"})
        with far.transaction() as tx:
            tx.alter_namespace("", {"team": "ml"})
            assert tx.namespace_properties() == {"owner": "ann", "team": "ml"}
        assert far.namespace_properties() == {"owner": "ann", "team": "ml"}
    finally:
        server.stop()
    assert main(["properties", str(tmp_path / "lake"), "", "x=1", "--json"]) == 0
    assert '"x":"1"' in capsys.readouterr().out
    catalog = opened(tmp_path / "lake")
    assert catalog.namespace_properties() == {"owner": "ann", "team": "ml", "x": "1"}
    export(catalog, str(tmp_path / "out"))
    assert Catalog(str(tmp_path / "out")).namespace_properties() == {"owner": "ann", "team": "ml", "x": "1"}
