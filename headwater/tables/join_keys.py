"""Keys that a join was found to need while it runs: rows with others are dropped before they are sent.

A join reads them again, so what is kept may be too much and must not be too little.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
    """The rows whose columns have one of the keys each, in batches that are worth sending."""
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
    """Whether a value is a key: looked up in a table of booleans if the keys are near each other, else hashed."""
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
