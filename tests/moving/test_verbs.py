"""The verbs that move catalogs and data, as a person types them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from headwater import Catalog
from headwater.cli import main

ROWS = pa.table({"n": [1, 2, 3]})


def run(capsys: pytest.CaptureFixture[str], *words: object) -> object:
    """What a verb prints as JSON; its exit status and message if it fails."""
    status = main([*map(str, words), "--json"])
    out, err = capsys.readouterr()
    return json.loads(out) if status == 0 else (status, err)


def test_a_directory_is_upgraded_and_mirrored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Catalog(str(tmp_path), impl="dir").create_table("a.t", ROWS)
    assert run(capsys, "upgrade", tmp_path) == {"namespaces": 1, "tables": 1, "versions": 1, "slot": 1}
    again = run(capsys, "upgrade", tmp_path)
    assert isinstance(again, tuple)
    assert (again[0], "metastore" in again[1]) == (5, True)
    assert run(capsys, "mirror", tmp_path, "--show") == {"on": False, "newest": 1}
    assert run(capsys, "mirror", tmp_path) == {"on": True, "slot": 1, "newest": 1}
    assert run(capsys, "mirror", tmp_path, "--off") == {"on": False, "newest": 1}
