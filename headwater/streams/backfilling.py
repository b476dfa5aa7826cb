"""Versions of the same state: stale derived values computed again, worn fragments written anew.

A backfill goes some rows at a time, each time as a version. What is left to do is told by the table itself, so one
that was killed goes on where it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.metastore import Transaction
from headwater.names import ObjectId
from headwater.streams.derived import with_derived
from headwater.streams.files import narrowed
from headwater.streams.opening import Stream, open_in, open_stream
from headwater.streams.publishing import Publication
from headwater.streams.serving import (
    ROW_ADDRESS,
    ROW_ID,
    Lake,
    Staging,
    on_top,
    open_staging,
    open_version,
    set_aside,
)
from headwater.streams.tidying import due
from headwater.streams.views import Computed, Published, newest_published
from headwater.streams.writing import Changes, head_of, record, tidied, write_changes
from headwater.tables.handle import TableHandle
from headwater.tables.indices import build, index_type, new_index

ROWS = 100_000


def stage_backfill(lake: Lake, tx: Transaction, path: Sequence[str], rows: int = ROWS) -> Publication | None:
    """Stage a version with some stale rows computed again; None: there are none."""
    snapshot = lake.metastore.now()
    stream = open_stream(snapshot, path)
    open_in(tx, path)
    before, head = newest_published(snapshot, stream), head_of(snapshot, stream)
    if before is None or head is None:
        return None
    staging = Staging(lake, stream, head[0])
    set_aside(lake, stream, head[0])
    with on_top(staging, stream):
        dataset = open_version(lake, stream, *head)
        wanted = {each.name for each in stream.definition.derived}
        stale = [each for each in before.derived if each.name in wanted and each.stale_to >= 0]
        changes = _stale(stream, dataset, before, stale, rows) if stale else None
        if changes is None:
            return None
        fresh = [each for each in before.derived if each not in stale]
        made = replace(changes, rows=with_derived(stream.definition, dataset, changes, fresh))
        write_changes(lake, stream, staging, dataset, made, before.position)
    published = record(lake, tx, stream, staging, replace(before, late=0, too_late=0))
    return Publication(published, True, tuple(staging.staged))


def stage_compaction(lake: Lake, tx: Transaction, path: Sequence[str]) -> Publication | None:
    """Stage a version of the same rows in whole fragments; None: none is worn."""
    snapshot = lake.metastore.now()
    stream = open_stream(snapshot, path)
    open_in(tx, path)
    before, head = newest_published(snapshot, stream), head_of(snapshot, stream)
    if before is None or head is None or not due(open_version(lake, stream, *head), before.stale_to):
        return None
    staging = Staging(lake, stream, head[0])
    set_aside(lake, stream, head[0])
    with on_top(staging, stream):
        tidied(lake, stream, staging, open_staging(lake, stream, staging), before.stale_to)
    published = record(lake, tx, stream, staging, replace(before, late=0, too_late=0))
    return Publication(published, True, tuple(staging.staged))


def stage_index(
    lake: Lake, tx: Transaction, path: Sequence[str], column: str, kind: str, name: str | None, options: dict[str, Any]
) -> Publication | None:
    """Stage a version of the same rows with one more index; None before the first publish with rows."""
    snapshot = lake.metastore.now()
    stream = open_stream(snapshot, path)
    open_in(tx, path)
    before, head = newest_published(snapshot, stream), head_of(snapshot, stream)
    if before is None or head is None or not before.rows:
        return None
    table = TableHandle(ObjectId(tuple(path)), f"{lake.uri}/{stream.serving}", dict(lake.storage_options or {}))
    staging = Staging(lake, stream, head[0])
    set_aside(lake, stream, head[0])
    with on_top(staging, stream):
        dataset = open_staging(lake, stream, staging)
        build(table, dataset, new_index(table, dataset, column, index_type(kind), name, options, before.rows))
    published = record(lake, tx, stream, staging, replace(before, late=0, too_late=0))
    return Publication(published, True, tuple(staging.staged))


def _stale(stream: Stream, dataset: object, before: Published, stale: Sequence[Computed], rows: int) -> Changes | None:
    """Some rows of the fragments that were written before the function was."""
    last = max(each.stale_to for each in stale)
    found: list[pa.Table] = []
    size = 0
    names = narrowed(stream.definition, None).schema.names
    for fragment in dataset.get_fragments():  # type: ignore[attr-defined]
        if fragment.fragment_id <= last and size < rows:
            scanner = fragment.scanner(columns=names, with_row_id=True, with_row_address=True, limit=rows - size)
            found.append(scanner.to_table())
            size += found[-1].num_rows
    if not size:
        return None
    table = pa.concat_tables(found)
    plain = table.select(names)
    ids = table.column(ROW_ID).to_numpy().astype(np.int64)
    addresses = table.column(ROW_ADDRESS).to_numpy().astype(np.int64)
    return Changes(plain, ids, plain, addresses, before.digest, before.rows)
