"""A whole table, or a range of its rows, read window by window: only as far as somebody asks for.

One scan reads ahead by whole pages, which can be tens of megabytes, and goes on reading for a reader that is slow or
gone. A window is a scan of a few rows, which reads exactly those: memory stays flat whatever the table and the reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from headwater.imports import lance

WINDOW_BYTES = 4 * 1024 * 1024
FIRST_ROWS = 1024
MAX_ROWS = 1024 * 1024
Scan = Callable[[int, int], "lance.LanceScanner"]
"""From an offset and a limit to the scan of those rows."""


def windows(scan: Scan, start: int, stop: int) -> Iterator[pa.RecordBatch]:
    """The rows from `start` to `stop`, in order."""
    size = FIRST_ROWS
    while start < stop:
        rows = taken = 0
        for batch in scan(start, min(size, stop - start)).to_reader():
            rows, taken = rows + batch.num_rows, taken + batch.nbytes
            yield batch
        start += size
        size = next_size(rows, taken)


def next_size(rows: int, taken: int) -> int:
    """How many rows the next window has, after one that had so many rows in so many bytes."""
    if not rows:
        return FIRST_ROWS
    return max(1, min(MAX_ROWS, WINDOW_BYTES * rows // max(1, taken)))
