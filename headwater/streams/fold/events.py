"""Events, states and marks: input and output of the fold. Pure data, over Arrow.

Marks are the sequences of cells that are not those of their rows. A row without marks has every cell at its own
sequence. A line says the same of many rows: of a column that was added, rows up to this sequence that have NULL there
never wrote it. The truncation is a line too: whatever is below it was written over.

Lateness: how far behind the highest first sequence value before it an event may be (streams.md, rule 4). Pure.

A first sequence column is measured by plain numbers: times in their own unit, dates in days, numbers as they are.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.errors import InvalidInputError
from headwater.imports import pc
from headwater.metastore.records.deltas import parse_duration
from headwater.streams.rows.row_keys import Codes, Mask, ranks

if TYPE_CHECKING:
    from headwater.streams.definition import Definition


TRUNCATION, UNMARKED = 0, -1
"""What lines are of that are of no column, whose ids begin at 1."""
VERSION, MARKED = 3, 2
"""Versions of the fold's rules, as each publish records it: of this code, and the first that kept marks.

1: whole events were late or not, and no marks were kept. 2: the delete of a row that came back was forgotten. From
`MARKED` on a state may be folded across a change of them: the rows are the same, but for a cell that a delete of 2
should have cleared.
"""


@dataclass(frozen=True)
class Marks:
    """Key and sequence, and of which columns: one entry for all cells of a row at one sequence.

    `never`: they were never written, whatever the sequence. An entry without a column says that its row has no marks
    any more.
    """

    rows: pa.Table
    cells: Mapping[str, Mask] = field(default_factory=dict)
    never: Mask = field(default_factory=lambda: np.empty(0, bool))

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def take(self, places: Codes) -> Marks:
        return Marks(
            self.rows.take(places), {name: mask[places] for name, mask in self.cells.items()}, self.never[places]
        )

    @property
    def marking(self) -> Marks:
        """Return the marks that hold a cell, without entries that only record that a row has none."""
        some = np.zeros(len(self), bool)
        for mask in self.cells.values():
            some |= mask
        return self if some.all() else self.take(np.flatnonzero(some))


@dataclass(frozen=True)
class SequenceLines:
    """Sequences that count for all rows: tables of one row, or None.

    `unwritten`: rows up to it that have NULL in the column never wrote that. `unmarked`: rows up to it may have been
    published before marks were kept.
    """

    truncation: pa.Table | None = None
    unwritten: Mapping[str, pa.Table] = field(default_factory=dict)
    unmarked: pa.Table | None = None

    def __bool__(self) -> bool:
        return self.truncation is not None or bool(self.unwritten) or self.unmarked is not None

    @property
    def tables(self) -> list[pa.Table]:
        return [each for each in (self.truncation, self.unmarked, *self.unwritten.values()) if each is not None]


def no_marks(rules: Rules) -> Marks:
    return Marks(rules.tombstone.empty_table())


def joined(rules: Rules, parts: Iterable[Marks]) -> Marks:
    """Marks one after another."""
    some = [part for part in parts if len(part)]
    if not some:
        return no_marks(rules)
    names = {name for part in some for name in part.cells}
    cells = {name: np.concatenate([p.cells.get(name, np.zeros(len(p), bool)) for p in some]) for name in names}
    return Marks(pa.concat_tables([p.rows for p in some]), cells, np.concatenate([p.never for p in some]))


def highest(rules: Rules, tables: Sequence[pa.Table]) -> pa.Table | None:
    """Return the highest sequence of rows, as a table of one; None: there is no row."""
    both = pa.concat_tables([table.select(list(rules.sequence)) for table in tables])
    if not both.num_rows or not rules.sequence:
        return None
    return both.take([int(np.argmax(ranks(both.columns)))])


# As text, in the properties of a delta or a published version -------------------------------------------------------


def encode_sequences(definition: Definition, table: pa.Table, numbers: Sequence[int]) -> str:
    """Sequences with a number each; the columns by their ids, so that renamed and widened ones are known again."""
    names = [str(definition.by_name[name].id) for name in definition.sequence]
    columns = [table.column(name).combine_chunks() for name in definition.sequence]
    batch = pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64()), *columns], ["number", *names])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return base64.b64encode(sink.getvalue()).decode()


def decode_sequences(definition: Definition, text: str) -> tuple[pa.Table, list[int]]:
    table = pa.ipc.open_stream(base64.b64decode(text)).read_all()
    fields = [definition.rules.schema.field(name) for name in definition.sequence]
    columns: list[Any] = [table.column(str(definition.by_name[f.name].id)).cast(f.type) for f in fields]
    schema = pa.schema([pa.field(each.name, each.type) for each in fields])
    return pa.Table.from_arrays(columns, schema=schema), [int(number) for number in table.column("number").to_numpy()]


def encode_lines(definition: Definition, lines: SequenceLines) -> str | None:
    """SequenceLines as a published version keeps them."""
    known = [(TRUNCATION, lines.truncation), (UNMARKED, lines.unmarked)]
    known += [(definition.by_name[name].id, row) for name, row in lines.unwritten.items() if name in definition.by_name]
    found = [(number, row) for number, row in known if row is not None]
    if not found:
        return None
    return encode_sequences(definition, pa.concat_tables([row for _, row in found]), [number for number, _ in found])


def decode_lines(definition: Definition, text: str | None) -> SequenceLines:
    if text is None:
        return SequenceLines()
    rows, numbers = decode_sequences(definition, text)
    found = {number: rows.slice(place, 1) for place, number in enumerate(numbers)}
    names = {column.id: column.name for column in definition.columns}
    unwritten = {names[number]: row for number, row in found.items() if number in names}
    return SequenceLines(found.get(TRUNCATION), unwritten, found.get(UNMARKED))


NO_LINES = SequenceLines()


@dataclass(frozen=True)
class Rules:
    """Rules of a table's fold. `lateness`: in the unit of the first sequence column."""

    schema: pa.Schema
    keys: tuple[str, ...] = ()
    sequence: tuple[str, ...] = ()
    lateness: Any = None

    @property
    def tombstone(self) -> pa.Schema:
        """The columns of a tombstone: key and sequence."""
        return pa.schema([self.schema.field(name) for name in dict.fromkeys((*self.keys, *self.sequence))])

    @property
    def cells(self) -> list[str]:
        """The columns that an event may lack."""
        return [name for name in self.schema.names if name not in self.keys and name not in self.sequence]


@dataclass(frozen=True)
class Truncations:
    """Truncations among events: their sequences, before which event each came, and of which batch it is."""

    rows: pa.Table
    places: Codes
    batches: Codes

    def __len__(self) -> int:
        return int(self.rows.num_rows)


@dataclass(frozen=True)
class Events:
    """Changes in order of arrival. A column that some rows are missing has a mask in `present`, and null there.

    `reads` are rows of a snapshot of their source, which are never too late.
    """

    rows: pa.Table
    deletes: Mask
    present: Mapping[str, Mask] = field(default_factory=dict)
    reads: Mask | None = None
    truncations: Truncations | None = None

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def take(self, indices: Codes) -> Events:
        """Some of the events, or all in a new order, without truncations."""
        present = {name: mask[indices] for name, mask in self.present.items()}
        reads = None if self.reads is None else self.reads[indices]
        return Events(self.rows.take(indices), self.deletes[indices], present, reads)

    def gaps(self, name: str) -> Mask | None:
        """Return a mask of the events that write a column, or None if all do. A delete writes NULL into all."""
        mask = self.present.get(name)
        writes = None if mask is None else mask | self.deletes
        return None if writes is None or writes.all() else writes


@dataclass(frozen=True)
class State:
    """The rows of a table, what is known beside them, and how far its first sequence column has come."""

    rows: pa.Table
    tombstones: pa.Table
    watermark: Watermark = None
    marks: Marks | None = None
    lines: SequenceLines = NO_LINES


@dataclass(frozen=True)
class Folded:
    """Result of folding events into a state.

    `rows` now stand for their keys; `replaces` says which row of the state each takes the place of (-1: none).
    `gone` are rows of the state that were deleted. `tombstones` are the newest deletes of keys, also of those whose row
    came back: columns that are added later were cleared by them. `settled` are tombstones of the state that are older
    than these, and `unmarked` its marks that hold no more. `unplaced` are late events which marks could have placed
    that were never kept.
    """

    rows: pa.Table
    replaces: Codes
    gone: Codes
    tombstones: pa.Table
    settled: Codes
    late: Mask
    too_late: Mask
    watermark: Watermark
    marks: Marks
    unmarked: Codes
    lines: SequenceLines = NO_LINES
    unplaced: Mask | None = None


def empty(rules: Rules) -> State:
    return State(rules.schema.empty_table(), rules.tombstone.empty_table())


def concat(rules: Rules, parts: list[Events]) -> Events:
    """Return events one after another, without truncations."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return Events(rules.schema.empty_table(), np.empty(0, bool))
    names = {name for part in parts for name in part.present}
    present = {
        name: np.concatenate([part.present.get(name, np.ones(len(part), bool)) for part in parts]) for name in names
    }
    rows = pa.concat_tables([part.rows for part in parts]).combine_chunks()
    reads = None
    if any(part.reads is not None for part in parts):
        reads = np.concatenate([np.zeros(len(p), bool) if p.reads is None else p.reads for p in parts])
    return Events(rows, np.concatenate([part.deletes for part in parts]), present, reads)


Watermark = int | float | Decimal | None
TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
SAFE = 1 << 61


def parse_lateness(text: str, kind: pa.DataType) -> object:
    """Return a table's `lateness` in the measure of its first sequence column: a duration for times, a number for
    numbers."""
    if pa.types.is_timestamp(kind):
        return round(parse_duration(text).total_seconds() * TICKS[kind.unit])
    if pa.types.is_date(kind):
        return parse_duration(text) / timedelta(days=1)
    if not is_measured(kind):
        raise InvalidInputError(
            f"lateness needs a timestamp, a date or a number as the first sequence column, not {kind}."
        )
    try:
        number = Decimal(text.strip())
    except InvalidOperation:
        raise InvalidInputError(f"lateness = {text!r} must be a number: the first sequence column is {kind}.") from None
    if not number.is_finite() or number < 0:
        raise InvalidInputError(f"lateness = {text!r} must be a number that is not negative.")
    if pa.types.is_decimal(kind):
        return number
    return int(number) if number == int(number) else float(number)


@dataclass(frozen=True)
class BatchJudgement:
    """The line of each batch (None: it has none), which batch each event is of (None: all are of the first), and the
    watermark after all of them. Batches are numbered in the order of their events."""

    lines: tuple[Any, ...]
    batches: Codes | None
    watermark: Watermark

    def of(self, count: int) -> Codes:
        return np.zeros(count, np.int64) if self.batches is None else self.batches


def too_late(rules: Rules, judged: BatchJudgement, rows: pa.Table, reads: Mask | None) -> Mask:
    """Return a mask of the events below the line of their batch; the reads of a snapshot never are."""
    found = np.zeros(rows.num_rows, bool)
    if rules.lateness is None or not rows.num_rows or all(limit is None for limit in judged.lines):
        return found
    values = measure(rows.column(rules.sequence[0]))
    borders = np.searchsorted(judged.of(len(values)), np.arange(len(judged.lines) + 1)).tolist()
    for number, limit in enumerate(judged.lines):
        start, end = borders[number], borders[number + 1]
        if limit is not None and end > start:
            found[start:end] = values[start:end] < limit
    return found if reads is None else found & ~reads


def reached(rules: Rules, watermark: Watermark, parts: Sequence[pa.Table]) -> Watermark:
    """Return the watermark after rows: the highest first sequence value there is."""
    if rules.lateness is None:
        return watermark
    highs = [high_of(part.column(rules.sequence[0])) for part in parts if part.num_rows]
    return max((each for each in (watermark, *highs) if each is not None), default=None)


def high_of(column: object) -> Watermark:
    """Return the highest value of a first sequence column that has some."""
    return plain(measure(pa.chunked_array([pa.repeat(pc.max(column), 1)]))[0])


def is_measured(kind: pa.DataType) -> bool:
    """Return True if lateness can be measured by a column of this type."""
    times = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
    return bool(times or pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def line(rules: Rules, watermark: Watermark) -> Any:
    """Below this no event can apply any more, so tombstones may be forgotten; None: there is no such line."""
    return None if rules.lateness is None or watermark is None else watermark - rules.lateness


def measure(column: Any) -> npt.NDArray[Any]:
    """Return a first sequence column as numbers that can be compared and subtracted."""
    kind = column.type
    if pa.types.is_decimal(kind):
        return np.array(column.to_pylist(), dtype=object)
    if pa.types.is_floating(kind):
        return column.to_numpy().astype(np.float64)  # type: ignore[no-any-return]
    if pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_date64(kind):
        column = column.cast(pa.date32()).cast(pa.int32())
    elif pa.types.is_timestamp(kind):
        column = column.cast(pa.int64())
    values = column.to_numpy()
    if values.dtype == np.uint64 or (len(values) and max(abs(int(values.min())), abs(int(values.max()))) > SAFE):
        return values.astype(object)  # type: ignore[no-any-return]
    return values.astype(np.int64)  # type: ignore[no-any-return]


def plain(value: Any) -> Watermark:
    found: Watermark = value.item() if isinstance(value, np.generic) else value
    return found


def encoded(mark: Watermark) -> object:
    """Return a watermark as JSON holds it."""
    return ["decimal", str(mark)] if isinstance(mark, Decimal) else mark


def decoded(value: Any) -> Watermark:
    found: Watermark = Decimal(value[1]) if isinstance(value, list) else value
    return found
