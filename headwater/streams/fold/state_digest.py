"""Marks, tombstones and lines of a state in one form. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headwater.streams.fold.events import Rules, State
from headwater.streams.fold.marks import Mask, no_marks
from headwater.streams.fold.watermark import line, measure
from headwater.streams.rows.hashing import digest_of, hash_rows
from headwater.streams.rows.row_keys import Codes, KeyIndex, ranks


def remembered_digest(rules: Rules, state: State) -> dict[str, int]:
    """Order-independent digests of the tombstones, and for each column of the cells that are not at the sequences of
    their rows. What a truncation or the watermark has settled counts as never written."""
    if not rules.keys or not rules.sequence:
        return {}
    marks, keys = state.marks or no_marks(rules), list(rules.keys)
    rows = state.rows.select(rules.tombstone.names)
    tables = [rows, marks.rows, state.tombstones, *(line.select(list(rules.sequence)) for line in state.lines.tables)]
    columns = [[chunk for table in tables for chunk in table.column(name).chunks] for name in rules.sequence]
    fields = [rules.schema.field(name).type for name in rules.sequence]
    order = ranks([pa.chunked_array(chunks, type=kind) for chunks, kind in zip(columns, fields, strict=True)])
    own, marked, dead, *lines = np.split(order, np.cumsum([table.num_rows for table in tables])[:-1])
    level = {id(table): int(rank[0]) for table, rank in zip(state.lines.tables, lines, strict=True)}
    floor = level.get(id(state.lines.truncation), -1)
    index = KeyIndex([rows.column(name) for name in keys])
    at = _found(index, marks.rows, keys)
    gone = np.flatnonzero(
        (_found(index, state.tombstones, keys) < 0) & (dead > floor) & _fresh(rules, state, state.tombstones)
    )
    last = state.tombstones.take(gone)
    last = last.take(KeyIndex([last.column(name) for name in keys]).places) if last.num_rows else last
    found = {"": _digest(last)}
    settled = marks.never | (marked <= floor) | ~_fresh(rules, state, marks.rows)
    for name in rules.cells:
        mine = np.flatnonzero(marks.cells.get(name, np.zeros(len(marks), bool)) & (at >= 0))
        limit, never = state.lines.unwritten.get(name), np.zeros(rows.num_rows, bool)
        if limit is not None:
            never = (own <= level[id(limit)]) & state.rows.column(name).is_null().to_numpy()
        never[at[mine]] = settled[mine] & (marks.never | (marked != own[at]))[mine]
        differing = mine[~settled[mine] & (marked[mine] != own[at[mine]])]
        found[name] = _digest(marks.rows.take(differing)) - _digest(rows.take(np.flatnonzero(never)).select(keys))
    return found


def _found(index: KeyIndex, table: pa.Table, keys: list[str]) -> Codes:
    """For each row of a table the row of the state that has its key; -1: none."""
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
    return digest_of(hash_rows(rows.columns, rows.num_rows)) if rows.num_rows else 0
