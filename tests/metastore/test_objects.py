"""What a user of the Python API is promised."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headwater.clock import SeededClock
from headwater.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NamespaceNotFoundError,
    TableAlreadyExistsError,
    TableNotFoundError,
    TableVersionNotFoundError,
    TransactionNotFoundError,
)
from headwater.metastore import DataFile, Metastore
from headwater.store import LocalStore


@pytest.fixture
def store(tmp_path: Path) -> Metastore:
    return Metastore(tmp_path / "root", author="ann")


def test_the_calls_of_the_issue_do_what_they_say(store: Metastore) -> None:
    with store.transaction("why") as tx:
        tx.create_namespace(["prod"], properties={"owner": "ml"})
        tx.create_namespace(["prod", "raw"])
        tx.create_table(["prod", "raw", "users"], properties={})
        tx.update(["prod"], properties={"owner": "data"})
        tx.rename(["prod", "raw", "users"], ["prod", "people"])
        tx.drop(["prod", "raw"])
        appended = tx.append_delta(["prod", "people"], files=[("a.parquet", 3, 100)], type="append", partition=None)
    people = store.get(["prod", "people"])
    assert (people.name, people.kind, people.properties, people.revision) == ("people", "table", {}, 1)
    assert [child.name for child in store.list(["prod"])] == ["people"]
    (delta,) = store.deltas(["prod", "people"], after=0)
    assert (delta.position, delta.type, delta.files) == (1, "append", (DataFile("a.parquet", 3, 100),))
    assert appended.position == 1
    assert store.at(1).get(["prod"]).properties == {"owner": "data"}
    (entry,) = store.log(after=0)
    assert (entry.slot, entry.message, entry.author) == (1, "why", "ann")
    assert {change.kind for change in entry.changes} >= {"namespace", "table", "stream", "delta"}
    assert store.run(lambda tx: tx.get(["prod"]).properties["owner"], message="why") == "data"
    assert store.verify() == []


def test_a_block_that_raises_changes_nothing(store: Metastore) -> None:
    with pytest.raises(TableNotFoundError), store.transaction() as tx:
        tx.drop([tx.create_namespace(["a"]).name, "nothing"])
    assert store.list() == []
    assert store.slot == 0
    with pytest.raises(InvalidInputError, match="has ended"):
        tx.create_namespace(["b"])


def test_a_transaction_reads_its_own_writes_and_nobody_else_does(store: Metastore) -> None:
    tx = store.transaction()
    tx.create_namespace(["a"])
    tx.create_table(["a", "t"], {"k": [1, {"n": None}]})
    tx.rename(["a"], ["b"])
    assert [child.name for child in tx.list([])] == ["b"]
    assert tx.get(["b", "t"]).properties == {"k": [1, {"n": None}]}
    assert store.list() == []
    tx.commit()
    assert store.get(["b", "t"]).locator == "b|t"


def test_a_reading_transaction_sees_one_state(store: Metastore) -> None:
    store.run(lambda tx: tx.create_namespace(["a"], {"v": 1}))
    with store.transaction() as tx:
        assert tx.get(["a"]).properties == {"v": 1}
        store.run(lambda other: other.update(["a"], {"v": 2}))
        store.run(lambda other: other.create_namespace(["b"]))
        assert tx.get(["a"]).properties == {"v": 1}
        assert [child.name for child in tx.list()] == ["a"]
    assert store.slot == 3


def test_ids_and_directories_stay_through_renames_and_moves(store: Metastore) -> None:
    with store.transaction() as tx:
        tx.create_namespace(["a"])
        tx.create_namespace(["a", "b"])
        made = tx.create_table(["a", "b", "t"])
        tx.create_namespace(["z"])
    store.run(lambda tx: tx.rename(["a", "b"], ["z", "moved"]))
    store.run(lambda tx: tx.rename(["z"], ["y"]))
    found = store.get(["y", "moved", "t"])
    assert (found.id, found.home, found.path) == (made.id, made.home, ("y", "moved", "t"))
    assert store.list(["a"]) == []
    with pytest.raises(InvalidInputError, match="inside itself"):
        store.run(lambda tx: tx.rename(["y"], ["y", "moved", "y"]))
    assert store.verify() == []


def test_names_can_be_swapped_in_one_transaction(store: Metastore) -> None:
    with store.transaction() as tx:
        first, second = tx.create_table(["a"]), tx.create_table(["b"])
    with store.transaction() as tx:
        tx.rename(["a"], ["x"])
        tx.rename(["b"], ["a"])
        tx.rename(["x"], ["b"])
    assert (store.get(["a"]).id, store.get(["b"]).id) == (second.id, first.id)
    assert store.verify() == []


def test_an_alias_is_one_more_name_that_moves_with_the_object(store: Metastore) -> None:
    with store.transaction() as tx:
        tx.create_namespace(["prod"])
        tx.create_table(["prod", "t"])
        tx.alias(["prod"], "production")
    table = store.get(["production", "t"])
    assert table.path == ("prod", "t")
    with pytest.raises(NamespaceAlreadyExistsError):
        store.run(lambda tx: tx.create_namespace(["production"]))
    store.run(lambda tx: tx.rename(["production"], ["live"]))
    assert store.get(["production", "t"]).id == store.get(["live", "t"]).id == table.id
    store.run(lambda tx: tx.unalias(["live"], "production"))
    assert not store.exists(["production"])
    assert store.verify() == []


def test_drop_is_restricted_unless_cascading_and_can_be_undone(store: Metastore) -> None:
    with store.transaction() as tx:
        tx.create_namespace(["a"])
        tx.create_namespace(["a", "b"])
        tx.create_table(["a", "b", "t"])
        tx.append_delta(["a", "b", "t"], ["f"])
    before = store.get(["a", "b", "t"])
    with pytest.raises(NamespaceNotEmptyError):
        store.run(lambda tx: tx.drop(["a"]))
    store.run(lambda tx: tx.drop(["a"], cascade=True))
    assert store.list() == []
    assert [entry.operation for entry in store.now().revisions(["a"])] == ["create", "delete"]
    back = store.undrop(["a"])
    assert back.revision == store.get(["a"]).revision == 3
    assert store.get(["a", "b", "t"]).id == before.id
    assert len(store.deltas(["a", "b", "t"])) == 1
    with pytest.raises(TableNotFoundError, match="dropped"):
        store.run(lambda tx: tx.undrop(["a", "never"]))
    store.run(lambda tx: tx.drop(["a", "b", "t"]))
    store.run(lambda tx: tx.create_namespace(["a", "b", "t"]))
    with pytest.raises(NamespaceAlreadyExistsError):
        store.run(lambda tx: tx.undrop(["a", "b", "t"]))


def test_every_read_can_be_made_at_a_slot_or_a_time(tmp_path: Path) -> None:
    store = Metastore(tmp_path, clock=SeededClock(start_ms=1_700_000_000_000))
    store.run(lambda tx: tx.create_table(["t"], {"v": 1}))
    for number in range(2, 6):
        store.run(lambda tx, number=number: (tx.update(["t"], {"v": number}), tx.append_delta(["t"], [f"{number}"])))  # type: ignore[misc]
    log = list(store.log(after=0))
    for entry in log:
        for moment in (entry.slot, entry.time, entry.time.timestamp(), round(entry.time.timestamp() * 1000)):
            past = store.at(moment)
            assert past.get(["t"]).properties == {"v": entry.slot}
            assert len(past.deltas(["t"])) == entry.slot - 1
    assert [entry.properties["v"] for entry in store.at(3).revisions(["t"])] == [1, 2, 3]
    assert store.at(0).list() == []
    with pytest.raises(InvalidInputError, match="slots 0 to 5"):
        store.at(6)
    with pytest.raises(InvalidInputError, match="time zone"):
        store.at(datetime(2026, 1, 1))
    assert store.at(datetime.now(UTC)).slot == 5


def test_the_change_feed_has_no_gap_and_can_be_resumed_anywhere(store: Metastore) -> None:
    for number in range(7):
        store.run(lambda tx, number=number: tx.create_namespace([f"n{number}"]), f"m{number}")  # type: ignore[misc]
    whole = [entry.message for entry in store.log(after=0)]
    assert whole == [f"m{number}" for number in range(7)]
    for entry in store.log(after=0):
        assert [later.message for later in store.log(after=entry)] == whole[entry.slot :]
        assert [later.message for later in store.log(after=entry.slot)] == whole[entry.slot :]
    store.collect(keep=2)
    assert [entry.message for entry in store.log()] == [*whole[5:], "collect up to slot 5"]
    with pytest.raises(InvalidInputError, match="without a gap"):
        store.log(after=3)


def test_versions_streams_and_partitions_have_the_ids_they_were_given(store: Metastore) -> None:
    with store.transaction() as tx:
        table = tx.create_table(["t"], formats=("delta", "lance"))
        tx.append_delta(["t"], ["x"], partition=["2026", 1])
        tx.append_delta(["t"], ["y"])
        tx.append_delta(["t"], ["m"], format="lance", position=7)
    assert [version.id for version in store.now().versions(["t"])] == ["1"]
    assert [stream.locator for stream in store.now().streams(["t"])] == ["t|1|delta|delta", "t|1|lance|lance"]
    parts = {part.parts[1] and tuple(part.parts[1]): part for part in store.now().partitions(["t"])}
    assert parts.keys() == {None, ("2026", 1)}
    assert parts[None].home == f"{table.home}/1/delta/default"
    assert [delta.files[0].path for delta in store.deltas(["t"], partition=["2026", 1])] == ["x"]
    assert [delta.position for delta in store.deltas(["t"], format="lance")] == [7]
    with pytest.raises(ConcurrentModificationError):
        store.run(lambda tx: tx.append_delta(["t"], ["n"], format="lance", position=7), attempts=1)
    with store.transaction() as tx:
        tx.create_table_version(["t"], "2")
        tx.append_delta(["t"], ["second version"], version="2")
    assert len(store.deltas(["t"], version="2")) == 1
    assert len(store.deltas(["t"])) == len(store.deltas(["t"], version="1")) == 2
    assert store.verify() == []


def test_a_dropped_delta_is_gone_now_and_there_before(store: Metastore) -> None:
    store.run(lambda tx: [tx.create_table(["t"]), *(tx.append_delta(["t"], [str(n)]) for n in range(3))])
    store.run(lambda tx: tx.drop_delta(["t"], 2))
    assert [delta.position for delta in store.deltas(["t"])] == [1, 3]
    assert [delta.position for delta in store.at(1).deltas(["t"])] == [1, 2, 3]
    with pytest.raises(TableVersionNotFoundError):
        store.run(lambda tx: tx.drop_delta(["t"], 2))
    store.run(lambda tx: tx.append_delta(["t"], ["next"]))
    assert [delta.position for delta in store.deltas(["t"], after=1)] == [3, 4]
    assert store.verify() == []


BAD: dict[str, tuple[Any, type[Exception]]] = {
    "no such parent": (lambda tx: tx.create_namespace(["no", "a"]), NamespaceNotFoundError),
    "a table as parent": (lambda tx: tx.create_namespace(["t", "a"]), NamespaceNotFoundError),
    "a taken name": (lambda tx: tx.create_namespace(["t"]), TableAlreadyExistsError),
    "the root": (lambda tx: tx.drop([]), InvalidInputError),
    "a bad name": (lambda tx: tx.create_namespace(["a/b"]), InvalidInputError),
    "bad properties": (lambda tx: tx.update(["n"], {"k": object()}), InvalidInputError),
    "properties that would come back changed": (lambda tx: tx.update(["n"], {"k": (1, 2)}), InvalidInputError),
    "a bad type": (lambda tx: tx.append_delta(["t"], ["f"], type="replace"), InvalidInputError),
    "bad files": (lambda tx: tx.append_delta(["t"], [{"path": "f", "rows": "many"}]), InvalidInputError),
    "files as text": (lambda tx: tx.append_delta(["t"], "f"), InvalidInputError),
    "a bad partition": (lambda tx: tx.append_delta(["t"], ["f"], partition=[{}]), InvalidInputError),
    "deltas of a namespace": (lambda tx: tx.append_delta(["n"], ["f"]), TableNotFoundError),
    "an id that is a directory of the layout": (lambda tx: tx.create_table(["u"], version="rev"), InvalidInputError),
    "a format twice": (lambda tx: tx.create_table(["u"], formats=("delta", "delta")), InvalidInputError),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_refused_call_leaves_no_trace_in_its_transaction(store: Metastore, bad: str) -> None:
    store.run(lambda tx: (tx.create_table(["t"]), tx.create_namespace(["n"])))
    call, error = BAD[bad]
    with store.transaction() as tx:
        with pytest.raises(error):
            call(tx)
        assert tx.draft.empty
    assert store.slot == 1


def test_data_past_retention_goes_and_reachable_data_stays(tmp_path: Path) -> None:
    root = LocalStore(tmp_path / "root")
    store = Metastore(tmp_path / "root")
    victim = tmp_path / "outside.parquet"
    victim.write_bytes(b"not ours")
    with store.transaction() as tx:
        kept, gone = tx.create_table(["kept"]), tx.create_table(["gone"])
    files = {name: f"{table.home}/data/{name}" for name, table in (("k", kept), ("g", gone), ("shared", gone))}
    for key in (*files.values(), f"{kept.home}/data/orphan"):
        root.put(key, b"data")
    hostile = [str(victim), "../outside.parquet", ".headwater/metastore", f"file://{victim}"]
    with store.transaction() as tx:
        tx.append_delta(["kept"], [files["k"], files["shared"]])
        tx.append_delta(["gone"], [files["g"], files["shared"], *hostile])
    store.run(lambda tx: tx.drop(["gone"]))
    assert store.collect(keep=timedelta(days=1)).data == 0
    assert store.collect(keep=0).data == 1
    assert root.head(files["g"]) is None
    assert root.head(files["k"]) is not None
    assert root.head(files["shared"]) is not None
    assert root.head(f"{kept.home}/data/orphan") is not None, "too young to be called an orphan"
    assert victim.read_bytes() == b"not ours"
    assert store.verify() == Metastore(tmp_path / "root").verify() == []
    store.collect(keep=timedelta(0), grace=timedelta(0))
    assert root.head(f"{kept.home}/data/orphan") is None
    with pytest.raises(TableNotFoundError):
        store.run(lambda tx: tx.undrop(["gone"]))


def test_a_snapshot_that_was_collected_says_so(store: Metastore) -> None:
    store.run(lambda tx: tx.create_namespace(["a"]))
    store.run(lambda tx: tx.update(["a"], {"v": 2}))
    past, tx = store.at(1), store.transaction()
    tx.create_namespace(["late"])
    store.run(lambda other: other.update(["a"], {"v": 3}))
    assert store.collect(keep=0).boundary == 3
    with pytest.raises(TransactionNotFoundError):
        past.get(["a"])
    with pytest.raises(ConcurrentModificationError):
        tx.commit()
    assert [entry.revision for entry in store.now().revisions(["a"])] == [3]
