"""Which catalog and which name a line means."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headwater
from headwater.cli import main
from headwater.cli.parsing import read
from headwater.errors import LanceNamespaceError
from headwater.names import format_name, is_name, parse_name

NAMES = st.lists(st.text(st.sampled_from("ab.\"' é"), min_size=1, max_size=6).filter(is_name), min_size=1, max_size=4)


@given(NAMES)
def test_a_name_as_it_is_shown_is_read_as_it_was(names: list[str]) -> None:
    assert parse_name(format_name(names)) == tuple(names)


def test_names_have_dots_between_and_quotes_around_dots() -> None:
    assert parse_name("prod.users") == ("prod", "users")
    assert parse_name('prod."a.b".c') == ("prod", "a.b", "c")
    assert parse_name('"say ""hi"""') == ('say "hi"',)
    assert parse_name("") == parse_name(".") == ()
    assert parse_name("a.b$c", "$") == ("a.b", "c")
    for wrong in ('"a', '"a"b', "a..b", "a.", ".a", 'a."'):
        with pytest.raises(LanceNamespaceError):
            parse_name(wrong)


@pytest.fixture
def profiles(nowhere: Path) -> Path:
    for name in ("one", "two"):
        headwater.Catalog(str(nowhere / name)).create_table(f"in_{name}.t", pa.table({"id": [1]}))
    (nowhere / "headwater.toml").write_text('[catalog.one]\nroot = "one"\n')
    return nowhere


def listed(capsys: pytest.CaptureFixture[str], *line: str) -> str:
    assert main(list(line)) == 0
    return capsys.readouterr().out


@pytest.mark.usefixtures("profiles")
def test_the_only_profile_is_the_default_and_an_option_or_a_place_wins(capsys: pytest.CaptureFixture[str]) -> None:
    assert listed(capsys, "ls") == "in_one/\n"
    assert listed(capsys, "ls", "in_one") == "t\n"
    assert listed(capsys, "ls", "./two") == "in_two/\n"
    assert listed(capsys, "ls", "./two", "in_two") == "t\n"
    for line in (("-c", "two", "ls"), ("ls", "-c", "two"), ("ls", "--catalog=two"), ("--catalog=two", "ls")):
        assert listed(capsys, *line) == "in_two/\n"
    assert listed(capsys, "count", "two", "in_two.t") == "1\n"  # one word too many: the first is the catalog
    assert listed(capsys, "count", "in_one.t") == "1\n"
    assert listed(capsys, "query", "SELECT 4/2 AS n FROM in_one.t").split() == ["n", "2.0"]


def test_the_environment_wins_over_the_file_and_the_file_can_name_a_default(
    profiles: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = '[catalog.one]\nroot = "one"\n[catalog.two]\nroot = "two"\n'
    (profiles / "headwater.toml").write_text(text)
    with pytest.raises(SystemExit) as stopped:
        main(["ls"])
    assert stopped.value.code == 2
    assert "no catalog is named" in capsys.readouterr().err
    (profiles / "headwater.toml").write_text('default = "two"\n' + text)
    assert listed(capsys, "ls") == "in_two/\n"
    assert headwater.Catalog().namespaces() == ["in_two"]
    monkeypatch.setenv("HEADWATER_CATALOG", "./one")
    assert listed(capsys, "ls") == "in_one/\n"
    (profiles / "headwater.toml").write_text('default = "three"\n' + text)
    monkeypatch.delenv("HEADWATER_CATALOG")
    with pytest.raises(SystemExit):
        main(["ls"])
    assert "none of its profiles" in capsys.readouterr().err


def test_options_stand_anywhere_and_two_dashes_end_them(nowhere: Path) -> None:
    found = read(["head", "--limit", "3", "./x", "t", "--where", "id > 1", "--json"])
    assert (found.catalog, found.table, found.limit, found.where, found.json) == ("./x", "t", 3, "id > 1", True)
    found = read(["find", "./x", "--", "--word"])
    assert (found.catalog, found.word) == ("./x", "--word")
    found = read(["search", "./x", "t", "--vector=-1,2"])
    assert found.vector == "-1,2"


def test_a_line_that_is_too_long_or_too_short_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    for line in (["ls", "./x", "a", "b"], ["head", "./x"], [], ["token"], ["-x", "ls"], ["versions", "./x", "t", "3"]):
        with pytest.raises(SystemExit) as stopped:
            main(line)
        assert stopped.value.code == 2
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert headwater.__version__ in capsys.readouterr().out
