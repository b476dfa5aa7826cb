"""A Python worker that fails on purpose: run as the Python of a Spark session, see test_faults.py.

FAULT=kill-before-commit: kills the JVM when a commit is asked for. FAULT=fail-first-write: the first write of
each run fails after its files are on disk, as a task does whose answer is lost.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from headwater.spark import stream_writes, worker
from headwater.tables.commit.committer import TableCommitter
from headwater.tables.write import data_files

_commit = TableCommitter._commit


def kill_before_landing(*args: Any) -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    os._exit(1)


def kill(self: TableCommitter, *args: Any, **options: Any) -> int:
    if not options.get("create"):
        os.kill(os.getppid(), signal.SIGKILL)
        os._exit(1)
    return _commit(self, *args, **options)


def failing_once(write: Any) -> Any:
    def fail_once(*args: Any, **options: Any) -> Any:
        written = write(*args, **options)
        with suppress(FileExistsError):
            Path(os.environ["FAULT_MARKER"]).touch(exist_ok=False)  # of two tasks at once, one
            raise OSError("the answer was lost")
        return written

    return fail_once


if __name__ == "__main__":
    if os.environ.get("FAULT") == "kill-before-commit":
        TableCommitter._commit = kill  # type: ignore[method-assign]
        stream_writes.land_statement = kill_before_landing  # type: ignore[attr-defined, assignment]
    if os.environ.get("FAULT") == "fail-first-write":
        data_files.write = failing_once(data_files.write)
        stream_writes.write_events = failing_once(stream_writes.write_events)
    sys.argv = sys.argv[:1]
    worker.main()
