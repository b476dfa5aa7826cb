"""The order of rows by some columns, found by sorting plain numbers wherever those tell it. Pure.

Whole numbers and times that fit into 64 bits together, with the row's own number behind them, are sorted as they are.
Else rows are sorted by what leads them, a number or the first bytes of a text, and only those that it leaves side by
side are compared in full.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.streams.rows.row_keys import Codes, flat, numbers_of, ranks

Numbers = npt.NDArray[np.uint64]
Array = Any
WORD, LEAD = 64, 8


def order_of(columns: Sequence[Array], groups: Codes | None = None) -> Codes:
    """The rows by group, then by the columns in turn, then as they stand. No value is null."""
    exact = _packed([*([] if groups is None else [groups]), *(numbers_of(flat(column)) for column in columns)])
    if exact is not None:
        return exact
    leading = _leading(flat(columns[0]))
    if leading is None:
        by = ranks(columns)
        return np.argsort(by, kind="stable") if groups is None else np.lexsort((by, groups))
    order = np.argsort(leading)
    if groups is not None:
        order = order[
            np.argsort(groups[order].astype(np.uint16 if groups.max(initial=0) < 1 << 16 else np.int64), kind="stable")
        ]
    differs = np.ones(len(order), bool)
    differs[1:] = leading[order[1:]] != leading[order[:-1]]
    if groups is not None:
        differs[1:] |= groups[order[1:]] != groups[order[:-1]]
    return order if differs.all() else _untied(columns, order, differs)


def _untied(columns: Sequence[Array], order: Codes, differs: npt.NDArray[np.bool_]) -> Codes:
    """The order with those rows compared in full that do not differ from the one before them."""
    tied = ~differs
    tied[:-1] |= tied[1:]
    places = np.flatnonzero(tied)
    rows = order[places]
    by = ranks([flat(column).take(pa.array(rows)) for column in columns])
    found = order.copy()
    found[places] = rows[np.lexsort((rows, by, np.cumsum(differs)[places]))]
    return found


def _packed(columns: Sequence[Codes | None]) -> Codes | None:
    """The order by columns of numbers, each in as many bits as it needs; None: they are too many."""
    length = next((len(column) for column in columns if column is not None), 0)
    if not length:
        return None
    behind = (length - 1).bit_length()
    packed = np.arange(length, dtype=np.uint64)
    shift = behind
    for column in reversed(columns):
        if column is None:
            return None
        low = int(column.min())
        width = (int(column.max()) - low).bit_length()
        if shift + width > WORD:
            return None
        if width:
            packed |= (column - np.int64(low)).astype(np.uint64) << np.uint64(shift)
        shift += width
    packed.sort()
    return (packed & np.uint64((1 << behind) - 1)).astype(np.int64)


def _leading(column: Array) -> Any:
    """Numbers that order the values as far as they differ; None: there are none such."""
    numbers = numbers_of(column)
    if numbers is not None:
        return numbers
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return _first_bytes(column.cast(pa.large_string())) if len(column) else None
    return None


def _first_bytes(texts: Array) -> Numbers:
    """The first bytes after those that all texts share, as numbers in the order of the texts."""
    limits: Any = pc.min_max(texts)
    shared = _shared(limits["min"].as_py().encode(), limits["max"].as_py().encode())
    offsets = np.frombuffer(texts.buffers()[1], np.int64, len(texts) + 1, texts.offset * 8)
    data = texts.buffers()[2]
    raw = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    starts, lengths = offsets[:-1] + shared, np.diff(offsets) - shared
    padded = np.concatenate([raw[: offsets[-1]], np.zeros(LEAD, np.uint8)])
    found: Numbers = (
        np.lib.stride_tricks.sliding_window_view(padded, LEAD)[starts].view(">u8").ravel().astype(np.uint64)
    )
    short = lengths < LEAD
    if short.any():
        beyond = (LEAD - lengths[short]) * 8
        found[short] = np.where(beyond < WORD, found[short] >> beyond.astype(np.uint64) << beyond.astype(np.uint64), 0)
    return found


def _shared(low: bytes, high: bytes) -> int:
    """Return the length in bytes of the common prefix of two texts."""
    for place, (one, other) in enumerate(zip(low, high, strict=False)):
        if one != other:
            return place
    return min(len(low), len(high))
