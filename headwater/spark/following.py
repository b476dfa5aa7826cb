"""The change log of a stream table in Spark: CHANGES FROM, readStream.changes and readStream.table.

An offset `{"position": p, "table": t}` says that all positions of table t up to p were read. A stream without a start
begins with the rows it finds, piece by piece: `{"position": p, "slot": s, "pieces": k, "table": t}` says that of the
state at p, as slot s tells it, the first k pieces were read (the fragments of the base, then what the log touches). A
query is a reader of the table, named after its checkpoint, so that collection keeps what it has not read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.errors import InvalidInputError, InvalidTableStateError, TableVersionNotFoundError
from headwater.metastore import Delta, Snapshot
from headwater.names import format_name
from headwater.spark.fresh import check_readable, lake_of, sent, shares_for
from headwater.spark.served_streams import FollowedAfar, server_of, stream_of
from headwater.spark.stream import CONSUMER, option
from headwater.spark.wire_values import Offset, Range, WireScan, WireTable
from headwater.streams.definition import Definition
from headwater.streams.layout import LANCE
from headwater.streams.log.stored_events import LogShard
from headwater.streams.reading.change_feed import INSERT, changes, grouped, readers, set_reader, walked
from headwater.streams.reading.position_views import collected, view_at
from headwater.streams.reading.table_reads import read_touched, read_untouched
from headwater.streams.serving.copy_rows import filtered
from headwater.streams.serving.serving_copy import Lake, open_version
from headwater.streams.stream_lookup import Stream, another, open_stream
from headwater.tables.scan.changes import TIMESTAMP, TYPE, VERSION
from headwater.tables.scan.parts import InitialScan, LogPart, Positions
from headwater.tables.scan.prune import pruned
from headwater.tables.scan.table_scan import EXTRAS, SMALL_ROWS, Extent, whole_fragments
from headwater.types import spark_schema, wire_schema

POSITION, SLOT, PIECES, TABLE = "position", "slot", "pieces", "table"
Options = dict[str, str]


@dataclass(frozen=True)
class Followed:
    """A stream table at a slot of its catalog."""

    divides = True
    """Whether several tasks may each read a share of a range of positions."""

    lake: Lake
    snapshot: Snapshot
    stream: Stream

    @property
    def name(self) -> str:
        return self.stream.name

    @property
    def slot(self) -> int:
        return self.snapshot.slot

    @property
    def definition(self) -> Definition:
        return self.stream.definition

    @property
    def last(self) -> int:
        return self.snapshot.last_position(self.stream.path, version=self.stream.version)

    def kept(self, after: int = 0) -> list[Delta]:
        """Return the deltas of positions after one that are there."""
        return self.snapshot.deltas(self.stream.path, after, version=self.stream.version)

    def pieces(self, position: int) -> tuple[list[Extent], int]:
        """The state at a position: the fragments of its base, and the rows of the log that touch it (-1: none)."""
        view = view_at(self.snapshot, self.stream, position)
        touching = _rows_of(view.tail) if view.tail else -1
        if view.base is None:
            return [], touching
        dataset = open_version(self.lake, self.stream, view.base.version, view.base.manifest)
        metadata = (fragment.metadata for fragment in dataset.get_fragments())
        return [Extent(each.id, each.num_rows) for each in metadata], touching

    def piece(self, part: InitialScan) -> pa.Table:
        view, names = view_at(self.snapshot, self.stream, part.position), list(self.definition.shown)
        if part.fragments is None:
            return read_touched(self.lake, view, names)
        return pa.concat_tables(read_untouched(self.lake, view, part.fragments, names))

    def changes(self, part: Positions) -> pa.Table:
        share = LogShard(part.share, part.shares) if part.shares > 1 else None
        return changes(self.lake, self.snapshot, self.stream, part.after, part.until, share)

    def inserted(self, part: Positions) -> pa.Table:
        """Return the rows of transactions that insert and change nothing."""
        parts = [self.definition.schema.empty_table()]
        for step in walked(self.lake, self.snapshot, self.stream, part.after, part.until):
            made = step.difference
            if not (made.deleted.num_rows or made.before.num_rows):
                parts.append(made.inserted.cast(parts[0].schema))
        return pa.concat_tables(parts)

    def published_ms(self) -> int | None:
        """Return the time at which the newest version was published."""
        newest = self.snapshot.newest_delta(self.stream.path, format=LANCE, version=self.stream.version)
        return None if newest is None else newest.time_ms

    def note_read(self, name: str, position: int) -> None:
        """A reader has read up to a position."""
        if readers(self.snapshot, self.stream).get(name) != position:
            self.lake.metastore.run(
                lambda tx: set_reader(tx, self.stream, name, position), f"reader {name} of {self.name}"
            )


AnyLog = Followed | FollowedAfar


def log_of(table: WireTable, slot: int | None = None) -> AnyLog:
    """Return the log of a table now, or at a slot."""
    if table.is_served:
        return FollowedAfar(server_of(table), stream_of(server_of(table), table))
    found = lake_of(table)
    snapshot = found.metastore.now() if slot is None else found.metastore.at(slot)
    stream = open_stream(snapshot, table.id)
    if table.log.id not in ("", stream.id):
        raise another(stream.name)
    return Followed(found, snapshot, stream)


def deltas_of(log: AnyLog, after: int, until: int) -> list[Delta]:
    """Return the deltas after one position up to another; 11 if some of them were collected."""
    if not 0 <= after <= until <= log.last:
        raise InvalidInputError(f"{log.name} has the positions 1 to {log.last}, not {after + 1} to {until}.")
    wanted = [delta for delta in log.kept(after) if delta.position <= until]
    if [delta.position for delta in wanted] != list(range(after + 1, until + 1)):
        raise collected(log.name, after + 1)
    return wanted


def _rows_of(deltas: Sequence[Delta]) -> int:
    return sum(file.rows or 0 for delta in deltas for file in delta.files)


def _is_undo(group: Sequence[Delta]) -> bool:
    return any("voids" in delta.properties for delta in group)


# CHANGES FROM ... TO ... ---------------------------------------------------------------------------------------------


def plan_changes(table: WireTable, asked: Range, parallelism: int) -> list[Positions]:
    """Return the parts of a range of positions or times."""
    log = log_of(table)
    return _divided(log, *_bounds(log, asked), parallelism)


def _bounds(log: AnyLog, asked: Range) -> tuple[int, int]:
    """After which position, and up to which."""
    if asked.start_micros is not None:
        low, high = asked.start_micros, asked.end_micros
        found = [
            delta.position
            for delta in log.kept()
            if _within(delta.time_ms * 1000, low, asked.start_inclusive, high, asked.end_inclusive)
        ]
        return (min(found) - 1, max(found)) if found else (0, 0)
    start = _number(log, asked.start or "1") - (1 if asked.start_inclusive else 0)
    end = log.last if asked.end is None else _number(log, asked.end) - (0 if asked.end_inclusive else 1)
    if start > log.last:
        raise InvalidInputError(f"{log.name} has the positions 1 to {log.last}: there are no changes from {start + 1}.")
    return _ended(log, max(start, 0)), _ended(log, end)


def _ended(log: AnyLog, position: int) -> int:
    """Return the last position up to this one that ends a transaction: its changes carry that one, and come all or
    none."""
    deltas = log.kept()
    txn = next((delta.txn for delta in deltas if delta.position == position), None)
    group = [delta.position for delta in deltas if delta.txn == txn]
    return position if not group or position == max(group) else min(group) - 1


def _within(micros: int, low: int, low_inclusive: bool, high: int | None, high_inclusive: bool) -> bool:
    after = micros >= low if low_inclusive else micros > low
    return after and (high is None or (micros <= high if high_inclusive else micros < high))


def _number(log: AnyLog, text: str) -> int:
    if not text.isdigit():
        raise InvalidInputError(f"{log.name} is a stream table: its versions are positions, not {text!r}.")
    return int(text)


def _divided(log: AnyLog, after: int, until: int, parallelism: int, whole: bool = False) -> list[Positions]:
    """Return a part; many events in shares of their keys, or of a table without keys by positions.

    A watermark is of all events in their order, so a table with `lateness` is not divided.
    """
    if after >= until:
        return []
    slot, deltas = log.slot, deltas_of(log, after, until)
    rows, definition = _rows_of(deltas), log.definition
    if (
        whole
        or not log.divides
        or rows < SMALL_ROWS
        or definition.rules.lateness is not None
        or parallelism < 2
        or _is_undo(deltas)
    ):
        return [Positions(slot, after, until)]
    if definition.keys:
        count = shares_for(rows, parallelism)
        return [Positions(slot, after, until, number, count) for number in range(count)]
    parts: list[Positions] = []
    start = size = 0
    for group in grouped(deltas):
        size += _rows_of(group)
        if size * parallelism >= rows:
            parts.append(Positions(slot, max(start, after), group[-1].position))
            start, size = group[-1].position, 0
    return [*parts, Positions(slot, start, until)] if size else parts


# Streams -------------------------------------------------------------------------------------------------------------


def _check_followed(log: AnyLog, options: Options, is_changes: bool) -> None:
    """A stream of rows cannot tell that a row changed, and rows with keys do."""
    if log.definition.keys and not is_changes and not _skips(options):
        raise InvalidTableStateError(
            f"{log.name} is a stream table with keys: its rows change. Read what changes with "
            "spark.readStream.changes(...), or set the option skipChangeCommits to get only the rows of transactions "
            "that insert and change nothing."
        )


def _skips(options: Options) -> bool:
    return option(options, "skipChangeCommits") == "true"


def _of(table: WireTable, offset: Offset) -> Offset:
    """Return the offset with a number that tells its table from one that gets the name later."""
    digest = hashlib.blake2b(table.log.id.encode(), digest_size=6).digest()
    return {**offset, TABLE: int.from_bytes(digest)} if table.log.id else offset


def _check_same(table: WireTable, start: Offset) -> None:
    """Error 19 for a checkpoint of another table: its positions say nothing of this one."""
    if TABLE in start and _of(table, start) != start:
        raise InvalidTableStateError(
            f"{format_name(table.id)} is another table than the one that this query has read, which was dropped or "
            "renamed: its positions are others. Start the query with a new checkpoint."
        )


def initial(table: WireTable, options: Options, is_changes: bool) -> Offset:
    """Return the start of a new query: the present rows, the newest position, or a named one."""
    return _of(table, _first(table, options, is_changes))


def _first(table: WireTable, options: Options, is_changes: bool) -> Offset:
    log = log_of(table)
    _check_followed(log, options, is_changes)
    micros = option(options, "startingMicros")
    if micros is not None:
        return {POSITION: _before(log, int(micros))}
    start = option(options, "startingVersion") or option(options, "startingPosition")
    if start is None:
        return {POSITION: log.last, SLOT: log.slot, PIECES: 0}
    if start == "latest":
        return {POSITION: log.last}
    if not start.isdigit() or int(start) < 1:
        raise InvalidInputError(f"startingVersion is {start!r}: give a position from 1 on, or 'latest'.")
    deltas_of(log, int(start) - 1, max(log.last, int(start) - 1))
    return {POSITION: _ended(log, int(start) - 1)}


def _before(log: AnyLog, micros: int) -> int:
    """Return the last position before a time."""
    deltas = log.kept()
    later = (delta.position - 1 for delta in deltas if delta.time_ms * 1000 >= micros)
    return min(later, default=log.last)


def newest(table: WireTable) -> int:
    return log_of(table).last


def latest(
    table: WireTable,
    start: Offset,
    options: Options,
    is_changes: bool,
    last: int | None = None,
    max_positions: int | None = None,
    max_rows: int | None = None,
) -> Offset:
    """Return the end of the next batch: everything that is there, or whole transactions within the limits, at least
    one."""
    _check_same(table, start)
    log = log_of(table)
    _check_followed(log, options, is_changes)
    if PIECES in start:
        return _of(table, _through_pieces(table, start, max_positions, max_rows))
    position = start[POSITION]
    deltas = deltas_of(log, position, max(position, log.last if last is None else last))
    rows = steps = 0
    for group in grouped(deltas):
        if _is_undo(group) and not is_changes and not _skips(options):
            raise InvalidTableStateError(
                f"Position {group[-1].position} of {log.name} takes rows back (an undo), and a stream of rows "
                "cannot tell that. Set the option skipChangeCommits to pass over it, or use spark.readStream.changes."
            )
        size = _rows_of(group)
        if steps and ((max_rows and rows + size > max_rows) or (max_positions and steps >= max_positions)):
            break
        position, rows, steps = group[-1].position, rows + size, steps + 1
    return _of(table, {POSITION: position})


def _through_pieces(table: WireTable, start: Offset, max_pieces: int | None, max_rows: int | None) -> Offset:
    extents, touching = log_of(table, start[SLOT]).pieces(start[POSITION])
    sizes = [*(extent.rows for extent in extents), max(touching, 0)]
    done, rows = start[PIECES], 0
    while done < len(sizes):
        taken = done - start[PIECES]
        if taken and ((max_rows and rows + sizes[done] > max_rows) or (max_pieces and taken >= max_pieces)):
            return {**start, PIECES: done}
        rows += sizes[done]
        done += 1
    return {POSITION: start[POSITION]}


def plan(
    table: WireTable, start: Offset, end: Offset, options: Options, is_changes: bool, parallelism: int
) -> Sequence[LogPart]:
    """Return the parts of the batch between two offsets."""
    _check_same(table, start)
    parts: list[LogPart] = []
    if PIECES in start:
        slot, position = start[SLOT], start[POSITION]
        extents, touching = log_of(table, slot).pieces(position)
        stop = end.get(PIECES, len(extents) + 1)
        chosen = extents[start[PIECES] : stop]
        parts += [InitialScan(slot, position, group) for group in whole_fragments(chosen, parallelism)]
        if stop > len(extents) and touching >= 0:
            parts.append(InitialScan(slot, position))
    keyed = bool(option(options, "skipChangeCommits")) and not is_changes
    return [*parts, *_divided(log_of(table), start[POSITION], end[POSITION], parallelism, whole=keyed)]


def protect(table: WireTable, checkpoint: str, options: Options, offset: Offset) -> None:
    """The query has read up to here: as a reader of the table, it keeps what comes after from being collected."""
    if option(options, "protect") == "false":
        return
    log_of(table).note_read(reader_of(checkpoint), offset[POSITION])


def reader_of(checkpoint: str) -> str:
    return CONSUMER + hashlib.sha256(checkpoint.encode()).hexdigest()[:16]


# On an executor ------------------------------------------------------------------------------------------------------


def output_schema(scan: WireScan, part: LogPart) -> pa.Schema:
    """Return the wire schema of a part's rows; 12 if a running query's columns are not the table's any more."""
    check_readable(scan)
    log = log_of(scan.table, part.slot)
    shown, trees = log.definition.shown, scan.fields or {}
    known: dict[str, Any] = {name: pruned(field, trees.get(name)) for name, field in shown.items()}
    known |= EXTRAS
    schema = pa.schema([known[name] for name in scan.columns if name in known])
    is_changed = scan.schema is not None and _types(spark_schema(schema)) != _types(scan.schema)
    if is_changed or len(schema.names) < len(scan.columns):
        raise InvalidTableStateError(f"The columns of {log.name} changed while the query ran: start it again.")
    return wire_schema(schema)


def _types(schema: Mapping[str, Any]) -> list[object]:
    return [field["type"] for field in schema["fields"]]


def read_rows(scan: WireScan, part: LogPart, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part: changes with what Spark wants to know of them, or only rows."""
    log = log_of(scan.table, part.slot)
    found = _piece(log, part, scan) if isinstance(part, InitialScan) else _changed(log, part, scan)
    rows = found if scan.filter is None else filtered(found, scan.filter)
    columns = [
        rows.column(name) if name in rows.schema.names else pa.nulls(rows.num_rows, schema.field(name).type)
        for name in scan.columns
    ]
    yield from sent(pa.table(columns, names=list(scan.columns)) if columns else rows, schema)


def _changed(log: AnyLog, part: Positions, scan: WireScan) -> pa.Table:
    if not scan.changes:
        return log.inserted(part)
    found = log.changes(part)
    return found.rename_columns([*found.schema.names[:-3], TYPE, VERSION, TIMESTAMP])


def _piece(log: AnyLog, part: InitialScan, scan: WireScan) -> pa.Table:
    """Return rows that are there when a stream begins; as changes, they are inserts at that position."""
    rows = log.piece(part)
    if not scan.changes:
        return rows
    size, micros = rows.num_rows, _time_of(log, part.position) * 1000
    rows = rows.append_column(TYPE, pa.array([INSERT] * size, pa.string()))
    rows = rows.append_column(VERSION, pa.array(np.full(size, part.position)))
    return rows.append_column(TIMESTAMP, pa.array(np.full(size, micros), pa.timestamp("us", "UTC")))


def _time_of(log: AnyLog, position: int) -> int:
    """Return the commit time of a position; of a collected one, that of the version that covers it."""
    found = log.kept(position - 1)
    if found and found[0].position == position:
        return found[0].time_ms
    covering = log.published_ms()
    if covering is None:
        raise TableVersionNotFoundError(f"Position {position} of {log.name} is not there any more.")
    return covering
