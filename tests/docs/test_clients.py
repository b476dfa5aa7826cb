"""docs/clients.md: every recipe is run, by the client that it is for, against servers as the page starts them.

Ray and Daft are 350 MB: their sections are run by `make test-all`, in an environment that the test makes for itself.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater
from headwater.config import connect
from headwater.rest.server import start_in_thread
from tests.docs.blocks import FENCE, ROOT
from tests.environments import python_with

PAGE = ROOT / "docs" / "clients.md"
HEAVY = ("Ray", "Ray and Spark over one root", "Daft")
OTHER_SPARK = "lance-spark"
"""It needs another PySpark: tests/interop/test_lance_spark.py runs it."""
PORTS = ("http://127.0.0.1:8080", "http://127.0.0.1:8081")


def sections() -> dict[str, list[str]]:
    """The Python blocks under each heading."""
    parts = re.split(r"^## (.+)$", PAGE.read_text(), flags=re.MULTILINE)
    return {
        heading: [f["body"] for f in FENCE.finditer(text) if f["language"] == "python" and not f["about"]]
        for heading, text in zip(parts[1::2], parts[2::2], strict=True)
    }


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The two servers of the page: a metastore catalog and a directory catalog."""
    plain = connect("dir", {"root": str(tmp_path / "plain")})
    lake = connect("metastore", {"root": str(tmp_path / "lake")})
    with start_in_thread(lake) as first, start_in_thread(plain) as second:
        yield first.url, second.url


def said(blocks: list[str], servers: tuple[str, str]) -> list[str]:
    """The blocks as they are for these servers."""
    for port, url in zip(PORTS, servers, strict=True):
        blocks = [block.replace(port, url) for block in blocks]
    return blocks


def test_every_client_of_the_page_has_a_recipe() -> None:
    assert list(sections()) == [
        "The table of these recipes", "LanceDB", "pylance", "DuckDB", "Polars", "pandas", *HEAVY, OTHER_SPARK,
    ]  # fmt: skip
    assert all(blocks for heading, blocks in sections().items() if heading != OTHER_SPARK)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_recipes_of_light_clients_run(servers: tuple[str, str]) -> None:
    names: dict[str, object] = {}
    for heading, blocks in sections().items():
        if heading not in HEAVY:
            for number, block in enumerate(said(blocks, servers), start=1):
                exec(compile(block, f"{PAGE.name}, {heading}, block {number}", "exec"), names)


@pytest.fixture(scope="module")
def heavy_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python that has what this one has, and beside it the pinned Ray and Daft. Skips, saying why, without them."""
    return python_with("clients.txt", tmp_path_factory.mktemp("clients") / "venv")


@pytest.mark.long
@pytest.mark.parametrize("heading", HEAVY)
def test_the_recipe_of_a_heavy_client_runs(
    heading: str, heavy_python: str, servers: tuple[str, str], tmp_path: Path
) -> None:
    found = sections()
    blocks = said(["import headwater", *found["The table of these recipes"], *found[heading]], servers)
    script = tmp_path / "recipe.py"
    script.write_text("\n".join(blocks))
    short = tempfile.mkdtemp(prefix="hw")  # Ray's sockets have no room for a long path
    environment = {
        **os.environ, "HOME": short, "RAY_TMPDIR": short, "PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0", "DAFT_ANALYTICS_ENABLED": "0",
    }  # fmt: skip
    try:
        done = subprocess.run(
            [heavy_python, str(script)], capture_output=True, text=True, check=False, env=environment, cwd=tmp_path,
            timeout=600,
        )  # fmt: skip
    finally:
        shutil.rmtree(short, ignore_errors=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert headwater.Catalog(servers[0])["prod.users"].count() == 3
