"""Old versions go by policy, and what catalog and storage disagree on is reported."""

from __future__ import annotations

import os
import shutil
from datetime import timedelta
from pathlib import Path

import lance
import lance_namespace as api
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.errors import InvalidInputError
from headwater.model import Version
from headwater.names import ObjectId
from headwater.namespace.directory import DirectoryNamespace
from headwater.namespace.versions.file_removal import free_files
from headwater.namespace.versions.ranges import DAY_MS, KeepPolicy, choose_outdated
from headwater.tables.commit.history import timestamps
from headwater.tables.layout import manifest_name
from tests.versions.samples import (
    KINDS,
    append,
    call,
    files,
    folder_of,
    make,
    numbers,
    open_kind,
    opened,
    rows,
    stream,
)

NOW = 100 * DAY_MS


@pytest.fixture(params=KINDS)
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> DirectoryNamespace:
    return open_kind(str(request.param), tmp_path / "lake")


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
    call(catalog, "delete_table_tag", id=["t"], tag="keep")
    catalog.clean_up_table_versions(["t"], keep_versions=1, grace_seconds=0)
    assert numbers(catalog) == [5, 3]


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


def size(folder: str) -> int:
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


def overwrite(catalog: DirectoryNamespace, rows: pa.Table) -> None:
    request = api.InsertIntoTableRequest(id=["t"], mode="overwrite")
    catalog.insert_into_table(request, stream(rows))


def test_clean_up_frees_the_disk_that_only_old_versions_hold_as_far_as_pylance_does(
    catalog: DirectoryNamespace, tmp_path: Path
) -> None:
    folder = make(catalog)
    large = pa.table({"a": pa.array(range(50_000), pa.int64())})
    for _ in range(4):
        overwrite(catalog, large)
    call(catalog, "create_table_index", id=["t"], column="a", index_type="BTREE")
    call(catalog, "delete_from_table", id=["t"], predicate="a = 3")
    call(catalog, "drop_table_index", id=["t"], index_name="a_idx")
    call(catalog, "delete_from_table", id=["t"], predicate="a = 5")
    opened(catalog)
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    lance.dataset(copy).cleanup_old_versions(timedelta(0), delete_unverified=True)
    before = size(folder)
    done = catalog.clean_up_table_versions(["t"], keep_versions=1, grace_seconds=0)
    assert done.files > 4
    assert size(folder) <= size(str(copy)) + 4096 < before / 2
    assert before - size(folder) >= done.bytes > 0
    assert opened(catalog).to_table().num_rows == 49_998
    assert catalog.verify() == []
    assert append(catalog).count_rows() == 49_999


def test_freeing_leaves_what_tags_branches_and_writers_at_work_need(catalog: DirectoryNamespace) -> None:
    make(catalog)
    overwrite(catalog, rows(1))
    call(catalog, "create_table_tag", id=["t"], tag="keep", version=2)
    overwrite(catalog, rows(1, 2))
    call(catalog, "create_table_branch", id=["t"], name="dev/x", from_version=3)
    overwrite(catalog, rows(9, 9, 9, 9))
    overwrite(catalog, rows(7, 7, 7))
    folder = Path(folder_of(catalog))
    (folder / "data" / "uncommitted.lance").write_bytes(b"a writer is at work")
    done = catalog.clean_up_table_versions(["t"], keep_versions=1, grace_seconds=0)
    assert numbers(catalog) == [5, 3, 2]
    assert done.manifests == 2
    assert opened(catalog).to_table().num_rows == 3
    assert opened(catalog).checkout_version("keep").to_table().num_rows == 1
    assert opened(catalog).checkout_version(("dev/x", None)).to_table().num_rows == 2
    assert (folder / "data" / "uncommitted.lance").exists()


def test_a_manifest_that_is_not_understood_keeps_every_file(catalog: DirectoryNamespace) -> None:
    folder = Path(make(catalog))
    overwrite(catalog, rows(1))
    before = files(folder / "data")
    newest = folder / "_versions" / manifest_name(2)
    whole = newest.read_bytes()
    place = catalog.versions.line(catalog.operations.find_table(ObjectId(("t",))))
    newest.write_bytes(b"junk")
    assert free_files(catalog.store, place, [whole]) == (0, 0)
    assert files(folder / "data") == before


def test_optimize_merges_fragments_keeps_the_index_whole_and_frees_disk(catalog: DirectoryNamespace) -> None:
    folder = make(catalog, versions=5)
    call(catalog, "create_table_index", id=["t"], column="a", index_type="BTREE")
    append(catalog, value=77)
    done = catalog.optimize_table(["t"], keep_versions=1, grace_seconds=0)
    assert done.fragments_removed >= 5
    found = opened(catalog)
    assert found.count_rows() == 8
    assert len(found.get_fragments()) <= 2
    assert found.stats.index_stats("a_idx")["num_unindexed_rows"] == 0
    assert found.to_table(filter="a = 77").num_rows == 1
    assert len(list(Path(folder, "data").iterdir())) <= 2
    assert catalog.verify() == []


def test_the_time_of_a_version_is_that_of_its_commit(catalog: DirectoryNamespace, tmp_path: Path) -> None:
    make(catalog, versions=3)
    told = {version: time.timestamp() for version, time in timestamps(opened(catalog)).items()}
    shutil.copytree(tmp_path / "lake", tmp_path / "copy")  # does not keep the times of files
    for path in (tmp_path / "copy").rglob("*"):
        os.utime(path, (1, 1))
    copy = DirectoryNamespace(**{**catalog._given, "root": str(tmp_path / "copy")})
    for answer in (copy.list_table_versions({"id": ["t"]}), copy.list_table_versions({"id": ["t"], "limit": 2})):  # type: ignore[arg-type]
        for item in answer.versions:
            assert item.timestamp_millis == pytest.approx(told[item.version] * 1000, abs=1.5)
    one = call(copy, "describe_table_version", id=["t"], version=1).version
    assert one.timestamp_millis == pytest.approx(told[1] * 1000, abs=1.5)
    assert len(numbers(copy)) == 3
    copy.clean_up_table_versions(["t"], keep_days=1, grace_seconds=0)
    assert len(numbers(copy)) == 3


def test_what_a_tag_or_a_branch_stands_on_is_not_deleted(catalog: DirectoryNamespace) -> None:
    folder = make(catalog, versions=5)
    call(catalog, "create_table_tag", id=["t"], tag="keep", version=2)
    call(catalog, "create_table_branch", id=["t"], name="dev", from_version=3)
    before = files(folder)
    ranges = ([(2, 3)], [(3, 4)], [(1, 4)], [(1, 2), (3, 4)], [(0, -1)])
    for asked in ranges:
        pairs = [{"start_version": start, "end_version": end} for start, end in asked]
        with pytest.raises(InvalidInputError, match=r"the tag 'keep'|the branch 'dev'"):
            call(catalog, "batch_delete_table_versions", id=["t"], ranges=pairs)
        operation = {"delete_table_versions": {"id": ["t"], "ranges": pairs}}
        with pytest.raises(InvalidInputError, match="stands on it"):
            call(catalog, "batch_commit_tables", operations=[operation])
    assert files(folder) == before
    deleted = call(catalog, "batch_delete_table_versions", id=["t"], ranges=[{"start_version": 4, "end_version": 5}])
    assert deleted.deleted_count == 1
    call(catalog, "delete_table_tag", id=["t"], tag="keep")
    call(catalog, "batch_delete_table_versions", id=["t"], ranges=[{"start_version": 2, "end_version": 3}])
    assert numbers(catalog) == [5, 3, 1]


def test_what_stands_on_a_branch_is_kept_on_that_branch_only(catalog: DirectoryNamespace) -> None:
    make(catalog, versions=3)
    call(catalog, "create_table_branch", id=["t"], name="dev", from_version=1)
    request = api.InsertIntoTableRequest(id=["t"], branch="dev")
    catalog.insert_into_table(request, stream(rows(1)))
    catalog.insert_into_table(request, stream(rows(1)))
    call(catalog, "create_table_tag", id=["t"], tag="on-dev", version=2, branch="dev")
    two = [{"start_version": 2, "end_version": 3}]
    with pytest.raises(InvalidInputError, match="on-dev"):
        call(catalog, "batch_delete_table_versions", id=["t"], ranges=two, branch="dev")
    call(catalog, "batch_delete_table_versions", id=["t"], ranges=two)
    assert numbers(catalog) == [3, 1]


def test_verify_names_a_tag_and_a_branch_whose_version_is_gone(catalog: DirectoryNamespace) -> None:
    folder = Path(make(catalog, versions=4))
    call(catalog, "create_table_tag", id=["t"], tag="gone", version=2)
    call(catalog, "create_table_branch", id=["t"], name="dev", from_version=1)
    call(catalog, "create_table_tag", id=["t"], tag="there", version=3)
    assert catalog.verify() == []
    for ref in ("tags/gone.json", "branches/dev.json"):
        path = folder / "_refs" / ref
        path.write_text(path.read_text().replace('ersion": 2', 'ersion": 90').replace('ersion": 1', 'ersion": 91'))
    found = [problem for problem in catalog.verify() if problem.kind == "missing_version"]
    assert [problem.key.rsplit("/", 1)[-1] for problem in found] == ["gone.json", "dev.json"]
    assert "the tag 'gone'" in found[0].message
    assert "Version 90" in found[0].message


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
    gone = {item.number for item in choose_outdated(versions, KeepPolicy(keep, days, 0.0), tagged, NOW)}
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
