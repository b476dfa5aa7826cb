"""Jobs on executors: a backfill whose model is loaded once in a process, and that goes on where it was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headwater.catalog import Catalog
from headwater.errors import InvalidInputError
from headwater.pipeline import backfill

HERE = Path(__file__).parent
FEATURES = """
import os
from pathlib import Path

LOG = Path({log!r})


def note(kind, words):
    with LOG.open("a") as file:
        file.write("".join(f"{{kind}} {{os.getpid()}} {{word}}\\n" for word in words))


def embed(texts):
    note("loaded", ["model"])
    for text in texts:
        words = text.to_pylist()
        yield [[float(len(word)), {value}] for word in words]
        note("done", words)


class Model:
    def __init__(self):
        note("loaded", ["model"])

    def __call__(self, text):
        words = text.to_pylist()
        note("done", words)
        return [[float(len(word)), {value}] for word in words]


def slow(text):
    import time

    words = text.to_pylist()
    time.sleep(0.3)
    note("done", words)
    return [[float(len(word)), {value}] for word in words]


def failing(text):
    note("failed", ["x"])
    raise OSError("the model cannot be reached")
"""


class Texts:
    """A table whose vectors are stale, and the log of what its functions did."""

    def __init__(self, folder: Path, rows: int = 600) -> None:
        self.folder, self.log = folder, folder / "log"
        self.module = f"texts_features_{os.getpid()}_{abs(hash(str(folder)))}"
        self._write(1.0)
        sys.path.insert(0, str(folder))
        self.catalog = Catalog(str(folder / "lake"))
        table = self.catalog.create_stream_table(
            "raw.texts",
            {"id": "bigint", "text": "string"},
            keys=["id"],
            properties={"column.vector": self._column("slow", "1")},
        )
        table.upsert([{"id": number, "text": f"w{number}"} for number in range(rows)])
        table.publish()
        self.log.write_text("")

    def _write(self, value: float) -> None:
        text = FEATURES.format(log=str(self.log), value=value)
        (self.folder / f"{self.module}.py").write_text(text)

    def _column(self, function: str, version: str) -> str:
        named = {"function": f"{self.module}:{function}", "inputs": ["text"], "type": "float32[2]"}
        return json.dumps({**named, "version": version})

    def change(self, function: str, version: str) -> None:
        """Another function: every row is stale."""
        table = self.catalog["raw.texts"]
        table.set_properties({"column.vector": self._column(function, version)})
        table.publish()
        self.log.write_text("")

    def noted(self, kind: str) -> list[str]:
        lines = [line.split() for line in self.log.read_text().splitlines()]
        return [word for what, _, word in lines if what == kind]

    def vectors(self) -> dict[int, list[float]]:
        rows = self.catalog["raw.texts"].serving.to_arrow().to_pylist()
        return {row["id"]: row["vector"] for row in rows}


@pytest.fixture
def texts(tmp_path: Path) -> Iterator[Texts]:
    made = Texts(tmp_path)
    yield made
    sys.path.remove(str(tmp_path))
    sys.modules.pop(made.module, None)


@pytest.mark.long
def test_executors_compute_stale_values_with_a_model_that_is_loaded_once_in_a_process(
    spark: SparkSession, texts: Texts
) -> None:
    for version, function in (("2", "embed"), ("3", "Model")):
        texts.change(function, version)
        assert texts.catalog["raw.texts"].stale() == {"vector": 600}
        report = backfill(spark, texts.catalog, "raw.texts", batch=50)
        assert (report.rows, texts.catalog["raw.texts"].stale()) == (600, {"vector": 0})
        loaded = texts.log.read_text().splitlines()
        processes = {line.split()[1] for line in loaded}
        assert len(texts.noted("loaded")) == len(processes) < 12
        assert texts.vectors() == {number: [float(len(f"w{number}")), 1.0] for number in range(600)}
    assert texts.catalog["raw.texts"].verify() == []
    texts.change("failing", "4")
    with pytest.raises(InvalidInputError, match="failed 3 times for a batch of 50 rows: OSError: the model cannot"):
        backfill(spark, texts.catalog, "raw.texts", batch=50)
    assert texts.catalog["raw.texts"].stale() == {"vector": 600}


def start(texts: Texts) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "PYSPARK_PYTHON": sys.executable}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parents[1]), str(texts.folder)])
    command = [sys.executable, str(HERE / "killed_backfill.py"), str(texts.folder / "lake")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True)


def kept(texts: Texts) -> list[Any]:
    """What batches have done, as they keep it."""
    return [json.loads(path.read_text()) for path in (texts.folder / "lake").rglob("backfill/*/*.json")]


@pytest.mark.long
def test_a_backfill_that_was_killed_does_no_finished_batch_again(texts: Texts) -> None:
    texts.change("slow", "2")
    driver = start(texts)
    limit = time.monotonic() + 400
    while len(kept(texts)) < 3 and time.monotonic() < limit:
        time.sleep(0.05)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    finished = sum(each["rows"] for each in kept(texts))
    assert 150 <= finished < 600
    assert texts.catalog["raw.texts"].stale() == {"vector": 600}
    texts.log.write_text("")
    again = start(texts)
    out, _ = again.communicate(timeout=240)
    assert "DONE 600" in out
    words = texts.noted("done")
    at_work = 2 * 50  # a Python worker outlives its driver by the batch in hand, which may be finished then
    assert 600 - finished - at_work <= len(words) == len(set(words)) <= 600 - finished
    assert texts.vectors() == {number: [float(len(f"w{number}")), 1.0] for number in range(600)}
    assert kept(texts) == []
    assert texts.catalog["raw.texts"].verify() == []
