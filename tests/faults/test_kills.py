"""Processes killed at any moment: the catalog opens, is sound, and the next writer is not held up."""

from __future__ import annotations

import random
import time
from pathlib import Path

import lance_namespace as api
import pytest

from headwater import DirectoryNamespace
from tests.children import PROCESSES
from tests.faults.processes import MODES, call, check_sound, churn, kill, perform

pytestmark = pytest.mark.xdist_group("kills")


def kill_writers(root: str, mode: str, kills: int, writers: int, seed: int) -> None:
    """So many times: let the writers work for a random while, and kill one; a new one takes its place."""
    moments = random.Random(seed)
    running = {
        f"w{number}": PROCESSES.Process(target=churn, args=(root, mode, f"w{number}")) for number in range(writers)
    }
    for process in running.values():
        process.start()
    wait_for_work(root)
    try:
        for _ in range(kills):
            time.sleep(moments.uniform(0.02, 0.25))
            name = moments.choice(sorted(running))
            kill(running[name])
            running[name] = PROCESSES.Process(target=churn, args=(root, mode, name))
            running[name].start()
    finally:
        for process in running.values():
            kill(process)


def wait_for_work(root: str) -> None:
    """Until the writers have begun: killing them while they start would prove nothing."""
    deadline = time.monotonic() + 60
    while not Path(root).is_dir() or not any(Path(root).iterdir()):
        assert time.monotonic() < deadline, "no writer ever began"
        time.sleep(0.05)


def check_usable(root: str, mode: str) -> None:
    """Sound, and everything that is left can be dropped and made again by the next writer."""
    check_sound(root, mode, rows=3, leaks=True)
    namespace = DirectoryNamespace(root=root, **MODES[mode])
    for id in namespace.list_all_tables(api.ListTablesRequest()).tables:
        assert perform(namespace, call("drop_table", *id.split("$"))) is None
        assert perform(namespace, call("create_table", *id.split("$"), rows=3)) is None
    assert perform(namespace, call("create_table", "next", rows=3)) is None
    check_sound(root, mode, rows=3, leaks=True)


@pytest.mark.parametrize("mode", MODES)
def test_writers_killed_at_random_leave_a_sound_catalog(tmp_path: Path, mode: str) -> None:
    root = str(tmp_path / "lake")
    kill_writers(root, mode, kills=8, writers=2, seed=len(mode))
    check_usable(root, mode)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mode", MODES)
def test_many_writers_killed_at_random_leave_a_sound_catalog(tmp_path: Path, mode: str, seed: int) -> None:
    root = str(tmp_path / "lake")
    kill_writers(root, mode, kills=40, writers=4, seed=seed)
    check_usable(root, mode)
