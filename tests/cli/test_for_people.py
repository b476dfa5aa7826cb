"""The command line as people meet it: help on one screen, sizes, counts, confirmations, `headwater` alone."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

import headwater
from headwater.cli import main
from headwater.cli.grammar import GROUPS, SHOWN
from headwater.cli.output import size
from headwater.cli.parsing import overview, parser_of
from tests.cli.running import Cli

SCREEN = 24
DESTROYING = (
    "delete prod.users",
    "drop prod.users",
    "drop prod --cascade",
    "columns prod.users drop id",
    "restore prod.users 1",
    "undo 1",
    "collect",
    "delete-versions prod.users 1",
)


def test_help_fits_80_columns_and_a_group_one_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, overview().splitlines())) <= 80
    for command in SHOWN:
        assert max(map(len, parser_of(command).format_help().splitlines())) <= 80, command.name
    for group in GROUPS:
        assert sum(command.group == group for command in SHOWN) + 1 <= SCREEN, group


def test_a_group_by_its_name_lists_its_verbs(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["look"])
    assert stopped.value.code == 0
    out = capfd.readouterr().out.splitlines()
    assert out[0] == f"look: {GROUPS['look']}"
    assert len(out) == 1 + sum(command.group == "look" for command in SHOWN)


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 bytes"), (999, "999 bytes"), (1500, "1.5 kB"), (12_345_678, "12.3 MB"), (4 * 10**9, "4.0 GB")],
)
def test_a_size_is_in_the_unit_that_fits(count: int, shown: str) -> None:
    assert size(count) == shown


def test_sizes_above_terabytes_stay_terabytes() -> None:
    assert size(12 * 10**15) == "12,000.0 TB"


def test_statistics_are_of_the_moment_that_is_asked_for(lake: Cli) -> None:
    rows = lake.json("count", "prod.users")["count"]
    lake.ok("delete", "prod.users", "--where", "id = 1")
    lake.ok("tags", "prod.users", "add", "less", "2")
    assert lake.json("stats", "prod.users")["num_rows"] == rows - 1
    assert lake.json("stats", "prod.users", "--version", "1")["num_rows"] == rows
    assert lake.json("stats", "prod.users", "--tag", "less")["num_rows"] == rows - 1
    first = lake.records("history", "prod.users")[0]["slot"]
    assert lake.json("stats", "prod.users", "--at", str(first))["num_rows"] == rows


@pytest.mark.parametrize("kind", ["filled", "lake"])
def test_delete_says_how_many_rows(kind: str, request: pytest.FixtureRequest) -> None:
    cli: Cli = request.getfixturevalue(kind)
    rows = cli.json("count", "prod.users")["count"]
    assert cli.json("delete", "prod.users", "--where", "id = 1")["deleted_rows"] == 1
    assert cli.json("delete", "prod.users", "--where", "id = 1")["deleted_rows"] == 0
    _, _, err = cli("delete", "prod.users")
    assert f"This will delete all {rows - 1} rows of prod.users." in err
    assert f"deleted_rows: {rows - 1}" in cli.ok("delete", "prod.users", "--yes")


@pytest.mark.parametrize("line", DESTROYING)
def test_a_confirmation_says_what_will_happen_and_that_nothing_did(line: str, lake: Cli) -> None:
    verb, *words = line.split()
    status, _, err = lake(verb, *words)
    assert status == 2
    assert re.match(r"headwater: This will \w+ .*\. Nothing was changed: .* --yes\.\n$", err), err


def test_show_has_the_derived_columns_of_a_stream_table(lake: Cli, nowhere: Path) -> None:
    headwater.Catalog(lake.root).create_stream_table(
        "notes",
        {"id": "int64", "text": "string"},
        keys="id",
        properties={
            "column.vector": '{"function": "features:embed", "inputs": ["text"], "type": "float32[4]", "version": "7"}'
        },
    )
    (derived,) = lake.json("show", "notes")["derived"]
    assert (derived["column"], derived["function"], derived["inputs"], derived["version"]) == (
        *("vector", "features:embed", ["text"], "7"),
    )
    shown = lake.ok("show", "notes")
    assert "derived: features:embed(text), version 7" in shown
    assert "\n  id      int64\n" in shown


def test_headwater_alone_says_what_is_here(nowhere: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([])
    assert stopped.value.code == 2
    assert "there is no catalog here" in capfd.readouterr().err
    headwater.Catalog("./shop").create_table("prod.users", pa.table({"id": [1]}))
    (nowhere / "notes").mkdir()
    assert main([]) == 0
    out = capfd.readouterr().out
    assert out.splitlines()[0] == "catalog ./shop"
    assert "users" in out
    assert "notes" not in out
    assert "headwater show -c ./shop" in out
    assert main(["-c", "./shop"]) == 0
    assert "users" in capfd.readouterr().out


def test_headwater_alone_uses_the_default_and_the_folder_itself(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    headwater.Catalog("./one").create_table("a", pa.table({"id": [1]}))
    headwater.Catalog("./two").create_table("b", pa.table({"id": [1]}))
    assert main([]) == 0
    assert [line for line in capfd.readouterr().out.splitlines() if line.startswith("catalog")] == [
        *("catalog ./one", "catalog ./two"),
    ]
    monkeypatch.setenv("HEADWATER_CATALOG", "./two")
    assert main([]) == 0
    assert capfd.readouterr().out.splitlines()[0] == "catalog ./two"
    monkeypatch.delenv("HEADWATER_CATALOG")
    monkeypatch.chdir(nowhere / "one")
    (nowhere / "one" / "inner" / "txn").mkdir(parents=True)
    assert main([]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert (lines[0], lines[-1].startswith("Next:"), any("inner" in line for line in lines)) == (
        "catalog .",
        True,
        False,
    )
