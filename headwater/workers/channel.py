"""How a caller and its worker talk: frames over a socket.

A frame is a kind (one byte), a length (four bytes, big endian) and as many bytes: a message (JSON), a chunk of a
stream, or the end of one. A file travels as a descriptor beside a message, so that its bytes are not copied. Whoever
sends more than the other side takes waits: that is all the back-pressure there is, and all that is needed.
"""

from __future__ import annotations

import io
import json
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

import pyarrow as pa

MESSAGE, CHUNK, END = b"J", b"B", b"E"
MAX_FRAME = 1 << 30
MAX_MESSAGE = 64 << 20
BUFFER = 4 << 20
_HEAD = struct.Struct(">cI")


class BrokenChannelError(Exception):
    """The other side is gone, or does not speak this."""


class Channel:
    """One end of the socket between a caller and a worker. Not for two threads at once."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._files: list[int] = []
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            connection.setsockopt(socket.SOL_SOCKET, option, BUFFER)

    def wait_at_most(self, seconds: float) -> None:
        """How long the other side may keep this one waiting before TimeoutError.

        The kernel's own time limit: the socket stays blocking, and a chunk is one call instead of many.
        """
        whole = int(seconds)
        limit = struct.pack("ll", whole, max(1, int((seconds - whole) * 1_000_000)))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, limit)

    def send(self, message: dict[str, Any], file: int | None = None) -> None:
        body = json.dumps(message, separators=(",", ":")).encode()
        if len(body) > MAX_MESSAGE:
            raise ValueError(f"a message of {len(body)} bytes is longer than {MAX_MESSAGE}")
        self._put(MESSAGE, body, file)

    def send_chunks(self, chunks: Iterator[bytes]) -> None:
        """A stream of bytes, to its end."""
        for chunk in chunks:
            for start in range(0, len(chunk), MAX_FRAME):
                self._put(CHUNK, memoryview(chunk)[start : start + MAX_FRAME])
        self._put(END, b"")

    def receive(self) -> dict[str, Any]:
        """The next message."""
        kind, body = self._get()
        if kind != MESSAGE:
            raise BrokenChannelError("a message was expected")
        return cast(dict[str, Any], json.loads(body))

    def receive_file(self) -> int:
        """The descriptor that came with the last message; the caller closes it."""
        if not self._files:
            raise BrokenChannelError("no file came")
        return self._files.pop(0)

    def receive_chunks(self) -> Iterator[bytes]:
        """The chunks of a stream, as they come."""
        while True:
            kind, body = self._get()
            if kind == END:
                return
            if kind != CHUNK:
                raise BrokenChannelError("a stream was expected")
            yield body

    def close(self) -> None:
        for file in self._files:
            with suppress(OSError):
                os.close(file)
        self._files = []
        self._socket.close()

    def _put(self, kind: bytes, body: bytes | memoryview, file: int | None = None) -> None:
        head = _HEAD.pack(kind, len(body))
        with _mapped():
            if file is not None:
                socket.send_fds(self._socket, [head], [file])
            else:
                self._socket.sendall(head)
            if body:
                self._socket.sendall(body)

    def _get(self) -> tuple[bytes, bytes]:
        with _mapped():
            head, files, _flags, _address = socket.recv_fds(self._socket, _HEAD.size, 1, socket.MSG_WAITALL)
            self._files.extend(files)
            if len(head) < _HEAD.size:
                raise BrokenChannelError("the other side is gone")
            kind, size = _HEAD.unpack(head)
            if size > (MAX_MESSAGE if kind == MESSAGE else MAX_FRAME):
                raise BrokenChannelError(f"a frame of {size} bytes is too long")
            return kind, self._read(size)

    def _read(self, size: int) -> bytes:
        """So many bytes: as a rule in one call, and without a copy."""
        parts: list[bytes] = []
        while size:
            part = self._socket.recv(size, socket.MSG_WAITALL)
            if not part:
                raise BrokenChannelError("the other side is gone")
            parts.append(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


@contextmanager
def _mapped() -> Iterator[None]:
    """What a socket raises, as the two things that can happen: the other side is late, or gone."""
    try:
        yield
    except BlockingIOError:
        raise TimeoutError("the other side takes too long") from None
    except ConnectionError as error:
        raise BrokenChannelError(type(error).__name__) from None


def stream_chunks(reader: pa.RecordBatchReader) -> Iterator[bytes]:
    """Batches as the chunks of an Arrow IPC stream, one batch at a time."""
    sink = _Sink()
    with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)
            yield from sink.take()
    yield from sink.take()


def reader_of_chunks(chunks: Iterator[bytes]) -> pa.RecordBatchReader:
    """The batches of an Arrow IPC stream that comes in chunks."""
    return pa.ipc.open_stream(pa.PythonFile(io.BufferedReader(_Source(chunks), 1 << 18), mode="r"))


class _Sink(io.RawIOBase):
    """What was written since it was last taken."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        return len(self._parts[-1])

    def take(self) -> Iterator[bytes]:
        parts, self._parts = self._parts, []
        if parts:
            yield b"".join(parts)


class _Source(io.RawIOBase):
    """Chunks as a file to read from."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = memoryview(chunk)
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count
