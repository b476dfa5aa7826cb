"""A catalog takes its time and its randomness from the clock it is given, so that a history replays from its seed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import lance_namespace as api
import pytest

import headwater
from headwater.clock import SeededClock
from headwater.testing.namespace_suite import ROWS, ipc

KINDS = {
    "V1": ("dir", {"manifest_enabled": "false"}),
    "V2": ("dir", {"dir_listing_enabled": "false"}),
    "managed": ("dir", {"table_version_management": "true"}),
    "metastore": ("metastore", {}),
}
LANCE_CHOSE = {"data", "_transactions"}
STAGED = re.compile(r"(?<=\.manifest)-.*$")


def history(root: Path, kind: str, seed: int) -> list[str]:
    """The names of all files that a little work leaves; those of Lance's own choice without their random part."""
    impl, properties = KINDS[kind]
    catalog = headwater.connect(impl, {"root": str(root), **properties}, SeededClock(seed))
    if kind != "V1":
        catalog.create_namespace(api.CreateNamespaceRequest(id=["ns"]))
        catalog.declare_table(api.DeclareTableRequest(id=["ns", "declared"]))
        catalog.drop_table(api.DropTableRequest(id=["ns", "declared"]))
        catalog.declare_table(api.DeclareTableRequest(id=["ns", "again"]))
    catalog.create_table(api.CreateTableRequest(id=["t"]), ipc(ROWS))
    chosen = (path for path in root.rglob("*") if path.is_file() and not LANCE_CHOSE.intersection(path.parts))
    return sorted(STAGED.sub("", str(path.relative_to(root))) for path in chosen)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_makes_the_same_files(tmp_path: Path, kind: str) -> None:
    first, second = history(tmp_path / "a", kind, 7), history(tmp_path / "b", kind, 7)
    assert first == second
    if kind != "V1":
        assert history(tmp_path / "c", kind, 8) != first


FORKED = """
import os
from headwater.clock import SystemClock
clock = SystemClock()
clock.uuid()  # so that some are drawn
child = os.fork()
if child:
    os.waitpid(child, 0)
print(*(clock.uuid() for _ in range(5)), flush=True)
"""


def test_a_child_of_a_fork_draws_other_ids_than_its_parent() -> None:
    told = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=True).stdout.split()
    assert len(set(told)) == 10
