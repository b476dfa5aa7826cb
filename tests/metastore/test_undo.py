"""Undo restores exactly what was before a transaction, or refuses and changes nothing."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.clock import SeededClock
from headwater.errors import InvalidTableStateError, LanceNamespaceError, TransactionNotFoundError
from headwater.metastore import Metastore, Snapshot, Transaction
from headwater.store import memory_store
from tests.metastore.model import Model
from tests.metastore.test_model import CHOICE, LAST, OPERATIONS, concrete, on_store, outcome

State = dict[str, Any]
UNDROP = st.tuples(st.just("undrop"), CHOICE)
STEP = st.one_of(
    st.tuples(st.just("work"), st.lists(OPERATIONS, min_size=1, max_size=3), LAST),
    st.tuples(st.just("work"), st.lists(OPERATIONS, min_size=1, max_size=3), LAST),
    UNDROP,
    st.tuples(st.just("undo"), CHOICE),
)


def state_of(view: Snapshot) -> State:
    """Every object by its id: what it is, where (the parent's id and its name) and all that is in it."""
    return dict(_states(view, (), ""))


def _states(view: Snapshot, path: tuple[str, ...], parent: str) -> Any:
    for child in view.list(path):
        yield child.id, (child.kind, parent, child.name, child.properties, sorted(child.aliases))
        for alias in child.aliases:
            assert view.get((*path, alias)).id == child.id
        if child.kind == "namespace":
            yield from _states(view, child.path, child.id)
        else:
            yield from _inside(view, child.id, child.path)


def _inside(view: Snapshot, id: str, path: tuple[str, ...]) -> Any:
    for version in view.versions(path):
        for stream in view.streams(path, version.id):
            key = f"{id}/{version.id}/{stream.id}"
            yield key, stream.properties
            for part in view.partitions(path, stream=stream.id):
                yield f"{key}/{part.id}", part.properties
            for delta in view.deltas(path, stream=stream.id, version=version.id):
                yield f"{key}/{delta.partition}/{delta.position}", delta.files


def expected(store: Metastore, slot: int) -> State:
    """The present with all that one slot touched as it was before."""
    before, after = state_of(store.at(slot - 1)), state_of(store.at(slot))
    touched = {id for id in before.keys() | after.keys() if before.get(id) != after.get(id)}
    gone = {id for id in touched if id not in before}
    now = {id: found for id, found in state_of(store.now()).items() if id not in touched}
    now = {id: found for id, found in now.items() if not any(id.startswith(f"{one}/") for one in gone)}
    return {**now, **{id: before[id] for id in touched if id in before}}


def undo_and_check(store: Metastore, slot: int) -> bool:
    """Undo a slot; whether that was done. Done exactly, or refused without a trace; the newest is never refused."""
    entry = next(entry for entry in store.log(after=slot - 1))
    wanted, newest, now = expected(store, slot), store.slot, state_of(store.now())
    told = outcome(store.undo, entry, True)
    assert (store.slot, state_of(store.now())) == (newest, now), "a dry run changes nothing"
    answer = outcome(store.undo, entry.txn)
    if answer is InvalidTableStateError:
        assert told is InvalidTableStateError
        assert (store.slot, state_of(store.now())) == (newest, now)
        lost = any(change.kind == "delta" and change.operation == "delete" for change in entry.changes)
        assert slot != newest or lost or not entry.changes, "nothing stands on the newest transaction"
        return False
    assert (answer.slot, answer.steps) == (newest + 1, told.steps)
    assert state_of(store.now()) == wanted
    return True


def explore(steps: list[Any], seed: int) -> None:
    bytes_at_keys = memory_store()
    store = Metastore(bytes_at_keys, clock=SeededClock(seed))
    with store.transaction("first") as tx:
        tx.create_namespace(["a"])
        tx.create_table(["b"], formats=("delta", "lance"))
    for step in steps:
        match step:
            case ("work", operations, last):
                with store.transaction("work") as tx:
                    for drawn in [*operations, *([last] if last else [])]:
                        outcome(on_store, tx, concrete(names_in(tx), drawn))
            case ("undrop", choice):
                changes = [change for entry in store.log() for change in entry.changes]
                gone = [change.path for change in changes if change.operation == "delete" and change.kind != "delta"]
                if gone:
                    gone_path = gone[choice % len(gone)]
                    outcome(partial(store.undrop, gone_path))
            case ("undo", choice):
                undo_and_check(store, 1 + choice % store.slot)
    for slot in range(store.slot, max(store.slot - 4, 0), -1):
        undo_and_check(store, slot)
    assert store.verify() == []
    assert state_of(Metastore(bytes_at_keys).now()) == state_of(store.now())


def names_in(tx: Transaction) -> Model:
    """The names as the transaction sees them, so that operations aim at what is there."""
    model = Model()

    def walk(path: tuple[str, ...]) -> None:
        for child in tx.list(path):
            model.create(child.path, child.kind, {})
            if child.kind == "namespace":
                walk(child.path)

    walk(())
    return model


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(steps=st.lists(STEP, min_size=2, max_size=8), seed=st.integers(0, 1000))
def test_undo_of_any_transaction_of_a_random_history_is_exact_or_refused(steps: list[Any], seed: int) -> None:
    explore(steps, seed)


@pytest.mark.long
@settings(max_examples=3000, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(steps=st.lists(STEP, min_size=2, max_size=25), seed=st.integers(0, 1000))
def test_undo_in_thousands_of_random_histories_is_exact_or_refused(steps: list[Any], seed: int) -> None:
    explore(steps, seed)


@pytest.fixture
def store(tmp_path: Path) -> Metastore:
    opened = Metastore(tmp_path, clock=SeededClock())
    with opened.transaction("first") as tx:
        tx.create_namespace(["n"], {"v": 1})
        tx.create_table(["n", "t"], formats=("delta", "lance"))
    return opened


def refused(store: Metastore, slot: int) -> str:
    before = store.slot
    entry = next(entry for entry in store.log(after=slot - 1))
    with pytest.raises(InvalidTableStateError) as raised:
        store.undo(entry)
    assert store.slot == before
    return str(raised.value)


def test_the_last_transactions_can_be_undone_one_after_the_other(store: Metastore) -> None:
    for number in range(2, 6):
        store.run(lambda tx, number=number: tx.update(["n"], {"v": number}))  # type: ignore[misc]
    for slot in (5, 4, 3, 2):
        assert undo_and_check(store, slot)
    assert store.get(["n"]).properties == {"v": 1}


def test_a_swap_of_names_is_undone_at_once(store: Metastore) -> None:
    store.run(lambda tx: tx.create_table(["n", "u"]))
    before = state_of(store.now())
    with store.transaction("swap") as tx:
        tx.rename(["n", "t"], ["n", "x"])
        tx.rename(["n", "u"], ["n", "t"])
        tx.rename(["n", "x"], ["n", "u"])
    done = store.undo(next(store.log(after=2)))
    assert state_of(store.now()) == before
    assert [(step.action, step.path) for step in done.steps] == [("rename", ("n", "t")), ("rename", ("n", "u"))]
    assert store.verify() == []


def test_a_table_does_not_come_back_into_a_namespace_where_another_has_its_name_since(store: Metastore) -> None:
    with store.transaction("move both") as tx:
        tx.rename(["n"], ["m"])
        tx.rename(["m", "t"], ["c"])
    store.run(lambda tx: tx.create_table(["m", "t"]))
    assert "the name n.t is taken by another object" in refused(store, 2)
    assert [found.path for found in store.list(["m"])] == [("m", "t")]
    store.run(lambda tx: tx.rename(["m", "t"], ["m", "u"]))
    assert undo_and_check(store, 2)
    assert [found.path for found in store.list(["n"])] == [("n", "t"), ("n", "u")]
    assert store.verify() == []


def test_what_later_work_stands_on_is_not_undone_and_the_reasons_are_told(store: Metastore) -> None:
    store.run(lambda tx: tx.rename(["n"], ["m"]))  # 2
    store.run(lambda tx: tx.create_namespace(["n"]))  # 3
    assert "the name n is taken" in refused(store, 2)
    assert "m.t (1/delta) was written to in slot 4" in _after(store, lambda tx: tx.append_delta(["m", "t"], ["a"]), 1)
    assert "has position 2 after it" in _after(store, lambda tx: tx.append_delta(["m", "t"], ["b"]), 4)
    assert "n holds n.k now" in _after(store, lambda tx: tx.create_table(["n", "k"]), 3)
    assert "m was changed again in slot 7" in _after(store, lambda tx: tx.update(["m"], {"v": 2}), 2)
    assert "m.t was dropped since" in _after(store, lambda tx: tx.drop(["m", "t"]), 5)


def _after(store: Metastore, work: Any, slot: int) -> str:
    store.run(work)
    return refused(store, slot)


def test_a_lance_version_is_undone_if_it_is_the_newest_and_its_number_is_free_again(store: Metastore) -> None:
    for number in (1, 2):
        store.run(
            lambda tx, number=number: tx.append_delta(  # type: ignore[misc]
                ["n", "t"], [f"m{number}"], format="lance", position=number, properties={"e_tag": number}
            )
        )
    assert "has version 2 after it" in refused(store, 2)
    done = store.undo(next(store.log(after=2)))
    assert [step.detail for step in done.steps] == ["version 2"]
    kept = store.deltas(["n", "t"], format="lance")
    assert [(delta.position, delta.properties) for delta in kept] == [(1, {"e_tag": 1})]
    store.run(lambda tx: tx.append_delta(["n", "t"], ["again"], format="lance", position=2))
    assert [delta.files[0].path for delta in store.deltas(["n", "t"], format="lance")] == ["m1", "again"]
    assert [delta.files[0].path for delta in store.at(3).deltas(["n", "t"], format="lance")] == ["m1", "m2"]
    assert store.verify() == []


def test_a_publish_is_not_undone_nor_what_a_reader_has_read(store: Metastore) -> None:
    store.run(lambda tx: tx.append_delta(["n", "t"], ["a"]))
    with store.transaction("publish") as tx:
        tx.append_delta(["n", "t"], ["m"], format="lance", position=1, properties={"position": 1})
    assert "undo the ingest instead" in refused(store, 3)
    with store.transaction("read") as tx:
        tx.create_stream(["n", "t"], "reader", id="readers")
        tx.update_stream(["n", "t"], "readers", {"bob": 1})
    assert "the reader 'bob' has read n.t (1/delta) up to position 1" in refused(store, 2)


def test_the_rows_of_a_stream_table_are_voided_and_not_taken_out_of_its_log(store: Metastore) -> None:
    with store.transaction("stream table") as tx:
        tx.update_table_version(["n", "t"], "1", {"stream": {}})
        tx.create_stream(["n", "t"], "record", id="source")
    with store.transaction("ingest") as tx:
        tx.append_delta(["n", "t"], ["a"])
        tx.update_stream(["n", "t"], "source", {"given": 1})
    assert "undo them through the catalog" in refused(store, 3)
    told: list[Any] = []

    def void(tx: Transaction, path: tuple[str, ...], version: str, txn: str) -> bool:
        told.append((path, version, txn))
        tx.append_delta(path, [], version=version, properties={"voids": [1]})
        return True

    entry = next(store.log(after=2))
    done = store.undo(entry, void=void)
    assert told == [(("n", "t"), "1", entry.txn)]
    assert [step.action for step in done.steps] == ["void"]
    assert [delta.position for delta in store.deltas(["n", "t"])] == [1, 2]


def test_a_transaction_that_is_not_in_the_log_cannot_be_undone(store: Metastore) -> None:
    with pytest.raises(TransactionNotFoundError, match="never committed"):
        store.undo("00000000-0000-4000-8000-000000000000")
    entry = next(store.log(after=0))
    store.run(lambda tx: tx.update(["n"], {"v": 2}))
    store.collect(keep=0)
    with pytest.raises(TransactionNotFoundError, match="collected"):
        store.undo(entry)
    assert "as a collection does" in refused(store, 3)


def test_an_undo_that_is_refused_leaves_no_trace_in_its_transaction(store: Metastore) -> None:
    store.run(lambda tx: tx.update(["n"], {"v": 2}))
    slot = store._log.read_slot(1)
    with store.transaction() as tx:
        with pytest.raises(LanceNamespaceError):
            store.undo(slot.transactions[0].id, within=tx)
        assert tx.draft.empty


def test_what_was_written_into_a_table_between_two_drops_is_not_brought_back_by_undoing_the_first(
    store: Metastore,
) -> None:
    with store.transaction() as tx:
        tx.create_table(["b"], formats=("delta",))
    store.run(lambda tx: tx.drop(["b"]))
    first = list(store.log())[-1]
    store.run(lambda tx: tx.undrop(["b"]))
    with store.transaction() as tx:
        tx.append_delta(["b"], [("file-0", 1, 1)])
        tx.drop(["b"])
    now = state_of(store.now())
    with pytest.raises(InvalidTableStateError, match="was written to in slot"):
        store.undo(first)
    assert state_of(store.now()) == now
    assert undo_and_check(store, store.slot)
    assert store.now().deltas(["b"]) == []
