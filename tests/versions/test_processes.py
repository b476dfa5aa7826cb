"""Many processes append through one catalog: nothing acknowledged is lost or doubled, and versions have no gap."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from headwater.namespace.directory import DirectoryNamespace
from tests.versions.samples import make, numbers, open_kind, opened

PROJECT = Path(__file__).parents[2]
CONFLICT = "Too many concurrent writers"


def start(root: Path, table: str, first: int, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.versions.appending", str(root), table, str(first), str(count)]
    return subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def acknowledged(process: subprocess.Popen[str]) -> list[int]:
    out, err = process.communicate(timeout=300)
    lines = [json.loads(line) for line in out.splitlines() if line.endswith("}")]
    for line in lines:
        assert "error" not in line or CONFLICT in line["error"], line["error"]
    assert process.returncode in (0, -signal.SIGKILL), err[-2000:]
    return [line["value"] for line in lines if "error" not in line]


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
    processes = [start(root, table, 1000 * (at + 1), count) for at, table in enumerate(tables)]
    acks = [acknowledged(process) for process in processes]
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
    processes = [start(root, "t", 1000 * (at + 1), 200) for at in range(3)]
    time.sleep(4)
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)
    acks = [value for process in processes for value in acknowledged(process)]
    tried = {1000 * (at + 1) + number for at in range(3) for number in range(200)}
    check(DirectoryNamespace(root=str(root), dir_listing_enabled="false"), "t", acks, tried)
