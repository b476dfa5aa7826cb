"""The verbs that move catalogs and data, as a person types them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater import Catalog
from headwater.metastore.commit.root_kinds import UPGRADE_MARKER
from tests.cli.running import Cli

ROWS = pa.table({"n": [1, 2, 3]})


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(str(tmp_path / "lake"), capsys)


def test_a_directory_is_upgraded_and_mirrored(cli: Cli) -> None:
    Catalog(cli.root, impl="dir").create_table("a.t", ROWS)
    assert cli.json("upgrade") == {"namespaces": 1, "tables": 1, "versions": 1, "slot": 1}
    status, _, complaint = cli("upgrade")
    assert (status, "metastore" in complaint) == (5, True)
    assert cli.json("mirror", "--show")["on"] is False
    assert cli.json("mirror") == {"on": True, "slot": 2, "newest": 2}
    assert cli.json("mirror", "--off")["on"] is False


def test_every_verb_refuses_a_root_that_is_half_upgraded(cli: Cli) -> None:
    catalog = Catalog(cli.root)
    catalog.create_table("t", ROWS)
    (Path(cli.root) / UPGRADE_MARKER).write_text("{}")
    for verb in ("ls", "tree", "log", "verify", "repair", "init", "head t"):
        word, *rest = verb.split()
        status, _, complaint = cli(word, *rest)
        assert (verb, status, "headwater upgrade" in complaint) == (verb, 4, True)


def test_a_catalog_is_exported_and_files_are_imported(cli: Cli, tmp_path: Path) -> None:
    pq.write_table(ROWS, tmp_path / "rows.parquet")
    Catalog(cli.root).create_namespace("raw")
    made = cli.json("import", "raw.t", str(tmp_path / "rows.parquet"))
    assert (made["version"], made["rows"]) == (1, 3)
    done = cli.json("export", "--to", str(tmp_path / "out"), "--all-versions")
    assert (done["namespaces"], done["tables"], done["declared"]) == (1, 1, 0)
    assert Catalog(str(tmp_path / "out"))["raw.t"].count() == 3
