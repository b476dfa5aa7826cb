"""How a caller and its worker talk: frames over a socket.

A frame is a kind (one byte), a length (four bytes, big endian) and as many bytes: a message (JSON), a chunk of a
stream, or the end of one. A file travels as a descriptor beside a message, so that its bytes are not copied. Large
chunks of an answer stand in memory that both sides map, a few slots in turn: the frame says in which, and the other
side answers when it has taken it. Whoever sends more than the other side takes waits: that is all the back-pressure
there is.
"""

from __future__ import annotations

import io
import json
import mmap
import os
import socket
import struct
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

import pyarrow as pa

MESSAGE, CHUNK, SHARED, TAKEN, END = b"J", b"B", b"S", b"T", b"E"
MAX_FRAME = 1 << 30
MAX_MESSAGE = 64 << 20
BUFFER = 4 << 20
SLOTS, SLOT_BYTES = 4, 2 << 20
MIN_SHARED = 64 << 10
"""What is smaller goes through the socket, which is then as fast."""
_HEAD = struct.Struct(">cI")
_SLOT = struct.Struct(">II")


Chunk = bytes | list[Any]
"""Bytes, or the parts of them: anything with a buffer, one after the other."""


class BrokenChannelError(Exception):
    """The other side is gone, or does not speak this."""


class Channel:
    """One end of the socket between a caller and a worker. Not for two threads at once."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._files: list[int] = []
        self._shared: memoryview | None = None
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

    def share(self, file: int) -> None:
        """Map the memory that answers go through; the worker writes it, the caller reads it."""
        self._shared = memoryview(mmap.mmap(file, SLOTS * SLOT_BYTES))

    def send_chunks(self, chunks: Iterator[Chunk], shared: bool = False) -> None:
        """A stream of bytes, to its end; `shared` of the one side that writes to shared memory."""
        sent = 0
        for chunk in chunks:
            parts = [chunk] if isinstance(chunk, bytes) else chunk
            if shared and self._shared is not None and sum(len(part) for part in parts) >= MIN_SHARED:
                sent = self._send_shared(self._shared, parts, sent)
            else:
                for part in parts:
                    for start in range(0, len(part), MAX_FRAME):
                        self._put(CHUNK, memoryview(part)[start : start + MAX_FRAME])
        self._put(END, b"")
        for _ in range(min(sent, SLOTS)):
            self._await_taken()

    def _send_shared(self, memory: memoryview, parts: Sequence[Any], sent: int) -> int:
        """A chunk through the slots, each of which must have been taken before it is used again."""
        at = 0  # how far the slot is filled; 0 means that it is not begun
        for part in parts:
            rest = memoryview(part).cast("B")
            while len(rest):
                if at == 0 and sent >= SLOTS:
                    self._await_taken()
                place = (sent % SLOTS) * SLOT_BYTES + at
                piece = rest[: SLOT_BYTES - at]
                memory[place : place + len(piece)] = piece
                rest, at = rest[len(piece) :], at + len(piece)
                if at == SLOT_BYTES:
                    sent, at = self._put_slot(sent, at), 0
        return self._put_slot(sent, at) if at else sent

    def _put_slot(self, sent: int, size: int) -> int:
        self._put(SHARED, _SLOT.pack(sent % SLOTS, size))
        return sent + 1

    def _await_taken(self) -> None:
        if self._get()[0] != TAKEN:
            raise BrokenChannelError("a slot was not taken")

    def _take_shared(self, body: bytes) -> bytes:
        slot, size = _SLOT.unpack(body)
        if self._shared is None or slot >= SLOTS or size > SLOT_BYTES:
            raise BrokenChannelError("a slot that is not there")
        part = bytes(self._shared[slot * SLOT_BYTES : slot * SLOT_BYTES + size])
        self._put(TAKEN, b"")
        return part

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
            if kind == SHARED:
                yield self._take_shared(body)
            elif kind == CHUNK:
                yield body
            else:
                raise BrokenChannelError("a stream was expected")

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


def shared_memory() -> int:
    """A file for `Channel.share` that has no name and no place on disk; its descriptor."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("headwater-worker", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as unnamed:
            file = os.dup(unnamed.fileno())
    os.ftruncate(file, SLOTS * SLOT_BYTES)
    return file


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
