"""The deltas of a stream: a short tail in memory, the rest in immutable segment files that are read on demand.

A million deltas as Python objects would fill the memory, so at deterministic slots (`SlotIndex.fold`) every process
seals the tails into a segment: the same content everywhere, so whoever finds its file missing may write it.
A delta of a change log is retained for `log_retention` after the publish that covers it.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

import msgspec

from headwater.errors import CorruptFileError, InvalidInputError
from headwater.metastore.records.disk_records import SEGMENT, DeltaBody, decode, decode_slot, encode, seal, unseal
from headwater.metastore.records.layout import segment_key, slot_key
from headwater.metastore.records.objects import Delta
from headwater.metastore.records.serving_copy import PUBLISHED
from headwater.store import KeyNotFoundError, Store

CACHED_SEGMENTS = 4
RULE = 2
"""The rule by which slots seal a segment, as each run records it: every so many changes."""


class Stored(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A delta as kept: where it stands, the slot that committed it, and the bytes of its revision file."""

    position: int
    slot: int
    body: bytes


class DeltaRun(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The deltas of one stream that stand in one segment."""

    segment: int
    first: int
    last: int
    first_slot: int
    last_slot: int
    rule: int = RULE


class DeltaLog(msgspec.Struct, array_like=True, gc=False):
    """All deltas of one stream, in order of position, which is also the order of commit."""

    last: int = 0
    changed: int = 0
    runs: list[DeltaRun] = []
    tail: list[Stored] = []
    dropped: dict[int, int] = {}

    def add(self, position: int, slot: int, body: bytes) -> None:
        self.tail.append(Stored(position, slot, body))
        self.last = position
        self.changed = slot

    def drop(self, position: int, slot: int) -> None:
        self.dropped[position] = slot
        self.changed = slot

    def seal(self, segment: int) -> list[Stored]:
        """Move the tail into a run of this segment; what it held is handed back, to be written."""
        sealed, self.tail = self.tail, []
        first, last = sealed[0], sealed[-1]
        self.runs.append(DeltaRun(segment, first.position, last.position, first.slot, last.slot))
        return sealed

    def visible(self, stored: Stored, at: int) -> bool:
        dropped = self.dropped.get(stored.position)
        return stored.slot <= at and (dropped is None or dropped > at)


Segment = dict[str, list[Stored]]
_segments = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_stored = msgspec.msgpack.Decoder(list[Stored])


class Segments:
    """The segment files of a catalog, and those sealed here that may not be written yet."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.pending: dict[int, Segment] = {}
        self._cache: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def flush(self) -> None:
        """Write the pending segments that no other process has written; their content is the same for all."""
        for number in list(self.pending):
            key = segment_key(number)
            if self.store.head(key) is None:
                self.store.put(key, seal(SEGMENT, encode(self.pending[number])))
            self.pending.pop(number, None)

    def let_go(self) -> None:
        """Drop older pending segments from memory if the writer of their slot has written them."""
        for number in sorted(self.pending)[:-1]:
            if self.store.head(segment_key(number)) is not None:
                del self.pending[number]

    def read(self, stream: str, run: DeltaRun) -> list[Stored]:
        """The deltas of one run. A damaged segment is read from the slots it was made of, while they are kept."""
        pending = self.pending.get(run.segment)
        if pending is not None:
            return pending.get(stream, [])
        try:
            return self._load(segment_key(run.segment), stream)
        except CorruptFileError as damaged:
            return self._from_slots(stream, run, damaged)

    def _load(self, key: str, stream: str) -> list[Stored]:
        """Return the deltas of one stream in a segment; those of other streams are not decoded."""
        found = self._cache.get(key)
        if found is None:
            try:
                data = self.store.get(key)
            except KeyNotFoundError:
                raise CorruptFileError(key, "it is missing") from None
            raw = decode(_segments, key, unseal(key, data, SEGMENT))
            found = self._cache[key] = {**raw}
            while len(self._cache) > CACHED_SEGMENTS:
                self._cache.popitem(last=False)
        stored = found.get(stream, [])
        if isinstance(stored, msgspec.Raw):
            stored = found[stream] = decode(_stored, key, stored)
        return cast("list[Stored]", stored)

    def _from_slots(self, stream: str, run: DeltaRun, damaged: CorruptFileError) -> list[Stored]:
        found: list[Stored] = []
        for number in range(run.first_slot, run.last_slot + 1):
            try:
                slot = decode_slot(slot_key(number), self.store.get(slot_key(number)))
            except (KeyNotFoundError, CorruptFileError):
                raise damaged from None
            for change in (change for txn in slot.transactions for change in txn.changes):
                if change.kind == "delta" and change.operation == "create" and stream_of(change.key)[0] == stream:
                    found.append(Stored(stream_of(change.key)[2], number, change.body))
        return found


def delta_key(stream: str, partition: str, position: int) -> str:
    return f"{stream}/{partition}/{position}"


def stream_of(key: str) -> tuple[str, str, int]:
    """Return a delta's key taken apart: stream, partition id, position."""
    stream, partition, position = key.rsplit("/", 2)
    return stream, partition, int(position)


def read_deltas(
    segments: Segments, stream: str, log: DeltaLog, after: int, at: int, dropped: bool = False
) -> Iterator[Stored]:
    """Yield the deltas after a position, as they were at a slot. Runs that cannot hold any are not read."""
    start = bisect_right(log.runs, after, key=lambda run: run.last)
    for run in log.runs[start:]:
        if run.first_slot > at:
            return
        for stored in _after(segments.read(stream, run), after):
            if dropped or log.visible(stored, at):
                yield stored
    for stored in _after(log.tail, after):
        if dropped or log.visible(stored, at):
            yield stored


def last_position(segments: Segments, stream: str, log: DeltaLog, at: int) -> int:
    """Return the last position given out up to a slot, dropped deltas included; 0 when there was none."""
    if log.changed <= at:
        return log.last
    for stored in reversed(tuple(log.tail)):
        if stored.slot <= at:
            return stored.position
    for run in reversed(log.runs):
        if run.last_slot <= at:
            return run.last
        if run.first_slot <= at:
            return max(stored.position for stored in segments.read(stream, run) if stored.slot <= at)
    return 0


def _after(stored: list[Stored], position: int) -> list[Stored]:
    return stored[bisect_right(stored, position, key=lambda one: one.position) :]


def newest_first(
    segments: Segments, stream: str, log: DeltaLog, at: int, before: int | None = None
) -> Iterator[Stored]:
    """Yield the deltas that can be seen at a slot, from the last one (before a position) back. Reads no more than it
    must."""
    for stored in reversed(_before(log.tail, before)):
        if log.visible(stored, at):
            yield stored
    for run in reversed(log.runs):
        if run.first_slot <= at and (before is None or run.first < before):
            for stored in reversed(_before(segments.read(stream, run), before)):
                if log.visible(stored, at):
                    yield stored


def _before(stored: list[Stored], position: int | None) -> list[Stored]:
    if position is None:
        return stored
    return stored[: bisect_left(stored, position, key=lambda one: one.position)]


def find_stored(segments: Segments, stream: str, log: DeltaLog, position: int, at: int) -> Stored | None:
    found = next(read_deltas(segments, stream, log, position - 1, at), None)
    return found if found is not None and found.position == position else None


LOG_RETENTION = "30 days"
RETENTION_PROPERTY = "log_retention"
UNITS = {"week": 604_800, "day": 86_400, "hour": 3_600, "minute": 60, "second": 1}
VOIDS = "voids"
Landed = Delta | DeltaBody
_DURATION = re.compile(r"(\d+(?:\.\d+)?) *(week|day|hour|minute|second)s?")


def parse_duration(text: str) -> timedelta:
    """`7 days`, `90 minutes`."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise InvalidInputError(f"{text!r} is not a duration: write it like '7 days', '12 hours' or '90 minutes'.")
    return timedelta(seconds=float(match[1]) * UNITS[match[2]])


def log_retention(properties: Mapping[str, object]) -> timedelta:
    """Return the `log_retention` in the properties of a table version."""
    return parse_duration(str(properties.get(RETENTION_PROPERTY, LOG_RETENTION)))


def expired(
    versions: Sequence[Landed], changes: Sequence[Landed], before_ms: int, needed: Iterable[int] = ()
) -> list[int]:
    """Return the positions of the deltas that may go: always all up to some publish.

    Whoever stands at a needed position (a reader, a pin) is served from the publish before it and every delta after,
    and so is the newest state: from the last publish that holds nothing that was taken back since.
    """
    publishes = [(position, _time(version)) for version in versions if (position := _published(version)) is not None]
    bound = max((position for position, time_ms in publishes if time_ms < before_ms), default=0)
    for stands in (base_of(versions, changes)[0], *needed):
        bound = min(bound, max((position for position, _ in publishes if position <= stands), default=0))
    return [change.position for change in changes if change.position <= bound]


def _time(version: Landed) -> int:
    return version.time_ms if isinstance(version, Delta) else version.time


def base_of(versions: Sequence[Landed], changes: Sequence[Landed]) -> tuple[int, int]:
    """Return position and first kept Lance version of the publish that the newest state of a table is read from.

    What a later change voids must not be in it. Without a publish all changes are needed, and the newest version.
    """
    for version in reversed(versions):
        position = _published(version)
        if position is not None and not any(_voids(change, position) for change in changes):
            return position, version.position
    return 0, versions[-1].position if versions and not _any_published(versions) else 1


def _published(version: Landed) -> int | None:
    found: object = version.properties.get(PUBLISHED)
    return found if isinstance(found, int) else None


def _any_published(versions: Sequence[Landed]) -> bool:
    return any(_published(version) is not None for version in versions)


def _voids(change: Landed, base: int) -> bool:
    """Return True if a change after a publish takes back something that is in it."""
    return change.position > base and any(voided <= base for voided in change.properties.get(VOIDS, ()))
