"""Turns: the dead hold nothing, what is not used is void, work that waits together is done together."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headwater.clock import SystemClock
from headwater.turns import FileLock, GroupedWork, Wakeup, _Place, is_abandoned, ring

CLOCK = SystemClock()
PROCESSES = multiprocessing.get_context("spawn")


@dataclass
class Work:
    number: int
    done: bool = False
    error: BaseException | None = None


def hold(path: str, ready: Any) -> None:
    assert FileLock(path, SystemClock(), 1000).take() is not None
    ready.set()
    threading.Event().wait()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "deep" / "turn")


def test_a_turn_is_held_by_one_and_free_after_its_release(path: str) -> None:
    turn = FileLock(path, CLOCK, 1000)
    held = turn.take()
    assert held is not None
    assert turn.take() is None
    held.release()
    assert not os.path.exists(path)
    again = turn.take()
    assert again is not None
    again.release()


def test_a_lasting_turn_keeps_its_file(path: str) -> None:
    turn = FileLock(path, CLOCK, 1000, lasting=True)
    for _ in range(2):
        held = turn.take()
        assert held is not None
        held.release()
        assert os.path.exists(path)


def test_the_turn_of_a_process_that_was_killed_is_free_at_once(path: str) -> None:
    ready = PROCESSES.Event()
    process = PROCESSES.Process(target=hold, args=(path, ready))
    process.start()
    assert ready.wait(60)
    turn = FileLock(path, CLOCK, 1000)
    assert turn.take() is None
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join(60)
    held = turn.take()
    assert held is not None
    held.release()


def test_a_turn_that_is_not_used_is_void_and_its_holder_can_tell(path: str) -> None:
    slow = FileLock(path, CLOCK, 1000).take(valid_s=-1000)  # as if it had been taken long ago
    assert slow is not None
    assert slow.is_ours()
    other = FileLock(path, CLOCK, 1000).take()
    assert other is not None
    assert not slow.is_ours()
    slow.release()
    assert other.is_ours(), "the release of a void turn takes away nobody else's"
    other.release()


def test_a_turn_that_is_used_stays_valid(path: str) -> None:
    turn = FileLock(path, CLOCK, 1000)
    held = turn.take(valid_s=-1000)
    assert held is not None
    held.refresh()
    assert turn.take() is None
    held.release()


def test_a_waiter_is_told_when_the_turn_is_free(path: str) -> None:
    held = FileLock(path, CLOCK, 1000).take()
    assert held is not None
    with Wakeup(path, CLOCK) as wakeup:
        ring(path)
        wakeup.wait(60)
        held.release()
        wakeup.wait(60)
    ring(path)  # nobody waits any more: no error, and nothing is left
    assert os.listdir(f"{path}.waiting") == []


def test_a_turn_that_becomes_free_while_the_pipe_is_made_is_taken_at_once(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = FileLock(path, CLOCK, 60).take()
    assert held is not None
    hang = Wakeup.__enter__

    def late(wakeup: Wakeup) -> Wakeup:
        held.release()
        os.read(wakeup._pipe, 64)  # nobody is told
        return hang(wakeup)

    monkeypatch.setattr(Wakeup, "__enter__", late)
    monkeypatch.setattr(Wakeup, "wait", lambda wakeup, longest_s: pytest.fail("it waited for a turn that was free"))
    assert FileLock(path, CLOCK, 60).wait_for_wakeup(10, 10) is not None


def test_who_waits_for_a_turn_does_meanwhile_what_need_not_be_done_in_it(path: str) -> None:
    turn, done = FileLock(path, CLOCK, 60), list[str]()
    free = turn.wait_for_wakeup(60, 60, meanwhile=lambda: done.append("free"))
    assert free is not None

    def meanwhile() -> None:
        done.append("waited")
        free.release()

    held = turn.wait_for_wakeup(60, 60, meanwhile=meanwhile)
    assert held is not None
    assert done == ["waited"]
    held.release()


def test_the_pipe_of_a_dead_waiter_is_cleared_away(path: str) -> None:
    os.makedirs(f"{path}.waiting")
    os.mkfifo(f"{path}.waiting/000000000000001-1-1")
    with Wakeup(path, CLOCK) as wakeup:
        ring(path)
        wakeup.wait(60)
    assert os.listdir(f"{path}.waiting") == []


def test_waiting_ends_when_the_caller_has_what_it_wants(path: str) -> None:
    turn = FileLock(path, CLOCK, 1000)
    held = turn.take()
    assert held is not None
    assert turn.wait(1000, 0, until=lambda: True) is None
    assert turn.wait(0, 0) is None
    held.release()


def test_a_file_is_abandoned_once_nobody_locks_it(path: str) -> None:
    assert is_abandoned(path)
    held = FileLock(path, CLOCK, 1000, lasting=True).take()
    assert held is not None
    assert not is_abandoned(path)
    held.release()
    assert is_abandoned(path)


def test_work_that_waits_together_is_done_in_one_go_and_what_is_left_undecided_in_the_next() -> None:
    goes: list[list[int]] = []
    waiting = threading.Barrier(5)

    def lead(group: Sequence[Work]) -> None:
        if not goes:
            goes.append([group[0].number])
            waiting.wait()  # until the others stand in the queue
            while work.size < 4:
                CLOCK.sleep(0.001)
            group[0].done = True
            return
        goes.append([one.number for one in group])
        for one in group[:2]:
            one.done = True

    def come(number: int) -> None:
        if number:
            waiting.wait()
        work.run(Work(number), lead)

    work = GroupedWork[Work]()
    threads = [threading.Thread(target=come, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [len(go) for go in goes] == [1, 4, 2]
    assert goes[2] == goes[1][2:]


def test_a_leader_goes_as_soon_as_those_have_come_who_came_last_time() -> None:
    goes: list[int] = []
    begun = threading.Event()

    def lead(group: Sequence[Work]) -> None:
        if not goes:
            begun.set()
            while work.size < 3:
                CLOCK.sleep(0.001)
        goes.append(len(group))
        for one in group:
            one.done = True

    def come(numbers: Sequence[int]) -> None:
        for number in numbers:
            work.run(Work(number), lead)

    work = GroupedWork[Work](gather_s=600)
    threads = [threading.Thread(target=come, args=([0],))]
    threads[0].start()
    assert begun.wait(60)
    threads += [threading.Thread(target=come, args=([1, 2],)) for _ in range(3)]
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert goes == [1, 3, 3]


def test_one_that_was_interrupted_after_it_was_decided_still_wakes_those_behind_it() -> None:
    work = GroupedWork[Work]()
    places = [_Place(Work(number, done=True)) for number in range(4)]
    leader, first, interrupted, last = places
    first.left = True  # it was interrupted before
    work._wake(places, leader)
    assert not interrupted.woken.locked()
    assert first.woken.locked()
    assert last.woken.locked()
    work._leave(interrupted)
    assert not last.woken.locked()


def test_a_leader_that_fails_tells_everybody_whose_work_it_had_taken() -> None:
    def lead(group: Sequence[Work]) -> None:
        raise KeyboardInterrupt

    group = GroupedWork[Work](told=lambda error: ValueError(type(error).__name__))
    mine = Work(1)
    with pytest.raises(KeyboardInterrupt):
        group.run(mine, lead)
    assert isinstance(mine.error, ValueError)


def test_what_a_leader_decided_is_finished_before_those_who_wait_for_it_go_on() -> None:
    finished: list[int] = []
    seen: list[bool] = []
    all_there = threading.Event()

    def lead(group: Sequence[Work]) -> None:
        all_there.wait(30)
        for one in group:
            one.done = True

    def finish(group: Sequence[Work]) -> None:
        finished.extend(one.number for one in group)

    def come(number: int) -> None:
        work.run(Work(number), lead, finish)
        seen.append(number in finished)

    work = GroupedWork[Work]()
    threads = [threading.Thread(target=come, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    while work.size < 4:
        CLOCK.sleep(0.001)
    all_there.set()
    for thread in threads:
        thread.join(60)
    assert seen == [True] * 5
    assert sorted(finished) == list(range(5))
