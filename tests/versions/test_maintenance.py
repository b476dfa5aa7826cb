"""Old versions go by policy, and what catalog and storage disagree on is reported."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import lance
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.errors import InvalidInputError
from headwater.model import Version
from headwater.names import ObjectId
from headwater.namespace.directory import DirectoryNamespace
from headwater.namespace.versions.ranges import DAY_MS, KeepPolicy, choose_outdated
from tests.versions.samples import KINDS, append, files, make, numbers, open_kind, opened, rows

NOW = 100 * DAY_MS


@pytest.fixture(params=KINDS)
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> DirectoryNamespace:
    return open_kind(str(request.param), tmp_path / "lake")


def call(catalog: DirectoryNamespace, operation: str, **request: Any) -> Any:
    return getattr(catalog, operation)(request)


def test_clean_up_keeps_the_newest_versions(catalog: DirectoryNamespace) -> None:
    folder = make(catalog, versions=6)
    data = files(os.path.join(folder, "data"))
    catalog.clean_up_table_versions(["t"], keep_versions=2, grace_seconds=0)
    assert numbers(catalog) == [6, 5]
    assert opened(catalog).count_rows() == 8
    assert files(os.path.join(folder, "data")) == data
    assert append(catalog).version == 7


def test_clean_up_keeps_tagged_versions_and_where_branches_begin(catalog: DirectoryNamespace) -> None:
    make(catalog, versions=5)
    call(catalog, "create_table_tag", id=["t"], tag="keep", version=2)
    call(catalog, "create_table_branch", id=["t"], name="dev", from_version=3)
    catalog.clean_up_table_versions(["t"], keep_versions=1, grace_seconds=0)
    assert numbers(catalog) == [5, 3, 2]
    assert opened(catalog).checkout_version("keep").count_rows() == 4
    catalog.clean_up_table_versions(["t"], keep_versions=1, keep_tagged=False, grace_seconds=0)
    assert numbers(catalog) == [5]


def test_clean_up_keeps_the_versions_of_recent_days(catalog: DirectoryNamespace) -> None:
    make(catalog, versions=4)
    catalog.clean_up_table_versions(["t"], keep_days=1, grace_seconds=0)
    assert numbers(catalog) == [4, 3, 2, 1]
    catalog.clean_up_table_versions(["t"], keep_days=0, grace_seconds=0)
    assert numbers(catalog) == [4]


def test_clean_up_spares_what_a_reader_may_be_opening(catalog: DirectoryNamespace) -> None:
    make(catalog, versions=4)
    assert catalog.clean_up_table_versions(["t"], keep_versions=1).manifests == 0
    assert numbers(catalog) == [4, 3, 2, 1]


def test_a_reader_in_progress_is_not_broken_by_clean_up(catalog: DirectoryNamespace) -> None:
    make(catalog, versions=4)
    reader = opened(catalog).checkout_version(2)
    catalog.clean_up_table_versions(["t"], keep_versions=1, grace_seconds=0)
    assert reader.to_table().num_rows == 4


def test_a_policy_says_what_to_keep(catalog: DirectoryNamespace) -> None:
    make(catalog)
    for policy in ({}, {"keep_versions": -1}, {"keep_days": float("nan")}):
        with pytest.raises(InvalidInputError):
            catalog.clean_up_table_versions(["t"], **policy)


def versions_of(ages: list[int]) -> list[Version]:
    stamps = sorted(NOW - age for age in ages)
    return [Version(ObjectId(("t", str(at + 1))), "x", timestamp_ms=stamp) for at, stamp in enumerate(stamps)]


@settings(deadline=None)
@given(
    ages=st.lists(st.integers(0, 50 * DAY_MS), min_size=2, max_size=30),
    keep=st.none() | st.integers(0, 40),
    days=st.none() | st.floats(0, 60),
    tagged=st.frozensets(st.integers(1, 30)),
)
def test_no_policy_takes_what_one_of_its_rules_keeps(
    ages: list[int], keep: int | None, days: float | None, tagged: frozenset[int]
) -> None:
    versions = versions_of(ages)
    gone = {item.number for item in choose_outdated(versions, KeepPolicy(keep, days, True, 0.0), tagged, NOW)}
    assert len(versions) not in gone
    assert not gone & tagged
    if keep is None and days is None:
        assert not gone
    assert len(versions) - len(gone) >= min(keep or 1, len(versions))
    if days is not None:
        assert all(item.number not in gone for item in versions if (item.timestamp_ms or 0) >= NOW - days * DAY_MS)


def test_a_sound_catalog_has_no_problem(catalog: DirectoryNamespace) -> None:
    make(catalog, versions=3)
    make(catalog, "gone")
    call(catalog, "declare_table", id=["d"])
    call(catalog, "drop_table", id=["gone"])
    assert catalog.verify() == []


def test_verify_names_each_kind_of_problem(tmp_path: Path) -> None:
    catalog = open_kind("compat-managed", tmp_path / "lake")
    for name in ("missing", "torn", "behind", "fine"):
        make(catalog, name, versions=2)
    assert catalog.versions.managed is not None
    catalog.versions.managed.point()
    root = tmp_path / "lake"
    shutil.rmtree(root / "missing.lance")
    sorted((root / "torn.lance" / "_versions").glob("*.manifest"))[0].unlink()
    lance.write_dataset(rows(9), root / "behind.lance", mode="append")
    (root / "fine.lance" / "_versions" / "18446744073709551600.manifest-left").write_bytes(b"x")
    (root / ".headwater" / "trash" / "half" / "data").mkdir(parents=True)
    lance.write_dataset(rows(9), root / "12345678_leaked")
    found = {problem.kind: problem for problem in catalog.verify()}
    assert set(found) == {
        "missing_folder",
        "missing_manifest",
        "unrecorded_version",
        "staged_leftover",
        "unfinished_drop",
        "unreferenced_folder",
    }
    assert found["missing_folder"].id == ObjectId(("missing",))
    catalog.empty_trash()
    assert "unfinished_drop" not in {problem.kind for problem in catalog.verify()}
