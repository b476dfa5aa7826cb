"""Many processes append through one catalog: nothing acknowledged is lost or doubled, and versions have no gap."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headwater.namespace.directory import DirectoryNamespace
from tests.children import PROCESSES
from tests.versions.appending import write
from tests.versions.samples import make, numbers, open_kind, opened

CONFLICT = "Too many concurrent writers"


class Appending:
    """A process that appends the numbers from `first` on, and what it said of each."""

    def __init__(self, root: Path, table: str, first: int, count: int) -> None:
        self._said = root.parent / f"said-{first}"
        self._said.touch()
        self.process = PROCESSES.Process(target=write, args=(self._said, root, table, first, count))
        self.process.start()

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._said.read_text().splitlines() if line.endswith("}")]

    def acknowledged(self) -> list[int]:
        self.process.join(300)
        assert self.process.exitcode in (0, -signal.SIGKILL)
        for line in self.lines():
            assert "error" not in line or CONFLICT in line["error"], line["error"]
        return [line["value"] for line in self.lines() if "error" not in line]


def check(catalog: DirectoryNamespace, table: str, values: list[int], may_be_there: set[int]) -> None:
    there = Counter(opened(catalog, table).to_table()["a"].to_pylist()) - Counter([1, 2, 3])
    assert all(count == 1 for count in there.values())
    assert set(values) <= there.keys() <= set(values) | may_be_there
    assert numbers(catalog, table) == list(range(len(there) + 1, 0, -1))


def run(root: Path, same: int, others: int, count: int) -> None:
    catalog = open_kind("compat-managed", root)
    tables = ["t"] * same + [f"o{number % 4}" for number in range(others)]
    for table in sorted(set(tables)):
        make(catalog, table)
    writers = [Appending(root, table, 1000 * (at + 1), count) for at, table in enumerate(tables)]
    acks = [writer.acknowledged() for writer in writers]
    for table in sorted(set(tables)):
        values = [value for at, ack in enumerate(acks) if tables[at] == table for value in ack]
        assert len(values) >= count
        check(DirectoryNamespace(root=str(root)), table, values, set())


@pytest.mark.xdist_group("heavy")
def test_processes_that_append_to_one_table_and_to_others_lose_nothing(tmp_path: Path) -> None:
    run(tmp_path / "lake", same=3, others=2, count=6)


@pytest.mark.long
def test_eight_processes_on_one_table_and_eight_on_others_lose_nothing(tmp_path: Path) -> None:
    run(tmp_path / "lake", same=8, others=8, count=25)


@pytest.mark.xdist_group("heavy")
def test_writers_killed_at_random_lose_nothing_they_acknowledged(tmp_path: Path) -> None:
    root = tmp_path / "lake"
    catalog = open_kind("V2-managed", root)
    make(catalog)
    writers = [Appending(root, "t", 1000 * (at + 1), 200) for at in range(3)]
    while sum(len(writer.lines()) for writer in writers) < 30:
        time.sleep(0.05)
    for writer in writers:
        writer.process.kill()
    acks = [value for writer in writers for value in writer.acknowledged()]
    tried = {1000 * (at + 1) + number for at in range(3) for number in range(200)}
    check(DirectoryNamespace(root=str(root), dir_listing_enabled="false"), "t", acks, tried)
