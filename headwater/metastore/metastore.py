"""The metastore: the DeltaCAT storage model with real transactions, on a local directory or an object store."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import repeat
from typing import Any, TypeVar

import msgspec

from headwater.clock import Clock, SystemClock
from headwater.errors import InvalidInputError, LanceNamespaceError
from headwater.metastore.commit.draft import Draft
from headwater.metastore.commit.group_commit import Committer
from headwater.metastore.commit.log import Log
from headwater.metastore.commit.root_kinds import check_new
from headwater.metastore.commit.rules import Group, Header, compile_txn, conflict, refused
from headwater.metastore.commit.transaction import SavedTransaction, Transaction
from headwater.metastore.commit.undo import TransactionUndo
from headwater.metastore.commit.undo_deltas import Columns, Restores, Void
from headwater.metastore.records.disk_records import Revision
from headwater.metastore.records.layout import MAX_LOCAL_KEY, MAX_REMOTE_KEY
from headwater.metastore.records.objects import (
    Collected,
    Delta,
    Deltas,
    Diff,
    History,
    HistoryEntry,
    Keys,
    LogEntry,
    NamedSnapshot,
    NamedSnapshots,
    Object,
    Objects,
    Problems,
    Undone,
    UndoStep,
    moment_ms,
    time_of,
)
from headwater.metastore.state.diff import diff
from headwater.metastore.state.history import Activity, entries_after, find_transaction
from headwater.metastore.state.slot_views import NOTHING_CHOSEN, IndexView
from headwater.metastore.state.snapshot import Path, Snapshot
from headwater.metastore.upkeep import verify
from headwater.metastore.upkeep.collect import GRACE, expire
from headwater.metastore.upkeep.collect import Collection as GarbageCollection
from headwater.metastore.upkeep.named_snapshots import Snapshots
from headwater.names import format_name, object_id
from headwater.retry import retry
from headwater.store import Store, open_store

MAX_RUNS = 500
DEFAULT_KEEP = timedelta(days=7)
FIRST_MS = 10**11  # whole numbers from here on are times in milliseconds, those below are slots
Answer = TypeVar("Answer")
RestoreIn = Callable[[Transaction, str, int], object]
"""Adds a Lance version to a transaction that is like an older one: the table by its id, and which."""
_saved = msgspec.msgpack.Decoder(SavedTransaction)
Moment = int | float | datetime | str


class Metastore:
    """A catalog root. Opening reads; the first write creates. Threads may share one; processes each open their own.

    A root whose log has lost slots is made whole if the published files say exactly what was in them; else it is
    refused (19). With `damaged` it is opened for `verify`, `repair` and the past before the loss; the rest is refused.
    A root with another catalog or other things is refused (13), unless `beside_others`: then the first write makes a
    metastore there, as `headwater init` does.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | Store,
        storage_options: Mapping[str, str] | None = None,
        *,
        clock: Clock | None = None,
        author: str = "",
        damaged: bool = False,
        beside_others: bool = False,
    ) -> None:
        self.store = open_store(os.fspath(root), storage_options) if isinstance(root, (str, os.PathLike)) else root
        self.clock = clock or SystemClock()
        self.author = author
        self._chosen: Mapping[str, str] = NOTHING_CHOSEN
        self._listener: Callable[[], None] | None = None
        self._log = Log(self.store, self.clock)
        self.activity = Activity(self._log)
        self._committer = Committer(self._log, MAX_LOCAL_KEY if self.store.abilities.path else MAX_REMOTE_KEY)
        self._send: Callable[[bytes], Sequence[int] | None] | None = None
        self._snapshots = Snapshots(self._log)
        self._collecting = threading.Lock()
        self._log.open()
        if self._log.lost is not None and not damaged:
            raise self._log.lost
        if not (self._log.index.slot or damaged or beside_others):
            check_new(self.store)

    def create(self) -> None:
        """Make an empty metastore, so that it can be seen in the storage. The first write does that as well."""
        self._log.prepare()

    # Transactions

    def transaction(self, message: str = "", author: str | None = None, refresh: bool = True) -> Transaction:
        """Begin a transaction over the newest state. Used in a `with` block, it commits where the block ends.

        Without `refresh` it reads what this process knows: one request less, and a conflict if that was too old.
        """
        index = self._log.refresh() if refresh else self._log.known()
        view = IndexView(index, index.slot, self._chosen)
        header = Header(self.clock.uuid(), self.clock.now_ms(), message, self.author if author is None else author)
        return Transaction(Draft(view), self._log, self.clock, header, self._commit)

    def by(self, author: str) -> Metastore:
        """Return the same metastore with another default author of its transactions."""
        other = copy(self)
        other.author = author
        other.tell(self._notify)
        return other

    def with_version(self, path: Path, version: str, moment: Snapshot | None = None) -> Metastore:
        """Return the same metastore with one table at another version than its active one, for reads and writes.

        Raises TableVersionNotFound (11) if the table has no such version, now or at a moment of the past.
        """
        found = (moment or self.now()).get_table_version(path, version)
        other = self.by(self.author)
        other._chosen = {**self._chosen, found.home.split("/")[-2]: version}
        return other

    @property
    def chosen(self) -> Mapping[str, str]:
        """By the id of a table, the version that is read and written in place of the active one."""
        return self._chosen

    def seen(self, moment: Snapshot) -> Snapshot:
        """Return a snapshot with the table versions that this metastore chooses."""
        return Snapshot(self._log, IndexView(moment.view.index, moment.slot, self._chosen))

    def reopen(self, known: SavedTransaction) -> Transaction:
        """Return a transaction that another process has begun and saved (`metastore/commit/transaction.py`)."""
        with self._log.lock:
            index = self._log.refresh()
            view = IndexView(index, known.base, self._chosen)
        return Transaction(known.draft(view), self._log, self.clock, known.header, self._commit)

    def commit_by(self, send: Callable[[bytes], Sequence[int] | None]) -> None:
        """Have another process of this root commit by its `commit_saved`, which groups what comes together.

        `send` takes a transaction there and returns the answer; None: nobody takes it, and it is committed here.
        Slot 0: the other process commits it later. Its deltas have indices into the positions of that answer until
        then, as Python counts them from the end: -1 is the last.
        """
        self._send = send

    def commit_saved(self, data: bytes) -> list[int]:
        """Commit a transaction of another process; Conflict (14) as if it had been made here.

        Return its slot, and the positions that its deltas have got, in their order.
        """
        tx = self.reopen(_saved.decode(data))
        return [tx.commit(), *(append.position or 0 for append in tx.draft.appends)]

    def slot_of(self, txn: str, since_ms: int) -> int:
        """Return the slot of a transaction that was committed after a time, or raise TransactionNotFound (10)."""
        return find_transaction(self._log, txn, since_ms)[0]

    def resume(self, tx: Transaction, newest: bool, without: Collection[str] = ()) -> Transaction:
        """Return a refused transaction as it was, over the state it began with or over the newest one.

        `without`: the keys of streams whose appended deltas are left out.
        The newest is refused (14) if others have changed what it read or wrote since.
        """
        with self._log.lock:
            index = self._log.refresh()
            reason = conflict(index, tx.draft) if newest else None
            view = IndexView(index, index.slot, self._chosen) if newest else tx.draft.base
        if reason is not None:
            raise refused(reason)
        draft = replace(tx.draft.copy(), base=view)
        draft.appends = [each for each in draft.appends if each.stream not in without]
        return Transaction(draft, self._log, self.clock, tx.header, self._commit)

    def run(
        self,
        work: Callable[[Transaction], Answer],
        message: str = "",
        author: str | None = None,
        attempts: int = MAX_RUNS,
        refresh: bool = True,
    ) -> Answer:
        """Run `work` in a transaction and commit it; after a conflict run it in a new one, at most `attempts` times.

        Without `refresh` the first one begins with the state that this process knows.
        """
        known = iter([refresh])
        if refresh and self.is_likely_newest:
            done = self.transaction(message, author, refresh=False).attempt(work, lambda: self._log.refresh().slot)
            if done is not None:
                return done[0]

        def act(tx: Transaction) -> Answer:
            with tx:
                return work(tx)

        return retry(self.clock, attempts, lambda: self.transaction(message, author, next(known, True)), act, longest=6)

    @property
    def is_likely_newest(self) -> bool:
        """True if a commit can be planned on what is known here, and to look for newer slots is a request."""
        return self._log.is_likely_newest

    def undrop(self, path: Path) -> Object:
        """Bring back what was dropped last at this path, with all that the same transaction dropped below it."""

        def work(tx: Transaction) -> Transaction:
            tx.undrop(path)
            return tx

        done = self.run(work, f"undrop {format_name(object_id(path).names)}")
        return self.at(done.slot).get(path)

    def undo(
        self,
        txn: str | LogEntry | HistoryEntry,
        dry_run: bool = False,
        void: Void | None = None,
        restore: RestoreIn | None = None,
        within: Transaction | None = None,
        columns: Columns | None = None,
    ) -> Undone:
        """Undo a committed transaction by a new one, or `within` one: all that it touched is exactly as it was before.

        Raises InvalidTableState (19) with the reasons where later work stands on it. A dry run changes nothing.
        `void`: voids the rows of a stream table, whose log loses no delta. `restore`: makes the next version of a Lance
        table like an older one. `columns`: compares the columns of a stream table.
        """
        number, done = find_transaction(self._log, txn)
        made: list[Transaction] = []

        def work(tx: Transaction) -> list[UndoStep]:
            made[:] = [tx]
            before, restores = tx.draft.copy(), Restores()
            with self._log.lock, tx.savepoint():
                steps = TransactionUndo(tx, self._log, number, done, void, restores if restore else None, columns).run()
            if dry_run:
                tx.draft = before
                return steps
            for table, version in restores:
                assert restore is not None
                restore(tx, table, version)
            return steps

        steps = self.run(work, f"undo {done.message or done.id}") if within is None else work(within)
        slot = None if dry_run or within is not None else made[0].slot
        return Undone(done.id, done.message, slot, tuple(steps))

    # Named snapshots

    def snapshot(self, name: str, tables: Sequence[Path] | None = None) -> NamedSnapshot:
        """Pin the newest state of all tables, or of some, under a name. It stays readable after every collection."""
        chosen = None if tables is None else [object_id(path).names for path in tables]

        def work(tx: Transaction) -> None:
            file = self.clock.uuid()
            tx.snapshot(name, file=file)
            self._snapshots.write(file, tx.draft.base, chosen)

        self.run(work, f"snapshot {name}")
        with self._log.lock:
            return self._snapshots.told(name, self._snapshots.find(name))

    def snapshots(self, within: Transaction | None = None) -> NamedSnapshots:
        """Return the named snapshots, by name. One that a transaction takes itself has slot 0 and no tables yet."""
        self._log.refresh()
        found = self._snapshots.all() if within is None else map(self._named, within.snapshots(), repeat(within))
        return sorted(found, key=lambda each: each.name)

    def _named(self, revision: Revision, within: Transaction) -> NamedSnapshot:
        if within.takes_snapshot(revision.name):
            return NamedSnapshot(revision.name, 0, time_of(within.header.start), ())
        return self._snapshots.told(revision.name, revision)

    def pinned_versions(self, location: str) -> dict[int, str]:
        """Return the versions of the Lance dataset in a folder that named snapshots need, with a snapshot's name."""
        self._log.refresh()
        return self._snapshots.pinned(location)

    def drop_snapshot(self, name: str) -> None:
        """Drop a snapshot. A collection deletes what only it needed, once the drop is older than the retention."""
        self.run(lambda tx: tx.drop_snapshot(name), f"drop snapshot {name}")

    def _commit(self, tx: Transaction) -> int:
        if tx.draft.empty:
            return tx.draft.base.at
        done = None if self._send is None else self._send(msgspec.msgpack.encode(tx.saved()))
        if done is None:
            slot = self._committer.commit(tx.draft, tx.header)
        else:
            slot, appends = done[0], tx.draft.appends  # the next read folds it
            positions = done[1:] if slot else range(-len(appends), 0)
            for append, position in zip(appends, positions, strict=True):
                append.position = position
        with suppress(LanceNamespaceError):  # it is committed: whoever needs a file that is not there makes it
            for item in tx.draft.items.values():
                if item.node.kind == "snapshot" and item.revision.alive:
                    self._snapshots.settle(item.revision)
        self._notify()
        return slot

    def tell(self, listener: Callable[[], None] | None) -> None:
        """Call `listener` after each commit, in the committing thread, so it must not take long. None: no call."""
        self._listener = listener

    def _notify(self) -> None:
        if self._listener is not None:
            self._listener()

    def rehearse(self, tx: Transaction) -> None:
        """Raise what a commit of the transaction would raise. Nothing is written."""
        compile_txn(self._log.index, tx.draft, tx.header, Group(), self._committer.max_key)

    # Reading the present

    @property
    def slot(self) -> int:
        """The newest slot."""
        return self._log.refresh().slot

    def now(self, refresh: bool = True) -> Snapshot:
        """Return the newest state. Without `refresh`, the newest that this process knows, which costs no request."""
        index = self._log.refresh() if refresh else self._log.known()
        return Snapshot(self._log, IndexView(index, index.slot, self._chosen))

    def get(self, path: Path) -> Object:
        return self.now().get(path)

    def exists(self, path: Path) -> bool:
        return self.now().exists(path)

    def list(self, path: Path = ()) -> Objects:
        """Return the namespaces and tables in a namespace, sorted by name."""
        return self.now().list(path)

    def deltas(self, path: Path, after: int = 0, **options: Any) -> Deltas:
        """Return the deltas of a table's stream after a position, in order. `options`: see `Reading.deltas`."""
        return self.now().deltas(path, after, **options)

    def by_id(self, id: str) -> Object | Delta:
        """Return the namespace or table of an id, wherever it is now, or a part by `<table id>/<version>/...`."""
        return self.now().by_id(id)

    # Reading the past

    def at(self, moment: Moment) -> Snapshot:
        """Return the state at a slot (a whole number), at a time, or of a named snapshot (text).

        A time is a datetime with a zone, or seconds or milliseconds since the epoch.
        """
        log = self._log
        if isinstance(moment, str):
            with log.lock:
                log.refresh()
                _, index = self._snapshots.read(self._snapshots.find(moment))
                return Snapshot(log, IndexView(index, index.slot, self._chosen))
        if isinstance(moment, bool) or not isinstance(moment, (int, float, datetime)):
            raise InvalidInputError(f"A moment is a slot, a time with a zone or a snapshot's name, not {moment!r}.")
        with log.lock:
            if isinstance(moment, int) and moment < FIRST_MS:
                slot = moment
                if slot > log.index.slot:
                    log.refresh()
            else:
                log.refresh()
                slot = log.index.times.slot_at(moment if isinstance(moment, int) else moment_ms(moment))
            if not log.index.boundary <= slot <= log.index.slot:
                raise InvalidInputError(
                    f"The catalog can be read at slots {log.index.boundary} to {log.index.slot}, not at {moment}."
                )
            return Snapshot(log, IndexView(log.index, slot, self._chosen))

    def history(self, path: Path) -> History:
        """Return the transactions that touched the object at this path, or the one dropped there last; oldest first."""
        return self.now().history(path)

    def diff(self, a: Moment, b: Moment) -> Diff:
        """Return the differences between two slots, times or named snapshots."""
        return diff(self._log, self.at(a), self.at(b))

    def log(self, after: int | LogEntry | None = None) -> Iterator[LogEntry]:
        """Return the committed transactions after a slot or an entry, in order without a gap; None: all kept."""
        return entries_after(self._log, after)

    @property
    def boundary(self) -> int:
        """The oldest slot that can still be read."""
        return self._log.refresh().boundary

    # Keeping house

    def checkpoint(self) -> None:
        """Write a checkpoint now. They are written by themselves often enough; this is for after a bulk load."""
        self._log.refresh()
        self._log.prepare()
        self._log.checkpoint()

    def repair(self) -> Keys:
        """Rewrite every lost slot and published file and return their keys; 19 if a lost slot cannot be rebuilt."""
        self._log.rebuild(every=True)
        self._log.refresh()
        rebuilt, self._log.rebuilt = self._log.rebuilt, []
        return [*rebuilt, *verify.repair(self._log)]

    def verify(self) -> Problems:
        """Return the files that are damaged, missing or different from the index; empty if the catalog is sound."""
        return verify.verify(self._log)

    def collect(
        self, keep: timedelta | int | None = None, grace: timedelta | None = None, dry_run: bool = False
    ) -> Collected:
        """Drop history past retention, and delete files that no kept state needs.

        `keep` is an age (a timedelta) or a number of slots: so far back the past stays readable, and a drop can be
        undone. What a writer that died has left goes once it is older than `grace`. Both are seven days unless given.
        A dry run changes nothing, and tells what would go and why.
        """
        with self._collecting:
            kept = DEFAULT_KEEP if keep is None else keep
            collection = GarbageCollection(self._log, self._snapshots, kept, GRACE if grace is None else grace)
            dropped = expire(self.run, self.now, self.clock.now_ms(), dry_run)
            done = collection.dry_run() if dry_run else collection.run(self._committer, self.author)
            return msgspec.structs.replace(done, removed=(*dropped, *done.removed))

    def close(self) -> None:
        """Wait for housekeeping. Nothing is held open: every acknowledged commit is durable and published."""
        self._committer.wait()

    def __enter__(self) -> Metastore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
