"""Make a table quick to read again, in this process: merge small fragments, and bring the indices up to date."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

from headwater.imports import lance
from headwater.tables import compact
from headwater.tables.commit import TableCommitter, fragment_from
from headwater.tables.handle import TableHandle
from headwater.tables.translate import translating

TARGET_ROWS = 1 << 20


def optimize(table: TableHandle, target_rows: int = TARGET_ROWS) -> tuple[int, int]:
    """How many fragments were merged, and into how many. Partitions stay apart. Errors 14, 19.

    In a transaction, fragments that an index covers by the addresses of their rows stay as they are.
    """
    dataset = table.open()
    ref = table.at(dataset.version)
    with translating(table, "optimize"):
        merge = _merge_within if table.in_transaction else _merge
        removed, added = merge(ref, dataset, compact.plan(ref, target_rows))
        newest = table.open()
        if newest.list_indices():
            newest.optimize.optimize_indices()
    return removed, added


def _merge(ref: TableHandle, dataset: lance.LanceDataset, tasks: list[compact.Json]) -> tuple[int, int]:
    results = [lance.optimize.RewriteResult.from_json(compact.run(ref, task)) for task in tasks]
    if not results:
        return 0, 0
    metrics = lance.optimize.Compaction.commit(dataset, results)
    return metrics.fragments_removed, metrics.fragments_added


def _merge_within(ref: TableHandle, dataset: lance.LanceDataset, tasks: list[compact.Json]) -> tuple[int, int]:
    """Lance reserves the numbers of new fragments by a version of its own, and finds that only where it is final. So
    they get their numbers here, and no index can be written anew for them."""
    indices: list[Any] = list(dataset.list_indices())
    indexed = {number for index in indices for number in index["fragment_ids"]}
    covered = set() if dataset.has_stable_row_ids else indexed
    numbers = count(max({each.fragment_id for each in dataset.get_fragments()} | indexed, default=-1) + 1)
    groups = []
    for task in (each for each in tasks if covered.isdisjoint(_fragments_of(each))):
        done = json.loads(compact.run(ref, task))
        new = [fragment_from({**each, "id": next(numbers)}) for each in done["new_fragments"]]
        groups.append(lance.LanceOperation.RewriteGroup([fragment_from(e) for e in done["original_fragments"]], new))
    if not groups:
        return 0, 0
    assert ref.client is not None
    TableCommitter(ref.client).other(ref, lance.LanceOperation.Rewrite(groups, []))
    return sum(len(each.old_fragments) for each in groups), sum(len(each.new_fragments) for each in groups)


def _fragments_of(task: compact.Json) -> set[int]:
    return {int(each["id"]) for each in json.loads(task["task"])["task"]["fragments"]}
