"""Publishing: the serving copy becomes equal to the state at a position, in one transaction. It is the compaction.

Only rows that changed are written; a changed row keeps its row id. Landing goes on meanwhile: the deltas that are
published cannot change, and later ones wait for the next publish. Two publishes of one table conflict, and the second
looks again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.errors import ConcurrentModificationError
from headwater.metastore import Snapshot, Transaction
from headwater.streams.derived import computed, with_derived
from headwater.streams.evolving import evolve_copy, published_columns
from headwater.streams.files import Logged, narrowed, read_log
from headwater.streams.fold import Folded, Rules, State, apply, fold
from headwater.streams.given import as_json
from headwater.streams.grouping import Codes, KeyIndex
from headwater.streams.hashing import MODULUS, digest_of, hash_rows
from headwater.streams.history import History, publish_history
from headwater.streams.lineage import lineage_of
from headwater.streams.opening import Stream, open_in, open_stream
from headwater.streams.quarantine import Quarantined, quarantine
from headwater.streams.reading import base_rows, rows_of_keys, same_rows, touched_state
from headwater.streams.serving import Lake, Staged, Staging, finalize, on_top, open_version, set_aside
from headwater.streams.tombstones import add_tombstones, read_tombstones, write_tombstones
from headwater.streams.views import Published, View, newest_published, view_at
from headwater.streams.writing import Changes, head_of, index_keys, record, rows_digest, tidied, write_changes


@dataclass(frozen=True)
class Publication:
    """A publish that was staged, and what remains to be done once it is committed. `made` is False: nothing was new."""

    published: Published
    made: bool
    staged: tuple[Staged, ...] = ()
    history: History | None = None


def stage(lake: Lake, tx: Transaction, path: Sequence[str], lineage: Mapping[str, Any] | None = None) -> Publication:
    """Stage the publish of a table in a transaction. After the commit call `finish`.

    `lineage` is what the caller knows of where the rows come from; the sources of the log are added to it.
    """
    snapshot = lake.metastore.now()
    stream = open_stream(snapshot, path)
    if open_in(tx, path).definition != stream.definition:
        raise ConcurrentModificationError(f"{stream.name} evolved while its publish began: look again.")
    before = newest_published(snapshot, stream)
    view = view_at(snapshot, stream)
    if before is not None and (before.position, before.schema_id) == (view.position, stream.definition.schema_id):
        return Publication(before, False)
    return _publish(lake, tx, snapshot, stream, view, before, lineage or {})


def finish(lake: Lake, path: Sequence[str], publication: Publication) -> None:
    """Give the committed manifests their final names. A reader would do it otherwise."""
    if publication.staged:
        stream = open_stream(lake.metastore.now(), path)
        for staged in publication.staged:
            finalize(lake.store, stream, staged.version, staged.key)
    if publication.history is not None:
        for staged in publication.history.staged:
            finalize(lake.store, publication.history.stream, staged.version, staged.key)


def _publish(
    lake: Lake,
    tx: Transaction,
    snapshot: Snapshot,
    stream: Stream,
    view: View,
    before: Published | None,
    lineage: Mapping[str, Any],
) -> Publication:
    head = head_of(snapshot, stream)
    staging = Staging(lake, stream, head[0] if head else 0)
    set_aside(lake, stream, head[0] if head else 0)
    with on_top(staging, stream):
        return _staged(lake, tx, stream, staging, view, before, head, lineage)


def _staged(
    lake: Lake,
    tx: Transaction,
    stream: Stream,
    staging: Staging,
    view: View,
    before: Published | None,
    head: tuple[int, str] | None,
    lineage: Mapping[str, Any],
) -> Publication:
    dataset = open_version(lake, stream, *head) if head else None
    if dataset is not None and before is not None and before.schema_id != stream.definition.schema_id:
        dataset = evolve_copy(lake, stream, staging, before)
        before = replace(before, digest=digest_now(lake, view, before))
    rules = narrowed(stream.definition, None)
    refolded = view.start != (before.position if before is not None else 0)
    log = read_log(stream.definition, lake.store, view.tail)
    if not rules.keys:
        changes, folded = _appended(lake, view, rules, log, before)
        tombstones: tuple[Any, ...] = ()
    else:
        changes, folded, tombstones = _merged(lake, view, rules, log, before, head, refolded)
    counted = log.positions > (before.position if before is not None else 0)
    made = Published(
        0,
        view.position,
        "",
        changes.count,
        changes.digest,
        stream.definition.schema_id,
        published_columns(stream.definition),
        folded.watermark,
        tombstones,
        int((folded.late & counted).sum()),
        int((folded.too_late & counted).sum()),
        computed(stream.definition, before, dataset),
    )
    if stream.definition.derived:
        rows = with_derived(stream.definition, dataset, changes, before.derived if before is not None else ())
        changes = replace(changes, rows=rows)
    written = write_changes(lake, stream, staging, dataset, changes, made.position)
    index_keys(stream, written, changes.count)
    tidied(lake, stream, staging, written, made.stale_to)
    _quarantine_late(lake, tx, stream, log, folded, counted, view)
    published = record(lake, tx, stream, staging, made, {**lineage_of(view, before, made), **lineage})
    history = publish_history(lake, tx, stream, view, before) if stream.definition.keeps_history else None
    return Publication(published, True, tuple(staging.staged), history)


def digest_now(lake: Lake, view: View, published: Published) -> int:
    """The digest of published rows under the present columns: an added or dropped one is part of every row."""
    definition = view.stream.definition
    if tuple(column.id for column in definition.columns) == tuple(id for id, _ in published.columns):
        return published.digest
    rows = base_rows(lake, View(view.stream, published.position, published, (), ()), narrowed(definition, None))
    return rows_digest(rows)


def _appended(lake: Lake, view: View, rules: Rules, log: Logged, before: Published | None) -> tuple[Changes, Folded]:
    """A table without keys: the rows after the base are added. If rows were voided, it is written anew."""
    base = view.base
    state = State(rules.schema.empty_table(), rules.marks.empty_table(), base.watermark if base is not None else None)
    folded = fold(rules, state, log.events)
    nothing = np.empty(0, np.int64)
    digest = (digest_now(lake, view, base) if base is not None else 0) + rows_digest(folded.rows)
    count = (base.rows if base is not None else 0) + folded.rows.num_rows
    addresses = nothing if before is None or view.start == before.position else _after_base(lake, view, before)
    new = np.full(folded.rows.num_rows, -1)
    return Changes(folded.rows, new, state.rows, addresses, digest % MODULUS, count), folded


def _after_base(lake: Lake, view: View, before: Published) -> Codes:
    """The addresses of rows that a version has and the base of a view has not: their row ids came later."""
    newer = open_version(lake, view.stream, before.version, before.manifest)
    found = newer.scanner(columns=[], with_row_id=True, with_row_address=True).to_table()
    ids = found.column("_rowid").to_numpy().astype(np.int64)
    addresses: Codes = found.column("_rowaddr").to_numpy().astype(np.int64)
    if view.base is None:
        return addresses
    older = open_version(lake, view.stream, view.base.version, view.base.manifest)
    known = older.scanner(columns=[], with_row_id=True).to_table().column("_rowid").to_numpy().astype(np.int64)
    return addresses[~np.isin(ids, known)]


def _merged(
    lake: Lake,
    view: View,
    rules: Rules,
    log: Logged,
    before: Published | None,
    head: tuple[int, str] | None,
    refolded: bool,
) -> tuple[Changes, Folded, tuple[Any, ...]]:
    """A table with keys."""
    current = replace(before, version=head[0], manifest=head[1]) if before is not None and head else before
    if refolded and current is not None:
        return _refolded(lake, view, rules, log, current)
    touched = touched_state(lake, replace(view, base=current), rules, log.events) if len(log.events) else None
    if touched is None:
        kept = current or Published(0, 0, "")
        nothing = np.empty(0, np.int64)
        folded = fold(rules, State(rules.schema.empty_table(), rules.marks.empty_table(), kept.watermark), log.events)
        none = rules.schema.empty_table()
        return Changes(none, nothing, none, nothing, kept.digest, kept.rows), folded, kept.tombstones
    folded = fold(rules, touched.state, log.events)
    old = touched.state.rows
    replaced = folded.replaces >= 0
    written = np.ones(folded.rows.num_rows, bool)
    hashes, old_hashes = hash_rows(folded.rows.columns, len(written)), hash_rows(old.columns, old.num_rows)
    written[replaced] = hashes[replaced] != old_hashes[folded.replaces[replaced]]
    rows = folded.rows if written.all() else folded.rows.take(np.flatnonzero(written))
    replaces = folded.replaces[written]
    ids = np.where(replaces >= 0, touched.ids[np.maximum(replaces, 0)], -1) if len(touched.ids) else replaces
    removed = np.concatenate([replaces[replaces >= 0], folded.gone])
    digest = (
        (current.digest if current is not None else 0) + digest_of(hashes[written]) - digest_of(old_hashes[removed])
    )
    count = (current.rows if current is not None else 0) + rows.num_rows - len(removed)
    addresses = touched.addresses[removed] if len(removed) else np.empty(0, np.int64)
    files = current.tombstones if current is not None else ()
    tombstones = add_tombstones(
        lake.store, lake.metastore.clock, view.stream, files, folded.tombstones, folded.watermark
    )
    was = old.take(replaces[replaces >= 0])
    return Changes(rows, ids, was, addresses, digest % MODULUS, count), folded, tombstones


def _refolded(
    lake: Lake, view: View, rules: Rules, log: Logged, current: Published
) -> tuple[Changes, Folded, tuple[Any, ...]]:
    """After an undo: the keys of all deltas since the base are folded anew, and compared with what is published."""
    everything = read_log(view.stream.definition, lake.store, [d for d in view.after_base if d.files]).events
    touched = touched_state(lake, view, rules, everything)
    folded = fold(rules, touched.state, log.events)
    state = apply(rules, touched.state, folded)
    old, old_ids, old_addresses = rows_of_keys(lake, view, current, rules, touched.index, everything.rows)
    place = np.full(touched.index.count, -1, np.int64)
    place[touched.index.find([old.column(name) for name in rules.keys])] = np.arange(old.num_rows)
    replaces = place[touched.index.find([state.rows.column(name) for name in rules.keys])]
    known = replaces >= 0
    same = np.zeros(len(replaces), bool)
    same[known] = same_rows(state.rows.take(np.flatnonzero(known)), old.take(replaces[known]))
    gone = np.ones(old.num_rows, bool)
    gone[replaces[same]] = False
    rows = state.rows.take(np.flatnonzero(~same))
    ids = np.where(known, old_ids[np.maximum(replaces, 0)] if len(old_ids) else -1, -1)[~same]
    digest = current.digest + rows_digest(rows) - rows_digest(old.take(np.flatnonzero(gone)))
    count = current.rows + rows.num_rows - int(gone.sum())
    tombstones = _rewritten(lake, view, current, touched.index, state)
    was = old.take(replaces[known & ~same])
    return Changes(rows, ids, was, old_addresses[gone], digest % MODULUS, count), folded, tombstones


def _rewritten(lake: Lake, view: View, current: Published, index: KeyIndex, state: State) -> tuple[Any, ...]:
    """The tombstones of all other keys as they are, and of the keys that were folded anew as they came out."""
    definition = view.stream.definition
    held = read_tombstones(lake.store, definition, current.tombstones)
    others = held.take(np.flatnonzero(index.find([held.column(name) for name in definition.keys]) < 0))
    return write_tombstones(
        lake.store, lake.metastore.clock, view.stream, pa.concat_tables([others, state.tombstones]), state.watermark
    )


def _quarantine_late(
    lake: Lake, tx: Transaction, stream: Stream, log: Logged, folded: Folded, counted: Any, view: View
) -> None:
    """Events that did not apply, once: by the publish that passes over them."""
    too_late = folded.too_late & counted
    late = folded.late & counted if stream.definition.quarantines_late else np.zeros(len(counted), bool)
    rows: list[Quarantined] = []
    for mask, reason in ((late, "late"), (too_late, "too_late")):
        places = np.flatnonzero(mask)
        found = log.events.rows.take(places).to_pylist()
        for row, place in zip(found, places.tolist(), strict=True):
            delta = view.tail[log.deltas[place]]
            source = delta.properties.get("file") or delta.properties.get("source")
            rows.append(Quarantined(as_json(row), reason, None, source, int(log.positions[place])))
    if rows:
        quarantine(tx, lake.store, lake.metastore.clock, stream, rows)
