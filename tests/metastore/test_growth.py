"""What does not grow with history: the work of a commit, of opening, of looking back; memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.metastore import Metastore
from headwater.metastore.commit import group_commit as commit_module
from headwater.metastore.state import index as index_module
from headwater.store import CountingStore, LocalStore, memory_store


def test_checkpoints_come_by_themselves_and_only_the_last_two_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "CHECKPOINT_CHANGES", 20)
    monkeypatch.setattr(commit_module, "aside", lambda work: work())
    store = Metastore(tmp_path)
    store.run(lambda tx: tx.create_table(["t"]))
    for number in range(100):
        store.run(lambda tx, number=number: tx.append_delta(["t"], [f"{number}"]))  # type: ignore[misc]
    checkpoints = [int(path.name) for path in (tmp_path / ".headwater" / "checkpoints").iterdir()]
    assert len(checkpoints) == 2
    assert max(checkpoints) > 90
    assert len(list((tmp_path / ".headwater" / "segments").iterdir())) > 5
    assert len(Metastore(tmp_path).deltas(["t"])) == 100


def test_a_second_process_seals_the_same_segments_and_lets_go_of_those_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "CHECKPOINT_CHANGES", 20)
    monkeypatch.setattr(commit_module, "aside", lambda work: work())
    writer, watcher = Metastore(tmp_path), Metastore(tmp_path)
    writer.run(lambda tx: tx.create_table(["t"]))
    for number in range(200):
        writer.run(lambda tx, number=number: tx.append_delta(["t"], [f"{number}"]))  # type: ignore[misc]
        assert watcher.slot == number + 2
    assert len(watcher._log.segments.pending) <= 2
    assert [delta.files[0].path for delta in watcher.deltas(["t"])] == [f"{number}" for number in range(200)]
    streams = [next(store._log.index.streams())[1].runs for store in (writer, watcher, Metastore(tmp_path))]
    assert streams[0] == streams[1] == streams[2]


def test_a_missing_segment_of_a_dead_writer_is_written_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "CHECKPOINT_CHANGES", 20)
    monkeypatch.setattr(commit_module, "aside", lambda work: None)
    writer = Metastore(tmp_path)
    writer.run(lambda tx: tx.create_table(["t"]))
    for number in range(60):
        writer.run(lambda tx, number=number: tx.append_delta(["t"], [f"{number}"]))  # type: ignore[misc]
    assert not (tmp_path / ".headwater" / "segments").exists()
    Metastore(tmp_path).checkpoint()
    opened = Metastore(tmp_path)
    assert len(opened.deltas(["t"])) == 60
    assert opened.verify() == []


def test_a_commit_and_a_read_do_the_same_requests_in_an_old_catalog_as_in_a_young_one() -> None:
    counting = CountingStore(memory_store())
    store = Metastore(counting)
    store.run(lambda tx: tx.create_table(["t"]))
    seen = []
    for age in (10, 1500):
        for number in range(age):
            store.run(lambda tx, number=number: tx.append_delta(["t"], [f"{number}"]))  # type: ignore[misc]
        counting.reset()
        store.run(lambda tx: tx.append_delta(["t"], ["last"]))
        store.get(["t"])
        seen.append(dict(counting.counts))
    assert seen[0] == seen[1] == {"get": 1, "put": 1, "put_all": 1}


def test_deltas_behind_the_tail_are_not_held_in_memory(tmp_path: Path) -> None:
    store = Metastore(LocalStore(tmp_path))
    store.run(lambda tx: tx.create_table(["t"]))
    for first in range(0, 4000, 500):
        with store.transaction() as tx:
            for number in range(first, first + 500):
                tx.append_delta(["t"], [f"{number}"])
    ((_, log),) = store._log.index.streams()
    assert len(log.tail) < index_module.CHECKPOINT_CHANGES
    assert sum(run.last - run.first + 1 for run in log.runs) + len(log.tail) == 4000
    assert [delta.position for delta in store.deltas(["t"], after=3990)] == list(range(3991, 4001))
