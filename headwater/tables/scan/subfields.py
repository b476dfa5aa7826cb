"""Projection of struct subfields: reads only the subfields of a struct that a query needs.

A Lance scan answers `s.x` as a flat column and forgets which `s` were null, and a scan of `s` reads all of it. A take
answers a struct that holds `x` alone, nulls and all, and costs little more than a scan where the rows are neighbours.
So where subfields are asked for, windows of rows are taken instead of scanned.

A tree says what is kept of a struct: `{"x": None, "n": {"p": None}}` is all of `x` and of `n` only `p`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.imports import lance
from headwater.tables.columns.fields import ROW_ADDRESS, ROW_ID
from headwater.tables.scan.parts import ScanPart, Slice, chosen
from headwater.types import BLOB, is_blob

Tree = Mapping[str, Any]
Window = tuple[int, int]
Offsets = npt.NDArray[np.uint64]

PACKED = b"lance-encoding:packed"
ROW_COLUMNS = (ROW_ID, ROW_ADDRESS)
ROW_OFFSET = "_rowoffset"
READ_AHEAD = 2
DENSE = 8


def pruned(field: Any, tree: Tree | None) -> Any:
    """Return the field with only the subfields of the tree, in the field's own order. Pure."""
    if tree is None or not pa.types.is_struct(field.type):
        return field
    kept = [pruned(child, tree[child.name]) for child in _children(field) if child.name in tree]
    return field.with_type(pa.struct(kept))


def paths(schema: pa.Schema, columns: Sequence[str], trees: Mapping[str, Tree]) -> list[str] | None:
    """Return the paths to take from a version, or None if whole columns must be scanned. Pure.

    Blobs are only read by scans; a packed struct is kept as one value, and parts of it are read wrongly; a subfield
    that the version does not have cannot be named. Fields stand in the struct's own order: asked for in another one,
    Lance answers their values under each other's names.
    """
    found: list[str] = [name for name in columns if name in ROW_COLUMNS]
    for name in columns:
        if name in schema.names:
            under = _paths(schema.field(name), trees.get(name))
            if under is None:
                return None
            found += under
    return found


def _paths(field: Any, tree: Tree | None) -> list[str] | None:
    if "`" in field.name:
        return None
    if tree is None:
        return None if _holds_blobs(field) else [f"`{field.name}`"]
    children = [child for child in _children(field) if child.name in tree]
    if len(children) < len(tree) or PACKED in (field.metadata or {}):
        return None
    found: list[str] = []
    for child in children:
        under = _paths(child, tree[child.name])
        if under is None:
            return None
        found += [f"`{field.name}`.{path}" for path in under]
    return found


def _holds_blobs(field: Any) -> bool:
    return is_blob(field.type) or BLOB in (field.metadata or {}) or any(map(_holds_blobs, _children(field)))


def _children(field: Any) -> list[Any]:
    kind = field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type
    return [kind.field(index) for index in range(kind.num_fields)]


def windows(dataset: lance.LanceDataset, part: ScanPart, limit: int | None) -> list[Window] | None:
    """Return the part's rows as ranges of row offsets; None if any of its fragments has deleted rows.

    Among deleted rows a take by position gathers row by row, and Lance 14 can look for a position there without end.
    """
    found: list[Window] = []
    start = 0
    wanted = chosen(part)
    for fragment in dataset.get_fragments():
        metadata = fragment.metadata
        if wanted is None or metadata.id in wanted:
            if metadata.num_deletions:
                return None
            found.append((start, start + metadata.num_rows))
        start += metadata.num_rows
    if isinstance(part, Slice):
        found = [(begin + part.offset, begin + part.offset + part.limit) for begin, _ in found]
    return found if limit is None else _first(found, limit)


def _first(found: list[Window], rows: int) -> list[Window]:
    kept: list[Window] = []
    for begin, end in found:
        kept.append((begin, min(end, begin + rows)))
        rows -= kept[-1][1] - begin
        if rows <= 0:
            break
    return kept


def take(
    dataset: lance.LanceDataset, columns: list[str], ranges: Sequence[Window], batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """Yield ranges of rows, in batches of at most `batch_rows`."""
    steps = [(at, min(at + batch_rows, end)) for begin, end in ranges for at in range(begin, end, batch_rows)]
    if steps:
        yield from dataset._ds.take_scan(steps, columns=columns, batch_readahead=READ_AHEAD)


def take_where(
    dataset: lance.LanceDataset, columns: list[str], filter: str, part: ScanPart, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """Yield the part's matching rows: Lance finds their offsets, then the columns are read only there."""
    wanted = chosen(part)
    fragments = [f for f in dataset.get_fragments() if wanted is None or f.fragment_id in wanted]
    scanner = dataset.scanner(columns=[ROW_OFFSET], filter=filter, fragments=fragments, batch_size=65_536)
    waiting: list[Offsets] = []
    for batch in scanner.to_batches():
        waiting.append(batch.column(0).to_numpy())
        if sum(map(len, waiting)) >= batch_rows:
            yield from _take_at(dataset, columns, np.sort(np.concatenate(waiting)), batch_rows)
            waiting = []
    if waiting:
        yield from _take_at(dataset, columns, np.sort(np.concatenate(waiting)), batch_rows)


def _take_at(
    dataset: lance.LanceDataset, columns: list[str], offsets: Offsets, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """Yield rows at ascending offsets: dense offsets from whole windows, sparse ones one by one."""
    if not len(offsets):
        return
    begin, end = int(offsets[0]), int(offsets[-1]) + 1
    if end - begin > DENSE * len(offsets):
        yield from dataset.take(offsets.tolist(), columns=columns).to_batches()
        return
    wanted = np.zeros(end - begin, dtype=bool)
    wanted[offsets.astype(np.int64) - begin] = True
    at = 0
    for batch in take(dataset, columns, [(begin, end)], batch_rows):
        yield batch.filter(pa.array(wanted[at : at + batch.num_rows]))
        at += batch.num_rows
