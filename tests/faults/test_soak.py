"""Many processes do everything to one catalog at once, and are killed: nothing acknowledged is lost, nothing twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.soak import KINDS, MINUTES, check_history, soak, storage
from tests.faults.soak_writers import LISTS


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


def test_the_checker_gets_the_history_of_the_processes() -> None:
    """A reader that lacks an acknowledged row, or half of a pair, is a violation; a row that nobody saw yet is none."""
    empty = {name: [-1] for name in LISTS}
    writer = [["tried", "a.t", 1, 10], ["done", "a.t", 1, 20], ["tried", "pair", 2, 30]]
    final = empty | {"a.t": [-1, 1]} | {name: [-1, 2] for name in ("pair.x", "pair.y", "pair.log")}

    def found(began_ns: int, seen: dict[str, list[int]]) -> list[str]:
        reader = [["read", 7, began_ns, began_ns + 5, empty | seen]]
        return [each.split(":")[0] for each in check_history({"w": writer, "r": reader}, final)]

    assert found(12, {}) == []
    assert found(40, {"a.t": [-1, 1]}) == []
    assert found(40, {}) == ["cycle"]
    assert found(40, {"a.t": [-1, 1], "pair.x": [-1, 2]}) == ["cycle"]
    assert next(check_history({"w": writer}, empty)).startswith("lost: ")
