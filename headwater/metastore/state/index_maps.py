"""The maps of an index: what was touched, in memory, over the layers of a checkpoint, which are read when asked for.

Whoever changes what it got from a map says so (`mark`): the next checkpoint writes what was marked, and nothing else.
Two maps have forms of their own: commit times of slots, which never decrease whatever the writers' clocks say, and
dataset folders, by which the index finds the table that first had a dataset there, and the slot.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from headwater.errors import CorruptFileError
from headwater.metastore.records.disk_records import Revision, Slot, decode, encode
from headwater.metastore.records.serving_copy import LANCE_FORMAT, STREAM_TABLE, default_location, location_of, signs_at
from headwater.metastore.state.layers import REMOVED, LayerEntry, Layers

Value = TypeVar("Value")
BETWEEN = "\0"
"""Stands between the two parts of a pair's key; no name or id contains it."""
MAX_MISSED = 1 << 16
_UNREAD: Any = object()


class Book:
    """The layers that the maps of an index stand on, and what has changed since them: each key with its last slot."""

    def __init__(self) -> None:
        self.base: Layers | None = None
        self.slot = 0
        self.since = 0
        """The slot from which on every change was folded here; what changed before it is not known in detail."""
        self.changed: dict[str, int] = {}
        self._mend: Callable[[CorruptFileError], None] | None = None

    def mend_by(self, mend: Callable[[CorruptFileError], None]) -> None:
        """Have `mend` put the maps on other layers when a file of these is missing or damaged, or raise."""
        self._mend = mend

    def mark(self, key: str) -> None:
        self.changed[key] = self.slot

    def stand_on(self, base: Layers) -> None:
        """A checkpoint of a slot that is folded already: what changed up to it is in its layers."""
        self.base = base
        self.changed = {key: slot for key, slot in self.changed.items() if slot > base.slot}

    def read(self, key: str) -> msgspec.Raw | None:
        while self.base is not None:
            try:
                return self.base.get(key)
            except CorruptFileError as damaged:
                self.mended(damaged)
        return None

    def scan(self, prefix: str) -> Iterator[LayerEntry]:
        last = ""
        while self.base is not None:
            try:
                for key, value in self.base.scan(prefix):
                    if key > last:
                        last = key
                        yield key, value
                return
            except CorruptFileError as damaged:
                self.mended(damaged)

    def mended(self, damaged: CorruptFileError) -> None:
        """Stand on other layers than those with this file, or raise."""
        if self._mend is None:
            raise damaged
        self._mend(damaged)


class Section(Generic[Value]):
    """Values by key."""

    def __init__(self, book: Book, prefix: str, decoder: msgspec.msgpack.Decoder[Value]) -> None:
        self.prefix = prefix
        self._book = book
        self._decoder = decoder
        self._held: dict[str, Value | None] = {}
        self._missed: set[str] = set()
        """Keys that no layer has. What comes later is put here, and so held."""

    def get(self, key: str) -> Value | None:
        found = self._held.get(key, _UNREAD)
        if found is _UNREAD:
            if key in self._missed:
                return None
            raw = self._book.read(self.prefix + key)
            found = self._held.get(key, _UNREAD)  # reading may have mended the maps
            if found is _UNREAD:
                if raw is None:
                    self._miss(key)
                    return None
                found = self._held[key] = self._decode(raw)
        return found

    def _miss(self, key: str) -> None:
        if len(self._missed) >= MAX_MISSED:
            self._missed = set()
        self._missed.add(key)

    def put(self, key: str, value: Value | None) -> None:
        """Hold this value; None: it is no more."""
        self._held[key] = value
        self._book.mark(self.prefix + key)

    def mark(self, key: str) -> None:
        self._book.mark(self.prefix + key)

    def items(self) -> Iterator[tuple[str, Value]]:
        """Yield all there are, in no order. Those that were not touched are not kept."""
        seen: set[str] = set()
        for full, raw in self._book.scan(self.prefix):
            key = full[len(self.prefix) :]
            if key not in self._held:
                seen.add(key)
                yield key, self._decode(raw)
        for key, value in list(self._held.items()):
            if value is not None and key not in seen:
                yield key, value

    def encoded(self, key: str) -> msgspec.Raw:
        value = self._held.get(key)
        return REMOVED if value is None else msgspec.Raw(encode(value))

    def take(self, key: str, other: Section[Value]) -> None:
        """Mark the key as changed, with the value of another map unless this map has read or changed it."""
        self.put(key, self._held[key] if key in self._held else other.get(key))

    def _decode(self, raw: msgspec.Raw) -> Value:
        return decode(self._decoder, "checkpoint", raw)


class Pairs(Generic[Value]):
    """Values by two keys; all of one first key are found together."""

    def __init__(self, book: Book, prefix: str, decoder: msgspec.msgpack.Decoder[Value]) -> None:
        self.prefix = prefix
        self._book = book
        self._decoder = decoder
        self._held: dict[str, dict[str, Value]] = {}
        self._loose: dict[str, dict[str, Value | None]] = {}
        """What changed in those whose others were not read yet."""

    def of(self, first: str) -> dict[str, Value]:
        """Return the entries of one first key, which the caller does not change."""
        found = self._held.get(first)
        if found is None:
            prefix = f"{self.prefix}{first}{BETWEEN}"
            found = {
                key[len(prefix) :]: decode(self._decoder, "checkpoint", raw) for key, raw in self._book.scan(prefix)
            }
            for second, value in self._loose.pop(first, {}).items():
                if value is None:
                    found.pop(second, None)
                else:
                    found[second] = value
            self._held[first] = found
        return found

    def firsts(self) -> list[str]:
        """Return every first key there is, or was."""
        keys = (key[len(self.prefix) :].partition(BETWEEN)[0] for key, _ in self._book.scan(self.prefix))
        return list(dict.fromkeys((*self._held, *self._loose, *keys)))

    def known(self, first: str, second: str) -> Value | None:
        """Return the value, if it was put here; None also if nothing was read of it yet."""
        held = self._held.get(first)
        return self._loose.get(first, {}).get(second) if held is None else held.get(second)

    def put(self, first: str, second: str, value: Value | None) -> None:
        """Hold this value; None: it is no more. What there is beside it is not read for that."""
        held = self._held.get(first)
        if held is None and self._book.base is None and first not in self._loose:
            held = self._held[first] = {}
        if held is None:
            self._loose.setdefault(first, {})[second] = value
        elif value is None:
            held.pop(second, None)
        else:
            held[second] = value
        self._book.mark(f"{self.prefix}{first}{BETWEEN}{second}")

    def encoded(self, key: str) -> msgspec.Raw:
        first, _, second = key.partition(BETWEEN)
        value = self.known(first, second)
        return REMOVED if value is None else msgspec.Raw(encode(value))

    def take(self, key: str, other: Pairs[Value]) -> None:
        """Mark the pair as changed, with the value of another map unless this map has read or changed it."""
        first, _, second = key.partition(BETWEEN)
        if first not in self._held:
            self._loose.setdefault(first, {}).setdefault(second, other.of(first).get(second))
        self._book.mark(self.prefix + key)


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
        """Return the last slot not younger than a time."""
        return self.boundary + bisect_right(self.all(), time_ms) - 1

    def all(self) -> array[int]:
        """Return the times of the slots from the boundary on."""
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
        """Take over the times of another index of the same slot."""
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


_flags = msgspec.msgpack.Decoder(bool)


class FolderIndex:
    """The dataset folders of an index. The slots are known of those that came since the index began."""

    def __init__(self, book: Book) -> None:
        self.is_whole = True
        """True if `folders` has all of them."""
        self.folders: Section[bool] = Section(book, "f", _flags)
        """Where datasets are, or were in a past that is kept: the folder, and the object that says so."""
        self._book = book
        self._came: dict[str, dict[str, int] | tuple[str, int]] = {}
        """By sign, each table that came to have a dataset there, and the slot. Mostly one. Those of the layers are
        not among them."""

    def come(self, key: str, folder: str, slot: int) -> None:
        """An object says from this slot on that its dataset is in this folder."""
        self.folders.put(f"{folder}{BETWEEN}{key}", True)
        table = _table_of(key)
        for sign in signs_at(folder):
            known = self._came.get(sign)
            if known is None:
                self._came[sign] = table, slot
                continue
            if isinstance(known, tuple):
                known = self._came[sign] = _by_table(known)
            known[table] = max(slot, known.get(table, 0))

    def leave(self, key: str, folder: str) -> None:
        """No revision of the object that is kept names this folder."""
        self.folders.put(f"{folder}{BETWEEN}{key}", None)

    def take(self, entry: str) -> None:
        """Take over one of the `folders` that another index has and no layer does."""
        if self.folders.get(entry):
            folder, _, key = entry.rpartition(BETWEEN)
            self.come(key, folder, self._book.since)

    def is_before(self, slot: int) -> bool:
        """Return True if what came in a slot or after it may be known by the layers alone."""
        return 0 < self._book.since >= slot

    def tables_by(self, sign: str, since: int) -> list[str]:
        """Return the tables that came to have a dataset of this sign in a slot or after it; they may be gone since."""
        found = dict.fromkeys(_by_table(self._came.get(sign)))
        if self.is_before(since):
            prefix = self.folders.prefix + (sign if sign.endswith("/") else sign + BETWEEN)
            found |= dict.fromkeys(_table_of(key.rpartition(BETWEEN)[2]) for key, _ in self._book.scan(prefix))
        return list(found)

    def came_by(self, sign: str) -> int:
        """Return the last slot in which a table came to have a dataset of this sign."""
        return max(_by_table(self._came.get(sign)).values(), default=self._book.since)


def folders_of(kind: str, home: str, revision: Revision) -> tuple[str, ...]:
    """Return the folders of a stream's dataset; of an unpublished stream table, those that its dataset will have."""
    if kind == "stream" and revision.parts[1] == LANCE_FORMAT:
        return (location_of(revision.properties, home),)
    return (default_location(home),) if kind == "table_version" and STREAM_TABLE in revision.properties else ()


def _table_of(key: str) -> str:
    """Return the table that an object is a part of."""
    return key.partition("/")[0]


def _by_table(known: dict[str, int] | tuple[str, int] | None) -> dict[str, int]:
    return dict([known]) if isinstance(known, tuple) else known or {}


RECENT = 32


class RecentSlots:
    """The last slots that were folded, each with the namespaces and tables that it changed, by their keys.

    A slot after which a name means something else has None in place of keys: all may have changed.
    """

    def __init__(self) -> None:
        self._slots: tuple[tuple[int, frozenset[str] | None], ...] = ()

    def add(self, number: int, slot: Slot) -> frozenset[str] | None:
        changed = _changed_by(slot)
        self._slots = (*self._slots[1 - RECENT :], (number, changed))
        return changed

    def changed_since(self, slot: int, newest: int) -> frozenset[str] | None:
        """Return the keys that slots after this one changed, up to the newest; None if all may have changed."""
        later = [keys for number, keys in self._slots if number > slot]
        found = [keys for keys in later if keys is not None]
        return frozenset().union(*found) if len(found) == len(later) == newest - slot else None


def _changed_by(slot: Slot) -> frozenset[str] | None:
    keys: set[str] = set()
    for txn in slot.transactions:
        if any(mapped.operation != "create" for mapped in txn.mappings):
            return None
        for change in txn.changes:
            key, _, part = change.key.partition("/")
            if not part and change.operation != "create":
                return None
            keys.add(key)
    return frozenset(keys)
