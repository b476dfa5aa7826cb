"""Comparisons with a peer, kept with all that they depend on: their turns, the machine, its disk, versions, the code.

A benchmark calls `Report.compared` for each comparison, and `Report.write` keeps them in `results/figures/NAME.json`.
`python -m benchmarks.page` makes the page of all of them. `MEASURES` names the parts of the package that a benchmark
measures: a figure is current as long as their files are what they were.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
KEPT = Path(__file__).parent / "results" / "figures"
TURNS = 5
"""Turns that a ratio needs before anybody should believe its spread."""
PEERS = ("pylance", "lancedb", "lance-namespace", "deltalake", "pyspark", "duckdb", "pyarrow", "obstore", "uvicorn")

_NAMES = ("metastore", "registries", "store", "namespace", "registry.py", "names.py", "model.py")
_STREAMS = ("streams", "metastore", "tables", "store")
_SPARK = ("spark", "tables", "pipeline", "work")
MEASURES: dict[str, tuple[str, ...]] = {
    "starts": ("imports.py", "__init__.py", "cli", "catalog", "config.py", "rest/serve.py", "rest/work.py", "workers"),
    "catalog": (*_NAMES, "catalog"),
    "directory": _NAMES,
    "metastore": ("metastore", "store"),
    "versions": ("namespace/versions", "registries", "tables/commit", "turns.py"),
    "rest": ("rest", "namespace", "registries", "workers"),
    "web": ("web", "rest"),
    "workers": ("workers", "rest/work.py"),
    "streams": _STREAMS,
    "pipeline": ("pipeline", *_STREAMS, "work"),
    "scale": ("metastore", "streams", "namespace", "store"),
    "spark": _SPARK,
    "tpch": _SPARK,
    "live": ("pipeline", *_STREAMS, "work"),
    "limits": (*_NAMES, "metastore", "catalog", "rest"),
    "trees": (),
}
"""Parts of `headwater/` that a benchmark measures, by the first word of its name; none: it compares two trees."""


@dataclass(frozen=True)
class Compared:
    """One comparison: each turn of ours and of the peer's.

    `unit`: `/s` if more is better, otherwise a unit of time or size. `goal`: the least ratio, if there is one. A ratio
    is always how many times as good as the peer's ours is.
    """

    what: str
    unit: str
    ours: tuple[float, ...]
    theirs: tuple[float, ...]
    peer: str
    goal: float | None = None

    @property
    def ratios(self) -> list[float]:
        """The ratio of each turn, sorted; a turn is both sides, one right after the other."""
        pairs = zip(self.ours, self.theirs, strict=True)
        return sorted(mine / peer if self.unit == "/s" else peer / mine for mine, peer in pairs)

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def holds(self) -> bool | None:
        return None if self.goal is None else self.ratio >= self.goal


@dataclass(frozen=True)
class Goal:
    """One figure without a peer: its turns, and the most that it may be."""

    what: str
    unit: str
    turns: tuple[float, ...]
    most: float | None = None

    @property
    def value(self) -> float:
        return statistics.median(self.turns)

    @property
    def holds(self) -> bool | None:
        return None if self.most is None else self.value <= self.most


@dataclass(frozen=True)
class Run:
    """The figures of one run of a benchmark, and what they were taken on."""

    name: str
    command: str
    taken: str
    machine: dict[str, Any]
    disk: dict[str, float]
    versions: dict[str, str]
    code: dict[str, str]
    compared: tuple[Compared, ...] = ()
    goals: tuple[Goal, ...] = ()

    @property
    def changed(self) -> list[str]:
        """The measured parts of the package that have changed since."""
        return [part for part, digest in self.code.items() if digest_of(part) != digest]


def keep(name: str, command: str, compared: Iterable[Compared], goals: Iterable[Goal]) -> Run:
    """Write the figures of a run that ends now to their file."""
    run = Run(
        name,
        command,
        time.strftime("%Y-%m-%d"),
        machine(),
        disk_speed(),
        versions(),
        {part: digest_of(part) for part in measured_by(name)},
        tuple(compared),
        tuple(goals),
    )
    KEPT.mkdir(parents=True, exist_ok=True)
    (KEPT / f"{name}.json").write_text(json.dumps(asdict(run), indent=1) + "\n")
    return run


def kept() -> list[Run]:
    """Return the runs that were kept, by name."""
    return [_read(path) for path in sorted(KEPT.glob("*.json"))]


def _read(path: Path) -> Run:
    found = json.loads(path.read_text())
    compared = [Compared(**{**each, "ours": tuple(each["ours"]), "theirs": tuple(each["theirs"])})
                for each in found.pop("compared")]  # fmt: skip
    goals = [Goal(**{**each, "turns": tuple(each["turns"])}) for each in found.pop("goals")]
    return Run(**found, compared=tuple(compared), goals=tuple(goals))


def measured_by(name: str) -> tuple[str, ...]:
    """Return the parts that a benchmark measures. Raise KeyError for one that `MEASURES` does not know."""
    return MEASURES[name if name in MEASURES else "trees" if "trees" in name else name.partition("-")[0]]


def digest_of(part: str) -> str:
    """Return a digest of the code of a file or folder of the package; empty if it is gone."""
    path = ROOT / "headwater" / part
    files = [path] if path.is_file() else sorted(path.rglob("*.py"))
    if not files:
        return ""
    found = hashlib.sha256()
    for file in files:
        found.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def machine() -> dict[str, Any]:
    """Return the processor, its cores, the memory, the system, Python, and the load of the last minute."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(pages / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
    }


def disk_speed(folder: str | None = None, files: int = 100, megabytes: int = 64) -> dict[str, float]:
    """Return what the disk of a folder does by itself: one durable file, one durable append, and a long write.

    A file is durable when it and its folder are synced: nobody commits faster than that.
    """
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        whole = [_seconds(lambda at=at: _durable_file(Path(scratch) / f"{at}")) for at in range(files)]  # type: ignore[misc]
        with open(Path(scratch) / "log", "ab", buffering=0) as log:
            appends = [_seconds(lambda: _append(log.fileno(), b"x" * 200)) for _ in range(files)]
        block = os.urandom(1 << 20)
        with open(Path(scratch) / "long", "wb", buffering=0) as long:
            took = _seconds(lambda: _append(long.fileno(), *(block for _ in range(megabytes))))
    return {
        "durable_file_ms": round(statistics.median(whole) * 1000, 3),
        "durable_append_ms": round(statistics.median(appends) * 1000, 3),
        "write_mb_per_s": round(megabytes / took, 1),
    }


def _durable_file(path: Path) -> None:
    with open(path, "wb", buffering=0) as file:
        file.write(b"x" * 200)
        os.fsync(file.fileno())
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def _append(file: int, *blocks: bytes) -> None:
    for block in blocks:
        os.write(file, block)
    os.fdatasync(file)


def _seconds(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def versions(names: Sequence[str] = PEERS) -> dict[str, str]:
    """Return the installed versions of the packages that a comparison may have as its peer or stands on."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
