"""Arrow answers: a reader becomes the chunks of an Arrow IPC file, so that a large answer never stands in memory."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Generator
from typing import Any

import pyarrow as pa
from lance_namespace import QueryTableResponse

CHUNK = 1024 * 1024
MAX_BATCH_ROWS = 65_536


class _Chunks(io.RawIOBase):
    """A file that only remembers what was written since it was last asked."""

    def __init__(self) -> None:
        self._parts: list[Any] = []
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Arrow hands over its buffers, which are kept as they are, and small texts of its own, which are copied."""
        part = data if isinstance(data, pa.Buffer) else bytes(data)
        self._parts.append(part)
        self.size += len(part)
        return len(part)

    def take(self) -> list[Any]:
        parts, self._parts, self.size = self._parts, [], 0
        return parts


def joined(chunks: Generator[bytes | list[Any], None, None]) -> Generator[bytes, None, None]:
    """Chunks, each in one piece."""
    with contextlib.closing(chunks):
        for chunk in chunks:
            yield chunk if isinstance(chunk, bytes) else b"".join(chunk)


def file_parts(reader: pa.RecordBatchReader) -> Generator[list[Any], None, None]:
    """The Arrow IPC file of a reader's batches, about a MiB at a time, holding no more than that.

    Each chunk is in the parts that Arrow has it in: bytes and buffers, not yet copied together.
    """
    chunks = _Chunks()
    with reader, pa.ipc.new_file(pa.PythonFile(chunks, mode="w"), reader.schema) as writer:
        for batch in reader:
            for start in range(0, batch.num_rows, MAX_BATCH_ROWS):
                writer.write_batch(batch.slice(start, MAX_BATCH_ROWS))
                if chunks.size >= CHUNK:
                    yield chunks.take()
        writer.close()
    yield chunks.take()


def byte_chunks(response: QueryTableResponse | bytes) -> Generator[bytes, None, None]:
    """An answer that is already whole, sent a MiB at a time."""
    data = response if isinstance(response, bytes) else response.data
    view = memoryview(data if isinstance(data, bytes) else b"")
    for start in range(0, len(view), CHUNK):
        yield bytes(view[start : start + CHUNK])
