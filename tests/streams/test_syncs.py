"""Files that a slot refers to are on the disk before the slot is there, and is synced beside it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater import Catalog
from headwater.errors import LanceNamespaceError
from headwater.metastore import Metastore, Transaction
from headwater.namespace import creation
from headwater.store import LocalStore, PrefixedStore, create
from headwater.streams.log.landing import UPSERT, Landing
from headwater.streams.rows.input_rows import as_input_rows
from headwater.streams.table import StreamTable


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The syncs and the links of this process, in their order."""
    found: list[str] = []
    sync, link = os.fsync, os.link

    def synced(descriptor: int) -> None:
        sync(descriptor)
        found.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    def linked(source: str, target: str) -> None:
        found.append(f"link {target}")
        link(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "link", linked)
    return found


def before_link(notes: list[str]) -> set[str]:
    return set(notes[: next(at for at, note in enumerate(notes) if note.startswith("link "))])


def test_others_are_synced_with_their_folders_before_the_key_is_there(tmp_path: Path, notes: list[str]) -> None:
    store = LocalStore(tmp_path / "root")
    store.put("data/new/a", b"1", durable=False)
    assert not any(note.endswith("/a") for note in notes)
    assert create(store, "slots/1", b"x", ["data/new/a"])
    before = before_link(notes)
    assert {f"{store.root}/{name}" for name in ("data/new/a", "data/new", "data")} | {store.root} <= before
    assert any(note.startswith(f"{store.root}/slots/") for note in before)
    assert f"{store.root}/slots" in notes[notes.index(f"link {store.root}/slots/1") :]
    assert store.get("slots/1") == b"x"
    assert len(os.listdir(f"{store.root}/slots")) == 1


def test_a_key_is_not_there_when_what_it_refers_to_cannot_be_synced(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with pytest.raises(LanceNamespaceError, match="data"):
        create(store, "slots/1", b"x", ["data"])
    assert store.head("slots/1") is None
    assert os.listdir(tmp_path / "slots") == []
    store.put("data", b"1", durable=False)
    assert create(store, "slots/1", b"x", ["data"])
    assert not create(store, "slots/1", b"y", ["data"])


def test_a_prefix_is_of_the_others_too(tmp_path: Path, notes: list[str]) -> None:
    store = PrefixedStore(LocalStore(tmp_path), "lake")
    store.put("a", b"1", durable=False)
    assert create(store, "1", b"x", ["a"])
    assert f"{tmp_path}/lake/a" in before_link(notes)


def test_the_files_of_a_landing_are_synced_beside_its_slot(tmp_path: Path, notes: list[str]) -> None:
    with Metastore(tmp_path) as metastore:
        tables = [StreamTable.create(metastore, [name], {"id": "int64"}, keys="id") for name in ("t", "u")]
        notes.clear()
        with metastore.transaction("both") as tx:
            for table in tables:
                Landing(metastore, table.path, as_input_rows([{"id": 1}]), UPSERT)(tx)
            assert not notes
        files = {str(path) for path in tmp_path.rglob("*.parquet")}
        assert len(files) == 2
        assert files | {os.path.dirname(file) for file in files} <= before_link(notes)


def test_the_files_of_a_transaction_that_others_go_on_with_are_synced_with_it(tmp_path: Path, notes: list[str]) -> None:
    with Metastore(tmp_path) as metastore:
        StreamTable.create(metastore, ["t"], {"id": "int64"}, keys="id")
        with metastore.transaction("kept") as tx:
            Landing(metastore, ["t"], as_input_rows([{"id": 1}]), UPSERT)(tx)
            notes.clear()
            tx.saved()
            (file,) = map(str, tmp_path.rglob("*.parquet"))
            assert {file, os.path.dirname(file)} <= set(notes)
            notes.clear()
        assert file not in notes


@pytest.mark.parametrize("most", [1 << 20, 0], ids=["small", "large"])
def test_the_files_of_a_new_table_are_synced_beside_its_slot_unless_they_are_large(
    tmp_path: Path, notes: list[str], monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(creation, "SYNCED_WITH_RECORD", most)
    catalog = Catalog(str(tmp_path))
    catalog.create_namespace("ns")
    early: list[str] = []
    begin = Metastore.transaction

    def transaction(self: Metastore, *options: Any, **more: Any) -> Transaction:
        early[:] = notes
        return begin(self, *options, **more)

    monkeypatch.setattr(Metastore, "transaction", transaction)
    notes.clear()
    catalog.create_table("ns.t", pa.table({"id": [1]}))
    (data,) = (str(path) for path in tmp_path.rglob("*.lance") if path.is_file())
    (folder,) = (path for path in tmp_path.rglob("_versions"))
    before = before_link(notes)
    assert {data, os.path.dirname(data), str(folder)} <= before
    assert any(note.startswith(f"{folder}/") for note in before)
    assert (data in early) == (most == 0)
    assert str(folder) not in early


def test_a_table_whose_files_cannot_be_synced_is_not_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = Catalog(str(tmp_path))
    catalog.create_namespace("ns")
    sync = os.fsync

    def fails(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(".lance"):
            raise OSError(errno.EIO, "the disk is broken")
        sync(descriptor)

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fails)
        with pytest.raises(LanceNamespaceError, match="the disk is broken"):
            catalog.create_table("ns.t", pa.table({"id": [1]}))
    assert "ns.t" not in catalog
    assert catalog.create_table("ns.t", pa.table({"id": [1]})).count() == 1
