"""Several writers at once, in threads and in processes: one serial order, nothing lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwater.errors import ConcurrentModificationError
from headwater.metastore import Metastore, Transaction
from tests.metastore.model import tree_of
from tests.metastore.published_reader import read
from tests.metastore.writers import WRITERS, append, count, in_processes, race_for_names


def counted(root: Path, rounds: int) -> None:
    store = Metastore(root)
    store.run(lambda tx: tx.create_namespace(["counter"], {"n": 0}))
    acknowledged = sum(in_processes(count, str(root), rounds))
    assert acknowledged == WRITERS * rounds
    assert store.get(["counter"]).properties["n"] == acknowledged
    assert store.get(["counter"]).revision == acknowledged + 1
    assert len(list(store.log(after=1))) == acknowledged
    assert Metastore(root).verify() == []
    assert read(str(root)) == tree_of(store)


def test_eight_processes_that_count_lose_no_acknowledged_commit(tmp_path: Path) -> None:
    counted(tmp_path, rounds=12)


@pytest.mark.long
def test_eight_processes_that_count_for_long_lose_no_acknowledged_commit(tmp_path: Path) -> None:
    for number in range(5):
        counted(tmp_path / str(number), rounds=100)


def test_appends_of_eight_processes_never_conflict_and_each_has_its_position(tmp_path: Path) -> None:
    store = Metastore(tmp_path)
    store.run(lambda tx: tx.create_table(["t"]))
    told = dict(position for positions in in_processes(append, str(tmp_path), 25) for position in positions)
    deltas = store.deltas(["t"])
    assert [delta.position for delta in deltas] == list(range(1, 201))
    assert {delta.position: delta.files[0].path for delta in deltas} == told
    assert Metastore(tmp_path).verify() == []
    assert read(str(tmp_path)) == tree_of(store)


def test_threads_share_a_metastore_and_their_commits_are_grouped(tmp_path: Path) -> None:
    store = Metastore(tmp_path)
    store.run(lambda tx: tx.create_table(["t"]))
    errors: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for turn in range(40):
                with store.transaction() as tx:
                    tx.append_delta(["t"], [(f"{number}-{turn}", 1, 1)])
                with store.transaction() as tx:
                    tx.create_namespace([f"n{number}-{turn}"])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(store.deltas(["t"])) == len(store.list()) - 1 == 320
    assert len(list(store.log(after=0))) == 641
    assert store.slot < 641, "no two commits were grouped"
    assert store.verify() == []
    assert Metastore(tmp_path).verify() == []
    assert tree_of(Metastore(tmp_path)) == tree_of(store) == read(str(tmp_path))


def test_write_skew_is_refused(tmp_path: Path) -> None:
    store = Metastore(tmp_path)
    with store.transaction() as tx:
        tx.create_namespace(["x"], {"on": 1})
        tx.create_namespace(["y"], {"on": 1})
    first, second = store.transaction("first"), Metastore(tmp_path).transaction("second")
    for tx, own in ((first, "x"), (second, "y")):
        if tx.get(["x"]).properties["on"] + tx.get(["y"]).properties["on"] == 2:
            tx.update([own], {"on": 0})
    first.commit()
    with pytest.raises(ConcurrentModificationError) as refused:
        second.commit()
    assert int(refused.value.code) == 14
    assert (store.get(["x"]).properties, store.get(["y"]).properties) == ({"on": 0}, {"on": 1})


def test_a_phantom_is_refused(tmp_path: Path) -> None:
    store = Metastore(tmp_path)
    store.run(lambda tx: tx.create_namespace(["n"]))
    tx = store.transaction()
    assert tx.list(["n"]) == []
    tx.create_namespace(["was-empty"])
    store.run(lambda other: other.create_table(["n", "t"]))
    with pytest.raises(ConcurrentModificationError):
        tx.commit()


RACES: dict[str, tuple[Callable[[Transaction], Any], Callable[[Transaction], Any]]] = {
    "the same name": (
        lambda tx: tx.create_namespace(["c"], {"by": 1}),
        lambda tx: tx.create_table(["c"], {"by": 2}),
    ),
    "the same target": (lambda tx: tx.rename(["a"], ["c"]), lambda tx: tx.rename(["b"], ["c"])),
    "a swap": (lambda tx: tx.rename(["a"], ["b", "a"]), lambda tx: tx.rename(["b"], ["a", "b"])),
    "into an own child": (lambda tx: tx.rename(["a", "x"], ["b", "x"]), lambda tx: tx.rename(["b"], ["a", "x", "b"])),
    "drop against create": (lambda tx: tx.drop(["b"]), lambda tx: tx.create_table(["b", "t"])),
    "create against drop": (lambda tx: tx.create_table(["b", "t"]), lambda tx: tx.drop(["b"])),
    "cascade against create below": (
        lambda tx: tx.drop(["a"], cascade=True),
        lambda tx: tx.create_table(["a", "x", "t"]),
    ),
    "rename above against create below": (
        lambda tx: tx.rename(["a"], ["c"]),
        lambda tx: tx.create_table(["a", "x", "t"]),
    ),
    "create below against rename above": (
        lambda tx: tx.create_table(["a", "x", "t"]),
        lambda tx: tx.rename(["a"], ["c"]),
    ),
    "the same position": (
        lambda tx: tx.append_delta(["t"], [("f", 1, 1)], position=1),
        lambda tx: tx.append_delta(["t"], [("g", 1, 1)], position=1),
    ),
}


@pytest.mark.parametrize("race", RACES)
def test_a_race_of_names_ends_in_one_serial_order(tmp_path: Path, race: str) -> None:
    outcomes = []
    for root, second_first in ((tmp_path / "first", False), (tmp_path / "second", True)):
        store, other = Metastore(root), Metastore(root)
        with store.transaction() as tx:
            for path in (["a"], ["a", "x"], ["b"]):
                tx.create_namespace(path)
            tx.create_table(["t"])
        transactions = [store.transaction("one"), other.transaction("two")]
        for tx, edit in zip(transactions, RACES[race], strict=True):
            edit(tx)
        if second_first:
            transactions.reverse()
        transactions[0].commit()
        with pytest.raises(ConcurrentModificationError):
            transactions[1].commit()
        assert tree_of(store) == tree_of(other) == read(str(root)) == tree_of(Metastore(root))
        assert store.verify() == []
        outcomes.append(tree_of(store))
    assert outcomes[0] != outcomes[1]


def test_an_append_to_a_table_dropped_meanwhile_is_refused_and_a_drop_after_an_append_is_not(tmp_path: Path) -> None:
    store, other = Metastore(tmp_path), Metastore(tmp_path)
    store.run(lambda tx: tx.create_table(["t"]))
    append, drop = store.transaction(), other.transaction()
    append.append_delta(["t"], [("f", 1, 1)])
    drop.drop(["t"])
    late = other.transaction()
    late.append_delta(["t"], [("late", 1, 1)])
    append.commit()
    drop.commit()
    with pytest.raises(ConcurrentModificationError):
        late.commit()
    store.run(lambda tx: tx.undrop(["t"]))
    assert [delta.files[0].path for delta in store.deltas(["t"])] == ["f"]


def test_eight_processes_racing_for_names_leave_one_sound_tree(tmp_path: Path) -> None:
    store = Metastore(tmp_path)
    store.run(lambda tx: tx.create_namespace(["a"]))
    in_processes(race_for_names, str(tmp_path), 3)
    assert read(str(tmp_path)) == tree_of(store) == tree_of(Metastore(tmp_path))
    assert Metastore(tmp_path).verify() == []
