"""Keys compared structurally: rows of the same key, the places of keys among other rows, and the order of rows. Pure.

Each key column is turned into codes of its own and the codes are combined as numbers, so that ("a", "bc") and
("ab", "c") can never be taken for each other.
Rows are ordered by plain numbers where those tell the order. Whole numbers and times that fit into 64 bits, with the
row's number behind them, are sorted as they are. Other rows are sorted by a number or by the first bytes of a text
that leads them, and only ties are compared in full.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.imports import pc
from headwater.streams.rows.hashing import hash_array

Codes = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Array = Any
LIMIT = 1 << 62
DENSE = 32
"""A table of all whole numbers in a range is used up to so many times the number of values."""
MANY = 1 << 12
"""So many values are looked for by their hashes."""
ROOM = 8
"""The places of a table of hashes, for each value."""


class KeyIndex:
    """The distinct keys of some rows, numbered from 0. `codes` says which of them each row has."""

    def __init__(self, columns: Sequence[Array]) -> None:
        self.first: Array = columns[0]
        self._levels = [_Level(flat(column)) for column in columns]
        combined = self._levels[0].codes if self._levels else np.empty(0, np.int64)
        self._pairs: list[npt.NDArray[np.int64]] = []
        for level in self._levels[1:]:
            distinct, combined = np.unique(combined * level.count + level.codes, return_inverse=True)
            self._pairs.append(distinct)
        self.codes: Codes = combined
        self.count = len(self._pairs[-1]) if self._pairs else self._levels[0].count

    def find(self, columns: Sequence[Array]) -> Codes:
        """Return for each row the number of its key, -1 where the key is not among these."""
        found = self._levels[0].find(flat(columns[0]))
        for level, pairs, column in zip(self._levels[1:], self._pairs, columns[1:], strict=True):
            codes = level.find(flat(column))
            wanted = found * level.count + codes
            places = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
            known = (
                (found >= 0) & (codes >= 0) & (pairs[places] == wanted) if len(pairs) else np.zeros(len(codes), bool)
            )
            found = np.where(known, places, -1)
        return found

    @property
    def places(self) -> Codes:
        """Return for each key the last row that has it."""
        found = np.empty(self.count, np.int64)
        found[self.codes] = np.arange(len(self.codes))
        return found

    def holds(self, columns: Sequence[Array]) -> npt.NDArray[np.bool_]:
        """Return a mask: True for each row whose key is among these."""
        if not self._pairs:
            return self._levels[0].holds(flat(columns[0]))
        return self.find(columns) >= 0


class _Level:
    """The distinct values of one key column."""

    def __init__(self, column: Array) -> None:
        self._type = column.type
        whole = _whole(column)
        self._table: npt.NDArray[np.int32] | None = None
        self._there: npt.NDArray[np.bool_] | None = None
        if whole is not None and len(whole) and (span := int(whole.max()) - int(whole.min()) + 1) <= _limit(len(whole)):
            self._first = int(whole.min())
            places, numbers = whole - self._first, np.arange(len(whole), dtype=np.int32)
            self._table = np.full(span, -1, np.int32)
            self._table[places] = numbers
            last = self._table[places]
            if not (last == numbers).all():  # some values are there several times: the last of each is counted
                distinct = np.flatnonzero(last == numbers)
                dense = np.empty(len(whole), np.int32)
                dense[distinct] = np.arange(len(distinct), dtype=np.int32)
                last = dense[last]
                self._table[places] = last
            self.codes: Codes = last.astype(np.int64)
            self.count = int(last.max()) + 1
            return
        encoded = pc.dictionary_encode(column)
        self._values = encoded.dictionary
        self._hashed: _Hashed | None = None
        self.codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        self.count = len(self._values)

    def find(self, column: Array) -> Codes:
        if column.type != self._type:
            column = column.cast(self._type)
        if self._table is None:
            return self._find_hashed(column) if self.count >= MANY else _found_in(column, self._values)
        whole = _whole(column)
        assert whole is not None
        places = whole - self._first
        if len(places) and places.min() >= 0 and places.max() < len(self._table):
            codes: Codes = self._table[places].astype(np.int64)
            return codes
        inside = (places >= 0) & (places < len(self._table))
        return np.where(inside, self._table[np.where(inside, places, 0)], -1)

    def _find_hashed(self, column: Array) -> Codes:
        if self._hashed is None:
            self._hashed = _Hashed(self._values)
        return self._hashed.find(column) if self._hashed.is_plain else _found_in(column, self._values)

    def holds(self, column: Array) -> npt.NDArray[np.bool_]:
        whole = _whole(column) if self._table is not None and column.type == self._type else None
        if self._table is None or whole is None:
            return self.find(column) >= 0
        if self._there is None:
            self._there = self._table >= 0
        return _in(self._there, whole - self._first)


class _Hashed:
    """Many distinct values by their hashes. A small table of these tells most rows that are none of them at once.

    Arrow would make a table of all values for every batch of rows that is asked for.
    """

    def __init__(self, values: Array) -> None:
        self._values = values
        hashes = hash_array(values)
        self._order = np.argsort(hashes)
        self._sorted = hashes[self._order]
        self.is_plain = bool((self._sorted[1:] != self._sorted[:-1]).all())
        """Whether no two values hash alike, as texts can be made to."""
        bits = (ROOM * len(values)).bit_length()
        self._shift = np.uint64(64 - bits)
        self._there = np.zeros(1 << bits, bool)
        self._there[hashes >> self._shift] = True

    def find(self, column: Array) -> Codes:
        hashes, found = hash_array(column), np.full(len(column), -1, np.int64)
        rows = np.flatnonzero(self._there[hashes >> self._shift])
        places = np.minimum(np.searchsorted(self._sorted, hashes[rows]), len(self._sorted) - 1)
        alike = self._sorted[places] == hashes[rows]
        rows, codes = rows[alike], self._order[places[alike]]
        equal: Any = pc.equal(column.take(pa.array(rows)), self._values.take(pa.array(codes)))
        same = equal.fill_null(False).to_numpy(zero_copy_only=False)
        found[rows[same]] = codes[same]
        return found


def _found_in(column: Array, values: Array) -> Codes:
    places: Any = pc.index_in(column, value_set=values)
    filled: Codes = places.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return filled


def _in(there: npt.NDArray[np.bool_], places: Codes) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_]
    if len(places) and places.min() >= 0 and places.max() < len(there):
        found = there[places]
        return found
    inside = (places >= 0) & (places < len(there))
    found = there[np.where(inside, places, 0)] & inside
    return found


def flat(column: Array) -> Array:
    """Return one array of plain layout."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _limit(values: int) -> int:
    return max(1 << 18, DENSE * values)


def _whole(column: Array) -> npt.NDArray[np.int64] | None:
    """Return the values as whole numbers, where they are such."""
    kind = column.type
    if column.null_count or kind == pa.uint64() or not (pa.types.is_integer(kind) or pa.types.is_date32(kind)):
        return None
    cast = column.cast(pa.int32()) if pa.types.is_date32(kind) else column
    return cast.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)  # type: ignore[no-any-return]


def ordinals(columns: Sequence[Array], groups: int) -> Codes:
    """Return numbers that order rows as `ranks` does, small enough to be added to a multiple of themselves for each
    group.

    One column of whole numbers or times in a bounded range is its own order, and needs no sorting.
    """
    if len(columns) == 1 and len(columns[0]):
        values = numbers_of(flat(columns[0]))
        if values is not None:
            low, high = int(values.min()), int(values.max())
            if (high - low + 2) * (groups + 1) < LIMIT:
                return values - low
    return ranks(columns)


def numbers_of(column: Array) -> Codes | None:
    """Whole numbers and times as the numbers that order them; None: they are no such, or some are null."""
    kind = column.type
    if column.null_count:
        return None
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.int64())
    elif pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    if not pa.types.is_integer(column.type) or column.type == pa.uint64():
        return None
    numbers: Codes = column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return numbers


def ranks(columns: Sequence[Array]) -> Codes:
    """Return a number for each row that orders the rows by these columns, in turn; equal rows have equal numbers.

    Strings are ordered by their bytes, which is how Arrow orders them.
    """
    found: Codes = np.zeros(len(columns[0]) if columns else 0, np.int64)
    for index, column in enumerate(columns):
        own = _rank(flat(column))
        if index == 0:
            found = own
        else:
            _, found = np.unique(found * (int(own.max(initial=0)) + 1) + own, return_inverse=True)
    return found


def _rank(column: Array) -> Codes:
    kind = column.type
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    if pa.types.is_temporal(kind):
        column = column.cast(pa.int32()).cast(pa.int64()) if kind.bit_width == 32 else column.cast(pa.int64())
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        values = column.to_numpy(zero_copy_only=False)
        values = values + 0.0 if pa.types.is_floating(column.type) else values
        codes: Codes = np.unique(values, return_inverse=True)[1].astype(np.int64, copy=False)
        return codes
    ranked: Any = pc.rank(column, sort_keys="ascending", tiebreaker="dense")
    return ranked.to_numpy(zero_copy_only=False).astype(np.int64)  # type: ignore[no-any-return]


Numbers = npt.NDArray[np.uint64]
WORD, LEAD = 64, 8


def order_of(columns: Sequence[Array], groups: Codes | None = None) -> Codes:
    """Return the rows by group, then by the columns in turn, then as they stand. No value is null."""
    numbers = [numbers_of(flat(column)) for column in columns]
    if groups is None and numbers[0] is not None and (numbers[0][1:] > numbers[0][:-1]).all():
        return np.arange(len(numbers[0]))
    exact = _packed([*([] if groups is None else [groups]), *numbers])
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
    """Return the order with those rows compared in full that do not differ from the one before them."""
    tied = ~differs
    tied[:-1] |= tied[1:]
    places = np.flatnonzero(tied)
    rows = order[places]
    by = ranks([flat(column).take(pa.array(rows)) for column in columns])
    found = order.copy()
    found[places] = rows[np.lexsort((rows, by, np.cumsum(differs)[places]))]
    return found


def _packed(columns: Sequence[Codes | None]) -> Codes | None:
    """Return the order by columns of numbers, each in as many bits as it needs; None: they are too many."""
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
    """Return numbers that order the values as far as they differ; None: there are none such."""
    numbers = numbers_of(column)
    if numbers is not None:
        return numbers
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return _first_bytes(column.cast(pa.large_string())) if len(column) else None
    return None


def _first_bytes(texts: Array) -> Numbers:
    """Return the first bytes after those that all texts share, as numbers in the order of the texts."""
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
