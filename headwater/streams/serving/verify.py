"""Proof of a serving copy: its rows have the digest that was published, and so has the fold of the log.

Rows not yet published are read. The rows of the copy are those of its newest version: a client may have rewritten them
since they were published. Marks, tombstones and lines of a state are compared in one form.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.errors import LanceNamespaceError
from headwater.imports import pc
from headwater.metastore import Reading
from headwater.streams.fold.events import VERSION, Rules, State, line, measure, no_marks
from headwater.streams.log.log_files import read_log
from headwater.streams.log.stored_events import forget, narrowed
from headwater.streams.reading.fresh_reads import base_rows, base_state, whole_state
from headwater.streams.reading.position_views import PositionView, Published, all_published, counted, is_base
from headwater.streams.rows.hashing import digest_of, hash_rows
from headwater.streams.rows.row_keys import Codes, KeyIndex, Mask, ranks
from headwater.streams.serving.serving_copy import Lake
from headwater.streams.serving.staged_rows import head_of, rows_digest
from headwater.streams.stream_lookup import Stream

NEVER = -1
"""The rank of a cell that was never written."""


def remembered_digest(rules: Rules, state: State) -> dict[str, int]:
    """Order-independent digests of the tombstones, and for each column of the cells that are not at the sequences of
    their rows. What a truncation or the watermark has settled counts as never written."""
    if not rules.keys or not rules.sequence:
        return {}
    marks, keys = state.marks or no_marks(rules), list(rules.keys)
    rows, dead = state.rows.select(rules.tombstone.names), state.tombstones
    tables = [rows, marks.rows, dead, *(line.select(list(rules.sequence)) for line in state.lines.tables)]
    columns = [[chunk for table in tables for chunk in table.column(name).chunks] for name in rules.sequence]
    fields = [rules.schema.field(name).type for name in rules.sequence]
    sequences = [pa.chunked_array(chunks, type=kind) for chunks, kind in zip(columns, fields, strict=True)]
    order = ranks(sequences)
    own, marked, buried, *lines = np.split(order, np.cumsum([table.num_rows for table in tables])[:-1])
    level = {id(table): int(rank[0]) for table, rank in zip(state.lines.tables, lines, strict=True)}
    truncation = level.get(id(state.lines.truncation), NEVER)
    index = KeyIndex([rows.column(name) for name in keys])
    holds = np.flatnonzero((buried > truncation) & _fresh(rules, state, dead))
    found = {"": _digest(dead.take(holds))}
    floors, of_dead = np.full(rows.num_rows, truncation, np.int64), _found(index, dead, keys)[holds]
    floors[of_dead[of_dead >= 0]] = buried[holds[of_dead >= 0]]
    at = _found(index, marks.rows, keys)
    is_own = ~marks.never & (at >= 0) & (marked == own[at]) if rows.num_rows else np.zeros(len(marks), bool)
    settled = marks.never | ~is_own & ((marked <= truncation) | ~_fresh(rules, state, marks.rows))
    for name in rules.cells:
        cells, limit = own.copy(), state.lines.unwritten.get(name)
        if limit is not None:
            unwritten = (own <= level[id(limit)]) & state.rows.column(name).is_null().to_numpy()
            cells[unwritten] = floors[unwritten]
        mine = np.flatnonzero(marks.cells.get(name, np.zeros(len(marks), bool)) & (at >= 0))
        cells[at[mine]] = np.maximum(np.where(settled[mine], NEVER, marked[mine]), floors[at[mine]])
        other, never = cells != own, cells <= truncation
        written = np.flatnonzero(other & ~never)
        placed = _placed(rules, rows.take(written), sequences, order, cells[written])
        found[name] = _digest(placed) - _digest(rows.take(np.flatnonzero(other & never)).select(keys))
    return found


def _placed(rules: Rules, rows: pa.Table, sequences: list[Any], order: Codes, wanted: Codes) -> pa.Table:
    """Return the keys of rows with other sequences, which are wanted by their ranks."""
    known, first = np.unique(order, return_index=True)
    places = first[np.searchsorted(known, wanted)]
    parts = {name: values.take(places) for name, values in zip(rules.sequence, sequences, strict=True)}
    return pa.table(parts | {name: rows.column(name) for name in rules.keys})


def _found(index: KeyIndex, table: pa.Table, keys: list[str]) -> Codes:
    """Return, for each row of a table, the row of the state that has its key; -1: none."""
    if not table.num_rows or not index.count:
        return np.full(table.num_rows, -1, np.int64)
    codes = index.find([table.column(name) for name in keys])
    return np.where(codes >= 0, index.places[codes], -1)


def _fresh(rules: Rules, state: State, table: pa.Table) -> Mask:
    """Return a mask of the sequences that are not below the line of the next batch."""
    limit = line(rules, state.watermark)
    if limit is None or not table.num_rows:
        return np.ones(table.num_rows, bool)
    fresh: Mask = measure(table.column(rules.sequence[0])) >= limit
    return fresh


def _digest(rows: pa.Table) -> int:
    columns = [_one_zero(column) if pa.types.is_floating(column.type) else column for column in rows.columns]
    return digest_of(hash_rows(columns, rows.num_rows)) if rows.num_rows else 0


def _one_zero(column: Any) -> Any:
    """Return floats with 0.0 for -0.0: the two are one sequence, and which of them is kept goes by the batches."""
    return pc.add(column.cast(pa.float64()), 0.0)


UNREADABLE = (LanceNamespaceError, pa.ArrowException, OSError, ValueError)
"""Errors of a reader of a file that is damaged or gone."""


def verify(lake: Lake, snapshot: Reading, stream: Stream) -> list[str]:
    """Return the problems of a table's newest published version, and the unreadable deltas after it."""
    forget(lake.store)
    publishes = all_published(snapshot, stream)
    unread = _unread(lake, snapshot, stream, publishes[-1].position if publishes else 0)
    if not publishes:
        return unread
    try:
        return [*_compared(lake, snapshot, stream, publishes), *unread]
    except UNREADABLE as error:
        told = f"The rows of version {publishes[-1].version} of {stream.name}, or its log, cannot be read: "
        return [f"{told}{_error_text(error)}.", *unread]


def _unread(lake: Lake, snapshot: Reading, stream: Stream, after: int) -> list[str]:
    """Return the deltas that no version holds yet, where their rows cannot be read. Files that are gone are told by the
    metastore's own proof."""
    problems = []
    for delta in snapshot.deltas(stream.path, after, version=stream.version):
        try:
            read_log(stream.definition, lake.store, [delta])
        except UNREADABLE as error:
            if all(lake.store.head(file.path) for file in delta.files):
                problems.append(f"Position {delta.position} of {stream.name} cannot be read: {_error_text(error)}.")
    return problems


def _error_text(error: BaseException) -> str:
    return str(error).split(", /")[0][:200]


def _compared(lake: Lake, snapshot: Reading, stream: Stream, publishes: list[Published]) -> list[str]:
    newest = publishes[-1]
    version, manifest = head_of(snapshot, stream) or (newest.version, newest.manifest)
    held = PositionView(stream, newest.position, replace(newest, version=version, manifest=manifest), (), ())
    rows = base_rows(lake, held, narrowed(stream.definition, None))
    digest = rows_digest(rows)
    evolved = newest.schema_id != stream.definition.schema_id  # what was published is compared in the columns of now
    published = digest if evolved else newest.digest
    problems = []
    if rows.num_rows != newest.rows or digest != published:
        problems.append(f"The rows of version {version} of {stream.name} are not those that were published.")
    view = oldest_view(snapshot, stream, publishes)
    if view is None:
        return problems
    state = whole_state(lake, view, whole=True)
    if rows_digest(state.rows) != published:
        problems.append(
            f"The log of {stream.name} from position {view.start} on does not give version {newest.version}."
        )
    else:
        rules = narrowed(stream.definition, None)
        known = base_state(lake, held, rules, rows, None, True)
        if remembered_digest(rules, known) != remembered_digest(rules, state):
            problems.append(
                f"The tombstones or marks of version {newest.version} of {stream.name} are not those that its log "
                f"from position {view.start} on gives."
            )
    return problems


def oldest_view(snapshot: Reading, stream: Stream, publishes: list[Published]) -> PositionView | None:
    """Return the newest published position on the oldest base that the kept deltas reach from; None: none was kept.

    A state is folded across no change of the fold's rules: it begins at the last version that was made by others.
    """
    newest = publishes[-1]
    deltas = snapshot.deltas(stream.path, version=stream.version)
    older = [place for place, each in enumerate(publishes) if each.rules != VERSION]
    if older and older[-1] == len(publishes) - 1:
        return None
    bases = [None, *publishes[:-1]]
    for base in bases[older[-1] + 1 :] if older else bases:
        start = base.position if base is not None else 0
        after = [delta for delta in deltas if start < delta.position <= newest.position]
        whole = [delta.position for delta in after] == list(range(start + 1, newest.position + 1))
        if whole and is_base(start, newest.position, deltas):
            passed = tuple(each for each in publishes if each.position > start)
            return PositionView(stream, newest.position, base, tuple(counted(after)), tuple(after), passed)
    return None
