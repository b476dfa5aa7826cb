"""A Python worker that kills its driver at the commit of a stream's batch: see test_stream_faults.py.

FAULT=before: before the batch is committed. FAULT=after: when it is, and Spark has not yet noted that.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from headwater.spark import calls, worker
from headwater.spark.stream_writes import land_batch


def killing(*arguments: Any) -> int:
    fault = os.environ["FAULT"]
    done = land_batch(*arguments) if fault != "before" else 0
    if fault in ("before", "after"):
        os.kill(os.getppid(), signal.SIGKILL)
        os._exit(1)
    return done


if __name__ == "__main__":
    vars(calls)["land_batch"] = killing
    sys.argv = sys.argv[:1]
    worker.main()
