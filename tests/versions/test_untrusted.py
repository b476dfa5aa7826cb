"""Every path in a request is untrusted: what is no manifest of that very version and table moves no file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from headwater.errors import InvalidInputError
from headwater.namespace.directory import DirectoryNamespace
from headwater.tables.layout import manifest_name
from tests.versions.samples import KINDS, MANAGED, files, folder_of, make, manifest_bytes, open_kind, stage


@pytest.fixture(params=KINDS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[DirectoryNamespace, Path]:
    """A catalog with two tables, beside a victim that is none of its business."""
    catalog = open_kind(str(request.param), tmp_path / "lake")
    make(catalog, "t")
    make(catalog, "other")
    name = f"{manifest_name(2)}-0"
    victim = tmp_path / "victim" / "_versions"
    victim.mkdir(parents=True)
    (victim / name).write_bytes(manifest_bytes(catalog, "other", 1))
    (victim / "secret").write_text("not yours")
    return catalog, tmp_path


def refused(catalog: DirectoryNamespace, root: Path, **changes: Any) -> None:
    request = {**stage(catalog, "t", 2), **changes}
    before = files(root)
    with pytest.raises(InvalidInputError) as caught:
        catalog.create_table_version(request)  # type: ignore[arg-type]
    assert files(root) == before
    assert "secret" not in str(caught.value).replace(str(changes.get("manifest_path")), "")


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "..",
        "victim",
        "{root}/victim/_versions/{name}-0",
        "{root}/victim/_versions/secret",
        "{table}/_versions/../../../victim/_versions/{name}-0",
        "{table}/../../victim/_versions/{name}-0",
        "{table}/_versions/./{name}-0",
        "{table}//_versions/{name}-0",
        "{table}/_versions/{name}-0/",
        "{table}/_versions/{name}-0\0",
        "{table}/_versions/{name}-0%2f..",
        "{table}/data/{name}-0",
        "{other}/_versions/{name}-0",
        "s3://bucket/_versions/{name}-0",
        "file:///{root}/victim/_versions/{name}-0",
    ],
)
def test_a_path_that_leads_elsewhere_is_invalid(lake: tuple[DirectoryNamespace, Path], path: str) -> None:
    catalog, root = lake
    places = {
        "root": str(root).lstrip("/"),
        "table": folder_of(catalog).lstrip("/"),
        "other": folder_of(catalog, "other").lstrip("/"),
        "name": manifest_name(2),
    }
    refused(catalog, root, manifest_path=path.format(**places), manifest_size=None, e_tag=None)


def test_a_manifest_named_as_another_version_is_invalid(lake: tuple[DirectoryNamespace, Path]) -> None:
    catalog, root = lake
    refused(catalog, root, manifest_path=stage(catalog, "t", 3)["manifest_path"], manifest_size=None, e_tag=None)


def test_a_path_where_nothing_is_is_invalid(lake: tuple[DirectoryNamespace, Path]) -> None:
    catalog, root = lake
    path = f"{folder_of(catalog).lstrip('/')}/_versions/{manifest_name(2)}-none"
    refused(catalog, root, manifest_path=path, manifest_size=None, e_tag=None)


def test_a_file_that_is_no_manifest_is_invalid(lake: tuple[DirectoryNamespace, Path]) -> None:
    catalog, root = lake
    good = manifest_bytes(catalog, "t", 1)
    bodies = (b"", b"not a manifest", b"LANC", good[:-4], good[:-1], good + b"x", b"\xff" * 64 + b"LANC", good[20:])
    for body in bodies:
        request = stage(catalog, "t", 2, data=body)
        refused(catalog, root, **request)


def test_a_stated_size_that_is_wrong_is_invalid(lake: tuple[DirectoryNamespace, Path]) -> None:
    catalog, root = lake
    refused(catalog, root, manifest_size=1)


def test_a_stated_e_tag_that_is_wrong_is_invalid(lake: tuple[DirectoryNamespace, Path]) -> None:
    catalog, root = lake
    refused(catalog, root, e_tag='"0-0-0"')


def test_a_link_out_of_the_table_is_invalid(lake: tuple[DirectoryNamespace, Path]) -> None:
    catalog, root = lake
    link = os.path.join(folder_of(catalog), "_versions", f"{manifest_name(2)}-link")
    os.symlink(root / "victim" / "_versions" / f"{manifest_name(2)}-0", link)
    refused(catalog, root, manifest_path=link.lstrip("/"), manifest_size=None, e_tag=None)


@pytest.mark.parametrize("scheme", ["V3", "../V2"])
def test_an_unknown_naming_scheme_is_invalid(lake: tuple[DirectoryNamespace, Path], scheme: str) -> None:
    catalog, root = lake
    refused(catalog, root, naming_scheme=scheme)


@pytest.mark.parametrize("branch", ["../../victim", "a/../b", "/abs", ".."])
def test_a_branch_that_leads_elsewhere_is_invalid(lake: tuple[DirectoryNamespace, Path], branch: str) -> None:
    catalog, root = lake
    refused(catalog, root, branch=branch)
    for operation in ("list_table_versions", "describe_table_version"):
        with pytest.raises(InvalidInputError):
            getattr(catalog, operation)({"id": ["t"], "branch": branch, "version": 1})


@pytest.mark.parametrize("spelling", ["{path}", "/{path}", "file:///{path}"])
def test_the_ways_to_write_the_right_path_are_accepted(lake: tuple[DirectoryNamespace, Path], spelling: str) -> None:
    catalog, _ = lake
    request = stage(catalog, "t", 2)
    request["manifest_path"] = spelling.format(path=request["manifest_path"])
    created = catalog.create_table_version(request)  # type: ignore[arg-type]
    assert created.version is not None
    assert created.version.version == 2


def test_a_root_of_strange_characters_works_for_plain_clients(tmp_path: Path) -> None:
    for kind in MANAGED:
        catalog = open_kind(kind, tmp_path / f"{kind} a#ü%20b")
        make(catalog, versions=3)
        assert [item.version for item in catalog.list_table_versions({"id": ["t"]}).versions] == [3, 2, 1]  # type: ignore[arg-type]
