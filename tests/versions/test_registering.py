"""RegisterTable says what is wrong in the right order, and V1 becomes V2 in one call."""

from __future__ import annotations

import shutil
from pathlib import Path

import lance
import pytest

from headwater.errors import (
    InvalidInputError,
    NamespaceNotFoundError,
    TableAlreadyExistsError,
    UnsupportedOperationError,
)
from tests.versions.samples import (
    KINDS,
    call,
    files,
    make,
    numbers,
    open_kind,
    opened,
    rows,
)

WITH_MANIFEST = [kind for kind in KINDS if kind != "V1"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("location", ["nowhere", "../out", "__manifest", "t.lance/data", "file:bad"])
def test_what_exists_is_said_before_anything_about_the_location(kind: str, location: str, tmp_path: Path) -> None:
    catalog = open_kind(kind, tmp_path / "lake")
    make(catalog, "t")
    with pytest.raises(TableAlreadyExistsError):
        call(catalog, "register_table", id=["t"], location=location)
    with pytest.raises(TableAlreadyExistsError):
        call(catalog, "declare_table", id=["t"], location=location)
    missing = UnsupportedOperationError if kind == "V1" else NamespaceNotFoundError
    with pytest.raises(missing):
        call(catalog, "register_table", id=["none", "t"], location=location)
    with pytest.raises(InvalidInputError):
        call(catalog, "register_table", id=["new"], location=location)


@pytest.mark.parametrize("kind", ["compat", "compat-managed"])
def test_tables_that_are_only_folders_get_their_rows_in_one_commit(kind: str, tmp_path: Path) -> None:
    flat = open_kind("V1", tmp_path / "lake")
    for name in ("a", "b"):
        make(flat, name, versions=2)
    call(flat, "declare_table", id=["d"])
    make(flat, "gone")
    call(flat, "deregister_table", id=["gone"])
    (tmp_path / "lake" / "junk.lance").mkdir()
    (tmp_path / "lake" / "junk.lance" / "x").write_text("junk")
    before = files(tmp_path / "lake")
    catalog = open_kind(kind, tmp_path / "lake")
    assert catalog.migrate() == ["a", "b", "d"]
    assert catalog.migrate() == []
    after = files(tmp_path / "lake")
    assert {key: after[key] for key in before} == before
    only_rows = open_kind("V2", tmp_path / "lake")
    assert call(only_rows, "list_tables").tables == ["a", "b", "d"]
    assert opened(only_rows, "a").count_rows() == 4
    assert numbers(catalog, "a") == [2, 1]
    versions = list((tmp_path / "lake" / "__manifest" / "_versions").glob("*.manifest"))
    assert len(versions) <= 3  # the table, perhaps its setting, and one commit


def test_a_catalog_without_a_manifest_says_how_to_migrate(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOperationError, match="manifest_enabled=true"):
        open_kind("V1", tmp_path).migrate()


@pytest.mark.parametrize("kind", ["compat", "compat-managed"])
def test_registering_over_a_table_that_is_only_a_folder_gives_it_its_row(kind: str, tmp_path: Path) -> None:
    catalog = open_kind(kind, tmp_path / "lake")
    lance.write_dataset(rows(), tmp_path / "lake" / "t.lance")
    call(catalog, "register_table", id=["t"], location="t.lance", mode="overwrite")
    assert call(open_kind("V2", tmp_path / "lake"), "list_tables").tables == ["t"]
    assert numbers(catalog) == [1]
    shutil.copytree(tmp_path / "lake" / "t.lance", tmp_path / "lake" / "other")
    call(catalog, "register_table", id=["t"], location="other", mode="overwrite")
    assert str(call(catalog, "describe_table", id=["t"]).location).endswith("/other")
