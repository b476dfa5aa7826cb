"""Merge of a log's tail into the serving copy: rows to write, rows to remove, and the digest after it.

Nothing is written here but tombstones and marks. It is done for the whole tail, or for a share of it on an executor.

Parts of a publish into a large table: events by the fragment of the serving copy that has their key.

The tasks divide the fragments, so that the keys of the serving copy are looked through once, however many tasks there
are. Each reads all events, folds those whose keys its fragments have, and writes the deletion vectors of these. Then
other tasks fold the events of keys that no fragment has.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

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
from headwater.streams.log.log_files import BUCKET_ROWS, Logged, read_log
from headwater.streams.log.stored_events import LogShard, narrowed
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
from headwater.streams.rows.row_keys import Codes, KeyIndex, Mask
from headwater.streams.serving.copy_rows import are_few
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
    """Return a table without keys: the rows after the base are added. If rows were voided, it is written anew."""
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
    """Return a table with keys, on top of what is published. `touched`: what that knows of the keys, if it is known
    here."""
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


LEAST_BASE = 4
"""Reading an event takes as long as looking through so many keys of a base."""


@dataclass(frozen=True)
class InFragments:
    """The events whose keys some fragments of the serving copy have."""

    fragments: tuple[int, ...]


@dataclass(frozen=True)
class OfNewKeys:
    """The events whose keys no fragment has, or a share of them. `known`: a mask of the others, packed."""

    known: str
    share: LogShard | None


def fragment_parts(dataset: Any, events: int, base: int, tasks: int) -> list[InFragments]:
    """Return the parts of a publish for at most so many tasks; none: it is not to be divided by fragments.

    Each task reads all events. So they are no more than a task may hold, and few beside the rows of the base.
    """
    if dataset is None or events > BUCKET_ROWS or events * LEAST_BASE > base or are_few(events, base):
        return []
    metadata = [each.metadata for each in dataset.get_fragments()]
    found = even_parts({each.id: each.physical_rows for each in metadata}, tasks)
    return [InFragments(each) for each in found] if len(found) > 1 else []


def even_parts(rows: Mapping[int, int], tasks: int) -> list[tuple[int, ...]]:
    """Divide fragments into at most so many parts of about as many rows, those side by side together. Pure."""
    ids, ends = list(rows), np.cumsum(list(rows.values()))
    middles = ends - np.array(list(rows.values())) / 2
    of = (middles * tasks / max(int(ends[-1]), 1)).astype(int).tolist() if ids else []
    return [tuple(id for id, part in zip(ids, of, strict=True) if part == number) for number in sorted(set(of))]


def events_of(
    lake: Lake, view: PositionView, rules: Rules, log: Logged, current: Published, part: InFragments | OfNewKeys
) -> tuple[Logged, Touched | None, Mask]:
    """Return the events of a part, what the base knows of their keys (None: there is no event), and a mask of them."""
    lines = encode_lines(view.stream.definition, lines_now(lake, view, current, rules))
    based = replace(view, base=replace(current, lines=lines))
    rows, ids = rules.schema.empty_table(), np.empty(0, np.int64)
    addresses = ids
    if isinstance(part, OfNewKeys):
        mask = ~unpacked_mask(part.known, len(log.events))
        if part.share is not None:
            mask &= part.share.of_keys([log.events.rows.column(name) for name in rules.keys])
    else:
        every = KeyIndex([log.events.rows.column(name) for name in rules.keys])
        rows, ids, addresses = rows_of_keys(lake, based, current, rules, every, log.events.rows, part.fragments)
        there = np.zeros(every.count, bool)
        there[every.find([rows.column(name) for name in rules.keys])] = True
        mask = there[every.codes]
    own = chosen(log, mask)
    if not len(own.events):
        return own, None, mask
    index = KeyIndex([own.events.rows.column(name) for name in rules.keys])
    return own, Touched(index, base_state(lake, based, rules, rows, index), ids, addresses), mask


def chosen(log: Logged, mask: Mask) -> Logged:
    """Return only the events of a mask, which must hold no truncation."""
    if mask.all():
        return log
    places, judged = np.flatnonzero(mask), log.judged
    if judged is not None and judged.batches is not None:
        judged = replace(judged, batches=judged.batches[places])
    return Logged(log.events.take(places), log.positions[places], log.deltas[places], log.numbers[places], judged)


def packed_mask(mask: Mask) -> str:
    return base64.b64encode(zlib.compress(np.packbits(mask).tobytes(), 1)).decode()


def unpacked_mask(text: str, size: int) -> Mask:
    raw = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8)
    return np.unpackbits(raw, count=size).astype(bool)


def joined_masks(texts: Sequence[str], size: int) -> Mask:
    """Return the mask of events that stand in any of these packed masks."""
    found: Mask = np.logical_or.reduce([unpacked_mask(text, size) for text in texts])
    return found
