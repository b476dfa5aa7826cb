"""Rows of a serving copy: written as fragments, deleted by their addresses, found by their keys, and filtered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headwater.errors import ConcurrentModificationError, InvalidInputError
from headwater.imports import lance
from headwater.streams.rows.row_keys import Codes, KeyIndex
from headwater.streams.serving.row_ids import ids_at, ids_of
from headwater.streams.serving.serving_copy import Lake, place_of
from headwater.streams.stream_lookup import Stream
from headwater.tables.columns.fields import ROW_ADDRESS, ROW_ID
from headwater.tables.commit.committer import fragment_from
from headwater.tables.expressions import literal
from headwater.tables.handle import TableHandle
from headwater.tables.partitions import has_blobs
from headwater.tables.scan.data_file_rows import DataFileRows, deleted_more, file_rows
from headwater.tables.translate import HoldsDataError, first_line, translating
from headwater.tables.write.data_files import BYTES_PER_FILE, PartitionWriter
from headwater.types import aligned

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata

ROWS_PER_FILE = 1 << 20
KEYS_PER_PAGE = 8_000
"""An index is worth its pages as long as there are so many rows for each key that is looked for."""
SCANNED = 1 << 16
TAKEN = 50
"""Rows are taken by id when there are at least so many others for each."""


def write_rows(
    lake: Lake, stream: Stream, dataset: lance.LanceDataset | None, rows: pa.Table, ids: Codes | None
) -> list[FragmentMetadata]:
    """Write rows as new fragments. In a table with buckets each fragment is of one bucket and keeps row ids."""
    if not rows.num_rows:
        return []
    if stream.definition.buckets and not has_blobs(rows.schema):
        return _write_buckets(lake, stream, dataset, rows, ids)
    if dataset is None:
        with _first(place_of(lake, stream)):
            return _write_fragments(lake, stream, dataset, rows)
    return _write_fragments(lake, stream, dataset, rows)


@contextmanager
def _first(place: TableHandle) -> Iterator[None]:
    """Turn the failure of a first version into a ConcurrentModification (14) if another publish was faster."""
    try:
        with translating(place, "publish"):
            yield
    except HoldsDataError:
        raise ConcurrentModificationError(
            f"{place.name} was published by another writer meanwhile. Nothing was changed: look again."
        ) from None


def _write_fragments(
    lake: Lake, stream: Stream, dataset: lance.LanceDataset | None, rows: pa.Table
) -> list[FragmentMetadata]:
    reader = pa.RecordBatchReader.from_batches(rows.schema, (aligned(batch) for batch in rows.to_batches()))
    fragments: list[FragmentMetadata] = lance.fragment.write_fragments(
        reader,
        dataset if dataset is not None else f"{lake.uri}/{stream.serving}",
        schema=rows.schema,
        mode="append" if dataset is not None else "create",
        max_rows_per_file=ROWS_PER_FILE,
        storage_options=lake.storage_options or None,
        enable_stable_row_ids=dataset is None,
    )
    return fragments


def _write_buckets(
    lake: Lake, stream: Stream, dataset: lance.LanceDataset | None, rows: pa.Table, ids: Codes | None
) -> list[FragmentMetadata]:
    batches = pa.Table.from_batches([aligned(batch) for batch in rows.to_batches()], rows.schema)
    marked = batches if ids is None else batches.append_column(ROW_ID, pa.array(ids))
    place, fields = place_of(lake, stream), stream.definition.buckets
    writer = PartitionWriter(place, rows.schema, fields, staged=dataset is None, dataset=dataset)
    writer.write(marked, ROWS_PER_FILE, BYTES_PER_FILE, ids=None if ids is None else ROW_ID)
    return [fragment_from(each) for each in writer.finish()]


def delete_rows(dataset: Any, addresses: Codes) -> tuple[list[int], list[FragmentMetadata]]:
    """Deletion vectors for rows: fragments that are empty then, and those that are changed."""
    removed: list[int] = []
    changed: list[FragmentMetadata] = []
    if not len(addresses):
        return removed, changed
    sorted_addresses = np.sort(addresses)
    fragments, starts = np.unique(sorted_addresses >> 32, return_index=True)
    ends = [*starts[1:], len(sorted_addresses)]
    places = [(sorted_addresses[start:end] & 0xFFFFFFFF) for start, end in zip(starts, ends, strict=True)]
    ids = fragments.tolist()
    if "://" in dataset.uri:
        with ThreadPoolExecutor(2) as beside:
            made = list(beside.map(lambda id, rows: dataset.get_fragment(id).delete_rows(rows.tolist()), ids, places))
    else:
        made = [deleted_more(dataset, id, rows) for id, rows in zip(ids, places, strict=True)]
    for fragment, after in zip(ids, made, strict=True):
        if after is None:
            removed.append(fragment)
        else:
            changed.append(after)
    return removed, changed


@dataclass(frozen=True)
class Deletions:
    """Deletion vectors that belong to no version yet: the fragments that are empty then, the files of the others, and
    the number of rows that they take away."""

    emptied: tuple[int, ...]
    files: Mapping[int, str]
    rows: int

    @staticmethod
    def of(dataset: lance.LanceDataset, addresses: Codes) -> Deletions:
        """Write the deletion vectors for all rows to remove from the fragments of these addresses."""
        removed, changed = delete_rows(dataset, addresses)
        files = {each.id: each.deletion_file.json() for each in changed if each.deletion_file is not None}
        return Deletions(tuple(removed), files, len(addresses))

    def applied(self, dataset: Any) -> tuple[list[int], list[FragmentMetadata]]:
        """Return the fragments that are empty, and the metadata of the others with their new files."""
        file = lance.fragment.DeletionFile.from_json
        changed = [(dataset.get_fragment(id).metadata, told) for id, told in self.files.items()]
        return list(self.emptied), [replace(metadata, deletion_file=file(told)) for metadata, told in changed]

    def to_json(self) -> list[Any]:
        return [self.emptied, list(self.files.items()), self.rows]

    @staticmethod
    def from_json(parts: Sequence[Any]) -> Deletions:
        """Those of several parts, each of other fragments."""
        files = {id: told for _, files, _ in parts for id, told in files}
        return Deletions(tuple(id for ids, _, _ in parts for id in ids), files, sum(rows for *_, rows in parts))


def files_of(stream: Stream, fragments: Sequence[FragmentMetadata]) -> Iterator[str]:
    """Yield the keys of what Lance wrote for new and changed fragments."""
    for fragment in fragments:
        for file in fragment.files:
            yield f"{stream.serving}/data/{file.path}"
        if fragment.deletion_file is not None:
            yield f"{stream.serving}/{fragment.deletion_file.path(fragment.id)}"


def find_rows(
    dataset: Any,
    keys: Sequence[str],
    index: KeyIndex,
    wanted: pa.Table,
    columns: Sequence[str],
    fragments: Sequence[int] | None,
    manifest: Callable[[], bytes],
) -> pa.Table:
    """Return the rows whose keys are in an index: the columns asked for, row id and row address.

    `wanted` has the distinct keys. Few are looked up by the BTREE on the key; else the key columns are read through,
    and the other columns of few rows are taken by their ids, of many read along. `fragments`: only those are read.
    `manifest`: reads the manifest of the version.
    """
    rows = dataset.count_rows()
    few = fragments is None and are_few(wanted.num_rows, rows)
    if few and (text := in_list(wanted)) is not None:
        found = _scan(dataset, columns, text)
        return found.take(np.flatnonzero(index.find([found.column(name) for name in keys]) >= 0))
    others = [name for name in columns if name not in keys]
    if wanted.num_rows * TAKEN < rows and others:
        found = _matching(dataset, keys, index, list(keys), fragments, manifest)
        taken = dataset._take_rows(found.column(ROW_ID).to_pylist(), columns=others) if found.num_rows else None
        for name in others:
            column = pa.nulls(0, dataset.schema.field(name).type) if taken is None else taken.column(name)
            found = found.append_column(name, column)
        return found.select([*columns, ROW_ID, ROW_ADDRESS])
    return _matching(dataset, keys, index, columns, fragments, manifest)


def are_few(keys: int, rows: int) -> bool:
    """Return True if a BTREE finds so many keys among so many rows sooner than the key columns are read through."""
    return keys * KEYS_PER_PAGE < rows


def _matching(
    dataset: Any,
    keys: Sequence[str],
    index: KeyIndex,
    columns: Sequence[str],
    fragments: Sequence[int] | None,
    manifest: Callable[[], bytes],
) -> pa.Table:
    """Return the rows of some keys, from their data files or by a scan. One batch at a time is held."""
    own = file_rows(dataset, columns, fragments)
    found = None if own is None else _in_files(own, keys, index, columns, manifest())
    parts = list(_scanned(dataset, keys, index, columns, fragments)) if found is None else found
    return pa.Table.from_batches(parts, None if parts else _scan(dataset, columns, "false").schema)


def _in_files(
    files: Sequence[DataFileRows], keys: Sequence[str], index: KeyIndex, columns: Sequence[str], manifest: bytes
) -> list[pa.RecordBatch] | None:
    """Return the rows of some keys in data files; None: some of their row ids are kept in an unknown way."""
    parts, sequences = list[pa.RecordBatch](), ids_of(manifest)
    for file in files:
        start, deleted, places, found = 0, file.deleted(), list[Codes](), list[pa.RecordBatch]()
        for batch in file.batches(columns):
            there = index.holds([batch.column(name) for name in keys])
            if deleted is not None:
                there &= ~deleted[start : start + len(there)]
            at = np.flatnonzero(there)
            found.append(batch.take(pa.array(at, pa.int64())))
            places.append(at + start)
            start += len(there)
        rows = np.concatenate(places) if places else np.empty(0, np.int64)
        if not len(rows):
            continue
        ids = ids_at(sequences.get(file.id, b""), rows)
        if ids is None:
            return None
        (whole,) = pa.Table.from_batches(found).combine_chunks().to_batches()
        addresses = rows + (file.id << 32)
        numbers = [pa.array(each.astype(np.uint64, copy=False)) for each in (ids, addresses)]
        parts.append(pa.RecordBatch.from_arrays([*whole.columns, *numbers], [*columns, ROW_ID, ROW_ADDRESS]))
    return parts


def _scanned(
    dataset: Any, keys: Sequence[str], index: KeyIndex, columns: Sequence[str], fragments: Sequence[int] | None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some keys. Deleted rows are read along, without an id: leaving out those that match takes less
    time than all of them."""
    options = {"with_row_id": True, "with_row_address": True, "include_deleted_rows": True, "batch_size": SCANNED}
    own = None if fragments is None else [dataset.get_fragment(id) for id in fragments]
    scanner = dataset.scanner(columns=list(columns), fragments=own, **options)
    names = [*columns, ROW_ID, ROW_ADDRESS]
    for batch in scanner.to_batches():
        found, ids = index.holds([batch.column(name) for name in keys]), batch.column(ROW_ID)
        places = np.flatnonzero(found & ids.is_valid().to_numpy(zero_copy_only=False) if ids.null_count else found)
        matching = batch if len(places) == batch.num_rows else batch.take(pa.array(places))
        yield matching.select(names)


def _scan(dataset: lance.LanceDataset, columns: Sequence[str], filter: str | None) -> pa.Table:
    scanner = dataset.scanner(columns=list(columns), filter=filter, with_row_id=True, with_row_address=True)
    table: pa.Table = scanner.to_table()
    return table.select([*columns, ROW_ID, ROW_ADDRESS])


def in_list(wanted: pa.Table) -> str | None:
    """Return a filter that the wanted keys pass (and perhaps others); None where a value cannot be written in SQL."""
    conditions = []
    for name in wanted.schema.names:
        texts = [_key_literal(value) for value in wanted.column(name).to_pylist()]
        if any(text is None for text in texts):
            return None
        quoted = name.replace("`", "``")
        conditions.append(f"`{quoted}` IN ({', '.join(sorted(set(map(str, texts))))})")
    return " AND ".join(conditions)


def _key_literal(value: object) -> str | None:
    """Of a key; decimals, floats and zoned times are compared row by row instead."""
    zoned = isinstance(value, datetime) and value.tzinfo is not None
    return None if zoned or isinstance(value, (Decimal, float)) else literal(value)


def filtered(rows: pa.Table, filter: str) -> pa.Table:
    """Return rows in memory that pass a filter of Lance's."""
    if not rows.num_rows:
        return rows
    reader = pa.RecordBatchReader.from_batches(rows.schema, (aligned(batch) for batch in rows.to_batches()))
    dataset = lance.write_dataset(reader, "memory://filtered")
    with judging(filter, rows.schema):
        table: pa.Table = dataset.to_table(filter=filter)
    return table.cast(rows.schema)


@contextmanager
def judging(filter: str | None, schema: pa.Schema) -> Iterator[None]:
    """A filter that Lance does not take is the caller's mistake (13), told in its words."""
    try:
        yield
    except ValueError as error:
        if filter is None:
            raise
        hint = ""
        if any(pa.types.is_decimal(each.type) for each in schema):
            hint = " Beside a decimal write CAST('1.50' AS DECIMAL(10,2))."
        raise InvalidInputError(f"The filter {filter[:200]!r} cannot be used: {first_line(error)}{hint}") from None
