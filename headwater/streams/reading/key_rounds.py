"""The changes of many transactions in few folds: those of the first transaction of each key, of the second, and so on.

Keys do not depend on each other, so one fold takes a transaction of every key. A table of many small transactions needs
as many folds as its busiest key has transactions. Not where a transaction concerns more than the keys of its events: a
truncation, an undo, or a watermark that decides what is too late.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from headwater.streams.fold.events import Folded, Rules, State
from headwater.streams.fold.fold import apply, fold
from headwater.streams.log.log_files import Logged
from headwater.streams.reading.fresh_reads import same_rows
from headwater.streams.rows.row_keys import Codes, KeyIndex


@dataclass(frozen=True)
class Difference:
    """Two states compared: rows that came, rows that went, and pairs of those that changed."""

    inserted: pa.Table
    deleted: pa.Table
    before: pa.Table
    after: pa.Table


@dataclass(frozen=True)
class KeyRound:
    """Changes of one transaction of each key: the difference, the state of these keys after it, and the positions of
    the rows that came, of those that went, and of those that changed."""

    difference: Difference
    state: State
    positions: tuple[Codes, Codes, Codes]


def key_rounds(rules: Rules, state: State, log: Logged) -> Iterator[KeyRound]:
    """Fold a log without truncations and lateness into the state of its keys, one transaction of each key at a time."""
    index = KeyIndex([log.events.rows.column(name) for name in rules.keys])
    rounds = round_numbers(index.codes, log.positions)
    order = np.argsort(rounds, kind="stable")
    ends = np.cumsum(np.bincount(rounds))
    for start, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
        mine = order[start:end]
        at = np.zeros(index.count, np.int64)
        at[index.codes[mine]] = log.positions[mine]
        if 2 * len(mine) < state.rows.num_rows:  # few keys have so many transactions: the others are done
            state = _of_keys(rules, state, index, at > 0)
        folded = fold(rules, state, log.events.take(mine))
        found = difference_of(state, folded)
        state = apply(rules, state, folded)
        tables = (found.inserted, found.deleted, found.after)
        positions = [at[index.find([each.column(name) for name in rules.keys])] for each in tables]
        yield KeyRound(found, state, (positions[0], positions[1], positions[2]))


def round_numbers(codes: Codes, positions: Codes) -> Codes:
    """For each event, how many positions before its own have an event of its key. Pure."""
    order = np.lexsort((positions, codes))
    keys, places = codes[order], positions[order]
    is_first = np.ones(len(order), bool)
    is_first[1:] = keys[1:] != keys[:-1]
    is_next = is_first.copy()
    is_next[1:] |= places[1:] != places[:-1]
    counted = np.cumsum(is_next)
    starts = counted[is_first][np.cumsum(is_first) - 1]
    found = np.empty(len(order), np.int64)
    found[order] = counted - starts
    return found


def _of_keys(rules: Rules, state: State, index: KeyIndex, wanted: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> State:
    def own(rows: pa.Table) -> pa.Table:
        codes = index.find([rows.column(name) for name in rules.keys])
        return rows.take(np.flatnonzero((codes >= 0) & wanted[np.maximum(codes, 0)]))

    return replace(state, rows=own(state.rows), tombstones=own(state.tombstones))


def difference_of(state: State, folded: Folded) -> Difference:
    """The difference that a fold makes to its state."""
    known = np.flatnonzero(folded.replaces >= 0)
    before, after = state.rows.take(folded.replaces[known]), folded.rows.take(known)
    other = np.flatnonzero(~same_rows(before, after))
    new = folded.rows.take(np.flatnonzero(folded.replaces < 0))
    return Difference(new, state.rows.take(folded.gone), before.take(other), after.take(other))
