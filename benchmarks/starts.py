"""Starts: what a command, an import and a server cost before they do anything: `python -m benchmarks.starts [turns]`.

CPU seconds of whole processes, with their bytecode compiled, as an installed package has it. Wall seconds of a server:
from its start to its first answer, and its first query beside a later one.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from benchmarks.figures import TURNS
from benchmarks.measure import Report

COLUMNS = ("what", "median", "least", "most", "unit", "goal", "holds")
FLOOR = "import pyarrow, pydantic"
"""Both are needed by the interface that a catalog implements: no start of a catalog costs less."""
LOOK_UP = "import headwater; assert 'prod.cities' in headwater.Catalog('lake')"
COMMANDS = {
    "headwater ls": ("ls", "lake"),
    "headwater show": ("show", "lake", "prod.cities"),
    "headwater head": ("head", "lake", "prod.cities"),
    "headwater search": ("search", "lake", "prod.cities", "--vector", "1,0,0,0"),
    "headwater query": ("query", "-c", "lake", "SELECT count(*) AS n FROM prod.cities"),
}
VERB, IMPORT, CATALOG, ANSWER, QUERY = 0.6, 0.1, 0.3, 2.0, 0.3
SERVE = "import sys; from headwater.cli import main; sys.exit(main())"


def cpu(command: list[str], folder: Path, environment: dict[str, str]) -> float:
    """Return the CPU seconds of a process and its children, itself and the system for it."""
    before = os.times()
    subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return after.children_user - before.children_user + after.children_system - before.children_system


def compiled(folder: Path) -> dict[str, str]:
    """Return an environment in which bytecode is kept, whatever this process was told."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    root = str(Path(__file__).parents[1])
    return {**kept, "PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "PYTHONPATH": root}


def server(folder: Path, environment: dict[str, str]) -> tuple[float, float, float, float]:
    """Start a server. Return the seconds until it answers, its CPU seconds by then, and its first and later queries."""
    began = time.perf_counter()
    command = [sys.executable, "-c", SERVE, "serve", "lake", "--port", "0"]
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        url = next(word for line in process.stdout for word in line.split() if word.startswith("http://"))
        _ask(f"{url.rstrip('/')}/health/ready")
        answered, used = time.perf_counter() - began, _tree_cpu(process.pid)
        body = json.dumps({"k": 1, "vector": {"single_vector": [1, 0, 0, 0]}}).encode()
        spent = [_seconds(lambda: _ask(f"{url.rstrip('/')}/v1/table/prod$cities/query", body)) for _ in range(6)]
        return answered, used, spent[0], statistics.median(spent[1:])
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)


def _tree_cpu(pid: int) -> float:
    """Return the CPU seconds of a process and all below it."""
    ticks = os.sysconf("SC_CLK_TCK")
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children = " ".join(each.read_text() for each in Path(f"/proc/{pid}/task").glob("*/children")).split()
    return (int(fields[11]) + int(fields[12])) / ticks + sum(_tree_cpu(int(child)) for child in children)


def _ask(url: str, body: bytes | None = None) -> bytes:
    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return bytes(answer.read())


def _seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def line(report: Report, what: str, turns: list[float], unit: str, most: float | None) -> None:
    verdict = report.measured(what, turns, unit, most)
    shown = "" if most is None else f"{most:g}"
    report.add(what, *(f"{value:.3f}" for value in (statistics.median(turns), min(turns), max(turns))),
               unit, shown, verdict)  # fmt: skip


def main(turns: int) -> None:
    report = Report("starts", "python -m benchmarks.starts", COLUMNS)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        environment, headwater = compiled(folder), [sys.executable, "-m", "headwater"]
        subprocess.run(
            [*headwater, "create", "lake", "prod.cities", "--schema", "id int, name text, v vector(4)"],
            cwd=folder, env=environment, check=True, capture_output=True,
        )  # fmt: skip
        row = b'{"id": 1, "name": "Basel", "v": [1, 0, 0, 0]}\n'
        insert = [*headwater, "insert", "lake", "prod.cities", "-"]
        subprocess.run(insert, cwd=folder, env=environment, check=True, input=row, capture_output=True)
        programs = {
            "python -c pass": ([sys.executable, "-c", "pass"], None),
            FLOOR: ([sys.executable, "-c", FLOOR], None),
            "import headwater": ([sys.executable, "-c", "import headwater"], IMPORT),
            "Catalog(path) and a first look-up": ([sys.executable, "-c", LOOK_UP], CATALOG),
            **{name: ([*headwater, *words], VERB) for name, words in COMMANDS.items()},
        }
        for command, _ in programs.values():
            cpu(command, folder, environment)  # compiles what it imports
        spent: dict[str, list[float]] = {name: [] for name in programs}
        for _ in range(turns):
            for name, (command, _) in programs.items():
                spent[name].append(cpu(command, folder, environment))
        for name, (_, goal) in programs.items():
            line(report, name, spent[name], "s of CPU", goal)
        starts = [server(folder, environment) for _ in range(turns + 1)][1:]
        answers, used, firsts, laters = (list(each) for each in zip(*starts, strict=True))
        line(report, "a server answers after its start", answers, "s", ANSWER)
        line(report, "CPU of the server and its workers until then", used, "s of CPU", None)
        line(report, "its first query", firsts, "s", QUERY)
        line(report, "a later query", laters, "s", None)
    report.write(
        f"{turns} turns, the programs one after the other in each. `{FLOOR}` is the floor of everything that opens a "
        f"catalog. Load average at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores."
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else TURNS)
