"""`headwater table-versions`: a version with other columns is made, written, published and activated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import headwater
from headwater.cli.main import main


def lines(out: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.parametrize("is_stream", [True, False], ids=["a stream table", "a Lance table"])
def test_a_table_gets_another_schema_by_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_stream: bool
) -> None:
    root, file = str(tmp_path / "lake"), tmp_path / "new.jsonl"
    file.write_text('{"id": "x", "w": 0.5}\n')
    lake = headwater.Catalog(root)
    if is_stream:
        lake.create_stream_table("n.t", {"id": "int64"}, keys="id").upsert([{"id": 1}])
    else:
        lake.create_table("n.t", [{"id": 1}])
    keys = ["--key", "id"] if is_stream else []
    assert main(["table-versions", root, "n.t", "create", "2", str(file), *keys, "--json"]) == 0
    assert [(each["version"], each["lifecycle"]) for each in lines(capsys.readouterr().out)] == [
        ("1", "active"),
        ("2", "unreleased"),
    ]
    assert main(["table-versions", root, "n.t", "activate", "2"]) == 0
    assert headwater.Catalog(root)["n.t"].serving.to_arrow().to_pylist() == [{"id": "x", "w": 0.5}]
    assert main(["table-versions", root, "n.t", "drop", "2", "--yes"]) != 0
    assert "activate another" in capsys.readouterr().err
    assert main(["table-versions", root, "n.t", "drop", "1", "--yes"]) == 0
    assert main(["table-versions", root, "n.t", "give", "1"]) != 0
    assert "list, create, activate, drop" in capsys.readouterr().err
