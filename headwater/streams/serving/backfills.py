"""Versions of the same state: stale derived values computed again, worn fragments written anew.

A backfill goes some rows at a time, each time as a version. What is left to do is told by the table itself, so one
that was killed goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headwater.imports import lance
from headwater.metastore import Transaction
from headwater.names import ObjectId
from headwater.store import KeyNotFoundError
from headwater.streams.layout import backfill_folder
from headwater.streams.log.stored_events import narrowed
from headwater.streams.reading.position_views import Computed, Published, newest_published
from headwater.streams.serving.compaction import coverage, due
from headwater.streams.serving.copy_rows import files_of
from headwater.streams.serving.derived_columns import identity, modules_of, renewed, with_derived
from headwater.streams.serving.publication import Publication, stage
from headwater.streams.serving.publish_tasks import packed, unpacked
from headwater.streams.serving.serving_copy import (
    CatalogLocation,
    Lake,
    Staging,
    catalog_location,
    on_top,
    open_staging,
    open_version,
    set_aside,
)
from headwater.streams.serving.staged_rows import (
    Changes,
    NewFragments,
    commit_rows,
    head_of,
    record,
    stage_on,
    tidied,
    write_rows_of,
)
from headwater.streams.stream_lookup import Stream, open_in, open_stream
from headwater.tables.columns.fields import ROW_ADDRESS, ROW_ID
from headwater.tables.commit.committer import fragment_from
from headwater.tables.handle import TableHandle
from headwater.tables.indices import build, commit_pieces, divided, index_type, new_index, remove_pieces
from headwater.wording import many
from headwater.work import Json, Runner, Task

ROWS = 100_000
BATCH_ROWS, BATCHES_PER_CORE = 16_384, 16
"""On executors: the rows of a batch, which is what a killed task has to do again, and the batches of one version."""


@dataclass(frozen=True)
class StaleRows:
    """Rows of one fragment that are computed together: `rows` live ones, after the first `start`."""

    fragment: int
    start: int
    rows: int


@dataclass(frozen=True)
class Backfill:
    """Batches of stale rows of one version. `name` identifies version and column, so a rerun has the same batches."""

    stream: Stream
    before: Published
    head: tuple[int, str]
    fresh: tuple[Computed, ...]
    batches: tuple[StaleRows, ...]
    name: str

    def checkpoint(self, batch: StaleRows) -> str:
        """Return the key of a batch's checkpoint."""
        folder = backfill_folder(self.stream.home, self.name)
        return f"{folder}/{batch.fragment}-{batch.start}-{batch.rows}.json"


def stage_backfill(
    lake: Lake, tx: Transaction, path: Sequence[str], rows: int | None, batch: int | None, runner: Runner
) -> Publication | None:
    """Stage a version with some stale rows computed again; None: there are none.

    `rows`: about how many rows the version has at most. `batch`: the rows of one task on an executor.
    A table whose columns changed is published first: the serving copy has to have the columns.
    """
    snapshot = lake.now()
    stream = open_stream(snapshot, path)
    open_in(tx, path)
    before, head = newest_published(snapshot, stream), head_of(snapshot, stream)
    if before is None or head is None:
        return None
    if before.schema_id != stream.definition.schema_id:
        return stage(lake, tx, path, runner=runner)
    staging = Staging(lake, stream, *head)
    set_aside(lake, stream, head[0])
    with on_top(staging, stream):
        dataset = open_version(lake, stream, *head)
        before = renewed(stream.definition, before, dataset)
        is_here = runner.in_driver(before.rows, calls_functions=True)
        size = (rows or ROWS) if is_here else batch or BATCH_ROWS
        most = size if is_here else size * BATCHES_PER_CORE * runner.cores
        work = _planned(stream, dataset, before, head, size, min(rows or most, most))
        if not work.batches:
            return None
        if is_here:
            done = [batch_of_backfill(lake, work, each, False) for each in work.batches]
        else:
            at, modules, total = (
                catalog_location(lake),
                modules_of(stream.definition.derived),
                sum(x.rows for x in work.batches),
            )
            one = "headwater.streams.serving.backfills:run_batch"
            tasks = [Task(one, (at, work, number), modules) for number in range(len(work.batches))]
            done = runner.run(tasks, f"compute {many(total, 'row')}")
        fragments = NewFragments.from_json(done)
        addresses = np.concatenate([unpacked(each["addresses"]) for each in done])
        commit_rows(lake, stream, staging, dataset, fragments, addresses, before.position)
    published = record(lake, tx, stream, staging, replace(before, late=0, too_late=0))
    return Publication(published, True, stream, tuple(staging.staged))


def _planned(
    stream: Stream, dataset: lance.LanceDataset, before: Published, head: tuple[int, str], size: int, most: int
) -> Backfill:
    """Batches of the fragments that were written before the function was, up to so many rows."""
    wanted = {each.name for each in stream.definition.derived}
    stale = [each for each in before.derived if each.name in wanted and each.stale_to >= 0]
    last = max((each.stale_to for each in stale), default=-1)
    batches: list[StaleRows] = []
    left = most
    for fragment in dataset.get_fragments():
        live = fragment.count_rows() if fragment.fragment_id <= last else 0
        for start in range(0, min(live, left), size):
            batches.append(StaleRows(fragment.fragment_id, start, min(size, live - start, left - start)))
        left -= min(live, left)
    fresh = tuple(each for each in before.derived if each not in stale)
    known = "\0".join((str(head[0]), head[1], *(identity(each) for each in stream.definition.derived)))
    name = hashlib.blake2b(known.encode(), digest_size=16).hexdigest()
    return Backfill(stream, before, head, fresh, tuple(batches), name)


def run_batch(location: CatalogLocation, work: Backfill, number: int) -> Json:
    """Compute a batch on an executor, unless an earlier run has done so."""
    return batch_of_backfill(location.lake(), work, work.batches[number])


def batch_of_backfill(lake: Lake, work: Backfill, batch: StaleRows, is_kept: bool = True) -> Json:
    """Compute a batch and write its rows; with `is_kept` only if no one has done so before."""
    key = work.checkpoint(batch)
    known = _done_before(lake, work.stream, key) if is_kept else None
    if known is not None:
        return known
    dataset = open_version(lake, work.stream, *work.head)
    changes = _rows_of(work, dataset, batch)
    rows = with_derived(work.stream.definition, dataset, changes, work.fresh)
    fragments = write_rows_of(lake, work.stream, dataset, replace(changes, rows=rows))
    done = {**fragments.to_json(), "addresses": packed(changes.addresses), "rows": rows.num_rows}
    if is_kept:
        lake.store.sync(list(files_of(work.stream, fragments.metadata)))
        lake.store.put(key, json.dumps(done).encode())
    return done


def _done_before(lake: Lake, stream: Stream, key: str) -> Json | None:
    """Return the result of an earlier run for a batch, if its files still exist."""
    try:
        done: Json = json.loads(lake.store.get(key))
    except KeyNotFoundError:
        return None
    files = files_of(stream, [fragment_from(value) for value in done["fragments"]])
    return done if all(lake.store.head(file) is not None for file in files) else None


def forget_backfill(lake: Lake, path: Sequence[str]) -> None:
    """Drop what batches kept: a version holds it now, or it is of no use any more."""
    stream = open_stream(lake.metastore.now(), path)
    for entry in list(lake.store.list(backfill_folder(stream.home, ""))):
        lake.store.delete(entry.key)


def _rows_of(work: Backfill, dataset: Any, batch: StaleRows) -> Changes:
    names = narrowed(work.stream.definition, None).schema.names
    scanner = dataset.get_fragment(batch.fragment).scanner(
        columns=names, with_row_id=True, with_row_address=True, offset=batch.start, limit=batch.rows
    )
    table = scanner.to_table()
    plain = table.select(names)
    ids = table.column(ROW_ID).to_numpy().astype(np.int64)
    addresses = table.column(ROW_ADDRESS).to_numpy().astype(np.int64)
    return Changes(plain, ids, plain, addresses, work.before.digest, work.before.rows)


def stage_compaction(lake: Lake, tx: Transaction, path: Sequence[str], runner: Runner) -> Publication | None:
    """Stage a version of the same rows in whole fragments; None: none is worn."""
    snapshot = lake.now()
    stream = open_stream(snapshot, path)
    open_in(tx, path)
    before, head = newest_published(snapshot, stream), head_of(snapshot, stream)
    if before is None or head is None or not due(open_version(lake, stream, *head), before.stale_to):
        return None
    staging = Staging(lake, stream, *head)
    set_aside(lake, stream, head[0])
    with on_top(staging, stream):
        tidied(lake, stream, staging, open_staging(lake, stream, staging), before.stale_to, None, runner)
    published = record(lake, tx, stream, staging, replace(before, late=0, too_late=0))
    return Publication(published, True, stream, tuple(staging.staged))


def stage_indices(lake: Lake, tx: Transaction, path: Sequence[str], runner: Runner) -> Publication | None:
    """Stage a version of the same rows whose indices cover all of them; None: they do."""
    snapshot = lake.now()
    stream = open_stream(snapshot, path)
    open_in(tx, path)
    before, head = newest_published(snapshot, stream), head_of(snapshot, stream)
    if (
        before is None
        or head is None
        or all(part == 1 for part in coverage(open_version(lake, stream, *head)).values())
    ):
        return None
    staging = Staging(lake, stream, *head)
    set_aside(lake, stream, head[0])
    with on_top(staging, stream):
        dataset, work = open_staging(lake, stream, staging), "headwater.streams.serving.backfills:complete_indices"
        stage_on(runner, lake, stream, staging, dataset, before.rows, work)
    if not staging.staged:
        return None
    published = record(lake, tx, stream, staging, replace(before, late=0, too_late=0))
    return Publication(published, True, stream, tuple(staging.staged))


def complete_indices(lake: Lake, stream: Stream, staging: Staging, dataset: lance.LanceDataset) -> None:
    """Add to the indices all rows that they lack."""
    with staging.indexing(dataset):
        dataset.optimize.optimize_indices()


def stage_index(
    lake: Lake,
    tx: Transaction,
    path: Sequence[str],
    column: str,
    kind: str,
    name: str | None,
    options: dict[str, Any],
    runner: Runner,
) -> Publication | None:
    """Stage a version of the same rows with one more index; None before the first publish with rows."""
    snapshot = lake.now()
    stream = open_stream(snapshot, path)
    open_in(tx, path)
    before, head = newest_published(snapshot, stream), head_of(snapshot, stream)
    if before is None or head is None or not before.rows:
        return None
    table = TableHandle(ObjectId(tuple(path)), f"{lake.uri}/{stream.serving}", dict(lake.storage_options or {}))
    staging = Staging(lake, stream, *head)
    set_aside(lake, stream, head[0])
    with on_top(staging, stream):
        dataset = open_staging(lake, stream, staging)
        is_here = runner.in_driver(before.rows)
        pieces = [] if is_here else divided(dataset, runner.cores)
        index = new_index(table, dataset, column, index_type(kind), name, options, before.rows // max(len(pieces), 1))
        with staging.indexing(dataset):
            if is_here:
                build(table, dataset, index)
            else:
                at = replace(table, uri=f"{catalog_location(lake).root}/{stream.serving}", version=head[0])
                tasks = [Task("headwater.tables.indices:build_piece", (at, index, each)) for each in pieces]
                built = runner.run(tasks, f"index {index.column}")
                merge, found = Task("headwater.tables.indices:merge_pieces", (at, built)), built
                if index.kind == "BTREE" and len(built) > 1:
                    (found,) = runner.run([merge], f"index {index.column}")
                commit_pieces(at, dataset, index, found)
                if len(found) < len(built):
                    remove_pieces(at, built)
    published = record(lake, tx, stream, staging, replace(before, late=0, too_late=0))
    return Publication(published, True, stream, tuple(staging.staged))
