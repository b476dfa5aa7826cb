"""Commits data files that other processes, such as Spark executors, have written: one commit for all files.

An append goes on top of whatever is newest. Everything that depends on what was read (overwrite, delete, update,
merge) is *pinned*: it becomes the version right after the one that was planned, or it is a conflict and nothing
changes. Lance alone would rebase silently over a concurrent append, and a MERGE that did not see the appended
rows could then insert the same key twice.

A pinned commit goes through the catalog's CreateTableVersion (create if absent) also where storage orders the
versions: pylance's `commit_lock`, which could refuse a version too, switches the storage's own create-if-absent off,
and two commits at once then overwrite each other (seen in our tests).
Row-level changes (UPDATE, DELETE, MERGE, overwrites) are deleted addresses and new fragments in one pinned commit. A
row address is `fragment id << 32 | offset`. Executors write new rows as data files and report the addresses of deleted
rows. The driver writes these as deletion vectors, one file for each changed fragment.

Compaction that merges fragments only within a partition, and OPTIMIZE in this process.

Lance plans by neighbours and would mix partitions. So tasks are planned here, each of one partition and one set of
covering indices; Lance runs and commits them. The new files are then renamed to carry their partition. A file that
cannot be renamed is of unknown partition: it is always read, and results stay right.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import obstore
import pyarrow as pa
from lance_namespace import LanceNamespace

from headwater.errors import ConcurrentModificationError, LanceNamespaceError, UnsupportedOperationError
from headwater.imports import lance
from headwater.store.object_stores import remote_store
from headwater.tables.columns.fields import ROW_ADDRESS
from headwater.tables.commit.exact import OneCommit, asking, commit_exactly
from headwater.tables.handle import TableHandle, fragment_of
from headwater.tables.partitions import PartitionField, field_ids, file_name, key_of, parted, partitioning
from headwater.tables.scan.prune import ANY, TRUE, partition_filter
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


def _fragments(found: list[dict[str, object]]) -> list[FragmentMetadata]:
    return [fragment_from(value) for value in found]


def fragment_from(value: dict[str, object]) -> FragmentMetadata:
    return lance.fragment.FragmentMetadata.from_json(json.dumps(value))


OFFSETS = (1 << 32) - 1


def by_fragment(packed: list[str]) -> dict[int, list[int]]:
    """Return the offsets to delete in each fragment, without duplicates. Pure."""
    arrays = [np.frombuffer(base64.b64decode(text), dtype="<i8") for text in packed]
    addresses = np.unique(np.concatenate([np.empty(0, "<i8"), *arrays]))
    if not len(addresses):
        return {}
    fragments, starts = np.unique(addresses >> 32, return_index=True)
    ends = [*starts[1:], len(addresses)]
    return {int(f): (addresses[s:e] & OFFSETS).tolist() for f, s, e in zip(fragments, starts, ends, strict=True)}


def commit_delta(
    committer: TableCommitter, table: TableHandle, packed: list[str], added: list[dict[str, object]]
) -> int:
    """Delete rows and add rows, as the version right after the planned one."""
    dataset = table.open()
    removed: list[int] = []
    updated: list[FragmentMetadata] = []
    for fragment_id, offsets in by_fragment(packed).items():
        after = fragment_of(dataset, fragment_id).delete_rows(offsets)
        if after is None:
            removed.append(fragment_id)
        else:
            updated.append(after)
    return committer.update(table, removed, updated, [fragment_from(value) for value in added])


def overwrite(
    committer: TableCommitter,
    table: TableHandle,
    filter: str,
    added: list[dict[str, object]],
    properties: Mapping[str, str] | None = None,
    prune: Mapping[str, object] | None = None,
) -> int:
    """Replace the rows that match a filter (INSERT OVERWRITE, REPLACE WHERE), in one pinned commit.

    Fragments whose partition matches as a whole, or not at all, are not read.
    """
    dataset = table.open()
    judged = partition_filter(dataset, prune)
    removed: list[int] = []
    updated: list[FragmentMetadata] = []
    for fragment in dataset.get_fragments():
        outcomes = ANY if judged is None else judged.outcomes(fragment.metadata)
        if not outcomes & TRUE:
            continue
        after = None if filter == "true" or outcomes == TRUE else fragment.delete(filter)
        if after is None:
            removed.append(fragment.fragment_id)
        elif after.num_deletions != fragment.num_deletions:
            updated.append(after)
    return committer.update(table, removed, updated, [fragment_from(value) for value in added], properties)


def overwrite_partitions(committer: TableCommitter, table: TableHandle, added: list[dict[str, Any]]) -> int:
    """Replace the partitions that have new rows (dynamic overwrite), in one pinned commit.

    In fragments of unknown partition, which other clients wrote, the rows of these partitions are deleted.
    """
    dataset = table.open()
    ids = field_ids(dataset)
    wanted = [(ids[field.column], field) for field in partitioning(dataset.schema)]
    fragments = [fragment_from(value) for value in added]
    keys = {key_of(fragment, wanted) for fragment in fragments}
    if not wanted:
        return overwrite(committer, table, "true", added)
    if None in keys:
        raise UnsupportedOperationError(
            f"The table {table.name!r} has blob columns, so its files tell no partition: overwrite with a condition."
        )
    removed: list[int] = []
    updated: list[FragmentMetadata] = []
    for fragment in dataset.get_fragments():
        key = key_of(fragment.metadata, wanted)
        after = fragment.metadata
        if key is None and keys:
            after = _without(fragment, wanted, keys)
        if key in keys or after is None:
            removed.append(fragment.fragment_id)
        elif after.num_deletions != fragment.num_deletions:
            updated.append(after)
    return committer.update(table, removed, updated, fragments)


def _without(fragment: lance.LanceFragment, wanted: Sequence[tuple[int, PartitionField]], keys: set[Any]) -> Any:
    """Return the fragment without its rows of some partitions; None if no row is left."""
    columns = list({field.column for _, field in wanted})
    rows = fragment.scanner(columns=columns, with_row_address=True).to_table()
    gone = [found.column(ROW_ADDRESS) for key, found in parted(rows, wanted) if key in keys] if rows.num_rows else []
    offsets = [int(address) & OFFSETS for column in gone for address in column.to_numpy()]
    return fragment.delete_rows(offsets) if offsets else fragment.metadata


def delete_where(
    committer: TableCommitter, table: TableHandle, filter: str, prune: Mapping[str, object] | None = None
) -> int:
    """Delete the rows that match a filter in Lance's SQL. Lance itself retries after a conflict.

    A filter that matches whole partitions removes their fragments without reading them.
    """
    dataset = committer.open(table)
    whole = _whole(dataset, prune)
    if whole is not None:
        with contextlib.suppress(ConcurrentModificationError):
            return committer.delete(table.at(dataset.version), whole, filter)
        dataset = committer.open(table)
    with translating(table, "delete from"):
        dataset.delete(filter)
    return int(dataset.version)


def _whole(dataset: lance.LanceDataset, prune: Mapping[str, object] | None) -> list[int] | None:
    """Return the fragments that a filter matches as a whole; None if it matches any in part."""
    judged = partition_filter(dataset, prune)
    if judged is None:
        return None
    found = {fragment.fragment_id: judged.outcomes(fragment.metadata) for fragment in dataset.get_fragments()}
    if any(outcomes & TRUE and outcomes != TRUE for outcomes in found.values()):
        return None
    return [id for id, outcomes in found.items() if outcomes == TRUE]


Json = dict[str, Any]
DELETED = 0.1


def plan(table: TableHandle, target: int) -> list[Json]:
    """Return the tasks of a compaction. `key` of a task: its partition, if known."""
    dataset = table.open()
    options: Any = {"target_rows_per_fragment": target}
    groups = _groups(dataset)
    known = [each.id for members in groups.values() for each in members]
    rest = lance.optimize.Compaction.plan(dataset, {**options, "excluded_fragment_ids": known} if known else options)
    template = json.loads(rest.json())
    tasks: list[Json] = [{"task": task.json()} for task in rest.tasks]
    for (key, _), members in groups.items():
        for found in bins(members, target):
            task = {"task": {"fragments": [each.to_json() for each in found]}, "read_version": dataset.version}
            settings = {**template["options"], "excluded_fragment_ids": []}
            tasks.append({"task": json.dumps({**task, "options": settings}), "key": list(key)})
    return tasks


def _groups(dataset: lance.LanceDataset) -> dict[tuple[tuple[str, ...], frozenset[str]], list[FragmentMetadata]]:
    """Group fragments by partition and covering indices. Lance refuses to merge fragments of different indices."""
    found: dict[tuple[tuple[str, ...], frozenset[str]], list[FragmentMetadata]] = {}
    fields = partitioning(dataset.schema)
    if not fields or not dataset.has_stable_row_ids:
        return found
    ids = field_ids(dataset)
    wanted = [(ids[field.column], field) for field in fields]
    indices: list[Any] = list(dataset.list_indices())
    for fragment in (each.metadata for each in dataset.get_fragments()):
        key = key_of(fragment, wanted)
        if key is not None:
            covering = frozenset(str(index["uuid"]) for index in indices if fragment.id in index["fragment_ids"])
            found.setdefault((key, covering), []).append(fragment)
    return found


def bins(members: Sequence[FragmentMetadata], target: int) -> Iterator[list[FragmentMetadata]]:
    """Yield groups of fragments to merge in one partition: small ones, and any with many deleted rows. Pure."""
    group: list[FragmentMetadata] = []
    for each in members:
        if each.physical_rows < target or _worn(each):
            group.append(each)
        if sum(one.num_rows for one in group) >= target:
            if len(group) > 1 or _worn(group[0]):
                yield group
            group = []
    if len(group) > 1 or (group and _worn(group[0])):
        yield group


def _worn(fragment: FragmentMetadata) -> bool:
    return bool(fragment.num_deletions > DELETED * fragment.physical_rows)


def run(table: TableHandle, task: Json) -> str:
    result = str(lance.optimize.CompactionTask.from_json(task["task"]).execute(table.open()).json())
    if "key" not in task:
        return result
    told = json.loads(result)
    for fragment in told["new_fragments"]:
        if len(fragment["files"]) == 1:
            fragment["files"][0]["path"] = renamed(table, fragment["files"][0]["path"], task["key"])
    return json.dumps(told)


def renamed(table: TableHandle, old: str, key: Sequence[str]) -> str:
    """Rename a data file to carry its partition, by a copy within the storage. Returns its name now.

    The old file is deleted after the copy exists. A failure leaves files that belong to no version.
    """
    new = file_name(key)
    uri = table.uri if "://" in table.uri else f"file://{quote(table.uri)}"
    try:
        store = remote_store(f"{uri.rstrip('/')}/data", table.storage_options).backend
        obstore.copy(store, old, new)
    except (LanceNamespaceError, OSError, obstore.exceptions.BaseError):
        return old
    with contextlib.suppress(OSError, obstore.exceptions.BaseError):
        obstore.delete(store, old)
    return new


TARGET_ROWS = 1 << 20


def optimize(table: TableHandle, target_rows: int = TARGET_ROWS) -> tuple[int, int]:
    """Merge small fragments and update the indices. Returns the fragments removed and added. Errors 14, 19.

    In a transaction, fragments whose rows an index holds by address are not merged.
    """
    dataset = table.open()
    ref = table.at(dataset.version)
    with translating(table, "optimize"):
        merge = _merge_within if table.in_transaction else _merge
        removed, added = merge(ref, dataset, plan(ref, target_rows))
        newest = table.open()
        if newest.list_indices():
            newest.optimize.optimize_indices()
    return removed, added


def _merge(ref: TableHandle, dataset: lance.LanceDataset, tasks: list[Json]) -> tuple[int, int]:
    results = [lance.optimize.RewriteResult.from_json(run(ref, task)) for task in tasks]
    if not results:
        return 0, 0
    metrics = lance.optimize.Compaction.commit(dataset, results)
    return metrics.fragments_removed, metrics.fragments_added


def _merge_within(ref: TableHandle, dataset: lance.LanceDataset, tasks: list[Json]) -> tuple[int, int]:
    """Merge inside a transaction, with fragment ids that are assigned here, and without a rewrite of indices.

    Lance would reserve the ids by a version of its own, which an open transaction does not show it.
    """
    indices: list[Any] = list(dataset.list_indices())
    indexed = {number for index in indices for number in index["fragment_ids"]}
    covered = set() if dataset.has_stable_row_ids else indexed
    numbers = count(max({each.fragment_id for each in dataset.get_fragments()} | indexed, default=-1) + 1)
    groups = []
    for task in (each for each in tasks if covered.isdisjoint(_fragments_of(each))):
        done = json.loads(run(ref, task))
        new = [fragment_from({**each, "id": next(numbers)}) for each in done["new_fragments"]]
        groups.append(lance.LanceOperation.RewriteGroup([fragment_from(e) for e in done["original_fragments"]], new))
    if not groups:
        return 0, 0
    assert ref.client is not None
    TableCommitter(ref.client).other(ref, lance.LanceOperation.Rewrite(groups, []))
    removed = sum(len(list(each.old_fragments)) for each in groups)
    return removed, sum(len(list(each.new_fragments)) for each in groups)


def _fragments_of(task: Json) -> set[int]:
    return {int(each["id"]) for each in json.loads(task["task"])["task"]["fragments"]}
