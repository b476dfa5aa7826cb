"""Many processes do everything to one catalog at once, and are killed: nothing acknowledged is lost, nothing twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.soak import KINDS, MINUTES, soak, storage


def test_processes_that_do_everything_at_once_lose_nothing(tmp_path: Path) -> None:
    with storage("local", tmp_path) as properties:
        assert soak(tmp_path, properties, seconds=1.0, writers=2, servers=1, kill_every=None)


@pytest.mark.long
@pytest.mark.parametrize("store", ["local", "s3"])
def test_processes_that_do_everything_at_once_and_are_killed_lose_nothing(tmp_path: Path, store: str) -> None:
    """A machine that has other things to do gets through less: all kinds of work need not have been done."""
    with storage(store, tmp_path) as properties:
        done = soak(tmp_path, properties, MINUTES * 60, writers=6, servers=2, kill_every=(0.5, 3.0))
    assert done["killed"] > 0
    assert set(done) & KINDS
