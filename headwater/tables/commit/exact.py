"""An exact commit: makes a staged manifest version N of a table, or raises ConcurrentModification.

pylance's own commit silently rebases over what others committed meanwhile. A commit through an external manifest
store does not: pylance stages the manifest and asks that store to take the version. `OneCommit` is such a store for
one commit. How the version is taken is its strategy: by the store's `claim`, the step that pylance itself ends with,
so that writers of both kinds exclude each other (`claiming`); by the records of a catalog (`recording`); by a request
to a catalog (`asking`). `verdict` names the outcome in this order: unknown, conflict, failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from headwater.errors import (
    CommitStateUnknownError,
    ConcurrentModificationError,
    LanceNamespaceError,
    UnsupportedOperationError,
)
from headwater.imports import lance
from headwater.store import Store, claim
from headwater.tables.handle import TableHandle
from headwater.tables.layout import DATA, VERSIONS, manifest_name
from headwater.tables.translate import fate_unknown, is_unanswered, named_error, translating

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata
    from lance_namespace import LanceNamespace

SYNCING = ThreadPoolExecutor(2, thread_name_prefix="headwater-sync")
"""New data files are made durable while pylance prepares the manifest."""

Take = Callable[[Any], Any]
"""A function from pylance's CreateTableVersion request to the answer with the path of the version's manifest."""


class OneCommit:
    """The external manifest store of one commit, to version `version` of a table (None: the next version).

    It has the methods of `LanceNamespace` that pylance calls by name, with answers as dictionaries.
    `reads`: the catalog for pylance's other requests; without it the table has no versions yet.
    """

    def __init__(
        self, table: TableHandle, version: int | None, take: Take, reads: LanceNamespace | None = None
    ) -> None:
        self._table = table
        self._version = version
        self._take = take
        self._reads = reads
        self._taken = False
        self._failure: Exception | None = None

    def namespace_id(self) -> str:
        return str(self._reads.namespace_id()) if self._reads else f"headwater commit {self._table.uri}@{self._version}"

    def create_table_version(self, request: object) -> object:
        try:
            if self._version is not None and int(told(request)["version"]) != self._version:
                raise overtaken(self._table, self._version)
            answer = self._take(request)
        except Exception as failure:
            if not isinstance(self._failure, CommitStateUnknownError):
                self._failure = failure
            raise
        self._taken = True
        return answer

    def list_table_versions(self, request: Any) -> object:
        """Return the versions of the table. pylance needs the newest one if it has no open dataset."""
        return self._reads.list_table_versions(request) if self._reads else {"versions": []}

    def describe_table_version(self, request: Any) -> Any:
        """Return the version that won. pylance reads its manifest after a refusal, and learns that it is not ours."""
        if self._reads is not None:
            return self._reads.describe_table_version(request)
        version = int(told(request)["version"])
        path = f"{self._table.uri}/{VERSIONS}/{manifest_name(version)}"
        return {"version": {"version": version, "manifest_path": path}}

    def describe_table(self, request: Any) -> object:
        if self._reads is None:
            raise UnsupportedOperationError("A commit to a folder has no catalog that could describe its table.")
        return self._reads.describe_table(request)

    def require_taken(self) -> None:
        """Raise the failure of the version store, if pylance reported success after reading a manifest by itself."""
        if self._reads is None and not self._taken and self._failure is not None:
            raise self._failure

    def verdict(self, error: Exception, exists: Callable[[], bool]) -> LanceNamespaceError:
        """Return the error for a commit that pylance could not finish.

        `exists`: returns True if version 1 exists. pylance fails obscurely if it was to create that version.
        """
        if isinstance(self._failure, CommitStateUnknownError):
            return self._failure
        if self._taken:
            return fate_unknown(self._table)
        if isinstance(self._failure, LanceNamespaceError):
            return self._failure
        if self._failure is None and exists():
            return overtaken(self._table, 1)
        return named_error(self._table, "commit to", self._failure or error)


def commit_exactly(
    once: OneCommit,
    table: TableHandle,
    base: lance.LanceDataset | str,
    transaction: lance.Transaction,
    exists: Callable[[], bool] = lambda: False,
    **options: Any,
) -> lance.LanceDataset:
    """Commit through `once`. Raises ConcurrentModification (14), or CommitStateUnknown: check before a retry."""
    with translating(table, "commit to"):
        try:
            done = lance.LanceDataset.commit(
                base,
                transaction,
                namespace_client=once,  # type: ignore[arg-type]  # pylance calls few of its methods
                table_id=list(table.id.names),
                namespace_client_managed_versioning=True,
                storage_options=table.storage_options or None,
                **options,
            )
        except Exception as error:
            raise once.verdict(error, exists) from None
        once.require_taken()
        return done


def recording(store: Store, folder: str, files: Sequence[str], record: Callable[[dict[str, Any]], str]) -> Take:
    """Take versions of the table in `folder` by `record`, which returns the final path of the staged manifest.

    `record` is called after the new data files are durable. If it fails, the staged manifest is deleted.
    """
    synced = SYNCING.submit(store.sync, files) if files else None

    def take(request: object) -> object:
        asked = told(request)
        try:
            if synced is not None:
                synced.result()
            path = record(asked)
        except Exception:
            store.delete(staged_key(folder, asked))
            raise
        return {"version": {"version": asked["version"], "manifest_path": path}}

    return take


def claiming(store: Store, table: TableHandle, folder: str, files: Sequence[str]) -> Take:
    """Take versions of the table in `folder` by `claim`."""

    def record(asked: dict[str, Any]) -> str:
        staged, version = staged_key(folder, asked), int(asked["version"])
        final = manifest_name(version, asked.get("naming_scheme") or "V2")
        if not claim(store, staged, f"{folder}/{VERSIONS}/{final}"):
            raise overtaken(table, version)
        store.delete(staged)
        return f"{asked['manifest_path'].rsplit('/', 1)[0]}/{final}"

    return recording(store, folder, files, record)


def hide(store: Store, staged: str, hidden: str, data: bytes | None = None) -> None:
    """Rename a staged manifest so that only its transaction finds it, until the transaction commits.

    A Lance client that opens a manifest with a staged name gives it the final name, which publishes the version.
    """
    if not claim(store, staged, hidden, data, durable=False):
        store.put(hidden, store.get(staged) if data is None else data)
    store.delete(staged)


def staged_key(folder: str, asked: dict[str, Any]) -> str:
    return f"{folder}/{VERSIONS}/{asked['manifest_path'].rsplit('/', 1)[-1]}"


def asking(client: LanceNamespace, table: TableHandle) -> Take:
    """Take versions by CreateTableVersion of a catalog. A request without an answer raises CommitStateUnknown."""

    def take(request: Any) -> Any:
        try:
            return client.create_table_version(request)
        except Exception as error:
            if not is_unanswered(error):
                raise
            raise fate_unknown(table) from error

    return take


def told(request: Any) -> dict[str, Any]:
    """Return pylance's request as a dictionary; it sends a dictionary or a model."""
    return dict(request if isinstance(request, dict) else request.model_dump())


def overtaken(table: TableHandle, version: int) -> ConcurrentModificationError:
    return ConcurrentModificationError(f"Version {version} of table {table.id} was committed by another writer.")


def data_keys(folder: str, fragments: Iterable[FragmentMetadata]) -> list[str]:
    """Return the keys of the data files of fragments that pylance has written."""
    return [f"{folder}/{DATA}/{file.path}" for fragment in fragments for file in fragment.files]
