"""Reads with bounded cost: live rows of fragments with deletions, and windows of rows for slow readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from headwater.imports import lance
from headwater.tables.columns.fields import ROW_ID


def live_batches(dataset: Any, fragments: Sequence[Any] | None = None, **options: Any) -> Iterator[pa.RecordBatch]:
    """Yield the live rows of `fragments` (None: all), batch by batch; `options` of a scan without filter or limit.

    Deleted rows are read and dropped here. Lance would filter every column of every batch, several times as slowly.

    An empty batch may be among them.
    """
    chosen = dataset.get_fragments() if fragments is None else list(fragments)
    if not any(each.metadata.num_deletions for each in chosen):
        yield from dataset.scanner(fragments=fragments, **options).to_batches()
        return
    wanted = bool(options.pop("with_row_id", False))
    scanner = dataset.scanner(fragments=fragments, with_row_id=True, include_deleted_rows=True, **options)
    for batch in scanner.to_batches():
        ids = batch.column(ROW_ID)
        live = batch.filter(ids.is_valid()) if ids.null_count else batch
        yield live if wanted else live.drop_columns([ROW_ID])


WINDOW_BYTES = 4 * 1024 * 1024
FIRST_ROWS = 1024
MAX_ROWS = 1024 * 1024
Scan = Callable[[int, int], "lance.LanceScanner"]
"""A function from an offset and a limit to the scan of those rows."""


def windows(scan: Scan, start: int, stop: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows from `start` to `stop`, in order, by one small scan for each window.

    A single scan reads whole pages ahead, also for a reader that is slow or gone. Windows keep memory flat.
    """
    size = FIRST_ROWS
    while start < stop:
        rows = taken = 0
        for batch in scan(start, min(size, stop - start)).to_reader():
            rows, taken = rows + batch.num_rows, taken + batch.nbytes
            yield batch
        start += size
        size = next_size(rows, taken)


def next_size(rows: int, taken: int) -> int:
    """Return the row count of the next window, after one of `rows` rows in `taken` bytes."""
    if not rows:
        return FIRST_ROWS
    return max(1, min(MAX_ROWS, WINDOW_BYTES * rows // max(1, taken)))
