"""docs/guides/notebooks.md as a notebook: Jupyter executes its cells, and the HTML of it has the pictures.

Jupyter is 60 MB: `make test-all` runs this, in an environment that the test makes for itself.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.docs.blocks import FENCE, ROOT
from tests.environments import python_with

PAGE = ROOT / "docs" / "guides" / "notebooks.md"
EVERY_VALUE = "get_ipython().ast_node_interactivity = 'all'"
"""The first cell: each line that is an expression shows itself, and not only the last of a cell."""


def cells() -> list[str]:
    """Return the Python blocks of the guide with the cells of IPython, without the pipeline that needs a session."""
    blocks = [fence for fence in FENCE.finditer(PAGE.read_text()) if fence["language"] == "python"]
    return [EVERY_VALUE, *(each["body"] for each in blocks if "Spark session" not in (each["about"] or ""))]


def notebook() -> str:
    """Return a notebook of these cells."""
    made: list[dict[str, object]] = [
        {"cell_type": "code", "id": f"cell{n}", "metadata": {}, "execution_count": None, "outputs": [], "source": text}
        for n, text in enumerate(cells())
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return json.dumps({"cells": made, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5})


@pytest.mark.long
def test_the_guide_is_executed_as_a_notebook_and_its_html_has_the_pictures(tmp_path: Path) -> None:
    python = python_with("notebook.txt", tmp_path / "venv")
    (tmp_path / "guide.ipynb").write_text(notebook())
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "JUPYTER_PLATFORM_DIRS": "1"}
    line = [python, "-m", "nbconvert", "--execute", "--to", "html", "guide.ipynb"]
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    shown = (tmp_path / "guide.html").read_text()
    for told in ("<polyline", "<svg", "shop.items", "checkout", "append 2 rows", "brass clock"):
        assert told in shown, told
    assert "Traceback" not in shown
