"""Garbage collection. A boundary is committed first; then everything that no slot from it on can show is deleted.

The slots below the boundary give up their bodies but not their numbers, so a writer that was stalled for a year still
finds its slot taken. Files are listed before the index is read: whatever is listed belongs to a slot the index knows.
A dry run forgets in a copy of the index, and tells what would go.
Before that, deltas of change logs that are past their retention are dropped, in all stream tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import NamedTuple

import msgspec

from headwater.errors import InvalidInputError
from headwater.metastore.commit.draft import Draft
from headwater.metastore.commit.group_commit import Committer
from headwater.metastore.commit.log import Log, files_of_slot
from headwater.metastore.commit.rules import Header
from headwater.metastore.commit.transaction import Transaction
from headwater.metastore.records.deltas import expired, log_retention
from headwater.metastore.records.disk_records import COLLECTED, PENDING_MARK, decode, encode, is_collected, seal, unseal
from headwater.metastore.records.layout import (
    CHECKPOINTS,
    PENDING_DELETES,
    TxnFile,
    checkpoint_key,
    checkpoint_slot,
    parse_key,
    pending_deletes_key,
    slot_key,
)
from headwater.metastore.records.objects import Collected, Removal
from headwater.metastore.records.serving_copy import LANCE_FORMAT, READER_FORMAT, STREAM_TABLE
from headwater.metastore.state.checkpoints import dump, load
from headwater.metastore.state.index import SlotIndex
from headwater.metastore.state.slot_views import IndexView, place_at
from headwater.metastore.state.snapshot import Snapshot
from headwater.metastore.upkeep.garbage import Garbage, PendingDeletes, kept_by, pending_by
from headwater.metastore.upkeep.named_snapshots import Snapshots
from headwater.metastore.upkeep.verify import snapshot_records
from headwater.names import format_name
from headwater.store import Entry, KeyNotFoundError, Store

Run = Callable[[Callable[[Transaction], None], str], None]
WHY = "it was published longer ago than log_retention"


class ChangeLog(NamedTuple):
    """The change log of a stream table's version, and where its readers' positions are kept."""

    path: tuple[str, ...]
    version: str
    readers: tuple[str, ...]
    expired: tuple[int, ...]


def expire(run: Run, now: Callable[[], Snapshot], now_ms: int, dry_run: bool) -> list[Removal]:
    """Drop them, a transaction for each table; their files go once the drop is behind the boundary as well."""
    done: list[Removal] = []
    for log in expired_logs(now(), now_ms):
        if not dry_run:
            run(partial(_drop, now, log, now_ms), f"collect the log of {format_name(log.path)}")
        done += (Removal("delta", f"{format_name(log.path)}@{position}", WHY) for position in log.expired)
    return done


def _drop(now: Callable[[], Snapshot], log: ChangeLog, now_ms: int, tx: Transaction) -> None:
    for reader in log.readers:
        tx.get_stream(log.path, reader, version=log.version)  # one that steps back meanwhile is a conflict
    for position in expired_log(now(), log.path, log.version, now_ms).expired:
        tx.drop_delta(log.path, position, version=log.version)


def expired_logs(snapshot: Snapshot, now_ms: int) -> Iterator[ChangeLog]:
    """Yield every stream table's change log of which something may go."""
    view = snapshot.view
    for node in view.index.nodes():
        if node.kind == "table_version" and STREAM_TABLE in node.versions[-1].properties and view.item(node.key):
            place = place_at(view, node.key.split("/")[0])
            if place is not None:
                found = expired_log(snapshot, place.path, node.id, now_ms)
                if found.expired:
                    yield found


def expired_log(snapshot: Snapshot, path: tuple[str, ...], version: str, now_ms: int) -> ChangeLog:
    """Return the deltas of one log that nothing needs any more."""
    streams = {stream.id: stream for stream in snapshot.streams(path, version)}
    formats = {str(stream.parts[1]) for stream in streams.values()}
    readers = [stream for stream in streams.values() if stream.parts[1] == READER_FORMAT]
    if LANCE_FORMAT not in formats or "delta" not in formats:
        return ChangeLog(path, version, (), ())
    kept = log_retention(snapshot.get_table_version(path, version).properties)
    positions = [int(position) for reader in readers for position in reader.properties.values()]
    found = expired(
        snapshot.deltas(path, format=LANCE_FORMAT, version=version),
        snapshot.deltas(path, version=version),
        now_ms - int(kept.total_seconds() * 1000),
        positions,
    )
    return ChangeLog(path, version, tuple(reader.id for reader in readers), tuple(found))


GRACE = timedelta(days=7)
Removals = list[Removal]
_pending_decoder = msgspec.msgpack.Decoder(PendingDeletes)


def _pending_before(store: Store) -> Iterator[tuple[str, PendingDeletes]]:
    """Yield the lists that earlier collections left: because they died, or because something was saved."""
    keys = [entry.key for entry in store.children(PENDING_DELETES).entries]
    for key, data in zip(keys, store.get_all(keys), strict=True):
        if data is not None:
            yield key, decode(_pending_decoder, key, unseal(key, data, PENDING_MARK))


def pending_locations(store: Store) -> set[str]:
    """Return the folders of dropped tables that the next collection deletes: one before it died on the way."""
    return {location for _, pending in _pending_before(store) for location in pending.locations}


class Collection:
    """One collection: how far back to stay readable, and how old what a dead writer left must be."""

    def __init__(self, log: Log, snapshots: Snapshots, keep: timedelta | int, grace: timedelta) -> None:
        self.log = log
        self.snapshots = snapshots
        self.keep = keep
        self._own: list[str] = []
        self.before_ms = log.clock.now_ms() - _milliseconds(grace, "grace is how old a leftover must be")

    def run(self, committer: Committer, author: str) -> Collected:
        """Collect; safe beside writers, readers and other collections. A crash at any step leaves less to do."""
        log = self.log
        index = log.refresh()
        if not index.slot:
            return Collected(0)
        log.repair()
        for revision in list(snapshot_records(index)):
            self.snapshots.settle(revision)
        boundary = self._boundary(index)
        garbage, earlier = self._look(index, boundary)
        self._secure(index, boundary, garbage.listed)
        if garbage.pending:
            self._own.append(self._write(garbage.pending, log.clock.uuid()))
        if boundary > index.boundary:
            header = Header(log.clock.uuid(), log.clock.now_ms(), f"collect up to slot {boundary}", author)
            committer.commit(Draft(IndexView(index, index.slot)), header, boundary)
        index = log.refresh()
        boundary = index.boundary  # before the checkpoint: another thread may fold a later one, which it does not hold
        _fresh_checkpoint(log, boundary)
        removals = garbage.judge(index, kept_by(log, index, self.snapshots))
        removals += self._slots(boundary)
        self._delete(removals)
        self._settle(garbage.saved(kept_by(log, index, None), removals), earlier)
        if sweep := log.store.abilities.sweep:
            sweep(self.before_ms)
        return _collected(boundary, removals)

    def dry_run(self) -> Collected:
        """Return what `run` would remove now, each with its reason. Nothing is changed."""
        index = self.log.refresh()
        if not index.slot:
            return Collected(0)
        boundary = self._boundary(index)
        garbage, _ = self._look(index, boundary)
        with self.log.lock:
            after = load("a copy", dump(index))
        after.forget(boundary)
        removals = garbage.judge(after, kept_by(self.log, after, self.snapshots))
        return _collected(boundary, [*removals, *self._slots(boundary)])

    def _look(self, index: SlotIndex, boundary: int) -> tuple[Garbage, list[str]]:
        """Return the existing files and the pending deletes, of this boundary and of earlier ones, before the index
        forgets.
        """
        listed = list(self.log.store.list())
        with self.log.lock:
            for revision in snapshot_records(index):
                self.snapshots.read(revision)  # one that cannot be read stops us before the boundary moves
        earlier = dict(_pending_before(self.log.store))
        pending = pending_by(self.log, index, boundary, earlier.values())
        return Garbage(self.log, listed, pending, self.before_ms), list(earlier)

    def _secure(self, index: SlotIndex, last: int, listed: Sequence[Entry]) -> None:
        """Write and sync the log files of slots that are about to give up their bodies: nothing could do it later.

        A repair may have failed on the way. On a local disk the files are written without a sync, so that a power cut
        may have taken those too that are marked as published.
        """
        store, first = self.log.store, index.boundary
        if store.abilities.path is None:
            first = max(first, index.published)
        sizes = {entry.key: entry.size for entry in listed}
        for number in range(first + 1, last + 1):
            files = list(files_of_slot(number, self.log.read_slot(number)))
            store.put_all([(key, data) for key, data in files if sizes.get(key) != len(data)], durable=False)
            store.sync([key for key, _ in files if isinstance(parse_key(key), TxnFile)])

    def _write(self, pending: PendingDeletes, id: str) -> str:
        self.log.store.put(pending_deletes_key(id), seal(PENDING_MARK, encode(pending)))
        return pending_deletes_key(id)

    def _settle(self, saved: PendingDeletes, before: list[str]) -> None:
        """Write what is still pending to a new list, then delete the lists that it replaces."""
        own = {self._write(saved, self.log.clock.uuid())} if saved else set()
        for key in (*before, *self._own):
            if key not in own:
                self.log.store.delete(key)

    def _boundary(self, index: SlotIndex) -> int:
        keep = self.keep
        if isinstance(keep, timedelta):
            age = _milliseconds(keep, "keep is how far back to stay readable")
            wanted = index.times.slot_at(self.log.clock.now_ms() - age)
        elif isinstance(keep, int) and not isinstance(keep, bool) and keep >= 0:
            wanted = index.slot - keep
        else:
            raise InvalidInputError(f"keep is a timedelta or a number of slots, not {keep!r}.")
        return min(max(wanted, index.boundary), index.slot)

    def _slots(self, boundary: int) -> Iterator[Removal]:
        """The slots up to the boundary that still have bodies, the oldest first; those before were taken earlier."""
        first = boundary
        while first > 0 and not self._is_empty(first):
            first -= 1
        for number in range(first + 1, boundary + 1):
            yield Removal("slot", slot_key(number), "it is behind the boundary")

    def _is_empty(self, number: int) -> bool:
        try:
            return is_collected(self.log.store.get(slot_key(number)))
        except KeyNotFoundError:
            return False

    def _delete(self, removals: Removals) -> None:
        """Delete in this order: a deleting mapping after what it deletes, so no reader sees a name come back."""
        store = self.log.store
        actions: dict[str, Callable[[str], None]] = {
            "folder": store.delete_tree,
            "slot": lambda key: store.put(key, seal(COLLECTED, b""), durable=False),
        }
        for removal in removals:
            actions.get(removal.kind, store.delete)(removal.key)


def _collected(boundary: int, removals: Removals) -> Collected:
    def count(*kinds: str) -> int:
        return sum(removal.files for removal in removals if removal.kind in kinds)

    data = count("folder", "data", "staged", "snapshot")
    return Collected(boundary, count("published"), count("slot"), count("segment"), data, tuple(removals))


def _milliseconds(age: timedelta, what: str) -> int:
    if not isinstance(age, timedelta) or age < timedelta(0):
        raise InvalidInputError(f"{what}: it is a timedelta that is not negative.")
    return int(age.total_seconds() * 1000)


def _fresh_checkpoint(log: Log, boundary: int) -> None:
    """Write a checkpoint that knows the boundary, and delete those before it, which are of no use any more."""
    log.checkpoint()
    for entry in log.store.children(CHECKPOINTS).entries:
        slot = checkpoint_slot(entry.key)
        if slot is not None and slot <= boundary and slot < log.checkpointed:
            log.store.delete(checkpoint_key(slot))
