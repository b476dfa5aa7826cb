"""The version operations mean the same on every kind of catalog, whoever keeps the versions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from headwater.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    TableNotFoundError,
    TableVersionNotFoundError,
)
from headwater.namespace.directory import DirectoryNamespace
from headwater.store import CountingStore
from headwater.tables.layout import manifest_name
from tests.versions.samples import (
    KINDS,
    MANAGED,
    call,
    files,
    folder_of,
    make,
    numbers,
    open_kind,
    opened,
    stage,
)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def catalog(kind: str, tmp_path: Path) -> DirectoryNamespace:
    return open_kind(kind, tmp_path / "lake")


def test_versions_are_listed_newest_first(catalog: DirectoryNamespace) -> None:
    make(catalog, versions=4)
    assert numbers(catalog) == [4, 3, 2, 1]
    assert numbers(catalog, descending=True) == [4, 3, 2, 1]
    assert numbers(catalog, descending=False) == [1, 2, 3, 4]


@pytest.mark.parametrize("descending", [True, False])
def test_pages_of_any_size_join_to_the_whole_list(catalog: DirectoryNamespace, descending: bool) -> None:
    make(catalog, versions=7)
    whole = numbers(catalog, descending=descending)
    for limit in range(1, 9):
        found: list[int] = []
        token = None
        while True:
            page = call(catalog, "list_table_versions", id=["t"], limit=limit, page_token=token, descending=descending)
            found += [item.version for item in page.versions]
            token = page.page_token
            if token is None:
                break
            assert len(page.versions) == limit
        assert found == whole


def test_a_version_deleted_between_pages_makes_no_other_be_skipped(catalog: DirectoryNamespace) -> None:
    make(catalog, versions=6)
    first = call(catalog, "list_table_versions", id=["t"], limit=2)
    call(catalog, "batch_delete_table_versions", id=["t"], ranges=[{"start_version": 5, "end_version": 6}])
    rest = call(catalog, "list_table_versions", id=["t"], page_token=first.page_token)
    assert [item.version for item in first.versions] == [6, 5]
    assert [item.version for item in rest.versions] == [4, 3, 2, 1]


def test_a_strange_page_token_or_limit_is_invalid(catalog: DirectoryNamespace) -> None:
    make(catalog)
    for request in ({"page_token": "bm8"}, {"page_token": "%%%"}, {"limit": 0}, {"limit": -1}):
        with pytest.raises(InvalidInputError):
            call(catalog, "list_table_versions", id=["t"], **request)


def test_describe_tells_where_the_manifest_is_and_what_it_is(catalog: DirectoryNamespace) -> None:
    folder = make(catalog, versions=2)
    found = call(catalog, "describe_table_version", id=["t"], version=1).version
    path = os.path.join(folder, "_versions", manifest_name(1))
    assert found.manifest_path == path.lstrip("/")
    assert found.manifest_size == os.path.getsize(path)
    assert found.e_tag is not None
    assert found.e_tag.startswith('"')
    assert abs(found.timestamp_millis / 1000 - os.path.getmtime(path)) < 60


def test_describe_without_a_number_means_the_newest(catalog: DirectoryNamespace) -> None:
    make(catalog, versions=3)
    assert call(catalog, "describe_table_version", id=["t"]).version.version == 3


def test_a_version_that_does_not_exist_is_not_found(catalog: DirectoryNamespace) -> None:
    make(catalog)
    for version in (0, 2, 2**63 - 1):
        with pytest.raises(TableVersionNotFoundError):
            call(catalog, "describe_table_version", id=["t"], version=version)


def test_versions_of_a_table_that_does_not_exist_are_table_not_found(catalog: DirectoryNamespace) -> None:
    request = {"id": ["no"], "version": 1, "manifest_path": "x", "ranges": []}
    for name in ("list", "describe", "create", "batch_delete"):
        operation = f"{name}_table_version{'s' if name in ('list', 'batch_delete') else ''}"
        with pytest.raises(TableNotFoundError):
            call(catalog, operation, **request)


@pytest.mark.parametrize("scheme", ["V1", "V2"])
def test_a_created_version_is_put_under_its_final_name(catalog: DirectoryNamespace, scheme: str) -> None:
    folder = make(catalog)
    request = stage(catalog, "t", 2, scheme)
    created = call(catalog, "create_table_version", **request).version
    final = os.path.join(folder, "_versions", manifest_name(2, scheme))
    assert created.manifest_path == final.lstrip("/")
    assert os.path.getsize(final) == created.manifest_size == request["manifest_size"]
    assert numbers(catalog) == [2, 1]
    assert call(catalog, "describe_table_version", id=["t"], version=2).version == created.model_copy(
        update={
            "timestamp_millis": call(catalog, "describe_table_version", id=["t"], version=2).version.timestamp_millis
        }
    )


def test_a_version_is_created_only_once(catalog: DirectoryNamespace) -> None:
    make(catalog, versions=2)
    before = files(folder_of(catalog))
    request = stage(catalog, "t", 2, source=1)
    with pytest.raises(ConcurrentModificationError, match="already exists"):
        call(catalog, "create_table_version", **request)
    after = files(folder_of(catalog))
    assert {name: body for name, body in after.items() if name in before} == before


def test_the_other_naming_scheme_does_not_make_room_for_a_second_version(catalog: DirectoryNamespace) -> None:
    make(catalog, versions=2)
    with pytest.raises(ConcurrentModificationError):
        call(catalog, "create_table_version", **stage(catalog, "t", 2, "V1", source=1))


def test_a_version_that_would_leave_a_gap_is_refused(catalog: DirectoryNamespace) -> None:
    make(catalog, versions=2)
    with pytest.raises(ConcurrentModificationError, match="does not follow"):
        call(catalog, "create_table_version", **stage(catalog, "t", 9))
    assert numbers(catalog) == [2, 1]


def test_a_creation_whose_answer_was_lost_can_be_repeated(catalog: DirectoryNamespace) -> None:
    make(catalog)
    request = stage(catalog, "t", 2)
    body = Path("/" + request["manifest_path"]).read_bytes()
    first = call(catalog, "create_table_version", **request)
    Path("/" + request["manifest_path"]).write_bytes(body)
    assert call(catalog, "create_table_version", **{**request, "e_tag": None}) == first
    assert numbers(catalog) == [2, 1]


def test_a_batch_creates_versions_of_several_tables(catalog: DirectoryNamespace) -> None:
    make(catalog, "t")
    make(catalog, "u", versions=2)
    answer = call(catalog, "batch_create_table_versions", entries=[stage(catalog, "t", 2), stage(catalog, "u", 3)])
    assert [item.version for item in answer.versions] == [2, 3]
    assert numbers(catalog, "t") == [2, 1]
    assert numbers(catalog, "u") == [3, 2, 1]


@pytest.mark.parametrize(
    ("ranges", "left"),
    [
        ([(2, 4)], [5, 4, 1]),
        ([(1, 2), (3, 4)], [5, 4, 2]),
        ([(0, 5)], [5]),
        ([(3, 3)], [5, 4, 3, 2, 1]),
        ([(2, -1)], [1]),
        ([(0, -1)], []),
    ],
)
def test_ranges_delete_from_start_to_before_end(
    catalog: DirectoryNamespace, ranges: list[tuple[int, int]], left: list[int]
) -> None:
    folder = make(catalog, versions=5)
    data = files(os.path.join(folder, "data"))
    asked = [{"start_version": start, "end_version": end} for start, end in ranges]
    answer = call(catalog, "batch_delete_table_versions", id=["t"], ranges=asked)
    assert answer.deleted_count == 5 - len(left)
    assert numbers(catalog) == left
    assert files(os.path.join(folder, "data")) == data
    if left:
        assert opened(catalog).version == left[0]


def test_the_current_version_is_deleted_only_when_told_to(catalog: DirectoryNamespace) -> None:
    make(catalog, versions=3)
    with pytest.raises(InvalidInputError, match="current version"):
        call(catalog, "batch_delete_table_versions", id=["t"], ranges=[{"start_version": 1, "end_version": 9}])
    assert numbers(catalog) == [3, 2, 1]


def test_missing_versions_in_a_range_are_ignored_unless_told_otherwise(catalog: DirectoryNamespace) -> None:
    make(catalog, versions=4)
    once = {"id": ["t"], "ranges": [{"start_version": 1, "end_version": 3}]}
    assert call(catalog, "batch_delete_table_versions", **once).deleted_count == 2
    assert call(catalog, "batch_delete_table_versions", **once).deleted_count == 0
    with pytest.raises(TableVersionNotFoundError):
        call(catalog, "batch_delete_table_versions", **once, ignore_missing=False)
    with pytest.raises(TableVersionNotFoundError):
        call(catalog, "batch_delete_table_versions", **once, context={"ignore_missing": "false"})
    for given in (False, "false"):
        part = {"delete_table_versions": {**once, "ignore_missing": given}}
        with pytest.raises(TableVersionNotFoundError):
            call(catalog, "batch_commit_tables", operations=[part])
    call(catalog, "batch_commit_tables", operations=[{"delete_table_versions": once}])
    with pytest.raises(InvalidInputError, match="true or false"):
        call(catalog, "batch_delete_table_versions", **once, ignore_missing="perhaps")


@pytest.mark.parametrize("bad", [(-1, 3), (3, 1), (0, -2)])
def test_a_range_that_means_nothing_is_invalid(catalog: DirectoryNamespace, bad: tuple[int, int]) -> None:
    make(catalog, versions=2)
    with pytest.raises(InvalidInputError):
        call(
            catalog,
            "batch_delete_table_versions",
            id=["t"],
            ranges=[{"start_version": bad[0], "end_version": bad[1]}],
        )


def test_no_operation_on_one_version_lists_the_folder(catalog: DirectoryNamespace) -> None:
    make(catalog, versions=5)
    call(catalog, "list_table_versions", id=["t"], limit=1, descending=True)
    counted = CountingStore(catalog.store)
    for part in (catalog.versions, catalog.versions.storage, catalog.versions.managed):
        if part is not None:
            part.store = counted
    request = stage(catalog, "t", 6)
    counted.reset()
    call(catalog, "list_table_versions", id=["t"], limit=1, descending=True)
    call(catalog, "describe_table_version", id=["t"], version=3)
    call(catalog, "create_table_version", **request)
    assert counted.counts["list"] == counted.counts["children"] == 0
    assert sum(counted.counts.values()) <= 20


def test_whether_the_catalog_manages_versions_is_told_to_clients(catalog: DirectoryNamespace, kind: str) -> None:
    make(catalog)
    assert bool(call(catalog, "describe_table", id=["t"]).managed_versioning) == (kind in MANAGED)
    declared = call(catalog, "declare_table", id=["d"])
    assert bool(declared.managed_versioning) == (kind in MANAGED)


MISSING: dict[str, dict[str, Any]] = {
    "describe_table": {},
    "table_exists": {},
    "count_table_rows": {},
    "restore_table": {},
    "query_table": {"k": 1, "vector": {}},
    "describe_table_version": {},
    "create_table_tag": {"tag": "x"},
}


def test_describe_table_has_the_version_that_the_catalog_records(catalog: DirectoryNamespace, kind: str) -> None:
    make(catalog, versions=2)
    recorded = {None: None, True: 2, False: None} if kind not in MANAGED else {None: 2, True: 2, False: 2}
    for details, version in recorded.items():
        assert call(catalog, "describe_table", id=["t"], load_detailed_metadata=details).version == version
    call(catalog, "declare_table", id=["d"])
    assert call(catalog, "describe_table", id=["d"]).version is None


def test_describe_table_has_the_schema_of_a_recorded_version_unless_the_caller_wants_none(
    catalog: DirectoryNamespace, kind: str
) -> None:
    make(catalog, versions=2)
    detailed = call(catalog, "describe_table", id=["t"], load_detailed_metadata=True).var_schema
    assert detailed is not None
    told = call(catalog, "describe_table", id=["t"]).var_schema
    assert told == (detailed if kind in MANAGED else None)
    assert call(catalog, "describe_table", id=["t"], load_detailed_metadata=False).var_schema is None
    call(catalog, "alter_table_add_columns", id=["t"], new_columns=[{"name": "more", "expression": "7"}])
    told = call(catalog, "describe_table", id=["t"]).var_schema
    assert (kind in MANAGED) == (told is not None and "more" in [field.name for field in told.fields])


def test_a_version_that_is_not_there_is_named_as_such_by_every_operation(catalog: DirectoryNamespace) -> None:
    make(catalog, versions=3)
    call(catalog, "batch_delete_table_versions", id=["t"], ranges=[{"start_version": 1, "end_version": 2}])
    for version in (1, 9, 2**62):
        for operation, request in MISSING.items():
            with pytest.raises(TableVersionNotFoundError, match=f"has no version {version}"):
                call(catalog, operation, id=["t"], version=version, **request)
        with pytest.raises(TableVersionNotFoundError):
            call(catalog, "create_table_branch", id=["t"], name="x", from_version=version)
