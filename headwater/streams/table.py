"""A stream table as its user holds it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import wraps
from typing import Any, ClassVar, TypeVar, cast

import pyarrow as pa

from headwater.arguments import checked
from headwater.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    TableNotFoundError,
)
from headwater.metastore import Delta, Metastore, Reading, Transaction
from headwater.metastore.sessions import PresentSession, Session
from headwater.names import format_name
from headwater.streams.backfilling import (
    forget_backfill,
    stage_backfill,
    stage_compaction,
    stage_index,
    stage_indices,
)
from headwater.streams.checks import Check, try_checks
from headwater.streams.collecting import collectable
from headwater.streams.definition import Definition, define, to_properties, with_properties
from headwater.streams.definition import evolve as evolve_definition
from headwater.streams.deleting import deletion, repeatable
from headwater.streams.derived import Identify, renewed
from headwater.streams.feed import changes
from headwater.streams.given import Given, given
from headwater.streams.landing import APPEND, UPSERT, BatchOrigin, Landed, Landing, LandingReport, rows_so_far
from headwater.streams.layout import DELTA, LANCE, QUARANTINE, sibling
from headwater.streams.ledger import FILE, UNDONE, LedgerEntry, batches_with, files_taken, taken_with
from headwater.streams.lineage import noted
from headwater.streams.opening import Stream, another, no_deletes, open_in, open_stream
from headwater.streams.position_views import Published, newest_published, view_at
from headwater.streams.publishing import Publication, finish, stage
from headwater.streams.quarantine import SCHEMA as QUARANTINE_SCHEMA
from headwater.streams.quarantine import with_positions
from headwater.streams.readers import drop_reader, forget, hand_out, handed, readers, set_reader
from headwater.streams.reading import count, read
from headwater.streams.serving_copy import Lake, lake, open_version
from headwater.streams.sources.files import SourceFile, find_files, is_files, names_of, naming
from headwater.streams.sources.formats import SNAPSHOT, check_format, in_batches, take, total
from headwater.streams.statements import KINDS, StaleError, Statement, StatementRows, apply_statement, prepare_rows
from headwater.streams.tidying import coverage
from headwater.streams.undoing import LandedPart, TakenOut, landed_from, take_out
from headwater.streams.user_functions import identity
from headwater.streams.verifying import verify
from headwater.streams.writing import head_of, stale_rows
from headwater.tables.write.arrow import Frames
from headwater.work import HERE, Runner

Path = Sequence[str]
Answer = TypeVar("Answer")
Method = TypeVar("Method", bound=Callable[..., Any])


def create_stream_table(tx: Transaction, path: Path, definition: Definition, id: str | None = None) -> None:
    """A new stream table: both its streams are there, and nothing is in them. `id`: see `Transaction.create_table`."""
    try_checks(definition.checks, definition.schema)
    tx.create_table(path, formats=(DELTA, LANCE), id=id)
    version = tx.get_table_version(path)
    tx.update_table_version(path, version.id, to_properties(definition))


def landing(method: Method) -> Method:
    """Make a method land rows without a dependency of the open transaction on what others land."""

    @wraps(method)
    def landed(self: StreamTable, *args: Any, **kwargs: Any) -> Any:
        with self._session.landing():
            return method(self, *args, **kwargs)

    return cast(Method, landed)


@checked
class StreamTable(Frames):
    """A change log and its serving copy under one name. Cheap to make.

    Every call reads the newest state, or what its session reads; inside a transaction its writes join that.
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

    @classmethod
    def create(
        cls,
        metastore: Metastore,
        path: Path,
        schema: Any,
        keys: Sequence[str] | str = (),
        sequence: Sequence[str] | str = (),
        partition_by: Sequence[Any] = (),
        properties: Mapping[str, str] | None = None,
        uri: str | None = None,
        storage_options: dict[str, str] | None = None,
    ) -> StreamTable:
        """Make a stream table. `uri` is the root's address as Lance opens it, where that is not a local folder."""
        definition = define(schema, keys, sequence, partition_by, properties)
        metastore.run(lambda tx: create_stream_table(tx, path, definition), f"create stream table {format_name(path)}")
        return cls(metastore, path, uri, storage_options)

    # Landing

    def append(self, rows: Any, token: str | None = None, source: str | None = None) -> LandingReport:
        """Add rows to a table without keys."""
        return self._land(given(rows), APPEND, BatchOrigin(source, token))

    def upsert(self, rows: Any, token: str | None = None, source: str | None = None) -> LandingReport:
        """Insert rows or change those of the same key. A column that a row lacks keeps its value."""
        return self._land(given(rows), UPSERT, BatchOrigin(source, token))

    def delete(self, what: Any, token: str | None = None, source: str | None = None) -> LandingReport:
        """Delete rows: by a SQL predicate (a text), by keys, or by rows.

        Keys without sequence values take the sequence of the row as it is now; one that is not there does nothing.
        In a table without a sequence no delete is late, so rows are looked for again if others land meanwhile.
        """

        what, is_sequenced = repeatable(what), True

        def work(tx: Transaction) -> Landed:
            nonlocal is_sequenced
            stream = open_in(tx, self.path)
            is_sequenced = bool(stream.definition.sequence)
            with tx.unbound_logs() if is_sequenced else tx.bound_by_position(stream.path, stream.version):
                found = deletion(self._lake(), view_at(tx, stream), what)
            origin = BatchOrigin(source, token, digest=found.digest)
            return Landing(self._metastore, self.path, found.data, UPSERT, origin=origin, before=tx)(tx)

        with self._session.landing():
            done = self.report(self.run(work, f"delete from {self.name}"))
        if not is_sequenced:
            self._session.depend_on_log(self.path)
        return done

    def ingest(
        self,
        data: Any,
        format: str = "rows",
        source: str | None = None,
        token: str | None = None,
        strict: bool = False,
        checks: Sequence[Check] = (),
        storage: Mapping[str, str] | None = None,
        **options: Any,
    ) -> LandingReport:
        """Take change data: rows, JSON text, or files by path or glob, in one of the formats of docs/streams.md.

        Files may be on an object store (`s3://...`), which `storage` opens, or else the options of the catalog.
        Bad rows go to the quarantine and the rest is taken; with `strict` the whole call is refused. A file, and a
        batch with a token, is taken once. Rows that do not hold a check are counted, dropped or refused as it says.
        """
        check_format(format, options)
        if not is_files(data):
            return self.take(data, format, BatchOrigin(source, token), strict, options, checks=checks)
        files = find_files(data, storage if storage is not None else self._storage_options)
        return total(self.ingest_files(files, format, source, strict, checks, **options))

    @landing
    def ingest_files(
        self,
        files: Sequence[SourceFile],
        format: str = "rows",
        source: str | None = None,
        strict: bool = False,
        checks: Sequence[Check] = (),
        **options: Any,
    ) -> list[LandingReport]:
        """Take files whose digests are known, one after another; on a table with a lateness all as one batch."""
        if len(in_batches(self, files, format)) == len(files):
            return [self.ingest_file(file, format, source, strict, checks, **options) for file in files]
        landings: list[Landing] = []
        stream, snapshot = self.opened()
        for file in files:
            with naming(file):
                taken = take(self._lake(), view_at(snapshot, stream), file.path, format, options, file)
                origin = BatchOrigin(source, None, file.path, file.digest)
                how: dict[str, Any] = {"strict": strict, "bad": taken.bad, "checks": checks, "before": snapshot}
                first = landings[0] if landings else None
                verb = self._verb(stream, taken.data)
                landings.append(
                    Landing(self._metastore, self.path, taken.data, verb, None, origin=origin, joins=first, **how)
                )
        return self.land_together(landings, files)

    def land_together(self, landings: Sequence[Landing], files: Sequence[SourceFile]) -> list[LandingReport]:
        """Land what files hold in one transaction."""

        def work(tx: Transaction) -> list[Landed]:
            found = []
            for each, file in zip(landings, files, strict=True):
                with naming(file):
                    found.append(each(tx))
            return found

        return [self.report(landed) for landed in self.run(work, f"land {len(files)} files in {self.name}")]

    def _verb(self, stream: Stream, data: Given) -> str:
        """Return the verb by which rows land; 13 for deletes from a table without keys."""
        verb = UPSERT if stream.definition.keys else APPEND
        if verb == APPEND and data.delete_mask.any():
            raise no_deletes(stream.name)
        return verb

    def ingest_file(
        self,
        file: SourceFile,
        format: str = "rows",
        source: str | None = None,
        strict: bool = False,
        checks: Sequence[Check] = (),
        **options: Any,
    ) -> LandingReport:
        """Take one file whose digest is known."""
        origin = BatchOrigin(source, None, file.path, file.digest)
        return self.take(file.path, format, origin, strict, options, file, checks)

    @landing
    def take(
        self,
        data: Any,
        format: str,
        origin: BatchOrigin,
        strict: bool,
        options: Mapping[str, Any],
        file: SourceFile | None = None,
        checks: Sequence[Check] = (),
    ) -> LandingReport:
        """As `ingest`, for one who says where the data comes from.

        A snapshot is compared with the rows that are there: if others land meanwhile, and no sequence puts their events
        in order, it is compared again.
        """
        stream, snapshot = self.opened()
        is_compared = format == SNAPSHOT and not stream.definition.sequence
        if is_compared and not isinstance(data, (str, bytes, bytearray)):
            data = given(data)  # it may be looked at twice

        def landing_of(stream: Stream, log: Reading) -> Landing:
            taken = take(self._lake(), view_at(log, stream), data, format, options, file)
            verb = self._verb(stream, taken.data)
            known = origin if origin.digest is not None else replace(origin, digest=taken.digest)
            how: dict[str, Any] = {"contract": None, "strict": strict, "bad": taken.bad, "checks": checks}
            return Landing(self._metastore, self.path, taken.data, verb, origin=known, before=log, **how)

        def compared(tx: Transaction) -> Landed:
            stream = open_in(tx, self.path)
            with tx.bound_by_position(stream.path, stream.version):
                work = landing_of(stream, tx)
            return work(tx)

        with naming(file):
            work = compared if is_compared else landing_of(stream, snapshot)
            return self.report(self.run(work, f"{UPSERT if stream.definition.keys else APPEND} {self.name}"))

    def apply(self, parts: Sequence[StatementRows], position: int | None = None) -> int:
        """Apply the rows of a SQL statement in one transaction and return the newest position.

        `position`: where it has read the table. If that has changed since, or does meanwhile, it is 14. Rows that would
        be late, and new rows whose key is there, are 13.
        """
        stream, snapshot = self.opened()
        store, clock, known = self._metastore.store, self._metastore.clock, rows_so_far(snapshot, stream)
        made: dict[str, list[Any]] = {kind: [] for kind in KINDS}
        for part in parts:
            made[part.kind].append(prepare_rows(store, clock, stream, part.rows, part.deletes, known))
        statement = Statement(**made, position=position)
        if not statement.is_empty:
            try:
                self.run(lambda tx: apply_statement(self._lake(), tx, self.path, statement), f"change {self.name}")
            except StaleError as error:
                raise ConcurrentModificationError(str(error)) from None
        return self.position

    @landing
    def _land(self, data: Given, verb: str, origin: BatchOrigin, **options: Any) -> LandingReport:
        work = Landing(self._metastore, self.path, data, verb, origin=origin, before=self._snapshot(), **options)
        return self.report(self._session.change(work, f"{verb} {self.name}", refresh=False))

    def report(self, landed: Landed) -> LandingReport:
        """Return the report of a landing."""
        if landed.duplicate is not None:
            known = landed.duplicate
            position = self._position_of(known)
            return LandingReport(position, known.rows, known.quarantined, duplicate=True)
        position = max((delta.position or 0 for delta in landed.deltas), default=0) or self.position
        batch = landed.batch
        assert batch is not None
        return LandingReport(
            position,
            landed.rows,
            landed.quarantined,
            False,
            batch.added,
            batch.widened,
            batch.discarded,
            landed.checks,
            landed.too_late,
        )

    def _position_of(self, taken: LedgerEntry) -> int:
        """Return the position of a batch; of a collected one, the first position that it can have had."""
        stream, snapshot = self.opened()
        found = snapshot.deltas(stream.path, taken.after, version=stream.version)
        own = (delta.position for delta in found if delta.txn == taken.txn)
        return max(own, default=taken.after + (taken.rows > 0))

    # Reading

    def to_arrow(
        self,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        limit: int | None = None,
        position: int | None = None,
    ) -> pa.Table:
        """The rows, fresh or at a position, in no order."""
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
        """The files that a source gave, an entry for each content; with `undone` those that were taken out again."""
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
        if known.get(reader) != start:
            self.run(lambda tx: set_reader(tx, stream, reader, start), self._reader_message(reader))
        end = snapshot.last_position(stream.path, version=stream.version) if until is None else max(until, start)
        found = changes(self._lake(), snapshot, stream, start, end)
        hand_out(self._own() or self._metastore, stream, reader, end)
        return found

    def _handed(self, stream: Stream, reader: str) -> int | None:
        """Up to where a reader was handed changes: in the open transaction, else by this process."""
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
        """The named readers, and up to which position each has read: also what it was handed last in this process.

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
        """The rows that were not taken, with the reason for each; empty when there never was one."""
        path = sibling(self.path, QUARANTINE)
        if not self._snapshot().exists(path):
            return QUARANTINE_SCHEMA.empty_table()
        kept = self._beside(path)
        own = kept.deltas()
        if own and own[0].position > 1:  # collected: what the rows do not say is not known any more
            return kept.to_arrow()
        return with_positions(self._metastore.store, kept.opened()[0], own, self.deltas())

    def _beside(self, path: Path) -> StreamTable:
        """Another stream table of the same catalog."""
        return StreamTable(self._metastore, path, self._uri, self._storage_options, self._session)

    # Changing

    def publish(self, lineage: Mapping[str, Any] | None = None) -> Published:
        """Make the serving copy equal to the newest state. Nothing new: no new version.

        `lineage` (a run, inputs, whatever JSON holds) is kept with the version, beside what the log knows itself.
        """
        known = {format_name(self.path): dict(lineage or {})}
        return publish_tables(self._lake(), [self.path], known, session=self._session)[0]

    def lineage(self, version: int | None = None) -> dict[str, Any]:
        """Return the lineage of a published version, by default the newest: see docs/streams.md."""
        stream, snapshot = self.opened()
        return noted(snapshot, stream, version)

    def undo(
        self,
        source: str | None = None,
        file: str | None = None,
        token: str | None = None,
        txn: str | None = None,
        digest: str | None = None,
    ) -> LandingReport:
        """Take out again what came from a source, a file, a batch or a transaction, as a delta of its own.

        The rows that it had quarantined go too; if it had no others, the table has no new position. With `digest` only
        what files of that very content gave. The record keeps that a file was undone. The report counts deltas, and
        rows of the quarantine.
        """

        def work(tx: Transaction) -> TakenOut:
            stream = open_in(tx, self.path)
            streams = tx.streams(stream.path, stream.version)
            how: dict[str, Any] = {
                "source": source,
                "files": names_of(file) if file is not None else None,
                "token": token,
                "batches": batches_with(streams, token) if token is not None else (),
                "among": taken_with(streams, digest) if digest is not None else None,
            }

            def choose(parts: Sequence[LandedPart]) -> Sequence[LandedPart]:
                return landed_from(parts, **how) if txn is None else [p for p in parts if p.delta.txn == txn]

            return take_out(tx, self._snapshot(), stream, choose)

        done = self.run(work, f"undo in {self.name}")
        position = self.position if done.made is None else done.made.position or 0
        return LandingReport(position, done.deltas, done.quarantined)

    def evolve(
        self,
        add: Mapping[str, Any] | None = None,
        rename: Mapping[str, str] | None = None,
        widen: Mapping[str, Any] | None = None,
        drop: Sequence[str] = (),
    ) -> Definition:
        """Change the columns; those of keys and sequence can only be widened."""

        def work(tx: Transaction) -> Definition:
            stream = open_in(tx, self.path)
            changed = evolve_definition(stream.definition, add, rename, widen, drop)
            try_checks(changed.checks, changed.schema)
            if changed != stream.definition:
                tx.update_table_version(stream.path, stream.version, to_properties(changed))
            return changed

        return self.run(work, f"evolve {self.name}")

    def set_properties(self, properties: Mapping[str, str | None]) -> Definition:
        """Set properties of the table; None takes one away."""

        def work(tx: Transaction) -> Definition:
            stream = open_in(tx, self.path)
            changed = with_properties(stream.definition, properties)
            if changed.rules.lateness != stream.definition.rules.lateness and self.position:
                raise InvalidInputError(
                    f"{self.name} has a log, and another lateness would change what its positions hold: "
                    "it is set before rows land."
                )
            try_checks(changed.checks, changed.schema)
            if changed != stream.definition:
                tx.update_table_version(stream.path, stream.version, to_properties(changed))
            return changed

        return self.run(work, f"set properties of {self.name}")

    def backfill(self, rows: int | None = None, runner: Runner = HERE, batch: int | None = None) -> int:
        """Compute stale derived values again, all or about `rows` of them; return how many versions that took.

        On executors each task computes `batch` rows, and its result is kept until a version holds it.
        """

        def work(tx: Transaction) -> Publication | None:
            return stage_backfill(self._lake(), tx, self.path, rows, batch, runner)

        for version in itertools.count():
            done = self.run(work, f"backfill {self.name}")
            if done is not None:
                finish(self._lake(), self.path, done)
            if runner is not HERE:
                forget_backfill(self._lake(), self.path)
            if done is None or rows is not None:
                return version + (done is not None)
        raise AssertionError("unreachable")

    def compact(self, runner: Runner = HERE) -> bool:
        """Write fragments of the serving copy again that have lost many rows; False: there were none."""
        done = self.run(lambda tx: stage_compaction(self._lake(), tx, self.path, runner), f"compact {self.name}")
        if done is not None:
            finish(self._lake(), self.path, done)
        return done is not None

    def create_index(
        self, column: str, type: str, name: str | None = None, runner: Runner = HERE, **options: Any
    ) -> bool:
        """Index a column of the serving copy, as a version of the same rows; False when it has no rows yet.

        `runner`: the place in which its pieces are built.
        """
        done = self.run(
            lambda tx: stage_index(self._lake(), tx, self.path, column, type, name, options, runner),
            f"index {column} of {self.name}",
        )
        if done is not None:
            finish(self._lake(), self.path, done)
        return done is not None

    def update_indices(self, runner: Runner = HERE) -> bool:
        """Add to the indices of the serving copy the rows that they lack; False: they lack none."""
        done = self.run(lambda tx: stage_indices(self._lake(), tx, self.path, runner), f"indices of {self.name}")
        if done is not None:
            finish(self._lake(), self.path, done)
        return done is not None

    def coverage(self) -> dict[str, float]:
        """For each index of the serving copy the part of the rows that it covers."""
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

    def collect(self, now_ms: int | None = None, pins: Sequence[int] = (), dry_run: bool = False) -> list[int]:
        """Drop deltas that nothing needs any more (`log_retention`, readers, `pins`); their positions."""
        self._session.check_alone("collect")
        moment = self._metastore.clock.now_ms() if now_ms is None else now_ms

        def work(tx: Transaction) -> list[int]:
            stream = open_in(tx, self.path)
            found = collectable(self._snapshot(), stream, moment, pins)
            for position in () if dry_run else found:
                tx.drop_delta(stream.path, position, version=stream.version)
            return found

        return self.run(work, f"collect the log of {self.name}")

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
        """The table as it is now, and the state that it was found in."""
        snapshot = self._snapshot()
        stream = open_stream(snapshot, self.path)
        if self._expected not in (None, stream.id):
            raise another(stream.name)
        return stream, snapshot

    def expect(self, id: str | None) -> StreamTable:
        """Have this answer for no other table than that of an id, whoever has the name by now: it is 14 then."""
        self._expected = id
        return self

    def _own(self) -> Transaction | None:
        """The transaction that is open here, or None."""
        return self._session.transaction

    def _snapshot(self) -> Reading:
        return self._session.state()


def check_once(paths: Sequence[Path]) -> None:
    """Error 13 for a table that is named twice."""
    twice = [format_name(path) for path, count in Counter(tuple(path) for path in paths).items() if count > 1]
    if twice:
        raise InvalidInputError(f"{', '.join(twice)} is named twice: a publish takes each table once.")


def publish_tables(
    lake: Lake,
    paths: Sequence[Path],
    lineage: Mapping[str, Mapping[str, Any]] | None = None,
    runner: Runner = HERE,
    session: Session | None = None,
) -> list[Published]:
    """Publish tables in one transaction, so that all are new at one slot; in the open one of a session if it has one.

    `lineage` says by dotted name what else the rows of a table come from; it is kept with the published version.
    `runner`: the place in which rows are folded and written, but not in an open transaction.
    """
    check_once(paths)
    where = session or PresentSession(lake.metastore)
    where.check_writable()
    if where.transaction is not None:
        return where.within(lambda tx: _publish_within(replace(lake, own=tx), paths, lineage or {}))

    def work(tx: Transaction) -> list[Publication]:
        return [stage(lake, tx, path, (lineage or {}).get(format_name(path)), runner) for path in paths]

    names = ", ".join(format_name(path) for path in paths)
    done = where.change(work, f"publish {names}")
    for path, publication in zip(paths, done, strict=True):
        finish(lake, path, publication)
    return [publication.published for publication in done]


def _publish_within(lake: Lake, paths: Sequence[Path], lineage: Mapping[str, Mapping[str, Any]]) -> list[Published]:
    """Publish in the open transaction what its tables hold by then, with what the transaction has landed itself.

    Where it has landed nothing in a table, what others land meanwhile waits for the next publish, as always.
    Quarantines come last: the publish of their table may land rows in them.
    """
    tx, made = lake.own, dict[Path, Published]()
    assert tx is not None
    for path in sorted(paths, key=lambda path: path[-1].endswith(QUARANTINE)):
        with nullcontext() if tx.appended(path) else tx.unbound_logs(path):
            made[path] = stage(lake, tx, path, lineage.get(format_name(path))).published
    return [made[path] for path in paths]
