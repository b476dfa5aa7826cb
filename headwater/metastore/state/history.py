"""History of one object through renames, and the facts of the log for an overview.

The index says in which slots an object changed, so only those are read. Of a collected slot the published transaction
log file is left as long as a revision or delta of it is, and says the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from headwater.errors import CorruptFileError, InvalidInputError, TransactionNotFoundError
from headwater.metastore.commit.log import Log
from headwater.metastore.commit.slot_rebuild import key_of
from headwater.metastore.records.deltas import VOIDS, read_deltas, stream_of
from headwater.metastore.records.disk_records import (
    DeltaBody,
    NewRevision,
    Slot,
    Txn,
    TxnBody,
    decode_delta,
    decode_slot,
    decode_txn,
    is_collected,
)
from headwater.metastore.records.layout import ROOT_NODE, slot_key, txn_key
from headwater.metastore.records.objects import HistoryEntry, LogChange, LogEntry, time_of
from headwater.metastore.records.serving_copy import LANCE_FORMAT
from headwater.metastore.state.index import SlotIndex
from headwater.wording import many


class Activity:
    """Reads of the log that cost as much as they return, however many objects a commit changed."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._last: tuple[int, Slot] | None = None

    def heads(self, slot: int, kinds: Collection[str], most: int) -> list[tuple[LogEntry, int]]:
        """Return the transactions of a slot with their first `most` changes of some kinds, and how many each has."""
        return list(heads_of(slot, self._read(slot), kinds, most))

    def changed_since(self, slot: int) -> set[str]:
        """Return the ids of the namespaces and tables that were changed after a slot, or had a part changed."""
        slots = (self._read(number) for number in range(slot + 1, self._log.refresh().slot + 1))
        return {change.key.partition("/")[0] for read in slots for txn in read.transactions for change in txn.changes}

    def _read(self, number: int) -> Slot:
        """Read a slot. The last one stays in memory: after a large commit two questions read it."""
        last = self._last
        if last is None or last[0] != number:
            last = self._last = number, self._log.read_slot(number)
        return last[1]

    def slots_at(self, times: Iterable[int]) -> list[int]:
        """Return the newest slot at each of some times, in milliseconds; the oldest that is kept for earlier times."""
        index = self._log.refresh()
        with self._log.lock:
            return [max(index.boundary, index.times.slot_at(time)) for time in times]

    def span(self) -> tuple[int, int]:
        """Return the times of the oldest and the newest commit that are kept, in milliseconds; zeros without any."""
        index = self._log.refresh()
        with self._log.lock:
            times = index.times.all()
            return next((time for time in times[:2] if time), 0), times[-1]


READ_AT_ONCE = 256
TELLING = ("root", "namespace", "table", "table_version", "delta", "stream", "partition")
"""The kinds in the order of how much they tell of a transaction: a delta brings its partition, and a record beside."""

Files = dict[int, dict[str, int]]
"""By slot the transactions that touched something, each with its start: together they name its log file."""
Told = dict[str, str]
"""By transaction what it did to the rows, columns or indices of a table, in words."""


def history(log: Log, key: str, at: int) -> list[HistoryEntry]:
    """The history of the object with this key up to a slot, oldest first; of the root, that of its properties."""
    key = key or ROOT_NODE
    with log.lock:
        touched, told = _touched(log, key, at)
        formats = dict(_formats(log.index, key))
    entries = (_entry(entry, key, formats, told) for entry in _entries(log, touched))
    return sorted((entry for entry in entries if entry is not None), key=lambda entry: (entry.slot, entry.ordinal))


def _touched(log: Log, key: str, at: int) -> tuple[Files, Told]:
    found: Files = {}
    told: Told = {}
    for part in _with_parts(log.index, key):
        node = log.index.node(part)
        for revision in node.versions if node is not None else ():
            if revision.slot <= at:
                found.setdefault(revision.slot, {})[revision.txn] = revision.time
        deltas = log.index.deltas(part)
        for slot in deltas.dropped.values():
            if slot <= at:
                found.setdefault(slot, {})
        for stored in read_deltas(log.segments, part, deltas, 0, at, dropped=True):
            if stored.slot <= at:
                body = decode_delta(part, stored.body)
                found.setdefault(stored.slot, {})[body.txn] = body.time
                _tell(told, body, part)
    return found, told


def _tell(told: Told, body: DeltaBody, part: str) -> None:
    """Add what a delta did. In a transaction with several the last version tells: a publish makes it of the log's."""
    change = body.properties.get("change")
    if isinstance(change, str):
        told[body.txn] = change
    elif f"/{LANCE_FORMAT}/" not in f"{part}/":
        rows = many(sum(file.rows for file in body.files), "row") if body.files else "rows"
        told.setdefault(body.txn, "undo" if VOIDS in body.properties else f"{body.type} {rows}")


def _with_parts(index: SlotIndex, key: str) -> Iterator[str]:
    yield key
    for part in index.parts(key) if key else ():
        yield from _with_parts(index, part)


def _formats(index: SlotIndex, key: str) -> Iterator[tuple[str, str]]:
    for part in _with_parts(index, key):
        node = index.node(part)
        if node is not None and node.kind == "stream":
            yield part, str(node.versions[-1].parts[1])


def _entries(log: Log, touched: Files) -> Iterator[LogEntry]:
    slots = sorted(touched)
    for start in range(0, len(slots), READ_AT_ONCE):
        some = slots[start : start + READ_AT_ONCE]
        for number, data in zip(some, log.store.get_all([slot_key(number) for number in some]), strict=True):
            if data is None or is_collected(data):
                yield from _published(log, touched[number])
            else:
                yield from entries_of(number, decode_slot(slot_key(number), data))


def _published(log: Log, transactions: Mapping[str, int]) -> Iterator[LogEntry]:
    keys = [txn_key(start, txn) for txn, start in transactions.items()]
    for key, data in zip(keys, log.store.get_all(keys), strict=True):
        try:
            yield _of_file(decode_txn(key, data or b""))
        except CorruptFileError:
            continue


def _of_file(body: TxnBody) -> LogEntry:
    changes = tuple(
        _log_change(change.operation, change.kind, key_of(change), change.path, change.revision)
        for change in body.changes
    )
    return LogEntry(body.slot, body.ordinal, time_of(body.time), body.message, body.author, body.id, changes)


def _entry(entry: LogEntry, key: str, formats: Mapping[str, str], words: Told) -> HistoryEntry | None:
    """Return the history entry of one transaction, or None if it did not change the object."""
    mine = tuple(change for change in entry.changes if change.key == key or change.key.startswith(f"{key}/"))
    if not mine:
        return None
    told = min(mine, key=lambda change: (change.key != key, TELLING.index(change.kind)))
    lance = (c.position for c in mine if c.position is not None and _format(c, formats) == LANCE_FORMAT)
    others = (c.position for c in mine if c.position is not None and _format(c, formats) != LANCE_FORMAT)
    return HistoryEntry(
        entry.slot,
        entry.ordinal,
        entry.time,
        entry.author,
        entry.message,
        entry.txn,
        told.operation,
        told.kind,
        max(lance, default=None),
        max(others, default=None),
        told.path,
        mine,
        words.get(entry.txn),
    )


def _format(change: LogChange, formats: Mapping[str, str]) -> str:
    return formats.get(stream_of(change.key)[0], "")


def entries_of(number: int, slot: Slot) -> Iterator[LogEntry]:
    """Yield the transactions of a slot, as the change feed tells them."""
    for ordinal, txn in enumerate(slot.transactions):
        yield LogEntry(number, ordinal, time_of(slot.time), txn.message, txn.author, txn.id, _changes(txn.changes))


def log_entries(log: Log, first: int, last: int) -> Iterator[LogEntry]:
    """Yield one entry for each transaction that is committed in some slots, in their order."""
    for number in range(first, last + 1):
        yield from entries_of(number, log.read_slot(number))


def entries_after(log: Log, after: int | LogEntry | None) -> Iterator[LogEntry]:
    """Return the committed transactions after a slot or an entry, in order without a gap; None: all kept."""
    index = log.refresh()
    first = after.slot if isinstance(after, LogEntry) else (index.boundary if after is None else after) + 1
    if first <= index.boundary:
        raise InvalidInputError(
            f"The log up to slot {index.boundary} was collected, so it cannot be read after {first - 1} without "
            f"a gap. Read the state at slot {index.boundary} and the log after it."
        )
    entries = log_entries(log, first, index.slot)
    if isinstance(after, LogEntry):
        return (entry for entry in entries if (entry.slot, entry.ordinal) > (after.slot, after.ordinal))
    return entries


def heads_of(number: int, slot: Slot, kinds: Collection[str], most: int) -> Iterator[tuple[LogEntry, int]]:
    """Return the transactions of a slot with their first changes of some kinds, and how many of those each has.

    A transaction may change a hundred thousand objects: only `most` of its changes are built.
    """
    for ordinal, txn in enumerate(slot.transactions):
        shown = [change for change in txn.changes if change.kind in kinds]
        changes = _changes(shown[:most])
        yield LogEntry(number, ordinal, time_of(slot.time), txn.message, txn.author, txn.id, changes), len(shown)


def _changes(changes: Iterable[NewRevision]) -> tuple[LogChange, ...]:
    return tuple(_log_change(c.operation, c.kind, c.key, c.path, c.number) for c in changes)


def _log_change(operation: str, kind: str, key: str, path: tuple[str, ...], revision: int) -> LogChange:
    position = stream_of(key)[2] if kind == "delta" else None
    return LogChange(operation, kind, key.rsplit("/", 1)[-1], path, revision, key, position)


def find_transaction(log: Log, wanted: str | LogEntry | HistoryEntry, since_ms: int | None = None) -> tuple[int, Txn]:
    """Return a committed transaction and its slot. By its id alone it is looked for from the newest slot back, to a
    time."""
    index = log.refresh()
    id = wanted if isinstance(wanted, str) else wanted.txn
    first = index.boundary if since_ms is None else max(index.boundary, index.times.slot_at(since_ms))
    slots = range(index.slot, first, -1) if isinstance(wanted, str) else [wanted.slot]
    for start in range(0, len(slots), READ_AT_ONCE):
        some = slots[start : start + READ_AT_ONCE]
        for number, data in zip(some, log.store.get_all([slot_key(number) for number in some]), strict=True):
            transactions = (
                () if data is None or is_collected(data) else decode_slot(slot_key(number), data).transactions
            )
            for txn in transactions:
                if txn.id == id:
                    return number, txn
    raise TransactionNotFoundError(
        f"No transaction {id[:80]!r} is in the log from slot {first + 1} on: it was collected, or never committed."
    )
