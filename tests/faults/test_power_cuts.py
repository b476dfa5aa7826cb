"""Real processes on a disk that forgets what was not synced: all are killed at once, and nothing acknowledged is lost.

Rows of plain Lance tables are not part of it: pylance does not sync their data files (docs/reliability.md).
"""

from __future__ import annotations

import json
import random
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headwater.errors import LanceNamespaceError
from tests.children import PROCESSES
from tests.faults.power_cut import Cut, SyncNotes
from tests.faults.processes import kill

pytestmark = pytest.mark.xdist_group("kills")


def write(root: str, folder: str, number: int, acknowledged: str) -> None:
    """Change the catalog in many ways until killed, and note what was acknowledged."""
    from headwater import Catalog, MetastoreNamespace

    SyncNotes(root, folder).watch()
    catalog, chance, turn = Catalog(MetastoreNamespace(root=root)), random.Random(number), number * 100_000
    with open(acknowledged, "a", buffering=1) as notes:
        while True:
            turn += 1
            kind = chance.choice(["events", "events", "both", "both", "table", "namespace", "publish", "keep"])
            with suppress(LanceNamespaceError):
                _change(catalog, kind, turn)
                notes.write(json.dumps([kind, turn]) + "\n")


def _change(catalog: Any, kind: str, turn: int) -> None:
    if kind == "events":
        catalog["a.s"].upsert([{"id": turn}], token=f"t{turn}")
    elif kind == "both":
        with catalog.transaction() as tx:
            tx["a.s"].upsert([{"id": turn}])
            tx["a.u"].upsert([{"id": turn}])
    elif kind == "table":
        catalog.create_table(f"a.t{turn}", [{"id": turn}])
    elif kind == "namespace":
        catalog.create_namespace(f"n{turn}")
    elif kind == "publish":
        catalog["a.s"].publish()
    else:
        catalog.collect(keep=timedelta(seconds=1), grace=timedelta(hours=1))


def check(root: str, acknowledged: list[tuple[str, int]]) -> None:
    """Check that a catalog opened after the cut has all that was acknowledged, and both halves of transactions."""
    from headwater import Catalog, MetastoreNamespace

    namespace = MetastoreNamespace(root=root)
    catalog = Catalog(namespace)
    held = {name: set(catalog[name].to_arrow()["id"].to_pylist()) for name in ("a.s", "a.u")}
    turns = {kind: {turn for told, turn in acknowledged if told == kind} for kind, _ in acknowledged}
    assert turns.get("events", set()) | turns.get("both", set()) <= held["a.s"]
    assert turns.get("both", set()) <= held["a.u"] <= held["a.s"]
    assert {f"n{turn}" for turn in turns.get("namespace", ())} <= {*catalog.namespaces()}
    for turn in turns.get("table", ()):
        assert catalog[f"a.t{turn}"].to_arrow()["id"].to_pylist() == [turn]
    namespace.metastore.repair()
    assert [problem for problem in catalog.verify() if not problem.note] == []


def run(folder: Path, seed: int, cuts: int, seconds: float) -> tuple[int, int, int]:
    """Let processes write and cut the power, so many times; the changes, and the files that went and came back."""
    from headwater import Catalog, MetastoreNamespace

    root, chance, acknowledged = str(folder / "lake"), random.Random(seed), []
    catalog = Catalog(MetastoreNamespace(root=root))
    for name in ("a.s", "a.u"):
        catalog.create_stream_table(name, {"id": "int64"}, keys="id")
    catalog.close()
    lost = back = 0
    for number in range(cuts):
        SyncNotes(root, str(folder)).begin()
        files = [folder / f"{number}-{writer}.notes" for writer in range(2)]
        running = [
            PROCESSES.Process(target=write, args=(root, str(folder), 10 * number + writer + 1, str(file)))
            for writer, file in enumerate(files)
        ]
        for process in running:
            process.start()
        deadline = time.monotonic() + 120
        while not all(file.exists() and file.stat().st_size for file in files):
            assert time.monotonic() < deadline, "a writer has not begun"
            time.sleep(0.05)
        time.sleep(chance.uniform(0.1, seconds))
        for process in running:
            kill(process)
        cut = Cut(SyncNotes(root, str(folder)), seed + number)
        cut.run()
        lost, back = lost + cut.lost, back + cut.back
        acknowledged += [tuple(json.loads(line)) for file in files for line in file.read_text().splitlines()]
        check(root, acknowledged)
    return len(acknowledged), lost, back


def test_nothing_acknowledged_is_lost_by_a_power_cut(tmp_path: Path) -> None:
    changes, lost, _ = run(tmp_path, seed=1, cuts=1, seconds=1)
    assert changes
    assert lost


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 14))
def test_nothing_acknowledged_is_lost_by_many_power_cuts(tmp_path: Path, seed: int) -> None:
    changes, lost, back = run(tmp_path, seed, cuts=12, seconds=3)
    print(f"{changes} acknowledged changes, {lost} files lost, {back} files back")
    assert lost
