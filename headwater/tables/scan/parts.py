"""Parts of a scan: a tagged union that a driver plans and sends as JSON, and that the task which reads it decodes.

A task may also get the keys of a join (`Keys`), to drop other rows before it sends them. The join tests the rows
again, so the filter may keep too many rows, never too few.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from headwater.imports import pc


class ScanTask(msgspec.Struct, frozen=True, tag_field="kind", omit_defaults=True, forbid_unknown_fields=True):
    """A part of a scan, of a stream's batch or of a range of changes, which one task reads."""


class WholeTable(ScanTask, frozen=True, tag="whole"):
    """The whole table, for a search or a filter that an index answers."""


class Fragments(ScanTask, frozen=True, tag="fragments"):
    """Some fragments of a table.

    `version`: the version to read, for a part of a stream. `filter`: selects the rows of a gap.
    `key`: the partition of all rows of the part.
    """

    fragments: tuple[int, ...]
    version: int | None = None
    filter: str | None = None
    key: tuple[int | str | None, ...] | None = None


class Slice(ScanTask, frozen=True, tag="slice"):
    """A range of rows of one large fragment."""

    fragments: tuple[int]
    offset: int
    limit: int


class Rows(ScanTask, frozen=True, tag="rows"):
    """Rows that an index found, by their ids: 8 bytes each, little endian, in base64."""

    rows: str
    count: int

    @staticmethod
    def of(ids: Any) -> Rows:
        packed = np.ascontiguousarray(ids, dtype="<u8").tobytes()
        return Rows(base64.b64encode(packed).decode(), len(ids))

    def ids(self) -> list[int]:
        found: list[int] = np.frombuffer(base64.b64decode(self.rows), dtype="<u8").tolist()
        return found


class Appended(ScanTask, frozen=True, tag="appended"):
    """Changes: fragments that a version appended, at a time in microseconds."""

    fragments: tuple[int, ...]
    version: int
    micros: int


class Rewritten(ScanTask, frozen=True, tag="rewritten"):
    """Changes: a version that changed or deleted rows, and the fragments it added."""

    added: tuple[int, ...]
    version: int
    micros: int


class Tail(ScanTask, frozen=True, tag="tail"):
    """Part of a stream table: rows with changes in the log after its base. Share `share` of `shares` of the keys."""

    share: int = 0
    shares: int = 1


class InitialScan(ScanTask, frozen=True, tag="piece"):
    """Part of a stream table at the start of a stream: fragments of the base, or all rows changed after it."""

    slot: int
    position: int
    fragments: tuple[int, ...] | None = None


class Positions(ScanTask, frozen=True, tag="positions"):
    """Part of a stream table's log: changes after `after` up to `until`. Share `share` of `shares` of the keys."""

    slot: int
    after: int
    until: int
    share: int = 0
    shares: int = 1


ScanPart = WholeTable | Fragments | Slice | Rows
ChangePart = Appended | Rewritten
LogPart = InitialScan | Positions
AnyPart = ScanPart | ChangePart | LogPart | Tail


def chosen(part: ScanPart) -> frozenset[int] | None:
    """Return the fragments of a part; None for all of them."""
    return frozenset(part.fragments) if isinstance(part, Fragments | Slice) else None


TABLE_SPAN = 1 << 24
SENT_ROWS = 32_768
Values = Any  # an Arrow array: the stubs of pyarrow cannot follow its types
Test = Callable[[Values], Values]


class Keys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The values that a column of whole numbers or dates may have: 8 bytes each, little endian, in base64."""

    column: str
    values: str

    def numbers(self) -> np.ndarray:
        return np.frombuffer(base64.b64decode(self.values), dtype="<i8")


def kept(batches: Iterable[pa.RecordBatch], keys: Sequence[Keys]) -> Iterator[pa.RecordBatch]:
    """Yield the rows that match the keys of every column, in batches of at least SENT_ROWS."""
    tests = [(each.column, _test(each.numbers())) for each in keys]
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        for column, test in tests:
            batch = batch.filter(test(batch.column(column)))
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= SENT_ROWS:
            yield from _joined(waiting)
            waiting, rows = [], 0
    if rows:
        yield from _joined(waiting)


def _joined(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return pa.Table.from_batches(batches).combine_chunks().to_batches()


def _test(keys: np.ndarray) -> Test:
    """Return a test of values for membership in `keys`: by a table of booleans for dense keys, else by hash."""
    if not len(keys):
        return lambda values: pa.array(np.zeros(len(values), dtype=bool))
    low, high = int(keys.min()), int(keys.max())
    hashed = pa.array(keys)
    limits = np.iinfo(np.int64)
    if high - low > TABLE_SPAN or low == limits.min or high == limits.max:
        return lambda values: pc.is_in(_whole(values), value_set=hashed)
    known = np.zeros(high - low + 3, dtype=bool)
    known[keys - low + 1] = True

    def test(values: Values) -> Values:
        whole = _whole(values)
        if whole.null_count:
            return pc.is_in(whole, value_set=hashed)
        return pa.array(known[np.clip(whole.to_numpy(zero_copy_only=False), low - 1, high + 1) - (low - 1)])

    return test


def _whole(values: Values) -> Values:
    days = values.cast(pa.int32()) if pa.types.is_date32(values.type) else values
    return days if days.type == pa.int64() else days.cast(pa.int64())
