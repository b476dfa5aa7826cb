"""Storage round trips, counted and asserted. A round of many keys side by side (`put_all`, `get_all`) is one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import lance_namespace as api
import pyarrow as pa
import pytest

from headwater import names
from headwater.errors import LanceNamespaceError
from headwater.metastore import Metastore, Transaction
from headwater.metastore.commit import group_commit as commit_module
from headwater.metastore.commit.log import Claim, Log
from headwater.metastore.records.disk_records import Slot
from headwater.metastore.records.layout import SLOTS, slot_number
from headwater.metastore.state import index as index_module
from headwater.namespace import metastore as metastore_module
from headwater.namespace.metastore import MetastoreNamespace
from headwater.store import CountingStore, LocalStore, memory_store
from headwater.testing.namespace_suite import ipc


@pytest.fixture(params=["local", "memory"])
def counting(request: pytest.FixtureRequest, tmp_path: Path) -> CountingStore:
    return CountingStore(LocalStore(tmp_path) if request.param == "local" else memory_store())


@pytest.fixture
def store(counting: CountingStore) -> Metastore:
    made = Metastore(counting)
    made.run(lambda tx: (tx.create_namespace(["a"]), tx.create_table(["a", "t"]), tx.append_delta(["a", "t"], ["f"])))
    counting.reset()
    return made


def test_a_point_read_is_one_round_trip(store: Metastore, counting: CountingStore) -> None:
    for read in (
        lambda: store.get(["a", "t"]),
        lambda: store.list(["a"]),
        lambda: store.deltas(["a", "t"]),
        lambda: store.now().revisions(["a"]),
        lambda: store.exists(["nothing"]),
    ):
        counting.reset()
        read()
        assert counting.counts == {"get": 1}


def test_reading_a_known_slot_is_no_round_trip(store: Metastore, counting: CountingStore) -> None:
    store.at(1).get(["a", "t"])
    assert counting.counts == {}


@pytest.mark.parametrize("size", [1, 10, 1000])
def test_a_transaction_of_any_size_is_three_round_trips_from_its_beginning(
    store: Metastore, counting: CountingStore, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One to look for newer slots, one to take the slot, one to publish. Checkpoints are made beside."""
    monkeypatch.setattr(commit_module, "aside", lambda work: None)
    with store.transaction() as tx:
        for number in range(size):
            tx.create_table(["a", f"t{number}"])
            tx.append_delta(["a", f"t{number}"], ["f"])
    assert [verb for verb, _ in counting.requests] == ["get", "put", "put_all"]


def looks(counting: CountingStore) -> list[str]:
    """The request before a commit of a writer that has taken the last slot: none where it would go over a network."""
    return ["get"] if counting.abilities.path is not None else []


def test_moving_a_subtree_is_two_round_trips_and_a_look_on_a_disk(store: Metastore, counting: CountingStore) -> None:
    store.run(lambda tx: [tx.create_table(["a", f"t{number}"]) for number in range(300)])
    counting.reset()
    store.run(lambda tx: tx.rename(["a"], ["b"]))
    assert [verb for verb, _ in counting.requests] == [*looks(counting), "put", "put_all"]


def test_a_commit_of_a_catalog_is_two_round_trips_if_nobody_else_writes() -> None:
    namespace = MetastoreNamespace(root="memory://two-round-trips")
    namespace.create_namespace(api.CreateNamespaceRequest(id=["a"]))
    counting = CountingStore(namespace.metastore.store)
    namespace.metastore._log.store = counting
    namespace.create_namespace(api.CreateNamespaceRequest(id=["a", "b"]))
    assert [verb for verb, _ in counting.requests] == ["put", "put_all"]


def test_what_another_writer_did_is_seen_by_a_commit_that_did_not_look(counting: CountingStore) -> None:
    """An error, an answer without a change and a conflict on the known state are all decided again on the newest."""
    mine, other = Metastore(counting), Metastore(counting.inner)
    mine.run(lambda tx: tx.create_namespace(["a"]))
    other.run(lambda tx: tx.create_namespace(["b"]))
    assert mine.run(lambda tx: tx.create_table(["b", "t"])).path == ("b", "t")
    other.run(lambda tx: tx.drop(["b", "t"]))
    assert mine.run(lambda tx: tx.exists(["b", "t"])) is False
    mine.run(lambda tx: tx.create_namespace(["c"]))
    other.run(lambda tx: tx.create_namespace(["d"]))
    with pytest.raises(LanceNamespaceError, match="already"):
        mine.run(lambda tx: tx.create_namespace(["d"]))
    assert [each.name for each in other.list()] == ["a", "b", "c", "d"]
    assert other.verify() == []


def test_work_that_fails_or_changes_nothing_runs_once_if_nobody_else_wrote() -> None:
    store = Metastore(memory_store())
    store.run(lambda tx: tx.create_namespace(["a"]))
    calls = list[str]()

    def fail(tx: Transaction) -> None:
        calls.append("fail")
        raise ValueError("the caller's own")

    with pytest.raises(ValueError, match="the caller's own"):
        store.run(fail)
    store.run(lambda tx: calls.append("nothing"))
    assert calls == ["fail", "nothing"]


def test_a_writer_that_lost_a_slot_needs_two_more_round_trips(store: Metastore, counting: CountingStore) -> None:
    other = Metastore(counting.inner)
    tx = store.transaction()
    tx.append_delta(["a", "t"], ["mine"])
    other.run(lambda tx: tx.append_delta(["a", "t"], ["theirs"]))
    counting.reset()
    tx.commit()
    verbs = [verb for verb, _ in counting.requests]
    # The put that lost, a look whether it was our own, the slots that came between, and then the usual two.
    between = ["get", "get_all" if counting.abilities.path is None else "get"]
    assert verbs == ["put", "get", *between, "put", "put_all"]
    assert [delta.files[0].path for delta in store.deltas(["a", "t"])] == ["f", "theirs", "mine"]


def test_opening_reads_a_checkpoint_and_what_follows_in_a_few_round_trips(
    counting: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "CHECKPOINT_CHANGES", 50)
    monkeypatch.setattr(commit_module, "aside", lambda work: work())
    store = Metastore(counting)
    store.run(lambda tx: tx.create_table(["t"]))
    for number in range(300):
        store.run(lambda tx, number=number: tx.append_delta(["t"], [f"{number}"]))  # type: ignore[misc]
    counting.reset()
    opened = Metastore(counting)
    assert counting.counts.total() <= 12
    assert not set(counting.counts) & {"put", "put_all", "delete"}
    counting.reset()
    assert len(opened.deltas(["t"])) == 300
    assert counting.counts["get"] <= 15


def test_opening_asks_for_no_slot_that_is_not_there_but_the_next(tmp_path: Path) -> None:
    class Asked(LocalStore):
        def get(self, key: str) -> bytes:
            asked.append(key)
            return super().get(key)

        def get_all(self, keys: Sequence[str]) -> Sequence[bytes | None]:
            asked.extend(keys)
            return super().get_all(keys)

    asked: list[str] = []
    store = Metastore(LocalStore(tmp_path))
    for slots in (0, 1, 3):
        while store.now().slot < slots:
            store.run(lambda tx: tx.create_namespace([f"n{store.now().slot}"]))
        asked.clear()
        Metastore(Asked(tmp_path))
        assert {slot_number(key) for key in asked if key.startswith(SLOTS)} == set(range(1, slots + 2))


def test_create_table_checks_a_name_twice_and_looks_for_the_next_slot_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once where the request comes in, and once where the new name is committed; once to plan, once to commit."""
    catalog = MetastoreNamespace(root=str(tmp_path))
    catalog.create_namespace(api.CreateNamespaceRequest(id=["a"]))
    seen = {"names": 0, "looks": 0}
    check, look, claim = names.check_name, Log._read, Log.claim

    def counted_check(name: object, delimiter: str = names.DELIMITER) -> None:
        seen["names"] += name == "new"
        check(name, delimiter)

    def counted_look(self: Log, first: int, count: int) -> list[bytes]:
        seen["looks"] += 1
        return look(self, first, count)

    def last_claim(self: Log, number: int, slot: Slot, unsynced: Sequence[str] = ()) -> Claim:
        monkeypatch.setattr(Log, "_read", look)  # what is looked for after the commit is not part of the walk to it
        return claim(self, number, slot, unsynced)

    monkeypatch.setattr(names, "check_name", counted_check)
    monkeypatch.setattr(Log, "_read", counted_look)
    monkeypatch.setattr(Log, "claim", last_claim)
    catalog.create_table(api.CreateTableRequest(id=["a", "new"]), ipc(pa.table({"x": [1, 2]})))
    assert 0 < seen["names"] <= 2
    assert 0 < seen["looks"] <= 2


def test_describe_table_reads_a_manifest_once_for_its_schema_and_a_commit_spares_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = CountingStore(LocalStore(tmp_path))
    monkeypatch.setattr(metastore_module, "open_store", lambda *_: counting)
    made = MetastoreNamespace(root=str(tmp_path))
    asked = api.DescribeTableRequest(id=["t"])
    made.create_table(api.CreateTableRequest(id=["t"]), ipc(pa.table({"id": [1]})))
    again = MetastoreNamespace(root=str(tmp_path))
    bare = api.DescribeTableRequest(id=["t"], load_detailed_metadata=False)
    for catalog, request, reads in ((made, asked, 0), (again, bare, 0), (again, asked, 1), (again, asked, 0)):
        catalog.describe_table(bare)
        counting.reset()
        told = catalog.describe_table(request)
        assert counting.counts.get("get_all", 0) == reads
        assert (told.version, told.var_schema is None) == (1, request is bare)
