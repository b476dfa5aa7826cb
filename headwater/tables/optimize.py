"""Make a table quick to read again, in this process: merge small fragments, and bring the indices up to date."""

from __future__ import annotations

from lance.optimize import Compaction, RewriteResult

from headwater.tables import compact
from headwater.tables.handle import TableHandle
from headwater.tables.translate import translating

TARGET_ROWS = 1 << 20


def optimize(table: TableHandle, target_rows: int = TARGET_ROWS) -> tuple[int, int]:
    """How many fragments were merged, and into how many. Partitions stay apart. Errors 14, 19."""
    dataset = table.open()
    ref = table.at(dataset.version)
    with translating(table, "optimize"):
        results = [RewriteResult.from_json(compact.run(ref, task)) for task in compact.plan(ref, target_rows)]
        removed = added = 0
        if results:
            metrics = Compaction.commit(dataset, results)
            removed, added = metrics.fragments_removed, metrics.fragments_added
        newest = table.open()
        if newest.list_indices():
            newest.optimize.optimize_indices()
    return removed, added
