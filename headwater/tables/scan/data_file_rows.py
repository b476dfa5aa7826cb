"""Rows of fragments as their data files have them: in their places, with the deleted ones.

A scan gives row ids and addresses, or leaves out deleted rows, at several times the cost of reading the columns. Here
the places are counted, and what a version says of them (its deletion vectors and row ids) is looked up for the few
rows that are asked for. Only for tables on local disk whose fragments have one data file with all columns, as Lance's
writer makes them; a scan reads the others.
Data files never change. So the columns of small ones are kept, for a process that publishes a table again and again.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.clock import unique_hex
from headwater.decoding.arrow import read_file
from headwater.imports import lance
from headwater.tables.partitions import field_ids, has_blobs

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata

Mask = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]
BATCH = 1 << 16
EXTENSION = b"ARROW:extension:name"
KEPT_BYTES = 64 << 20
"""The most memory that kept columns take."""
VALUE_BYTES = 10
"""A guess at the bytes of a value, before it is read."""
KEPT_READS = 8
"""Columns that were not asked for in so many reads of tables give way to others."""


def is_plain(schema: pa.Schema) -> bool:
    """Return True if the values of every column are kept as they are read: no blobs, no types of somebody's own."""
    return not has_blobs(schema) and all(_is_plain(field) for field in schema)


def _is_plain(field: Any) -> bool:
    kind = field.type
    if isinstance(kind, pa.BaseExtensionType) or EXTENSION in (field.metadata or {}):
        return False
    if pa.types.is_map(kind):
        return _is_plain(kind.key_field) and _is_plain(kind.item_field)
    return all(_is_plain(kind.field(number)) for number in range(kind.num_fields))


@dataclass(frozen=True)
class DataFileRows:
    """The rows of a fragment in its one data file."""

    id: int
    path: str
    rows: int
    deletions: str | None

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the columns of all rows, in their places."""
        known = _KEPT.get(self.path, columns)
        if known is not None:
            yield from known.to_batches(max_chunksize=BATCH)
            return
        reader = lance.file.LanceFileReader(self.path, columns=list(columns)).read_all(batch_size=BATCH).to_batches()
        if not _KEPT.has_room(self.rows * len(columns) * VALUE_BYTES):
            for batch in reader:
                yield batch.select(list(columns))
            return
        found = list[pa.RecordBatch]()
        for batch in reader:
            found.append(batch.select(list(columns)))
            yield found[-1]
        _KEPT.put(self.path, pa.Table.from_batches(found))

    def deleted(self) -> Mask | None:
        """Return a mask of the places of deleted rows; None: there are none."""
        if self.deletions is None:
            return None
        with open(self.deletions, "rb") as file:
            data = file.read()
        if self.deletions.endswith(".arrow"):
            mask = np.zeros(self.rows, bool)
            mask[read_file(data).read_all().column(0).to_numpy()] = True
            return mask
        return bitmap_of(data, self.rows)


def file_rows(
    dataset: Any, columns: Sequence[str], fragments: Sequence[int] | None = None
) -> list[DataFileRows] | None:
    """Return the rows of fragments (None: all) by their data files; None: they are to be scanned."""
    folder = dataset.uri
    schema = pa.schema([dataset.schema.field(name) for name in columns])
    if "://" in folder or not columns or not is_plain(schema):
        return None
    _KEPT.begin()
    ids = field_ids(dataset)
    wanted = {ids[each.name]: each.type for each in schema}
    chosen = dataset.get_fragments() if fragments is None else [dataset.get_fragment(id) for id in fragments]
    found = list[DataFileRows]()
    for each in chosen:
        rows = _file_rows(folder, each.metadata, columns, wanted)
        if rows is None:
            return None
        found.append(rows)
    return found


def _file_rows(
    folder: str, fragment: FragmentMetadata, columns: Sequence[str], wanted: dict[int, pa.DataType]
) -> DataFileRows | None:
    files, deletions = fragment.files, fragment.deletion_file
    if len(files) != 1 or files[0].base_id is not None or files[0].file_major_version < 2:
        return None
    if deletions is not None and deletions.base_id is not None:
        return None
    path = f"{folder}/data/{files[0].path}"
    try:
        kinds = _kinds(path, tuple(files[0].fields))
    except (OSError, ValueError):  # a scan says what is wrong with it
        return None
    if any(kinds.get(id) != (name, kind) for name, (id, kind) in zip(columns, wanted.items(), strict=True)):
        return None  # renamed, widened or kept in another way since
    gone = f"{folder}/{deletions.path(fragment.id)}" if deletions is not None else None
    return DataFileRows(fragment.id, path, fragment.physical_rows, gone)


def deleted_more(dataset: Any, fragment: int, places: Places) -> FragmentMetadata | None:
    """Return the metadata of a fragment with a new deletion vector, by which these rows are deleted too; None: no row
    is left. The dataset is on local disk."""
    metadata: FragmentMetadata = dataset.get_fragment(fragment).metadata
    folder, before = dataset.uri, metadata.deletion_file
    gone = f"{folder}/{before.path(fragment)}" if before is not None else None
    known = DataFileRows(fragment, "", metadata.physical_rows, gone).deleted()
    mask = np.zeros(metadata.physical_rows, bool) if known is None else known
    mask[places] = True
    count = int(np.count_nonzero(mask))
    if count == len(mask):
        return None
    made = lance.fragment.DeletionFile(dataset.version, int(unique_hex(15), 16), "bitmap", count, None)
    os.makedirs(f"{folder}/_deletions", exist_ok=True)
    with open(f"{folder}/{made.path(fragment)}", "xb") as file:
        file.write(as_bitmap(mask))
    return replace(metadata, deletion_file=made)


@lru_cache(maxsize=1 << 12)
def _kinds(path: str, fields: tuple[int, ...]) -> dict[int, tuple[str, pa.DataType]]:
    """Return the names and types of a data file's columns by their field ids; nothing if there are nested ones."""
    schema = lance.file.LanceFileReader(path).metadata().schema
    if len(schema) != len(fields):
        return {}
    return {id: (each.name, each.type) for id, each in zip(fields, schema, strict=True)}


# Deletion vectors ----------------------------------------------------------------------------------------------------
# A roaring bitmap in its portable format: a container for each 65,536 places, as a list, as bits or as runs.

COOKIE, RUN_COOKIE, WITH_OFFSETS = 12346, 12347, 4
CONTAINER, LISTED = 1 << 16, 4096


def bitmap_of(data: bytes, rows: int) -> Mask:
    """Decode a bitmap of places below `rows`. ValueError: it is none."""
    (cookie,) = np.frombuffer(data, "<u4", 1)
    at, count = 4, int(cookie >> 16) + 1
    runs = np.zeros(count, bool)
    if cookie & 0xFFFF == RUN_COOKIE:
        runs = np.unpackbits(np.frombuffer(data, np.uint8, (count + 7) // 8, at), count=count, bitorder="little") > 0
        at += (count + 7) // 8
    elif cookie == COOKIE:
        count, at = int(np.frombuffer(data, "<u4", 1, at)[0]), 8
        runs = np.zeros(count, bool)
    else:
        raise ValueError("not a roaring bitmap")
    heads = np.frombuffer(data, "<u2", 2 * count, at).reshape(count, 2)
    at += 4 * count
    if cookie == COOKIE or count >= WITH_OFFSETS:
        at += 4 * count
    found = np.zeros(-(-rows // CONTAINER) * CONTAINER, bool)
    for (key, more), is_run in zip(heads.tolist(), runs.tolist(), strict=True):
        own = found[key * CONTAINER : (key + 1) * CONTAINER]
        size = more + 1
        if is_run:
            (size,) = np.frombuffer(data, "<u2", 1, at).tolist()
            for start, length in np.frombuffer(data, "<u2", 2 * size, at + 2).reshape(size, 2).tolist():
                own[start : start + length + 1] = True
            at += 2 + 4 * size
        elif size <= LISTED:
            own[np.frombuffer(data, "<u2", size, at)] = True
            at += 2 * size
        else:
            own[:] = np.unpackbits(np.frombuffer(data, np.uint8, CONTAINER // 8, at), bitorder="little")
            at += CONTAINER // 8
    return found[:rows]


def as_bitmap(mask: Mask) -> bytes:
    """Encode the places of a mask."""
    heads, offsets, bodies = list[tuple[int, int]](), list[int](), list[bytes]()
    for key in range(-(-len(mask) // CONTAINER)):
        own = mask[key * CONTAINER : (key + 1) * CONTAINER]
        size = int(np.count_nonzero(own))
        if not size:
            continue
        heads.append((key, size - 1))
        if size <= LISTED:
            bodies.append(np.flatnonzero(own).astype("<u2").tobytes())
        else:
            bodies.append(np.packbits(own, bitorder="little").tobytes().ljust(CONTAINER // 8, b"\0"))
    at = 8 + 8 * len(heads)
    for body in bodies:
        offsets.append(at)
        at += len(body)
    head = np.array([COOKIE, len(heads)], "<u4").tobytes() + np.array(heads, "<u2").tobytes()
    return b"".join((head, np.array(offsets, "<u4").tobytes(), *bodies))


# Kept columns --------------------------------------------------------------------------------------------------------


class _Kept:
    """Columns of data files that this process has read, up to KEPT_BYTES. Those asked for lately stay."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: OrderedDict[str, tuple[pa.Table, int]] = OrderedDict()
        self._bytes = 0
        self._reads = 0

    def begin(self) -> None:
        """Count a read of a table."""
        with self._lock:
            self._reads += 1

    def get(self, path: str, columns: Sequence[str]) -> pa.Table | None:
        """Return the columns of a file; None if some are not kept."""
        with self._lock:
            table, _ = self._tables.get(path, (None, 0))
            if table is None or not set(columns) <= set(table.column_names):
                return None
            self._tables[path] = table, self._reads
            self._tables.move_to_end(path)
            return table.select(list(columns))

    def has_room(self, size: int) -> bool:
        """Return True if so many bytes can be kept, beside those that are asked for lately."""
        with self._lock:
            self._drop(size)
            return self._bytes + size <= KEPT_BYTES

    def put(self, path: str, table: pa.Table) -> None:
        with self._lock:
            before = self._tables.pop(path, (None, 0))[0]
            self._bytes -= before.nbytes if before is not None else 0
            self._drop(table.nbytes)
            if self._bytes + table.nbytes <= KEPT_BYTES:
                self._tables[path] = table, self._reads
                self._bytes += table.nbytes

    def _drop(self, size: int) -> None:
        while self._tables and self._bytes + size > KEPT_BYTES:
            path, (table, last) = next(iter(self._tables.items()))
            if last > self._reads - KEPT_READS:
                return
            del self._tables[path]
            self._bytes -= table.nbytes


_KEPT = _Kept()
