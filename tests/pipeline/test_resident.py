"""A resident run is killed again and again while its source goes on: every change is taken once, and once only."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headwater.catalog import Catalog
from tests.docs.blocks import ROOT
from tests.pipeline.shop import Shop
from tests.pipeline.test_running import check

pytestmark = pytest.mark.long
PATIENCE_S = 300.0


@pytest.mark.parametrize("engine", ["embedded", "spark"])
def test_a_resident_run_that_is_killed_takes_each_change_once(tmp_path: Path, engine: str) -> None:
    shop, chance = Shop(tmp_path, seed=9), random.Random(9)
    shop.products([{"sku": "a", "title": "Lamp", "text": "bright"}])
    orders, events = tmp_path / "landing" / "orders", 0
    told = tmp_path / "told.txt"

    def deliver() -> int:
        changes = shop.change(20)
        shop.files += 1
        whole = shop.deliver(changes, f"{shop.files:04d}.partial")
        os.replace(whole, orders / f"{shop.files:04d}.json")
        return len(changes)

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "headwater", "run", str(shop.file), "--watch", "--every", "0.1s"]
        options = ["--engine", engine, *(["--master", "local[1]"] if engine == "spark" else [])]
        with told.open("ab") as out:
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            return subprocess.Popen([*command, *options], stdout=out, stderr=out, env=environment)

    def waited(process: subprocess.Popen[bytes], text: str, since: int) -> None:
        end = time.monotonic() + PATIENCE_S
        while text not in told.read_text()[since:]:
            assert process.poll() is None, told.read_text()[-2000:]
            assert time.monotonic() < end, told.read_text()[-2000:]
            time.sleep(0.05)

    for _ in range(4 if engine == "embedded" else 2):
        events += deliver()
        since = len(told.read_text()) if told.exists() else 0
        process = start()
        waited(process, "ingest raw.orders", since)
        time.sleep(chance.random() * 2)
        events += deliver()
        process.send_signal(signal.SIGKILL)
        process.wait()
    events += deliver()
    since = len(told.read_text())
    process = start()
    waited(process, "publish   mart.spend", since)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 0
    last = subprocess.run(
        [sys.executable, "-m", "headwater", "run", str(shop.file), "--engine", "embedded"], check=False
    )
    assert last.returncode == 0
    check(shop)
    log = Catalog(str(tmp_path / "lake"))["raw.orders"]
    assert sum(file.rows or 0 for delta in log.deltas() for file in delta.files) == events
