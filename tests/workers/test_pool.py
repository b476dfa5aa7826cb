"""Disposable workers: whatever happens to one costs one call, one clear error, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from headwater.clock import SeededClock
from headwater.errors import (
    CommitStateUnknownError,
    InvalidInputError,
    LanceNamespaceError,
    ServiceUnavailableError,
    TableNotFoundError,
)
from headwater.workers import Host, Pool, WorkerLimits
from headwater.workers.channel import WorkerError, reader_of_chunks

MIB = 1 << 20
HOST = Host("tests.workers.hosted:host", ["Hello"])
SMALL = WorkerLimits(memory=512 * MIB, seconds=60, most=2, spares=1)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool(HOST, SMALL)
    made.warm()
    yield made
    made.close()


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_call_is_answered_and_its_worker_used_again(pool: Pool) -> None:
    assert pool.run("greet", {"name": "Ada"}) == "Hello, Ada"
    assert pool.run("pid", {}) == pool.run("pid", {}) != os.getpid()


def test_bytes_files_and_batches_reach_the_worker(pool: Pool) -> None:
    assert pool.run("size", {}, b"x" * (3 * MIB)) == 3 * MIB
    with tempfile.TemporaryFile() as file:
        file.write(b"y" * (2 * MIB))
        file.flush()
        assert pool.run("size", {}, file.fileno()) == 2 * MIB
    batch = pa.record_batch({"x": pa.array(range(100_000), pa.int64())})
    reader = pa.RecordBatchReader.from_batches(batch.schema, [batch] * 20)
    assert pool.run("rows", {}, reader) == 2_000_000


def test_a_stream_comes_in_order_and_frees_its_worker(pool: Pool) -> None:
    chunks = pool.run("chunks", {"count": 300, "size": 10_000})
    assert b"".join(chunks) == b"".join(bytes([number % 256]) * 10_000 for number in range(300))
    numbers = pa.array(range(1000), pa.int64()).buffers()[1]
    assert numbers is not None
    wanted = (b"head" + b"x" * 3 * MIB + numbers.to_pybytes() + b"tail") * 9 + b"end"
    assert b"".join(pool.run("parts", {"count": 9})) == wanted
    assert reader_of_chunks(pool.run("batches", {"count": 7})).read_all().num_rows == 70
    assert pool.run("greet", {"name": "again"})


@pytest.mark.parametrize(
    ("method", "kind"), [("refuse", TableNotFoundError), ("unknown", CommitStateUnknownError), ("fail", WorkerError)]
)
def test_an_error_of_the_hosted_object_keeps_its_kind_and_the_worker_goes_on(
    pool: Pool, method: str, kind: type[Exception]
) -> None:
    before = pool.run("pid", {})
    with pytest.raises(kind) as raised:
        pool.run(method, {})
    assert "secret" not in str(raised.value)
    assert pool.run("pid", {}) == before


def test_rows_that_are_refused_half_way_leave_the_channel_in_order(pool: Pool) -> None:
    batch = pa.record_batch({"x": pa.array(range(100_000), pa.int64())})
    with pytest.raises(InvalidInputError, match="No more"):
        pool.run("rows_until", {}, pa.RecordBatchReader.from_batches(batch.schema, [batch] * 30))
    assert pool.run("greet", {"name": "Ada"}) == "Hello, Ada"


@pytest.mark.parametrize("method", ["eat", "eat_in_arrow"])
def test_work_that_needs_too_much_memory_is_one_clear_error(pool: Pool, method: str) -> None:
    with pytest.raises(InvalidInputError, match="memory"):
        pool.run(method, {})
    assert pool.run("greet", {"name": "Ada"}) == "Hello, Ada"


@pytest.mark.parametrize("name", ["SIGABRT", "SIGSEGV", "SIGKILL"])
def test_a_worker_that_crashes_costs_one_error(pool: Pool, name: str) -> None:
    with pytest.raises(InvalidInputError, match=name):
        pool.run("crash", {"signal": name})
    with pytest.raises(CommitStateUnknownError, match="may have landed"):
        pool.run("crash", {"signal": name}, changes=True)
    assert pool.run("greet", {"name": "Ada"}) == "Hello, Ada"


def test_an_error_in_the_middle_of_a_stream_is_told(pool: Pool) -> None:
    chunks = pool.run("chunks", {"count": 10, "size": 10, "fail_at": 4})
    with pytest.raises(InvalidInputError, match="The rows ended here"):
        list(chunks)
    chunks = pool.run("chunks", {"count": 10, "size": 10, "crash_at": 4})
    with pytest.raises(InvalidInputError, match="SIGKILL"):
        list(chunks)


def test_a_stream_that_nobody_wants_stops_its_work(pool: Pool, tmp_path: Path) -> None:
    progress = tmp_path / "progress"
    chunks = pool.run("chunks", {"count": 100_000, "size": MIB, "progress": str(progress)})
    next(chunks)
    busy = pool.pids
    chunks.close()
    assert any(is_gone(pid) for pid in busy)
    stopped_at = progress.read_text()
    assert int(stopped_at or 0) < 100
    time.sleep(0.05)
    assert progress.read_text() == stopped_at


def test_a_stream_that_nobody_even_began_to_read_gives_its_worker_back() -> None:
    with_one = Pool(HOST, WorkerLimits(memory=512 * MIB, most=1, spares=0))
    try:
        del_me = with_one.run("chunks", {"count": 100_000, "size": MIB})
        del del_me
        assert with_one.run("greet", {"name": "Ada"}) == "Hello, Ada"
    finally:
        with_one.close()


def test_a_slow_reader_holds_the_worker_back(pool: Pool, tmp_path: Path) -> None:
    progress = tmp_path / "progress"
    chunks = pool.run("chunks", {"count": 1000, "size": MIB, "progress": str(progress)})
    next(chunks)
    reached = -1
    while reached != (reached := int(progress.read_text() or 0)):
        time.sleep(0.1)
    assert reached < 50
    chunks.close()


def test_work_that_takes_too_long_is_ended() -> None:
    hurried = Pool(HOST, WorkerLimits(seconds=0.3, most=1, spares=0))
    try:
        hurried.run("greet", {"name": "Ada"})
        (pid,) = hurried.pids
        with pytest.raises(ServiceUnavailableError, match=r"within 0\.3 seconds"):
            hurried.run("sleep", {"seconds": 60})
        assert is_gone(pid)
        with pytest.raises(CommitStateUnknownError):
            hurried.run("sleep", {"seconds": 60}, changes=True)
    finally:
        hurried.close()


def test_callers_wait_for_a_free_worker_and_are_told_when_none_comes(pool: Pool) -> None:
    narrow = Pool(HOST, WorkerLimits(seconds=30, most=1, spares=0))
    try:
        with ThreadPoolExecutor(4) as threads:
            pids = list(threads.map(lambda _: narrow.run("pid", {}), range(8)))
        assert len(set(pids)) == 1
        held = narrow.run("chunks", {"count": 1000, "size": MIB})
        narrow.limits = WorkerLimits(seconds=0.2, most=1, spares=0)
        with pytest.raises(ServiceUnavailableError, match="busy"):
            narrow.run("pid", {})
        held.close()
    finally:
        narrow.close()


def test_a_worker_is_replaced_after_so_many_calls() -> None:
    short = Pool(HOST, WorkerLimits(most=1, spares=0, calls=2))
    try:
        assert len({short.run("pid", {}) for _ in range(4)}) == 2
    finally:
        short.close()


def test_one_caller_keeps_one_worker_and_one_spare_however_long_it_calls() -> None:
    clock = SeededClock()
    steady = Pool(HOST, replace(SMALL, most=4), clock)
    try:
        first, pids = steady.run("pid", {}), set[int]()
        for _ in range(3):
            while len(steady.pids) < 2:
                time.sleep(0.01)
            pids.update(steady.pids)
            clock.sleep(2 * SMALL.idle_seconds)
            assert [steady.run("pid", {}), steady.run("pid", {})] == [first, first]
        assert len(pids) == 2
    finally:
        steady.close()


@pytest.mark.parametrize(
    ("function", "kind"),
    [("refuse_to_start", InvalidInputError), ("die_at_start", ServiceUnavailableError), ("nobody", WorkerError)],
)
def test_a_worker_that_cannot_start_is_told_and_not_tried_for_ever(function: str, kind: type[Exception]) -> None:
    broken = Pool(Host(f"tests.workers.hosted:{function}", []), SMALL)
    with pytest.raises(kind):
        broken.run("greet", {"name": "Ada"})
    broken.close()
    assert broken.pids == []


def test_closing_ends_every_worker_and_the_calls_in_it() -> None:
    closed = Pool(HOST, SMALL)
    closed.run("pid", {})
    errors: list[BaseException] = []

    def sleep() -> None:
        try:
            closed.run("sleep", {"seconds": 60})
        except LanceNamespaceError as error:
            errors.append(error)

    thread = threading.Thread(target=sleep)
    thread.start()
    while not closed._busy:
        time.sleep(0.01)
    pids = closed.pids
    closed.close()
    thread.join(20)
    assert len(errors) == 1
    assert all(is_gone(pid) for pid in pids)
    with pytest.raises(ServiceUnavailableError, match="stopping"):
        closed.run("pid", {})


ORPHAN = """
import os, threading, time
from headwater.workers import Host, Pool
pool = Pool(Host("tests.workers.hosted:host", ["x"]))
print(pool.run("pid", {}), flush=True)
threading.Thread(target=lambda: pool.run("sleep", {"seconds": 600}), daemon=True).start()
time.sleep(0.2)
os.kill(os.getpid(), 9)
"""


def test_workers_end_with_a_caller_that_is_killed() -> None:
    done = subprocess.run([sys.executable, "-c", ORPHAN], capture_output=True, text=True, check=False, timeout=60)
    pid = int(done.stdout)
    for _ in range(500):
        if is_gone(pid):
            return
        time.sleep(0.02)
    raise AssertionError("the worker outlived its caller")


def test_a_program_in_the_working_directory_is_not_what_a_worker_runs(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('imported from the working directory')")
    code = "import sys; sys.path.pop(0); from headwater.workers import Host, Pool\n"
    code += (
        "p = Pool(Host('headwater.names:parse', ['a'])); p.run('format', '.') if 0 else p.warm(); p._take(); p.close()"
    )
    paths = os.pathsep.join(place for place in sys.path if place)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}, check=False, timeout=60
    )
    assert done.returncode == 0


def test_work_may_ask_its_caller_in_the_middle(pool: Pool) -> None:
    def answers(question: bytes) -> str:
        if question == b"refuse":
            raise TableNotFoundError("There is no such table.")
        return question.decode().upper()

    assert pool.run("ask_twice", {}, answers=answers) == ["ONE", "TWO"]
    assert pool.run("ask_and_fail", {}, answers=answers) == "There is no such table."
    assert pool.run("greet", {"name": "you"}) == "Hello, you"


def test_long_work_is_not_ended_while_it_works_and_has_a_memory_of_its_own() -> None:
    limits = WorkerLimits(memory=64 * MIB, seconds=1, most=2, spares=0, long_memory=512 * MIB)
    pool = Pool(HOST, limits)
    try:
        assert pool.run("work_long", {"seconds": 2}, is_long=True) == "done"
        with pytest.raises(ServiceUnavailableError):
            pool.run("work_long", {"seconds": 30})  # silence of what is not long
        with pytest.raises(ServiceUnavailableError):
            pool.run("sleep", {"seconds": 30}, is_long=True)  # long, and it does nothing
        pool.limits = replace(limits, seconds=60)  # of workers that are started from now on
        assert pool.run("hold", {"size": 256 * MIB}, is_long=True) == 256 * MIB
        with pytest.raises(InvalidInputError, match="64 MiB"):
            pool.run("hold", {"size": 256 * MIB})
    finally:
        pool.close()


def test_long_work_leaves_half_of_the_workers_to_others(pool: Pool) -> None:
    with ThreadPoolExecutor(3) as threads:
        long = [threads.submit(pool.run, "work_long", {"seconds": 1.5}, is_long=True) for _ in range(2)]
        while not pool._long:
            time.sleep(0.01)
        assert pool.run("greet", {"name": "you"}) == "Hello, you"
        assert not any(one.done() for one in long)
        assert len(pool._long) == 1
        assert [one.result() for one in long] == ["done", "done"]
