"""Child tables on Spark: executors call the function, and the rows are those of one process."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headwater.streams.serving import publish_tasks
from tests.pipeline.test_children import CHUNKS, PIPELINE, Folder, _document, _edits


def test_executors_make_children_and_the_driver_calls_no_function(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish_tasks, "FUNCTION_ROWS", 2)  # several shares of a few rows
    noted = CHUNKS.replace('noted("chunked", 1)', 'open(Path(FOLDER) / f"by-{os.getpid()}", "a").close()')
    folder = Folder(tmp_path, PIPELINE.replace('engine = "embedded"\n', ""), "import os\n" + noted)
    rng, held = random.Random(5), dict[int, list[str]]()
    folder.deliver("00", [_document(id, f"a{id}.b.b") for id in range(20)])
    for step in range(3):
        folder.deliver(f"{step + 1:02}", _edits(rng, held))
        done: Any = folder.run(spark=spark)
        assert folder.chunks() == folder.expected()
        (report,) = [each for each in done.reports if each.job == "expand"]
        assert (report.where.place, report.where.tasks > 0) == ("executors", True)
    folder.catalog["docs.chunks"].delete("text = 'b'")  # all are made again, of fragments and the tail
    folder.deliver("99", [_document(3, "c.d"), _document(4, None, "d")])
    folder.run(spark=spark)
    assert folder.chunks() == folder.expected()
    assert not (tmp_path / f"by-{os.getpid()}").exists()
    sys.modules.pop("own_chunks", None)
