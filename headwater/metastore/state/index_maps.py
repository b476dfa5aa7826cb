"""The maps of an index: what was touched, in memory, over the layers of a checkpoint, which are read when asked for.

Whoever changes what it got from a map says so (`mark`): the next checkpoint writes what was marked, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import msgspec

from headwater.errors import CorruptFileError
from headwater.metastore.records.disk_records import decode, encode
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
        """All there are, in no order. Those that were not touched are not kept."""
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
        """The value that another map has of the key, unless it was read or changed here; it is to be written."""
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
        """All of one first key; not to be changed by the caller."""
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
        """Every first key there is, or was."""
        keys = (key[len(self.prefix) :].partition(BETWEEN)[0] for key, _ in self._book.scan(self.prefix))
        return list(dict.fromkeys((*self._held, *self._loose, *keys)))

    def known(self, first: str, second: str) -> Value | None:
        """The value, if it was put here; None also if nothing was read of it yet."""
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
        """The value that another map has of the pair, unless it was read or changed here; it is to be written."""
        first, _, second = key.partition(BETWEEN)
        if first not in self._held:
            self._loose.setdefault(first, {}).setdefault(second, other.of(first).get(second))
        self._book.mark(self.prefix + key)
