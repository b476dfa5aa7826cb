"""A catalog that manages versions is what its users see, whatever happens to the storage below it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pytest
from lance.namespace import DirectoryNamespace as Pylance
from lance_namespace import CreateNamespaceRequest

from headwater.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    TableAlreadyExistsError,
    TableVersionNotFoundError,
    UnsupportedOperationError,
)
from headwater.model import CatalogObject
from headwater.names import ObjectId
from headwater.namespace.directory import DirectoryNamespace
from headwater.namespace.metastore import MetastoreNamespace
from headwater.namespace.versions.managed import ManagedVersions, StagedVersion
from headwater.namespace.versions.operations import TableVersions
from headwater.registries.manifest.state import READER_FLAGS, WRITER_FLAGS
from headwater.tables.layout import manifest_name
from headwater.turns import FileLock
from tests.versions.samples import (
    MANAGED,
    append,
    call,
    folder_of,
    make,
    numbers,
    open_kind,
    opened,
    rows,
    stage,
    stream,
)


@pytest.fixture(params=MANAGED)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def catalog(kind: str, tmp_path: Path) -> DirectoryNamespace:
    return open_kind(kind, tmp_path / "lake")


def again(catalog: DirectoryNamespace) -> DirectoryNamespace:
    """The same catalog as another process would open it: without being told that it manages versions."""
    given = {key: value for key, value in catalog._given.items() if key != "table_version_management"}
    return DirectoryNamespace(**given)


def manifest_rows(catalog: DirectoryNamespace) -> dict[str, dict[str, Any]]:
    table = lance.dataset(f"{catalog.properties.root}/__manifest").to_table()
    return {row["object_id"]: row for row in table.to_pylist()}


def test_a_table_and_its_first_version_are_one_commit(catalog: DirectoryNamespace) -> None:
    call(catalog, "declare_table", id=["before"])
    newest = lance.dataset(f"{catalog.properties.root}/__manifest").version
    make(catalog)
    after = lance.dataset(f"{catalog.properties.root}/__manifest")
    assert after.version == newest + 1
    assert {"t", "t$1"} <= manifest_rows(catalog).keys()
    assert manifest_rows(catalog)["t$1"]["object_type"] == "table_version"


def test_plain_pylance_commits_through_the_catalog(catalog: DirectoryNamespace) -> None:
    lance.write_dataset(rows(1), namespace_client=catalog, table_id=["t"], mode="create")
    for value in (2, 3):
        lance.write_dataset(rows(value), namespace_client=catalog, table_id=["t"], mode="append")
    dataset = opened(again(catalog))
    dataset.delete("a = 1")
    dataset.update({"a": "a + 10"})
    assert numbers(catalog) == [5, 4, 3, 2, 1]
    assert sorted(opened(again(catalog)).to_table()["a"].to_numpy().tolist()) == [12, 13]
    assert opened(catalog, version=3).count_rows() == 3
    lance.write_dataset(rows(7), namespace_client=catalog, table_id=["t"], mode="overwrite")
    assert opened(again(catalog)).to_table()["a"].to_pylist() == [7]
    assert numbers(catalog)[0] == 6


def test_two_stale_writers_both_succeed(catalog: DirectoryNamespace) -> None:
    make(catalog)
    first, second = opened(catalog), opened(again(catalog))
    first.insert(rows(10), mode="append")
    second.insert(rows(11), mode="append")
    first.insert(rows(12), mode="append")
    assert numbers(catalog) == [4, 3, 2, 1]
    assert opened(catalog).count_rows() == 6


def test_lancedb_commits_through_the_catalog(catalog: DirectoryNamespace) -> None:
    lancedb = pytest.importorskip("lancedb")
    connection = lancedb.LanceNamespaceDBConnection(catalog)
    table = connection.create_table("t", rows(1, 2))
    table.add(rows(3))
    assert numbers(catalog)[0] >= 2
    assert call(again(catalog), "count_table_rows", id=["t"]).count == 3


def test_data_operations_of_the_catalog_make_recorded_versions(catalog: DirectoryNamespace) -> None:
    make(catalog)
    assert catalog.insert_into_table({"id": ["t"]}, stream(rows(4))).version == 2  # type: ignore[arg-type]
    assert call(catalog, "delete_from_table", id=["t"], predicate="a = 1").version == 3
    call(catalog, "restore_table", id=["t"], version=1)
    assert numbers(again(catalog)) == [4, 3, 2, 1]
    assert opened(catalog).count_rows() == 3
    call(catalog, "create_table_tag", id=["t"], tag="first", version=1)
    assert opened(catalog).checkout_version("first").version == 1


def test_create_table_obeys_its_modes(catalog: DirectoryNamespace) -> None:
    make(catalog)
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_table({"id": ["t"]}, stream(rows(9)))  # type: ignore[arg-type]
    assert catalog.create_table({"id": ["t"], "mode": "ExistOk"}, stream(rows(9))).version is None  # type: ignore[arg-type]
    assert catalog.create_table({"id": ["t"], "mode": "Overwrite"}, stream(rows(9))).version == 2  # type: ignore[arg-type]
    assert numbers(again(catalog)) == [2, 1]
    assert opened(catalog).to_table()["a"].to_pylist() == [9]
    assert catalog.verify() == []


def test_a_declared_table_gets_its_first_version_from_a_writer(catalog: DirectoryNamespace) -> None:
    call(catalog, "declare_table", id=["d"])
    assert call(catalog, "describe_table", id=["d"], check_declared=True).is_only_declared
    assert numbers(catalog, "d") == []
    catalog.create_table({"id": ["d"]}, stream(rows(1)))  # type: ignore[arg-type]
    assert numbers(catalog, "d") == [1]
    assert not call(catalog, "describe_table", id=["d"], check_declared=True).is_only_declared
    assert call(catalog, "list_tables", id=[], include_declared=False).tables == ["d"]


def test_a_version_written_behind_the_catalog_is_not_shown_and_is_reported(catalog: DirectoryNamespace) -> None:
    folder = make(catalog, versions=2)
    lance.write_dataset(rows(99), folder, mode="append")
    assert lance.dataset(folder).version == 3
    [problem] = catalog.verify()
    assert problem.kind == "unrecorded_version"
    assert numbers(catalog) == [2, 1]
    assert opened(again(catalog)).count_rows() == 4
    assert call(catalog, "count_table_rows", id=["t"]).count == 4
    assert call(catalog, "describe_table", id=["t"], load_detailed_metadata=True).version == 2
    with pytest.raises(TableVersionNotFoundError):
        call(catalog, "describe_table_version", id=["t"], version=3)
    assert [item.kind for item in catalog.verify()] == ["unrecorded_version"]


def test_a_version_written_behind_the_catalog_does_not_stop_its_writers(catalog: DirectoryNamespace) -> None:
    folder = make(catalog)
    lance.write_dataset(rows(99), folder, mode="append")
    lance.write_dataset(rows(98), folder, mode="append")
    append(catalog, value=4)
    assert numbers(catalog) == [2, 1]
    assert sorted(opened(again(catalog)).to_table()["a"].to_numpy().tolist()) == [1, 2, 3, 4]
    assert sorted(lance.dataset(folder).to_table()["a"].to_numpy().tolist()) == [1, 2, 3, 4]
    assert {item.kind for item in catalog.verify()} == {"unrecorded_version"}


def test_a_writer_that_knew_a_table_by_its_old_name_moves_nothing_of_it(catalog: DirectoryNamespace) -> None:
    make(catalog, versions=2)
    before = catalog.operations.find_table(ObjectId(("t",)))
    call(catalog, "rename_table", id=["t"], new_table_name="moved")
    append(catalog, "moved", value=4)
    files = sorted(Path(catalog.properties.root).rglob("*.manifest*"))
    for table in (before, replace(before, known=replace(before.known, newest=0))):
        catalog.versions.begin_append(table, None)
    make(catalog, "t")
    catalog.versions.begin_append(before, None)
    assert [file for file in files if not file.exists()] == []
    assert numbers(catalog, "moved") == [3, 2, 1]
    assert opened(again(catalog), "moved", 1).count_rows() == 3
    assert catalog.verify() == []


NEWEST: dict[str, Any] = {"id": ["t"], "limit": 1, "descending": True}


def test_a_writer_takes_in_what_others_commit_while_it_waits_for_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (MetastoreNamespace(root=str(tmp_path / "lake")) for _ in range(2))
    one.create_table({"id": ["t"]}, stream(rows()))  # type: ignore[arg-type]
    call(other, "list_table_versions", **NEWEST)
    known: list[int] = []

    def wait(turn: FileLock, longest_s: float, look_s: float, valid_s: float, meanwhile: Callable[[], object]) -> None:
        call(one, "create_namespace", id=["while it waits"])
        meanwhile()
        known.append(other.metastore.now(refresh=False).slot)

    monkeypatch.setattr(FileLock, "wait_for_wakeup", wait)
    call(other, "list_table_versions", **NEWEST)
    assert known == [one.metastore.slot]


def test_a_version_is_planned_from_what_its_writer_has_just_seen_and_refused_if_that_was_too_old(
    catalog: DirectoryNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(catalog)
    first, second, late = (stage(catalog, "t", version, source=1) for version in (2, 3, 3))
    records = catalog.versions.records
    assert records is not None
    looked, find = list[bool](), records.find

    def look(ids: Iterable[ObjectId], newest: bool = False) -> Mapping[ObjectId, CatalogObject]:
        looked.append(newest)
        return find(ids, newest=newest)

    monkeypatch.setattr(records, "find", look)
    call(catalog, "create_table_version", **first)
    assert not any(looked)

    def overtaken(keeper: ManagedVersions, staged: StagedVersion) -> None:
        monkeypatch.undo()
        call(again(catalog), "create_table_version", **second)

    monkeypatch.setattr(ManagedVersions, "secure", overtaken)
    with pytest.raises(ConcurrentModificationError, match="Version 3 of table t already exists"):
        call(catalog, "create_table_version", **late)
    assert numbers(catalog) == [3, 2, 1]


def test_listing_versions_waits_for_nobody_and_moves_nothing(catalog: DirectoryNamespace) -> None:
    folder = make(catalog)
    lance.write_dataset(rows(99), folder, mode="append")
    before = sorted(Path(catalog.properties.root).rglob("*"))
    table = catalog.operations.find_table(ObjectId(("t",)))
    assert [found.version.number for found in catalog.versions.page(table, None, None, 1, descending=True)[0]] == [1]
    for asked in ({"limit": 2, "descending": True}, {"limit": 1}, {"limit": 1, "descending": False}):
        assert call(catalog, "list_table_versions", id=["t"], **asked).versions[0].version == 1
    assert sorted(Path(catalog.properties.root).rglob("*")) == before


def test_pylance_gives_up_an_append_if_nothing_was_set_aside_before_it_looks_at_the_storage(
    catalog: DirectoryNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why the question that every open begins with moves what was written behind the catalog."""
    folder = make(catalog)
    lance.write_dataset(rows(99), folder, mode="append")
    with monkeypatch.context() as patched:
        patched.setattr(TableVersions, "begin_append", lambda *_: None)
        with pytest.raises(OSError, match="Commit result for version 3 is unknown"):
            append(catalog, value=4)
    assert numbers(catalog) == [1]
    append(catalog, value=4)
    assert numbers(catalog) == [2, 1]


def test_a_dataset_that_was_open_before_a_write_behind_the_catalog_loses_one_append(
    catalog: DirectoryNamespace,
) -> None:
    """Its append makes one call, CreateTableVersion, in which it is too late: the next append is as any other."""
    folder = make(catalog)
    dataset = opened(catalog)
    lance.write_dataset(rows(99), folder, mode="append")
    with pytest.raises(OSError, match="Commit result for version 3 is unknown"):
        dataset.insert(rows(4))
    assert numbers(catalog) == [1]
    dataset.insert(rows(4))
    assert numbers(catalog) == [2, 1]
    assert opened(again(catalog)).count_rows() == 4


def test_a_declared_table_filled_behind_the_catalog_stays_declared(catalog: DirectoryNamespace) -> None:
    folder = str(call(catalog, "declare_table", id=["d"]).location)
    lance.write_dataset(rows(99), folder, mode="create")
    assert call(catalog, "describe_table", id=["d"], check_declared=True).is_only_declared
    catalog.create_table({"id": ["d"]}, stream(rows(1)))  # type: ignore[arg-type]
    assert opened(again(catalog), "d").to_table()["a"].to_pylist() == [1]


def test_an_empty_first_version_written_behind_the_catalog_is_taken_in(catalog: DirectoryNamespace) -> None:
    """As lance-spark makes it: CREATE TABLE without AS. Before, it was set aside, and nobody could open the table."""
    folder = str(call(catalog, "declare_table", id=["d"]).location)
    lance.write_dataset(rows().slice(0, 0), folder, mode="create")
    assert opened(catalog, "d").count_rows() == 0
    assert numbers(catalog, "d") == [1]
    assert catalog.verify() == []
    append(catalog, "d", value=4)
    assert opened(again(catalog), "d").to_table()["a"].to_pylist() == [4]
    assert not call(catalog, "describe_table", id=["d"], check_declared=True).is_only_declared


def test_a_first_version_with_rows_written_behind_the_catalog_is_set_aside(catalog: DirectoryNamespace) -> None:
    folder = str(call(catalog, "declare_table", id=["d"]).location)
    lance.write_dataset(rows(99), folder, mode="create")
    with pytest.raises(ValueError, match="was not found"):
        opened(catalog, "d")
    assert [item.kind for item in catalog.verify()] == ["unrecorded_version"]


def test_renaming_takes_the_versions_along(catalog: DirectoryNamespace) -> None:
    make(catalog, versions=3)
    call(catalog, "create_namespace", id=["ns"])
    call(catalog, "rename_table", id=["t"], new_table_name="r", new_namespace_id=["ns"])
    answer = call(again(catalog), "list_table_versions", id=["ns", "r"])
    assert [item.version for item in answer.versions] == [3, 2, 1]
    dataset = lance.write_dataset(rows(5), namespace_client=catalog, table_id=["ns", "r"], mode="append")
    assert dataset.version == 4
    assert not any(key == "t" or key.startswith("t$") for key in manifest_rows(catalog))


def test_dropping_takes_the_records_along(catalog: DirectoryNamespace) -> None:
    make(catalog, versions=3)
    call(catalog, "drop_table", id=["t"])
    assert manifest_rows(catalog) == {}
    make(catalog)
    assert numbers(catalog) == [1]


def test_a_deregistered_table_comes_back_with_its_versions(catalog: DirectoryNamespace) -> None:
    folder = make(catalog, versions=3)
    call(catalog, "deregister_table", id=["t"])
    assert manifest_rows(catalog) == {}
    assert lance.dataset(folder).version == 3
    call(catalog, "register_table", id=["back"], location=os.path.relpath(folder, catalog.properties.root))
    assert numbers(catalog, "back") == [3, 2, 1]
    assert append(catalog, "back").version == 4


def test_records_point_at_final_manifests_in_the_end(catalog: DirectoryNamespace) -> None:
    folder = make(catalog, versions=4)
    assert catalog.versions.managed is not None
    assert catalog.versions.managed.point() == 4
    paths = [row["metadata"] for key, row in manifest_rows(catalog).items() if "$" in key]
    assert len(paths) == 4
    assert not any("manifest-" in text for text in paths)
    assert not any("manifest-" in name for name in os.listdir(os.path.join(folder, "_versions")))
    assert opened(again(catalog)).version == 4
    assert catalog.verify() == []


def test_a_record_points_at_its_final_manifest_once_it_was_described(catalog: DirectoryNamespace) -> None:
    make(catalog, versions=3)
    reader = again(catalog)
    assert any("manifest-" in row["metadata"] for key, row in manifest_rows(catalog).items() if "$" in key)
    told = call(reader, "describe_table_version", id=["t"], version=2).version
    (row,) = [row["metadata"] for key, row in manifest_rows(reader).items() if key == "t$2"]
    assert "manifest-" not in row
    assert json.loads(row)["manifest_path"] in told.manifest_path
    assert numbers(again(catalog)) == [3, 2, 1]
    assert catalog.verify() == []


def test_many_versions_are_pointed_at_without_being_asked(catalog: DirectoryNamespace) -> None:
    folder = make(catalog)
    for version in range(2, 140):
        call(catalog, "create_table_version", **stage(catalog, "t", version))
    staged = [name for name in os.listdir(os.path.join(folder, "_versions")) if "manifest-" in name]
    assert len(staged) < 70
    assert numbers(again(catalog)) == list(range(139, 0, -1))


def test_branches_of_a_managed_table_are_kept_by_the_storage(catalog: DirectoryNamespace) -> None:
    make(catalog, versions=2)
    call(catalog, "create_table_branch", id=["t"], name="dev")
    dataset = opened(catalog).checkout_version(("dev", None))
    dataset.insert(rows(7), mode="append")
    assert numbers(catalog) == [2, 1]
    assert numbers(catalog, branch="dev")[0] == dataset.version
    assert opened(again(catalog)).checkout_version(("dev", None)).count_rows() == 5
    assert opened(again(catalog)).count_rows() == 4


def test_released_pylance_refuses_cleanly_to_write_names(catalog: DirectoryNamespace) -> None:
    make(catalog)
    released = Pylance(root=catalog.properties.root, dir_listing_enabled="false")
    with pytest.raises(Exception, match="writer feature flags"):
        released.create_namespace(CreateNamespaceRequest(id=["x"]))
    assert "t" in manifest_rows(catalog)


@pytest.mark.parametrize("key", [READER_FLAGS, WRITER_FLAGS])
def test_flags_of_the_future_are_refused(catalog: DirectoryNamespace, key: str) -> None:
    make(catalog)
    table = lance.dataset(f"{catalog.properties.root}/__manifest")
    table.update_metadata({key: str((1 << 40) | (1 << 5))})
    with pytest.raises(UnsupportedOperationError, match="upgrade"):
        call(again(catalog), "create_namespace", id=["x"])
    if key == READER_FLAGS:
        with pytest.raises(UnsupportedOperationError, match="upgrade"):
            call(again(catalog), "list_tables", id=[])
    else:
        assert call(again(catalog), "list_tables", id=[]).tables == ["t"]


def test_a_batch_in_which_one_table_conflicts_changes_nothing(catalog: DirectoryNamespace) -> None:
    make(catalog, "t")
    make(catalog, "u", versions=2)
    before = manifest_rows(catalog)
    entries = [stage(catalog, "t", 2), stage(catalog, "u", 2, source=1)]
    with pytest.raises(ConcurrentModificationError):
        call(catalog, "batch_create_table_versions", entries=entries)
    assert manifest_rows(catalog) == before
    assert numbers(catalog, "t") == [1]
    assert not os.path.exists(os.path.join(folder_of(catalog), "_versions", manifest_name(2)))


def test_a_batch_over_tables_is_one_commit(catalog: DirectoryNamespace) -> None:
    make(catalog, "t")
    make(catalog, "u")
    entries = [stage(catalog, "t", 2), stage(catalog, "u", 2), stage(catalog, "t", 3)]
    before = lance.dataset(f"{catalog.properties.root}/__manifest").version
    call(catalog, "batch_create_table_versions", entries=entries)
    assert lance.dataset(f"{catalog.properties.root}/__manifest").version == before + 1
    assert numbers(catalog, "t") == [3, 2, 1]


def test_a_batch_of_versions_of_one_table_makes_each_manifest_durable_once(
    catalog: DirectoryNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(catalog)
    entries = [stage(catalog, "t", number, source=1) for number in range(2, 42)]
    synced: list[str] = []
    sync = catalog.versions.store.sync

    def noted(keys: Any) -> None:
        synced.extend(keys)
        sync(keys)

    monkeypatch.setattr(catalog.versions.store, "sync", noted)
    call(catalog, "batch_create_table_versions", entries=entries)
    staged = [key for key in synced if ".manifest-" in key]
    assert len(staged) == len(set(staged)) == 40
    assert numbers(catalog) == list(range(41, 0, -1))


def test_mixed_operations_are_committed_as_one(catalog: DirectoryNamespace) -> None:
    make(catalog, "t", versions=3)
    make(catalog, "gone")
    before = lance.dataset(f"{catalog.properties.root}/__manifest").version
    answer = call(
        catalog,
        "batch_commit_tables",
        operations=[
            {"declare_table": {"id": ["new"]}},
            {"create_table_version": stage(catalog, "t", 4)},
            {"delete_table_versions": {"id": ["t"], "ranges": [{"start_version": 1, "end_version": 3}]}},
            {"deregister_table": {"id": ["gone"]}},
        ],
    )
    assert lance.dataset(f"{catalog.properties.root}/__manifest").version == before + 1
    declared, created, deleted, deregistered = answer.results
    assert declared.declare_table.managed_versioning
    assert created.create_table_version.version.version == 4
    assert deleted.delete_table_versions.deleted_count == 2
    assert deregistered.deregister_table.id == ["gone"]
    assert numbers(again(catalog)) == [4, 3]
    assert sorted(call(again(catalog), "list_tables", id=[]).tables) == ["new", "t"]


def test_a_mixed_batch_that_fails_changes_nothing(catalog: DirectoryNamespace) -> None:
    make(catalog, "t", versions=2)
    before = manifest_rows(catalog)
    for last in (
        {"create_table_version": stage(catalog, "t", 2, source=1)},
        {"deregister_table": {"id": ["nobody"]}},
        {"declare_table": {"id": ["t"]}},
        {"delete_table_versions": {"id": ["t"], "ranges": [{"start_version": 2, "end_version": 1}]}},
        {},
    ):
        with pytest.raises(Exception, match=r".") as caught:
            call(catalog, "batch_commit_tables", operations=[{"declare_table": {"id": ["new"]}}, last])
        assert hasattr(caught.value, "code")
        assert manifest_rows(catalog) == before
    assert call(catalog, "list_tables", id=[]).tables == ["t"]


def test_a_catalog_that_exists_unmanaged_is_not_changed_by_a_property(kind: str, tmp_path: Path) -> None:
    plain = open_kind(kind.removesuffix("-managed"), tmp_path / "lake")
    make(plain, versions=2)
    told = open_kind(kind, tmp_path / "lake")
    assert numbers(told) == [2, 1]
    with pytest.raises(InvalidInputError, match="enable_table_version_management"):
        call(told, "create_namespace", id=["x"])


def test_migration_records_every_version_of_every_table(kind: str, tmp_path: Path) -> None:
    plain = open_kind(kind.removesuffix("-managed"), tmp_path / "lake")
    make(plain, "t", versions=3)
    make(plain, "u", versions=2)
    call(plain, "declare_table", id=["d"])
    assert plain.enable_table_version_management() == 5
    assert plain.enable_table_version_management() == 0
    for catalog in (plain, again(plain), open_kind(kind, tmp_path / "lake")):
        assert numbers(catalog) == [3, 2, 1]
        assert call(catalog, "describe_table", id=["t"]).managed_versioning
        assert numbers(catalog, "d") == []
    assert append(plain).version == 4
    assert opened(again(plain), version=2).count_rows() == 4
    assert plain.verify() == []


def test_migration_takes_in_tables_that_were_only_folders(tmp_path: Path) -> None:
    lance.write_dataset(rows(1), tmp_path / "lake" / "old.lance")
    lance.write_dataset(rows(2), tmp_path / "lake" / "old.lance", mode="append")
    catalog = open_kind("compat", tmp_path / "lake")
    assert catalog.enable_table_version_management() == 2
    assert call(catalog, "describe_table", id=["old"]).managed_versioning
    assert append(catalog, "old").version == 3
    assert numbers(again(catalog), "old") == [3, 2, 1]


@pytest.mark.parametrize("commits", [1, 3])
def test_writers_that_commit_and_exit_leave_a_bounded_number_of_staged_manifests(tmp_path: Path, commits: int) -> None:
    folder = Path(make(open_kind("compat-managed", tmp_path / "lake")))
    for _ in range(8):
        short_lived = open_kind("compat-managed", tmp_path / "lake")
        for _ in range(commits):
            append(short_lived)
        del short_lived
    staged = [path.name for path in (folder / "_versions").iterdir() if ".manifest-" in path.name]
    assert len(staged) <= 2 * commits
    catalog = open_kind("compat-managed", tmp_path / "lake")
    assert numbers(catalog) == list(range(1 + 8 * commits, 0, -1))
    assert opened(catalog).count_rows() == 3 + 8 * commits
