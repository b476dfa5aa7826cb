"""Landing: a batch becomes deltas of the change log, in one transaction with its quarantine and its source's record.

Landing never needs the state, so writers never conflict: events are put in order when they are read. A transaction
that is run again after a conflict writes no file twice, unless the table evolved meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.clock import Clock
from headwater.errors import InvalidInputError, NamespaceNotFoundError, TableNotFoundError, TableVersionNotFoundError
from headwater.metastore import DataFile, Metastore, Reading, Transaction
from headwater.metastore.commit.draft import AppendedDelta
from headwater.store import Store
from headwater.streams.definition import Definition, to_properties
from headwater.streams.fold.events import BatchJudgement, Events, Truncations, encode_sequences, line, too_late
from headwater.streams.layout import BATCH, LANCE, TRUNCATES, log_file
from headwater.streams.log.batches import (
    REFUSE,
    RETRY_OF,
    Bad,
    EventBatch,
    Quarantined,
    RejectedRows,
    quarantine,
    shape,
    write_rejected,
)
from headwater.streams.log.checks import DROP, Check, judge, with_own
from headwater.streams.log.log_files import LogFile, bucket_count, divides, encode_events, highest_of
from headwater.streams.log.source_ledger import Ledger, LedgerEntry
from headwater.streams.log.stored_events import small_files
from headwater.streams.reading.position_views import watermark_at
from headwater.streams.rows.hashing import content_digest
from headwater.streams.rows.input_rows import InputRows, as_json
from headwater.streams.rows.row_keys import Codes, KeyIndex
from headwater.streams.stream_lookup import Stream, open_in
from headwater.tables.partitions import transformed
from headwater.wording import many

UPSERT, APPEND = "upsert", "append"
Written = tuple[tuple[Any, ...] | None, DataFile, LogFile]
"""A file of the log: the partition it is of, where it is, and what its delta says of it."""
WrittenFor = tuple[str, int]


@dataclass(frozen=True)
class LandingReport:
    """Report of a landing call. `position`: the position of its rows; of a call without effect, the newest."""

    position: int
    rows: int = 0
    quarantined: int = 0
    duplicate: bool = False
    added: tuple[str, ...] = ()
    widened: tuple[str, ...] = ()
    discarded: int = 0
    checks: Mapping[str, int] = field(default_factory=dict)
    """For each check the rows that did not hold it."""
    too_late: int = 0
    """Of the rows, those that are below the line of a table with a lateness: a publish quarantines them."""


@dataclass(frozen=True)
class BatchOrigin:
    """Origin of a batch, which identifies a repeat: the caller's token, or a file with its digest."""

    source: str | None = None
    token: str | None = None
    file: str | None = None
    digest: str | None = None
    retry_of: str | None = None
    """Of rows that are taken again out of the quarantine: the transaction that they came with."""

    def __post_init__(self) -> None:
        for name, text in (("source", self.source), ("token", self.token)):
            if not isinstance(text, str | None):
                raise InvalidInputError(f"A {name} is a text, not {text!r}.")

    @property
    def recorded(self) -> bool:
        return self.retry_of is None and (self.token is not None or self.file is not None)


@dataclass
class Landed:
    """Pending result of a landing; its deltas get their positions with the commit."""

    rows: int = 0
    quarantined: int = 0
    deltas: list[AppendedDelta] = field(default_factory=list)
    duplicate: LedgerEntry | None = None
    batch: EventBatch | None = None
    checks: dict[str, int] = field(default_factory=dict)
    too_late: int = 0


class Landing:
    """One batch on its way into a table's log. Call it with a transaction, as often as that must be run.

    `joins`: the first of several that are one batch.
    """

    def __init__(
        self,
        metastore: Metastore,
        path: Sequence[str],
        data: InputRows,
        verb: str,
        contract: str | None = REFUSE,
        strict: bool = False,
        origin: BatchOrigin | None = None,
        bad: Sequence[Quarantined] = (),
        checks: Sequence[Check] = (),
        before: Any = None,
        joins: Landing | None = None,
    ) -> None:
        self._joins = joins
        self._call = 0
        self._store = metastore.store
        self._clock = metastore.clock
        self._before = metastore.now() if before is None else before
        self._path = tuple(path)
        self._data = data
        self._verb = verb
        self._contract = contract
        self._strict = strict
        self._origin = origin or BatchOrigin()
        self._bad = bad
        self._rejected: Sequence[RejectedRows] = ()
        self._checks = checks
        self._failed: dict[str, int] = {}
        self._shaped: tuple[Definition, EventBatch] | None = None
        self._written: dict[WrittenFor, list[Written]] = {}
        self._unsynced = metastore.store.abilities.create_after is not None
        """The files are synced beside the slot that names them, where that can be."""

    def __call__(self, tx: Transaction) -> Landed:
        stream = open_in(tx, self._path)
        self._call = tx.deltas_made
        self._check_verb(stream)
        batch = self._shape(stream)
        bad = [*sourced(self._bad, self._origin), *self._quarantined(batch)]
        ledger = self._ledger(tx, stream)
        digest = self._origin.digest or (digest_of_batch(batch, bad) if ledger is not None else "")
        count = len(bad) + sum(each.file.rows for each in self._rejected)
        known = self._known(ledger, digest)
        if known is not None:
            return Landed(duplicate=known)
        if count and self._strict:
            first = bad[0] if bad else self._rejected[0].first
            raise InvalidInputError(
                f"{many(count, 'row')} cannot be taken and strict was asked for, so nothing was loaded. The first: "
                f"{first.reason}, column {first.column!r}, row {first.row[:200]}."
            )
        if batch.definition != stream.definition:
            tx.update_table_version(stream.path, stream.version, to_properties(batch.definition))
        after = self._before.last_position(stream.path, version=stream.version) if ledger is not None else 0
        appended = self._append(tx, stream, batch)
        rows = len(batch.events) + (0 if batch.truncations is None else len(batch.truncations))
        landed = Landed(rows, count, appended, batch=batch, checks=self._failed)
        landed.too_late = self._too_late(stream, batch)
        if count:
            rejected = list(self._rejected)
            if bad:
                about = bad, batch.definition, self._checks
                rejected += write_rejected(self._store, self._clock, stream.home, *about)
            quarantine(tx, stream, rejected, self._origin_properties())
        if ledger is not None:  # also of a batch without effect: a repeat may have one, and must not
            self._remember(tx, ledger, landed, digest, after)
        return landed

    def _check_verb(self, stream: Stream) -> None:
        keyed = bool(stream.definition.keys)
        if self._verb == APPEND and keyed:
            raise InvalidInputError(f"{stream.name} has keys: use upsert or delete, an append has no meaning there.")
        if self._verb != APPEND and not keyed:
            raise InvalidInputError(f"{stream.name} has no keys: it is an append-only log, use append.")

    # What was taken before

    def _ledger(self, tx: Transaction, stream: Stream) -> Ledger | None:
        if not self._origin.recorded:
            return None
        return Ledger(tx, stream.path, stream.version, self._origin.source or "")

    def _known(self, ledger: Ledger | None, digest: str) -> LedgerEntry | None:
        if ledger is None:
            return None
        if self._origin.token is not None:
            return ledger.token(self._origin.token, digest)
        return ledger.file(self._origin.file or "", digest)

    def _remember(self, tx: Transaction, ledger: Ledger, landed: Landed, digest: str, after: int) -> None:
        entry = LedgerEntry(digest, tx.id, after, landed.rows, landed.quarantined, time=self._clock.now_ms())
        if self._origin.token is not None:
            ledger.take_token(self._origin.token, entry)
        else:
            ledger.take_file(self._origin.file or "", entry)

    # What it becomes

    def _shape(self, stream: Stream) -> EventBatch:
        if self._shaped is None or self._shaped[0] != stream.definition:
            ingests = self._contract is None
            contract = self._contract if self._contract is not None else stream.definition.contract
            checks = with_own(stream.definition.checks, self._checks) if ingests else self._checks
            shaped, self._failed = checked(shape(stream.definition, self._data, contract), checks)
            self._shaped = stream.definition, shaped
        return self._shaped[1]

    def _quarantined(self, batch: EventBatch) -> Iterator[Quarantined]:
        return rejected(batch, self._data, self._origin)

    def _append(self, tx: Transaction, stream: Stream, batch: EventBatch) -> list[AppendedDelta]:
        if not len(batch.events) and batch.truncations is None:
            return []
        key = written_for(stream, batch.definition)
        if key not in self._written:
            self._written[key] = list(self._write(stream, batch)) if len(batch.events) else []
        own = {"call": self._call, **self._origin_properties()}
        if self._joins is not None:
            own[BATCH] = self._joins._call
        made = []
        cut = {} if batch.truncations is None else self._cut(batch, batch.truncations)
        written = self._written[key]
        if cut and (len(written) != 1 or written[0][0] is not None):  # of no partition
            properties = {**cut, **own}
            made.append(tx.append_delta(stream.path, [], "delete", version=stream.version, properties=properties))
            cut = {}
        for partition, file, log in written:
            properties = {**log.properties, **cut, **own}
            kind = self._kind(log)
            made.append(
                tx.append_delta(
                    stream.path,
                    [file],
                    kind,
                    partition,
                    version=stream.version,
                    properties=properties,
                    unsynced_files=[file.path] if self._unsynced else (),
                )
            )
        return made

    def _too_late(self, stream: Stream, batch: EventBatch) -> int:
        """Count the rows below the line of the batches before this one, as far as this process knows them."""
        rules = stream.definition.rules
        if rules.lateness is None:
            return 0
        try:
            mark = watermark_at(self._store, self._before, stream)
        except (NamespaceNotFoundError, TableNotFoundError, TableVersionNotFoundError):
            return 0  # the transaction that lands the rows makes the table: no batch is before this one
        found = self._measured(stream, batch)
        return int(too_late(rules, BatchJudgement((line(rules, mark),), None, None), found.rows, found.reads).sum())

    def _measured(self, stream: Stream, batch: EventBatch) -> Events:
        """Return the events with their sequences."""
        return batch.events

    def _cut(self, batch: EventBatch, cuts: Truncations) -> dict[str, Any]:
        """Return the properties of a delta that has the truncations of the batch."""
        return truncating(batch.definition, cuts, batch.events.rows)

    def _kind(self, log: LogFile) -> str:
        if self._verb == APPEND:
            return APPEND
        return "delete" if log.properties["deletes"] == log.rows else UPSERT

    def _origin_properties(self) -> dict[str, str]:
        known = self._origin
        found = {"source": known.source, "file": known.file, "token": known.token, RETRY_OF: known.retry_of}
        return {name: text for name, text in found.items() if text is not None}

    def _write(self, stream: Stream, batch: EventBatch) -> Iterator[Written]:
        known = rows_so_far(self._before, stream) if divides(len(batch.events)) else 0
        return write_batch(self._store, self._clock, stream, batch, known, durable=not self._unsynced)


def truncating(definition: Definition, cuts: Truncations, rows: pa.Table) -> dict[str, object]:
    """Return the truncations that a delta holds, or that came with its rows."""
    text = encode_sequences(definition, cuts.rows, cuts.places.tolist())
    names = list(definition.sequence)
    highest = highest_of(definition, pa.concat_tables([cuts.rows, rows.select(names)]))
    return {TRUNCATES: text, "schema": definition.schema_id, **highest}


def written_for(stream: Stream, definition: Definition) -> WrittenFor:
    """Return the folder and the schema that log files belong to; a table made again under the name has others."""
    return stream.home, definition.schema_id


def write_batch(
    store: Store, clock: Clock, stream: Stream, batch: EventBatch, rows: int, durable: bool = True
) -> Iterator[Written]:
    """Write a batch as files of the log, one for each partition. Nothing refers to them before a commit does."""
    landed = len(batch.events)
    buckets = bucket_count(rows + landed, landed) if stream.definition.keys else 1
    for values, indices in partitions_of(batch.definition, batch.events):
        events = batch.events if indices is None else batch.events.take(indices)
        numbers = batch.numbers if indices is None else batch.numbers[indices]
        log = encode_events(batch.definition, events, numbers, buckets)
        key = log_file(stream.home, clock.uuid())
        store.put(key, log.data, durable=durable)
        if log.columns is not None:
            small_files(store).keep(key, log.columns)
        yield values, DataFile(key, log.rows, len(log.data)), log


def rows_so_far(snapshot: Reading, stream: Stream) -> int:
    """Return the rows of the last publish: a guess that only chooses a number of buckets."""
    newest = snapshot.newest_delta(stream.path, format=LANCE, version=stream.version)
    return int(newest.properties.get("rows", 0)) if newest is not None else 0


def checked(batch: EventBatch, checks: Sequence[Check]) -> tuple[EventBatch, dict[str, int]]:
    """Return the batch without the rows that checks drop, and how many rows failed each."""
    judged = judge(checks, batch.events)
    failed = {each.check.name: int(each.failed.sum()) for each in judged if each.failed.any()}
    dropped: dict[int, Bad] = {}
    for each in judged:
        if each.check.action == DROP:
            for place in np.flatnonzero(each.failed).tolist():
                dropped.setdefault(place, Bad(int(batch.numbers[place]), f"check:{each.check.name}"))
    if not dropped:
        return batch, failed
    kept = np.setdiff1d(np.arange(len(batch.events)), list(dropped))
    bad = tuple(sorted((*batch.bad, *dropped.values()), key=lambda each: each.index))
    return replace(batch, events=batch.events.take(kept), numbers=batch.numbers[kept], bad=bad), failed


def sourced(bad: Sequence[Quarantined], origin: BatchOrigin) -> Iterator[Quarantined]:
    """Yield rows that a format made nothing of, with where they come from."""
    for row in bad:
        yield row if row.source is not None else replace(row, source=origin.file or origin.source)


def rejected(batch: EventBatch, data: InputRows, origin: BatchOrigin) -> Iterator[Quarantined]:
    """Yield the bad rows of a batch as the quarantine keeps them."""
    for bad in batch.bad:
        row = as_json(data.row(bad.index))
        yield Quarantined(row, bad.reason, bad.column, origin.file or origin.source, kind=data.kind(bad.index))


def digest_of_batch(batch: EventBatch, bad: Sequence[Quarantined]) -> str:
    """Return the digest of what a batch says in any form: rows in order, by field, with NULL apart from missing."""
    names: list[str] = []
    columns: list[Any] = []
    for column in batch.definition.columns:
        mask = batch.events.present.get(column.name)
        if mask is not None and not mask.any():
            continue
        names.append(str(column.id))
        columns.append(batch.events.rows.column(column.name))
        if mask is not None:
            names.append(f"{column.id} present")
            columns.append(pa.array(mask))
    names += ["deletes", "number"]
    columns += [pa.array(batch.events.deletes), pa.array(batch.numbers)]
    if batch.events.reads is not None and batch.events.reads.any():
        names, columns = [*names, "reads"], [*columns, pa.array(batch.events.reads)]
    cuts = (
        ""
        if batch.truncations is None
        else encode_sequences(batch.definition, batch.truncations.rows, batch.truncations.places.tolist())
    )
    rejected = content_digest(["row"], [pa.array([row.row for row in bad], pa.string())], len(bad)) if bad else ""
    return content_digest(names, columns, len(batch.events)) + rejected + cuts


def partitions_of(definition: Definition, events: Events) -> list[tuple[tuple[object, ...] | None, Codes | None]]:
    """The partitions a batch has events of, and which; None for a table without partitions."""
    if not definition.partition_by:
        return [(None, None)]
    columns = [transformed(_whole(events, each.column), each.transform, each.width) for each in definition.partition_by]
    filled = [pa.array([_plain(value) for value in column.to_pylist()]) for column in columns]
    index = KeyIndex([column.cast(pa.string()).fill_null("\0") for column in filled])
    found: list[tuple[tuple[Any, ...] | None, Codes | None]] = []
    for group in range(index.count):
        indices = np.flatnonzero(index.codes == group)
        values = tuple(column[int(indices[0])].as_py() for column in filled)
        found.append((values, indices))
    return found


def _whole(events: Events, name: str) -> object:
    column = events.rows.column(name)
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _plain(value: object) -> Any:
    """Return a partition value as the metastore keeps it: text, number, truth or nothing."""
    if isinstance(value, bytes):
        return value.decode(errors="surrogateescape")
    return value if value is None or isinstance(value, (int, float, bool, str)) else str(value)
