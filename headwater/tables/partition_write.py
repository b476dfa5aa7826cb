"""Writing rows of a partitioned table: every data file holds one partition, and its name says which.

Rows are taken in chunks of some megabytes, each chunk is parted, and the file of the partition that comes last stays
open for the next chunk. Rows that Spark has sorted by partition so make one file for each partition and task; rows
in any other order (updates) make at most one more for each partition and chunk.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headwater.imports import lance
from headwater.tables.handle import TableHandle
from headwater.tables.partitions import PartitionField, field_ids, file_name, format_part, transformed

if TYPE_CHECKING:
    from lance.file import LanceFileWriter
    from lance.fragment import DataFile, FragmentMetadata

CHUNK_BYTES = 64 << 20
Key = tuple[str, ...]


def chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    group: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        group.append(batch)
        size += batch.nbytes
        if size >= CHUNK_BYTES:
            yield pa.Table.from_batches(group)
            group, size = [], 0
    if group:
        yield pa.Table.from_batches(group)


def parted(rows: pa.Table, wanted: Sequence[tuple[int, PartitionField]]) -> list[tuple[Key, pa.Table]]:
    """The rows of each partition, in their order; sorted rows are sliced and not copied. Pure."""
    if not rows.num_rows:
        return []
    values = [transformed(rows.column(f.column).combine_chunks(), f.transform, f.width) for _, f in wanted]
    codes = np.zeros(rows.num_rows, np.int64)
    for array in values:
        encoded = array.dictionary_encode()
        count = len(encoded.dictionary)
        joined = codes * (count + 1) + np.asarray(encoded.indices.fill_null(count), np.int64)
        codes = np.unique(joined, return_inverse=True)[1]
    known = len(np.unique(codes))
    if np.count_nonzero(np.diff(codes)) + 1 > known:
        order: Any = np.argsort(codes, kind="stable")
        rows, codes = rows.combine_chunks().take(order), codes[order]
        values = [array.take(order) for array in values]
    starts = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), rows.num_rows]
    found: list[tuple[Key, pa.Table]] = []
    for start, end in pairwise(starts):
        parts = zip(wanted, values, strict=True)
        key = tuple(format_part(id, f.transform, f.width, array[start].as_py()) for (id, f), array in parts)
        found.append((key, rows.slice(start, end - start)))
    return found


@dataclasses.dataclass
class _Open:
    """The file being written."""

    key: Key
    name: str
    writer: LanceFileWriter
    rows: int = 0
    bytes: int = 0
    ids: list[Any] = dataclasses.field(default_factory=list)


class PartitionWriter:
    """Makes fragments of one partition each, in the table's own schema."""

    def __init__(
        self,
        table: TableHandle,
        schema: pa.Schema,
        fields: Sequence[PartitionField],
        *,
        staged: bool,
        dataset: lance.LanceDataset | None = None,
    ) -> None:
        """`staged`: the table's next version has this schema, and not that of the version it has, if any.

        `dataset`: the version to write for, if it is not the one that the table names.
        """
        self._table, self._schema = table, schema
        self._dataset = None if staged else table.open() if dataset is None else dataset  # an empty one is false
        self._layout, ids, self._version = _staged_layout(table, schema) if staged else self._known()
        self._wanted = [(ids[field.column], field) for field in fields]
        self._current: _Open | None = None
        self._fragments: list[FragmentMetadata] = []

    def _known(self) -> tuple[DataFile | None, dict[str, int], str]:
        assert self._dataset is not None
        return None, field_ids(self._dataset), self._dataset.data_storage_version

    def write(self, rows: pa.Table, max_rows: int, max_bytes: int, ids: str | None = None) -> None:
        """Add rows; the column `ids`, if named, is no data: the rows carry it on as their ids."""
        groups = parted(rows, self._wanted)
        last = self._current.key if self._current else None
        for key, found in sorted(groups, key=lambda group: group[0] != last):  # stable: the open file's rows first
            self.write_one(key, found, max_rows, max_bytes, ids)

    def write_one(self, key: Key, rows: pa.Table, max_rows: int, max_bytes: int, ids: str | None = None) -> None:
        """Add rows that are all of one partition; () is none."""
        while rows.num_rows:
            file = self._file(key, max_rows, max_bytes)
            piece = rows.slice(0, max_rows - file.rows)
            self._add(file, piece, ids)
            rows = rows.slice(piece.num_rows)

    def _add(self, file: _Open, rows: pa.Table, ids: str | None) -> None:
        if ids is not None:
            file.ids.extend(rows.column(ids).to_pylist())
            rows = rows.drop_columns([ids])
        file.writer.write_batch(rows)
        file.rows += rows.num_rows
        file.bytes += rows.nbytes

    def _file(self, key: Key, max_rows: int, max_bytes: int) -> _Open:
        file = self._current
        if file is not None and file.key == key and file.rows < max_rows and file.bytes < max_bytes:
            return file
        self._close()
        name = file_name(key)
        path = f"{self._table.uri.rstrip('/')}/data/{name}"
        options = self._table.storage_options or None
        writer = lance.file.LanceFileWriter(path, self._schema, version=self._version, storage_options=options)
        self._current = _Open(key, name, writer)
        return self._current

    def _close(self) -> None:
        file, self._current = self._current, None
        if file is None:
            return
        file.writer.close()
        if self._layout is None:
            self._layout = lance.fragment.DataFile.create(self._dataset, file.name)
        known = self._layout
        data = lance.fragment.DataFile(
            file.name,
            known.fields,
            known.column_indices,
            known.file_major_version,
            known.file_minor_version,
            file.writer.size_bytes,
        )
        fragment = lance.fragment.FragmentMetadata(0, [data], file.rows)
        if file.ids and self._dataset is not None and self._dataset.has_stable_row_ids:
            fragment.row_id_meta = lance.fragment.RowIdSequence(file.ids).to_inline_metadata()
        self._fragments.append(fragment)

    def finish(self) -> list[dict[str, Any]]:
        return [fragment.to_json() for fragment in self.finished()]

    def finished(self) -> list[FragmentMetadata]:
        """The fragments of all rows: nothing can be added then."""
        self._close()
        return self._fragments


def _staged_layout(table: TableHandle, schema: pa.Schema) -> tuple[DataFile, dict[str, int], str]:
    """How files of a table that has no version with this schema yet will be laid out: seen on an empty one."""
    version = table.open().data_storage_version if table.version is not None else None
    with tempfile.TemporaryDirectory() as folder:
        empty = lance.write_dataset(schema.empty_table(), f"{folder}/empty", data_storage_version=version)
        path = f"{folder}/empty/data/layout.lance"
        lance.file.LanceFileWriter(path, schema, version=empty.data_storage_version).close()
        return lance.fragment.DataFile.create(empty, "layout.lance"), field_ids(empty), empty.data_storage_version
