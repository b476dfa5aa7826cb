"""A small Spark cluster of its own: a master and two workers, each at a loopback address of its own.

Spark starts a speculative copy of a task only on another host, and all workers of `local-cluster` are on one.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark

HOSTS = ("127.0.0.1", "127.0.0.2")
PATIENCE_S = 120


def can_listen(host: str) -> bool:
    """Not every system has more than one loopback address."""
    with contextlib.suppress(OSError), socket.socket() as probe:
        probe.bind((host, 0))
        return True
    return False


@contextlib.contextmanager
def cluster(folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """The address of the master, as long as the block runs."""
    running: list[subprocess.Popen[bytes]] = []
    with socket.socket() as probe:
        probe.bind((HOSTS[0], 0))
        port = probe.getsockname()[1]
    url = f"spark://{HOSTS[0]}:{port}"
    master = ["master.Master", "--host", HOSTS[0], "--port", str(port), "--webui-port", "0"]
    try:
        running.append(_start(folder, environment, HOSTS[0], master))
        _await_port(port)
        for host in HOSTS:
            options = ["--host", host, "--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", str(folder)]
            running.append(_start(folder, environment, host, ["worker.Worker", *options, url]))
        yield url
    finally:
        for process in reversed(running):
            process.terminate()
        for process in running:
            process.wait(PATIENCE_S)


def _start(folder: Path, environment: dict[str, str], host: str, command: list[str]) -> subprocess.Popen[bytes]:
    launcher = Path(pyspark.__file__).parent / "bin" / "spark-class"
    values = {**environment, "SPARK_LOCAL_IP": host, "SPARK_DAEMON_MEMORY": "256m", "PYSPARK_PYTHON": sys.executable}
    with (folder / f"{command[0]}-{host}.log").open("wb") as log:
        line = [str(launcher), f"org.apache.spark.deploy.{command[0]}", *command[1:]]
        return subprocess.Popen(line, stdout=log, stderr=log, env={**os.environ, **values}, cwd=folder)


def _await_port(port: int) -> None:
    limit = time.monotonic() + PATIENCE_S
    while time.monotonic() < limit:
        with contextlib.suppress(OSError), socket.create_connection((HOSTS[0], port), 1):
            return
        time.sleep(0.1)
    raise TimeoutError("the master does not answer")
