"""Wire format between the JVM and its Python worker: JSON frames, and Arrow streams between them.

One connection carries one call at a time. A call is a frame (its length as 4 bytes, big endian, then the JSON of a call
of `headwater.spark.protocol`); the answer is a frame `{"ok": value}` or `{"error": {"code", "message"}}`. A call
that reads sends, after its answer, an Arrow IPC stream and then one more frame, so that an error in the middle
of the data is told; a call that writes receives an Arrow IPC stream before its answer.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from io import IOBase
from typing import Any, BinaryIO, cast

import pyarrow as pa

from headwater.spark.protocol import encode

MAX_FRAME = 1 << 30


class Wire:
    """One connection from the JVM."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._input = cast(BinaryIO, connection.makefile("rb", buffering=1 << 18))

    def receive(self) -> bytes | None:
        """The next frame; None when the other side has closed the connection."""
        header = self._input.read(4)
        if len(header) < 4:
            return None
        (size,) = struct.unpack(">I", header)
        if size > MAX_FRAME:
            raise ValueError(f"a frame of {size} bytes is longer than {MAX_FRAME}")
        body = self._input.read(size)
        return body if len(body) == size else None

    def send(self, message: dict[str, Any]) -> None:
        body = encode(message)
        self._socket.sendall(struct.pack(">I", len(body)) + body)

    def send_batches(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Write an Arrow stream; it is closed properly also when `batches` raises."""
        sink = pa.PythonFile(cast(IOBase, _Sink(self._socket)), mode="w")
        with pa.ipc.new_stream(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)

    def receive_batches(self) -> pa.RecordBatchReader:
        return pa.ipc.open_stream(pa.PythonFile(cast(IOBase, self._input), mode="r"))

    def close(self) -> None:
        self._input.close()
        self._socket.close()


class _Sink:
    """A socket as pyarrow writes to it: every write is a whole one."""

    closed = False

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def write(self, data: bytes) -> int:
        self._socket.sendall(data)
        return len(data)

    def flush(self) -> None:
        return None

    def close(self) -> None:
        self.closed = True
