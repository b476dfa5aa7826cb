"""Environments that tests make for packages that are too heavy for everybody's."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

REQUIREMENTS = Path(__file__).parents[1] / "requirements"


def python_with(pins: str, home: Path) -> str:
    """Return a Python that has what this one has, and beside it the packages of a file of pins.

    The test is skipped, and says why, if they cannot be installed.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    python = home / "bin" / "python"
    beside = home / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages" / "beside.pth"
    beside.write_text("\n".join(sysconfig.get_paths()[key] for key in ("purelib", "platlib")) + "\n")
    wanted = home / "pins.txt"
    wanted.write_text("".join(_missing((REQUIREMENTS / pins).read_text())))
    line = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--require-hashes"]
    done = subprocess.run([*line, "-r", str(wanted)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{pins} cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    return str(python)


def _missing(pins: str) -> Iterator[str]:
    """Return the pins of packages that this environment has not."""
    for pin in re.findall(r"^[a-z].*?(?=^[a-z]|\Z)", pins, re.MULTILINE | re.DOTALL):
        name, number = re.match(r"(\S+)==(\S+)", pin).groups()  # type: ignore[union-attr]
        try:
            known = version(name)
        except PackageNotFoundError:
            known = ""
        if known != number:
            yield pin
