"""lance-spark, as published, against our server: read, write and DDL, in the environment that it is made for.

PySpark comes from PyPI and the jars from Maven Central, by version and hash.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headwater import DirectoryNamespace, MetastoreNamespace
from headwater.clock import SystemClock
from headwater.rest.auth.keys import create_key
from headwater.rest.server import start_in_thread

PINS = Path(__file__).parent / "lance_spark"
MOST_SECONDS = 1200
FOUND: dict[str, Any] = {
    "SHOW NAMESPACES IN {c}": [["prod"]],
    "SELECT * FROM {c}.prod.users ORDER BY id": [[1, "ann", 0.5], [2, "bo", 1.5], [3, "cy", 2.5]],
    "SELECT name FROM {c}.prod.users WHERE id > 1 AND score < 2.0": [["bo"]],
    "SELECT id, name FROM {c}.prod.users ORDER BY id": [[1, "anna"], [3, "cyd"], [4, "di"]],
    "SELECT count(*) FROM {c}.prod.users VERSION AS OF 2": [[3]],
    "DESCRIBE TABLE {c}.prod.users": [["id", "bigint", None], ["name", "string", None], ["score", "double", None]],
    "SELECT * FROM {c}.prod.one": [[7]],
    "SELECT * FROM {c}.prod.empty": [[1, "ann"]],
}


def fetched(command: list[str], folder: Path) -> None:
    """Run what downloads something; skip where it cannot, and fail where it was given other bytes."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]}: lance-spark is not tried")
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{command[0]} did not end within {MOST_SECONDS} s: lance-spark is not tried")
    assert "DO NOT MATCH THE HASHES" not in done.stdout + done.stderr, done.stderr[-2000:]
    if done.returncode:
        pytest.skip(f"{command[0]} failed, so lance-spark is not tried: {(done.stdout + done.stderr)[-400:]}")


@pytest.fixture
def environment(tmp_path: Path) -> tuple[str, str]:
    """The Python of an environment with PySpark 3.5, and the class path of lance-spark."""
    if shutil.which("java") is None:
        pytest.skip("no Java: lance-spark is not tried")
    jars, m2 = tmp_path / "jars", tmp_path / "m2"
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
    fetched(["mvn", "-q", "-B", "-f", str(PINS / "pom.xml"), f"-Dmaven.repo.local={m2}", *goal], tmp_path)
    hashes = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in jars.glob("*.jar")}
    lines = (PINS / "jars.sha256").read_text().splitlines()
    pinned = {name: digest for digest, name in (line.split() for line in lines)}
    assert hashes == pinned
    fetched([sys.executable, "-m", "venv", str(tmp_path / "venv")], tmp_path)
    python = str(tmp_path / "venv" / "bin" / "python")
    pip = [python, "-m", "pip", "install", "-q", "--require-hashes", "--no-deps"]
    needed = [line for line in (PINS / "requirements.txt").read_text().splitlines() if not line.startswith("#")]
    for number, line in enumerate(needed):  # setuptools first: it builds PySpark
        pin = tmp_path / f"{number}.txt"
        pin.write_text(line)
        fetched([*pip, "--no-build-isolation", "-r", str(pin)], tmp_path)
    return python, f"{jars}/*"


@pytest.mark.long
def test_lance_spark_reads_writes_and_makes_tables(environment: tuple[str, str], tmp_path: Path) -> None:
    python, jars = environment
    lake = MetastoreNamespace(root=str(tmp_path / "lake"))
    key = create_key(lake.store, SystemClock(), "admin", [])[1]
    servers = {"lake": start_in_thread(lake), "plain": start_in_thread(DirectoryNamespace(root=str(tmp_path / "dir")))}
    catalogs = {name: {"impl": "rest", "uri": server.url} for name, server in servers.items()}
    catalogs["lake"]["headers.x-api-key"] = key
    try:
        command = [python, str(PINS / "statements.py"), jars, json.dumps(catalogs)]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=MOST_SECONDS)
    finally:
        for server in servers.values():
            server.stop()
    assert ran.returncode == 0, ran.stderr[-3000:]
    outcome = json.loads(ran.stdout.splitlines()[-1])
    for name, said in outcome.items():
        assert {text: rows for text, rows in said if isinstance(rows, str)} == {}
        rows = dict(said)
        for text, wanted in FOUND.items():
            assert rows[text.format(c=name)] == wanted, (name, text)
