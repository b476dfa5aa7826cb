"""Speculative twins and killed executors in what writes into stream tables: as if nothing had happened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.acting import ROWS
from tests.spark.cluster import HOSTS, can_listen, cluster

HERE = Path(__file__).parent


@pytest.mark.long
def test_twins_and_killed_executors_leave_what_an_undisturbed_run_leaves(tmp_path: Path) -> None:
    """Twins of an INSERT, an UPDATE, an ingest and a publish; executors die in an ingest, a publish, an index build, a
    backfill, a history, a compaction and, with the shuffle that they wrote, a view."""
    if not all(can_listen(host) for host in HOSTS):
        pytest.skip("this system has one loopback address: no second host for a speculative task")
    (tmp_path / "marks").mkdir()
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "PYSPARK_PYTHON": sys.executable}
    environment |= {"SPARK_LOCAL_IP": HOSTS[0], "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), str(tmp_path)])}
    with cluster(tmp_path, environment) as master:
        command = [sys.executable, "-m", "tests.spark.acting", master, str(tmp_path)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=1_500, check=False, env=environment, cwd=tmp_path
        )
    assert done.returncode == 0, done.stderr[-3000:]
    marks = {path.name for path in (tmp_path / "marks").iterdir()}
    assert marks >= {f"{name}-{attempt}" for name in ("insert", "update", "ingest") for attempt in (0, 1)}
    assert marks >= {"publish-0", "publish-1", "ingest-died", "publish-died", "index-died", "backfill-died"}
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["log"] == [ROWS, ROWS, ROWS, ROWS, []]
    assert found["twins"] == [ROWS, ROWS, 2 * ROWS, 3 * ROWS, ROWS, []]
    assert found["dead"] == [ROWS, ROWS, ROWS, -3 * ROWS, ROWS, []]
    assert found["positions"] == [2, 2]
    assert marks >= {"history-died", "tidy-died", "view-died"}
    half = ROWS // 2
    assert found["past"] == [100, half, 2 * half, 2 * ROWS, half, [], []]
