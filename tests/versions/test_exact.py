"""One exact commit: it is this version or none, and what nobody knows is never called a conflict."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import lance
import pytest
from lance_namespace import LanceNamespace

from headwater.errors import (
    CommitStateUnknownError,
    ConcurrentModificationError,
    InternalError,
    LanceNamespaceError,
    ServiceUnavailableError,
)
from headwater.names import ObjectId
from headwater.namespace.directory import DirectoryNamespace
from headwater.tables.commit.committer import TableCommitter
from headwater.tables.handle import TableHandle
from tests.versions.samples import append, folder_of, make, open_kind, opened, rows, stream

DROPPED = "Internal error: Failed to execute request: reqwest::Error { source: SendRequest, IncompleteMessage }"
REFUSED = "Service unavailable: Failed to execute request: reqwest::Error { source: ConnectError, ConnectionRefused }"
DARK = (
    "Service unavailable: The store did not answer, a conflict perhaps. It may have landed: look before repeating it."
)


class Deaf(LanceNamespace):
    """A catalog behind a line that breaks for good when a version is created, before or after the catalog has heard."""

    def __init__(self, catalog: DirectoryNamespace, error: LanceNamespaceError, lands: bool) -> None:
        self.catalog = catalog
        self.error = error
        self.lands = lands
        self.broken = False

    def namespace_id(self) -> str:
        return str(self.catalog.namespace_id())

    def create_table_version(self, request: Any) -> Any:
        self.broken = True
        if self.lands:
            self.catalog.create_table_version(request)
        raise self.error

    def list_table_versions(self, request: Any) -> Any:
        return self.catalog.list_table_versions(request)

    def describe_table_version(self, request: Any) -> Any:
        if self.broken:
            raise self.error
        return self.catalog.describe_table_version(request)

    def describe_table(self, request: Any) -> Any:
        return self.catalog.describe_table(request)


@pytest.fixture(params=["V2", "V2-managed"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> DirectoryNamespace:
    found = open_kind(str(request.param), tmp_path / "lake")
    make(found, versions=2)
    return found


def handle(catalog: DirectoryNamespace, version: int, name: str = "t") -> TableHandle:
    managed = bool(catalog.describe_table({"id": [name]}).managed_versioning)  # type: ignore[arg-type]
    return TableHandle(ObjectId((name,)), folder_of(catalog, name), version=version, managed=managed)


def delete_all(client: LanceNamespace, table: TableHandle) -> int:
    ids = [fragment.fragment_id for fragment in lance.dataset(table.uri).get_fragments()]
    return TableCommitter(client).update(table, ids, [], [])


@pytest.mark.parametrize("lands", [True, False])
@pytest.mark.parametrize("error", [ServiceUnavailableError(DARK), InternalError(DROPPED)], ids=["dark", "dropped"])
def test_a_commit_without_an_answer_is_unknown_and_not_a_conflict(
    catalog: DirectoryNamespace, error: LanceNamespaceError, lands: bool
) -> None:
    with pytest.raises(CommitStateUnknownError, match="newest version before repeating it"):
        delete_all(Deaf(catalog, error, lands), handle(catalog, 2))
    assert opened(catalog).count_rows() == (0 if lands else 4)


def test_a_commit_that_the_catalog_never_heard_of_has_failed(catalog: DirectoryNamespace) -> None:
    with pytest.raises(ServiceUnavailableError) as failed:
        delete_all(Deaf(catalog, ServiceUnavailableError(REFUSED), lands=False), handle(catalog, 2))
    assert not isinstance(failed.value, CommitStateUnknownError)
    assert opened(catalog).version == 2


def test_a_pinned_commit_loses_against_a_version_it_did_not_see(catalog: DirectoryNamespace) -> None:
    table = handle(catalog, 2)
    append(catalog) if table.managed else lance.write_dataset(rows(7), table.uri, mode="append")
    with pytest.raises(ConcurrentModificationError, match="after version 2 was read"):
        delete_all(catalog, table)
    assert opened(catalog).count_rows() == 5


@pytest.mark.parametrize("lands", [True, False])
def test_a_managed_version_of_unknown_fate_is_whole_if_it_landed_and_in_nobodys_way_if_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lands: bool
) -> None:
    catalog = open_kind("V2-managed", tmp_path / "lake")
    make(catalog, "old")

    def dark(changes: Any, *args: Any, **options: Any) -> None:
        if lands:
            commit(changes, *args, **options)
        raise CommitStateUnknownError("The store did not answer. It may have landed: look before repeating it.")

    with monkeypatch.context() as patched:
        commit = catalog.registry.commit
        patched.setattr(catalog.registry, "commit", dark)
        with pytest.raises(CommitStateUnknownError):
            catalog.create_table({"id": ["new"]}, stream(rows()))  # type: ignore[arg-type]
        with suppress(CommitStateUnknownError):  # pylance asks the catalog, and may learn that it landed
            TableCommitter(catalog).replace(handle(catalog, 1, "old"), rows().schema, [])
    again = DirectoryNamespace(root=catalog.properties.root)
    if lands:
        assert opened(again, "new").count_rows() == 3
        assert (opened(again, "old").version, opened(again, "old").count_rows()) == (2, 0)
    else:
        make(again, "new")
        assert (opened(again, "old").version, opened(again, "old").count_rows()) == (1, 3)
    assert append(again, "new").version == 2
    assert append(again, "old").version == (3 if lands else 2)
    assert opened(again, "old").count_rows() == (1 if lands else 4)
