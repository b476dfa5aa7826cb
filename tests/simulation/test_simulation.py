"""The simulator: a seed replays, promises hold on some seeds, planted faults are found, and the checker sees cycles."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from headwater.testing.simulation import RunSettings, readable, shrink, simulate
from headwater.testing.simulation.commits import (
    FAILED,
    OK,
    Operation,
    check_feed,
    check_lists,
    check_positions,
    check_snapshots,
)
from headwater.testing.simulation.scheduler import Process, Scheduler
from headwater.testing.simulation.storage import Disk, Faults, SimulatedStore
from headwater.testing.store_suite import StoreSuite
from tests.simulation.mutations import MUTATIONS, search

FOUND = {
    "commits": (5, 9, 36, 255, 21131, 22192, 49871),
    "segments": (1, 62, 134, 160),
    "streams": (89,),
    "versions": (0, 13, 25, 32, 53, 59, 81, 169, 219, 444),
    "mixed": (2001, 22392, 24093),
}
"""Seeds that have found something, which was mended then."""
REPLAY = """
from headwater.testing.simulation import RunSettings, simulate, simulated_run
simulated_run.HAS_GREENLETS = False
print(*simulate(RunSettings({}, profile={!r})).lines, sep="\\n")
"""


@pytest.mark.parametrize("profile", FOUND)
def test_seeds_that_have_found_a_violation_find_none(profile: str) -> None:
    for seed in FOUND[profile]:
        assert simulate(RunSettings(seed, profile=profile)).violations == []


@pytest.mark.parametrize(
    ("profile", "seeds"),
    [
        ("commits", range(1000, 1030)),
        ("segments", range(1000, 1010)),
        ("streams", range(1000, 1006)),
        ("versions", range(1000, 1012)),
        ("mixed", range(1000, 1008)),
    ],
)
def test_promises_hold_with_faults(profile: str, seeds: range) -> None:
    for seed in seeds:
        found = simulate(RunSettings(seed, profile=profile))
        assert not found.violations, f"headwater simulate --profile {profile} --seed {seed}: {found.violations}"


@pytest.mark.long
@pytest.mark.parametrize("profile", ["commits", "segments", "streams", "versions", "mixed"])
def test_promises_hold_with_faults_on_many_seeds(profile: str) -> None:
    for seed in range(100_000, 100_500 if profile in ("streams", "mixed") else 103_000):
        found = simulate(RunSettings(seed, profile=profile))
        assert not found.violations, f"headwater simulate --profile {profile} --seed {seed}: {found.violations}"


@pytest.mark.parametrize("profile", ["commits", "versions"])
def test_a_seed_replays_to_the_same_history_in_another_process_and_by_threads(profile: str) -> None:
    told = [
        subprocess.run(
            [sys.executable, "-c", REPLAY.format(9, profile)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1",)
    ]
    assert told == ["\n".join(simulate(RunSettings(9, profile=profile)).lines) + "\n"]


def test_the_lost_append_is_found_when_its_fix_is_taken_out_and_is_shrunk() -> None:
    name = "an absent e_tag taken as equal"
    found = search(name, 100)
    assert found is not None
    assert found[1].startswith("lost: ")
    profile, plant = MUTATIONS[name]
    with plant():
        whole = simulate(RunSettings(found[0], profile=profile))
        small = shrink(whole, 30)
    assert small.violations
    assert len(small.operations) < len(whole.operations)
    assert len(readable(small.lines)) == len(small.lines)


@pytest.mark.parametrize("name", ["a slot by a plain put", "every conflict ignored", "a slot without a sync"])
def test_a_planted_fault_is_found(name: str) -> None:
    assert search(name, 30) is not None


class TestSimulatedStore(StoreSuite):
    """The simulated store is a store, on a disk and as an object store."""

    @pytest.fixture(params=[False, True])
    def store(self, request: pytest.FixtureRequest) -> SimulatedStore:
        scheduler = Scheduler(0)
        disk = Disk(scheduler, bool(request.param), Faults(), scheduler.random)
        disk.path = None
        return SimulatedStore(disk, Process("suite", 0))


def operation(id: int, called: int, answered: int, reads: dict[str, list[int]], **appended: int) -> Operation:
    lists = [(key, list(values)) for key, values in reads.items()]
    return Operation(id, "c", called, list(appended.items()), lists, answered, OK)  # type: ignore[arg-type]


def test_the_checker_sees_two_transactions_that_did_not_see_each_other() -> None:
    history = [operation(1, 0, 9, {"x": []}, y=1), operation(2, 0, 9, {"y": []}, x=2)]
    (cycle,) = check_lists(history, {"x": [2], "y": [1]})
    assert cycle.startswith("cycle: ")


def test_the_checker_sees_a_read_of_an_old_state() -> None:
    history = [operation(1, 0, 1, {}, x=1), operation(2, 2, 3, {"x": []})]
    (cycle,) = check_lists(history, {"x": [1]})
    assert "was answered before" in cycle
    assert list(check_lists([history[0], operation(2, 0, 3, {"x": []})], {"x": [1]})) == []


def test_the_checker_sees_what_is_lost_torn_twice_refused_or_out_of_order() -> None:
    one = operation(1, 0, 1, {}, x=1)
    assert [each.split(":")[0] for each in check_lists([one], {"x": []})] == ["lost"]
    assert [each.split(":")[0] for each in check_lists([one], {"x": [1, 1]})] == ["twice"]
    refused = Operation(1, "c", 0, [("x", 1)], [], 1, FAILED)
    assert [each.split(":")[0] for each in check_lists([refused], {"x": [1]})] == ["refused, but there"]
    torn = Operation(1, "c", 0, [("x", 1), ("y", 2)])
    assert [each.split(":")[0] for each in check_lists([torn], {"x": [1], "y": []})] == ["torn"]
    other = [one, operation(2, 0, 9, {}, x=2), operation(3, 0, 9, {"x": [2]})]
    assert any(each.startswith("order: ") for each in check_lists(other, {"x": [1, 2]}))


def test_the_checker_sees_gaps_and_a_changed_past() -> None:
    assert list(check_feed("c", [(1, 0), (3, 0)], [(1, 0), (2, 0), (3, 0)])) == ["feed: c missed [(2, 0)]"]
    assert list(check_feed("c", [(1, 0), (1, 0)], [])) != []
    assert list(check_positions("s", [1, 3])) != []
    assert list(check_positions("s", [1, 2])) == []
    assert list(check_snapshots([(1, "a"), (2, "b"), (1, "a")])) == []
    assert list(check_snapshots([(1, "a"), (1, "b")])) != []
