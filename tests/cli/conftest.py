"""The command line in this process, over a catalog of each kind."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet
import pytest

from headwater.config import init, resolve
from tests.cli.running import Cli
from tests.rest.samples import PEOPLE


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory without profiles, and an environment without a default catalog."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for variable in ("HEADWATER_CATALOG", "HEADWATER_CONFIG", "COLUMNS"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


@pytest.fixture
def root(tmp_path: Path) -> str:
    """An empty directory catalog."""
    init(resolve(str(tmp_path / "lake"), {"impl": "dir"}))
    return str(tmp_path / "lake")


@pytest.fixture
def people(tmp_path: Path) -> str:
    pyarrow.parquet.write_table(PEOPLE, tmp_path / "people.parquet")
    return str(tmp_path / "people.parquet")


@pytest.fixture
def cli(root: str, capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(root, capfd)


@pytest.fixture
def filled(cli: Cli, people: str) -> Cli:
    assert cli("create", "prod", "--namespace", "--set", "owner=ann")[0] == 0
    assert cli("create", "prod.users", people)[0] == 0
    return cli


@pytest.fixture
def lake(tmp_path: Path, people: str, capfd: pytest.CaptureFixture[str]) -> Cli:
    """A metastore catalog with a table."""
    cli = Cli(str(tmp_path / "meta"), capfd)
    assert cli("create", "prod.users", people)[0] == 0
    return cli
