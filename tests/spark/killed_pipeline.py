"""Takes files in and publishes them by executors, in a process of its own that dies as it is told: see test_killed.py.

Arguments: a folder, and before which commit the driver kills itself (0: never). `die_once.py` in the folder is the
module of a derived column, whose first call kills the worker that makes it.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from headwater.catalog import Catalog
from headwater.metastore import Metastore
from headwater.pipeline import ingest, publish
from headwater.work import SparkRunner

LEFT = [int(sys.argv[2])]
_commit = Metastore._commit


def dying(self: Metastore, tx: Any) -> Any:
    if not tx.draft.empty:
        LEFT[0] -= 1
        if LEFT[0] == 0:
            os.killpg(0, signal.SIGKILL)
    return _commit(self, tx)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    sys.path.insert(0, str(folder))
    Metastore._commit = dying  # type: ignore[method-assign]
    builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    catalog = Catalog(str(folder / "lake"))
    runner = SparkRunner(spark, driver_rows=0)
    ingest(runner, catalog, "raw.t", str(folder / "in" / "*.json"), name="s")
    print("DONE", publish(runner, catalog, "raw.t").version)
