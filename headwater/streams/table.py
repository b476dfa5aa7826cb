"""A stream table as its user holds it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar, cast

from headwater.arguments import checked
from headwater.errors import ConcurrentModificationError, InvalidInputError
from headwater.metastore import Metastore, Reading, Transaction
from headwater.names import format_name
from headwater.streams.definition import Definition, define, to_properties, with_properties
from headwater.streams.definition import evolve as evolve_definition
from headwater.streams.layout import DELTA, LANCE
from headwater.streams.log.checks import Check, try_checks
from headwater.streams.log.landing import APPEND, UPSERT, BatchOrigin, Landed, Landing, LandingReport, rows_so_far
from headwater.streams.log.source_ledger import LedgerEntry, batches_with, taken_with
from headwater.streams.log.statements import (
    KINDS,
    StaleError,
    Statement,
    StatementRows,
    apply_statement,
    deletion,
    prepare_rows,
    repeatable,
)
from headwater.streams.log.undo import LandedPart, TakenOut, landed_by, landed_from, take_out
from headwater.streams.quarantine_queue import QuarantineQueue
from headwater.streams.reading.change_feed import collectable, readers
from headwater.streams.reading.position_views import Published, view_at
from headwater.streams.reading.table_reads import Path
from headwater.streams.rows.input_rows import InputRows, as_input_rows
from headwater.streams.serving.backfills import (
    forget_backfill,
    stage_backfill,
    stage_compaction,
    stage_index,
    stage_indices,
)
from headwater.streams.serving.publication import Publication, finish, publish_tables
from headwater.streams.sources.files import SourceFile, find_files, is_files, names_of, naming
from headwater.streams.sources.formats import SNAPSHOT, check_format, in_batches, take, total
from headwater.streams.stream_lookup import Stream, no_deletes, open_in
from headwater.wording import landing_message
from headwater.work import HERE, Runner

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
    def landed(self: StreamTable, *args: object, **kwargs: object) -> Any:
        with self._session.landing():
            return method(self, *args, **kwargs)

    return cast(Method, landed)


@checked
class StreamTable(QuarantineQueue):
    """A change log and its serving copy under one name. Cheap to make.

    Every call reads the newest state, or what its session reads; inside a transaction its writes join that.
    """

    @classmethod
    def create(
        cls,
        metastore: Metastore,
        path: Path,
        schema: object,
        keys: Sequence[str] | str = (),
        sequence: Sequence[str] | str = (),
        partition_by: Sequence[object] | str = (),
        properties: Mapping[str, str] | None = None,
        uri: str | None = None,
        storage_options: dict[str, str] | None = None,
    ) -> StreamTable:
        """Make a stream table. `uri` is the root's address as Lance opens it, where that is not a local folder."""
        definition = define(schema, keys, sequence, partition_by, properties)
        metastore.run(lambda tx: create_stream_table(tx, path, definition), f"create stream table {format_name(path)}")
        return cls(metastore, path, uri, storage_options)

    # Landing

    def append(self, rows: object, token: str | None = None, source: str | None = None) -> LandingReport:
        """Add rows to a table without keys."""
        return self._land(as_input_rows(rows), APPEND, BatchOrigin(source, token))

    def upsert(self, rows: object, token: str | None = None, source: str | None = None) -> LandingReport:
        """Insert rows or change those of the same key. A column that a row lacks keeps its value."""
        return self._land(as_input_rows(rows), UPSERT, BatchOrigin(source, token))

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
        data: object,
        format: str = "rows",
        source: str | None = None,
        token: str | None = None,
        strict: bool = False,
        checks: Sequence[Check] = (),
        storage: Mapping[str, str] | None = None,
        **options: object,
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
        **options: object,
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

    def _verb(self, stream: Stream, data: InputRows) -> str:
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
        **options: object,
    ) -> LandingReport:
        """Take one file whose digest is known."""
        origin = BatchOrigin(source, None, file.path, file.digest)
        return self.take(file.path, format, origin, strict, options, file, checks)

    @landing
    def take(
        self,
        data: object,
        format: str,
        origin: BatchOrigin,
        strict: bool,
        options: Mapping[str, object],
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
            data = as_input_rows(data)  # it may be looked at twice

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

        def counted(tx: Transaction) -> Landed:
            landed = work(tx)
            tx.restate(planned, landing_message(verb, landed.rows, self.name))
            return landed

        with naming(file):
            work = compared if is_compared else landing_of(stream, snapshot)
            verb = UPSERT if stream.definition.keys else APPEND
            planned = f"{verb} {self.name}"
            return self.report(self.run(counted, planned))

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
    def _land(self, data: InputRows, verb: str, origin: BatchOrigin, **options: Any) -> LandingReport:
        work = Landing(self._metastore, self.path, data, verb, origin=origin, before=self._state(), **options)
        message = landing_message(verb, data.length, self.name)
        return self.report(self._session.change(work, message, refresh=False))

    def report(self, landed: Landed) -> LandingReport:
        """Return the report of a landing."""
        if landed.duplicate is not None:
            known = landed.duplicate
            position = self._position_of(known)
            return LandingReport(position, known.rows, known.quarantined, duplicate=True)
        position = max((delta.position or 0 for delta in landed.deltas), default=0) or self.position
        batch = landed.batch
        assert batch is not None
        changed = batch.added, batch.widened, batch.discarded
        return LandingReport(position, landed.rows, landed.quarantined, False, *changed, landed.checks, landed.too_late)

    def _position_of(self, taken: LedgerEntry) -> int:
        """Return the position of a batch; of a collected one, the first position that it can have had."""
        stream, snapshot = self.opened()
        found = snapshot.deltas(stream.path, taken.after, version=stream.version)
        own = (delta.position for delta in found if delta.txn == taken.txn)
        return max(own, default=taken.after + (taken.rows > 0))

    # Changing

    def publish(self, lineage: Mapping[str, object] | None = None) -> Published:
        """Make the serving copy equal to the newest state. Nothing new: no new version.

        `lineage` (a run, inputs, whatever JSON holds) is kept with the version, beside what the log knows itself.
        """
        known = {format_name(self.path): dict(lineage or {})}
        return publish_tables(self._lake(), [self.path], known, session=self._session)[0]

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
                return landed_from(parts, **how) if txn is None else landed_by(parts, txn)

            return take_out(tx, self._state(), stream, choose)

        done = self.run(work, f"undo {file or source or token or txn or digest} in {self.name}")
        position = self.position if done.made is None else done.made.position or 0
        return LandingReport(position, done.deltas, done.quarantined)

    def evolve(
        self,
        add: Mapping[str, object] | None = None,
        rename: Mapping[str, str] | None = None,
        widen: Mapping[str, object] | None = None,
        drop: Sequence[str] = (),
    ) -> Definition:
        """Change the columns; those of keys and sequence can only be widened."""
        return self._redefine(lambda known: evolve_definition(known, add, rename, widen, drop), f"evolve {self.name}")

    def set_properties(self, properties: Mapping[str, str | None]) -> Definition:
        """Set properties of the table; None takes one away."""

        def change(known: Definition) -> Definition:
            changed = with_properties(known, properties)
            if changed.rules.lateness != known.rules.lateness and self.position:
                raise InvalidInputError(
                    f"{self.name} has a log, and another lateness would change what its positions hold: "
                    "it is set before rows land."
                )
            return changed

        return self._redefine(change, f"set properties of {self.name}")

    def _redefine(self, change: Callable[[Definition], Definition], message: str) -> Definition:
        def work(tx: Transaction) -> Definition:
            stream = open_in(tx, self.path)
            changed = change(stream.definition)
            try_checks(changed.checks, changed.schema)
            if changed != stream.definition:
                tx.update_table_version(stream.path, stream.version, to_properties(changed))
            return changed

        return self.run(work, message)

    def backfill(self, rows: int | None = None, runner: Runner = HERE, batch: int | None = None) -> int:
        """Compute stale derived values again, all or about `rows` of them; return how many versions that took.

        On executors each task computes `batch` rows, and its result is kept until a version holds it.
        """

        def work(tx: Transaction) -> Publication | None:
            return stage_backfill(self._lake(), tx, self.path, rows, batch, runner)

        for version in itertools.count():
            made = self._maintained(work, f"backfill {self.name}")
            if runner is not HERE:
                forget_backfill(self._lake(), self.path)
            if not made or rows is not None:
                return version + made
        raise AssertionError("unreachable")

    def compact(self, runner: Runner = HERE) -> bool:
        """Write fragments of the serving copy again that have lost many rows; False: there were none."""
        return self._maintained(
            lambda tx: stage_compaction(self._lake(), tx, self.path, runner), f"compact {self.name}"
        )

    def create_index(
        self, column: str, type: str, name: str | None = None, runner: Runner = HERE, **options: object
    ) -> bool:
        """Index a column of the serving copy, as a version of the same rows; False when it has no rows yet.

        `runner`: the place in which its pieces are built.
        """
        return self._maintained(
            lambda tx: stage_index(self._lake(), tx, self.path, column, type, name, options, runner),
            f"index {column} of {self.name}",
        )

    def update_indices(self, runner: Runner = HERE) -> bool:
        """Add to the indices of the serving copy the rows that they lack; False: they lack none."""
        return self._maintained(
            lambda tx: stage_indices(self._lake(), tx, self.path, runner), f"indices of {self.name}"
        )

    def _maintained(self, work: Callable[[Transaction], Publication | None], message: str) -> bool:
        """Commit a version that `work` stages and give its manifest the final name; False: it staged none."""
        done = self.run(work, message)
        if done is not None:
            finish(self._lake(), done)
        return done is not None

    def collect(self, now_ms: int | None = None, pins: Sequence[int] = (), dry_run: bool = False) -> list[int]:
        """Drop deltas that nothing needs any more (`log_retention`, readers, `pins`); their positions."""
        self._session.check_alone("collect")
        moment = self._metastore.clock.now_ms() if now_ms is None else now_ms

        def work(tx: Transaction) -> list[int]:
            stream = open_in(tx, self.path)
            readers(tx, stream)  # one that begins meanwhile may need what is dropped, and so may an undo
            with tx.bound_by_position(stream.path, stream.version):
                found = collectable(tx, stream, moment, pins)
            for position in () if dry_run else found:
                tx.drop_delta(stream.path, position, version=stream.version)
            return found

        return self.run(work, f"collect the log of {self.name}")
