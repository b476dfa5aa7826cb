"""History (`history = scd2`): `<name>__history`, a Lance table of every state a key had between two deltas.

Published with its table, in the same transaction. A history that is behind its table (it was not kept for a while, or
not from the first row on) catches up from the log as far as that is kept, else in one step to the published state.
A row is closed by the event that replaced it: `valid_to` is that event's sequence, and NULL while the row is the state.
Without a sequence both are positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import structs

from headwater.metastore import Delta, Object, Reading, Transaction
from headwater.metastore.records.objects import ACTIVE, lifecycle_of
from headwater.streams.definition import VALID_FROM as FROM
from headwater.streams.definition import VALID_TO as TO
from headwater.streams.definition import Column, Definition, from_properties, to_properties
from headwater.streams.fold.events import Rules
from headwater.streams.layout import HISTORY, LANCE, TRUNCATES, sibling
from headwater.streams.log.stored_events import LogShard, narrowed
from headwater.streams.reading.change_feed import KeyRound, TxnStep, difference, rounds
from headwater.streams.reading.fresh_reads import base_rows, rows_of_keys, whole_state
from headwater.streams.reading.position_views import PositionView, Published, newest_published, view_at
from headwater.streams.rows.hashing import MODULUS
from headwater.streams.rows.row_keys import Codes, KeyIndex, flat
from headwater.streams.serving.publish_tasks import packed, task_count, unpacked
from headwater.streams.serving.schema_evolution import published_columns
from headwater.streams.serving.serving_copy import (
    CatalogLocation,
    Lake,
    Staged,
    Staging,
    catalog_location,
    on_top,
    open_staged,
    open_version,
    set_aside,
)
from headwater.streams.serving.staged_rows import (
    Changes,
    NewFragments,
    commit_rows,
    head_of,
    index_keys,
    record,
    rows_digest,
    stage_columns,
    withdraw,
    write_rows_of,
)
from headwater.streams.stream_lookup import Stream, in_the_way
from headwater.work import Json, Runner, Task

HistoryStep = TxnStep | KeyRound
FIRST_ID = 1_000_000
"""Field ids of the history's own columns: above those of any table."""
OWN_IDS = [FIRST_ID, FIRST_ID + 1]
SHARE_ROWS = 1 << 19
"""The history of so many events is made at once: each share looks through the keys of the table and of its history."""
NOTHING: Codes = np.empty(0, np.int64)


@dataclass(frozen=True)
class History:
    """The history as staged: its stream, and the manifests to finalize after the commit."""

    stream: Stream
    staged: tuple[Staged, ...]


@dataclass(frozen=True)
class HistoryWork:
    """The publish of a history as planned at a slot. `known` is its last publish, `before` that of its table."""

    stream: Stream
    history: Stream
    view: PositionView
    known: Published | None
    before: Published | None
    slot: int
    head: tuple[int, str] | None
    staged: Staged | None = None

    def dataset(self, lake: Lake) -> Any:
        """Open the history that the publish goes on top of; None before the first."""
        if self.staged is not None:
            return open_staged(lake, self.history, self.staged)
        return open_version(lake, self.history, *self.head) if self.head else None


def publish_history(
    lake: Lake, tx: Transaction, stream: Stream, view: PositionView, before: Published | None, runner: Runner
) -> History:
    """Stage what the positions since its own last version add to the history. `before` is its table's last publish."""
    history = _opened(tx, stream)
    snapshot = lake.now()
    there = snapshot.versions(history.path) if snapshot.exists(history.path) else ()
    known = newest_published(snapshot, history) if history.version in (each.id for each in there) else None
    head = head_of(snapshot, history) if known is not None else None
    staging = Staging(lake, history, *(head or (0, "")))
    if head:
        set_aside(lake, history, head[0])
    with on_top(staging, history):
        dataset = open_version(lake, history, *head) if head else None
        if dataset is not None and known is not None and known.schema_id != history.definition.schema_id:
            dataset = stage_columns(lake, history, staging, known, runner)
        staged = staging.staged[-1] if staging.staged else None
        work = HistoryWork(stream, history, view, known, before, snapshot.slot, head, staged)
        new = _written(lake, snapshot, work, dataset, runner)
        addresses = np.concatenate([NOTHING, *(unpacked(each["addresses"]) for each in new)])
        digest = (known.digest if known is not None else 0) + sum(int(each["digest"]) for each in new)
        rows = (known.rows if known is not None else 0) + sum(each["count"] for each in new)
        written = commit_rows(lake, history, staging, dataset, NewFragments.from_json(new), addresses, view.position)
        index_keys(lake, history, staging, written, rows, runner)
    made = Published(
        0,
        view.position,
        "",
        rows,
        digest % MODULUS,
        history.definition.schema_id,
        published_columns(history.definition),
    )
    record(lake, tx, history, staging, made)
    withdraw(tx, history, staging, stream, made.position)
    return History(history, tuple(staging.staged))


def _opened(tx: Transaction, stream: Stream) -> Stream:
    """Return the history's table, which the first publish makes, with the present columns of its own table."""
    path = sibling(stream.path, HISTORY)
    wanted = history_definition(stream.definition)
    version = _version_of(tx, path, stream, to_properties(wanted))
    known = from_properties(version.properties)
    if known is None or [column.id for column in known.columns[-2:]] != OWN_IDS:
        raise in_the_way(path, stream.path, "history")
    if known != wanted:
        tx.update_table_version(path, version.id, to_properties(wanted))
    return Stream(path, version.id, version.home.rsplit("/", 1)[0], wanted)


def _version_of(tx: Transaction, path: tuple[str, ...], stream: Stream, properties: dict[str, Any]) -> Object:
    """Return the version of a history that has the id and the lifecycle of a version of its table."""
    states = {each.id: lifecycle_of(each.properties) for each in tx.versions(stream.path)}
    if not tx.exists(path):
        active = next((id for id in reversed(states) if states[id] == ACTIVE), stream.version)
        tx.create_table(path, version=active, formats=(LANCE,))
        tx.update_table_version(path, active, properties)
    known = {each.id: lifecycle_of(each.properties) for each in tx.versions(path)}
    if stream.version not in known:
        tx.create_table_version(path, stream.version, properties, formats=(LANCE,))
    if states[stream.version] == ACTIVE != known.get(stream.version):
        tx.activate_table_version(path, stream.version)
    return tx.get_table_version(path, stream.version)


def history_definition(definition: Definition) -> Definition:
    """Return the definition of the history table: the columns of the table, and the begin and end of each state."""
    kind = sequence_type(definition)
    own = (Column(FIRST_ID, FROM, kind), Column(FIRST_ID + 1, TO, kind))
    columns = tuple(Column(column.id, column.name, column.type) for column in definition.columns)
    return Definition((*columns, *own), definition.keys, (), (), {}, FIRST_ID + 2, definition.schema_id)


def sequence_type(definition: Definition) -> Any:
    """Return the type of begin and end: the sequence's, a struct for several columns, or int64 positions."""
    if not definition.sequence:
        return pa.int64()
    if len(definition.sequence) == 1:
        return definition.by_name[definition.sequence[0]].type
    return pa.struct([(name, definition.by_name[name].type) for name in definition.sequence])


def _written(lake: Lake, snapshot: Reading, work: HistoryWork, dataset: object, runner: Runner) -> list[Json]:
    """Write what changes, one share of the keys after the other, here or by tasks of the runner.

    Only the rows of one share are in memory.
    """
    deltas, is_divided = _planned(snapshot, work)
    rows = sum(file.rows or 0 for delta in deltas for file in delta.files)
    is_here = runner.in_driver(rows)
    count = max(_share_count(rows), 1 if is_here else task_count(rows, runner.cores, False)) if is_divided else 1
    shares = [LogShard(number, count) for number in range(count)] if count > 1 else [None]
    if is_here:
        return [_write_share(lake, snapshot, work, dataset, share) for share in shares]
    at = catalog_location(lake)
    tasks = [Task("headwater.streams.serving.scd2:run_history", (at, work, share)) for share in shares]
    return runner.run(tasks, f"history of {work.stream.name}")


def run_history(location: CatalogLocation, work: HistoryWork, share: LogShard | None) -> Json:
    """Write a share of a history on an executor, which reads the catalog as of the slot of the plan."""
    lake = location.catalog()
    return _write_share(lake, lake.metastore.at(work.slot), work, work.dataset(lake), share)


def _write_share(lake: Lake, snapshot: Reading, work: HistoryWork, dataset: object, share: LogShard | None) -> Json:
    found = _changes(lake, work, _walk(lake, snapshot, work, share))
    fragments = write_rows_of(lake, work.history, dataset, found)
    told = {"addresses": packed(found.addresses), "digest": str(found.digest), "count": found.count}
    return {**fragments.to_json(), **told}


def _planned(snapshot: Reading, work: HistoryWork) -> tuple[list[Delta], bool]:
    """Return the deltas that the history follows, and True if they can be divided by keys.

    A truncation is of every key. A gap in the log is closed by comparing states as a whole.
    """
    after = work.known.position if work.known is not None else 0
    deltas = _deltas(snapshot, work.stream, after, work.view)
    if _has_gap(deltas, after, work):
        assert work.before is not None
        return _deltas(snapshot, work.stream, work.before.position, work.view), False
    return deltas, not any(TRUNCATES in delta.properties for delta in deltas)


def _has_gap(deltas: Sequence[Delta], after: int, work: HistoryWork) -> bool:
    wanted = list(range(after + 1, work.view.position + 1))
    return work.before is not None and [delta.position for delta in deltas] != wanted


def _walk(lake: Lake, snapshot: Reading, work: HistoryWork, share: LogShard | None) -> list[HistoryStep]:
    """Return the steps from the history's last publish to the position that is published."""
    stream, after = work.stream, work.known.position if work.known is not None else 0
    caught_up = []
    if _has_gap(_deltas(snapshot, stream, after, work.view), after, work):
        assert work.before is not None
        after = work.before.position
        caught_up = [_caught_up(lake, snapshot, work.history, view_at(snapshot, stream, after), work.known)]
    deltas, start = _deltas(snapshot, stream, after, work.view), view_at(snapshot, stream, after)
    return [*caught_up, *(rounds(lake, snapshot, stream, start, deltas, share) if deltas else ())]


def _deltas(snapshot: Reading, stream: Stream, after: int, view: PositionView) -> list[Delta]:
    found = snapshot.deltas(stream.path, after, version=stream.version)
    return [delta for delta in found if delta.position <= view.position]


def _caught_up(lake: Lake, snapshot: Reading, history: Stream, start: PositionView, known: Published | None) -> TxnStep:
    """From the open rows of the history to the state at a publish, in one step: the log between them is collected."""
    stream, state = start.stream, whole_state(lake, start)
    rules = narrowed(stream.definition, None)
    held = rules.schema.empty_table()
    if known is not None:
        rows = base_rows(lake, PositionView(history, known.position, known, (), ()), narrowed(history.definition, None))
        held = rows.filter(rows.column(TO).is_null()).select(rules.schema.names).cast(rules.schema)
    (delta, *_) = snapshot.deltas(stream.path, format=LANCE, version=stream.version)
    return TxnStep(difference(rules, held, state.rows), state, structs.replace(delta, position=start.position))


def _share_count(rows: int) -> int:
    count = 1
    while count * SHARE_ROWS < rows:
        count *= 2
    return count


def _changes(lake: Lake, work: HistoryWork, walk: list[HistoryStep]) -> Changes:
    """Return the rows that steps open and close; count and digest are differences to what is published."""
    rules = narrowed(work.history.definition, None)
    touched = _touched(rules, walk)
    ledger = _Open(rules, touched)
    if work.known is not None and touched.num_rows:
        held = PositionView(work.history, work.view.position, work.known, (), ())
        index = KeyIndex([touched.column(name) for name in rules.keys])
        found, ids, addresses = rows_of_keys(lake, held, work.known, rules, index, touched)
        ledger.load(found, ids, addresses)
    for step in walk:
        ledger.take(work.stream.definition, step)
    rows, ids, addresses = ledger.written()
    gone = ledger.replaced()
    digest = rows_digest(rows) - rows_digest(gone)
    return Changes(rows, ids, gone, addresses, digest % MODULUS, rows.num_rows - gone.num_rows)


def _touched(rules: Rules, walk: list[HistoryStep]) -> pa.Table:
    keys = list(rules.keys)
    parts = [rules.schema.empty_table().select(keys)]
    for step in walk:
        found = step.difference
        parts += [found.inserted.select(keys), found.deleted.select(keys), found.after.select(keys)]
    return pa.concat_tables(parts)


class _Open:
    """The open rows of the touched keys, and the rows that were closed or opened.

    Rows are numbered as they come: those that are open in the history as published, then every one that begins.
    """

    def __init__(self, rules: Rules, touched: pa.Table) -> None:
        self.rules = rules
        self.index = KeyIndex([touched.column(name) for name in rules.keys])
        self.open: Codes = np.full(self.index.count, -1, np.int64)
        self.old: pa.Table = rules.schema.empty_table()
        self.ids: Codes = np.empty(0, np.int64)
        self.addresses: Codes = np.empty(0, np.int64)
        self.begun: list[pa.Table] = []
        self.count = 0
        self.closed: list[Codes] = []
        self.ends: list[Any] = []

    def load(self, found: pa.Table, ids: Codes, addresses: Codes) -> None:
        """The rows that are open in the history as published."""
        open_rows = np.flatnonzero(found.column(TO).is_null().to_numpy())
        self.old = found.take(open_rows)
        self.ids, self.addresses = ids[open_rows], addresses[open_rows]
        self.count = self.old.num_rows
        self.open[self._codes(self.old)] = np.arange(self.count)

    def take(self, definition: Definition, step: HistoryStep) -> None:
        found, (came, _, became) = step.difference, step.positions
        self._close(self._codes(found.deleted), self._ends(definition, step))
        changed, places = self._codes(found.after), places_of(definition, found.after, became)
        self._close(changed, places)
        self._begin(changed, found.after, places)
        self._begin(self._codes(found.inserted), found.inserted, places_of(definition, found.inserted, came))

    def _ends(self, definition: Definition, step: HistoryStep) -> Any:
        """Return the places at which deleted rows ended: at their deletes, from tombstones, or at the truncation."""
        deleted, position = step.difference.deleted, step.positions[1]
        own = places_of(definition, deleted, position)
        found, cut = step.state.tombstones, step.state.lines.truncation
        if not definition.sequence or not deleted.num_rows or not (found.num_rows or cut is not None):
            return own
        codes = self._codes(found)
        known = np.flatnonzero(codes >= 0)
        place = np.full(self.index.count, -1, np.int64)
        place[codes[known]] = known
        chosen = place[self._codes(deleted)]
        ends = [own, places_of(definition, found)]
        if cut is not None:  # what has no tombstone was truncated
            chosen = np.where(chosen >= 0, chosen, found.num_rows)
            ends.append(places_of(definition, cut))
        both = pa.chunked_array([chunk for each in ends for chunk in each.chunks], type=own.type)
        return both.take(np.where(chosen >= 0, len(own) + chosen, np.arange(len(own))))

    def _codes(self, rows: pa.Table) -> Codes:
        return self.index.find([rows.column(name) for name in self.rules.keys]) if rows.num_rows else NOTHING

    def _close(self, codes: Codes, ends: Any) -> None:
        places = self.open[codes]
        there = np.flatnonzero(places >= 0)
        self.closed.append(places[there])
        self.ends.append(ends.take(pa.array(there)))
        self.open[codes] = -1

    def _begin(self, codes: Codes, rows: pa.Table, starts: Any) -> None:
        self.open[codes] = np.arange(self.count, self.count + rows.num_rows)
        self.count += rows.num_rows
        columns: list[Any] = [*rows.columns, starts, pa.nulls(rows.num_rows, starts.type)]
        made = pa.Table.from_arrays(columns, names=self.rules.schema.names)
        self.begun.append(made.cast(self.rules.schema))

    def written(self) -> tuple[pa.Table, Codes, Codes]:
        """Return rows to write, the ids they keep, and the addresses of the rows they replace."""
        closed, kind = np.concatenate([NOTHING, *self.closed]), self.rules.schema.field(TO).type
        end = np.full(self.count, -1, np.int64)
        end[closed] = np.arange(len(closed))
        mine = self._replaced()
        order = np.concatenate([mine, np.arange(len(self.ids), self.count)])
        rows = pa.concat_tables([self.old.take(mine), *self.begun])
        chunks = [chunk for ends in self.ends for chunk in ends.chunks]
        ends = pa.chunked_array(chunks, type=kind).take(pa.array(end[order], mask=end[order] < 0))
        rows = rows.set_column(rows.schema.get_field_index(TO), self.rules.schema.field(TO), ends)
        ids = np.concatenate([self.ids[mine], np.full(self.count - len(self.ids), -1, np.int64)])
        return rows, ids, self.addresses[mine]

    def _replaced(self) -> Codes:
        """Return the rows of the history as published that were closed, in their order."""
        closed = np.concatenate([NOTHING, *self.closed])
        return np.sort(closed[closed < len(self.ids)])

    def replaced(self) -> pa.Table:
        return self.old.take(self._replaced())


def places_of(definition: Definition, rows: pa.Table, position: int | Codes = 0) -> Any:
    """Return the place in the order at which each row became the state; of a table without sequence the position."""
    names = definition.sequence
    if not names:
        return pa.chunked_array([pa.array(np.full(rows.num_rows, position, np.int64))])
    if len(names) == 1:
        return rows.column(names[0])
    parts: Any = [flat(rows.column(name)) for name in names]
    return pa.chunked_array([pa.StructArray.from_arrays(parts, fields=list(sequence_type(definition)))])
