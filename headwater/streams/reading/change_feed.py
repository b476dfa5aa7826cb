"""The change feed: what each position changed, net, as whole rows.

Only keys that events touch are looked at: their rows as they were at the first position, then one fold for each
transaction. An undo is seen as what it is, a difference between two states.

A named reader gets every change at least once: its position moves over the changes it was handed only when the same
process comes back for more, or commits the position. The process remembers the range it was handed, so one that dies
gets it again. A delta stays for `log_retention` after the publish that covers it. A reader or a pinned position needs
every delta after the published version it is read from. Tombstones are in files of their own.

The changes of many transactions in few folds: those of the first transaction of each key, of the second, and so on.

Keys do not depend on each other, so one fold takes a transaction of every key. A table of many small transactions needs
as many folds as its busiest key has transactions. Not where a transaction concerns more than the keys of its events: a
truncation, an undo, or a watermark that decides what is too late.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa

from headwater.errors import InvalidInputError, TableNotFoundError
from headwater.metastore import Delta, Metastore, Reading, Transaction
from headwater.metastore.records.deltas import expired
from headwater.streams.definition import CHANGE_COLUMNS, Definition
from headwater.streams.fold.events import VERSION, BatchJudgement, Events, Folded, Rules, State, Truncations, empty
from headwater.streams.fold.fold import apply, fold
from headwater.streams.layout import DELTA, LANCE, READER, READERS
from headwater.streams.log.log_files import Logged, calls_of, read_log
from headwater.streams.log.stored_events import LogShard, narrowed
from headwater.streams.reading.fresh_reads import same_rows, state_of_keys, whole_state
from headwater.streams.reading.position_views import (
    PositionView,
    all_published,
    batch_lines,
    collected,
    lines_of,
    view_at,
)
from headwater.streams.rows.hashing import hash_rows
from headwater.streams.rows.row_keys import Codes, KeyIndex
from headwater.streams.serving.serving_copy import Lake
from headwater.streams.stream_lookup import Stream, open_in

INSERT, DELETE, BEFORE, AFTER = "insert", "delete", "update_preimage", "update_postimage"


@dataclass(frozen=True)
class TxnStep:
    """Changes of one transaction: its difference, the state of the touched keys after it, its last delta."""

    difference: Difference
    state: State
    delta: Delta

    @property
    def positions(self) -> tuple[int, int, int]:
        """The position of the rows that came, of those that went, and of those that changed."""
        return (self.delta.position,) * 3


def changes(
    lake: Lake, snapshot: Reading, stream: Stream, after: int, until: int | None, share: LogShard | None = None
) -> pa.Table:
    """Return the changes after a position, up to and including another; of a share of the keys if told."""
    walk = walked(lake, snapshot, stream, after, until, share)
    parts = [shown(stream.definition, step.difference, step.delta) for step in walk]
    return pa.concat_tables([_empty(stream.definition), *parts])


def walked(
    lake: Lake, snapshot: Reading, stream: Stream, after: int, until: int | None, share: LogShard | None = None
) -> Iterator[TxnStep]:
    """Return the changes of each transaction, one after another."""
    last = snapshot.last_position(stream.path, version=stream.version)
    end = last if until is None else until
    if type(after) is type(end) is int and end < after <= last:
        raise InvalidInputError(
            f"There are no changes of {stream.name} after {after} until {end}: it ends before it begins."
        )
    if not type(after) is type(end) is int or not 0 <= after <= end <= last:
        raise InvalidInputError(f"{stream.name} has changes after 0 up to {last}, not after {after!r} up to {until!r}.")
    start = view_at(snapshot, stream, after)
    view_at(snapshot, stream, end)
    deltas = [d for d in snapshot.deltas(stream.path, after, version=stream.version) if d.position <= end]
    if [delta.position for delta in deltas] != list(range(after + 1, end + 1)):
        raise collected(stream.name, after + 1)
    if not deltas:
        return iter(())
    if not stream.definition.keys:
        return _keyless(lake, snapshot, stream, start, deltas)
    return steps(lake, snapshot, stream, start, deltas, share)


def grouped(deltas: Sequence[Delta]) -> Iterator[list[Delta]]:
    """Yield the deltas of each transaction as a list."""
    for _, group in groupby(deltas, lambda delta: delta.txn):
        yield list(group)


def steps(
    lake: Lake,
    snapshot: Reading,
    stream: Stream,
    start: PositionView,
    deltas: Sequence[Delta],
    share: LogShard | None = None,
) -> Iterator[TxnStep]:
    """Yield the changes of a table with keys, one step a transaction. `deltas` follow `start`."""
    read = [*_voided(snapshot, stream, deltas), *deltas]
    log = read_log(stream.definition, lake.store, read, share=share)
    if len(log.events) or log.events.truncations is not None:
        yield from _steps(lake, snapshot, stream, start, deltas, share, read, log)


def rounds(
    lake: Lake,
    snapshot: Reading,
    stream: Stream,
    start: PositionView,
    deltas: Sequence[Delta],
    share: LogShard | None = None,
) -> Iterator[TxnStep] | Iterator[KeyRound]:
    """Yield the changes of `steps` in few rounds, for a caller that ignores the order of different keys."""
    read = [*_voided(snapshot, stream, deltas), *deltas]
    log = read_log(stream.definition, lake.store, read, share=share)
    if not len(log.events) and log.events.truncations is None:
        return iter(())
    rules = narrowed(stream.definition, None)
    older = any(each.rules != VERSION and each.position > start.position for each in all_published(snapshot, stream))
    voids = any("voids" in delta.properties for delta in deltas)
    if older or voids or log.events.truncations is not None or rules.lateness is not None:
        return _steps(lake, snapshot, stream, start, deltas, share, read, log)
    keys = log.events.rows.select(list(rules.keys))
    return key_rounds(rules, state_of_keys(lake, start, keys, share=share), log)


def _steps(
    lake: Lake,
    snapshot: Reading,
    stream: Stream,
    start: PositionView,
    deltas: Sequence[Delta],
    share: LogShard | None,
    read: Sequence[Delta],
    log: Logged,
) -> Iterator[TxnStep]:
    rules = narrowed(stream.definition, None)
    keys = log.events.rows.select(list(rules.keys))

    def state_at(view: PositionView) -> State:
        if log.events.truncations is None:
            return state_of_keys(lake, view, keys, share=share)
        found = whole_state(lake, view, whole=True)
        mine = (
            np.ones(found.rows.num_rows, bool)
            if share is None
            else share.of_keys(found.rows.select(rules.keys).columns)
        )
        return replace(found, rows=found.rows.filter(pa.array(mine)))

    state, judging = state_at(start), _Judging(lake, start, read)
    by_older_rules = {each.position for each in all_published(snapshot, stream) if each.rules != VERSION}
    for group in grouped(deltas):
        position = group[-1].position
        if position in by_older_rules or any("voids" in delta.properties for delta in group):
            view = view_at(snapshot, stream, position)
            after, judging = state_at(view), _Judging(lake, view, read)
            found = difference(rules, state.rows, after.rows)
        else:
            events, judged = judging.next(log, group)
            folded = fold(rules, state, events, judged)
            after, found = apply(rules, state, folded), difference_of(state, folded)
        yield TxnStep(found, after, group[-1])
        state = after


def _keyless(
    lake: Lake, snapshot: Reading, stream: Stream, start: PositionView, deltas: Sequence[Delta]
) -> Iterator[TxnStep]:
    rules = narrowed(stream.definition, None)
    log = read_log(stream.definition, lake.store, deltas)
    nothing = rules.schema.empty_table()
    judging = _Judging(lake, start, deltas)
    for group in grouped(deltas):
        position = group[-1].position
        if any("voids" in delta.properties for delta in group):
            before = whole_state(lake, view_at(snapshot, stream, group[0].position - 1))
            view = view_at(snapshot, stream, position)
            after, judging = whole_state(lake, view), _Judging(lake, view, deltas)
            yield TxnStep(Difference(*_multiset(before.rows, after.rows), nothing, nothing), after, group[-1])
            continue
        folded = fold(rules, empty(rules), *judging.next(log, group))
        yield TxnStep(Difference(folded.rows, nothing, nothing, nothing), empty(rules), group[-1])


class _Judging:
    """The events of one transaction after another that follow a view, with the lines of their batches."""

    def __init__(self, lake: Lake, view: PositionView, deltas: Sequence[Delta]) -> None:
        self._lake, self._definition = lake, view.stream.definition
        found = lines_of(lake.store, view)
        self._watermark = None if found is None else found.watermark
        calls = zip(deltas, calls_of(deltas), strict=True)
        self._batch = {delta.position: call.batch for delta, call in calls}

    def next(self, log: Logged, group: Sequence[Delta]) -> tuple[Events, BatchJudgement | None]:
        position, first = group[-1].position, min(self._batch[delta.position] for delta in group)
        mine, cut = np.flatnonzero(log.positions == position), log.events.truncations
        events, judged = log.events.take(mine), None
        own = np.flatnonzero(log.truncated == position)
        if cut is not None and len(own):
            places = cut.places[own] - int((log.positions < position).sum())
            cuts = Truncations(cut.rows.take(own), places, cut.batches[own] - first)
            events = replace(events, truncations=cuts)
        if self._definition.rules.lateness is not None:
            lines = batch_lines(self._lake.store, self._definition, self._watermark, group)
            self._watermark, judged = lines.watermark, lines.judged(log.batches[mine] - first)
        return events, judged


def _voided(snapshot: Reading, stream: Stream, deltas: Sequence[Delta]) -> list[Delta]:
    """Deltas before these that one of them voids: their keys change too."""
    wanted = {position for delta in deltas for position in delta.properties.get("voids", ())}
    earlier = {position for position in wanted if position < deltas[0].position}
    if not earlier:
        return []
    found = snapshot.deltas(stream.path, min(earlier) - 1, version=stream.version)
    return [delta for delta in found if delta.position < deltas[0].position]


def difference(rules: Rules, old: pa.Table, new: pa.Table) -> Difference:
    """Return two sets of rows compared by key."""
    index = KeyIndex([_joined(old, new, name) for name in rules.keys])
    place = np.full(index.count, -1, np.int64)
    place[index.codes[: old.num_rows]] = np.arange(old.num_rows)
    replaces = place[index.codes[old.num_rows :]]
    known = np.flatnonzero(replaces >= 0)
    before, after = old.take(replaces[known]), new.take(known)
    other = np.flatnonzero(~same_rows(before, after))
    gone = np.ones(old.num_rows, bool)
    gone[replaces[known]] = False
    return Difference(
        new.take(np.flatnonzero(replaces < 0)), old.take(np.flatnonzero(gone)), before.take(other), after.take(other)
    )


def _joined(old: pa.Table, new: pa.Table, name: str) -> object:
    chunks = [*old.column(name).chunks, *new.column(name).chunks]
    return pa.chunked_array(chunks, type=old.schema.field(name).type)


def _multiset(old: pa.Table, new: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return rows of the new table that the old one has not, and the other way round, counting equal ones."""
    first, second = hash_rows(old.columns, old.num_rows), hash_rows(new.columns, new.num_rows)
    return new.take(_surplus(second, first)), old.take(_surplus(first, second))


def _surplus(some: Any, others: Any) -> Codes:
    left: dict[int, int] = {}
    for value in others.tolist():
        left[value] = left.get(value, 0) + 1
    found = []
    for place, value in enumerate(some.tolist()):
        if left.get(value, 0):
            left[value] -= 1
        else:
            found.append(place)
    return np.array(found, np.int64)


def _schema(definition: Definition) -> pa.Schema:
    kinds = pa.string(), pa.int64(), pa.timestamp("us", "UTC")
    extra = (pa.field(name, kind) for name, kind in zip(CHANGE_COLUMNS, kinds, strict=True))
    return pa.schema([*definition.schema, *extra])


def _empty(definition: Definition) -> pa.Table:
    return _schema(definition).empty_table()


def shown(definition: Definition, found: Difference, delta: Delta) -> pa.Table:
    parts = [_empty(definition)]
    for rows, kind in ((found.deleted, DELETE), (found.before, BEFORE), (found.after, AFTER), (found.inserted, INSERT)):
        size = rows.num_rows
        marks: list[Any] = [
            pa.array([kind] * size, pa.string()),
            pa.array(np.full(size, delta.position)),
            pa.array(np.full(size, delta.time_ms * 1000), pa.timestamp("us", "UTC")),
        ]
        parts.append(pa.Table.from_arrays([*rows.columns, *marks], schema=_schema(definition)))
    return pa.concat_tables(parts)


Holder = Metastore | Transaction
"""Where a reader reads: a catalog, or an open transaction, whose positions are nobody else's."""
HANDED: WeakKeyDictionary[Holder, dict[tuple[str, str], int]] = WeakKeyDictionary()
"""Up to where a reader (table version by its id, name) was handed changes by this process."""


def hand_out(holder: Holder, stream: Stream, name: str, position: int) -> None:
    HANDED.setdefault(holder, {})[stream.id, name] = position


def handed(holder: Holder, stream: Stream, name: str) -> int | None:
    """Return the position up to which this process handed out changes that are not known to be read."""
    return HANDED.get(holder, {}).get((stream.id, name))


def forget(holder: Holder, stream: Stream, name: str) -> None:
    HANDED.get(holder, {}).pop((stream.id, name), None)


def readers(snapshot: Reading, stream: Stream) -> dict[str, int]:
    """Return the position of each reader."""
    try:
        found = snapshot.get_stream(stream.path, READERS, version=stream.version).properties
    except TableNotFoundError:
        return {}
    return {name: int(position) for name, position in found.items()}


def set_reader(tx: Transaction, stream: Stream, name: str, position: int) -> bool:
    """Note how far a reader has read; False: the name is another table's by now, which it has not read.

    TableVersionNotFound (11) for a new one, or one that goes back, if what it would read next was collected.
    """
    if open_in(tx, stream.path).id != stream.id:
        return False
    known = readers(tx, stream)
    if known.get(name, position + 1) > position:
        _need_changes(tx, stream, position)
    if known.get(name) != position:
        _write(tx, stream, {**known, name: position})
    return True


def _need_changes(tx: Transaction, stream: Stream, after: int) -> None:
    """Make sure that the log has all changes after a position, also when the transaction commits."""
    with tx.unbound_logs(stream.path):
        last = tx.last_position(stream.path, version=stream.version)
        kept = [delta.position for delta in tx.deltas(stream.path, after, version=stream.version)]
    if after >= last:
        return
    if kept[:1] != [after + 1]:
        raise collected(stream.name, after + 1)
    tx.depend_on_delta(stream.path, after + 1, format=DELTA, version=stream.version)


def drop_reader(tx: Transaction, stream: Stream, name: str) -> None:
    known = readers(tx, stream)
    if name not in known:
        names = ", ".join(sorted(known)) or "none"
        raise InvalidInputError(f"{stream.name} has no reader {name!r}; its readers: {names}.")
    _write(tx, stream, {other: position for other, position in known.items() if other != name})


def _write(tx: Transaction, stream: Stream, positions: dict[str, int]) -> None:
    try:
        tx.get_stream(stream.path, READERS, version=stream.version)
    except TableNotFoundError:
        tx.create_stream(stream.path, READER, stream.version, READERS)
    tx.update_stream(stream.path, READERS, positions, version=stream.version)


def collectable(snapshot: Reading, stream: Stream, now_ms: int, pins: Sequence[int] = ()) -> list[int]:
    """Return the positions of deltas that may be dropped: always all up to some publish."""
    versions = snapshot.deltas(stream.path, format=LANCE, version=stream.version)
    deltas = snapshot.deltas(stream.path, version=stream.version)
    kept_ms = int(stream.definition.log_retention.total_seconds() * 1000)
    return expired(versions, deltas, now_ms - kept_ms, (*readers(snapshot, stream).values(), *pins))


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
    """Return for each event the number of earlier positions with an event of its key. Pure."""
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
    """Return the difference that a fold makes to its state."""
    known = np.flatnonzero(folded.replaces >= 0)
    before, after = state.rows.take(folded.replaces[known]), folded.rows.take(known)
    other = np.flatnonzero(~same_rows(before, after))
    new = folded.rows.take(np.flatnonzero(folded.replaces < 0))
    return Difference(new, state.rows.take(folded.gone), before.take(other), after.take(other))
