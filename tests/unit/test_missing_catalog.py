"""A misspelt catalog is an error that names what was meant; only a write makes a new one, and says so."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import headwater
from headwater import Catalog
from headwater.cli import main
from headwater.cli.serving import open_served
from headwater.errors import InvalidInputError, NamespaceNotFoundError

ROWS = pa.table({"id": [1, 2]})


@pytest.fixture(autouse=True)
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog `prod` and a profile `staging` stand beside what is misspelt."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HEADWATER_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    Catalog("prod").create_namespace("a")
    (tmp_path / "headwater.toml").write_text('[catalog.staging]\nroot = "gone"\n')


READS: dict[str, Callable[[Catalog], object]] = {
    "tree": lambda catalog: catalog.tree(),
    "tables": lambda catalog: catalog.tables(),
    "namespaces": lambda catalog: catalog.namespaces(),
    "membership": lambda catalog: "a.b" in catalog,
    "item": lambda catalog: catalog["a.b"],
    "drop": lambda catalog: catalog.drop_table("a.b"),
    "drop_namespace": lambda catalog: catalog.drop_namespace("a"),
    "alter_namespace": lambda catalog: catalog.alter_namespace("a", {"k": "v"}),
    "rename": lambda catalog: catalog.rename_table("a.b", "a.c"),
}


@pytest.mark.parametrize("read", READS)
def test_reading_a_catalog_that_is_not_there_is_an_error(read: str, tmp_path: Path) -> None:
    with pytest.raises(NamespaceNotFoundError, match=r"no catalog at prdo\. Did you mean prod\?.*Profiles: staging"):
        READS[read](Catalog("prdo"))
    assert not (tmp_path / "prdo").exists()


def test_the_first_part_of_a_path_that_is_not_there_is_the_one_corrected(tmp_path: Path) -> None:
    (tmp_path / "data" / "lake").mkdir(parents=True)
    for misspelt, meant in (("dtaa/lake", "data"), ("./data/lke", "data/lake"), (str(tmp_path / "data/lakes"), "lake")):
        with pytest.raises(NamespaceNotFoundError, match=f"Did you mean .*{meant}"):
            Catalog(misspelt).tree()
    with pytest.raises(NamespaceNotFoundError, match="Did you mean staging"):
        Catalog("stagign").tree()
    with pytest.raises(NamespaceNotFoundError, match=r"at staging \(its root is .*gone\)"):
        Catalog("staging").tree()


def test_an_empty_folder_is_an_empty_catalog_and_connect_takes_a_missing_one(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert Catalog("empty").tables() == []
    assert Catalog(headwater.connect("dir", {"root": str(tmp_path / "none")})).tables() == []


def test_a_write_makes_the_catalog_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="headwater"):
        catalog = Catalog("new")
        catalog.create_table("a.b", ROWS)
        assert catalog["a.b"].count() == 2
    assert [record.getMessage() for record in caplog.records] == ["There was no catalog at new: this write makes one."]


def test_an_object_store_without_an_object_is_not_there(s3_root: str, s3_options: dict[str, str]) -> None:
    properties = {f"storage.{key}": value for key, value in s3_options.items()}
    with pytest.raises(NamespaceNotFoundError, match="no catalog at s3://"):
        Catalog(s3_root, **properties).tree()
    Catalog(s3_root, **properties).create_namespace("a")
    assert Catalog(s3_root, **properties).namespaces() == ["a"]


@pytest.mark.parametrize("line", ["tree", "ls", "verify", "count a.b", "drop a.b --yes", "rename a.b a.c", "show a.b"])
def test_a_verb_that_reads_names_what_was_meant(line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    verb, *arguments = line.split()
    assert main(["-c", "prdo", verb, *arguments]) == 3
    assert "Did you mean prod?" in capsys.readouterr().err
    assert not (tmp_path / "prdo").exists()


def test_a_verb_that_creates_says_that_it_makes_a_catalog(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-c", "new", "create", "a", "--namespace"]) == 0
    assert capsys.readouterr().err == "headwater: There was no catalog at new: this write makes one.\n"
    assert main(["-c", "new", "declare", "b.c"]) == 0
    assert capsys.readouterr().err == ""


def test_serve_and_keys_of_a_misspelt_catalog_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NamespaceNotFoundError, match="Did you mean prod"):
        open_served("prdo", {})
    for line in (
        ["serve", "prdo", "--port", "0"],
        ["token", "list", "prdo"],
        ["token", "revoke", "prdo", "x", "--yes"],
    ):
        assert main(line) == 3
        assert "no catalog at prdo" in capsys.readouterr().err


@pytest.mark.parametrize("properties", [{}, {"impl": "dir"}, {"impl": "metastore"}])
def test_a_folder_of_other_things_is_changed_by_init_alone(tmp_path: Path, properties: dict[str, str]) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    catalog = Catalog("other", **properties)
    with pytest.raises(InvalidInputError, match="headwater init other"):
        catalog.create_table("t", ROWS)
    with pytest.raises(NamespaceNotFoundError, match=r"no catalog at other.* `headwater init other`"):
        catalog.tables()
    assert [entry.name for entry in (tmp_path / "other").iterdir()] == ["notes.txt"]
    said = [text for key, value in properties.items() for text in ("--property", f"{key}={value}")]
    assert main(["init", "other", *said]) == 0
    catalog.create_table("t", ROWS)
    assert catalog.tables() == ["t"]
