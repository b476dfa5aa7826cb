"""Transactions through servers: the same as near the catalog, whichever server or worker gets the next operation."""

from __future__ import annotations

import getpass
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pyarrow as pa
import pytest

from headwater import Catalog, MetastoreNamespace
from headwater.errors import (
    CommitStateUnknownError,
    ConcurrentModificationError,
    InvalidInputError,
    LanceNamespaceError,
    PermissionDeniedError,
    ThrottlingError,
    TransactionNotFoundError,
    UnsupportedOperationError,
)
from headwater.namespace.transactions import open_transactions
from headwater.namespace.transactions.open_transactions import IDLE_SECONDS, MAX_OPEN, OpenTransactions
from headwater.rest.auth.keys import create_key
from headwater.rest.server import RunningServer, start_in_thread
from headwater.store import create
from headwater.verbs.catalog import AbortTransaction, CommitTransaction

ROWS = pa.table({"id": [1, 2, 3]})


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("remote") / "lake"


@pytest.fixture(scope="module")
def servers(lake: Path) -> Iterator[list[RunningServer]]:
    """Two servers on one root, as two workers of one would be."""
    made = [start_in_thread(MetastoreNamespace(root=str(lake))) for _ in range(2)]
    yield made
    for server in made:
        server.stop()


@pytest.fixture
def near(lake: Path, servers: list[RunningServer]) -> Catalog:
    catalog = Catalog(MetastoreNamespace(root=str(lake)))
    for name in list(catalog):
        catalog.drop_table(name)
    catalog.create_table("a.t", ROWS)
    catalog.create_table("a.u", ROWS)
    return catalog


@pytest.fixture
def far(near: Catalog, servers: list[RunningServer]) -> Catalog:
    return Catalog(servers[0].url)


def ids(catalog: Catalog, name: str) -> set[int]:
    return {row["id"] for row in catalog[name]}


def test_it_reads_its_own_writes_and_nobody_else_does_before_it_commits(
    near: Catalog, far: Catalog, servers: list[RunningServer]
) -> None:
    begun = far.transaction("a day's work")
    with begun as tx:
        tx["a.t"].append([{"id": 4}])
        tx["a.t"].delete("id = 1")
        tx.create_table("b.new", ROWS)
        tx["b.new"].append([{"id": 9}])
        tx.rename_table("a.u", "b.moved")
        tx["b.moved"].add_columns({"twice": "id * 2"})
        columns = pa.table({"k": [0], "v": [""]}).schema
        stream = tx.create_stream_table("b.log", columns, keys=["k"])
        stream.upsert([{"k": 1, "v": "x"}])
        assert ids(tx, "a.t") == {2, 3, 4}
        assert list(tx) == ["a.t", "b.log", "b.moved", "b.new"]
        assert len(tx["b.new"]) == 4
        assert tx["b.log"].count() == 1
        assert tx["b.moved"].schema.names == ["id", "twice"]
        assert list(near) == list(Catalog(servers[1].url)) == ["a.t", "a.u"]
        other = Catalog(servers[1].url)
        other["a.u"].describe()
    assert begun.slot == near.slot
    for found in (near, far, Catalog(servers[1].url)):
        assert ids(found, "a.t") == {2, 3, 4}
        assert found["b.log"].to_arrow().to_pydict() == {"k": [1], "v": ["x"]}
    assert near.namespace.verify() == []  # type: ignore[attr-defined]


def test_a_transaction_goes_on_at_another_server(near: Catalog, servers: list[RunningServer]) -> None:
    begun = Catalog(servers[0].url).transaction()
    tx = begun.__enter__()
    tx["a.t"].append([{"id": 4}])
    elsewhere = {**tx.namespace._properties, "uri": servers[1].url}
    there = Catalog(type(tx.namespace)(**elsewhere))
    assert ids(there, "a.t") == {1, 2, 3, 4}
    there["a.u"].append([{"id": 5}])
    begun.__exit__(None, None, None)
    assert ids(near, "a.t") == {1, 2, 3, 4}
    assert ids(near, "a.u") == {1, 2, 3, 5}


def test_the_past_tells_its_own_slot_log_and_histories_near_and_behind_a_server(near: Catalog, far: Catalog) -> None:
    slot, told = near.slot, len(near.history("a.t"))
    near["a.t"].append(ROWS)
    near.rename_table("a.t", "a.later")
    for catalog in (near, far):
        past = catalog.at(slot)
        assert past.slot == slot < catalog.slot
        assert [entry.slot for entry in past.log(after=slot - 2)] == [slot - 1, slot]
        assert list(past.log(after=slot, wait=30)) == []
        assert len(past.history("a.t")) == told
        assert [each.path for each in past.diff(slot, near.slot).moved] == [("a", "later")]
        assert past.snapshots() == catalog.snapshots()


def test_two_clients_that_read_what_the_other_writes_conflict_and_appends_never_do(
    near: Catalog, far: Catalog, servers: list[RunningServer]
) -> None:
    other = Catalog(servers[1].url)
    first, second = far.transaction(), other.transaction()
    one, two = first.__enter__(), second.__enter__()
    assert len(one["a.t"]) == len(two["a.u"]) == 3
    one["a.u"].append([{"id": 4}])
    two["a.t"].append([{"id": 4}])
    first.__exit__(None, None, None)
    with pytest.raises(ConcurrentModificationError, match=r"a\.u"):
        second.__exit__(None, None, None)
    assert ids(near, "a.t") == {1, 2, 3}
    third, fourth = far.transaction(), other.transaction()
    for tx, number in ((third.__enter__(), 5), (fourth.__enter__(), 6)):
        tx["a.t"].append([{"id": number}])
    for each in (third, fourth):
        each.__exit__(None, None, None)
    assert sorted(row["id"] for row in near["a.t"]) == [1, 2, 3, 5, 6]

    def count(tx: Catalog) -> int:
        if len(near["a.u"]) == 4:
            near["a.u"].append([{"id": 100}])
        return len(tx["a.u"])

    assert far.run(count) in (4, 5)


def test_a_missing_name_counts_as_read_and_a_block_that_raises_changes_nothing(near: Catalog, far: Catalog) -> None:
    begun = far.transaction()
    tx = begun.__enter__()
    assert "a.v" not in tx
    tx["a.t"].append([{"id": 4}])
    near.create_table("a.v", ROWS)
    with pytest.raises(ConcurrentModificationError, match=r"a\.v"):
        begun.__exit__(None, None, None)
    with suppress(ZeroDivisionError), far.transaction() as tx:
        tx["a.t"].append([{"id": 4}])
        raise ZeroDivisionError
    with pytest.raises(TransactionNotFoundError):
        len(tx["a.t"])
    assert ids(near, "a.t") == {1, 2, 3}


def test_what_a_transaction_cannot_hold_is_refused_in_it_and_changes_nothing(near: Catalog, far: Catalog) -> None:
    slot = near.slot
    with far.transaction() as tx:
        attempts: list[Callable[[], object]] = [
            lambda: tx.collect(),
            lambda: tx.transaction().__enter__(),
            lambda: list(tx.log()),
        ]
        for refused in attempts:
            with pytest.raises(InvalidInputError, match="cannot be part of a transaction"):
                refused()
    assert near.slot == slot
    with pytest.raises(InvalidInputError, match="author"):
        far.transaction(author="somebody")


@pytest.mark.parametrize("is_near", [True, False])
def test_rows_of_a_branch_whose_versions_the_storage_keeps_are_refused_in_a_transaction_and_read_there(
    near: Catalog, far: Catalog, is_near: bool
) -> None:
    near["a.t"].branches.create("trial", 1)
    slot = near.slot
    with (near if is_near else far).transaction() as tx:
        table = tx["a.t"]
        attempts: list[Callable[[], object]] = [
            lambda: table.at(branch="trial").append(ROWS),
            lambda: table.at(branch="trial").delete("true"),
            lambda: table.at(branch="trial").update({"id": 7}),
            lambda: table.at(branch="trial").add_columns({"twice": "id * 2"}),
        ]
        for refused in attempts:
            with pytest.raises(InvalidInputError, match=r"A transaction cannot change .* Do it before or afterwards"):
                refused()
        assert len(table.at(branch="trial")) == 3
    assert near.slot == slot
    assert len(near["a.t"].at(branch="trial")) == 3


@pytest.mark.parametrize("id", ["", "x", "../../../etc", "%2e%2e", "0" * 36, "a" * 5000, "٣", "x\ty"])
def test_hostile_ids_find_nothing(far: Catalog, lake: Path, id: str) -> None:
    before = sorted(str(path) for path in lake.rglob("*"))
    inside: Any = far.namespace
    for end in (CommitTransaction, AbortTransaction):
        with pytest.raises((InvalidInputError, TransactionNotFoundError)):
            inside.call(end(transaction=id))
    if id.isascii() and id.isprintable():
        there = Catalog(type(inside)(**{**inside._properties, "headers.x-headwater-transaction": id or "-"}))
        with pytest.raises(LanceNamespaceError):
            len(there["a.t"])
    assert sorted(str(path) for path in lake.rglob("*")) == before


def test_a_transaction_that_is_not_heard_of_is_forgotten(
    near: Catalog, far: Catalog, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = far.transaction()
    tx = begun.__enter__()
    tx["a.t"].append([{"id": 4}])
    (state,) = [path for path in (lake / ".headwater" / "open").rglob("*") if path.is_file()]
    long_ago = state.stat().st_mtime - IDLE_SECONDS - 1
    os.utime(state, (long_ago, long_ago))
    with pytest.raises(TransactionNotFoundError, match="not heard of"):
        begun.__exit__(None, None, None)
    assert not state.exists()
    assert ids(near, "a.t") == {1, 2, 3}
    monkeypatch.setattr(open_transactions, "MAX_STAGED", 10)
    with pytest.raises(InvalidInputError, match="takes no more"), far.transaction() as tx:
        tx["a.t"].append([{"id": 4}])


def test_a_caller_has_so_many_at_most(far: Catalog) -> None:
    opened = [far.transaction() for _ in range(MAX_OPEN)]
    with pytest.raises(ThrottlingError):
        far.transaction()
    for each in opened:
        each.__exit__(ValueError, None, None)
    far.transaction().__exit__(ValueError, None, None)


def test_two_operations_at_once_are_a_conflict_of_one(near: Catalog) -> None:
    near_namespace: Any = near.namespace
    open_ones = near_namespace.transactions
    id = open_ones.begin("ann", "")

    def both() -> None:
        with open_ones.using("ann", id) as first:
            with open_ones.using("ann", id) as second:
                Catalog(second)["a.t"].append([{"id": 4}])
            Catalog(first)["a.t"].append([{"id": 5}])

    with pytest.raises(ConcurrentModificationError, match="at once"):
        both()
    open_ones.commit("ann", id)
    assert ids(near, "a.t") == {1, 2, 3, 4}
    assert open_ones.commit("ann", id) == near.slot, "a repeat after a lost answer"
    with pytest.raises(TransactionNotFoundError):
        open_ones.commit("ann", open_ones.begin("bob", ""))


def test_an_operation_that_was_overtaken_is_refused_and_never_lost(near: Catalog) -> None:
    near_namespace: Any = near.namespace
    open_ones = near_namespace.transactions
    id = open_ones.begin("ann", "")

    def append(number: int) -> None:
        with open_ones.using("ann", id) as inside:
            Catalog(inside)["a.t"].append([{"id": number}])

    def overtaken(*meanwhile: Callable[[], object]) -> None:
        with open_ones.using("ann", id) as inside:
            for each in meanwhile:
                each()
            Catalog(inside)["a.t"].append([{"id": 9}])

    with pytest.raises(ConcurrentModificationError, match="at once"):
        overtaken(lambda: append(4), lambda: append(5))  # its next step was made by another, and deleted by a third
    append(6)
    with pytest.raises(ConcurrentModificationError, match="at once"):
        overtaken(lambda: open_ones.commit("ann", id))
    assert ids(near, "a.t") == {1, 2, 3, 4, 5, 6}
    assert open_ones.commit("ann", id) == near.slot, "what came too late has not opened it again"
    id = open_ones.begin("ann", "")
    with pytest.raises(ConcurrentModificationError, match="at once"):
        overtaken(lambda: open_ones.abort("ann", id))
    with pytest.raises(TransactionNotFoundError):
        open_ones.commit("ann", id)


def test_an_operation_that_ends_while_its_transaction_does_is_in_it_or_told(
    near: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    near_namespace: Any = near.namespace
    open_ones, made = near_namespace.transactions, create
    id, running = open_ones.begin("ann", ""), list[Any]()

    def started() -> None:
        running.append(open_ones.using("ann", id))
        Catalog(running[-1].__enter__())["a.t"].append([{"id": 4}])

    def ended() -> None:
        running.pop().__exit__(None, None, None)

    def before(store: Any, key: str, data: bytes) -> bool:
        if key.endswith(open_transactions.END) and running:
            ended()
        return made(store, key, data)

    def after(store: Any, key: str, data: bytes) -> bool:
        done = made(store, key, data)
        if key.endswith(open_transactions.END) and running:
            with pytest.raises(CommitStateUnknownError, match="may be part of it"):
                ended()
        return done

    started()
    monkeypatch.setattr(open_transactions, "create", before)
    open_ones.commit("ann", id)
    assert ids(near, "a.t") == {1, 2, 3, 4}
    id = open_ones.begin("ann", "")
    with open_ones.using("ann", id) as inside:
        Catalog(inside)["a.u"].append([{"id": 5}])
    started()
    monkeypatch.setattr(open_transactions, "create", after)
    slot = open_ones.commit("ann", id)
    assert (ids(near, "a.t"), ids(near, "a.u")) == ({1, 2, 3, 4}, {1, 2, 3, 5})
    assert open_ones.commit("ann", id) == slot


def test_a_commit_that_was_sent_twice_is_made_once(near: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second request has found the transaction open, and creates its end when the first has forgotten it."""
    near_namespace: Any = near.namespace
    open_ones, made = near_namespace.transactions, create
    near.create_stream_table("a.log", {"id": "bigint"})
    id, slots = open_ones.begin("ann", ""), list[int]()
    with open_ones.using("ann", id) as inside:
        Catalog(inside)["a.log"].append([{"id": 1}])

    def late(store: Any, key: str, data: bytes) -> bool:
        if key.endswith(open_transactions.END) and not slots:
            slots.append(0)
            slots[0] = open_ones.commit("ann", id)
        return made(store, key, data)

    monkeypatch.setattr(open_transactions, "create", late)
    assert open_ones.commit("ann", id) == slots[0]
    assert near["a.log"].to_arrow().to_pydict() == {"id": [1]}
    assert near.verify() == []


def test_a_repeated_commit_reads_no_more_of_the_log_than_of_the_last_hour(
    near: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any caller may ask for any id: a look through years of commits is not to be had for the asking."""
    near_namespace: Any = near.namespace
    open_ones = near_namespace.transactions
    id = open_ones.begin("ann", "")
    with open_ones.using("ann", id) as inside:
        Catalog(inside)["a.t"].append([{"id": 4}])
    slot = open_ones.commit("ann", id)
    assert open_ones.commit("ann", id) == slot
    monkeypatch.setattr(open_transactions, "REPEATED_SECONDS", -1.0)
    with pytest.raises(TransactionNotFoundError, match="has ended"):
        open_ones.commit("ann", id)


def test_a_server_that_dies_while_it_commits_leaves_an_answer_for_the_next(
    near: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    near_namespace: Any = near.namespace
    open_ones = near_namespace.transactions

    def begun() -> str:
        id = str(open_ones.begin("ann", ""))
        with open_ones.using("ann", id) as inside:
            Catalog(inside)["a.t"].append([{"id": 4}])
        return id

    with monkeypatch.context() as patched:
        patched.setattr(open_ones, "_forget", lambda folder: None)  # it dies right after the commit
        landed = begun()
        slot = open_ones.commit("ann", landed)
    assert open_ones.commit("ann", landed) == slot
    assert len(near["a.t"]) == 4
    lost = begun()
    with monkeypatch.context() as patched:
        patched.setattr(open_ones, "_inside", Mock(side_effect=KeyboardInterrupt))  # and right before it
        with pytest.raises(KeyboardInterrupt):
            open_ones.commit("ann", lost)
    with pytest.raises(CommitStateUnknownError, match="may have landed"):
        open_ones.commit("ann", lost)
    assert len(near["a.t"]) == 4


def test_a_key_of_an_operation_is_used_when_its_transaction_has_it(
    near: Catalog, servers: list[RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    with httpx.Client(base_url=servers[0].url) as http:

        def begun() -> str:
            return str(http.post("/headwater/v1/transaction/begin", json={}).json()["transaction"])

        def make(transaction: str) -> httpx.Response:
            headers = {"x-headwater-transaction": transaction, "idempotency-key": "one"}
            return http.post("/v1/namespace/fresh/create", json={}, headers=headers)

        first = begun()
        with monkeypatch.context() as patched:
            patched.setattr(OpenTransactions, "_write", lambda *asked: False)  # another operation was made at once
            assert make(first).json()["code"] == 14
        made, again = make(first), make(first)
        assert (made.status_code, "idempotency-replayed" in made.headers) == (200, False)
        assert (again.status_code, "idempotency-replayed" in again.headers) == (200, True)
        assert make(begun()).json()["code"] == 13
        assert http.post("/headwater/v1/transaction/commit", json={"transaction": first}).status_code == 200
    assert near.namespace_properties("fresh") == {}
    near.drop_namespace("fresh")


def test_a_client_that_is_killed_leaves_nothing(near: Catalog, servers: list[RunningServer]) -> None:
    program = """
        import sys, time
        from headwater import Catalog
        tx = Catalog(sys.argv[1]).transaction().__enter__()
        tx["a.t"].append([{"id": 4}])
        tx.create_table("a.new", [{"id": 1}])
        print("ready", flush=True)
        time.sleep(60)
    """
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program), servers[0].url], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert list(near) == ["a.t", "a.u"]
    near["a.t"].append([{"id": 5}])
    assert ids(near, "a.t") == {1, 2, 3, 5}


def test_every_operation_is_authorized_and_the_log_names_the_caller(tmp_path: Path) -> None:
    namespace = MetastoreNamespace(root=str(tmp_path))
    near = Catalog(namespace)
    near.create_table("a.t", ROWS)
    near.create_table("b.t", ROWS)
    record, ann = create_key(namespace.store, namespace.clock, "writer", ["a"], "ann")
    _, bob = create_key(namespace.store, namespace.clock, "reader", [], "bob")
    server = start_in_thread(namespace)
    try:
        anns = Catalog(server.url, **{"headers.x-api-key": ann})
        bobs = Catalog(server.url, **{"headers.x-api-key": bob})
        begun = anns.transaction("by ann")
        tx = begun.__enter__()
        tx["a.t"].append([{"id": 4}])
        for refused in (lambda: tx["b.t"].append([{"id": 4}]), lambda: len(tx["b.t"])):
            with pytest.raises(PermissionDeniedError):
                refused()
        stolen: Any = Catalog(
            type(tx.namespace)(**{**tx.namespace._properties, "headers.x-api-key": bob})  # bob knows ann's id
        )
        with pytest.raises(TransactionNotFoundError):
            len(stolen["a.t"])
        with pytest.raises(TransactionNotFoundError):
            stolen.namespace.commit()
        begun.__exit__(None, None, None)
        with bobs.transaction() as reading:
            assert len(reading["a.t"]) == 4
            with pytest.raises(PermissionDeniedError):
                reading["a.t"].append([{"id": 5}])
        anns["a.t"].append([{"id": 6}])
        anns.rename_table("a.t", "a.moved")
        anns.create_stream_table("a.log", pa.schema([("k", pa.int64())])).append([{"k": 1}])
        anns.drop_table("a.moved")
        anns.undrop("a.moved")
    finally:
        server.stop()
    (author,) = {entry.author for entry in near.history("a.moved")[1:]} | {e.author for e in near.history("a.log")}
    assert author == f"ann (key:{record.id})"
    assert near.history("a.moved")[0].author == getpass.getuser()
    told = Catalog(MetastoreNamespace(root=str(tmp_path), author="night job"))
    told.create_namespace("c")
    assert told.history("c")[0].author == "night job"
    assert "by ann" in [entry.message for entry in near.history("a.moved")]


def test_servers_without_transactions_say_so(tmp_path: Path) -> None:
    server = start_in_thread(Catalog(str(tmp_path / "dir"), impl="dir")._made)
    try:
        with pytest.raises(UnsupportedOperationError):
            Catalog(server.url).transaction()
    finally:
        server.stop()
