"""Commits data files that other processes, such as Spark executors, have written: one commit for all files.

An append goes on top of whatever is newest. Everything that depends on what was read (overwrite, delete, update,
merge) is *pinned*: it becomes the version right after the one that was planned, or it is a conflict and nothing
changes. Lance alone would rebase silently over a concurrent append, and a MERGE that did not see the appended
rows could then insert the same key twice.

A pinned commit goes through the catalog's CreateTableVersion (create if absent) also where storage orders the
versions: pylance's `commit_lock`, which could refuse a version too, switches the storage's own create-if-absent off,
and two commits at once then overwrite each other (seen in our tests).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lance_namespace import LanceNamespace

from headwater.errors import ConcurrentModificationError
from headwater.imports import lance
from headwater.tables.commit.exact import OneCommit, asking, commit_exactly
from headwater.tables.handle import TableHandle
from headwater.tables.translate import translating

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata

STREAM = "headwater.stream"
BATCH = "headwater.batch"


class TableCommitter:
    """A committer to tables of one catalog. Managed tables are committed through the catalog."""

    def __init__(self, client: LanceNamespace) -> None:
        self._client = client

    def open(self, table: TableHandle) -> lance.LanceDataset:
        """Open the newest version, by the catalog for a managed table, else by the storage."""
        return table.through(self._client).open()

    def create(self, table: TableHandle, schema: pa.Schema, fragments: list[dict[str, Any]]) -> int:
        """Commit version 1 of a declared table: its schema and rows."""
        operation = lance.LanceOperation.Overwrite(schema, _fragments(fragments))
        return self._commit(table, operation, read_version=0, pinned=True, create=True)

    def replace(self, table: TableHandle, schema: pa.Schema, fragments: list[dict[str, Any]]) -> int:
        """Commit a version with this schema and only these rows."""
        operation = lance.LanceOperation.Overwrite(schema, _fragments(fragments))
        return self._commit(table, operation, table.version, pinned=True)

    def append(self, table: TableHandle, fragments: list[dict[str, Any]], properties: Mapping[str, str]) -> int:
        if not fragments and not properties:
            return table.version or 0
        operation = lance.LanceOperation.Append(_fragments(fragments))
        return self._commit(table, operation, table.version, pinned=False, properties=properties)

    def update(
        self,
        table: TableHandle,
        removed: list[int],
        updated: list[FragmentMetadata],
        added: list[FragmentMetadata],
        properties: Mapping[str, str] | None = None,
    ) -> int:
        """Remove rows (whole fragments, new deletion vectors) and add rows, in one pinned commit."""
        if not (removed or updated or added or properties):
            return table.version or 0
        operation = lance.LanceOperation.Update(
            removed_fragment_ids=removed, updated_fragments=updated, new_fragments=added
        )
        return self._commit(table, operation, table.version, pinned=True, properties=properties or {})

    def delete(self, table: TableHandle, removed: list[int], filter: str) -> int:
        """Remove whole fragments. Rows appended meanwhile stay, as with Lance's own delete."""
        if not removed:
            return table.version or 0
        return self._commit(table, lance.LanceOperation.Delete([], removed, filter), table.version, pinned=False)

    def other(self, table: TableHandle, operation: lance.LanceOperation.BaseOperation) -> int:
        """Commit any other pinned operation, such as a backfilled column."""
        return self._commit(table, operation, table.version, pinned=True)

    def _commit(
        self,
        table: TableHandle,
        operation: lance.LanceOperation.BaseOperation,
        read_version: int | None,
        *,
        pinned: bool,
        create: bool = False,
        properties: Mapping[str, str] | None = None,
    ) -> int:
        transaction = lance.Transaction(read_version or 0, operation, transaction_properties=dict(properties or {}))
        expected = (read_version or 0) + 1 if pinned else None
        options: dict[str, Any] = {"enable_stable_row_ids": True, "enable_v2_manifest_paths": True} if create else {}
        try:
            if table.managed or (pinned and not create):
                once = OneCommit(table, expected, asking(self._client, table), self._client)
                return int(commit_exactly(once, table, table.uri, transaction, **options).version)
            options["storage_options"] = table.storage_options or None
            with translating(table, "commit to"):
                return int(lance.LanceDataset.commit(table.uri, transaction, **options).version)
        except ConcurrentModificationError:
            raise _conflict(table, expected) from None


def _conflict(table: TableHandle, expected: int | None) -> ConcurrentModificationError:
    read = f" after version {expected - 1} was read" if expected else ""
    return ConcurrentModificationError(
        f"The table {table.name!r} was changed by another writer{read}. "
        "Nothing was written by this statement; run it again."
    )


def _fragments(found: list[dict[str, Any]]) -> list[FragmentMetadata]:
    return [fragment_from(value) for value in found]


def fragment_from(value: dict[str, Any]) -> FragmentMetadata:
    return lance.fragment.FragmentMetadata.from_json(json.dumps(value))
