"""What a stream reads of versions that another client cleaned up before the stream had read them.

`system.cleanup` spares what streams have not read; the clean-up of other Lance clients spares only the tagged version,
the last one read. The rows those lost versions appended are still in the next version that is left, and in a table with
stable row ids they can be told exactly: ids are given in ascending order, each row knows the version that created it
and the last one that changed it, and a manifest knows the next id. If no row was changed or deleted since the newest
version that is left before the gap, the rows of the gap are all there, and unchanged. Else the stream must stop.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headwater.errors import TableVersionNotFoundError
from headwater.imports import lance
from headwater.protobuf import as_number, parse
from headwater.tables.fields import ROW_ADDRESS
from headwater.tables.handle import TableHandle
from headwater.tables.history import APPEND, SAME, VersionStep, step
from headwater.tables.scan import Extent

NEXT_ROW_ID = 14  # field `next_row_id` of Lance's manifest (protobuf)
CREATED, UPDATED = "_row_created_at_version", "_row_last_updated_at_version"


@dataclass(frozen=True)
class Gap(VersionStep):
    """The versions after the last one read up to the next one that is left, as one step; its rows by a filter."""

    filter: str = ""


def step_after(table: TableHandle, version: int) -> VersionStep:
    """What came after a version: the next version, or all up to the next one that is left, if rows can be told."""
    try:
        return step(table, version + 1)
    except TableVersionNotFoundError:
        return _gap(table, version)


def _gap(table: TableHandle, since: int) -> Gap:
    newest = table.at(None).open()
    known = sorted(row["version"] for row in newest.versions())
    left = next((version for version in known if version > since), None)
    if left is None:
        raise TableVersionNotFoundError(
            f"The table {table.name!r} has no version after {since}: its newest is {newest.version}. It was dropped "
            "and made again: start the query with a new checkpoint."
        )
    after = table.at(left).open()
    base = max((version for version in known if version <= since), default=None)
    reason = _obstacle(table.at(base).open() if base is not None else None, after)
    if reason is not None:
        raise TableVersionNotFoundError(_lost(table, since, left, reason))
    first = 0 if base is None else next_row_id(table.at(base).open())
    wanted = f"_rowid >= {first} AND {CREATED} > {since}"
    rows = _count(after, wanted)
    return Gap(left, APPEND if rows else SAME, "versions that were cleaned up", (), rows, wanted)


def _obstacle(before: lance.LanceDataset | None, after: lance.LanceDataset) -> str | None:
    """Why the rows appended between two versions cannot be told from the later one, or None if they can."""
    if not after.has_stable_row_ids:
        return "the table has no stable row ids"
    first = 0 if before is None else next_row_id(before)
    base = 0 if before is None else before.version
    kept = _count(after, f"_rowid < {first} AND {UPDATED} <= {base}")
    added = _count(after, f"_rowid >= {first} AND {CREATED} > {base} AND {UPDATED} = {CREATED}")
    if kept != (0 if before is None else before.count_rows()) or added != next_row_id(after) - first:
        return "rows were changed or deleted meanwhile, or a column was filled"
    return None


def _lost(table: TableHandle, since: int, left: int, reason: str) -> str:
    one = f"version {since + (left == since + 2)} was"
    gone = f"versions {since + 1} to {left - 1} were" if left > since + 2 else one
    return (
        f"Of the table {table.name!r} {gone} cleaned up by another client while this query needed them, and the "
        f"rows appended after version {since} cannot be told from the others in version {left}: {reason}. None of "
        f"them was emitted. Bring the target up to date from version {left} (for instance with MERGE), then start the "
        f"query with a new checkpoint and startingVersion = {left + 1}. CALL system.cleanup spares what streams have "
        "not read."
    )


def _count(dataset: lance.LanceDataset, filter: str) -> int:
    return int(dataset.scanner(columns=[], filter=filter, with_row_id=True).count_rows())


def extents(table: TableHandle, gap: Gap, filter: str) -> list[Extent]:
    """The fragments that hold the rows of a gap, with how many each."""
    dataset = table.at(gap.version).open()
    found = dataset.scanner(columns=[], filter=filter, with_row_address=True).to_table().column(ROW_ADDRESS)
    ids, counts = np.unique(found.to_numpy() >> 32, return_counts=True)
    return [Extent(int(id), int(count)) for id, count in zip(ids, counts, strict=True)]


def next_row_id(dataset: lance.LanceDataset) -> int:
    """The id the next new row will get, as the manifest says."""
    found = 0
    for field, value, _ in parse(dataset._ds.serialized_manifest()):
        if field == NEXT_ROW_ID:
            found = as_number(value)
    return found
