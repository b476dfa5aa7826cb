"""Many processes do everything to one root at once: nothing acknowledged is lost, nobody sees half a transaction."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headwater import MetastoreNamespace
from headwater.rest.server import start_in_thread
from tests.faults import soak
from tests.faults.children import PROCESSES

KINDS = {"a.t", "a.log", "pair", "published", "rename of a table", "move of a table", "rename of a namespace"}
KINDS |= {"drop", "undrop", "grow", "undo", "collection"}
"""All that is done at once."""
ROUNDS = 5


def notes_of(folder: Path) -> list[list[Any]]:
    return [json.loads(line) for file in folder.glob("*.notes") for line in file.read_text().splitlines()]


def run(tmp_path: Path, writers: int, seconds: float, servers: int) -> Counter[str]:
    """So many writers, one or two that read and one that collects beside; what was acknowledged, by kind."""
    root = str(tmp_path / "lake")
    soak.prepare(root, writers)
    running = [start_in_thread(MetastoreNamespace(root=root)) for _ in range(servers)]
    targets = [root, *(server.url for server in running)]
    jobs: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
        (soak.write, (targets[number % len(targets)], number, str(tmp_path / f"{number}.notes"), seconds))
        for number in range(writers)
    ]
    for number, target in enumerate(targets[:2]):
        jobs.append((soak.read, (target, str(tmp_path / f"reader{number}.notes"), seconds)))
    jobs.append((soak.collect, (targets[-1], str(tmp_path / "collector.notes"), seconds)))
    children = [PROCESSES.Process(target=target, args=args) for target, args in jobs]
    try:
        for child in children:
            child.start()
        for child in children:
            child.join(seconds * 10 + 120)
    finally:
        for server in running:
            server.stop()
    notes = notes_of(tmp_path)
    assert [note for note in notes if note[0] in ("failed", "half")] == []
    assert [child.exitcode for child in children] == [0] * len(children)
    check(root, notes)
    return Counter(note[1] for note in notes if note[0] == "done")


def check(root: str, notes: list[list[Any]]) -> None:
    catalog = soak.open_at(root)
    kinds = {"a.t": ["a.t"], "a.log": ["a.log"], "pair": ["pair.x", "pair.y", "pair.log"]}
    for kind, tables in kinds.items():
        done = {note[2] for note in notes if note[:2] == ["done", kind]}
        tried = {note[2] for note in notes if note[:2] == ["tried", kind]}
        for table in tables:
            found = soak.ids(catalog, table)
            assert len(found) == len(set(found)), f"{table}: something is there twice"
            assert done <= set(found) <= tried | {-1}, f"{table}: lost {sorted(done - set(found))[:5]}"
    assert soak.is_whole(catalog)
    for _, name, is_there, rows in (note for note in notes if note[0] == "own"):
        assert (name in catalog) == is_there
        if is_there:
            assert len(catalog[name]) == rows
    catalog.publish(["a.log", "pair.log"])
    for name in ("a.log", "pair.log"):
        assert len(catalog[name].serving) == catalog[name].count()
    catalog.close()
    left = catalog.namespace.verify()
    assert {problem.kind for problem in left} <= {"staged_leftover"}
    catalog.collect(grace=timedelta(0))
    assert catalog.namespace.verify() == []


def test_processes_that_do_everything_at_once_lose_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, writers=2, seconds=1.0, servers=1)
    assert done


@pytest.mark.long
@pytest.mark.parametrize("servers", [0, 2])
def test_eight_processes_that_do_everything_at_once_for_long_lose_nothing(tmp_path: Path, servers: int) -> None:
    """A machine that has other things to do gets through less in a minute: then there is another one."""
    done: Counter[str] = Counter()
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        done += run(folder, writers=8, seconds=60, servers=servers)
        if set(done) >= KINDS:
            return
    assert set(done) >= KINDS, KINDS - set(done)
