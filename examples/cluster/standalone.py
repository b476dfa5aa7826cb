"""A standalone Spark cluster on this machine, from the PySpark package alone: `python examples/cluster/standalone.py`.

A master and two workers with one core each. It prints the master's address and runs until Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyspark

from headwater.spark.java_runtime import require_java

SPARK = Path(pyspark.__file__).parent
MASTER, WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
ADDRESS = re.compile(r"Starting Spark master at (spark://\S+)")
REGISTERED = "Successfully registered with master"
WAIT_S = 240.0


@contextmanager
def cluster(
    folder: Path, workers: int = 2, cores: int = 1, memory: str = "1g", python: str = sys.executable
) -> Iterator[str]:
    """Yield the address of a new cluster, whose logs and work folders are in `folder`. It ends with the block.

    `python`: the interpreter that executors start, which needs headwater and what your functions import.
    """
    require_java()
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PYSPARK_PYTHON": python, "SPARK_HOME": str(SPARK), "SPARK_LOCAL_IP": "127.0.0.1"}
    running: list[subprocess.Popen[bytes]] = []

    def start(name: str, arguments: Sequence[str]) -> Path:
        log = folder / f"{name}.log"
        with log.open("wb") as out:
            command = [str(SPARK / "bin" / "spark-class"), *arguments]
            running.append(subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True))
        return log

    try:
        log = start("master", [MASTER, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"])
        address = waited(log, ADDRESS.pattern)
        for number in range(workers):
            options = [
                "--cores",
                str(cores),
                "--memory",
                memory,
                "--webui-port",
                "0",
                "--work-dir",
                str(folder / "work"),
            ]
            waited(start(f"worker-{number}", [WORKER, "--host", "127.0.0.1", *options, address]), f"({REGISTERED})")
        yield address
    finally:
        for process in running:
            os.killpg(process.pid, signal.SIGTERM)
        for process in running:
            process.wait()


def waited(log: Path, pattern: str) -> str:
    """Return what a log says, when it does."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        found = re.search(pattern, log.read_text(errors="replace"))
        if found:
            return found[1]
        time.sleep(0.2)
    raise TimeoutError(f"{log} does not say {pattern!r}.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("spark-cluster"), help="logs and work folders")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cores", type=int, default=1, help="of each worker")
    parser.add_argument("--memory", default="1g", help="of each worker")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with cluster(given.folder.resolve(), given.workers, given.cores, given.memory) as address:
        print(f"headwater run pipeline.toml --master {address}", flush=True)
        try:
            signal.pause()
        except KeyboardInterrupt:
            print("stopped")


if __name__ == "__main__":
    main()
