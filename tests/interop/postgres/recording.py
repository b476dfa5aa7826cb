"""Runs the story on a real PostgreSQL and keeps what Debezium writes of it, and the rows at each moment.

`python -m tests.interop.postgres.recording <python with pydbzengine>` renews the recorded events in `recorded/`.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.interop.postgres.server import Postgres, running_postgres
from tests.interop.postgres.story import MOMENTS, SETUP, TABLES

RECORDED = Path(__file__).parent / "recorded"
PATIENCE_S = 300.0
NO_SCHEMA = {f"{part}converter.schemas.enable": "false" for part in ("", "key.", "value.")}
WAYS: tuple[dict[str, Any], ...] = (
    {"name": "schemas"},
    {"name": "plain", "settings": {**NO_SCHEMA, "decimal.handling.mode": "string"}},
    {
        "name": "texts",
        "settings": {
            **NO_SCHEMA,
            "decimal.handling.mode": "string",
            "hstore.handling.mode": "map",
            "time.precision.mode": "isostring",
        },
    },
    {"name": "cloud", "format": "cloudevents"},
)


@dataclass(frozen=True)
class Recording:
    """What each way wrote until each moment, as lines, and the rows of each table then, as JSON of PostgreSQL."""

    lines: dict[str, list[list[str]]]
    rows: list[dict[str, str]]


def record(python: str) -> Recording:
    """Run the story once; every way follows it with a slot of its own."""
    with running_postgres() as server, tempfile.TemporaryDirectory(prefix="headwater-dbz-") as folder:
        server.run(SETUP)
        server.run(MOMENTS[0])
        with _capture(python, server, Path(folder)) as lines_at:
            rows: list[dict[str, str]] = []
            lines: dict[str, list[list[str]]] = {way["name"]: [] for way in WAYS}
            for number, moment in enumerate(MOMENTS):
                if number:
                    server.run(moment)
                rows.append({table: _rows(server, table) for table in TABLES})
                for name, found in lines_at(number).items():
                    lines[name].append(found)
    return Recording(lines, rows)


def _rows(server: Postgres, table: str) -> str:
    return server.run(f"SELECT coalesce(json_agg({table} ORDER BY id), '[]') FROM {table}")


class _capture:
    """The process that captures, as long as the block runs. Called with a moment, what was written until then."""

    def __init__(self, python: str, server: Postgres, folder: Path) -> None:
        self._server, self._folder = server, folder
        line = [python, str(Path(__file__).parent / "capture.py"), str(server.port), str(folder), json.dumps(WAYS)]
        self._log = (folder / "log").open("w+")
        self._process = subprocess.Popen(line, stdout=self._log, stderr=subprocess.STDOUT, cwd=folder)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()

    def __call__(self, moment: int) -> dict[str, list[str]]:
        """Write a mark and wait until every way has seen it; the lines since the mark before."""
        self._server.run(f"INSERT INTO zz_moments VALUES ({moment})")
        end = time.monotonic() + PATIENCE_S
        found: dict[str, list[str]] = {}
        while len(found) < len(WAYS):
            if self._process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"Debezium did not follow: {(self._folder / 'log').read_text()[-3000:]}")
            found = {way["name"]: part for way in WAYS if (part := self._since(way["name"], moment)) is not None}
            time.sleep(0.2)
        return found

    def _since(self, name: str, moment: int) -> list[str] | None:
        path = self._folder / f"{name}.jsonl"
        parts: list[list[str]] = [[]]
        for line in path.read_text().splitlines() if path.exists() else ():
            if json.loads(line)["topic"].endswith(".zz_moments"):
                parts.append([])
            else:
                parts[-1].append(line)
        return parts[moment] if len(parts) > moment + 1 else None


def of_table(lines: list[str], table: str) -> Iterator[str]:
    """The records of one table: key and value as they are in its topic."""
    for line in lines:
        record = json.loads(line)
        if record["topic"].endswith(f".{table}"):
            yield json.dumps({"key": record["key"], "value": record["value"]})


def save(recording: Recording) -> None:
    RECORDED.mkdir(exist_ok=True)
    kept = {**{f"{name}.json": parts for name, parts in recording.lines.items()}, "rows.json": recording.rows}
    for name, content in kept.items():
        text = json.dumps(content, ensure_ascii=False).encode()
        (RECORDED / f"{name}.gz").write_bytes(gzip.compress(text, mtime=0))


def load() -> Recording:
    lines = {way["name"]: _load(f"{way['name']}.json") for way in WAYS}
    return Recording(lines, _load("rows.json"))


def _load(name: str) -> Any:
    return json.loads(gzip.decompress((RECORDED / f"{name}.gz").read_bytes()))


if __name__ == "__main__":
    save(record(sys.argv[1]))
