"""Tombstones and marks: what a published version knows beside its rows, in files beside the log.

A tombstone is the newest delete of a key. It stays when the row comes back: of a column that is added later, older
values were cleared by it. A publish adds a file with its new ones; what a file says of the tombstone, or of the marks,
of a key is said for all files before it. So files are only ever added, and smaller ones merged with what is new, newest
last. They are sorted by key: of the row groups only those are read that can hold a key
which is looked for.
"""

from __future__ import annotations

import io
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headwater.clock import Clock
from headwater.errors import CorruptFileError
from headwater.imports import pc
from headwater.metastore import DataFile
from headwater.store import KeyNotFoundError, Store
from headwater.streams.definition import Definition, field_id, with_id
from headwater.streams.fold.events import Marks, Rules, Watermark, joined, line, measure, no_marks
from headwater.streams.layout import CELLS, NEVER, tombstone_file
from headwater.streams.log.stored_events import narrowed, read_bytes
from headwater.streams.rows.row_keys import Codes, KeyIndex, Mask, flat, order_of
from headwater.streams.stream_lookup import Stream

ROW_GROUP = 1 << 14
FILES, LEAST = 8, 1_000
"""At most so many files are kept, and a smaller one than so many rows is always merged with what is new."""
FEW = 10_000
"""So many keys are compared with the ranges of the row groups; for more the file is read whole."""


@dataclass(frozen=True)
class TombstonesAndMarks:
    """Tombstones, and the marks of rows."""

    tombstones: pa.Table
    marks: Marks

    def __len__(self) -> int:
        return int(self.tombstones.num_rows) + len(self.marks)


def read_remembered(
    store: Store, definition: Definition, rules: Rules, files: Sequence[DataFile], index: KeyIndex | None = None
) -> TombstonesAndMarks:
    """Return the content of these files, oldest first; with an index only for its keys. Marks are of the columns of the
    rules.
    """
    wanted = _wanted(index) if index is not None else None
    return newest(rules, [_read(store, definition, rules, file, wanted, index) for file in files])


def newest(rules: Rules, parts: Sequence[TombstonesAndMarks]) -> TombstonesAndMarks:
    """Parts one after another: of each key the last tombstone, and the marks of the last part that has any of it."""
    some = [part for part in parts if len(part)]
    if not some:
        return TombstonesAndMarks(rules.tombstone.empty_table(), no_marks(rules))
    tombstones = _last(rules, [part.tombstones for part in some])
    return TombstonesAndMarks(
        pa.concat_tables([part.tombstones.take(kept) for part, kept in zip(some, tombstones, strict=True)]),
        joined(
            rules,
            [
                part.marks.take(kept)
                for part, kept in zip(some, _last(rules, [part.marks.rows for part in some]), strict=True)
            ],
        ),
    )


def _last(rules: Rules, tables: Sequence[pa.Table]) -> list[Codes]:
    """Return the rows of each table whose keys no later one has."""
    sizes = [table.num_rows for table in tables]
    if sum(size > 0 for size in sizes) < 2:
        return [np.arange(size) for size in sizes]
    index = KeyIndex(pa.concat_tables([table.select(list(rules.keys)) for table in tables]).columns)
    number = np.repeat(np.arange(len(tables)), sizes)
    last = np.zeros(index.count, np.int64)
    np.maximum.at(last, index.codes, number)
    kept = np.split(number == last[index.codes], np.cumsum(sizes)[:-1])
    return [np.flatnonzero(each) for each in kept]


def _wanted(index: KeyIndex) -> list[object] | None:
    """Return the values of the first key column that are looked for, in order; None: they are many."""
    return sorted(pc.unique(index.first).to_pylist()) if len(index.first) <= FEW else None


def _read(
    store: Store,
    definition: Definition,
    rules: Rules,
    file: DataFile,
    wanted: Sequence[object] | None,
    index: KeyIndex | None,
) -> TombstonesAndMarks:
    ids = {column.name: column.id for column in definition.columns}
    try:
        opened = pq.ParquetFile(read_bytes(store, file, wanted is None))
        names = {field_id(field): field.name for field in opened.schema_arrow}
        groups = list(range(opened.num_row_groups))
        if wanted is not None:
            groups = row_groups(opened.metadata, names[ids[definition.keys[0]]], wanted)
        table = opened.read_row_groups(groups)
    except (OSError, KeyNotFoundError, pa.ArrowInvalid) as error:
        raise CorruptFileError(file.path, f"tombstones cannot be read ({error})") from None
    columns: list[Any] = []
    for field in rules.tombstone:
        column: Any = table.column(names[ids[field.name]])
        columns.append(column.cast(field.type))
    rows = pa.Table.from_arrays(columns, schema=rules.tombstone)
    if CELLS in table.schema.names:
        rows = rows.append_column(CELLS, table.column(CELLS)).append_column(NEVER, table.column(NEVER))
    if index is not None:
        rows = rows.take(np.flatnonzero(index.holds([rows.column(name) for name in rules.keys])))
    if CELLS not in rows.schema.names:
        return TombstonesAndMarks(rows, no_marks(rules))
    is_mark = rows.column(CELLS).is_valid()
    plain, marked = rows.select(rules.tombstone.names), rows
    if pc.all(is_mark).as_py():
        plain = plain.slice(0, 0)
    else:
        plain, marked = plain.filter(pc.invert(is_mark)), rows.filter(is_mark)
    cells = _unpacked(flat(marked.column(CELLS)), {name: ids[name] for name in rules.cells if name in ids})
    never = flat(marked.column(NEVER)).to_numpy(zero_copy_only=False)
    return TombstonesAndMarks(plain, Marks(marked.select(rules.tombstone.names), cells, never))


def _packed(cells: Mapping[str, Mask], ids: Mapping[str, int], count: int) -> Any:
    """Return columns as bits, by their ids."""
    width = max((ids[name] for name in cells), default=0) // 8 + 1
    data = np.zeros((count, width), np.uint8)
    for name, mask in cells.items():
        data[:, ids[name] // 8] |= mask.astype(np.uint8) << (ids[name] % 8)
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), count, [None, pa.py_buffer(data.tobytes())])


def _unpacked(packed: Any, ids: Mapping[str, int]) -> dict[str, Mask]:
    width, count = packed.type.byte_width, len(packed)
    data = np.frombuffer(packed.buffers()[1], np.uint8, count * width, packed.offset * width)
    parts = data.reshape(count, width)
    found = {name: (parts[:, id // 8] >> (id % 8)) & 1 == 1 for name, id in ids.items() if id < 8 * width}
    return {name: mask for name, mask in found.items() if mask.any()}


def row_groups(metadata: Any, name: str, wanted: Sequence[object]) -> list[int]:
    """Return the row groups that can hold one of these values, which are in order. One that does not tell can. Pure."""
    place = metadata.schema.to_arrow_schema().get_field_index(name)
    found = []
    for group in range(metadata.num_row_groups):
        told = metadata.row_group(group).column(place).statistics
        try:
            known = told is not None and told.has_min_max
            first = bisect_left(wanted, told.min) if known else 0
            if not known or (first < len(wanted) and wanted[first] <= told.max):
                found.append(group)
        except TypeError:  # kept by Parquet as values of another kind
            found.append(group)
    return found


def add_remembered(
    store: Store, clock: Clock, stream: Stream, files: Sequence[DataFile], new: TombstonesAndMarks, watermark: Watermark
) -> tuple[DataFile, ...]:
    """Return the files that hold the old and the new ones."""
    if not len(new):
        return tuple(files)
    kept, merged, rows = list(files), [new], len(new)
    rules = narrowed(stream.definition, None)
    while kept and (kept[-1].rows < max(rows, LEAST) or len(kept) >= FILES):
        last = kept.pop()
        merged.insert(0, read_remembered(store, stream.definition, rules, [last]))
        rows += last.rows
    found = newest(rules, merged)
    return (*kept, *write_remembered(store, clock, stream, found, watermark, not kept))


def write_remembered(
    store: Store, clock: Clock, stream: Stream, found: TombstonesAndMarks, watermark: Watermark, is_first: bool = False
) -> tuple[DataFile, ...]:
    """Write one file with the newest tombstone of each key that can still matter, and marks.

    In the first file none is there to say that a row has no marks any more.
    """
    definition, rules = stream.definition, narrowed(stream.definition, None)
    tombstones, marks = found.tombstones, found.marks.marking if is_first else found.marks
    limit = line(rules, watermark)
    if limit is not None and tombstones.num_rows:
        tombstones = tombstones.take(np.flatnonzero(measure(tombstones.column(rules.sequence[0])) >= limit))
    if not tombstones.num_rows and not len(marks):
        return ()
    if tombstones.num_rows:
        tombstones = tombstones.take(KeyIndex([tombstones.column(name) for name in rules.keys]).places)
    table = pa.concat_tables([tombstones, marks.rows])
    fields = [with_id(field, definition.by_name[field.name].id) for field in table.schema]
    table = pa.Table.from_arrays(table.columns, schema=pa.schema(fields))
    if len(marks):
        count, ids = tombstones.num_rows, {column.name: column.id for column in definition.columns}
        cells = _packed(marks.cells, ids, len(marks))
        table = table.append_column(CELLS, pa.chunked_array([pa.nulls(count, cells.type), cells]))
        table = table.append_column(NEVER, pa.array(np.concatenate([np.zeros(count, bool), marks.never])))
    order = order_of([table.column(name) for name in rules.keys])
    sink = io.BytesIO()
    pq.write_table(table.take(order), sink, row_group_size=ROW_GROUP, compression="zstd", use_dictionary=False)
    key = tombstone_file(stream.home, clock.uuid())
    store.put(key, sink.getvalue())
    return (DataFile(key, table.num_rows, sink.tell()),)
