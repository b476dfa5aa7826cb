"""Files of the change log: events as Parquet, sorted by bucket, key, sequence and arrival; and read back as events.

Columns carry their field ids, so a file is read under any later schema: a renamed column is found, a dropped one is
left out, an added one is missing, a widened one is cast. A column that every row is missing is not in the file, one
that some are missing has a column of truth values beside it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.imports import pc
from headwater.metastore import Delta
from headwater.metastore.records.serving_copy import FILLED
from headwater.store import Store
from headwater.streams.definition import Definition, with_id
from headwater.streams.fold.events import (
    BatchJudgement,
    Events,
    Truncations,
    Watermark,
    concat,
    decode_sequences,
    encoded,
    high_of,
    is_measured,
)
from headwater.streams.layout import BATCH, DELETES, HIGH, KIND, PRESENT, READS, ROW, TRUNCATES, UPSERTS
from headwater.streams.log.stored_events import (
    LARGEST,
    ROW_GROUP,
    LogShard,
    alike,
    as_stored,
    by_dictionary,
    encode,
    events_of,
    narrowed,
    stored,
)
from headwater.streams.rows.hashing import buckets_of, hash_rows
from headwater.streams.rows.row_keys import Codes, order_of

LEAST_GROUP = 1 << 12
BUCKET_ROWS = 1 << 20
LOOKED_THROUGH = 16
"""A task looks through this many keys of a base in the time that it takes to fold one event."""
MAX_RANGE_TEXT = 64
SMALL = 10_000
"""Rows of a batch, of several, from which on they are put in order one by one."""
KIND_AND_ROW = [pa.field(KIND, pa.int8(), nullable=False), pa.field(ROW, pa.int64(), nullable=False)]


@dataclass(frozen=True)
class LogFile:
    """A file of changes, ready to be put: its bytes, and what the delta that names it says of it."""

    data: bytes
    rows: int
    properties: dict[str, Any]
    columns: pa.Table | None = None
    """The rows of the file, if it is small."""


def encode_events(definition: Definition, events: Events, numbers: Codes, buckets: int) -> LogFile:
    """Return the events as one file. `numbers` are their rows' numbers in the batch."""
    order, parts = _order(definition, events, buckets)
    places = None if (order == np.arange(len(order))).all() else pa.array(order)  # None: as the rows stand
    needed = (*definition.keys, *definition.sequence)
    columns: list[Any] = []
    fields: list[Any] = []
    filled: list[int] = []
    upserts = ~events.deletes
    for column in definition.columns:
        present = events.present.get(column.name)
        mask = upserts if present is None else present & upserts
        if column.name not in needed and not mask.any():
            continue  # missing everywhere: a delete needs no more than key and sequence
        values = by_dictionary(events.rows.column(column.name))
        values = as_stored(values if places is None else values.take(places))
        columns.append(values)
        fields.append(_field(column.name, values.type, column.id))
        filled.append(column.id)
        if present is not None and (mask | events.deletes).sum() < len(events):
            columns.append(pa.array(mask[order]))
            fields.append(pa.field(f"{PRESENT}{column.id}", pa.bool_(), nullable=False))
    kinds = np.where(events.deletes, DELETES, UPSERTS) + (0 if events.reads is None else READS * events.reads)
    columns += [pa.array(kinds[order].astype(np.int8)), pa.array(numbers[order])]
    fields += KIND_AND_ROW
    table = pa.Table.from_arrays(columns, schema=pa.schema(fields))
    properties = {
        "schema": definition.schema_id,
        "buckets": buckets,
        "bucket_map": parts,
        "deletes": int(events.deletes.sum()),
        FILLED: filled,
        **_ranges(definition, events),
        **highest_of(definition, events.rows),
    }
    kept = table if table.nbytes <= LARGEST else None
    return LogFile(encode(table, [rows for _, rows in parts], ROW_GROUP), len(events), properties, kept)


@lru_cache(1024)
def _field(name: str, kind: pa.DataType, id: int) -> object:
    """Return the field of a column in files of the log."""
    return with_id(pa.field(name, kind), id)


def highest_of(definition: Definition, rows: pa.Table) -> dict[str, object]:
    """Return the highest first sequence value of a delta's events, where lateness could be measured by it."""
    if not definition.sequence or not rows.num_rows or not is_measured(rows.column(definition.sequence[0]).type):
        return {}
    return {HIGH: encoded(high_of(rows.column(definition.sequence[0])))}


def bucket_count(rows: int, landed: int) -> int:
    """Return a power of two: about a million rows of the table in each, and of a batch of so many no fewer than are
    worth a row group of their own."""
    count = 1
    while count * BUCKET_ROWS < rows and 2 * count * LEAST_GROUP <= landed:
        count *= 2
    return count


def least_events(base: int) -> int:
    """Return the events that a task should fold at least, as it looks through the keys of a base of so many rows.

    A bucket of events is enough however large the base is: the task holds them in memory.
    """
    return min(base // LOOKED_THROUGH, BUCKET_ROWS)


def divides(landed: int) -> bool:
    """Return True if a batch of so many rows has several buckets where its table is large enough."""
    return landed >= 2 * LEAST_GROUP


def _order(definition: Definition, events: Events, buckets: int) -> tuple[Codes, list[list[int]]]:
    """Return the order of the rows in the file, and how many are in each bucket: [bucket, rows]."""
    if not definition.keys:
        return np.arange(len(events)), [[0, len(events)]]
    keys = [events.rows.column(name) for name in definition.keys]
    columns = [*keys, *(events.rows.column(name) for name in definition.sequence)]
    if buckets == 1:
        return order_of(columns), [[0, len(events)]]
    of = buckets_of(hash_rows(keys, len(events)), buckets)
    counts = np.bincount(of)
    return order_of(columns, of), [[int(bucket), int(counts[bucket])] for bucket in np.flatnonzero(counts)]


def _ranges(definition: Definition, events: Events) -> dict[str, object]:
    """Return the lowest and highest first key, where it is a number or a short text."""
    if not definition.keys or not len(events):
        return {}
    column = events.rows.column(definition.keys[0])
    if not (pa.types.is_integer(column.type) or pa.types.is_string(column.type)):
        return {}
    limits: Any = pc.min_max(column)
    low, high = limits["min"].as_py(), limits["max"].as_py()
    texts = isinstance(low, str)
    fits = max(len(low), len(high)) <= MAX_RANGE_TEXT if texts else low >= -(2**63) and high < 2**63
    return {"key_range": [low, high]} if fits else {}


@dataclass(frozen=True)
class Logged:
    """Events of the log in order of arrival, and for each the position it can be read at and the delta it is of.

    `numbers` are their rows' numbers in their batches. `judged` says which batch each event is of, and the lines of
    those, where there is a lateness.
    """

    events: Events
    positions: Codes
    deltas: Codes
    numbers: Codes
    judged: BatchJudgement | None = None
    truncated: Codes = dataclasses.field(default_factory=lambda: np.empty(0, np.int64))
    """For each truncation the position it can be read at."""
    batches: Codes = dataclasses.field(default_factory=lambda: np.empty(0, np.int64))
    """For each event the number of its batch, as `calls_of` gives it."""


def read_log(
    definition: Definition,
    store: Store,
    deltas: Sequence[Delta],
    columns: Sequence[str] | None = None,
    for_state: bool = False,
    share: LogShard | None = None,
    lines: BatchLines | None = None,
) -> Logged:
    """Return the events of deltas, under the present schema. `columns`: those wanted beside key and sequence.

    `for_state`: only the state is asked for, so events of one file that are all of different keys may stay as they are.
    `share`: only the events of a share of the log. `lines`: those of the batches, where the table has a lateness.
    """
    rules = narrowed(definition, columns)
    calls = calls_of(deltas)
    tables: list[pa.Table] = []
    of: list[tuple[int, int, int]] = []
    for number, (delta, position) in enumerate(zip(deltas, readable_positions(deltas), strict=True)):
        for file in delta.files:
            chosen = None if share is None else (share, delta.properties)
            tables.append(stored(definition, rules, store, file, chosen))
            of.append((position, calls[number].call, number))
    cut = any(TRUNCATES in delta.properties for delta in deltas)
    parts = [events_of(definition, rules, same) for same in alike(tables)]
    events = concat(rules, [part for part, _ in parts])
    if not tables and not cut:
        nothing = np.empty(0, np.int64)
        return Logged(events, nothing, nothing, nothing, None if lines is None else lines.judged(nothing))
    sizes = [table.num_rows for table in tables]
    positions, of_call, numbers = (np.repeat(column, sizes) for column in np.array(of, np.int64).reshape(-1, 3).T)
    rows = np.concatenate([np.empty(0, np.int64), *(rows for _, rows in parts)])
    plain = rules.lateness is None and not cut
    if for_state and len(tables) == 1 and plain and _are_distinct(events.rows, rules.keys):
        return Logged(events, positions, numbers, rows)
    order = _arrival(positions, of_call, rows)
    batches = np.array([0, *(each.batch for each in calls)], np.int64)[numbers[order] + 1]
    found, truncated = events.take(order), np.empty(0, np.int64)
    if cut:
        known = positions[order], of_call[order], rows[order]
        truncations, truncated = _truncations(definition, deltas, calls, known)
        found = replace(found, truncations=truncations)
    judged = None if lines is None else lines.judged(batches)
    return Logged(found, positions[order], numbers[order], rows[order], judged, truncated, batches)


@dataclass(frozen=True)
class LandingCall:
    """The landing call that a delta is of: where it can be read, its number there, and that of its batch in a list."""

    position: int
    call: int
    batch: int


def calls_of(deltas: Sequence[Delta]) -> list[LandingCall]:
    """Return the call of each delta. Batches are numbered from 0 on, in the order of arrival."""
    found = []
    for delta, position in zip(deltas, readable_positions(deltas), strict=True):
        call = int(delta.properties.get("call", 0))
        found.append((position, call, (position, int(delta.properties.get(BATCH, call)))))
    numbers = {batch: number for number, batch in enumerate(sorted({batch for _, _, batch in found}))}
    return [LandingCall(position, call, numbers[batch]) for position, call, batch in found]


@dataclass(frozen=True)
class BatchLines:
    """The line of each batch of some deltas, as `calls_of` numbers them, and the watermark after all."""

    lines: tuple[Any, ...]
    watermark: Watermark

    def judged(self, batches: Codes) -> BatchJudgement:
        return BatchJudgement(self.lines or (None,), batches, self.watermark)


def _truncations(
    definition: Definition, deltas: Sequence[Delta], calls: Sequence[LandingCall], known: tuple[Codes, Codes, Codes]
) -> tuple[Truncations, Codes]:
    """Return the truncations of deltas and their positions, by the positions, calls and numbers of the events."""
    found = []
    for delta, of in zip(deltas, calls, strict=True):
        if TRUNCATES in delta.properties:
            rows, numbers = decode_sequences(definition, delta.properties[TRUNCATES])
            found += [(of.position, of.call, number, of.batch, rows.slice(at, 1)) for at, number in enumerate(numbers)]
    found.sort(key=lambda each: each[:3])
    positions, called, rows_ = known
    places = []
    for position, call, number, *_ in found:
        earlier = (positions == position) & ((called < call) | ((called == call) & (rows_ < number)))
        places.append(int(((positions < position) | earlier).sum()))
    batches = np.array([each[3] for each in found], np.int64)
    made = Truncations(pa.concat_tables([each[4] for each in found]), np.array(places, np.int64), batches)
    return made, np.array([each[0] for each in found], np.int64)


def _are_distinct(rows: pa.Table, keys: Sequence[str]) -> bool:
    """Return True if no two rows of a file have one key: they would be side by side."""
    differs = np.zeros(max(rows.num_rows - 1, 0), bool)
    for name in keys:
        column = rows.column(name)
        differs |= pc.not_equal(column.slice(1), column.slice(0, len(differs))).to_numpy()
    return bool(keys) and bool(differs.all())


def _arrival(positions: Codes, calls: Codes, numbers: Codes) -> Codes:
    """Return the order of arrival of the events of files, by their positions, their calls and their rows' numbers.

    Files of one call share its rows' numbers; others come one after the other.
    """
    if not len(numbers):
        return np.empty(0, np.int64)
    ends = np.flatnonzero((positions[1:] != positions[:-1]) | (calls[1:] != calls[:-1])) + 1
    if len(numbers) < SMALL * len(ends):  # many small batches
        return np.lexsort((numbers, calls, positions))
    batches: dict[tuple[int, int], list[Codes]] = {}
    for start, end in pairwise((0, *ends.tolist(), len(numbers))):
        batches.setdefault((int(positions[start]), int(calls[start])), []).append(np.arange(start, end))
    found = [np.concatenate(batches[key]) for key in sorted(batches)]
    return np.concatenate([places[_sorted(numbers[places])] for places in found])


def _sorted(numbers: Codes) -> Codes:
    """Return the order of distinct numbers; of those without a gap, as a whole batch has them, without sorting."""
    if len(numbers) and int(numbers.min()) == 0 and int(numbers.max()) == len(numbers) - 1:
        order = np.empty(len(numbers), np.int64)
        order[numbers] = np.arange(len(numbers))
        return order
    return np.argsort(numbers, kind="stable")


def readable_positions(deltas: Sequence[Delta]) -> list[int]:
    """Return for each delta the last position of its transaction, the only one that can be read."""
    found: list[int] = []
    last, txn = 0, ""
    for delta in reversed(deltas):
        if delta.txn != txn:
            last, txn = delta.position, delta.txn
        found.append(last)
    return found[::-1]
