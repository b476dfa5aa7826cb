"""Arrow answers and bodies as bytes, and readers that count. Bytes from outside are read by `headwater.decoding`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa


def to_file(reader: pa.RecordBatchReader) -> bytes:
    """An answer: the batches as one Arrow IPC file."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def to_stream(reader: pa.RecordBatchReader) -> bytes:
    """A body: the batches as one Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def with_metadata(reader: pa.RecordBatchReader, metadata: Mapping[str, str]) -> pa.RecordBatchReader:
    """The same batches under a schema that has these keys in its metadata too."""
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
        """Around all that reads: what the rows ended with comes out as it was, be it ours or the application's."""
        try:
            yield
        except BaseException:
            if self._failure is not None:
                raise self._failure from None
            raise
