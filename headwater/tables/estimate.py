"""How many rows a filter leaves, told from a few rows of the table: enough to choose how to join.

The rows are the same for every filter on a version, and are kept in memory: a version's columns are looked at once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from headwater.imports import lance
from headwater.tables.prune import may_match
from headwater.tables.scan import Scan

SMALL_TABLE = 50_000
"""Up to so many rows the filter makes no difference to a plan."""
WINDOWS = 32
WINDOW_ROWS = 128
KEPT = 64

_known: OrderedDict[tuple[str, int, str], pa.Table] = OrderedDict()
_lock = threading.Lock()


def rows_left(scan: Scan, used: Iterable[str]) -> int:
    """About how many rows a scan finds. `used`: the top-level columns that its filter names."""
    dataset = scan.table.open()
    fragments = may_match(dataset, scan.prune)
    rows: int = sum(fragment.num_rows for fragment in fragments)
    columns = sorted(used)
    deleted = any(fragment.deletion_file is not None for fragment in fragments)
    if scan.filter is None or not columns or rows <= SMALL_TABLE or deleted:
        return rows
    seen = _sample(dataset, columns)
    found = _matching(seen, scan.filter)
    return max(1, round(rows * (found + 0.5) / (seen.num_rows + 1)))


def _sample(dataset: lance.LanceDataset, columns: list[str]) -> pa.Table:
    """Windows of rows from all over the table: neighbours cost one read."""
    key = (dataset.uri, int(dataset.version), "\0".join(columns))
    with _lock:
        if key in _known:
            _known.move_to_end(key)
            return _known[key]
    starts = np.linspace(0, dataset.count_rows() - WINDOW_ROWS, WINDOWS).astype(int)
    places = np.concatenate([np.arange(start, start + WINDOW_ROWS) for start in starts])
    found: pa.Table = dataset.take(places.tolist(), columns=columns)
    with _lock:
        _known[key] = found
        while len(_known) > KEPT:
            _known.popitem(last=False)
    return found


def _matching(rows: pa.Table, filter: str) -> int:
    """Lance itself looks at the rows, so that a filter means here what it means in a scan."""
    return int(lance.write_dataset(rows, "memory://sample").count_rows(filter=filter))
