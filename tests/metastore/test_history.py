"""What happened to an object, and what is different between two states."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.clock import SeededClock
from headwater.errors import NamespaceNotFoundError
from headwater.metastore import Metastore


@pytest.fixture
def store(tmp_path: Path) -> Metastore:
    return Metastore(tmp_path, clock=SeededClock(), author="ann")


def fill(store: Metastore) -> None:
    """Seven slots: a table with two streams that is written, renamed, moved with its namespace and changed."""
    store.run(lambda tx: tx.create_namespace(["n"]), "space")
    store.run(lambda tx: tx.create_table(["n", "t"], {"v": 1}, formats=("delta", "lance")), "made")
    store.run(lambda tx: [tx.append_delta(["n", "t"], [f]) for f in ("a", "b")], "landed")
    store.run(lambda tx: tx.append_delta(["n", "t"], ["m"], format="lance", position=1), "version")
    store.run(lambda tx: tx.rename(["n", "t"], ["n", "u"]), "renamed")
    store.run(lambda tx: tx.create_table(["other"]), "beside")
    store.run(lambda tx: tx.rename(["n"], ["m"]), "namespace renamed")
    store.run(lambda tx: (tx.update(["m", "u"], {"v": 2}), tx.drop_delta(["m", "u"], 1)), "changed")


def test_history_tells_every_transaction_that_touched_an_object_or_a_part_through_renames(store: Metastore) -> None:
    fill(store)
    found = store.history(["m", "u"])
    assert [(e.slot, e.message, e.operation, e.kind) for e in found] == [
        (2, "made", "create", "table"),
        (3, "landed", "create", "delta"),
        (4, "version", "create", "delta"),
        (5, "renamed", "update", "table"),
        (8, "changed", "update", "table"),
    ]
    assert [(e.version, e.position) for e in found] == [(None, None), (None, 2), (1, None), (None, None), (None, 1)]
    assert [e.path for e in found] == [("n", "t")] * 3 + [("n", "u"), ("m", "u")]
    assert {e.author for e in found} == {"ann"}
    log = {entry.slot: entry for entry in store.log(after=0)}
    assert [(e.txn, e.time) for e in found] == [(log[e.slot].txn, log[e.slot].time) for e in found]
    assert [e.message for e in store.history(["m"])] == ["space", "namespace renamed"]
    assert [e.slot for e in store.at(4).history(["n", "t"])] == [2, 3, 4]
    with pytest.raises(NamespaceNotFoundError):
        store.history(["never"])


def test_history_of_a_dropped_object_and_of_one_whose_past_was_collected(store: Metastore) -> None:
    fill(store)
    store.run(lambda tx: tx.drop(["m", "u"]), "gone")
    assert [e.message for e in store.history(["m", "u"])][-2:] == ["changed", "gone"]
    store.undrop(["m", "u"])
    store.collect(keep=0)
    left = [(e.slot, e.message, e.author) for e in store.history(["m", "u"])]
    assert left == [(2, "made", "ann"), (3, "landed", "ann"), (4, "version", "ann"), (10, "undrop m.u", "ann")]


def test_history_reads_only_the_slots_that_touched_the_object(store: Metastore) -> None:
    fill(store)
    for number in range(40):
        store.run(lambda tx, number=number: tx.update(["other"], {"n": number}))  # type: ignore[misc]
    assert len(store.history(["m", "u"])) == 5
    assert len(store.history(["other"])) == 41


def test_diff_tells_what_came_went_moved_and_changed_and_the_deltas_between(store: Metastore) -> None:
    fill(store)
    found = store.diff(2, 8)
    assert [each.path for each in found.added] == [("other",)]
    assert found.removed == ()
    assert [(m.kind, m.old_path, m.path) for m in found.moved] == [
        ("namespace", ("n",), ("m",)),
        ("table", ("n", "t"), ("m", "u")),
    ]
    assert [(c.path, c.old_properties, c.properties) for c in found.changed] == [(("m", "u"), {"v": 1}, {"v": 2})]
    assert [(s.path, s.format, s.added, s.removed) for s in found.streams] == [
        (("m", "u"), "delta", (2,), ()),
        (("m", "u"), "lance", (1,), ()),
    ]
    assert [(s.added, s.removed) for s in store.diff(4, 8).streams] == [((), (1,))]
    assert store.diff(8, 8).moved == ()


def test_diff_backwards_is_the_other_way_round(store: Metastore) -> None:
    fill(store)
    found = store.diff(8, 2)
    assert [each.path for each in found.removed] == [("other",)]
    assert [(m.old_path, m.path) for m in found.moved] == [(("m",), ("n",)), (("m", "u"), ("n", "t"))]
    assert [(s.format, s.added, s.removed) for s in found.streams] == [("delta", (), (2,)), ("lance", (), (1,))]
    assert [(s.added, s.removed) for s in store.diff(8, 4).streams] == [((1,), ())]
    times = {entry.slot: entry.time for entry in store.log(after=0)}
    assert store.diff(times[8], times[2]) == found
