"""Runs a pipeline by executors, in a process of its own that dies in the step that it is told: see test_killed.py.

Arguments: the pipeline file, and how the name of that step begins (empty: none). All that executors do for the step is
done by then, and its first commit is not.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from typing import Any

from headwater.metastore import Metastore
from headwater.pipeline import read_pipeline, run_pipeline
from headwater.work.tasks import SPARK, PipelineEngine

STEP = [""]
_commit = Metastore._commit


def say(text: str) -> None:
    STEP[0] = text


def dying(self: Metastore, tx: Any) -> Any:
    if sys.argv[2] and STEP[0].startswith(sys.argv[2]) and not tx.draft.empty:
        os.killpg(0, signal.SIGKILL)
    return _commit(self, tx)


if __name__ == "__main__":
    Metastore._commit = dying  # type: ignore[method-assign]
    engine = PipelineEngine(SPARK, "local[2]", {"spark.ui.enabled": "false"}, driver_rows=0)
    done = run_pipeline(replace(read_pipeline(sys.argv[1]), engine=engine), say=say)
    print("DONE", len(done.plan.steps))
