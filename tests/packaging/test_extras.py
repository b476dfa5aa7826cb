"""Every extra is complete: with the packages it names, and no other, its part of Headwater runs."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

CHECKOUT = Path(__file__).parents[2]
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]

BLOCKED = """
import importlib.abc, sys
blocked = set(sys.argv[1].split(","))
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""
PARTS = {
    "": """
import pyarrow as pa, headwater
from headwater.cli import main
headwater.Catalog("lake").create_table("a.t", pa.table({"id": [1]}))
assert main(["head", "lake", "a.t"]) == 0
assert main(["serve", "lake"]) == 5, "serve says which extra it needs"
""",
    "server": """
import importlib, pkgutil, headwater, headwater.rest
from headwater.rest.server import start_in_thread
for module in pkgutil.walk_packages(headwater.rest.__path__, "headwater.rest."):
    importlib.import_module(module.name)
with start_in_thread(headwater.DirectoryNamespace(root="lake"), api_key="a-key-for-this-test") as server:
    found = headwater.connect("rest", {"uri": server.url, "header.x-api-key": "a-key-for-this-test"})
    assert headwater.Catalog(found).tables() == []
""",
    "spark": """
import importlib, pkgutil, headwater.spark, pyspark_headwater
for module in pkgutil.walk_packages(headwater.spark.__path__, "headwater.spark."):
    importlib.import_module(module.name)
from headwater.spark.session import settings
assert settings("lake", root="lake")["spark.sql.catalog.lake"]
from pyspark.sql.pandas.utils import require_minimum_pandas_version
__import__("warnings").simplefilter("ignore")
require_minimum_pandas_version()
""",
}


def closure(requirements: list[str]) -> set[str]:
    """The names of all distributions that these requirements bring."""
    found: set[str] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        name = normal(requirement.name)
        if name == "headwater":
            own = PROJECT["optional-dependencies"]
            waiting += [Requirement(text) for extra in requirement.extras for text in own[extra]]
            continue
        key = f"{name}[{','.join(sorted(requirement.extras))}]"
        if key in found:
            continue
        found |= {name, key}
        try:
            below = [Requirement(text) for text in requires(name) or []]
        except PackageNotFoundError:
            continue
        chosen = [{"extra": extra} for extra in ("", *requirement.extras)]
        waiting += [each for each in below if not each.marker or any(each.marker.evaluate(env) for env in chosen)]
    return found


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("extra", PARTS)
def test_a_part_runs_with_the_packages_its_extra_names(extra: str, tmp_path: Path) -> None:
    named = [*PROJECT["dependencies"], *(PROJECT["optional-dependencies"][extra] if extra else [])]
    brought = closure(named)
    blocked = [
        module
        for module, names in packages_distributions().items()
        if not any(normal(name) in brought for name in names) and module not in ("headwater", "pyspark_headwater")
    ]
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED + PARTS[extra], ",".join(blocked)],
        capture_output=True, text=True, check=False, cwd=tmp_path, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "pytest" in blocked


APART = {"debezium": "200 MB of connectors, pinned in requirements/debezium.txt and run by a process of its own"}
"""Extras that `all` does not bring."""


def test_the_extra_all_has_every_other_but_those_apart() -> None:
    extras = dict(PROJECT["optional-dependencies"])
    everything = closure(extras.pop("all"))
    for extra, named in extras.items():
        assert extra in APART or closure(named) <= everything, extra
