"""Commit to a Lance table at exactly the version that was planned, or not at all.

pylance's own commit silently rebases an append over what others committed meanwhile. A commit through an
external manifest store does not: pylance stages the manifest and asks that store to take the version. `Slot`
is such a store for one version of one table: it takes the version by create-if-absent, the same step that
pylance itself ends with, so that writers of both kinds exclude each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import lance
from lance_namespace import DescribeTableVersionResponse, LanceNamespace, ListTableVersionsResponse, TableVersion

from headwater.errors import CommitStateUnknownError, ConcurrentModificationError, InternalError, LanceNamespaceError
from headwater.registries.folders import has_version
from headwater.registries.layout import VERSIONS, manifest_name
from headwater.store import Store, claim

SYNCING = ThreadPoolExecutor(2, thread_name_prefix="headwater-sync")
"""New data files are made durable while pylance prepares the manifest."""


class Slot(LanceNamespace):
    """The external manifest store of one commit: version `version` of the table in `folder`, nothing else."""

    def __init__(self, store: Store, folder: str, version: int, files: Sequence[str] = ()) -> None:
        self.store = store
        self.folder = folder
        self.version = version
        self.synced = SYNCING.submit(store.sync, files)
        self.taken = False
        self.taken_by_other = False
        self.failure: LanceNamespaceError | None = None

    def namespace_id(self) -> str:
        return f"headwater slot {self.folder}@{self.version}"

    def create_table_version(self, request: Any) -> Any:
        asked = request if isinstance(request, dict) else request.model_dump()
        staged = f"{self.folder}/{VERSIONS}/{asked['manifest_path'].rsplit('/', 1)[-1]}"
        final = f"{self.folder}/{VERSIONS}/{manifest_name(self.version, asked.get('naming_scheme') or 'V2')}"
        try:
            self._take(int(asked["version"]), staged, final)
            self.taken = True
        except LanceNamespaceError as failure:
            self.failure = self.failure or failure
            raise
        finally:
            self.store.delete(staged)
        prefix = asked["manifest_path"].rsplit("/", 1)[0]
        return {"version": {"version": self.version, "manifest_path": f"{prefix}/{final.rsplit('/', 1)[-1]}"}}

    def _take(self, asked: int, staged: str, final: str) -> None:
        self.synced.result()
        if asked != self.version or not claim(self.store, staged, final):
            self.taken_by_other = True
            raise ConcurrentModificationError(
                f"Version {self.version} of {self.folder} was committed by another writer."
            )

    def list_table_versions(self, request: Any) -> ListTableVersionsResponse:
        """pylance asks this for the newest version when it was given no dataset: there is none yet."""
        return ListTableVersionsResponse(versions=[])

    def describe_table_version(self, request: Any) -> DescribeTableVersionResponse:
        """pylance asks this after a refusal; the winner's manifest tells it that the version is not ours."""
        version = int(request["version"] if isinstance(request, dict) else request.version)
        path = f"{self.folder}/{VERSIONS}/{manifest_name(version)}"
        return DescribeTableVersionResponse(version=TableVersion(version=version, manifest_path=path))


def commit_exactly(
    store: Store,
    folder: str,
    base: lance.LanceDataset | str,
    transaction: lance.Transaction,
    files: Sequence[str],
    storage_options: dict[str, str] | None = None,
    slot: Slot | None = None,
) -> lance.LanceDataset:
    """Commit on top of `transaction.read_version` and nothing else, or ConcurrentModification (14).

    `files` are the new data files, made durable before the version is taken. `slot` takes it in another way.
    """
    slot = slot or Slot(store, folder, transaction.read_version + 1, files)
    try:
        return lance.LanceDataset.commit(
            base,
            transaction,
            namespace_client=slot,
            table_id=[folder],
            namespace_client_managed_versioning=True,
            storage_options=storage_options,
            max_retries=0,
        )
    except (OSError, ValueError, RuntimeError) as error:
        if isinstance(slot.failure, CommitStateUnknownError):
            raise slot.failure from None
        if slot.taken:
            raise CommitStateUnknownError(
                f"The commit to {folder} has landed but cannot be read back: look before repeating it."
            ) from None
        # pylance looks for a version before it asks the slot, and fails obscurely when it finds the first one taken.
        overtaken = transaction.read_version == 0 and slot.failure is None and has_version(store, folder)
        if overtaken or slot.taken_by_other or (slot.failure is None and "onflict" in str(error)):
            raise ConcurrentModificationError(f"Another writer committed to {folder} first.") from None
        raise slot.failure or InternalError(
            f"The commit to {folder} failed: {str(error).splitlines()[0].split(', /')[0][:300]}"
        ) from None


def data_keys(folder: str, fragments: Sequence[Any]) -> list[str]:
    """The keys of the data files of fragments that pylance has written."""
    return [f"{folder}/data/{file.path}" for fragment in fragments for file in fragment.files]
