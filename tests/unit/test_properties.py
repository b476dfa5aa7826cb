"""The properties of a directory catalog: what is taken, what is refused, and what the refusal says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headwater import DirectoryNamespace
from headwater.errors import InvalidInputError, UnsupportedOperationError
from headwater.namespace.plans import check_properties
from headwater.namespace.registry_kinds import parse_properties


def test_the_defaults_are_compatibility_mode() -> None:
    parsed = parse_properties({"root": "/lake/"})
    assert (parsed.root, parsed.manifest_enabled, parsed.dir_listing_enabled) == ("/lake", True, True)
    assert (parsed.delimiter, parsed.early_layout, parsed.table_version_management) == ("$", False, False)


def test_root_has_the_early_name_path() -> None:
    assert parse_properties({"path": "/lake"}) == parse_properties({"root": "/lake"})
    assert parse_properties({"path": "/lake", "root": "/lake"}).root == "/lake"
    with pytest.raises(InvalidInputError, match="two names of one property"):
        parse_properties({"root": "/a", "path": "/b"})


def test_a_root_is_a_path_a_file_uri_or_a_remote_uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parse_properties({"root": "lake"}).root == str(tmp_path / "lake")
    assert parse_properties({"root": "~/lake"}).root == str(tmp_path / "lake")
    assert parse_properties({"root": f"file://{tmp_path}/lake"}).root == str(tmp_path / "lake")
    assert parse_properties({"root": "s3://bucket/lake/"}).root == "s3://bucket/lake"


def test_storage_properties_are_passed_through_without_their_prefix() -> None:
    parsed = parse_properties({"root": "s3://b/p", "storage.region": "eu", "storage.a.b": 1})
    assert parsed.storage == {"region": "eu", "a.b": "1"}


@pytest.mark.parametrize("value", ["true", "TRUE", True, "false", "False", False])
def test_a_flag_is_true_or_false_in_any_case(value: Any) -> None:
    parsed = parse_properties({"root": "/lake", "dir_listing_enabled": value})
    assert parsed.dir_listing_enabled == (str(value).lower() == "true")


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({}, "needs the property root"),
        ({"root": ""}, "needs the property root"),
        ({"root": "/a", "rooot": "/b"}, "Did you mean 'root'"),
        ({"root": "/a", "manifest_enable": "true"}, "Did you mean 'manifest_enabled'"),
        ({"root": "/a", "zzz": "1"}, "Known are"),
        ({"root": "/a", "manifest_enabled": "yes"}, "true or false, not 'yes'"),
        ({"root": "/a", "dir_listing_enabled": ""}, "true or false"),
        ({"root": "/a", "manifest_enabled": "false", "dir_listing_enabled": "false"}, "cannot both be false"),
        ({"root": "/a", "delimiter": "/"}, "delimiter"),
        ({"root": "/a", "delimiter": ""}, "delimiter"),
        ({"root": "/a", "layout": "late"}, "one of lance, early"),
        ({"root": "/a", "layout": "early", "manifest_enabled": "true"}, "no manifest"),
        ({"root": "/a", "manifest_enabled": "false", "table_version_management": "true"}, "needs the manifest"),
        ({"root": "ftp://host/x"}, "not supported"),
        ({"root": "file://host/x"}, "URI of a local file"),
    ],
)
def test_a_wrong_property_is_invalid_input_that_says_what_to_fix(properties: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        DirectoryNamespace(**properties)


def test_opening_a_catalog_writes_nothing(tmp_path: Path) -> None:
    DirectoryNamespace(root=str(tmp_path / "lake"))
    assert list(tmp_path.iterdir()) == []


def test_a_manifest_in_memory_is_unsupported_and_says_so() -> None:
    with pytest.raises(UnsupportedOperationError, match="memory"):
        DirectoryNamespace(root="memory://x")


@pytest.mark.parametrize("properties", [{"a": 1}, {1: "a"}, {"": "a"}, {"a": "\ud800"}, {"a": "x" * 70_000}])
def test_properties_of_objects_are_strings_of_bounded_size(properties: Any) -> None:
    with pytest.raises(InvalidInputError):
        check_properties(properties)
    assert check_properties(None) == {}
    assert check_properties({"a": ""}) == {"a": ""}
