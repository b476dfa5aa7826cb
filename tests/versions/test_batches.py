"""A batch that is refused has done nothing, whoever keeps the versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headwater.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    LanceNamespaceError,
    TableAlreadyExistsError,
    TableNotFoundError,
)
from headwater.namespace.directory import DirectoryNamespace
from headwater.store import LocalStore
from tests.versions.samples import KINDS, files, make, numbers, open_kind, stage

WITH_MANIFEST = [kind for kind in KINDS if kind != "V1"]


def commit(catalog: DirectoryNamespace, *operations: dict[str, Any]) -> Any:
    return catalog.batch_commit_tables({"operations": list(operations)})  # type: ignore[arg-type]


def declare(name: str, **more: Any) -> dict[str, Any]:
    return {"declare_table": {"id": [name], **more}}


def deregister(name: str) -> dict[str, Any]:
    return {"deregister_table": {"id": [name]}}


def state(catalog: DirectoryNamespace, root: Path) -> tuple[list[str], set[str]]:
    tables = catalog.list_tables({}).tables  # type: ignore[arg-type]
    found = {name for name in files(root) if not name.startswith((".headwater", "__manifest"))}
    return tables, found


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_that_is_refused_leaves_nothing_of_its_first_operations(kind: str, tmp_path: Path) -> None:
    catalog = open_kind(kind, tmp_path / "lake")
    make(catalog, "t", versions=2)
    wrong_version = {"create_table_version": stage(catalog, "t", 9, source=2)}
    good_version = {"create_table_version": stage(catalog, "t", 3, source=2)}
    tag = {"id": ["t"], "tag": "keep", "version": 1}
    catalog.create_table_tag(tag)
    tables, found = state(catalog, tmp_path / "lake")
    before = tables, {name for name in found if "_refs" not in name}
    refused: list[tuple[type[LanceNamespaceError], list[dict[str, Any]]]] = [
        (TableAlreadyExistsError, [declare("a"), declare("t")]),
        (TableAlreadyExistsError, [declare("a"), declare("b"), declare("a")]),
        (TableNotFoundError, [deregister("t"), deregister("t")]),
        (TableNotFoundError, [declare("a"), deregister("none")]),
        (ConcurrentModificationError, [declare("a"), wrong_version]),
        (InvalidInputError, [good_version, good_version]),
        (
            InvalidInputError,
            [
                declare("a"),
                {"delete_table_versions": {"id": ["t"], "ranges": [{"start_version": 1, "end_version": 2}]}},
            ],
        ),
    ]
    for error, operations in refused:
        with pytest.raises(error):
            commit(catalog, *operations)
        tables, found = state(catalog, tmp_path / "lake")
        assert (tables, {name for name in found if "_refs" not in name}) == before
        assert numbers(catalog) == [2, 1]


@pytest.mark.parametrize("kind", WITH_MANIFEST)
def test_names_change_together_or_not_at_all_also_when_the_storage_fails(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = open_kind(kind, tmp_path / "lake")
    make(catalog, "t")
    answer = commit(catalog, declare("a"), declare("b"), deregister("t"))
    assert [bool(item.declare_table) for item in answer.results] == [True, True, False]
    assert bool(answer.results[0].declare_table.managed_versioning) == ("managed" in kind)
    assert catalog.list_tables({}).tables == ["a", "b"]  # type: ignore[arg-type]
    put, rows = LocalStore.put, len(list((tmp_path / "lake" / "__manifest" / "_versions").glob("*.manifest")))

    def failing(store: LocalStore, key: str, *more: Any, **options: Any) -> None:
        if key.startswith("__manifest/_versions"):
            raise InvalidInputError("the storage fails")
        put(store, key, *more, **options)

    monkeypatch.setattr(LocalStore, "put", failing)
    with pytest.raises(LanceNamespaceError):
        commit(catalog, declare("c"), declare("d"), deregister("a"))
    monkeypatch.undo()
    assert catalog.list_tables({}).tables == ["a", "b"]  # type: ignore[arg-type]
    commit(catalog, declare("c"), declare("d"), deregister("a"))
    assert catalog.list_tables({}).tables == ["b", "c", "d"]  # type: ignore[arg-type]
    assert len(list((tmp_path / "lake" / "__manifest" / "_versions").glob("*.manifest"))) == rows + 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_versions_that_is_refused_makes_none_of_them(kind: str, tmp_path: Path) -> None:
    catalog = open_kind(kind, tmp_path / "lake")
    for name in ("t", "u"):
        make(catalog, name, versions=2)
    entries = [stage(catalog, "t", 3), stage(catalog, "u", 7)]
    with pytest.raises(ConcurrentModificationError):
        catalog.batch_create_table_versions({"entries": entries})  # type: ignore[arg-type]
    assert (numbers(catalog, "t"), numbers(catalog, "u")) == ([2, 1], [2, 1])
    entries = [stage(catalog, "t", 3), stage(catalog, "u", 3), stage(catalog, "t", 3)]
    with pytest.raises(InvalidInputError, match="version 3 of table t twice"):
        catalog.batch_create_table_versions({"entries": entries})  # type: ignore[arg-type]
    assert (numbers(catalog, "t"), numbers(catalog, "u")) == ([2, 1], [2, 1])
    entries = [stage(catalog, "t", 3), stage(catalog, "u", 3), stage(catalog, "t", 4)]
    catalog.batch_create_table_versions({"entries": entries})  # type: ignore[arg-type]
    assert (numbers(catalog, "t"), numbers(catalog, "u")) == ([4, 3, 2, 1], [3, 2, 1])
