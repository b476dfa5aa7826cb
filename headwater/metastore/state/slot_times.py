"""Commit times of slots: the newest in memory, older ones in the layers of a checkpoint, read on demand.

Slot times never decrease, whatever the writers' clocks say.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from headwater.metastore.records.disk_records import decode, encode
from headwater.metastore.state.index_maps import Book
from headwater.metastore.state.layers import REMOVED, LayerEntry

PREFIX = "t"
_chunks = msgspec.msgpack.Decoder(bytes)


class SlotTimes:
    """The times of the slots from `boundary` to the newest one, in milliseconds."""

    def __init__(self, book: Book) -> None:
        self.boundary = 0
        """The oldest slot that can still be read."""
        self._book = book
        self._held = array("q", [0])
        self._first = 0
        """The slot of the first that is held; those before are in the layers."""
        self._forgot = False

    @property
    def last(self) -> int:
        return self._held[-1]

    def of(self, slot: int) -> int:
        return self._held[slot - self._first] if slot >= self._first else self.all()[slot - self.boundary]

    def slot_at(self, time_ms: int) -> int:
        """The last slot not younger than a time."""
        return self.boundary + bisect_right(self.all(), time_ms) - 1

    def all(self) -> array[int]:
        """The times of the slots from the boundary on."""
        if self._first > self.boundary:
            times = array("q", bytes(8 * (self._first - self.boundary)))
            for key, raw in self._book.scan(PREFIX):
                first, chunk = _slot_of(key), array("q")
                chunk.frombytes(decode(_chunks, "checkpoint", raw))
                begin, end = max(first, self.boundary), min(first + len(chunk), self._first)
                if begin < end:
                    times[begin - self.boundary : end - self.boundary] = chunk[begin - first : end - first]
            self._held, self._first = times + self._held, self.boundary
        return self._held

    def add(self, time_ms: int) -> None:
        """The time of the next slot."""
        self._held.append(max(self._held[-1], time_ms))

    def begin(self, slot: int, times: Sequence[int]) -> None:
        """Those of the last slots up to this one are known, and no slot before them can be read."""
        self.boundary = self._first = slot - len(times) + 1
        self._held = array("q", times)

    def forget_before(self, boundary: int) -> None:
        """All of them are held by now (`all`)."""
        del self._held[: boundary - self._first]
        self.boundary = self._first = boundary
        self._forgot = True

    def take(self, other: SlotTimes) -> None:
        """Those of another index of the same slot."""
        self._held, self._first = other.all()[:], other.boundary

    def changes(self) -> Iterator[LayerEntry]:
        """Return the times for the next layer: those since the last one, or all if some were forgotten."""
        base = self._book.base
        first = max(base.slot + 1 if base is not None else 0, self.boundary)
        if self._forgot and base is not None:
            yield from ((key, REMOVED) for key in _keys(base.scan(PREFIX)) if _slot_of(key) < self.boundary)
            first = self.boundary
        if first <= self._book.slot:
            yield f"{PREFIX}{first:020d}", msgspec.Raw(encode(self._held[first - self._first :].tobytes()))

    def stand_on(self, slot: int) -> None:
        """A checkpoint of this slot holds what `changes` said."""
        self._forgot = self._forgot and slot < self._book.slot


def _keys(entries: Iterable[LayerEntry]) -> Iterator[str]:
    return (key for key, _ in entries)


def _slot_of(key: str) -> int:
    return int(key[len(PREFIX) :])
