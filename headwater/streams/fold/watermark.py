"""Lateness: how far behind the highest first sequence value before it an event may be (streams.md, rule 4). Pure.

A first sequence column is measured by plain numbers: times in their own unit, dates in days, numbers as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.errors import InvalidInputError
from headwater.imports import pc
from headwater.metastore.records.deltas import parse_duration
from headwater.streams.rows.row_keys import Codes, Mask

if TYPE_CHECKING:
    from headwater.streams.fold.events import Rules

Watermark = int | float | Decimal | None
TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
SAFE = 1 << 61


def parse_lateness(text: str, kind: pa.DataType) -> object:
    """A table's `lateness` in the measure of its first sequence column: a duration for times, a number for numbers."""
    if pa.types.is_timestamp(kind):
        return round(parse_duration(text).total_seconds() * TICKS[kind.unit])
    if pa.types.is_date(kind):
        return parse_duration(text) / timedelta(days=1)
    if not is_measured(kind):
        raise InvalidInputError(
            f"lateness needs a timestamp, a date or a number as the first sequence column, not {kind}."
        )
    try:
        number = Decimal(text.strip())
    except InvalidOperation:
        raise InvalidInputError(f"lateness = {text!r} must be a number: the first sequence column is {kind}.") from None
    if not number.is_finite() or number < 0:
        raise InvalidInputError(f"lateness = {text!r} must be a number that is not negative.")
    if pa.types.is_decimal(kind):
        return number
    return int(number) if number == int(number) else float(number)


@dataclass(frozen=True)
class BatchJudgement:
    """The line of each batch (None: it has none), which batch each event is of (None: all are of the first), and the
    watermark after all of them. Batches are numbered in the order of their events."""

    lines: tuple[Any, ...]
    batches: Codes | None
    watermark: Watermark

    def of(self, count: int) -> Codes:
        return np.zeros(count, np.int64) if self.batches is None else self.batches


def too_late(rules: Rules, judged: BatchJudgement, rows: pa.Table, reads: Mask | None) -> Mask:
    """Return a mask of the events below the line of their batch; the reads of a snapshot never are."""
    found = np.zeros(rows.num_rows, bool)
    if rules.lateness is None or not rows.num_rows or all(limit is None for limit in judged.lines):
        return found
    values = measure(rows.column(rules.sequence[0]))
    borders = np.searchsorted(judged.of(len(values)), np.arange(len(judged.lines) + 1)).tolist()
    for number, limit in enumerate(judged.lines):
        start, end = borders[number], borders[number + 1]
        if limit is not None and end > start:
            found[start:end] = values[start:end] < limit
    return found if reads is None else found & ~reads


def reached(rules: Rules, watermark: Watermark, parts: Sequence[pa.Table]) -> Watermark:
    """The watermark after rows: the highest first sequence value there is."""
    if rules.lateness is None:
        return watermark
    highs = [high_of(part.column(rules.sequence[0])) for part in parts if part.num_rows]
    return max((each for each in (watermark, *highs) if each is not None), default=None)


def high_of(column: object) -> Watermark:
    """The highest value of a first sequence column that has some."""
    return plain(measure(pa.chunked_array([pa.repeat(pc.max(column), 1)]))[0])


def is_measured(kind: pa.DataType) -> bool:
    """Return True if lateness can be measured by a column of this type."""
    times = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
    return bool(times or pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def line(rules: Rules, watermark: Watermark) -> Any:
    """Below this no event can apply any more, so tombstones may be forgotten; None: there is no such line."""
    return None if rules.lateness is None or watermark is None else watermark - rules.lateness


def measure(column: Any) -> npt.NDArray[Any]:
    """A first sequence column as numbers that can be compared and subtracted."""
    kind = column.type
    if pa.types.is_decimal(kind):
        return np.array(column.to_pylist(), dtype=object)
    if pa.types.is_floating(kind):
        return column.to_numpy().astype(np.float64)  # type: ignore[no-any-return]
    if pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_date64(kind):
        column = column.cast(pa.date32()).cast(pa.int32())
    elif pa.types.is_timestamp(kind):
        column = column.cast(pa.int64())
    values = column.to_numpy()
    if values.dtype == np.uint64 or (len(values) and max(abs(int(values.min())), abs(int(values.max()))) > SAFE):
        return values.astype(object)  # type: ignore[no-any-return]
    return values.astype(np.int64)  # type: ignore[no-any-return]


def plain(value: Any) -> Watermark:
    found: Watermark = value.item() if isinstance(value, np.generic) else value
    return found


def encoded(mark: Watermark) -> object:
    """A watermark as JSON holds it."""
    return ["decimal", str(mark)] if isinstance(mark, Decimal) else mark


def decoded(value: Any) -> Watermark:
    found: Watermark = Decimal(value[1]) if isinstance(value, list) else value
    return found
