"""Writes Arrow batches as Lance data files. The files belong to no version until the driver commits them.

Files of a retried, speculative or killed task stay unreferenced, and `cleanup` removes them. In a partitioned table
every data file holds one partition, and its name has the partition values. Rows are split in chunks of CHUNK_BYTES;
the file of a chunk's last partition stays open for the next chunk. Rows that Spark sorted by partition make one file
for each partition and task. Other rows (updates) make at most one more for each partition and chunk.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headwater.decoding.arrow import read_schema
from headwater.imports import lance
from headwater.tables.columns.fields import ROW_ID
from headwater.tables.commit.committer import fragment_from
from headwater.tables.handle import TableHandle
from headwater.tables.partitions import Key, PartitionField, field_ids, file_name, has_blobs, parted, partitioning
from headwater.tables.translate import translating
from headwater.tables.write.arrow import Counted
from headwater.types import aligned, convert_batch, written_schema

if TYPE_CHECKING:
    from lance.file import LanceFileWriter
    from lance.fragment import DataFile, FragmentMetadata

CHUNK_BYTES = 64 << 20


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


@dataclasses.dataclass
class _Open:
    """The open data file of a `PartitionWriter`."""

    key: Key
    name: str
    writer: LanceFileWriter
    rows: int = 0
    bytes: int = 0
    ids: list[Any] = dataclasses.field(default_factory=list)


class PartitionWriter:
    """A writer of data files with one partition each, in the table's own schema."""

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
        """Add rows. `ids`: the column of row ids, which the new fragments keep as ids and not as data."""
        groups = parted(rows, self._wanted)
        last = self._current.key if self._current else None
        for key, found in sorted(groups, key=lambda group: group[0] != last):  # stable: the open file's rows first
            self.write_one(key, found, max_rows, max_bytes, ids)

    def write_one(self, key: Key, rows: pa.Table, max_rows: int, max_bytes: int, ids: str | None = None) -> None:
        """Add rows of one partition; the key () stands for an unpartitioned table."""
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
            assert self._dataset is not None  # a staged table has its layout from the start
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

    def finish(self) -> list[dict[str, object]]:
        return [fragment.to_json() for fragment in self.finished()]

    def finished(self) -> list[FragmentMetadata]:
        """Close the last file and return the fragments of all rows."""
        self._close()
        return self._fragments


def _staged_layout(table: TableHandle, schema: pa.Schema) -> tuple[DataFile, dict[str, int], str]:
    """Return the file layout of a table that has no version with this schema yet, read from an empty dataset."""
    version = table.open().data_storage_version if table.version is not None else None
    with tempfile.TemporaryDirectory() as folder:
        empty = lance.write_dataset(schema.empty_table(), f"{folder}/empty", data_storage_version=version)  # type: ignore[arg-type]  # as the table has it
        path = f"{folder}/empty/data/layout.lance"
        lance.file.LanceFileWriter(path, schema, version=empty.data_storage_version).close()
        return lance.fragment.DataFile.create(empty, "layout.lance"), field_ids(empty), empty.data_storage_version


ROWS_PER_FILE = 1 << 20
BYTES_PER_FILE = 4 << 30


def write(table: TableHandle, batches: Iterable[pa.RecordBatch], arrow: str | None = None) -> list[dict[str, Any]]:
    """Write batches as new fragments in the table's own Lance types, and return the metadata of the fragments.

    `arrow`: the schema (IPC, hex) of a table that has no version yet, or whose next version has another schema.
    """
    dataset = table.open() if arrow is None else None
    schema = _schema(dataset, arrow)
    source = iter(batches)
    first = next(source, None)
    if first is None:
        return []
    fields = partitioning(schema)
    if fields and not has_blobs(schema):
        writer = PartitionWriter(table, schema, fields, staged=dataset is None)
        for chunk in chunks(_converted(first, source, schema)):
            writer.write(chunk, ROWS_PER_FILE, BYTES_PER_FILE)
        return writer.finish()
    rows = Counted(pa.RecordBatchReader.from_batches(schema, _converted(first, source, schema)))
    with translating(table, "write rows of"), rows.raising():
        fragments = lance.fragment.write_fragments(
            rows.reader,
            dataset if dataset is not None else table.uri,
            schema=schema,
            mode="append" if dataset is not None else "overwrite",
            max_rows_per_file=ROWS_PER_FILE,
            max_bytes_per_file=BYTES_PER_FILE,
            storage_options=table.storage_options or None,
        )
    return [fragment.to_json() for fragment in fragments]


def _schema(dataset: lance.LanceDataset | None, arrow: str | None) -> pa.Schema:
    if dataset is not None:
        return written_schema(dataset.schema)
    return read_schema(bytes.fromhex(arrow or ""))


def rewrite(table: TableHandle, batches: Iterable[pa.RecordBatch]) -> list[dict[str, object]]:
    """Write updated rows as new fragments. Their column `_rowid` becomes the row ids, and is not written as data."""
    dataset = table.open()
    schema = written_schema(dataset.schema)
    fields = partitioning(schema)
    if fields and not has_blobs(schema):
        return _rewrite_partitioned(table, batches, schema, fields)
    ids: list[Any] = []

    def split() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            ids.append(batch.column(ROW_ID))
            yield batch.drop_columns([ROW_ID])

    fragments = write(table, split())
    if not dataset.has_stable_row_ids:
        return fragments
    known: list[Any] = pa.chunked_array(ids, pa.int64()).to_pylist()
    return list(_with_row_ids(fragments, known))


def _rewrite_partitioned(
    table: TableHandle, batches: Iterable[pa.RecordBatch], schema: pa.Schema, fields: Sequence[PartitionField]
) -> list[dict[str, object]]:
    writer = PartitionWriter(table, schema, fields, staged=False)
    with_ids = schema.append(pa.field(ROW_ID, pa.int64()))
    for rows in chunks(aligned(convert_batch(batch, with_ids)) for batch in batches):
        writer.write(rows, ROWS_PER_FILE, BYTES_PER_FILE, ids=ROW_ID)
    return writer.finish()


def _with_row_ids(fragments: list[dict[str, Any]], ids: list[int]) -> Iterator[dict[str, object]]:
    start = 0
    for value in fragments:
        rows = value["physical_rows"]
        fragment = fragment_from(value)
        fragment.row_id_meta = lance.fragment.RowIdSequence(ids[start : start + rows]).to_inline_metadata()
        start += rows
        yield fragment.to_json()


def _converted(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    yield aligned(convert_batch(first, schema))
    for batch in rest:
        yield aligned(convert_batch(batch, schema))
