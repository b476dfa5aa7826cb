"""Reads of a stream table through its handle: rows, positions, the change feed, named readers and the quarantine.

A fresh read in parts: what the tail touches, and the fragments of the base without it; or bucket by bucket.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import pyarrow as pa
from msgspec import structs

from headwater.arguments import checked
from headwater.errors import InvalidInputError, TableNotFoundError
from headwater.metastore import Delta, Metastore, Reading, Transaction
from headwater.metastore.commit.table_parts import partition_id
from headwater.metastore.sessions import PresentSession, Session
from headwater.names import format_name
from headwater.streams.definition import Definition
from headwater.streams.fold.events import Rules
from headwater.streams.layout import QUARANTINE, sibling
from headwater.streams.log.batches import SCHEMA as QUARANTINE_SCHEMA
from headwater.streams.log.batches import has_quarantine, with_positions
from headwater.streams.log.log_files import read_log
from headwater.streams.log.source_ledger import FILE, UNDONE, LedgerEntry, files_taken
from headwater.streams.log.stored_events import LogShard
from headwater.streams.reading.change_feed import (
    changes,
    drop_reader,
    forget,
    hand_out,
    handed,
    readers,
    set_reader,
    walked,
)
from headwater.streams.reading.fresh_reads import base_names, check_columns, count, in_schema, output, read, shown_state
from headwater.streams.reading.position_views import PositionView, Published, newest_published, view_at
from headwater.streams.rows.row_keys import KeyIndex
from headwater.streams.serving.compaction import coverage
from headwater.streams.serving.copy_rows import filtered
from headwater.streams.serving.derived_columns import Identify, identity, renewed
from headwater.streams.serving.publication import noted
from headwater.streams.serving.serving_copy import Lake, lake, open_version
from headwater.streams.serving.staged_rows import head_of, stale_rows
from headwater.streams.serving.verify import verify
from headwater.streams.stream_lookup import Stream, another, open_in, open_stream
from headwater.tables.expressions import check_sql
from headwater.tables.scan.prune import live_batches
from headwater.tables.write.arrow import Frames

Path = Sequence[str]
Answer = TypeVar("Answer")


@checked
class StreamReads(Frames):
    """A stream table as one session reads it. Cheap to make.

    Every call reads the newest state, or what its session reads.
    """

    is_stream: ClassVar[bool] = True

    def __init__(
        self,
        metastore: Metastore,
        path: Path,
        uri: str | None = None,
        storage_options: dict[str, str] | None = None,
        session: Session | None = None,
    ) -> None:
        """`session`: where it is read and written, the present by default. In a transaction its writes join that."""
        self._metastore = metastore
        self._session = session or PresentSession(metastore)
        self._uri = uri
        self._storage_options = storage_options
        self._expected: str | None = None
        self.path = tuple(path)

    @property
    def name(self) -> str:
        return format_name(self.path)

    def to_arrow(
        self,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        limit: int | None = None,
        position: int | None = None,
    ) -> pa.Table:
        """Return the rows, fresh or at a position, in no order."""
        stream, snapshot = self.opened()
        return read(self._lake(), view_at(snapshot, stream, position), columns, filter, limit)

    def count(self, position: int | None = None) -> int:
        stream, snapshot = self.opened()
        return count(self._lake(), view_at(snapshot, stream, position))

    @property
    def schema(self) -> pa.Schema:
        return self.definition.schema

    @property
    def definition(self) -> Definition:
        return self.opened()[0].definition

    @property
    def has_log(self) -> bool:
        """True if a change log feeds it: the history of a stream table is written by publishes alone."""
        stream, snapshot = self.opened()
        try:
            snapshot.get_stream(stream.path, version=stream.version)
        except TableNotFoundError:
            return False
        return True

    @property
    def version_id(self) -> str:
        """The identity of the table, independent of its name: `<table id>/<table version>`."""
        return self.opened()[0].id

    @property
    def position(self) -> int:
        """The newest position of the log; 0: nothing has landed."""
        stream, snapshot = self.opened()
        return snapshot.last_position(stream.path, version=stream.version)

    @property
    def published(self) -> Published | None:
        """The last publish: its version and position; None before the first."""
        stream, snapshot = self.opened()
        return newest_published(snapshot, stream)

    def deltas(self, after: int = 0) -> list[Delta]:
        stream, snapshot = self.opened()
        return snapshot.deltas(stream.path, after, version=stream.version)

    def files(self, source: str = "", undone: bool = False) -> dict[str, list[LedgerEntry]]:
        """Return the files that a source gave, an entry for each content; with `undone` those that were taken out
        again."""
        stream, snapshot = self.opened()
        return files_taken(snapshot.streams(stream.path, stream.version), source, UNDONE if undone else FILE)

    def changes(self, after: int = 0, until: int | None = None, reader: str | None = None) -> pa.Table:
        """Return the changes after a position, net per position: rows with `_change_type`, `_position`, `_commit_time`.

        With `reader` the catalog keeps the position, and every change comes at least once: coming back for more says
        that what this process was handed before has been read, and so does `commit_reader`. `until` may be lower.
        """
        if reader is not None:
            return self._changes_of(reader, after, until)
        stream, snapshot = self.opened()
        return changes(self._lake(), snapshot, stream, after, until)

    def _changes_of(self, reader: str, after: int, until: int | None) -> pa.Table:
        stream, snapshot = self.opened()
        known = readers(snapshot, stream)
        start = max(known.get(reader, after), self._handed(stream, reader) or 0)
        end = snapshot.last_position(stream.path, version=stream.version) if until is None else max(until, start)
        walked(self._lake(), snapshot, stream, start, end)  # raises before anything is noted
        if known.get(reader) != start:
            self.run(lambda tx: set_reader(tx, stream, reader, start), self._reader_message(reader))
        found = changes(self._lake(), snapshot, stream, start, end)
        hand_out(self._own() or self._metastore, stream, reader, end)
        return found

    def _handed(self, stream: Stream, reader: str) -> int | None:
        """Return the position up to which a reader was handed changes: in the open transaction, or by this process."""
        own = self._own()
        found = handed(own, stream, reader) if own is not None else None
        return handed(self._metastore, stream, reader) if found is None else found

    def commit_reader(self, name: str, position: int | None = None) -> int:
        """Say that a reader has read up to a position: what this process was handed last, if not told. The position.

        A lower one than now lets it read again from there.
        """
        stream, snapshot = self.opened()
        wanted = self._handed(stream, name) if position is None else position
        if wanted is None:
            raise InvalidInputError(f"The reader {name!r} of {stream.name} was handed nothing: name the position.")
        view_at(snapshot, stream, wanted)
        if not self.run(lambda tx: set_reader(tx, stream, name, wanted), self._reader_message(name)):
            raise another(stream.name)
        self._forget(stream, name)
        return wanted

    def _forget(self, stream: Stream, reader: str) -> None:
        for holder in (self._own(), self._metastore):
            if holder is not None:
                forget(holder, stream, reader)

    def _reader_message(self, name: str) -> str:
        return f"reader {name} of {self.name}"

    def readers(self, kept: bool = False) -> dict[str, int]:
        """Return the named readers, and up to which position each has read: also what it was handed last in this
        process.

        With `kept` only as far as the catalog knows.
        """
        stream, snapshot = self.opened()
        known = readers(snapshot, stream)
        if kept:
            return known
        return {name: max(at, self._handed(stream, name) or 0) for name, at in known.items()}

    def drop_reader(self, name: str) -> None:
        self._forget(self.opened()[0], name)
        self.run(lambda tx: drop_reader(tx, open_in(tx, self.path), name), f"drop reader {name}")

    def quarantine(self) -> pa.Table:
        """Return the rows that were not taken, with the reason for each; empty when there never was one."""
        path = sibling(self.path, QUARANTINE)
        if not has_quarantine(self._state(), self.path):
            return QUARANTINE_SCHEMA.empty_table()
        kept = self._beside(path)
        own = kept.deltas()
        if own and own[0].position > 1:  # collected: what the rows do not say is not known any more
            return kept.to_arrow()
        return with_positions(self._metastore.store, kept.opened()[0], own, self.deltas())

    def _beside(self, path: Path) -> StreamReads:
        """Return another stream table of the same catalog."""
        return StreamReads(self._metastore, path, self._uri, self._storage_options, self._session)

    def lineage(self, version: int | None = None) -> dict[str, Any]:
        """Return the lineage of a published version, by default the newest: see docs/streams.md."""
        stream, snapshot = self.opened()
        return noted(snapshot, stream, version)

    def coverage(self) -> dict[str, float]:
        """Return, for each index of the serving copy, the part of the rows that it covers."""
        stream, snapshot = self.opened()
        head = head_of(snapshot, stream)
        return coverage(open_version(self._lake(), stream, *head)) if head is not None else {}

    def stale(self, now: bool = False, identify: Identify = identity) -> dict[str, int]:
        """For each derived column, how many published rows have a value of an older function, or none yet.

        With `now` as the functions are now, which are imported for that; else as of the last publish or backfill.
        A column that is not published yet has a value in no row.
        """
        stream, snapshot = self.opened()
        published, head = newest_published(snapshot, stream), head_of(snapshot, stream)
        if published is None or head is None:
            return {}
        dataset = open_version(self._lake(), stream, *head)
        derived = stream.definition.derived
        if now:
            published = renewed(stream.definition, published, dataset, identify)
        known = {each.name: each for each in published.derived}
        return {
            name: stale_rows(dataset, known[name]) if name in known else dataset.count_rows()
            for name in (each.name for each in derived)
        }

    def verify(self) -> list[str]:
        """Prove the serving copy from the log: what differs, in words. An empty list: it is what it should be."""
        stream, snapshot = self.opened()
        return verify(self._lake(), snapshot, stream)

    def run(self, work: Callable[[Transaction], Answer], message: str) -> Answer:
        """Have `work` change the open transaction, or one of its own, which is repeated when it conflicts."""
        return self._session.change(work, message)

    def _lake(self) -> Lake:
        found = lake(self._metastore, self._uri, self._storage_options)
        own = self._session.transaction
        return found if own is None else replace(found, own=own)

    def opened(self) -> tuple[Stream, Reading]:
        """Return the table as it is now, and the state that it was found in."""
        snapshot = self._state()
        stream = open_stream(snapshot, self.path)
        if self._expected not in (None, stream.id):
            raise another(stream.name)
        return stream, snapshot

    def expect(self, id: str | None) -> Self:
        """Have this answer for no other table than that of an id, whoever has the name by now: it is 14 then."""
        self._expected = id
        return self

    def _own(self) -> Transaction | None:
        """Return the transaction that is open here, or None."""
        return self._session.transaction

    def _state(self) -> Reading:
        return self._session.state()


READ_ROWS = 1 << 16
"""Rows of a base that are read at once."""
KEPT_KEYS = 1 << 22
"""The keys of a tail with at most so many events stay in memory for the next part."""


class TailKeys:
    """The keys of the tail that was asked for last: the parts of a read all ask for the same."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: tuple[object, ...] = ()
        self._index: KeyIndex | None = None

    def of(self, lake: Lake, view: PositionView) -> KeyIndex | None:
        """Return the keys that the tail has events of; None: it has none, or the table is without keys."""
        definition = view.stream.definition
        if not definition.keys or not view.tail:
            return None
        files = [file for delta in view.tail for file in delta.files]
        asked = (lake.uri, definition, *(file.path for file in files))
        with self._lock:
            if self._files == asked:
                return self._index
            events = read_log(definition, lake.store, view.tail, list(definition.keys), for_state=True).events
            found = KeyIndex([events.rows.column(name) for name in definition.keys]) if len(events) else None
            if len(events) <= KEPT_KEYS:
                self._files, self._index = asked, found
            return found


TAIL_KEYS = TailKeys()


def read_untouched(
    lake: Lake, view: PositionView, fragments: Sequence[int], columns: Sequence[str], filter: str | None = None
) -> Iterator[pa.Table]:
    """Yield the rows of some fragments of the base that no event of the tail is about. With `read_touched` it is
    `read`.

    They come as they are read, at least one table, which may be empty.
    """
    definition, base = view.stream.definition, view.base
    assert base is not None
    text = check_sql("filter", filter)
    wanted = check_columns(definition, columns)
    names = list(dict.fromkeys((*(definition.shown if text is not None else wanted), *definition.keys)))
    rules = Rules(pa.schema([definition.shown[name] for name in names]), definition.keys)
    known = base_names(definition, base)
    dataset = open_version(lake, view.stream, base.version, base.manifest)
    there = [known[name] for name in names if name in known]
    parts = [dataset.get_fragment(id) for id in (() if view.truncates else fragments)]  # it is of every key
    index = TAIL_KEYS.of(lake, view)
    empty = True
    for batch in live_batches(dataset, parts, columns=there, with_row_id=not there, batch_size=READ_ROWS):
        rows = in_schema(pa.Table.from_batches([batch]), rules, known)
        if index is not None:
            touched = index.holds([rows.column(name) for name in definition.keys])
            rows = rows.take(np.flatnonzero(~touched)) if touched.any() else rows
        yield output(definition, rows if text is None else filtered(rows, text), wanted)
        empty = False
    if empty:
        yield output(definition, rules.schema.empty_table(), wanted)


def read_touched(
    lake: Lake, view: PositionView, columns: Sequence[str], filter: str | None = None, share: LogShard | None = None
) -> pa.Table:
    """Return the rows that events of the tail are about, as they are after the fold; those of a share of the keys if
    told."""
    definition = view.stream.definition
    text = check_sql("filter", filter)
    wanted = check_columns(definition, columns)
    table = shown_state(lake, view, list(definition.shown) if text is not None else wanted, True, share)
    return output(definition, table if text is None else filtered(table, text), wanted)


def read_bucket(
    lake: Lake,
    view: PositionView,
    key: tuple[object, ...],
    fragments: Sequence[int],
    columns: Sequence[str],
    filter: str | None = None,
) -> pa.Table:
    """Return the rows of one bucket, of a table in buckets of its key: of the base and of the tail."""
    definition = view.stream.definition
    text = check_sql("filter", filter)
    wanted = check_columns(definition, columns)
    landed = partition_id(key)
    of_all = view.truncates or definition.rules.lateness is not None
    others = (structs.replace(each, files=()) for each in view.tail if each.partition != landed and of_all)
    mine = (each for each in view.tail if each.partition == landed)
    own = replace(view, tail=tuple(sorted((*mine, *others), key=lambda each: each.position)))
    shown = list(definition.shown) if text is not None else wanted
    table = shown_state(lake, own, shown, fragments=fragments)
    return output(definition, table if text is None else filtered(table, text), wanted)
