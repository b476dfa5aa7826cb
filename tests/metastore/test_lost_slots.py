"""Slots that a lifecycle rule or a careless rm took: noticed when the root is opened, rebuilt exactly, or refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headwater import Catalog, MetastoreNamespace, connect
from headwater.config import init, resolve
from headwater.errors import InvalidTableStateError, PermissionDeniedError
from headwater.metastore import Metastore
from headwater.metastore.commit import group_commit as commit_module
from headwater.metastore.records.layout import slot_key
from headwater.metastore.state import index as index_module
from headwater.store import CountingStore, LocalStore, PutMode, Store, WrappedStore, memory_store
from tests.metastore.model import tree_of

LAST = 9


def filled(store: Any) -> Metastore:
    """Nine slots in which every kind of change happens."""
    made = Metastore(store)
    made.run(lambda tx: (tx.create_namespace(["a"], {"k": 1}), tx.create_table(["a", "t"])), "first", "ann")
    made.run(lambda tx: tx.append_delta(["a", "t"], ["f"], partition=[1]))
    made.run(lambda tx: (tx.create_namespace(["b|c"]), tx.rename(["a"], ["b|c", "moved"])))
    made.run(lambda tx: tx.alias(["b|c"], "alias"))
    made.run(lambda tx: tx.append_delta(["b|c", "moved", "t"], ["g"], "upsert", properties={"n": 2}))
    made.run(lambda tx: (tx.update(["b|c"], {"v": 2}), tx.update_stream(["b|c", "moved", "t"], "delta", {"s": 1})))
    made.run(lambda tx: tx.drop_delta(["b|c", "moved", "t"], 2))
    made.run(lambda tx: (tx.create_table(["x"]), tx.drop(["b|c", "moved", "t"])))
    made.run(lambda tx: tx.undrop(["b|c", "moved", "t"]))
    assert made.slot == LAST
    return made


def story(store: Metastore) -> Any:
    """All that can be read: every state, and the log without the slots' own ids."""
    return [tree_of(store.at(slot)) for slot in range(LAST + 1)], list(store.log(after=0))


@pytest.mark.parametrize(
    "lost", [[1], [2], [5], [8], [3, 4, 6], [LAST], [LAST - 1, LAST], list(range(1, LAST)), list(range(1, LAST + 1))]
)
def test_lost_slots_are_rebuilt_exactly_from_what_was_published(tmp_path: Path, lost: list[int]) -> None:
    before = story(filled(tmp_path))
    for number in lost:
        (tmp_path / slot_key(number)).unlink()
    opened = Metastore(tmp_path)
    assert story(opened) == before
    assert opened.verify() == []
    opened.run(lambda tx: tx.create_namespace(["after"]))
    assert opened.slot == LAST + 1


def test_a_root_with_only_the_published_layout_is_rebuilt_with_its_whole_history(tmp_path: Path) -> None:
    before = story(filled(tmp_path))
    shutil.rmtree(tmp_path / ".headwater")
    opened = Metastore(tmp_path)
    assert story(opened) == before
    assert opened.verify() == []


def test_a_group_of_transactions_comes_back_whole_or_not_at_all(tmp_path: Path) -> None:
    store = Metastore(tmp_path)
    store.run(lambda tx: tx.create_table(["t"]))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: store.run(lambda tx: tx.append_delta(["t"], [f"{n}"])), range(40)))
    store.run(lambda tx: tx.append_delta(["t"], ["last"]))  # the group is none of the newest slot
    log = list(store.log(after=0))
    grouped = next((entry for entry in log if entry.ordinal == 1), log[1])
    assert store.slot > grouped.slot
    slot = tmp_path / slot_key(grouped.slot)
    slot.unlink()
    assert list(Metastore(tmp_path).log(after=0)) == log
    slot.unlink()
    (txn,) = (tmp_path / "txn").glob(f"*{grouped.txn}")
    txn.unlink()
    with pytest.raises(InvalidTableStateError, match=rf"slot {grouped.slot}\b"):
        Metastore(tmp_path)


HARM: dict[str, Callable[[Path], None]] = {
    "a revision file is gone": lambda root: _one(root, "*_update_*.mpk").unlink(),
    "a revision file is damaged": lambda root: _damage(_one(root, "*_update_*.mpk")),
    "the log files are gone": lambda root: shutil.rmtree(root / "txn"),
}


def _one(root: Path, pattern: str) -> Path:
    return max(root.rglob(pattern))


def _damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4])


@pytest.mark.parametrize("how", HARM)
def test_what_cannot_be_told_exactly_is_refused_and_named(tmp_path: Path, how: str) -> None:
    copy, tmp_path = tmp_path / "copy", tmp_path / "root"
    filled(tmp_path)
    shutil.copytree(tmp_path, copy)
    HARM[how](tmp_path)
    for number in (3, 4, 6):
        (tmp_path / slot_key(number)).unlink()
    with pytest.raises(InvalidTableStateError, match="headwater repair") as refused:
        Metastore(tmp_path)
    assert "3, 4, 6" in str(refused.value)
    opened = Metastore(tmp_path, damaged=True)
    unasked = partial(opened.transaction, refresh=False)
    for refused_too in (lambda: opened.get(["x"]), opened.transaction, unasked, opened.repair):
        with pytest.raises(InvalidTableStateError):
            refused_too()
    assert slot_key(3) in {problem.key for problem in opened.verify()}
    assert [child.name for child in opened.at(2).list()] == ["a"]
    assert not (tmp_path / slot_key(3)).exists()
    shutil.copytree(copy, tmp_path, dirs_exist_ok=True)
    opened.repair()
    assert opened.verify() == []
    assert opened.exists(["x"])


class ReadOnly(WrappedStore):
    def put(self, key: str, data: bytes, mode: PutMode = PutMode.OVERWRITE, durable: bool = True) -> None:
        raise PermissionDeniedError("This store is read only.")


def test_a_root_that_may_not_be_written_is_refused_rather_than_shown_as_older(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / slot_key(4)).unlink()
    with pytest.raises(InvalidTableStateError, match="cannot be written"):
        Metastore(ReadOnly(LocalStore(tmp_path)))
    assert Metastore(LocalStore(tmp_path)).slot == LAST


def test_a_gap_after_a_checkpoint_and_across_folders_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.metastore.records.layout.SLOTS_PER_FOLDER", 4)
    monkeypatch.setattr(index_module, "CHECKPOINT_CHANGES", 8)
    monkeypatch.setattr(commit_module, "aside", lambda work: work())
    before = story(filled(tmp_path))
    for number in (4, 5, 6, 7):
        (tmp_path / slot_key(number)).unlink()
    opened = Metastore(tmp_path)
    opened.repair()  # a slot before the checkpoint is not needed to open, only for the log
    assert story(opened) == before


def test_a_slot_before_the_checkpoint_is_noticed_by_the_listing_that_opening_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "CHECKPOINT_CHANGES", 8)
    monkeypatch.setattr(commit_module, "aside", lambda work: work())
    before = story(filled(tmp_path))
    (tmp_path / slot_key(2)).unlink()
    assert story(Metastore(tmp_path)) == before
    (tmp_path / slot_key(2)).unlink()
    shutil.rmtree(tmp_path / "txn")
    with pytest.raises(InvalidTableStateError, match=r"1 of its slots \(2\)"):
        Metastore(tmp_path)


def test_slots_lost_from_the_end_are_refused_where_they_cannot_be_told(tmp_path: Path) -> None:
    made = filled(tmp_path)
    txn = next(made.log(after=LAST - 1)).txn
    (tmp_path / slot_key(LAST)).unlink()
    _one(tmp_path, f"*_{txn}.mpk").unlink()
    with pytest.raises(InvalidTableStateError, match=rf"1 of its slots \({LAST}\)"):
        Metastore(tmp_path)


def test_a_transaction_whose_slot_another_writer_took_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path)
    (tmp_path / slot_key(LAST)).unlink()
    monkeypatch.setattr("headwater.metastore.commit.slot_rebuild.LOOK_BACK_MS", -600_000)
    opened = Metastore(tmp_path)
    opened.run(lambda tx: tx.create_namespace(["in its place"]))
    assert any(f"slot {LAST}" in problem.reason for problem in opened.verify())


@pytest.mark.parametrize("make", [lambda path: LocalStore(path), lambda path: memory_store()], ids=["local", "memory"])
def test_a_whole_root_costs_three_listings_more_to_open_and_writes_nothing(
    tmp_path: Path, make: Callable[[Path], Store]
) -> None:
    counting = CountingStore(make(tmp_path))
    filled(counting)
    counting.reset()
    Metastore(counting)
    assert counting.counts["children"] == 3  # checkpoints, and two for the gap
    assert counting.counts["list"] == 1  # the newest transactions that were published
    assert not set(counting.counts) & {"put", "put_all", "delete"}


def test_a_metastore_whose_records_are_gone_is_refused_by_every_door(tmp_path: Path) -> None:
    """It is not an empty one: what is written there would hide its tables."""
    root = str(tmp_path / "lake")
    with_tables = Catalog(root)
    with_tables.create_table("a.t", [{"id": 1}])
    with_tables.close()
    shutil.rmtree(tmp_path / "lake" / ".headwater")
    shutil.rmtree(tmp_path / "lake" / "txn")
    left = sorted(path for path in (tmp_path / "lake").rglob("*"))
    doors: list[Callable[[], object]] = [
        lambda: MetastoreNamespace(root=root),
        lambda: connect("metastore", {"root": root}),
        lambda: Catalog(root),
        lambda: Catalog(root, impl="metastore"),
        lambda: init(resolve(root)),
        lambda: Metastore(root).run(lambda tx: tx.create_namespace(["b"])),
    ]
    for door in doors:
        with pytest.raises(InvalidTableStateError, match="bring them back from a copy"):
            door()
    assert sorted(path for path in (tmp_path / "lake").rglob("*")) == left
