"""A process that commits for others dies or hangs at any step: what they asked for is applied exactly once."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from headwater import DirectoryNamespace
from headwater.clock import SystemClock
from headwater.registries.layout import SPOOL
from headwater.registries.manifest import queue
from headwater.registries.manifest import queue as spool
from headwater.registries.manifest.table import ManifestTable
from tests.children import PROCESSES
from tests.faults.processes import (
    MODES,
    PATIENCE_S,
    call,
    check_sound,
    kill,
    lead_until,
    perform,
    rows_of_manifest,
)

pytestmark = pytest.mark.xdist_group("spool")
STEPS = ("claim", "claimed", "commit", "committed", "answer", "answered")


class Leader:
    """Another process that has the turn, and gets a signal at a step of its work for us."""

    def __init__(self, root: str, how: int, step: str) -> None:
        self.answers, ready = PROCESSES.Queue(), PROCESSES.Event()
        self.process = PROCESSES.Process(target=lead_until, args=(how, step, root, ready, self.answers))
        self.process.start()
        assert ready.wait(PATIENCE_S)

    def resume(self) -> Any:
        """Let it go on; the outcome of its own call, once it is finished."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGCONT)
        outcome = self.answers.get(timeout=PATIENCE_S)
        self.process.join(PATIENCE_S)
        return outcome


def names(root: str) -> list[str]:
    return sorted(row["object_id"] for row in rows_of_manifest(root))


@pytest.fixture
def root(tmp_path: Path) -> str:
    root = str(tmp_path / "lake")
    assert perform(DirectoryNamespace(root=root, **MODES["V2"]), call("create_namespace", "first")) is None
    return root


@pytest.mark.parametrize("step", STEPS)
def test_a_leader_killed_at_a_step_loses_nobody_elses_change(root: str, step: str) -> None:
    leader = Leader(root, signal.SIGKILL, step)
    try:
        namespace = DirectoryNamespace(root=root, **MODES["V2"])
        assert perform(namespace, call("create_namespace", "waiter")) is None
    finally:
        kill(leader.process)
    committed = step in ("committed", "answer", "answered")
    assert names(root) == ["first", *(["leader"] if committed else []), "waiter"]
    assert perform(namespace, call("create_namespace", "next")) is None
    check_sound(root, "V2")


@pytest.mark.parametrize("step", ["claimed", "commit", "committed"])
def test_a_leader_that_hangs_holds_up_nobody_for_good_and_applies_nothing_twice(
    root: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "LONGEST_WAIT_S", 0.5)
    leader = Leader(root, signal.SIGSTOP, step)
    try:
        namespace = DirectoryNamespace(root=root, **MODES["V2"])
        assert perform(namespace, call("create_namespace", "waiter")) is None
        assert perform(namespace, call("drop_namespace", "waiter")) is None
        assert leader.resume() is None
    finally:
        kill(leader.process)
    assert names(root) == ["first", "leader"]
    assert perform(namespace, call("create_namespace", "waiter")) is None
    check_sound(root, "V2")


def test_a_change_that_lands_late_for_its_owner_is_still_reported_as_done(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sleeper wakes up right after the owner has looked for its change, and before the owner commits it."""
    monkeypatch.setattr(queue, "LONGEST_WAIT_S", 0.5)
    leader = Leader(root, signal.SIGSTOP, "commit")
    commit, woken = ManifestTable.commit, threading.Event()

    def wake_and_commit(table: ManifestTable, *args: Any) -> Any:
        if not woken.is_set():
            woken.set()
            assert leader.resume() is None
        return commit(table, *args)

    monkeypatch.setattr(ManifestTable, "commit", wake_and_commit)
    try:
        namespace = DirectoryNamespace(root=root, **MODES["V2"])
        assert perform(namespace, call("create_namespace", "waiter")) is None
    finally:
        kill(leader.process)
    assert woken.is_set()
    assert names(root) == ["first", "leader", "waiter"]
    check_sound(root, "V2")


def test_what_dead_processes_left_in_the_spool_is_cleared_away(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(root) / SPOOL
    folder.mkdir(parents=True, exist_ok=True)
    for state in ("ask", "taken", "answer", "ask-writing"):
        (folder / f"dead.{state}").write_bytes(b"[]")
        os.utime(folder / f"dead.{state}", (0, 0))
    assert perform(DirectoryNamespace(root=root, **MODES["V2"]), call("create_namespace", "next")) is None
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("body", [b"", b"{", b"[[{}]]", b'[[{"kind": "Path"}]]', b"\xff" * 100, b"[1]", b"null"])
def test_a_request_that_makes_no_sense_harms_nobody(root: str, body: bytes) -> None:
    folder = Path(root) / SPOOL
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "0000.ask").write_bytes(body)
    assert perform(DirectoryNamespace(root=root, **MODES["V2"]), call("create_namespace", "next")) is None
    assert names(root) == ["first", "next"]
    assert spool.STALE_S > queue.LONGEST_WAIT_S


def test_a_request_whose_owner_is_gone_is_never_taken(tmp_path: Path) -> None:
    requests = spool.Spool(str(tmp_path), SystemClock())
    waiting = requests.ask("alive", [[]])
    requests.ask("dead", [[]]).close()  # as the death of a process closes its files
    assert [id for id, _ in requests.claim()] == ["alive"]
    assert sorted(os.listdir(tmp_path / SPOOL)) == ["alive.taken"]
    waiting.close()
