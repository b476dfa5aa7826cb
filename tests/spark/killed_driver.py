"""A Python worker that fails on purpose: run as the Python of a Spark session, see test_faults.py.

FAULT=kill-before-commit: kills the JVM when a commit is asked for. FAULT=fail-first-write: the first write of
each run fails after its files are on disk, as a task does whose answer is lost.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from headwater.spark import worker
from headwater.tables.commit import TableCommitter

_commit = TableCommitter._commit
_write = worker.write  # type: ignore[attr-defined]


def kill(self: TableCommitter, *args: Any, **options: Any) -> int:
    if not options.get("create"):
        os.kill(os.getppid(), signal.SIGKILL)
        os._exit(1)
    return _commit(self, *args, **options)


def fail_once(*args: Any, **options: Any) -> Any:
    written = _write(*args, **options)
    marker = Path(os.environ["FAULT_MARKER"])
    if not marker.exists():
        marker.touch()
        raise OSError("the answer was lost")
    return written


if __name__ == "__main__":
    if os.environ.get("FAULT") == "kill-before-commit":
        TableCommitter._commit = kill  # type: ignore[method-assign]
    if os.environ.get("FAULT") == "fail-first-write":
        worker.write = fail_once  # type: ignore[attr-defined]
    sys.argv = sys.argv[:1]
    worker.main()
