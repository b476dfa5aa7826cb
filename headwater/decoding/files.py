"""Files of rows by their format, read a part at a time: Parquet, Feather, ORC; and folders of Parquet files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.dataset
import pyarrow.orc

from headwater.decoding.arrow import read_arrow
from headwater.decoding.bounds import FILES, check_types, reading
from headwater.decoding.parquet import ParquetRows, Source


class FileRows(Protocol):
    """An open file of rows. Errors 13: it cannot be read."""

    schema: pa.Schema

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]: ...


class FeatherRows:
    """An Arrow IPC file or stream."""

    def __init__(self, source: Source) -> None:
        with reading("The file cannot be read"):
            data = pa.OSFile(source, "rb").read_buffer() if isinstance(source, str) else source
        self._reader = read_arrow(data, FILES)
        self.schema: pa.Schema = self._reader.schema

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        for batch in self._reader:
            yield batch if columns is None else batch.select(list(columns))


class OrcRows:
    """An ORC file, one stripe in memory at a time. Its sizes are known only when a stripe is decoded."""

    def __init__(self, source: Source) -> None:
        with reading("The data is not a valid ORC file"):
            self._file: Any = pa.orc.ORCFile(source if isinstance(source, str) else pa.BufferReader(source))
            self.schema: pa.Schema = self._file.schema
            check_types(self.schema)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        with reading("The data is not a valid ORC file"):
            for number in range(self._file.nstripes):
                batch = self._file.read_stripe(number, None if columns is None else list(columns))
                batch.validate(full=True)
                yield batch


FORMATS: Mapping[str, Callable[[Source], FileRows]] = {
    "application/parquet": ParquetRows,
    "application/feather": FeatherRows,
    "application/orc": OrcRows,
}
"""The formats that can be read a part at a time, by media type."""


def read_folder(files: Sequence[str], base: str | None, hive: bool, what: str) -> pa.RecordBatchReader:
    """Return a reader over Parquet files of one table, one row group in memory at a time.

    Columns are matched by name and cast to a type that fits all files. A file without a column has nulls there.
    `hive`: folders below `base`, such as `day=7`, are columns. `what` begins the message of an error.
    """
    with reading(what):
        schemas = [ParquetRows(file, what=what).schema for file in files]
        found: Any = pa.dataset.dataset(
            list(files), format="parquet", partitioning="hive" if hive else None, partition_base_dir=base
        )
        schema = pa.unify_schemas([found.schema, *schemas], promote_options="permissive")
    return pa.RecordBatchReader.from_batches(schema, _folder_batches(found, schema, what))


def _folder_batches(found: Any, schema: pa.Schema, what: str) -> Iterator[pa.RecordBatch]:
    with reading(what):
        for fragment in found.get_fragments():
            keys: Mapping[str, Any] = pa.dataset.get_partition_keys(fragment.partition_expression)
            for batch in ParquetRows(fragment.path, what=what).batches():
                columns: list[Any] = [_column(batch, field, keys) for field in schema]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(batch: pa.RecordBatch, field: Any, keys: Mapping[str, Any]) -> Any:
    if field.name in keys:
        return pa.array([keys[field.name]], field.type).take(pa.array([0] * batch.num_rows, pa.int8()))
    place = batch.schema.get_field_index(field.name)
    return batch.column(place).cast(field.type) if place >= 0 else pa.nulls(batch.num_rows, field.type)
