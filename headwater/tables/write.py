"""Writing a table on an executor: Arrow batches become Lance data files, and nothing else happens.

The files belong to no version until the driver commits them; what a retried, speculative or killed task leaves
is unreferenced and removed by `cleanup`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from headwater.decoding.arrow import read_schema
from headwater.imports import lance
from headwater.tables.arrow import Counted
from headwater.tables.commit import fragment_from
from headwater.tables.fields import ROW_ID
from headwater.tables.handle import TableHandle
from headwater.tables.partition_write import PartitionWriter, chunks
from headwater.tables.partitions import PartitionField, has_blobs, partitioning
from headwater.tables.translate import translating
from headwater.types import aligned, convert_batch, written_schema

ROWS_PER_FILE = 1 << 20
BYTES_PER_FILE = 4 << 30


def write(table: TableHandle, batches: Iterable[pa.RecordBatch], arrow: str | None = None) -> list[dict[str, Any]]:
    """Write batches as new fragments in the table's own Lance types and answer their metadata.

    `arrow` is the schema (IPC, hex) of a table that has no version yet, or whose next version has another one.
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


def rewrite(table: TableHandle, batches: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    """Write rows that were updated. The column `_rowid` is no data: the new fragments carry it on as the rows' ids."""
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
) -> list[dict[str, Any]]:
    writer = PartitionWriter(table, schema, fields, staged=False)
    with_ids = schema.append(pa.field(ROW_ID, pa.int64()))
    for rows in chunks(aligned(convert_batch(batch, with_ids)) for batch in batches):
        writer.write(rows, ROWS_PER_FILE, BYTES_PER_FILE, ids=ROW_ID)
    return writer.finish()


def _with_row_ids(fragments: list[dict[str, Any]], ids: list[int]) -> Iterator[dict[str, Any]]:
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
