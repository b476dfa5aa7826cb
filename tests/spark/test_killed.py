"""A driver killed before any of its commits, and a worker killed in its task: run again, nothing is lost or doubled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.catalog import Catalog
from tests.pipeline.shop import Shop

HERE = Path(__file__).parent
DIES = """
import os, signal
from pathlib import Path

MARK = Path({mark!r})


def once(text):
    if not MARK.exists():
        MARK.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return [len(word) for word in text.to_pylist()]
"""


def run(folder: Path, before_commit: int) -> subprocess.CompletedProcess[str]:
    return started(folder, "killed_pipeline.py", str(folder), str(before_commit))


def started(folder: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "PYSPARK_PYTHON": sys.executable}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parents[1]), str(folder)])
    return subprocess.run(
        [sys.executable, str(HERE / program), *arguments],
        capture_output=True, text=True, env=environment, start_new_session=True, check=False, timeout=900,
    )  # fmt: skip


@pytest.mark.long
def test_a_killed_driver_and_a_killed_worker_leave_nothing_lost_or_doubled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "die_once.py").write_text(DIES.format(mark=str(tmp_path / "died")))
    monkeypatch.syspath_prepend(str(tmp_path))
    catalog = Catalog(str(tmp_path / "lake"))
    column = {"function": "die_once:once", "inputs": ["name"], "type": "int64", "version": "1"}
    schema = {"id": "bigint", "at": "bigint", "name": "string"}
    catalog.create_stream_table(
        "raw.t", schema, keys=["id"], sequence=["at"], properties={"column.size": json.dumps(column)}
    )
    (tmp_path / "in").mkdir()
    for number in range(3):
        rows = [{"id": id, "at": number, "name": f"{number}" * (id % 7)} for id in range(number * 100, 400)]
        (tmp_path / "in" / f"{number}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for before_commit, landed in ((2, 1), (3, 3)):  # the second file; then the publish, after executors have written
        killed = run(tmp_path, before_commit)
        assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
        assert (catalog["raw.t"].position, catalog["raw.t"].published) == (landed, None)
    assert (tmp_path / "died").exists()
    (tmp_path / "died").unlink()
    done = run(tmp_path, 0)
    assert "DONE 2" in done.stdout, done.stderr[-2000:]
    assert (tmp_path / "died").exists()
    found = {row["id"]: (row["at"], row["size"]) for row in catalog["raw.t"].serving.to_arrow().to_pylist()}
    assert found == {id: (min(id // 100, 2), id % 7) for id in range(400)}
    assert catalog["raw.t"].serving.count() == 400
    assert catalog["raw.t"].verify() == []


@pytest.mark.long
def test_a_driver_that_is_killed_in_any_step_of_a_pipeline_is_followed_by_a_run_that_ends_right(tmp_path: Path) -> None:
    shop = Shop(tmp_path, 7)
    for number, step in enumerate(("ingest", "publish raw", "index", "view", "publish mart", "")):
        shop.deliver(shop.change(10))
        shop.products([{"sku": f"p{n}", "title": "Lamp", "text": "a" * n} for n in range(number, 5 + number)])
        ended = started(tmp_path, "killed_run.py", str(shop.file), step)
        assert ended.returncode == (-signal.SIGKILL if step else 0), (step, ended.stderr[-2000:])
    lake = Catalog(str(tmp_path / "lake"))
    orders = sorted(lake["raw.orders"].serving.to_arrow().to_pylist(), key=lambda row: row["id"])
    assert [{**row, "total": str(row["total"])} for row in orders] == shop.orders()
    spend = lake["mart.spend"].serving.to_arrow().to_pylist()
    assert sorted((row["customer"], str(row["spent"]), row["orders"]) for row in spend) == shop.spend()
    products = lake["raw.products"].serving.to_arrow().to_pylist()
    assert {row["sku"]: row["embedding"][0] for row in products} == {f"p{n}": 5.0 + n for n in range(10)}
    assert lake["raw.products"].search("aaa", columns=["sku"]).to_arrow()["sku"].to_pylist() == ["p3"]
    assert "DONE 0" in started(tmp_path, "killed_run.py", str(shop.file), "").stdout, "all of it is done"
    assert [lake[name].verify() for name in ("raw.orders", "raw.products", "mart.spend")] == [[], [], []]
