"""Crashes at every step, lost answers, skewed clocks, a store that lies."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headwater.clock import SeededClock, SystemClock
from headwater.errors import (
    CommitStateUnknownError,
    LanceNamespaceError,
    ServiceUnavailableError,
    UnsupportedOperationError,
)
from headwater.metastore import Metastore, Transaction
from headwater.metastore.commit import group_commit as commit_module
from headwater.metastore.state import index as index_module
from headwater.store import (
    Crash,
    CrashesAtStore,
    LocalStore,
    LosesAnswerStore,
    LyingStore,
    PutMode,
    Store,
    WrappedStore,
    memory_store,
)
from tests.children import PROCESSES
from tests.metastore.model import tree_of
from tests.metastore.published_reader import read
from tests.metastore.writers import committing, count_until_killed, killed, prepare, work


def drop(tx: Transaction) -> None:
    tx.drop(["a"], cascade=True)


def steps_of(root: Path, action: Callable[[Store], None]) -> int:
    counting = CrashesAtStore(LocalStore(root), step=0)
    action(counting)
    return counting.writes


def collecting(store: Store) -> None:
    opened = Metastore(store)
    opened.run(drop)
    opened.collect(keep=0)


def checkpointing(store: Store) -> None:
    opened = Metastore(store)
    opened.run(work)
    opened.checkpoint()


@pytest.mark.parametrize("action", [committing, collecting, checkpointing])
@pytest.mark.parametrize("after", [False, True], ids=["before the write", "after the write"])
def test_a_crash_at_any_step_leaves_a_commit_done_or_not_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: Callable[[Store], None], after: bool
) -> None:
    monkeypatch.setattr(index_module, "CHECKPOINT_CHANGES", 6)
    monkeypatch.setattr(commit_module, "aside", lambda work: work())
    prepare(tmp_path / "count")
    before = tree_of(Metastore(tmp_path / "count"))
    steps = steps_of(tmp_path / "count", action)
    done = tree_of(Metastore(tmp_path / "count"))
    assert steps > 5
    for step in range(1, steps + 1):
        root = tmp_path / f"{step}"
        prepare(root)
        with pytest.raises(Crash):
            action(CrashesAtStore(LocalStore(root), step, after))
        survivor = Metastore(root)
        found = tree_of(survivor)
        assert found in (before, done)
        assert survivor.verify() == []
        assert read(str(root)) == found
        with survivor.transaction("nobody is blocked") as tx:
            tx.create_namespace(["free"])
        survivor.collect(keep=0)
        assert survivor.verify() == []
        assert read(str(root)) == tree_of(survivor)


def test_a_killed_process_leaves_a_commit_done_or_not_done(tmp_path: Path) -> None:
    prepare(tmp_path / "count")
    before = tree_of(Metastore(tmp_path / "count"))
    steps = steps_of(tmp_path / "count", committing)
    done = tree_of(Metastore(tmp_path / "count"))
    outcomes = []
    for step in range(1, steps + 1):
        root = tmp_path / f"{step}"
        prepare(root)
        process = PROCESSES.Process(target=killed, args=(str(root), step, bool(step % 2)))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        survivor = Metastore(root)
        outcomes.append(tree_of(survivor))
        assert outcomes[-1] in (before, done)
        assert survivor.verify() == []
        assert read(str(root)) == outcomes[-1]
    assert before in outcomes
    assert done in outcomes


def killing(root: Path, rounds: int) -> None:
    store = Metastore(root / "catalog")
    store.run(lambda tx: tx.create_namespace(["counter"], {"n": 0}))
    tallies = [root / f"tally-{number}" for number in range(3 * rounds)]
    for number in range(rounds):
        own = tallies[3 * number : 3 * number + 3]
        args = [(str(root / "catalog"), str(tally)) for tally in own]
        writers = [PROCESSES.Process(target=count_until_killed, args=pair) for pair in args]
        for writer in writers:
            writer.start()
        while not all(tally.exists() and tally.stat().st_size > 3 + number for tally in own):
            assert all(writer.is_alive() for writer in writers)
        for writer in writers:
            writer.kill()
            writer.join()
    acknowledged = sum(tally.stat().st_size for tally in tallies)
    counted = store.get(["counter"]).properties["n"]
    assert acknowledged <= counted <= acknowledged + len(tallies)
    assert len(list(store.log(after=1))) == counted
    survivor = Metastore(root / "catalog")
    assert survivor.verify() == []
    assert read(str(root / "catalog")) == tree_of(survivor)


def test_writers_killed_at_any_moment_lose_nothing_they_acknowledged_and_block_nobody(tmp_path: Path) -> None:
    killing(tmp_path, rounds=2)


@pytest.mark.long
def test_writers_killed_many_times_lose_nothing_they_acknowledged_and_block_nobody(tmp_path: Path) -> None:
    killing(tmp_path, rounds=30)


def test_a_lost_answer_is_not_a_second_commit(tmp_path: Path) -> None:
    lost: list[str] = []

    def loses(key: str) -> bool:
        lost.append(key)
        return "/slots/" in key

    store = Metastore(LosesAnswerStore(LocalStore(tmp_path), loses))
    for number in range(5):
        with store.transaction(f"commit {number}") as tx:
            tx.create_namespace([f"n{number}"])
    assert any("/slots/" in key for key in lost)
    assert [entry.message for entry in Metastore(tmp_path).log(after=0)] == [f"commit {number}" for number in range(5)]


class Mute(WrappedStore):
    """From some moment on, slots are written but neither answered nor readable."""

    mute = False

    def put(self, key: str, data: bytes, mode: Any = None, durable: bool = True) -> None:
        self.inner.put(key, data, mode, durable)
        if self.mute and "/slots/" in key:
            raise ServiceUnavailableError("no answer")

    def get(self, key: str) -> bytes:
        if self.mute and "/slots/" in key and self.inner.head(key):
            raise ServiceUnavailableError("no answer")
        return self.inner.get(key)


def test_a_commit_nobody_can_tell_of_is_reported_as_unknown_and_then_found(tmp_path: Path) -> None:
    mute = Mute(LocalStore(tmp_path))
    store = Metastore(mute, clock=SeededClock())
    store.run(lambda tx: tx.create_namespace(["a"]))
    tx = store.transaction("which end?")
    tx.create_namespace(["b"])
    mute.mute = True
    with pytest.raises(CommitStateUnknownError):
        tx.commit()
    mute.mute = False
    assert store.exists(["b"])
    assert [entry.txn for entry in store.log(after=1)] == [tx.id]
    assert Metastore(tmp_path).verify() == []


class CollectedMeanwhile(WrappedStore):
    """Loses the answer of one write of a slot; before anybody looks, the others collect that slot."""

    def __init__(self, inner: Store, meanwhile: Callable[[], object]) -> None:
        super().__init__(inner)
        self.meanwhile: Callable[[], object] | None = meanwhile

    def put(self, key: str, data: bytes, mode: PutMode = PutMode.OVERWRITE, durable: bool = True) -> None:
        self.inner.put(key, data, mode, durable)
        if "/slots/" in key and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
            raise ServiceUnavailableError("no answer")


def test_a_commit_that_was_collected_before_its_lost_answer_was_looked_into_is_unknown_and_not_repeated(
    tmp_path: Path,
) -> None:
    with Metastore(tmp_path).transaction() as tx:
        tx.create_table(["t"])
    stalled = Metastore(CollectedMeanwhile(LocalStore(tmp_path), lambda: Metastore(tmp_path).collect(keep=0)))
    with pytest.raises(CommitStateUnknownError, match="collected"):
        stalled.run(lambda tx: tx.append_delta(["t"], []))
    assert [delta.position for delta in Metastore(tmp_path).deltas(["t"])] == [1]


def test_a_writer_with_an_old_state_whose_next_slot_was_collected_is_refused_and_looks_again(tmp_path: Path) -> None:
    with Metastore(tmp_path).transaction() as tx:
        tx.create_table(["t"])
    old, others = Metastore(tmp_path), Metastore(tmp_path)
    for name in ("a", "b"):
        others.run(lambda tx, name=name: tx.create_namespace([name]))  # type: ignore[misc]
    others.collect(keep=0)
    old.run(lambda tx: tx.append_delta(["t"], []), refresh=False)
    assert [delta.position for delta in others.deltas(["t"])] == [1]


def test_what_a_power_cut_took_of_the_published_files_is_written_before_its_slot_is_collected(tmp_path: Path) -> None:
    """Log files are not synced. Once their slot has given up its body, nothing could bring them back."""
    store = Metastore(tmp_path)
    for name in ("a", "b", "c"):
        store.run(lambda tx, name=name: tx.create_namespace([name]))  # type: ignore[misc]
    min((tmp_path / "txn").iterdir()).unlink()  # the third slot says that the first is published
    survivor = Metastore(tmp_path)
    survivor.collect(keep=0)
    survivor.repair()
    assert survivor.verify() == []


class Fails(WrappedStore):
    """Answers every write of a slot with an error, without doing it."""

    def put(self, key: str, data: bytes, mode: Any = None, durable: bool = True) -> None:
        if "/slots/" in key:
            raise ServiceUnavailableError("not today")
        self.inner.put(key, data, mode, durable)


def test_a_store_that_never_takes_the_slot_commits_nothing(tmp_path: Path) -> None:
    store = Metastore(Fails(LocalStore(tmp_path)), clock=SeededClock())
    with pytest.raises(LanceNamespaceError):
        store.run(lambda tx: tx.create_namespace(["a"]))
    assert Metastore(tmp_path).list() == []


class Full(WrappedStore):
    """Takes no published file while it is full; slots it takes."""

    full = False

    def put(self, key: str, data: bytes, mode: Any = None, durable: bool = True) -> None:
        if self.full and not key.startswith(".headwater/slots/"):
            raise ServiceUnavailableError("no room")
        self.inner.put(key, data, mode, durable)


def test_a_commit_whose_files_cannot_be_published_is_still_a_commit_and_is_published_later(tmp_path: Path) -> None:
    full = Full(LocalStore(tmp_path))
    store = Metastore(full, clock=SeededClock())
    store.run(lambda tx: tx.create_namespace(["a"]))
    full.full = True
    assert store.run(lambda tx: tx.create_namespace(["b"])).name == "b"
    assert store.exists(["b"])
    assert read(str(tmp_path)).keys() == {("a",)}
    full.full = False
    assert Metastore(tmp_path).verify() == []
    assert read(str(tmp_path)).keys() == {("a",), ("b",)}


class Interrupted(WrappedStore):
    """Once two wait behind a commit, whoever publishes for both of them is interrupted, once."""

    waiting: Callable[[], int]
    interrupted = False

    def put(self, key: str, data: bytes, mode: Any = None, durable: bool = True) -> None:
        if key.endswith("/slots/00000000000000000/00000000000000000002"):
            while self.waiting() < 2:
                SystemClock().sleep(0.001)
        self.inner.put(key, data, mode, durable)

    def put_all(self, items: Any, durable: bool = True) -> None:
        if sum(key.startswith("txn/") for key, _ in items) == 2 and not self.interrupted:
            self.interrupted = True
            raise KeyboardInterrupt
        self.inner.put_all(items, durable)


def test_who_waited_for_a_leader_that_was_interrupted_publishes_by_itself(tmp_path: Path) -> None:
    raw = Interrupted(LocalStore(tmp_path))
    store = Metastore(raw)
    raw.waiting = lambda: store._committer._group.size
    store.run(lambda tx: tx.create_namespace(["first"]))
    ended: dict[str, BaseException | None] = {}

    def create(name: str) -> None:
        try:
            store.run(lambda tx: tx.create_namespace([name]))
            ended[name] = None
        except KeyboardInterrupt as error:
            ended[name] = error

    threads = [threading.Thread(target=create, args=(name,)) for name in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    broken = {name for name, error in ended.items() if error is not None}
    assert (len(ended), len(broken)) == (3, 1)
    assert read(str(tmp_path)).keys() == {("first",), *((name,) for name in ended.keys() - broken)}
    assert Metastore(tmp_path).verify() == []
    assert read(str(tmp_path)).keys() == {("first",), ("a",), ("b",), ("c",)}


def test_clocks_an_hour_apart_do_not_change_the_order(tmp_path: Path) -> None:
    hour = 3_600_000
    writers = [Metastore(tmp_path, clock=SeededClock(seed, skew_ms=skew)) for seed, skew in enumerate((0, hour, -hour))]
    for number in range(12):
        writer = writers[number % 3]
        writer.run(lambda tx, number=number: tx.create_namespace([f"n{number:02}"]), f"commit {number}")  # type: ignore[misc]
    log = list(Metastore(tmp_path).log(after=0))
    assert [entry.message for entry in log] == [f"commit {number}" for number in range(12)]
    assert [entry.time for entry in log] == sorted(entry.time for entry in log)
    store = writers[2]
    for entry in log:
        seen = {child.name for child in store.at(entry.time).list()}
        assert seen >= {f"n{number:02}" for number in range(entry.slot)}
    assert store.at(log[0].time - timedelta(days=1)).list() == []


def test_a_store_whose_conditional_put_lies_is_refused(tmp_path: Path) -> None:
    for inner in (LocalStore(tmp_path), memory_store()):
        store = Metastore(LyingStore(inner))
        with pytest.raises(UnsupportedOperationError, match="create-if-absent"):
            store.run(lambda tx: tx.create_namespace(["a"]))
        assert Metastore(inner, clock=SystemClock()).list() == []


def test_opening_writes_nothing(tmp_path: Path) -> None:
    store = Metastore(tmp_path / "never")
    assert store.list() == []
    assert store.verify() == []
    assert not (tmp_path / "never").exists()
