"""Checkpoints in layers: what opening, a look-up and the next checkpoint cost; old ones; damaged and retired files."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headwater.clock import SeededClock
from headwater.metastore import Metastore
from headwater.metastore.commit import group_commit as commit_module
from headwater.metastore.records.layout import LAYERS
from headwater.metastore.state import checkpoints, layers
from headwater.metastore.state import checkpoints as checkpoints_module
from headwater.metastore.state import index as index_module
from headwater.metastore.state.index import Checkpoint, SlotIndex
from headwater.metastore.state.index_maps import FolderIndex
from headwater.store import CountingStore, LocalStore, Store, memory_store
from tests.metastore.model import tree_of


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints every few changes, in small pages and files, none of which is read whole."""
    monkeypatch.setattr(index_module, "CHECKPOINT_CHANGES", 12)
    monkeypatch.setattr(commit_module, "aside", lambda work: work())
    for name, value in {"PAGE": 300, "FILE": 2000, "READ_WHOLE": 0, "READ_AHEAD": 700, "CACHED": 3000}.items():
        monkeypatch.setattr(layers, name, value)


def filled(store: Store | Path, tables: int = 60) -> Metastore:
    made = Metastore(store)
    made.run(lambda tx: tx.create_namespace(["a"]))
    for number in range(tables):
        made.run(lambda tx, number=number: tx.create_table(["a", f"t{number:03}"], {"n": number}))  # type: ignore[misc]
        if number % 5 == 0:
            made.run(lambda tx, n=number: tx.append_delta(["a", f"t{n:03}"], [f"f{n}"]))  # type: ignore[misc]
    return made


def plain(index: SlotIndex) -> list[Any]:
    """All that an index holds, in an order of its own."""

    def ordered(value: Any) -> Any:
        return sorted(value.items()) if isinstance(value, dict) else value

    found = [ordered(value) for value in msgspec.msgpack.decode(checkpoints.dump(index), strict=False)]
    for place in (7, 8):
        found[place] = [(parent, sorted(keys)) for parent, keys in found[place]]
    return [
        *found[:2],
        *found[4:11],
        sorted(found[11]),
        sorted(found[12]),
        sorted(dict(index.datasets.folders.items())),
    ]


def folded(store: Metastore) -> SlotIndex:
    """The index as the slots alone make it."""
    index = SlotIndex()
    for number in range(1, store.slot + 1):
        index.fold(number, store._log.read_slot(number))
    return index


# What it costs


def test_opening_reads_no_layer_and_a_look_up_a_few_pages_whatever_the_size(small: None) -> None:
    seen = []
    for tables in (20, 200):
        inner = memory_store()
        filled(inner, tables).checkpoint()
        counting = CountingStore(inner)
        opened = Metastore(counting)
        assert counting.counts["read"] == 0
        opening = counting.counts.total()
        before = counting.counts["read"]
        assert opened.get(["a", "t007"]).properties == {"n": 7}
        seen.append((opening, counting.counts["read"] - before))
    assert seen[0][0] == seen[1][0] < 12
    assert opened._log.index.book.base is not None
    passed = len(opened._log.index.book.base.layers)
    assert passed <= 6
    assert seen[1][1] <= 4 * 2 * passed  # two names and two objects: in each layer a directory and a page


def test_a_name_that_is_in_no_layer_is_looked_for_once(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = memory_store()
    filled(inner).checkpoint()
    opened = Metastore(inner)
    assert not opened.exists(["a", "new"])
    asked: list[str] = []
    passed = layers.Layers.get

    def get(self: layers.Layers, key: str) -> msgspec.Raw | None:
        asked.append(key)
        return passed(self, key)

    monkeypatch.setattr(layers.Layers, "get", get)
    assert not opened.exists(["a", "new"])
    assert asked == []
    Metastore(inner).run(lambda tx: tx.create_table(["a", "new"], {"n": 1}))
    assert opened.get(["a", "new"]).properties == {"n": 1}


def test_a_checkpoint_writes_what_changed_and_not_the_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_module, "aside", lambda work: None)
    store = Metastore(tmp_path)
    with store.transaction() as tx:
        for number in range(1000):
            tx.create_table([f"t{number}"])
    store.checkpoint()
    (first,) = (tmp_path / LAYERS).iterdir()
    whole_size = first.stat().st_size
    store.run(lambda tx: tx.create_table(["one_more"]))
    store.checkpoint()
    (second,) = (path for path in (tmp_path / LAYERS).iterdir() if path != first)
    assert second.stat().st_size < whole_size / 100
    for number in range(20):
        store.run(lambda tx, number=number: tx.create_table([f"more{number}"]))  # type: ignore[misc]
        store.checkpoint()
        assert store._log.index.book.base is not None
        assert len(store._log.index.book.base.layers) <= 5
    assert len(Metastore(tmp_path).list()) == 1021


def test_the_names_of_a_namespace_are_read_without_its_objects(small: None) -> None:
    inner = memory_store()
    filled(inner, 100).checkpoint()
    counting = CountingStore(inner)
    opened = Metastore(counting)
    assert len(opened.now().names(["a"], "table")) == 100
    opened.now().names(["a"], "table")
    assert len(opened._log.index.cards._held) < 60  # those of the slots after the checkpoint, and the namespace


def datasets(store: Store, count: int) -> Metastore:
    """Tables of Lance in one namespace, one of which was dropped, and a checkpoint of them."""
    made = Metastore(store)
    with made.transaction() as tx:
        tx.create_namespace(["a"])
        for number in range(count):
            tx.create_table(["a", f"t{number:03}"], formats=("lance",))
            tx.update_stream(["a", f"t{number:03}"], "lance", {"location": f"data/t{number:03}"})
    with made.transaction() as tx:
        tx.drop(["a", "t007"])
    made.checkpoint()
    return made


def looked(store: Store) -> tuple[list[list[tuple[str, ...]]], int]:
    """Who has a folder, and the pages that were read to bring a table back and to say so."""
    counting = CountingStore(store)
    tx = Metastore(counting).transaction()
    before = counting.counts["read"]
    tx.undrop(["a", "t007"])
    folders = ("data/t003", "data/t003/inside", "data/t00", "data/t007")
    return [list(tx.tables_near(folder)) for folder in folders], counting.counts["read"] - before


OWNERS = [[("a", "t003")], [("a", "t003")], [], [("a", "t007")]]


def test_who_has_a_folder_is_found_by_a_few_pages_whatever_the_size(small: None) -> None:
    read = []
    for count in (20, 400):
        store = memory_store()
        made = datasets(store, count)
        found, pages = looked(store)
        assert found == OWNERS
        assert len(list(made.transaction().tables_near("data"))) == count - 1
        read.append(pages)
    assert read[1] <= read[0] + 24  # directories of more files; all objects are in more than a thousand pages


def test_a_checkpoint_of_before_does_not_say_where_datasets_are_and_the_next_of_who_looked_does(
    small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = memory_store()
    with monkeypatch.context() as before:
        before.setattr(FolderIndex, "come", lambda *given: None)
        before.setattr(SlotIndex, "checkpoint", lambda self, found, made=SlotIndex.checkpoint: old(made(self, found)))
        datasets(store, 200)
    found, pages = looked(store)
    assert (found, pages > 200) == (OWNERS, True)
    Metastore(store).checkpoint()  # by one who did not look
    later = Metastore(store)
    assert not later._log.index.datasets.is_whole
    assert list(later.transaction().tables_near("data/t003")) == [("a", "t003")]
    later.run(lambda tx: tx.create_namespace(["b"]))
    later.checkpoint()
    found, pages = looked(store)
    assert (found, pages < 80) == (OWNERS, True)


def old(made: Checkpoint) -> Checkpoint:
    made.located = False
    return made


# The same as the slots say


@pytest.mark.parametrize("seed", range(3))
def test_layers_hold_what_the_slots_make(small: None, seed: int) -> None:
    chosen = random.Random(seed)
    store = memory_store()
    writers = [Metastore(store), Metastore(store)]
    names = [f"n{number}" for number in range(12)]
    for step in range(100):
        writer, name, other = chosen.choice(writers), chosen.choice(names), chosen.choice(names)
        there = writer.exists([name])
        with writer.transaction() as tx:
            if not there:
                tx.create_table([name], formats=("delta", "lance"))
            elif chosen.random() < 0.1:
                tx.update_stream([name], "lance", {"location": f"data/{step}"})
            elif chosen.random() < 0.5:
                tx.append_delta([name], [f"f{step}"])
            elif chosen.random() < 0.4:
                tx.drop([name])
            elif not writer.exists([other]):
                tx.rename([name], [other])
            else:
                tx.update([name], {"step": step})
        if step % 50 == 49:
            opened = Metastore(store)
            assert plain(opened._log.index) == plain(writers[0]._log.refresh()) == plain(folded(writer))
            for slot in range(1, opened.slot, 17):
                assert tree_of(opened.at(slot)) == tree_of(writers[1].at(slot))
    writers[0].collect(keep=30)
    for _ in range(2):
        writers[1].run(lambda tx: tx.create_namespace([f"after{tx.header.id}"]))
        writers[1].checkpoint()
    opened = Metastore(store)
    assert plain(opened._log.index) == plain(writers[0]._log.refresh()) == plain(writers[1]._log.index)
    assert opened.verify() == []


def test_two_names_that_change_places_in_one_slot_are_both_listed(small: None, tmp_path: Path) -> None:
    store = filled(tmp_path, 5)
    with store.transaction() as tx:
        tx.rename(["a", "t000"], ["a", "between"])
        tx.rename(["a", "t001"], ["a", "t000"])
        tx.rename(["a", "between"], ["a", "t001"])
    store.checkpoint()
    opened = Metastore(tmp_path)
    assert [found.properties["n"] for found in opened.list(["a"])] == [1, 0, 2, 3, 4]
    assert opened.now().names(["a"], "table") == [f"t00{number}" for number in range(5)]
    assert opened.verify() == []


# Files that are damaged, missing or retired


def layer_files(root: Path) -> list[Path]:
    return sorted((root / LAYERS).iterdir())


@pytest.mark.parametrize("how", ["flipped", "missing", "cut"])
def test_a_damaged_layer_is_named_and_done_without(small: None, tmp_path: Path, how: str) -> None:
    expected = tree_of(filled(tmp_path, 30))
    opened = Metastore(tmp_path)
    for path in layer_files(tmp_path):
        data = path.read_bytes()
        if how == "missing":
            path.unlink()
        else:
            path.write_bytes(data[: len(data) // 2] if how == "cut" else bytes((data[0], data[1] ^ 8, *data[2:])))
    # a missing file of an older checkpoint may be one that was deleted in time
    named = {f"{LAYERS}/{id}" for id in opened._log.checkpoints.files(newest=how == "missing")}
    assert named
    assert tree_of(opened) == expected
    fresh = Metastore(tmp_path)
    assert {problem.key for problem in fresh.verify()} == named
    assert tree_of(fresh) == expected
    assert plain(fresh._log.index) == plain(folded(fresh))
    fresh.run(lambda tx: tx.create_table(["a", "new"]))
    fresh.checkpoint()
    assert tree_of(Metastore(tmp_path)) == tree_of(fresh)


def test_a_slot_that_cannot_be_folded_for_want_of_a_page_changes_nothing(small: None, tmp_path: Path) -> None:
    store = filled(tmp_path, 15)
    store.collect(keep=0)
    reader = Metastore(tmp_path)
    writer = Metastore(tmp_path)
    writer.run(lambda tx: tx.update(["a", "t003"], {"n": "new"}))
    kept = {path: path.read_bytes() for path in layer_files(tmp_path)}
    for path in kept:
        path.unlink()
    before = reader._log.index.slot
    with pytest.raises(Exception, match="is missing"):
        reader.get(["a", "t003"])
    assert reader._log.index.slot == before
    for path, data in kept.items():
        path.write_bytes(data)
    reader._log.checkpoints.damaged.clear()
    assert reader.get(["a", "t003"]).properties == {"n": "new"}


class Later(SeededClock):
    """A clock that can be moved on."""

    minutes = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.minutes * 60_000


def test_retired_files_stay_for_a_while_and_who_needs_them_later_finds_newer_ones(small: None, tmp_path: Path) -> None:
    clock = Later(1)
    writer = Metastore(LocalStore(tmp_path), clock=clock)
    writer.run(lambda tx: tx.create_namespace(["a"]))

    def more(first: int) -> None:
        for number in range(first, first + 30):
            writer.run(lambda tx, number=number: tx.create_table(["a", f"t{number:03}"]))  # type: ignore[misc]

    more(0)
    reader = Metastore(tmp_path)
    then = reader.now()
    more(30)
    named = set(writer._log.checkpoints.files())
    assert {path.name for path in layer_files(tmp_path)} > named
    clock.minutes = 11
    more(60)
    more(90)
    assert checkpoints_module.RETIRED_MS == 10 * 60_000
    first = reader._log.index.book.base
    assert first is not None
    gone = {file.id for file in first.files} - {path.name for path in layer_files(tmp_path)}
    assert gone
    assert [found.name for found in then.list(["a"])] == [f"t{number:03}" for number in range(30)]
    assert len(reader.list(["a"])) == 120


def test_what_no_checkpoint_names_goes_with_a_collection(small: None, tmp_path: Path) -> None:
    clock = Later(1)
    store = Metastore(LocalStore(tmp_path), clock=clock)
    for number in range(30):
        store.run(lambda tx, number=number: tx.create_table([f"t{number}"]))  # type: ignore[misc]
    orphan = tmp_path / LAYERS / "of-a-writer-that-died"
    orphan.write_bytes(b"half a layer")
    clock.minutes = 60 * 24 * 365 * 100
    removed = {removal.key for removal in store.collect().removed}
    assert f"{LAYERS}/{orphan.name}" in removed
    assert not orphan.exists()
    assert {path.name for path in layer_files(tmp_path)} >= set(store._log.checkpoints.files())
    assert Metastore(tmp_path).verify() == []
