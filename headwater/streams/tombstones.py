"""Tombstones: key and sequence of deleted keys, in files beside the log, never in the serving copy.

A publish adds a file with its new ones. One that no longer holds may stay: where there is a row, the row is the state.
So files are only ever added, and merged as they grow (each at least half as large as all after it), newest last.
They are sorted by key: of the row groups only those are read that can hold a key which is looked for.
"""

from __future__ import annotations

import io
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headwater.clock import Clock
from headwater.errors import CorruptFileError
from headwater.metastore import DataFile
from headwater.store import KeyNotFoundError, Store
from headwater.streams.definition import Definition, field_id, with_id
from headwater.streams.grouping import KeyIndex, ranks
from headwater.streams.layout import tombstone_file
from headwater.streams.log_files import narrowed, read_bytes
from headwater.streams.opening import Stream
from headwater.streams.watermark import Watermark, line, measure

ROW_GROUP = 1 << 14
FEW = 10_000
"""So many keys are compared with the ranges of the row groups; for more the file is read whole."""


def read_tombstones(
    store: Store, definition: Definition, files: Sequence[DataFile], index: KeyIndex | None = None
) -> pa.Table:
    """The tombstones in these files, oldest first; with an index only those of its keys."""
    rules = narrowed(definition, [])
    marks = rules.marks
    parts = [marks.empty_table()]
    wanted = _wanted(index) if index is not None else None
    for file in files:
        table = _read(store, definition, marks, file, wanted)
        if index is not None:
            found = index.find([table.column(name) for name in definition.keys])
            table = table.take(np.flatnonzero(found >= 0))
        parts.append(table)
    return pa.concat_tables(parts)


def _wanted(index: KeyIndex) -> list[Any] | None:
    """The values of the first key column that are looked for, in order; None: they are many."""
    return sorted(pc.unique(index.first).to_pylist()) if len(index.first) <= FEW else None


def _read(store: Store, definition: Definition, marks: pa.Schema, file: DataFile, wanted: list[Any] | None) -> pa.Table:
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
    for field in marks:
        column: Any = table.column(names[ids[field.name]])
        columns.append(column.cast(field.type))
    return pa.Table.from_arrays(columns, schema=marks)


def row_groups(metadata: Any, name: str, wanted: Sequence[Any]) -> list[int]:
    """The row groups that can hold one of these values, which are in order. One that does not tell can. Pure."""
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


def add_tombstones(
    store: Store, clock: Clock, stream: Stream, files: Sequence[DataFile], new: pa.Table, watermark: Watermark
) -> tuple[DataFile, ...]:
    """The files that hold the old and the new ones."""
    if not new.num_rows:
        return tuple(files)
    kept, merged, rows = list(files), [new], new.num_rows
    while kept and kept[-1].rows < 2 * rows:
        last = kept.pop()
        merged.insert(0, read_tombstones(store, stream.definition, [last]))
        rows += last.rows
    written = write_tombstones(store, clock, stream, pa.concat_tables(merged), watermark)
    return (*kept, *written)


def write_tombstones(
    store: Store, clock: Clock, stream: Stream, tombstones: pa.Table, watermark: Watermark
) -> tuple[DataFile, ...]:
    """One file with the newest tombstone of each key that can still matter."""
    definition = stream.definition
    limit = line(definition.rules, watermark)
    if limit is not None and tombstones.num_rows:
        tombstones = tombstones.take(np.flatnonzero(measure(tombstones.column(definition.sequence[0])) >= limit))
    if not tombstones.num_rows:
        return ()
    keys = [tombstones.column(name) for name in definition.keys]
    index = KeyIndex(keys)
    newest = np.zeros(index.count, np.int64)
    newest[index.codes] = np.arange(len(index.codes))
    tombstones = tombstones.take(newest)
    order = np.argsort(ranks([tombstones.column(name) for name in definition.keys]), kind="stable")
    fields = [with_id(field, definition.by_name[field.name].id) for field in tombstones.schema]
    table = pa.Table.from_arrays(tombstones.take(order).columns, schema=pa.schema(fields))
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=ROW_GROUP, compression="zstd", use_dictionary=False)
    key = tombstone_file(stream.home, clock.uuid())
    store.put(key, sink.getvalue())
    return (DataFile(key, table.num_rows, sink.tell()),)
