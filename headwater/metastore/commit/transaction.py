"""An open transaction: it reads at one snapshot, and its writes become visible all at once, or never.

An open transaction can be saved as bytes, so that any process on the root can continue it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from headwater.clock import Clock
from headwater.errors import (
    CommitStateUnknownError,
    ConcurrentModificationError,
    InvalidInputError,
    TableTagNotFoundError,
)
from headwater.metastore.commit.draft import AppendedDelta, DeltaRead, Draft, DroppedDelta, LogRead, Read
from headwater.metastore.commit.edits import locked
from headwater.metastore.commit.log import Log
from headwater.metastore.commit.rules import Header, refused
from headwater.metastore.commit.table_edits import TableEdits
from headwater.metastore.commit.table_parts import DELTA_FORMAT
from headwater.metastore.records.disk_records import Revision
from headwater.metastore.records.layout import ROOT_NODE, snapshot_node
from headwater.metastore.state.slot_views import IndexView, Item, resolve_table
from headwater.metastore.state.snapshot import Path
from headwater.metastore.upkeep import named_snapshots
from headwater.names import object_id

Answer = TypeVar("Answer")


class SavedTransaction(msgspec.Struct):
    """A serialized open transaction: its reads, its changes, and the slot it began at."""

    id: str
    start: int
    message: str
    author: str
    base: int
    reads: list[Read]
    items: dict[str, Item]
    paths: dict[str, tuple[str, ...]]
    names: list[tuple[str, str, str | None]]
    moved: dict[str, dict[str, bool]]
    new_parts: dict[str, list[str]]
    appends: list[AppendedDelta]
    dropped_deltas: list[DroppedDelta]

    @property
    def header(self) -> Header:
        return Header(self.id, self.start, self.message, self.author)

    def draft(self, view: IndexView) -> Draft:
        """Return the draft over the index, which must know its base."""
        return Draft(
            view,
            set(self.reads),
            dict(self.items),
            self.paths,
            {(parent, digest): key for parent, digest, key in self.names},
            self.moved,
            self.new_parts,
            self.appends,
            self.dropped_deltas,
        )


def saved(header: Header, draft: Draft) -> SavedTransaction:
    names: list[Any] = [(parent, digest, key) for (parent, digest), key in draft.names.items()]
    return SavedTransaction(
        header.id,
        header.start,
        header.message,
        header.author,
        draft.base.at,
        sorted(draft.reads, key=repr),
        draft.items,
        draft.paths,
        names,
        draft.moved,
        draft.new_parts,
        draft.appends,
        draft.dropped_deltas,
    )


class Transaction(TableEdits):
    """A transaction of `Metastore.transaction`. It commits when its block ends, and rolls back if the block raises."""

    def __init__(
        self, draft: Draft, log: Log, clock: Clock, header: Header, commit: Callable[[Transaction], int]
    ) -> None:
        self.header = header
        self.draft = draft
        self.draft.txn = header.id
        self.before_deltas: Callable[[Path, str], None] | None = None
        """Called before the deltas of a stream are read, by its table's path and its format."""
        self._committed: int | None = None
        self._log = log
        self._clock = clock
        self._commit = commit
        self._open = True

    @property
    def id(self) -> str:
        return self.header.id

    @property
    def slot(self) -> int:
        """The slot that it reads, and once it is committed the slot that holds it."""
        return self.draft.at if self._committed is None else self._committed

    def restate(self, planned: str, message: str) -> None:
        """Replace the message `planned` by one that has counts. A transaction begun with another message keeps that."""
        if self.header.message == planned:
            self.header = replace(self.header, message=message)

    # Dependencies and savepoints

    @contextmanager
    def unbound(self) -> Iterator[None]:
        """Record no dependency for what is read in this block. What was a dependency before stays one."""
        before = set(self.draft.reads)
        yield
        self.draft.reads &= before
        self.draft.places.clear()  # a name that is looked up again is a dependency again

    @contextmanager
    def unbound_logs(self, path: Path | None = None) -> Iterator[None]:
        """Record no dependency on the deltas that are read in this block, of one table's change log or of any."""
        with self._log.lock:
            only = None if path is None else LogRead(self._stream(path, DELTA_FORMAT, None, None)[2].node.key)
        before = set(self.draft.reads)
        yield
        new = self.draft.reads - before
        self.draft.reads -= {read for read in new if isinstance(read, LogRead) and only in (None, read)}

    @contextmanager
    def bound_by_position(self, path: Path, version: str) -> Iterator[None]:
        """Depend on the last position of a table's change log, and on nothing else that is read in this block."""
        self.last_position(path, version=version)
        with self.unbound():
            yield

    @contextmanager
    def appending(self, appended: set[str]) -> Iterator[None]:
        """Record no dependency on streams that only this block appends to, at chosen positions.

        The keys of those streams are added to `appended`: their deltas can be made again over a newer state.
        """
        before, count = set(self.draft.reads), len(self.draft.appends)
        yield
        draft = self.draft
        made = {each.stream for each in draft.appends[count:] if each.wanted is not None}
        new = {stream for stream in made if LogRead(stream) not in before}
        draft.reads -= {LogRead(stream) for stream in new}
        appended |= new

    def depends_on_log(self, stream: str) -> bool:
        """Return True if the transaction has read the deltas of a stream, by its key."""
        return LogRead(stream) in self.draft.reads

    @locked
    def depend_on_delta(self, path: Path, position: int, *, format: str, version: str | None = None) -> None:
        """Make a drop of one delta by others a conflict."""
        self.draft.reads.add(DeltaRead(self._stream(path, format, version, None)[2].node.key, position))

    # Its own changes

    def saved(self) -> SavedTransaction:
        """Return the transaction as a value, which any process on the root can go on with: its files are durable."""
        unsynced = self.draft.unsynced
        if unsynced:
            self._log.store.sync(unsynced)
            for append in self.draft.appends:
                append.unsynced_files = ()
        return saved(self.header, self.draft)

    @property
    def deltas_made(self) -> int:
        """The number of deltas that the transaction has appended."""
        return len(self.draft.appends)

    @property
    def changes_root(self) -> bool:
        """True if the transaction changes the properties of the root namespace."""
        return ROOT_NODE in self.draft.items

    @locked
    def appended(
        self, path: Path | None = None, *, format: str = DELTA_FORMAT, version: str | None = None
    ) -> Sequence[AppendedDelta]:
        """Return the deltas that the transaction appends, to one stream or to all."""
        if path is None:
            return list(self.draft.appends)
        return self.draft.own_deltas(self._stream(path, format, version, None)[2].node.key)

    def replace_appended(self, appended: Sequence[AppendedDelta]) -> None:
        """Replace all deltas that the transaction appends."""
        self.draft.appends = list(appended)

    def properties_before(self, key: str) -> Mapping[str, object] | None:
        """Return the properties that an object had before the transaction, by its key; None if it was not there."""
        item = self.draft.base.item(key)
        return None if item is None else item.revision.properties

    def changed_streams(self, id: str) -> list[str]:
        """Return the keys of the streams with an id, of any table, that the transaction makes, changes or drops."""
        items = self.draft.items
        return [key for key, item in items.items() if item.node.kind == "stream" and item.node.id == id]

    # Named snapshots

    @locked
    def snapshot(self, name: str, tables: Sequence[Path] | None = None, file: str | None = None) -> None:
        """Pin all tables, or these, as they are at the slot of this transaction.

        `file`: the id of a file that is already written and holds the state that this transaction began with.
        """
        draft = self._ready()
        keys = None if tables is None else [resolve_table(draft, object_id(path)).key for path in tables]
        of = {named_snapshots.TABLES: keys} if file is None else {named_snapshots.SLOT: draft.base.at}
        named_snapshots.create(draft, name, {named_snapshots.FILE: file or self._clock.uuid(), **of})

    @locked
    def snapshots(self) -> tuple[Revision, ...]:
        """Return the records of all named snapshots, with those that the transaction takes itself."""
        found = (self._ready().item(key) for key in self.draft.parts(""))
        return tuple(item.revision for item in found if item is not None)

    def takes_snapshot(self, name: str) -> bool:
        """Return True if the transaction takes or drops the snapshot of a name itself."""
        return snapshot_node(name) in self.draft.items

    @locked
    def drop_snapshot(self, name: str) -> None:
        item = self._ready().part(snapshot_node(name))
        if item is None:
            raise TableTagNotFoundError(f"There is no snapshot {name!r}.")
        named_snapshots.drop(self.draft, item)

    # Ending

    def commit(self) -> int:
        """Commit and return the slot that holds the transaction (the one it read, if nothing was changed)."""
        self._ready()
        self._end()
        self._committed = self._commit(self)
        return self._committed

    def attempt(self, work: Callable[[Transaction], Answer], newest: Callable[[], int]) -> tuple[Answer] | None:
        """Return the answer of `work` and commit its changes; None if the state that it read was too old.

        `newest`: looks for the newest slot. It is called after an error and after an answer without a change, which
        hold if the transaction has read that slot.
        """
        planned = self.slot
        try:
            answer = work(self)
        except CommitStateUnknownError:
            raise
        except Exception:
            if not self._open:
                raise
            self.rollback()
            if newest() == planned:
                raise
            return None
        if self.draft.empty:
            self.rollback()
            return (answer,) if newest() == planned else None
        try:
            self.commit()
        except ConcurrentModificationError:
            return None
        return (answer,)

    def rollback(self) -> None:
        """Forget all changes. Nothing was written anywhere."""
        self._end()

    def _end(self) -> None:
        self._open = False
        self.before_deltas = None  # it holds the catalog, which holds the transaction

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.rollback()
        elif self._open:
            self.commit()

    def _before_deltas(self, path: Path, format: str) -> None:
        if self.before_deltas is not None:
            self.before_deltas(path, format)

    def _ready(self) -> Draft:
        if not self._open:
            raise InvalidInputError("This transaction has ended: begin a new one.")
        if self.draft.base.at < self.draft.base.index.boundary:
            raise refused("its snapshot was collected")
        return self.draft
