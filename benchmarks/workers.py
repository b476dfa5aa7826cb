"""What disposable workers cost: `python -m benchmarks.workers`. One catalog, two servers, asked in turns.

One server does data work itself, the other in workers. A large query is measured by rows a second and by processor time
(of the server and its workers together, which others on the machine disturb less), a look-up of a name by its time.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import pyarrow as pa

from headwater import Catalog

ROWS = 2_000_000
TURNS = 9
LOOKUPS = 200


def serve(root: str, workers: int) -> tuple[subprocess.Popen[str], str]:
    told = ["--port", "0", "--no-access-log", "--data-workers", str(workers)]
    command = [sys.executable, "-m", "headwater", "serve", root, *told]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().split()[-1]


def query(url: str) -> float:
    """Rows a second of the whole table."""
    started = time.perf_counter()
    ask = {"k": 0, "vector": None}
    with httpx.stream("POST", f"{url}/v1/table/big/query", json=ask, timeout=120) as answer:
        answer.raise_for_status()
        for _ in answer.iter_raw():
            pass
    return ROWS / (time.perf_counter() - started)


def look_up(url: str) -> float:
    """Milliseconds of one look-up of a name."""
    with httpx.Client(base_url=url) as client:
        started = time.perf_counter()
        for _ in range(LOOKUPS):
            client.post("/v1/namespace/names/describe", json={}).raise_for_status()
        return (time.perf_counter() - started) / LOOKUPS * 1000


def cpu_seconds(pid: int) -> float:
    """Processor time of a process and its children so far."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    children = [child for task in tasks for child in (task / "children").read_text().split()]
    fields = [Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split() for one in (pid, *children)]
    return sum(int(field[11]) + int(field[12]) for field in fields) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = f"{folder}/lake"
        numbers = {f"c{place}": pa.array(range(place, ROWS + place), pa.int64()) for place in range(6)}
        texts = pa.array([f"text {number % 1000}" for number in range(ROWS)])
        Catalog(root).create_table("big", pa.table({**numbers, "s": texts}))
        Catalog(root).create_namespace("names")
        served = {"in the server": serve(root, 0), "in workers": serve(root, 2)}
        try:
            for _, url in served.values():
                query(url), query(url), look_up(url)
            found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in served}
            for _ in range(TURNS):
                for name, (process, url) in served.items():
                    before = cpu_seconds(process.pid)
                    rows = query(url)
                    found[name].append((rows, cpu_seconds(process.pid) - before, look_up(url)))
            for name, turns in found.items():
                rows, cpu, look = (statistics.median(turn[place] for turn in turns) for place in range(3))
                print(f"{name:14} {rows / 1e6:6.2f}M rows/s  {cpu:6.3f} s of CPU a query  {look:6.3f} ms a look-up")
        finally:
            for process, _ in served.values():
                process.terminate()
                process.wait(30)


if __name__ == "__main__":
    main()
