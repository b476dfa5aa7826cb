"""Compaction that merges fragments only within a partition, and OPTIMIZE in this process.

Lance plans by neighbours and would mix partitions. So tasks are planned here, each of one partition and one set of
covering indices; Lance runs and commits them. The new files are then renamed to carry their partition. A file that
cannot be renamed is of unknown partition: it is always read, and results stay right.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import obstore

from headwater.errors import LanceNamespaceError
from headwater.imports import lance
from headwater.store.object_stores import remote_store
from headwater.tables.commit.committer import TableCommitter, fragment_from
from headwater.tables.handle import TableHandle
from headwater.tables.partitions import field_ids, file_name, key_of, partitioning
from headwater.tables.translate import translating

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata

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
