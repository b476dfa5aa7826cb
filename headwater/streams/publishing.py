"""Publishing: the serving copy becomes equal to the state at a position, in one transaction. It is the compaction.

Only rows that changed are written; a changed row keeps its row id. Landing goes on meanwhile: the deltas that are
published cannot change, and later ones wait for the next publish. Two publishes of one table conflict, and the second
looks again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headwater.errors import ConcurrentModificationError
from headwater.metastore import Reading, Transaction
from headwater.streams.derived import computed
from headwater.streams.evolving import published_columns
from headwater.streams.lineage import lineage_of
from headwater.streams.memory_pages import small_pages
from headwater.streams.merging import digest_now
from headwater.streams.opening import Stream, open_in, open_stream
from headwater.streams.position_views import Published, newest_published, view_at
from headwater.streams.quarantine import quarantine
from headwater.streams.scd2 import History, publish_history
from headwater.streams.serving_copy import Lake, Staged, Staging, finalize, on_top, open_version, set_aside
from headwater.streams.shares import Publish, fold_and_write
from headwater.streams.writing import commit_rows, head_of, index_keys, record, stage_columns, tidied, withdraw
from headwater.work import HERE, Runner


@dataclass(frozen=True)
class Publication:
    """A publish that was staged, and what remains to be done once it is committed. `made` is False: nothing was new."""

    published: Published
    made: bool
    staged: tuple[Staged, ...] = ()
    history: History | None = None


@small_pages
def stage(
    lake: Lake,
    tx: Transaction,
    path: Sequence[str],
    lineage: Mapping[str, Any] | None = None,
    runner: Runner = HERE,
) -> Publication:
    """Stage the publish of a table in a transaction. After the commit call `finish`.

    `lineage` is what the caller knows of where the rows come from; the sources of the log are added to it. `runner`:
    the place in which the rows are folded and written.
    """
    snapshot = lake.now()
    stream = open_stream(snapshot, path)
    if open_in(tx, path).definition != stream.definition:
        raise ConcurrentModificationError(f"{stream.name} evolved while its publish began: look again.")
    work = work_of(snapshot, stream)
    known = work.before
    if known is not None and (known.position, known.schema_id) == (work.view.position, stream.definition.schema_id):
        return Publication(known, False)
    return _publish(lake, tx, work, lineage or {}, runner)


def work_of(snapshot: Reading, stream: Stream) -> Publish:
    """Return the work of a publish of a table at a slot; every process gets the same."""
    view, before = view_at(snapshot, stream), newest_published(snapshot, stream)
    return Publish(view, before, head_of(snapshot, stream), snapshot.slot)


def finish(lake: Lake, path: Sequence[str], publication: Publication) -> None:
    """Give the committed manifests their final names. A reader would do it otherwise, and does after a transaction."""
    if lake.own is not None:
        return
    if publication.staged:
        stream = open_stream(lake.metastore.now(), path)
        for staged in publication.staged:
            finalize(lake.store, stream, staged.version, staged.key)
    if publication.history is not None:
        for staged in publication.history.staged:
            finalize(lake.store, publication.history.stream, staged.version, staged.key)


def _publish(lake: Lake, tx: Transaction, work: Publish, lineage: Mapping[str, Any], runner: Runner) -> Publication:
    stream, newest = work.view.stream, work.head[0] if work.head else 0
    staging = Staging(lake, stream, *(work.head or (0, "")))
    set_aside(lake, stream, newest)
    with on_top(staging, stream):
        return _staged(lake, tx, staging, work, lineage, runner)


def _staged(
    lake: Lake, tx: Transaction, staging: Staging, work: Publish, lineage: Mapping[str, Any], runner: Runner
) -> Publication:
    view, before, stream = work.view, work.before, work.view.stream
    dataset = open_version(lake, stream, *work.head) if work.head else None
    evolved = dataset is not None and before is not None and before.schema_id != stream.definition.schema_id
    if evolved and before is not None:
        dataset = stage_columns(lake, stream, staging, before, runner)
        before = replace(before, digest=digest_now(lake, view, before, runner))
        work = replace(work, before=before, staged=staging.staged[-1] if staging.staged else None)
    done = fold_and_write(lake, work, dataset, runner)
    made = Published(
        0,
        view.position,
        "",
        done.count,
        done.digest,
        stream.definition.schema_id,
        published_columns(stream.definition),
        done.watermark,
        done.tombstones,
        done.late,
        done.too_late,
        computed(stream.definition, before, dataset),
        done.lines,
    )
    written = commit_rows(lake, stream, staging, dataset, done.fragments, done.addresses, made.position)
    index_keys(lake, stream, staging, written, done.count, runner)
    tidied(lake, stream, staging, written, made.stale_to, done.changed, runner)
    if done.rejected:  # by the publish that passes over them, and so once
        quarantine(tx, stream, done.rejected)
    published = record(lake, tx, stream, staging, made, {**lineage_of(view, before, made), **lineage})
    history = publish_history(lake, tx, stream, view, before, runner) if stream.definition.keeps_history else None
    withdraw(tx, stream, staging, stream, made.position)
    return Publication(published, True, tuple(staging.staged), history)
