"""Files of the change log read back: their columns as they are stored, and the events in these by any later schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from headwater.errors import CorruptFileError
from headwater.metastore import DataFile
from headwater.store import KeyNotFoundError, RangedFile, Store
from headwater.streams.definition import Definition, field_id
from headwater.streams.fold.events import Events, Rules
from headwater.streams.layout import DELETES, KIND, PRESENT, READS, ROW
from headwater.streams.log.parquet_encoding import in_type
from headwater.streams.log.small_files import LARGEST, small_files
from headwater.streams.rows.hashing import buckets_of, hash_rows
from headwater.streams.rows.row_keys import Codes

ROW_GROUP = 1 << 17
MANY = 10_000
"""Rows of a file that several threads read."""
LARGE = 1 << 20
"""Of a file with more bytes than this, on an object store, the parts that are needed are sent for one by one."""


@dataclass(frozen=True)
class Share:
    """One of so many equal shares of a log, a power of two: of the keys by their buckets, else of the rows."""

    number: int
    count: int

    def of_keys(self, keys: Sequence[Any]) -> npt.NDArray[np.bool_]:
        """Return a mask of the keys in this share."""
        mine: npt.NDArray[np.bool_] = buckets_of(hash_rows(keys, len(keys[0])), self.count) == self.number
        return mine

    def of_numbers(self, numbers: Any) -> npt.NDArray[np.bool_]:
        """Return a mask of the rows of a batch in this share, by their numbers."""
        found = numbers if isinstance(numbers, np.ndarray) else numbers.to_numpy()
        mine: npt.NDArray[np.bool_] = (found // ROW_GROUP) % self.count == self.number
        return mine


def narrowed(definition: Definition, columns: Sequence[str] | None) -> Rules:
    """The rules over some columns, and those the fold needs; one at least. Every column may be NULL there."""
    needed = {*definition.keys, *definition.sequence, *(definition.schema.names if columns is None else columns)}
    needed = needed or {definition.columns[0].name}
    fields = [pa.field(column.name, column.type) for column in definition.columns if column.name in needed]
    return Rules(pa.schema(fields), definition.keys, definition.sequence, definition.rules.lateness)


def read_bytes(store: Store, file: DataFile, whole: bool = True) -> Any:
    """A file where it can be read from: its path on a local store, else its bytes, all at once or as they are asked
    for: of a large one that is not needed whole."""
    folder, read = store.abilities.path, store.abilities.read
    if folder is not None:
        return f"{folder}/{file.path}"
    if read is not None and not whole and file.bytes > LARGE:
        return RangedFile(read, file.path, file.bytes)
    return _in_memory(store, file)


def _in_memory(store: Store, file: DataFile) -> Any:
    """A whole file in memory. A small local one is read from there in two thirds of the time."""
    try:
        return pa.BufferReader(store.get(file.path))
    except KeyNotFoundError:
        raise CorruptFileError(file.path, "a file of the change log is missing") from None


def read_file(definition: Definition, rules: Rules, source: Any, key: str) -> tuple[Events, Codes]:
    """One file's events in the order they are in it, and their rows' numbers."""
    return events_of(definition, rules, [_columns_of(definition, rules, source, key, None)])


def stored(
    definition: Definition,
    rules: Rules,
    store: Store,
    file: DataFile,
    chosen: tuple[Share, Mapping[str, object]] | None,
) -> pa.Table:
    """The columns of a file as they are stored: those that are needed, or all of a small one, which is kept."""
    is_small = chosen is None and file.bytes <= LARGEST
    if not is_small:
        return _columns_of(definition, rules, read_bytes(store, file, chosen is None), file.path, chosen)
    known = small_files(store)
    found = known.get(file.path)
    if found is None:
        found = _columns_of(definition, None, _in_memory(store, file), file.path, None)
        known.keep(file.path, found)
    return found


def _columns_of(
    definition: Definition,
    rules: Rules | None,
    source: Any,
    key: str,
    chosen: tuple[Share, Mapping[str, object]] | None,
) -> pa.Table:
    """The stored columns of a file that rules need, or all; with `chosen` the rows of a share only."""
    try:
        file = pq.ParquetFile(source, pre_buffer=rules is not None)
        if rules is None:
            return file.read(use_threads=False)
        names, ids = _names_by_id(file.schema_arrow), {column.name: column.id for column in definition.columns}
        stored = set(file.schema_arrow.names)
        wanted = [names[id] for field in rules.schema if (id := ids[field.name]) in names]
        marks = [mark for field in rules.schema if (mark := f"{PRESENT}{ids[field.name]}") in stored]
        columns = [*wanted, *marks, KIND, ROW]
        if chosen is None:
            return file.read(columns, use_threads=file.metadata.num_rows > MANY)
        return _share_of(file, columns, [names[ids[name]] for name in definition.keys], *chosen)
    except (FileNotFoundError, KeyNotFoundError):
        raise CorruptFileError(key, "a file of the change log is missing") from None
    except (OSError, pa.ArrowInvalid) as error:
        raise CorruptFileError(key, f"it cannot be read as Parquet ({error})") from None


def _names_by_id(schema: pa.Schema) -> dict[int, str]:
    return {id: field.name for field in schema if (id := field_id(field)) is not None}


def alike(tables: Sequence[pa.Table]) -> Iterator[list[pa.Table]]:
    """Yield the tables in runs of one schema."""
    run: list[pa.Table] = []
    for table in tables:
        if run and not table.schema.equals(run[0].schema, check_metadata=True):
            yield run
            run = []
        run.append(table)
    if run:
        yield run


def events_of(definition: Definition, rules: Rules, tables: Sequence[pa.Table]) -> tuple[Events, Codes]:
    """The events in stored columns of one schema, one after the other, and their rows' numbers."""
    table = tables[0] if len(tables) == 1 else pa.concat_tables(tables).combine_chunks()
    names, ids = _names_by_id(table.schema), {column.name: column.id for column in definition.columns}
    stored = set(table.schema.names)
    found: list[Any] = []
    present: dict[str, npt.NDArray[np.bool_]] = {}
    for field in rules.schema:
        name = names.get(ids[field.name])
        if name is None:
            found.append(pa.nulls(table.num_rows, field.type))
            present[field.name] = np.zeros(table.num_rows, bool)
            continue
        column: Any = table.column(name)
        found.append(column if column.type == field.type else in_type(column, field.type))
        mark = f"{PRESENT}{ids[field.name]}"
        if mark in stored:
            present[field.name] = table.column(mark).to_numpy()
    rows = pa.Table.from_arrays(found, schema=rules.schema)
    kinds = table.column(KIND).to_numpy()
    reads = kinds >= READS
    events = Events(rows, kinds % READS == DELETES, present, reads if reads.any() else None)
    return events, table.column(ROW).to_numpy()


def _share_of(
    file: pq.ParquetFile, columns: list[str], keys: list[str], share: Share, known: Mapping[str, object]
) -> pa.Table:
    """The rows of a share, row group after row group, and only of those that can hold any."""
    parts = [file.schema_arrow.empty_table().select(columns)]
    for group in row_groups_of(file.metadata, known, share) if keys else range(file.num_row_groups):
        table = file.read_row_group(group, columns)
        mine = share.of_keys([table.column(name) for name in keys]) if keys else share.of_numbers(table.column(ROW))
        parts.append(table if mine.all() else table.filter(pa.array(mine)))
    return pa.concat_tables(parts)


def row_groups_of(metadata: Any, known: Mapping[str, Any], share: Share) -> list[int]:
    """The row groups of a file that can hold events of a share, by the bucket map of its delta. Pure."""
    buckets = int(known.get("buckets", 1))
    of: list[int] = []
    for bucket, rows in known.get("bucket_map", ()):
        of += [bucket] * -(-rows // ROW_GROUP)
    if len(of) != metadata.num_row_groups:
        return list(range(metadata.num_row_groups))
    fine = max(buckets, share.count)
    wide, own = fine // buckets, fine // share.count
    first, end = share.number * own, (share.number + 1) * own
    return [group for group, bucket in enumerate(of) if bucket * wide < end and first < (bucket + 1) * wide]
