"""Arrow rows as bytes, counting readers, and conversions to data frames. `headwater.decoding` reads untrusted bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

import pyarrow as pa

from headwater.errors import UnsupportedOperationError


def to_file(reader: pa.RecordBatchReader) -> bytes:
    """Return the batches as one Arrow IPC file."""
    return _written(reader, pa.ipc.new_file)


def to_stream(reader: pa.RecordBatchReader) -> bytes:
    """Return the batches as one Arrow IPC stream."""
    return _written(reader, pa.ipc.new_stream)


def _written(reader: pa.RecordBatchReader, new: Callable[[Any, pa.Schema], Any]) -> bytes:
    sink = pa.BufferOutputStream()
    with new(sink, reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def with_metadata(reader: pa.RecordBatchReader, metadata: Mapping[str, str]) -> pa.RecordBatchReader:
    """Return a reader of the same batches, with these keys added to the schema's metadata."""
    if not metadata:
        return reader
    given = {key.encode(): value.encode() for key, value in metadata.items()}
    schema = reader.schema.with_metadata({**(reader.schema.metadata or {}), **given})
    batches = (batch.replace_schema_metadata(schema.metadata) for batch in reader)
    return pa.RecordBatchReader.from_batches(schema, batches)


class Counted:
    """A reader that passes batches on, counts their rows, and remembers the error that ended them.

    pylance makes an OSError of whatever a reader raises; `raising` brings the error itself back.
    """

    def __init__(self, source: pa.RecordBatchReader) -> None:
        self.rows = 0
        self._source = source
        self._failure: Exception | None = None
        self.reader = pa.RecordBatchReader.from_batches(source.schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self._source:
                self.rows += batch.num_rows
                yield batch
        except Exception as error:
            self._failure = error
            raise

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Raise the error that the source of the rows raised, in place of the OSError that pylance makes of it."""
        try:
            yield
        except BaseException:
            if self._failure is not None:
                raise self._failure from None
            raise


class Frames(ABC):
    """A base class for tables: conversions of `to_arrow` to pandas, polars, DuckDB, dicts and Arrow streams."""

    @abstractmethod
    def to_arrow(self, *args: Any, **options: Any) -> pa.Table: ...

    @abstractmethod
    def count(self) -> int: ...

    def to_batches(self, *args: Any, **options: Any) -> pa.RecordBatchReader:
        """Return the rows of `to_arrow` as a reader of batches."""
        return self.to_arrow(*args, **options).to_reader()

    def to_pandas(self, *args: object, **options: object) -> Any:
        """Return the rows of `to_arrow` as a pandas frame."""
        return self.to_arrow(*args, **options).to_pandas()

    def to_polars(self, *args: object, **options: object) -> Any:
        """Return the rows of `to_arrow` as a polars frame."""
        return _library("polars").from_arrow(self.to_arrow(*args, **options))

    def to_duckdb(self, *args: object, **options: object) -> Any:
        """Return the rows of `to_arrow` as a relation of DuckDB."""
        return _library("duckdb").from_arrow(self.to_arrow(*args, **options))

    def head(self, count: int = 10) -> pa.Table:
        """Return the first `count` rows."""
        return self.to_arrow(limit=count)

    def __len__(self) -> int:
        return self.count()

    def __bool__(self) -> bool:
        """Return True, also for a table without rows."""
        return True

    def __iter__(self) -> Iterator[dict[str, object]]:
        """Yield the rows as dicts."""
        for batch in self.to_batches():
            yield from batch.to_pylist()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Export the rows as an Arrow C stream, for any library that reads one."""
        return self.to_batches().__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call]


def _library(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError:
        raise UnsupportedOperationError(f"This needs {name}: pip install {name}.") from None
