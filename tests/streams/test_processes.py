"""Landing and publishing in real processes, which race and are killed: nothing lost, doubled or blocked."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import lance
import pytest

from headwater.metastore import Metastore
from headwater.store import CrashesAtStore, LocalStore
from headwater.streams.table import StreamTable
from tests.children import PROCESSES
from tests.streams.test_faults import prepared
from tests.streams.writers import LAND, PUBLISH, act, killed, land_and_publish

pytestmark = pytest.mark.xdist_group("heavy")


def steps_of(root: Path, what: str) -> int:
    store = CrashesAtStore(LocalStore(root), step=0)
    act(StreamTable(Metastore(store), ["t"]), what)
    return store.writes


def verified(root: Path) -> StreamTable:
    """The table as the next opener finds it, proven: the catalog's files, and the serving copy by its log."""
    metastore = Metastore(root)
    table = StreamTable(metastore, ["t"])
    assert metastore.verify() == []
    assert table.verify() == []
    return table


def served(root: Path, table: StreamTable) -> int:
    """What plain pylance counts."""
    return int(lance.dataset(f"{root}/{table.opened()[0].serving}").count_rows())


@pytest.mark.parametrize("what", [LAND, PUBLISH])
def test_a_process_killed_while_it_lands_or_publishes_leaves_all_of_it_or_nothing(tmp_path: Path, what: str) -> None:
    prepared(tmp_path / "prepared")
    shutil.copytree(tmp_path / "prepared", tmp_path / "counted")
    steps = steps_of(tmp_path / "counted", what)
    roots = {step: tmp_path / str(step) for step in range(1, steps + 1)}
    processes = {}
    for step, root in roots.items():
        shutil.copytree(tmp_path / "prepared", root)
        processes[step] = PROCESSES.Process(target=killed, args=(str(root), what, step))
        processes[step].start()
    outcomes = set()
    for step, root in roots.items():
        processes[step].join(60)
        assert processes[step].exitcode == -signal.SIGKILL
        table = verified(root)
        published = table.published
        assert published is not None
        outcomes.add((table.position, published.position, table.quarantine().num_rows))
        for again in (what, what, PUBLISH):
            act(table, again)
        table = verified(root)
        done = table.published
        assert done is not None
        # Of the log: two batches and the landed one. Quarantined: the late row, and the bad one of the landed batch.
        expected = (3, 2) if what == LAND else (2, 1)
        assert (done.position, table.quarantine().num_rows) == expected
        assert table.count() == served(root, table) == 2
    torn = {LAND: {(2, 1, 0), (3, 1, 1)}, PUBLISH: {(2, 1, 0), (2, 2, 1)}}
    assert outcomes == torn[what]


def test_two_processes_that_land_and_publish_and_one_that_is_killed_lose_and_double_nothing(tmp_path: Path) -> None:
    root, rounds = tmp_path / "lake", 8
    prepared(root)
    tallies = [tmp_path / f"tally-{writer}" for writer in (1, 2, 3)]
    writers = [
        PROCESSES.Process(target=land_and_publish, args=(str(root), str(tally), writer, count))
        for writer, (tally, count) in enumerate(zip(tallies, (rounds, rounds, 10_000), strict=True), 1)
    ]
    for process in writers:
        process.start()
    while not (tallies[2].exists() and tallies[2].stat().st_size > 6):
        writers[2].join(0.01)
        assert writers[2].exitcode is None
    writers[2].kill()
    for process, code in zip(writers, (0, 0, -signal.SIGKILL), strict=True):
        process.join(120)
        assert process.exitcode == code
    acknowledged = [len(tally.read_text().splitlines()) for tally in tallies]
    table = verified(root)
    table.publish()
    table = verified(root)
    keys = sorted(int(row["id"]) for row in table.to_arrow().to_pylist())
    own = [[key for key in keys if key // 1_000 == writer] for writer in (1, 2, 3)]
    assert [len(found) for found in own[:2]] == acknowledged[:2] == [rounds, rounds]
    assert acknowledged[2] <= len(own[2]) <= acknowledged[2] + 1
    assert [len(set(found)) for found in own] == [len(found) for found in own]
    assert table.position == 2 + sum(len(found) for found in own)
    assert table.count() == served(root, table) == len(keys) == 2 + sum(len(found) for found in own)
