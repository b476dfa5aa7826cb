"""The reference pages name what the code has: every method, setting, error code, function and metric."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from headwater import config
from headwater.catalog import Catalog
from headwater.catalog.streams import CatalogStream
from headwater.catalog.table import CatalogTable
from headwater.errors import ERRORS
from headwater.namespace.metastore import MetastoreNamespace
from headwater.rest.server import start_in_thread
from headwater.streams import StreamTable
from headwater.tables import expressions as functions
from tests.docs.blocks import ROOT

DOCS = ROOT / "docs"


def public(*kinds: type) -> Iterator[str]:
    for kind in kinds:
        for name in dir(kind):
            if not name.startswith("_"):
                yield name


@pytest.mark.parametrize("kind", [Catalog, CatalogTable, CatalogStream, StreamTable])
def test_every_public_name_of_the_library_is_in_its_page(kind: type) -> None:
    told = (DOCS / "python.md").read_text() + (DOCS / "streams.md").read_text()
    missing = [name for name in public(kind) if not re.search(rf"\b{name}\b", told)]
    assert missing == []


def test_the_table_of_errors_is_the_codes_own() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| (\d+) \| (\d+) \| (\S.*) \|$", (DOCS / "errors.md").read_text(), re.M)
    told = {int(code): (name, int(status), int(exit)) for code, name, status, exit, _ in rows}
    assert told == {code: (row.exception.__name__, row.status, row.exit) for code, row in ERRORS.items()}


def test_every_setting_and_variable_is_in_its_page() -> None:
    told = (DOCS / "config.md").read_text()
    for key in (*config.DIRECTORY_KEYS, *config.SERVER_KEYS, "impl", "root", "uri", "delimiter"):
        assert f"`{key}`" in told, key
    own = {
        name
        for path in [*(ROOT / "headwater").rglob("*.py"), ROOT / "hatch_build.py"]
        for name in re.findall(r"\bHEADWATER_[A-Z]+(?:_[A-Z]+)*\b", path.read_text())
    }
    internal = {"HEADWATER_SPARK_CATALOG"}
    for name in own - internal:
        assert name in told, name


def test_every_function_that_a_request_may_call_is_in_its_page() -> None:
    page = (DOCS / "sql.md").read_text().partition("## Spark SQL without Spark")[0]
    told = set(re.findall(r"`(\w+)`", page))
    words = set(functions._WORDS.split())
    assert functions.ALLOWED - words <= told
    assert {"repeat", "lpad"}.isdisjoint(told)


def test_the_container_installs_nothing_without_a_hash() -> None:
    folder = ROOT / "examples" / "container"
    lines = [line for line in (folder / "Dockerfile").read_text().splitlines() if "pip " in line]
    assert len(lines) == 4
    for line in lines:
        assert "--require-hashes" in line or {"--no-deps", "--no-index"} <= set(line.split()), line
    pinned = {
        line.split(" ")[0]
        for line in (ROOT / "requirements" / "development.txt").read_text().splitlines()
        if "==" in line
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    found = {line.split(" ")[0] for line in (folder / "requirements.txt").read_text().splitlines() if "==" in line}
    wanted = {re.split(r"[\[>=;]", each)[0] for each in (*project["dependencies"], *extras["server"], *extras["sql"])}
    assert wanted <= {each.partition("==")[0] for each in found}
    assert found <= pinned, "make pin writes both"


def test_every_option_of_the_container_files_is_one_of_the_server() -> None:
    known = set(re.findall(r"`(--[a-z-]+)`", (DOCS / "rest.md").read_text()))
    files = [ROOT / "examples" / "container" / name for name in ("Dockerfile", "compose.yml")]
    used = [line for path in files for line in path.read_text().splitlines() if "serve" in line or '"--' in line]
    named = {option for line in used for option in re.findall(r'"(--[a-z-]+)"', line)}
    assert {"--host", "--proxy"} <= named <= known


def test_the_dashboard_and_the_pages_name_metrics_that_a_server_has(tmp_path: Path) -> None:
    board = json.loads((ROOT / "examples" / "grafana.json").read_text())
    asked = " ".join(target["expr"] for panel in board["panels"] for target in panel.get("targets", ()))
    pages = (DOCS / "production.md").read_text() + (DOCS / "rest.md").read_text()
    named = set(re.findall(r"\bheadwater_[a-z_]+\b", asked + pages))
    with start_in_thread(MetastoreNamespace(root=str(tmp_path / "lake"))) as server:
        httpx.get(f"{server.url}/v1/namespace/$/list")
        exposed = httpx.get(f"{server.url}/metrics").text
    there = set(re.findall(r"^# TYPE (\w+) ", exposed, re.MULTILINE))
    there |= {f"{name}_{part}" for name in there for part in ("bucket", "sum", "count")}
    assert named
    assert named <= there
    assert {name for name in there if not name.endswith(("_bucket", "_sum", "_count"))} <= named
