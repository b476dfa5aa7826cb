"""Merge of a log's tail into the serving copy: rows to write, rows to remove, and the digest after it.

Nothing is written here but tombstones and marks. It is done for the whole tail, or for a share of it on an executor.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pyarrow as pa

from headwater.metastore import DataFile
from headwater.streams.fold.events import (
    MARKED,
    Folded,
    Rules,
    SequenceLines,
    State,
    decode_lines,
    empty,
    encode_lines,
    highest,
    no_marks,
)
from headwater.streams.fold.fold import apply, fold
from headwater.streams.fold.tombstones import TombstonesAndMarks, newest, read_remembered, write_remembered
from headwater.streams.log.log_files import Logged, read_log
from headwater.streams.log.stored_events import narrowed
from headwater.streams.reading.fresh_reads import (
    Touched,
    base_rows,
    base_state,
    equal_rows,
    every_row,
    rows_of_keys,
    same_rows,
    touched_state,
)
from headwater.streams.reading.position_views import PositionView, Published
from headwater.streams.rows.hashing import MODULUS, digest_of, hash_rows
from headwater.streams.rows.row_keys import Codes, KeyIndex
from headwater.streams.serving.serving_copy import CatalogLocation, Lake, catalog_location, open_version
from headwater.streams.serving.staged_rows import Changes, rows_digest
from headwater.tables.columns.fields import ROW_ADDRESS, ROW_ID
from headwater.tables.indices import divided
from headwater.work import HERE, Runner, Task

DIGESTS = 4
"""The tasks of a digest for each core: each holds the rows of its fragments."""


def digest_now(lake: Lake, view: PositionView, published: Published, runner: Runner = HERE) -> int:
    """Return the digest of published rows under the present columns: an added or dropped one is part of every row."""
    definition = view.stream.definition
    if tuple(column.id for column in definition.columns) == tuple(id for id, _ in published.columns):
        return published.digest
    held = PositionView(view.stream, published.position, published, (), ())
    if runner.in_driver(published.rows):
        return rows_digest(base_rows(lake, held, narrowed(definition, None)))
    parts = divided(open_version(lake, view.stream, published.version, published.manifest), DIGESTS * runner.cores)
    tasks = [Task("headwater.streams.serving.merge:run_digest", (catalog_location(lake), held, part)) for part in parts]
    return sum(int(each) for each in runner.run(tasks, f"digest of {view.stream.name}")) % MODULUS


def run_digest(location: CatalogLocation, held: PositionView, fragments: Sequence[int]) -> str:
    """Return the digest of the rows of some fragments, on an executor."""
    return str(rows_digest(base_rows(location.lake(), held, narrowed(held.stream.definition, None), fragments)))


def appended(
    lake: Lake, view: PositionView, rules: Rules, log: Logged, before: Published | None
) -> tuple[Changes, Folded]:
    """A table without keys: the rows after the base are added. If rows were voided, it is written anew."""
    base = view.base
    state = replace(empty(rules), watermark=base.watermark if base is not None else None)
    folded = fold(rules, state, log.events, log.judged)
    nothing = np.empty(0, np.int64)
    is_on_top = before is not None and view.start == before.position
    known = before.digest if is_on_top and before is not None else digest_now(lake, view, base) if base else 0
    digest = known + rows_digest(folded.rows)
    count = (base.rows if base is not None else 0) + folded.rows.num_rows
    addresses = nothing if before is None or is_on_top else _after_base(lake, view, before)
    new = np.full(folded.rows.num_rows, -1)
    return Changes(folded.rows, new, state.rows, addresses, digest % MODULUS, count), folded


def _after_base(lake: Lake, view: PositionView, before: Published) -> Codes:
    """Return the addresses of rows in the published version whose row ids the view's base does not have."""
    newer = open_version(lake, view.stream, before.version, before.manifest)
    found = newer.scanner(columns=[], with_row_id=True, with_row_address=True).to_table()
    ids = found.column(ROW_ID).to_numpy().astype(np.int64)
    addresses: Codes = found.column(ROW_ADDRESS).to_numpy().astype(np.int64)
    if view.base is None:
        return addresses
    older = open_version(lake, view.stream, view.base.version, view.base.manifest)
    known = older.scanner(columns=[], with_row_id=True).to_table().column(ROW_ID).to_numpy().astype(np.int64)
    return addresses[~np.isin(ids, known)]


def merged(
    lake: Lake, view: PositionView, rules: Rules, log: Logged, current: Published | None, touched: Touched | None = None
) -> tuple[Changes, Folded]:
    """A table with keys, on top of what is published. `touched`: what that knows of the keys, if it is known here."""
    if current is not None:
        current = replace(current, lines=encode_lines(view.stream.definition, lines_now(lake, view, current, rules)))
    based = replace(view, base=current)
    if touched is None and (len(log.events) or log.events.truncations is not None):
        touched = touched_state(lake, based, rules, log.events)
    if touched is None:
        kept = current or Published(0, 0, "")
        nothing = np.empty(0, np.int64)
        folded = fold(rules, base_state(lake, based, rules, rules.schema.empty_table(), None), log.events, log.judged)
        none = rules.schema.empty_table()
        return Changes(none, nothing, none, nothing, kept.digest, kept.rows), folded
    folded = fold(rules, touched.state, log.events, log.judged, touched.index)
    old = touched.state.rows
    replaced = folded.replaces >= 0
    written = np.ones(folded.rows.num_rows, bool)
    with ThreadPoolExecutor(1) as beside:
        hashed = beside.submit(hash_rows, old.columns, old.num_rows)
        hashes = hash_rows(folded.rows.columns, len(written))
    old_hashes = hashed.result()
    written[replaced] = hashes[replaced] != old_hashes[folded.replaces[replaced]]
    alike = np.flatnonzero(~written)
    if len(alike):
        written[alike] = ~equal_rows(folded.rows.take(alike), old.take(folded.replaces[alike]))
    rows = folded.rows if written.all() else folded.rows.take(np.flatnonzero(written))
    replaces = folded.replaces[written]
    ids = np.where(replaces >= 0, touched.ids[np.maximum(replaces, 0)], -1) if len(touched.ids) else replaces
    removed = np.concatenate([replaces[replaces >= 0], folded.gone])
    digest = (
        (current.digest if current is not None else 0) + digest_of(hashes[written]) - digest_of(old_hashes[removed])
    )
    count = (current.rows if current is not None else 0) + rows.num_rows - len(removed)
    addresses = touched.addresses[removed] if len(removed) else np.empty(0, np.int64)
    was = old.take(replaces[replaces >= 0]) if view.stream.definition.derived else rules.schema.empty_table()
    return Changes(rows, ids, was, addresses, digest % MODULUS, count), folded


def lines_now(lake: Lake, view: PositionView, current: Published, rules: Rules) -> SequenceLines:
    """The lines of what is published, with new ones of all its rows: those that may lack marks that were not kept by
    older rules, and those that never wrote the columns that are new now."""
    definition = view.stream.definition
    lines = decode_lines(definition, current.lines)
    if not rules.sequence or not rules.keys:
        return lines
    known = dict(current.columns)
    new = [column.name for column in definition.columns if column.id not in known and column.name in rules.cells]
    if current.rules >= MARKED and not new:
        return lines
    top = highest(rules, [base_rows(lake, replace(view, base=current), narrowed(definition, []))])
    if top is None:
        return lines
    unmarked = top if current.rules < MARKED else lines.unmarked
    return replace(lines, unwritten={**lines.unwritten, **dict.fromkeys(new, top)}, unmarked=unmarked)


def refolded(
    lake: Lake, view: PositionView, rules: Rules, log: Logged, current: Published
) -> tuple[Changes, Folded, tuple[DataFile, ...]]:
    """After an undo: the keys of all deltas since the base are folded anew, and compared with what is published."""
    everything = read_log(
        view.stream.definition, lake.store, [d for d in view.after_base if "voids" not in d.properties]
    )
    touched = touched_state(lake, view, rules, everything.events)
    lines = replace(lines_now(lake, view, current, rules), truncation=touched.state.lines.truncation)
    started = replace(touched.state, lines=lines)
    folded = fold(rules, started, log.events, log.judged)
    state = apply(rules, started, folded)
    if everything.events.truncations is not None:
        old, old_ids, old_addresses = every_row(lake, view, current, rules)
        keys = pa.concat_tables([each.select(list(rules.keys)) for each in (old, state.rows, everything.events.rows)])
        index = KeyIndex(keys.columns)
    else:
        index = touched.index
        old, old_ids, old_addresses = rows_of_keys(lake, view, current, rules, index, everything.events.rows)
    place = np.full(index.count, -1, np.int64)
    place[index.find([old.column(name) for name in rules.keys])] = np.arange(old.num_rows)
    replaces = place[index.find([state.rows.column(name) for name in rules.keys])]
    known = replaces >= 0
    same = np.zeros(len(replaces), bool)
    same[known] = same_rows(state.rows.take(np.flatnonzero(known)), old.take(replaces[known]))
    gone = np.ones(old.num_rows, bool)
    gone[replaces[same]] = False
    rows = state.rows.take(np.flatnonzero(~same))
    ids = np.where(known, old_ids[np.maximum(replaces, 0)] if len(old_ids) else -1, -1)[~same]
    digest = current.digest + rows_digest(rows) - rows_digest(old.take(np.flatnonzero(gone)))
    count = current.rows + rows.num_rows - int(gone.sum())
    tombstones = _rewritten(lake, view, current, index, state)
    replaced = replaces[known & ~same]
    gone[replaced] = False
    addresses = np.concatenate([old_addresses[replaced], old_addresses[gone]])
    return Changes(rows, ids, old.take(replaced), addresses, digest % MODULUS, count), folded, tombstones


def _rewritten(
    lake: Lake, view: PositionView, current: Published, index: KeyIndex, state: State
) -> tuple[DataFile, ...]:
    """Tombstones and marks of all other keys as they are, and of the keys that were folded anew as they came out."""
    definition = view.stream.definition
    rules = narrowed(definition, None)
    held = read_remembered(lake.store, definition, rules, current.tombstones)
    places = [
        np.flatnonzero(index.find([rows.column(name) for name in rules.keys]) < 0)
        for rows in (held.tombstones, held.marks.rows)
    ]
    others = TombstonesAndMarks(held.tombstones.take(places[0]), held.marks.take(places[1]))
    found = newest(rules, [others, TombstonesAndMarks(state.tombstones, state.marks or no_marks(rules))])
    return write_remembered(lake.store, lake.metastore.clock, view.stream, found, state.watermark, True)
