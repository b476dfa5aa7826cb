"""Keeping a serving copy fast: few small fragments, few deleted rows in large ones, rows covered by their indices.

A publish joins small fragments when there are many, and brings the indices up to date when they lag; both cost no more
than what was published lately. Large fragments with many deleted rows are written anew by `compact`, which is a call of
its own: it costs as much as the fragment. Row ids stay, so indices do.
"""

from __future__ import annotations

from typing import Any

SMALL_ROWS = 1 << 16
MANY = 64
"""So many small fragments are joined by the next publish."""
LAGGING = 0.25
"""The part of the rows that an index may lack before a publish adds them."""
WORN = 0.2
"""The part of a fragment's rows that may be deleted before it is written anew."""


def tidy(dataset: Any, many: int = MANY) -> None:
    """Join small fragments and add rows to indices, if it is time. Each is a staged version on top."""
    small = sum(1 for fragment in dataset.get_fragments() if fragment.physical_rows < SMALL_ROWS)
    if small > many:
        dataset.optimize.compact_files(target_rows_per_fragment=SMALL_ROWS, materialize_deletions=False)
    rows = dataset.count_rows()
    if any(index.num_rows_indexed < rows * (1 - LAGGING) for index in dataset.describe_indices()):
        dataset.optimize.optimize_indices()


def worn(dataset: Any) -> int:
    """How many fragments have lost more rows than is good for reading."""
    found = (fragment.metadata for fragment in dataset.get_fragments())
    return sum(1 for fragment in found if fragment.num_deletions > WORN * fragment.physical_rows)


def rewrite(dataset: Any, rows_per_fragment: int) -> None:
    """Write worn fragments anew without their deleted rows, and join small ones."""
    dataset.optimize.compact_files(
        target_rows_per_fragment=rows_per_fragment, materialize_deletions=True, materialize_deletions_threshold=WORN
    )
    if dataset.describe_indices():
        dataset.optimize.optimize_indices()


def coverage(dataset: Any) -> dict[str, float]:
    """For each index the part of the rows that it covers."""
    rows = dataset.count_rows()
    return {
        index.name: min(index.num_rows_indexed / rows, 1.0) if rows else 1.0 for index in dataset.describe_indices()
    }
