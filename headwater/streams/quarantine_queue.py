"""The quarantine of a stream table as a queue: rows that fit now are taken again, or dropped.

A retry is one transaction: it voids the deltas of the quarantine that it takes rows from, keeps the other rows of those
in new ones, and lands what fits with its source and file, so that an undo of the file finds it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.arguments import checked
from headwater.errors import InvalidInputError
from headwater.metastore import Delta, Transaction
from headwater.metastore.commit.table_parts import FIRST_VERSION
from headwater.streams.definition import Definition
from headwater.streams.fold.fold import fold
from headwater.streams.layout import QUARANTINE, sibling
from headwater.streams.log.batches import (
    CHECKS,
    COLUMNS,
    KIND,
    OF_VERSION,
    ORIGIN,
    QUEUE,
    RETRY_OF,
    SCHEMA,
    EventBatch,
    batch_of,
    has_quarantine,
    quarantine,
    shape,
    write_rows,
)
from headwater.streams.log.checks import Check, with_own
from headwater.streams.log.landing import APPEND, UPSERT, BatchOrigin, Landed, Landing, LandingReport
from headwater.streams.log.landing import checked as check_batch
from headwater.streams.log.log_files import read_log, readable_positions
from headwater.streams.log.undo import void
from headwater.streams.reading.fresh_reads import state_of_keys
from headwater.streams.reading.position_views import view_at
from headwater.streams.reading.table_reads import StreamReads
from headwater.streams.rows.input_rows import DELETE, READ, TRUNCATE, InputRows, from_rows
from headwater.streams.sources.files import json_rows
from headwater.streams.stream_lookup import Stream, open_in

LATE = frozenset(("late", "too_late", "late_partial"))
UNREAD = frozenset(("parse", "unknown_op", "missing_value"))
"""Reasons of rows that no change of the table mends: nothing says what their values are."""


@dataclass(frozen=True)
class WaitingRow:
    """A row of the quarantine, with the delta that holds it and its place among the rows."""

    place: int
    delta: Delta
    number: int
    told: Mapping[str, Any]


ReadRow = tuple[WaitingRow, dict[str, Any]]
"""A row and its values."""


@dataclass(frozen=True)
class Queue:
    """The quarantine of a table in a transaction: its rows, as a table and one by one."""

    stream: Stream
    deltas: Sequence[Delta]
    table: pa.Table
    rows: Sequence[WaitingRow]

    def matching(self, reason: str | None, source: str | None) -> list[WaitingRow]:
        wanted = {"reason": reason, "source": source}
        return [row for row in self.rows if all(each in (None, row.told[name]) for name, each in wanted.items())]


@checked
class QuarantineQueue(StreamReads):
    """The verbs of a stream table's quarantine."""

    def retry_quarantined(
        self, reason: str | None = None, source: str | None = None, checks: Sequence[Check] | None = None
    ) -> LandingReport:
        """Take rows out of the quarantine that fit now, as later events of their source and file; the others stay.

        `reason` and `source`, as the quarantine shows them, choose rows. `checks`: judge by these and by those of the
        table; None: by the checks that the rows landed under. The report counts the rows that left the quarantine, and
        as `quarantined` those that stay. A late row that stands, since an undo took a later event out, only leaves it.
        """

        def work(tx: Transaction) -> tuple[list[Landed], int, int]:
            stream, queue = open_in(tx, self.path), self._queue(tx)
            chosen = [] if queue is None else queue.matching(reason, source)
            landings: list[Landing] = []
            taken: set[int] = set()
            for origin, own, rows in self._batches(tx, stream, chosen, checks):
                fitting, standing = self._fitting(tx, stream, rows, own)
                taken |= {row.place for row, _ in (*fitting, *standing)}
                if fitting:
                    verb, first = UPSERT if stream.definition.keys else APPEND, landings[0] if landings else None
                    how: dict[str, Any] = {"strict": True, "checks": own, "before": self._state(), "joins": first}
                    how |= {"origin": origin, "contract": None}
                    landings.append(Landing(self._metastore, self.path, _given(fitting), verb, **how))
            if queue is not None and taken:
                self._remove(tx, stream, queue, taken)
            return [each(tx) for each in landings], len(taken), len(chosen) - len(taken)

        landed, rows, left = self.run(work, f"retry the quarantine of {self.name}")
        positions = (delta.position or 0 for each in landed for delta in each.deltas)
        batches = [each.batch for each in landed if each.batch is not None]
        return LandingReport(
            max(positions, default=0) or self.position,
            rows,
            left,
            added=tuple(dict.fromkeys(name for batch in batches for name in batch.added)),
            widened=tuple(dict.fromkeys(name for batch in batches for name in batch.widened)),
            discarded=sum(batch.discarded for batch in batches),
            too_late=sum(each.too_late for each in landed),
        )

    def drop_quarantined(self, reason: str | None = None, source: str | None = None) -> int:
        """Drop rows of the quarantine, all or those of a reason and a source, as shown; return how many."""

        def work(tx: Transaction) -> int:
            queue = self._queue(tx)
            chosen = {row.place for row in queue.matching(reason, source)} if queue is not None else set()
            if queue is not None and chosen:
                self._remove(tx, open_in(tx, self.path), queue, chosen)
            return len(chosen)

        return self.run(work, f"drop rows of the quarantine of {self.name}")

    def _queue(self, tx: Transaction) -> Queue | None:
        """Return the rows of the quarantine. The transaction depends on them: each row leaves it once."""
        path = sibling(self.path, QUARANTINE)
        if not has_quarantine(tx, self.path):
            return None
        stream = open_in(tx, path)
        deltas = tx.deltas(path, version=stream.version)
        voided = {position for delta in deltas for position in delta.properties.get("voids", ())}
        standing = [delta for delta in deltas if delta.position not in voided]
        log = read_log(stream.definition, self._metastore.store, standing)
        table = log.events.rows.select(SCHEMA.names)
        places = zip(log.deltas.tolist(), log.numbers.tolist(), table.to_pylist(), strict=True)
        rows = [WaitingRow(place, standing[delta], *rest) for place, (delta, *rest) in enumerate(places)]
        return Queue(stream, deltas, table, rows)

    def _remove(self, tx: Transaction, stream: Stream, queue: Queue, places: Collection[int]) -> None:
        """Take rows out of the quarantine: void their deltas, and put what is left of those into new ones."""
        touched = {row.delta.position: row.delta for row in queue.rows if row.place in places}
        void(tx, tx, queue.stream, queue.deltas, list(touched.values()), **{QUEUE: True})
        for position, delta in touched.items():
            kept = [row for row in queue.rows if row.delta.position == position and row.place not in places]
            if kept:
                rows, numbers = queue.table.take([row.place for row in kept]), np.array([row.number for row in kept])
                told = {name: delta.properties[name] for name in (KIND, CHECKS, COLUMNS) if name in delta.properties}
                left = write_rows(self._metastore.store, self._metastore.clock, stream.home, rows, numbers, told)
                origin = delta.properties.get(ORIGIN)
                quarantine(tx, stream, [left], None if origin is None else {**origin, RETRY_OF: batch_of(delta)})

    def _batches(
        self, tx: Transaction, stream: Stream, rows: Sequence[WaitingRow], checks: Sequence[Check] | None
    ) -> Iterator[tuple[BatchOrigin, list[Check], list[WaitingRow]]]:
        """Yield the rows by the batch that they came with, those that a retry can read, with the checks of each."""
        with tx.unbound_logs(stream.path):
            log = tx.deltas(stream.path, version=stream.version)
        voided = {position for delta in log for position in delta.properties.get("voids", ())}
        by_place = {
            (position, delta.properties.get("file") or delta.properties.get("source")): delta
            for delta, position in zip(log, readable_positions(log), strict=True)
            if delta.position not in voided
        }
        found: dict[Any, list[WaitingRow]] = {}
        for row in rows:
            known = row.delta.properties
            if KIND not in known or known[KIND] == TRUNCATE or row.told["reason"] in UNREAD:
                continue
            came = row.delta if ORIGIN in known else by_place.get((row.told["position"], row.told["source"]))
            if came is None:
                continue  # a publish found it late, and its batch was undone or collected since
            origin = came.properties.get(ORIGIN, came.properties)
            asked = known.get(CHECKS, []) if checks is None else [[each.name, each.sql, each.action] for each in checks]
            named = tuple(origin.get(name) for name in ("source", "token", "file"))
            found.setdefault((named, batch_of(came), tuple(map(tuple, asked))), []).append(row)
        for ((source, token, file), txn, asked), some in found.items():
            origin = BatchOrigin(source, token, file, retry_of=txn)
            yield origin, [Check(*each) for each in asked], sorted(some, key=lambda row: row.number)

    def _fitting(
        self, tx: Transaction, stream: Stream, rows: Sequence[WaitingRow], checks: Sequence[Check]
    ) -> tuple[list[ReadRow], list[ReadRow]]:
        """Return the rows that the table would take now, and late ones that stand in it already."""
        read = [(row, values) for row in rows if (values := _values(row, stream)) is not None]
        judged = with_own(stream.definition.checks, checks)
        fitting = [read[place] for place in _judged(stream.definition, read, judged)]
        late = [pair for pair in fitting if pair[0].told["reason"] in LATE]
        passed, stands = self._late(tx, stream, late) if late else (set[int](), set[int]())
        standing = [pair for pair in late if pair[0].place in stands]
        return [pair for pair in fitting if pair[0].place not in passed | stands], standing

    def _late(self, tx: Transaction, stream: Stream, pairs: Sequence[ReadRow]) -> tuple[set[int], set[int]]:
        """Return the places of rows that would be late again, and of those that stand."""
        batch, definition = _shaped(stream.definition, pairs, ()), stream.definition
        with tx.unbound_logs(stream.path):
            state = state_of_keys(self._lake(), view_at(tx, stream), batch.events.rows)
        folded = fold(definition.rules, state, batch.events)
        passed = folded.late | folded.too_late
        passed = passed if folded.unplaced is None else passed | folded.unplaced
        alive = _by_key(definition.keys, state.rows)
        dead = {key: row for key, row in _by_key(definition.keys, state.tombstones).items() if key not in alive}
        held = alive, dead
        stands = set[int]()
        for row, event in zip((row for row, _ in pairs), batch.events.rows.to_pylist(), strict=True):
            is_delete = row.delta.properties[KIND] == DELETE
            names = definition.sequence if is_delete else [name for name in event if event[name] is not None]
            found = held[is_delete].get(tuple(event[name] for name in definition.keys))
            if found is not None and all(found[name] == event[name] for name in names):
                stands.add(row.place)
        return {pairs[place][0].place for place in np.flatnonzero(passed).tolist()} - stands, stands


def _by_key(keys: Sequence[str], rows: pa.Table) -> dict[tuple[object, ...], dict[str, object]]:
    return {tuple(row[name] for name in keys): row for row in rows.to_pylist()}


def _values(row: WaitingRow, stream: Stream) -> dict[str, object] | None:
    """Return the values of a row, or None if its text does not tell them: that of bytes is their digits.

    A column that was renamed since has its new name, and one that was dropped is left out, unless the contract of the
    table refuses rows with columns that it has not.
    """
    then, names = _at_landing(row.delta, stream)
    try:
        found, _ = json_rows(row.told["row"], then)
    except InvalidInputError:
        return None
    if len(found) != 1:
        return None
    unsure = [column.name for column in then.columns if _has_bytes(column.type)]
    if any(found[0].get(name) is not None for name in unsure):
        return None
    kept = {new: value for name, value in found[0].items() if (new := names.get(name, name)) is not None}
    return None if len(kept) < len(found[0]) and stream.definition.contract == "freeze" else kept


def _at_landing(delta: Delta, stream: Stream) -> tuple[Definition, dict[str, str | None]]:
    """Return the definition with the names that columns had when rows were rejected, and their names now by those; None
    for one that was dropped."""
    now, ids = stream.definition, delta.properties.get(COLUMNS)
    if ids is None or delta.properties.get(OF_VERSION, FIRST_VERSION) != stream.version:
        return now, {}
    shown = {each.id: each.name for each in now.columns}
    before = {id: name for name, id in ids.items()}
    then = [replace(each, name=before.get(each.id, each.name)) for each in now.columns]
    kept = (each for each in then if each.id in before or each.name not in ids)
    return replace(now, columns=tuple(kept)), {name: shown.get(id) for name, id in ids.items()}


def _has_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_bytes(kind.field(place).type) for place in range(kind.num_fields))
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _given(pairs: Sequence[ReadRow]) -> InputRows:
    kinds = [row.delta.properties[KIND] for row, _ in pairs]
    deletes, reads = (np.array([kind == each for kind in kinds], bool) for each in (DELETE, READ))
    found = from_rows([values for _, values in pairs])
    return InputRows(found.columns, found.length, found.present, deletes, reads if reads.any() else None)


def _shaped(definition: Definition, pairs: Sequence[ReadRow], checks: Sequence[Check]) -> EventBatch:
    return check_batch(shape(definition, _given(pairs), definition.contract), checks)[0]


def _judged(definition: Definition, pairs: Sequence[ReadRow], checks: Sequence[Check]) -> list[int]:
    """Return the places of rows that the table takes; where they are refused together, each is judged alone."""
    if not pairs:
        return []
    try:
        numbers: list[int] = _shaped(definition, pairs, checks).numbers.tolist()
    except InvalidInputError:
        if len(pairs) == 1:
            return []
        return [place for place, pair in enumerate(pairs) if _judged(definition, [pair], checks)]
    return numbers
