"""Profiles: `headwater.toml`, the environment, and which of them wins."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

import headwater
from headwater import DirectoryNamespace, MetastoreNamespace, config
from headwater.errors import InvalidInputError, NamespaceNotFoundError


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No profile of the person who runs the tests is seen."""
    for variable in list(os.environ):
        if variable.startswith("HEADWATER_"):
            monkeypatch.delenv(variable)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def opened(name: str, **properties: str) -> DirectoryNamespace:
    found = headwater.open_catalog(name, {"impl": "dir", **properties})
    assert isinstance(found, DirectoryNamespace)
    return found


def test_a_profile_of_the_working_directory_is_opened_by_its_name(nowhere: Path) -> None:
    write(nowhere / "headwater.toml", '[catalog.lake]\nimpl = "dir"\nroot = "data"\nmanifest_enabled = false\n')
    assert opened("lake").properties.root == str(nowhere / "data")
    assert not opened("lake").properties.manifest_enabled
    assert config.profile_names() == ["lake"]


def test_the_early_names_of_the_keys_are_taken(nowhere: Path) -> None:
    write(nowhere / "headwater.toml", '[catalog.lake]\ntype = "dir"\npath = "data"\n')
    assert opened("lake").properties.root == str(nowhere / "data")


def test_nested_tables_become_dotted_keys(nowhere: Path) -> None:
    text = '[catalog.c]\nroot = "s3://b/p"\nstorage.region = "eu"\n[catalog.c.a.b]\nc = true\n'
    write(nowhere / "headwater.toml", text)
    assert config.load_profile("c") == {"root": "s3://b/p", "storage.region": "eu", "a.b.c": "true"}


def test_the_file_in_the_home_directory_is_used_when_there_is_none_here(nowhere: Path) -> None:
    home = nowhere / "home" / ".config" / "headwater" / "headwater.toml"
    write(home, '[catalog.lake]\nroot = "data"\n')
    assert opened("lake").properties.root == str(home.parent / "data")
    write(nowhere / "headwater.toml", '[catalog.lake]\nroot = "here"\n')
    assert opened("lake").properties.root == str(nowhere / "here")


def test_a_named_file_wins_over_both(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(nowhere / "headwater.toml", '[catalog.lake]\nroot = "here"\n')
    write(nowhere / "etc" / "other.toml", '[catalog.lake]\nroot = "there"\n')
    monkeypatch.setenv("HEADWATER_CONFIG", str(nowhere / "etc" / "other.toml"))
    assert opened("lake").properties.root == str(nowhere / "etc" / "there")
    monkeypatch.setenv("HEADWATER_CONFIG", str(nowhere / "missing.toml"))
    with pytest.raises(InvalidInputError, match="which is not a file"):
        opened("lake")


def test_the_environment_wins_over_the_file_and_the_call_over_both(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(nowhere / "headwater.toml", '[catalog.lake]\nroot = "s3://b/file"\ndelimiter = "."\n')
    monkeypatch.setenv("HEADWATER_CATALOG__LAKE__ROOT", "s3://b/variable")
    monkeypatch.setenv("HEADWATER_CATALOG__LAKE__STORAGE__REGION", "eu")
    found = config.resolve("lake").properties
    assert found == {"root": "s3://b/variable", "delimiter": ".", "storage.region": "eu"}
    assert config.resolve("lake", {"root": "s3://b/call"}).properties["root"] == "s3://b/call"


def test_a_profile_can_stand_in_the_environment_alone(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_CATALOG__ONLY__ROOT", str(nowhere / "lake"))
    assert opened("only").properties.root == str(nowhere / "lake")
    assert config.profile_names() == ["only"]


def test_the_profile_default_is_opened_when_nothing_is_named(nowhere: Path) -> None:
    with pytest.raises(InvalidInputError, match="No catalog was named"):
        headwater.Catalog()
    write(nowhere / "headwater.toml", '[catalog.default]\nroot = "lake"\n')
    assert isinstance(headwater.Catalog().namespace, MetastoreNamespace)
    assert isinstance(headwater.Catalog(root=str(nowhere / "x")).namespace, MetastoreNamespace)
    assert isinstance(headwater.Catalog(impl="dir").namespace, DirectoryNamespace)


def test_a_target_that_is_no_profile_is_a_path(nowhere: Path) -> None:
    assert opened("./lake").properties.root == str(nowhere / "lake")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[catalog.lake", "cannot be read"),
        ("catalog = 3", "table"),
        ("[catalog]\nlake = 3", "table"),
        ('[catalog.lake]\nimpl = "dir"\nuri = "http://x"', "both impl=dir and uri"),
        ('[catalog.lake]\nimpl = "hive"\nroot = "x"', "back end of others"),
        ('[catalog.lake]\nroot = "x"\nrooot = "y"', "Did you mean 'root'"),
        ("[catalog.lake]\n", "needs the property root"),
    ],
)
def test_a_bad_profile_is_invalid_input_that_says_what_to_fix(nowhere: Path, text: str, reason: str) -> None:
    write(nowhere / "headwater.toml", text)
    with pytest.raises(InvalidInputError, match=reason):
        headwater.open_catalog("lake")


def test_a_file_that_is_no_text_is_invalid_input(nowhere: Path) -> None:
    (nowhere / "headwater.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInputError, match="cannot be read"):
        headwater.open_catalog("lake")


def test_connect_takes_a_kind_and_properties(nowhere: Path) -> None:
    assert isinstance(headwater.connect("dir", {"root": str(nowhere)}), DirectoryNamespace)
    with pytest.raises(InvalidInputError, match="not a kind of catalog"):
        headwater.connect("hive", {})


def test_the_kind_that_is_there_is_opened_and_a_new_one_is_a_metastore(nowhere: Path) -> None:
    rows = pa.table({"id": [1]})
    headwater.Catalog("./new").create_table("t", rows)
    headwater.Catalog("./old", impl="dir").create_table("t", rows)
    assert isinstance(headwater.Catalog("./new").namespace, MetastoreNamespace)
    assert isinstance(headwater.Catalog("./old").namespace, DirectoryNamespace)
    assert headwater.Catalog("./old").tables() == headwater.Catalog("./new").tables() == ["t"]
    (nowhere / "empty").mkdir()
    assert headwater.Catalog("./empty").tables() == []
    assert isinstance(headwater.Catalog("./x", manifest_enabled="true").namespace, DirectoryNamespace)


@pytest.mark.parametrize(("there", "asked"), [("metastore", "dir"), ("dir", "metastore")])
def test_another_kind_than_the_one_there_is_refused_by_name(nowhere: Path, there: str, asked: str) -> None:
    headwater.Catalog("./lake", impl=there).create_table("t", pa.table({"id": [1]}))
    for opening in (headwater.Catalog, headwater.open_catalog):
        with pytest.raises(InvalidInputError, match=f"impl={there}.*impl={asked} was asked for"):
            opening("./lake", **({"impl": asked} if opening is headwater.Catalog else {"properties": {"impl": asked}}))


def test_a_folder_with_other_things_becomes_a_catalog_only_when_told(nowhere: Path) -> None:
    write(nowhere / "work" / "notes.txt", "mine")
    catalog = headwater.Catalog("./work")
    with pytest.raises(NamespaceNotFoundError, match="no catalog at"):
        catalog.tables()
    with pytest.raises(InvalidInputError, match="headwater init"):
        catalog.create_table("t", pa.table({"id": [1]}))
    assert config.init(config.resolve("./work")) == "metastore"
    headwater.Catalog("./work").create_table("t", pa.table({"id": [1]}))
    assert headwater.Catalog("./work").tables() == ["t"]
    assert (nowhere / "work" / "notes.txt").read_text() == "mine"
    with pytest.raises(InvalidInputError, match="already"):
        config.init(config.resolve("./work"))


def test_init_makes_an_empty_catalog_of_a_kind(nowhere: Path) -> None:
    assert config.init(config.resolve("./lake", {"impl": "dir"})) == "dir"
    assert isinstance(headwater.Catalog("./lake").namespace, DirectoryNamespace)
    assert headwater.Catalog("./lake").tables() == []
