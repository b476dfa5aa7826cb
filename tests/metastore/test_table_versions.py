"""Table versions: a second one beside the active one, activated in one commit, and the old one restorable."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwater.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    TableVersionNotFoundError,
)
from headwater.metastore import Metastore, Transaction
from headwater.metastore.records.objects import lifecycle_of
from headwater.store import Crash, CrashesAtStore, LocalStore, Store
from tests.metastore.published_reader import read

T = ["a", "t"]


@pytest.fixture
def store(tmp_path: Path) -> Metastore:
    made = Metastore(tmp_path)
    made.run(lambda tx: (tx.create_namespace(["a"]), tx.create_table(T, formats=("delta", "lance"))))
    made.run(lambda tx: tx.append_delta(T, ["one"]))
    return made


def files(store: Metastore, **options: Any) -> list[str]:
    return [delta.files[0].path for delta in store.deltas(T, **options)]


def states(store: Metastore) -> dict[str, str]:
    return {each.id: lifecycle_of(each.properties) for each in store.now().versions(T)}


def test_a_new_version_is_unreleased_and_readers_by_name_see_the_active_one(store: Metastore, tmp_path: Path) -> None:
    store.run(lambda tx: (tx.create_table_version(T, "2"), tx.append_delta(T, ["two"], version="2")))
    assert states(store) == {"1": "active", "2": "unreleased"}
    assert files(store) == ["one"] == list(read(str(tmp_path))["a", "t"][3])
    assert files(store, version="2") == ["two"]
    store.run(lambda tx: tx.activate_table_version(T, "2"))
    assert states(store) == {"1": "deprecated", "2": "active"}
    assert files(store) == ["two"] == list(read(str(tmp_path))["a", "t"][3])
    assert files(store, version="1") == ["one"]
    assert files(Metastore(tmp_path)) == ["two"]
    store.run(lambda tx: tx.activate_table_version(T, "1"))
    assert states(store) == {"1": "active", "2": "deprecated"}
    assert files(store) == ["one"]
    assert store.verify() == []


def test_the_first_version_has_no_lifecycle_on_disk(store: Metastore) -> None:
    assert store.now().get_table_version(T).properties == {}


def test_versions_from_before_lifecycles_are_active_and_the_newest_counts(store: Metastore) -> None:
    def work(tx: Transaction) -> None:
        tx.create_table_version(T, "2")
        key = next(key for key in tx.draft.items if key.endswith("/2"))
        tx.draft.items[key].revision.properties.clear()
        tx.append_delta(T, ["two"], version="2")

    store.run(work)
    assert files(store) == ["two"]
    store.run(lambda tx: tx.activate_table_version(T, "1"))
    assert (files(store), states(store)) == (["one"], {"1": "active", "2": "deprecated"})


def test_properties_are_replaced_and_the_lifecycle_stays(store: Metastore) -> None:
    store.run(lambda tx: tx.create_table_version(T, "2", {"k": 1}))
    store.run(lambda tx: tx.update_table_version(T, "2", {"j": 2}))
    assert store.now().get_table_version(T, "2").properties == {"j": 2, "lifecycle": "unreleased"}
    store.run(lambda tx: tx.update_table_version(T, "2", {"lifecycle": "deprecated"}))
    assert states(store)["2"] == "deprecated"
    for version, asked in (("2", "active"), ("1", "deprecated"), ("2", "old")):
        with pytest.raises(InvalidInputError, match="activate a version"):
            store.run(lambda tx, v=version, a=asked: tx.update_table_version(T, v, {"lifecycle": a}))  # type: ignore[misc]


def test_the_active_version_is_not_dropped(store: Metastore) -> None:
    store.run(lambda tx: tx.create_table_version(T, "2"))
    with pytest.raises(InvalidInputError, match="activate another"):
        store.run(lambda tx: tx.drop_table_version(T, "1"))
    store.run(lambda tx: tx.activate_table_version(T, "2"))
    store.run(lambda tx: tx.drop_table_version(T, "1"))
    assert states(store) == {"2": "active"}
    with pytest.raises(InvalidInputError, match="drop the table"):
        store.run(lambda tx: tx.drop_table_version(T, "2"))
    with pytest.raises(TableVersionNotFoundError, match="no table version '3'"):
        store.run(lambda tx: tx.activate_table_version(T, "3"))
    assert store.verify() == []


@pytest.mark.parametrize(
    "work",
    [
        lambda tx: tx.append_delta(T, ["f"]),
        lambda tx: tx.append_delta(T, ["f"], format="lance", position=1),
        lambda tx: (tx.find_with_stream(T, "lance"), tx.create_namespace(["b"])),
        lambda tx: tx.update_stream(T, "delta", {"k": 1}),
    ],
    ids=["an append", "a Lance version", "a look-up", "a record"],
)
def test_what_goes_to_the_active_version_conflicts_with_an_activation(
    store: Metastore, work: Callable[[Transaction], object]
) -> None:
    store.run(lambda tx: tx.create_table_version(T, "2", formats=("delta", "lance")))
    tx = store.transaction()
    work(tx)
    store.run(lambda tx: tx.activate_table_version(T, "2"))
    with pytest.raises(ConcurrentModificationError, match="lifecycle of a table version"):
        tx.commit()
    store.run(work)
    assert store.verify() == []


def test_an_append_to_a_named_version_does_not_conflict_with_an_activation(store: Metastore) -> None:
    store.run(lambda tx: tx.create_table_version(T, "2"))
    tx = store.transaction()
    tx.append_delta(T, ["f"], version="2")
    store.run(lambda tx: tx.activate_table_version(T, "2"))
    tx.commit()
    assert files(store) == ["f"]


def test_two_activations_at_once_leave_one_active(store: Metastore) -> None:
    store.run(lambda tx: [tx.create_table_version(T, id) for id in ("2", "3", "4")])
    first, second = store.transaction(), store.transaction()
    first.activate_table_version(T, "2")
    second.activate_table_version(T, "3")
    first.commit()
    with pytest.raises(ConcurrentModificationError):
        second.commit()

    def activate(id: str) -> None:
        for _ in range(8):
            store.run(lambda tx: tx.activate_table_version(T, id))

    threads = [threading.Thread(target=activate, args=(id,)) for id in ("1", "2", "3", "4")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(states(store).values()) == ["active", "deprecated", "deprecated", "deprecated"]
    for slot in range(3, store.slot + 1):
        active = [v for v in store.at(slot).versions(T) if lifecycle_of(v.properties) == "active"]
        assert len(active) == 1
    assert store.verify() == []


def test_an_activation_is_undone_and_read_in_the_past(store: Metastore) -> None:
    store.run(lambda tx: (tx.create_table_version(T, "2"), tx.append_delta(T, ["two"], version="2")))
    before = store.slot
    store.run(lambda tx: tx.activate_table_version(T, "2"), "activate")
    (entry,) = store.log(after=before)
    assert [delta.files[0].path for delta in store.at(before).deltas(T)] == ["one"]
    assert store.snapshot("now").tables[0].position == 1
    store.undo(entry)
    assert (files(store), states(store)) == (["one"], {"1": "active", "2": "unreleased"})
    assert [delta.files[0].path for delta in store.at("now").deltas(T)] == ["two"]


def test_a_handle_with_a_version_reads_and_writes_that_version(store: Metastore) -> None:
    store.run(lambda tx: tx.create_table_version(T, "2", formats=("delta", "lance")))
    second = store.with_version(T, "2")
    second.run(lambda tx: tx.append_delta(T, ["two"]))
    assert (files(store), files(second)) == (["one"], ["two"])
    store.run(lambda tx: tx.rename(["a"], ["b"]))
    second.run(lambda tx: tx.append_delta(["b", "t"], ["three"]))
    assert [delta.files[0].path for delta in second.deltas(["b", "t"])] == ["two", "three"]
    with pytest.raises(TableVersionNotFoundError):
        store.with_version(["b", "t"], "9")


def test_a_position_that_would_leave_a_gap_in_a_change_log_is_refused(store: Metastore) -> None:
    for work in (
        lambda tx: (tx.create_table(["a", "u"]), tx.append_delta(["a", "u"], ["f"], position=70)),
        lambda tx: tx.append_delta(T, ["f"], position=3),
        lambda tx: (tx.append_delta(T, ["f"]), tx.append_delta(T, ["f"], position=4)),
    ):
        with pytest.raises(InvalidInputError, match="leave a gap"):
            store.run(work)
    store.run(lambda tx: (tx.append_delta(T, ["f"], position=2), tx.append_delta(T, ["f"], position=3)))
    store.run(lambda tx: tx.append_delta(T, ["v"], format="lance", position=7))
    with pytest.raises(ConcurrentModificationError):
        store.run(lambda tx: tx.append_delta(T, ["f"], position=2), attempts=1)
    assert [delta.position for delta in store.deltas(T)] == [1, 2, 3]


@pytest.mark.parametrize("after", [False, True], ids=["before the write", "after the write"])
def test_a_crash_at_any_step_of_an_activation_leaves_the_one_or_the_other_active(tmp_path: Path, after: bool) -> None:
    def prepared(root: Path) -> Path:
        made = Metastore(root)
        made.run(lambda tx: (tx.create_namespace(["a"]), tx.create_table(T), tx.append_delta(T, ["one"])))
        made.run(lambda tx: (tx.create_table_version(T, "2"), tx.append_delta(T, ["two"], version="2")))
        return root

    def activating(store: Store) -> None:
        Metastore(store).run(lambda tx: tx.activate_table_version(T, "2"))

    counting = CrashesAtStore(LocalStore(prepared(tmp_path / "count")), step=0)
    activating(counting)
    assert counting.writes > 2
    outcomes = set()
    for step in range(1, counting.writes + 1):
        root = prepared(tmp_path / str(step))
        with pytest.raises(Crash):
            activating(CrashesAtStore(LocalStore(root), step, after))
        survivor = Metastore(root)
        outcomes.add(tuple(files(survivor)))
        assert tuple(read(str(root))["a", "t"][3]) == tuple(files(survivor))
        assert sorted(states(survivor).values()) in (["active", "deprecated"], ["active", "unreleased"])
        assert survivor.verify() == []
    assert ("two",) in outcomes
    assert outcomes <= {("one",), ("two",)}


def _activate(root: str, id: str, times: int) -> None:
    store = Metastore(root)
    for _ in range(times):
        store.run(lambda tx: tx.activate_table_version(T, id))


@pytest.mark.long
def test_processes_that_activate_and_append_never_leave_two_active(store: Metastore, tmp_path: Path) -> None:
    store.run(lambda tx: tx.create_table_version(T, "2"))
    context = multiprocessing.get_context("spawn")
    others = [context.Process(target=_activate, args=(str(tmp_path), id, 10)) for id in ("1", "2")]
    for other in others:
        other.start()
    for number in range(20):

        def land(tx: Transaction, number: int = number) -> None:
            active = tx.get_table_version(T).id
            tx.append_delta(T, [f"{active}-{number}"])

        store.run(land)
    for other in others:
        other.join()
        assert other.exitcode == 0
    for version in ("1", "2"):
        assert all(name.startswith((f"{version}-", "one")) for name in files(store, version=version))
    assert len(files(store, version="1")) + len(files(store, version="2")) == 21
    assert sorted(states(store).values()) == ["active", "deprecated"]
    assert store.verify() == []
