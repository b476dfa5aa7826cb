"""Files of the change log: events as Parquet, sorted by bucket, key, sequence and arrival; and read back as events.

Columns carry their field ids, so a file is read under any later schema: a renamed column is found, a dropped one is
left out, an added one is missing, a widened one is cast. A column that every row is missing is not in the file, one
that some are missing has a column of truth values beside it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from headwater.errors import CorruptFileError
from headwater.imports import pc
from headwater.metastore import DataFile, Delta
from headwater.metastore.records.serving_copy import FILLED
from headwater.store import KeyNotFoundError, RangedFile, Store
from headwater.streams.definition import Definition, field_id, with_id
from headwater.streams.fold.events import Events, Rules, Truncations, concat, decode_sequences
from headwater.streams.fold.watermark import BatchJudgement, Watermark, encoded, high_of, is_measured
from headwater.streams.layout import BATCH, DELETES, HIGH, KIND, PRESENT, READS, ROW, TRUNCATES, UPSERTS
from headwater.streams.log.parquet_encoding import as_stored, by_dictionary, encode, in_type
from headwater.streams.rows.hashing import buckets_of, hash_rows
from headwater.streams.rows.row_keys import Codes, order_of

ROW_GROUP = 1 << 17
LEAST_GROUP = 1 << 12
BUCKET_ROWS = 1 << 20
LOOKED_THROUGH = 16
"""A task looks through this many keys of a base in the time that it takes to fold one event."""
MAX_RANGE_TEXT = 64
SMALL = 10_000
KIND_AND_ROW = [pa.field(KIND, pa.int8(), nullable=False), pa.field(ROW, pa.int64(), nullable=False)]
LARGE = 1 << 20
"""Of a file with more bytes than this, on an object store, the parts that are needed are sent for one by one."""


@dataclass(frozen=True)
class Share:
    """One of so many equal shares of a log, a power of two: of the keys by their buckets, else of the rows."""

    number: int
    count: int

    def of_keys(self, keys: Sequence[Any]) -> npt.NDArray[np.bool_]:
        """Return a mask of the keys in this share."""
        mine: npt.NDArray[np.bool_] = buckets_of(hash_rows(keys, len(keys[0])), self.count) == self.number
        return mine

    def of_numbers(self, numbers: Any) -> npt.NDArray[np.bool_]:
        """Return a mask of the rows of a batch in this share, by their numbers."""
        found = numbers if isinstance(numbers, np.ndarray) else numbers.to_numpy()
        mine: npt.NDArray[np.bool_] = (found // ROW_GROUP) % self.count == self.number
        return mine


@dataclass(frozen=True)
class LogFile:
    """A file of changes, ready to be put: its bytes, and what the delta that names it says of it."""

    data: bytes
    rows: int
    properties: dict[str, Any]


def encode_events(definition: Definition, events: Events, numbers: Codes, buckets: int) -> LogFile:
    """The events as one file. `numbers` are their rows' numbers in the batch."""
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
    return LogFile(encode(table, [rows for _, rows in parts], ROW_GROUP), len(events), properties)


@lru_cache(1024)
def _field(name: str, kind: pa.DataType, id: int) -> object:
    """Return the field of a column in files of the log."""
    return with_id(pa.field(name, kind), id)


def highest_of(definition: Definition, rows: pa.Table) -> dict[str, object]:
    """The highest first sequence value of a delta's events, where lateness could be measured by it."""
    if not definition.sequence or not rows.num_rows or not is_measured(rows.column(definition.sequence[0]).type):
        return {}
    return {HIGH: encoded(high_of(rows.column(definition.sequence[0])))}


def bucket_count(rows: int, landed: int) -> int:
    """A power of two: about a million rows of the table in each, and of a batch of so many no fewer than are worth a
    row group of their own."""
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
    """The order of the rows in the file, and how many are in each bucket: [bucket, rows]."""
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
    """The lowest and highest first key, where it is a number or a short text."""
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
    share: Share | None = None,
    lines: BatchLines | None = None,
) -> Logged:
    """The events of deltas, under the present schema. `columns`: those wanted beside key and sequence.

    `for_state`: only the state is asked for, so events of one file that are all of different keys may stay as they are.
    `share`: only the events of a share of the log. `lines`: those of the batches, where the table has a lateness.
    """
    rules = narrowed(definition, columns)
    calls = calls_of(deltas)
    parts: list[Events] = []
    places: list[tuple[Codes, Codes, Codes, Codes]] = []
    for number, (delta, position) in enumerate(zip(deltas, readable_positions(deltas), strict=True)):
        for file in delta.files:
            chosen = None if share is None else (share, delta.properties)
            events, rows = read_file(definition, rules, read_bytes(store, file, chosen is None), file.path, chosen)
            size = len(events)
            parts.append(events)
            places.append((np.full(size, position), np.full(size, calls[number].call), rows, np.full(size, number)))
    events = concat(rules, parts)
    cut = any(TRUNCATES in delta.properties for delta in deltas)
    if not places and not cut:
        nothing = np.empty(0, np.int64)
        return Logged(events, nothing, nothing, nothing, None if lines is None else lines.judged(nothing))
    none = (np.empty(0, np.int64),) * 4
    positions, of_call, rows, numbers = (np.concatenate(column) for column in zip(none, *places, strict=True))
    plain = rules.lateness is None and not cut
    if for_state and len(places) == 1 and plain and _are_distinct(events.rows, rules.keys):
        return Logged(events, positions, numbers, rows)
    order = _arrival([(int(at[0]), int(call[0]), of) for at, call, of, _ in places if len(of)])
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
    """For each delta its call. Batches are numbered from 0 on, in the order of arrival."""
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
    """The truncations of deltas among events, of which positions, calls and numbers are known; their positions."""
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


def _arrival(files: Sequence[tuple[int, int, Codes]]) -> Codes:
    """The order of arrival of the events of files, each with its position, its call and its rows' numbers.

    Files of one call share its rows' numbers; others come one after the other.
    """
    starts = np.cumsum([0, *(len(numbers) for _, _, numbers in files)])
    calls: dict[tuple[int, int], list[int]] = {}
    for index, (position, call, _) in enumerate(files):
        calls.setdefault((position, call), []).append(index)
    found = [np.empty(0, np.int64)]
    for key in sorted(calls):
        of = calls[key]
        places = np.concatenate([np.arange(starts[index], starts[index + 1]) for index in of])
        found.append(places[_sorted(np.concatenate([files[index][2] for index in of]))])
    return np.concatenate(found)


def _sorted(numbers: Codes) -> Codes:
    """The order of distinct numbers; of those without a gap, as a whole batch has them, without sorting."""
    if len(numbers) and int(numbers.min()) == 0 and int(numbers.max()) == len(numbers) - 1:
        order = np.empty(len(numbers), np.int64)
        order[numbers] = np.arange(len(numbers))
        return order
    return np.argsort(numbers, kind="stable")


def readable_positions(deltas: Sequence[Delta]) -> list[int]:
    """For each delta the last position of its transaction: only there can it be read."""
    found: list[int] = []
    last, txn = 0, ""
    for delta in reversed(deltas):
        if delta.txn != txn:
            last, txn = delta.position, delta.txn
        found.append(last)
    return found[::-1]


def narrowed(definition: Definition, columns: Sequence[str] | None) -> Rules:
    """The rules over some columns, and those the fold needs; one at least. Every column may be NULL there."""
    needed = {*definition.keys, *definition.sequence, *(definition.schema.names if columns is None else columns)}
    needed = needed or {definition.columns[0].name}
    fields = [pa.field(column.name, column.type) for column in definition.columns if column.name in needed]
    return Rules(pa.schema(fields), definition.keys, definition.sequence, definition.rules.lateness)


def read_bytes(store: Store, file: DataFile, whole: bool = True) -> Any:
    """A file where it can be read from: its path on a local store, else its bytes, all at once or as they are asked
    for: of a large one that is not needed whole."""
    folder, read = store.abilities.path, store.abilities.read
    if folder is not None:
        return f"{folder}/{file.path}"
    if read is not None and not whole and file.bytes > LARGE:
        return RangedFile(read, file.path, file.bytes)
    try:
        return pa.BufferReader(store.get(file.path))
    except KeyNotFoundError:
        raise CorruptFileError(file.path, "a file of the change log is missing") from None


def read_file(
    definition: Definition,
    rules: Rules,
    source: Any,
    key: str,
    chosen: tuple[Share, Mapping[str, object]] | None = None,
) -> tuple[Events, Codes]:
    """One file's events in the order they are in it, and their rows' numbers; with `chosen` those of a share only."""
    ids = {column.name: column.id for column in definition.columns}
    try:
        file = pq.ParquetFile(source)
        names = {id: field.name for field in file.schema_arrow if (id := field_id(field)) is not None}
        stored = set(file.schema_arrow.names)
        wanted = [names[id] for field in rules.schema if (id := ids[field.name]) in names]
        marks = [mark for field in rules.schema if (mark := f"{PRESENT}{ids[field.name]}") in stored]
        columns = [*wanted, *marks, KIND, ROW]
        if chosen is None:
            table = file.read(columns, use_threads=file.metadata.num_rows > SMALL)
        else:
            keys = [names[ids[name]] for name in definition.keys]
            table = _share_of(file, columns, keys, *chosen)
    except (FileNotFoundError, KeyNotFoundError):
        raise CorruptFileError(key, "a file of the change log is missing") from None
    except (OSError, pa.ArrowInvalid) as error:
        raise CorruptFileError(key, f"it cannot be read as Parquet ({error})") from None
    found: list[Any] = []
    present: dict[str, npt.NDArray[np.bool_]] = {}
    for field in rules.schema:
        name = names.get(ids[field.name])
        if name is None:
            found.append(pa.nulls(table.num_rows, field.type))
            present[field.name] = np.zeros(table.num_rows, bool)
            continue
        column: Any = table.column(name)
        found.append(column if column.type == field.type else in_type(column, field.type))
        mark = f"{PRESENT}{ids[field.name]}"
        if mark in stored:
            present[field.name] = table.column(mark).to_numpy()
    rows = pa.Table.from_arrays(found, schema=rules.schema)
    kinds = table.column(KIND).to_numpy()
    reads = kinds >= READS
    events = Events(rows, kinds % READS == DELETES, present, reads if reads.any() else None)
    return events, table.column(ROW).to_numpy()


def _share_of(
    file: pq.ParquetFile, columns: list[str], keys: list[str], share: Share, known: Mapping[str, object]
) -> pa.Table:
    """The rows of a share, row group after row group, and only of those that can hold any."""
    parts = [file.schema_arrow.empty_table().select(columns)]
    for group in row_groups_of(file.metadata, known, share) if keys else range(file.num_row_groups):
        table = file.read_row_group(group, columns)
        mine = share.of_keys([table.column(name) for name in keys]) if keys else share.of_numbers(table.column(ROW))
        parts.append(table if mine.all() else table.filter(pa.array(mine)))
    return pa.concat_tables(parts)


def row_groups_of(metadata: Any, known: Mapping[str, Any], share: Share) -> list[int]:
    """The row groups of a file that can hold events of a share, by the bucket map of its delta. Pure."""
    buckets = int(known.get("buckets", 1))
    of: list[int] = []
    for bucket, rows in known.get("bucket_map", ()):
        of += [bucket] * -(-rows // ROW_GROUP)
    if len(of) != metadata.num_row_groups:
        return list(range(metadata.num_row_groups))
    fine = max(buckets, share.count)
    wide, own = fine // buckets, fine // share.count
    first, end = share.number * own, (share.number + 1) * own
    return [group for group, bucket in enumerate(of) if bucket * wide < end and first < (bucket + 1) * wide]
