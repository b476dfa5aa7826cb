"""The change feed of a Lance table (CHANGES FROM VERSION a TO VERSION b): inserts, updates and deletes by version.

A row that a version both takes away and adds under one stable row id is an update: its old and new state are the
pre- and post-image. In a table without stable row ids an update shows as a delete and an insert.

A stream may find that another client cleaned up versions which it has not read (`system.cleanup` spares those). The
rows that these versions appended are still in the next version (`step_after`). With stable row ids they are found
exactly: ids ascend, each row has the versions that created and last changed it, and a manifest has the next id. If a
row was changed or deleted since the version before the gap, the stream must stop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.errors import InvalidInputError, TableVersionNotFoundError
from headwater.imports import lance, pc
from headwater.protobuf import as_number, parse
from headwater.tables.columns.fields import ROW_ADDRESS, ROW_ID
from headwater.tables.commit.history import APPEND, SAME, VersionStep, step, timestamps
from headwater.tables.handle import TableHandle
from headwater.tables.scan.parts import Appended, ChangePart, Rewritten
from headwater.tables.scan.table_scan import EXTRAS, Extent, Scan, batch_rows, whole_fragments
from headwater.types import convert_batch

Numbers = npt.NDArray[np.int64]
TYPE, VERSION, TIMESTAMP = "_change_type", "_commit_version", "_commit_timestamp"


def bounds(table: TableHandle, asked: dict[str, Any]) -> tuple[int, int]:
    """Return the first and last version of a range that is given by versions or by times, both inclusive."""
    dataset = table.open()
    newest = int(dataset.version)
    if "start_micros" in asked:
        times = {v: int(t.timestamp() * 1_000_000) for v, t in timestamps(dataset).items()}
        low, high = asked["start_micros"], asked.get("end_micros")
        inside = [
            v
            for v, t in times.items()
            if (t >= low if asked["start_inclusive"] else t > low)
            and (high is None or (t <= high if asked["end_inclusive"] else t < high))
        ]
        return (min(inside), max(inside)) if inside else (1, 0)
    start = _number(asked["start"]) + (0 if asked["start_inclusive"] else 1)
    end = _number(asked["end"]) if asked.get("end") is not None else newest
    end -= 0 if asked["end_inclusive"] else 1
    last = max(start - 1, end)
    if last > newest:
        raise TableVersionNotFoundError(f"The table {table.name!r} has no version {last}; the newest is {newest}.")
    return max(1, start), end


def _number(text: str) -> int:
    if not str(text).isdigit():
        raise InvalidInputError(f"{text!r} is not a version number.")
    return int(text)


def plan(table: TableHandle, first: int, last: int, parallelism: int) -> list[ChangePart]:
    """Return one part for each version that changed rows; a large append becomes several parts."""
    times = timestamps(table.open())
    parts: list[ChangePart] = []
    for version in range(first, last + 1):
        found = step(table, version)
        if found.kind == SAME:
            continue
        micros = int(times[version].timestamp() * 1_000_000)
        if found.kind == APPEND:
            wanted = set(found.added)
            metadata = [f.metadata for f in table.at(version).open().get_fragments()]
            extents = [Extent(f.id, f.num_rows) for f in metadata if f.id in wanted]
            parts += [Appended(part, version, micros) for part in whole_fragments(extents, parallelism)]
        else:
            parts.append(Rewritten(tuple(found.added), version, micros))
    return parts


def read(scan: Scan, part: ChangePart, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    version = part.version
    if isinstance(part, Appended):
        for batch in _rows(scan, version, part.fragments):
            yield _labelled(batch, pa.array(["insert"] * batch.num_rows), part, schema)
        return
    gone = _gone(scan.table, version)
    stable = bool(scan.table.at(version).open().has_stable_row_ids)
    old_ids = _ids(scan.table, version - 1, list(gone), gone) if stable else np.empty(0, np.int64)
    new_ids = _ids(scan.table, version, part.added, None) if stable else np.empty(0, np.int64)
    for batch in _rows(scan, version - 1, list(gone)):
        kept = batch.filter(pa.array(_isin(batch, gone)))
        yield _labelled(kept, _kinds(kept, new_ids, "update_preimage", "delete"), part, schema)
    for batch in _rows(scan, version, part.added):
        yield _labelled(batch, _kinds(batch, old_ids, "update_postimage", "insert"), part, schema)


def _gone(table: TableHandle, version: int) -> dict[int, Numbers]:
    """Return the addresses of rows that a version deleted, by fragment of the version before."""
    before, after = table.at(version - 1).open(), table.at(version).open()
    now = {fragment.fragment_id: fragment for fragment in after.get_fragments()}
    gone: dict[int, Numbers] = {}
    for fragment in before.get_fragments():
        left = now.get(fragment.fragment_id)
        if left is not None and left.metadata.num_deletions == fragment.metadata.num_deletions:
            continue
        lost = np.setdiff1d(_addresses(fragment), _addresses(left) if left is not None else np.empty(0, np.int64))
        if len(lost):
            gone[fragment.fragment_id] = lost
    return gone


def _addresses(fragment: lance.LanceFragment) -> Numbers:
    table = fragment.scanner(columns=[], with_row_address=True).to_table()
    return np.asarray(table.column(ROW_ADDRESS).to_numpy(), dtype=np.int64)


def _ids(table: TableHandle, version: int, fragments: Sequence[int], only: dict[int, Numbers] | None) -> Numbers:
    found = [np.empty(0, np.int64)]
    for batch in _rows(Scan(table.at(version), ()), version, fragments):
        ids = batch.column(ROW_ID).to_numpy().astype(np.int64)
        found.append(ids if only is None else ids[_isin(batch, only)])
    return np.concatenate(found)


def _isin(batch: pa.RecordBatch, gone: dict[int, Numbers]) -> npt.NDArray[np.bool_]:
    addresses = batch.column(ROW_ADDRESS).to_numpy().astype(np.int64)
    wanted = np.concatenate([np.empty(0, np.int64), *gone.values()])
    return np.isin(addresses, wanted)


def _kinds(batch: pa.RecordBatch, other: Numbers, both: str, alone: str) -> object:
    paired = np.isin(batch.column(ROW_ID).to_numpy().astype(np.int64), other)
    return pc.if_else(pa.array(paired), both, alone)


def _rows(scan: Scan, version: int, fragments: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Yield the live rows of fragments at a version, with row ids, addresses and the columns that the version has."""
    if not fragments:
        return
    dataset = scan.table.at(version).open()
    wanted = set(fragments)
    columns = [name for name in scan.columns if name in dataset.schema.names]
    scanner = dataset.scanner(
        columns=columns,
        fragments=[fragment for fragment in dataset.get_fragments() if fragment.fragment_id in wanted],
        with_row_id=True,
        with_row_address=True,
        blob_handling="all_binary",
        batch_size=batch_rows(dataset.schema),
    )
    yield from scanner.to_batches()


def _labelled(batch: pa.RecordBatch, kinds: Any, part: ChangePart, schema: pa.Schema) -> pa.RecordBatch:
    rows = batch.num_rows
    extra = {
        TYPE: kinds,
        VERSION: pa.array(np.full(rows, part.version, np.int64)),
        TIMESTAMP: pa.array(np.full(rows, part.micros, np.int64)).cast(EXTRAS[TIMESTAMP].type),
        ROW_ID: batch.column(ROW_ID).cast(pa.int64()),
    }
    data = {name: batch.column(name) for name in batch.schema.names if name not in (ROW_ID, ROW_ADDRESS)}
    return convert_batch(pa.RecordBatch.from_pydict({**data, **extra}), schema)


NEXT_ROW_ID = 14  # field `next_row_id` of Lance's manifest (protobuf)
CREATED, UPDATED = "_row_created_at_version", "_row_last_updated_at_version"


@dataclass(frozen=True)
class Gap(VersionStep):
    """A step over versions that were cleaned up. `filter` selects the rows that they appended."""

    filter: str = ""


def step_after(table: TableHandle, version: int) -> VersionStep:
    """Return the step after a version: the next version, or a `Gap` up to the next version that still exists."""
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
    """Return the reason why the rows appended between two versions cannot be found in the later one, or None."""
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
    """Return the fragments that hold the rows of a gap, with the row count of each."""
    dataset = table.at(gap.version).open()
    found = dataset.scanner(columns=[], filter=filter, with_row_address=True).to_table().column(ROW_ADDRESS)
    ids, counts = np.unique(found.to_numpy() >> 32, return_counts=True)
    return [Extent(int(id), int(count)) for id, count in zip(ids, counts, strict=True)]


def next_row_id(dataset: lance.LanceDataset) -> int:
    """Return the next row id in the manifest."""
    found = 0
    for field, value, _ in parse(dataset._ds.serialized_manifest()):
        if field == NEXT_ROW_ID:
            found = as_number(value)
    return found
