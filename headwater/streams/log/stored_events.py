"""Files of the change log read back: their columns as they are stored, and the events in these by any later schema.

Parquet layout of change-log columns: small, and fast to write and read.

Whole numbers and times are packed by their differences (keys are sorted, row numbers dense), floats by the places of
their bytes, texts of few values by a dictionary; all of it is compressed lightly then. A few rows are written plainly.

Cache of the small files of the change log: a tail of many of them is landed, read and published by one process.

A file never changes, and its name is never used again. To open one as Parquet takes longer than to land its rows.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from headwater.errors import CorruptFileError
from headwater.imports import pc
from headwater.metastore import DataFile
from headwater.store import KeyNotFoundError, RangedFile, Store
from headwater.streams.definition import Definition, field_id
from headwater.streams.fold.events import Events, Rules
from headwater.streams.layout import DELETES, KIND, PRESENT, READS, ROW
from headwater.streams.rows.hashing import buckets_of, hash_rows
from headwater.streams.rows.row_keys import Codes, flat
from headwater.types import convert

ROW_GROUP = 1 << 17
MANY = 10_000
"""Rows of a file that several threads read."""
LARGE = 1 << 20
"""Of a file with more bytes than this, on an object store, the parts that are needed are sent for one by one."""


@dataclass(frozen=True)
class LogShard:
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
    """Return the rules over some columns, and those the fold needs; one at least. Every column may be NULL there."""
    needed = {*definition.keys, *definition.sequence, *(definition.schema.names if columns is None else columns)}
    needed = needed or {definition.columns[0].name}
    fields = [pa.field(column.name, column.type) for column in definition.columns if column.name in needed]
    return Rules(pa.schema(fields), definition.keys, definition.sequence, definition.rules.lateness)


def read_bytes(store: Store, file: DataFile, whole: bool = True) -> Any:
    """Return a file where it can be read from: its path on a local store, else its bytes, all at once or as they are
    asked for: of a large one that is not needed whole."""
    folder, read = store.abilities.path, store.abilities.read
    if folder is not None:
        return f"{folder}/{file.path}"
    if read is not None and not whole and file.bytes > LARGE:
        return RangedFile(read, file.path, file.bytes)
    return _in_memory(store, file)


def _in_memory(store: Store, file: DataFile) -> Any:
    """Return a whole file in memory. A small local one is read from there in two thirds of the time."""
    try:
        return pa.BufferReader(store.get(file.path))
    except KeyNotFoundError:
        raise CorruptFileError(file.path, "a file of the change log is missing") from None


def read_file(definition: Definition, rules: Rules, source: object, key: str) -> tuple[Events, Codes]:
    """One file's events in the order they are in it, and their rows' numbers."""
    return events_of(definition, rules, [_columns_of(definition, rules, source, key, None)])


def stored(
    definition: Definition,
    rules: Rules,
    store: Store,
    file: DataFile,
    chosen: tuple[LogShard, Mapping[str, object]] | None,
) -> pa.Table:
    """Return the columns of a file as they are stored: those that are needed, or all of a small one, which is kept."""
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
    chosen: tuple[LogShard, Mapping[str, object]] | None,
) -> pa.Table:
    """Return the stored columns of a file that rules need, or all; with `chosen` the rows of a share only."""
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
    """Return the events in stored columns of one schema, one after the other, and their rows' numbers."""
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
    file: pq.ParquetFile, columns: list[str], keys: list[str], share: LogShard, known: Mapping[str, object]
) -> pa.Table:
    """The rows of a share, row group after row group, and only of those that can hold any."""
    parts = [file.schema_arrow.empty_table().select(columns)]
    for group in row_groups_of(file.metadata, known, share) if keys else range(file.num_row_groups):
        table = file.read_row_group(group, columns)
        mine = share.of_keys([table.column(name) for name in keys]) if keys else share.of_numbers(table.column(ROW))
        parts.append(table if mine.all() else table.filter(pa.array(mine)))
    return pa.concat_tables(parts)


def row_groups_of(metadata: Any, known: Mapping[str, Any], share: LogShard) -> list[int]:
    """Return the row groups of a file that can hold events of a share, by the bucket map of its delta. Pure."""
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


SAMPLE, MANY_PACKED = 4096, 1 << 14
REPEATED = 4
"""A text column has few values when each comes so many times, on average."""
SMALL = 1 << 15
"""Bytes of rows that are encoded plainly: to set up better encodings takes longer than to write the rows."""
PLAIN: dict[str, Any] = {"compression": "snappy", "use_dictionary": False, "write_statistics": False}


def by_dictionary(column: Any) -> Any:
    """Texts of few values as a dictionary of them, which is ordered and written faster; any other column as it is."""
    kind = column.type
    if len(column) < MANY_PACKED or not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return column
    step = len(column) // SAMPLE
    some = column.take(pa.array(range(0, step * SAMPLE, step)))
    if pc.count_distinct(some).as_py() * REPEATED > SAMPLE:
        return column
    coded = flat(column).dictionary_encode()
    return coded if len(coded.dictionary) * REPEATED <= len(column) else column


def stored_type(kind: pa.DataType) -> Any:
    """Return the type in which a file keeps values: lists of a fixed size as lists, at any depth.

    pyarrow below 26 cannot read a fixed-size list with a NULL back from Parquet.
    """
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, kind.item_field.with_type(stored_type(kind.item_type)))
    if pa.types.is_struct(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        return pa.struct([field.with_type(stored_type(field.type)) for field in fields])
    if pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(stored_type(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(stored_type(kind.value_type)))
    return kind


def as_stored(column: Any) -> Any:
    """Return a column in the type in which a file keeps its values."""
    kind = stored_type(column.type)
    return column if kind == column.type else in_type(column, kind)


def in_type(column: Any, kind: Any) -> Any:
    """Return a column in another type: lists of a fixed size are cast by our own rule, which knows NULLs."""
    is_nested: bool = pa.types.is_nested(kind)
    if not is_nested:
        return column.cast(kind)
    return pa.chunked_array([convert(chunk, kind, exact=True) for chunk in column.chunks], kind)


def encode(table: pa.Table, parts: Sequence[int], group: int) -> bytes:
    """Return the rows as Parquet, in row groups of at most so many rows that end where a part of so many ends."""
    sink = pa.BufferOutputStream()
    options = PLAIN if table.nbytes <= SMALL else _packing(table.schema)
    with pq.ParquetWriter(sink, table.schema, **options) as writer:
        start = 0
        for rows in parts:
            writer.write_table(table if rows == len(table) else table.slice(start, rows), row_group_size=group)
            start += rows
    return bytes(sink.getvalue().to_pybytes())


def _packing(schema: pa.Schema) -> dict[str, object]:
    """Return the options of a Parquet writer for these columns.

    No lowest and highest are kept of dictionaries: finding them takes longer than writing the column.
    """
    layouts = {field.name: layout for field in schema if (layout := _layout(field.type)) is not None}
    words = [field.name for field in schema if pa.types.is_dictionary(field.type)]
    return {
        "compression": "zstd",
        "use_dictionary": words or False,
        "column_encoding": layouts or None,
        "write_statistics": [field.name for field in schema if not pa.types.is_dictionary(field.type)],
    }


def _layout(kind: pa.DataType) -> str | None:
    if pa.types.is_integer(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        return "DELTA_BINARY_PACKED"
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return "BYTE_STREAM_SPLIT"
    return None


LARGEST = 1 << 15
"""Bytes of rows in a file that is kept."""
FILES, BYTES = 4096, 16 << 20


class SmallFiles:
    """The columns of the last small files that were written or read through one store."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: OrderedDict[str, pa.Table] = OrderedDict()
        self._bytes = 0

    def get(self, key: str) -> pa.Table | None:
        return self._tables.get(key)

    def keep(self, key: str, table: pa.Table) -> None:
        """Keep the whole of a file, if it is small."""
        size = table.get_total_buffer_size()
        if size > LARGEST:
            return
        with self._lock:
            if key in self._tables:
                return
            self._tables[key] = table
            self._bytes += size
            while len(self._tables) > FILES or self._bytes > BYTES:
                self._bytes -= self._tables.popitem(last=False)[1].get_total_buffer_size()


_lock = threading.Lock()
_known: WeakKeyDictionary[Store, SmallFiles] = WeakKeyDictionary()


def small_files(store: Store) -> SmallFiles:
    """Return the cache of a store."""
    found = _known.get(store)
    if found is None:
        with _lock:
            found = _known.setdefault(store, SmallFiles())
    return found


def forget(store: Store) -> None:
    """Read the files anew from now on: who proves that they are whole does."""
    with _lock:
        _known.pop(store, None)
