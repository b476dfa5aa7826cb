"""Marks: the sequences of cells that are not those of their rows; and lines, which say the same of many rows at once.

A row without marks has every cell at its own sequence. A line says of a column that was added: rows up to this sequence
that have NULL there never wrote it. The truncation is a line too: whatever is below it was written over. Pure.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.streams.rows.row_keys import Codes, ranks

if TYPE_CHECKING:
    from headwater.streams.definition import Definition
    from headwater.streams.fold.events import Rules

Mask = npt.NDArray[np.bool_]
TRUNCATION, UNMARKED = 0, -1
"""What lines are of that are of no column, whose ids begin at 1."""


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
        """Without the entries that only say that a row has none."""
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
    """The highest sequence of rows, as a table of one; None: there is no row."""
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
