"""Frames over a socket between a caller and its worker, errors as JSON, and callbacks to the caller during a call.

A frame is a kind (one byte), a length (four bytes, big endian) and as many bytes: a message (JSON), a chunk of a
stream, or the end of one. Frames that are ready together are sent by one system call and received by one, so that the
other process wakes once. A file travels as a descriptor beside a message, so that its bytes are not copied. Large
chunks of an answer stand in memory that both sides map, a few slots in turn: the frame names the slot, and the
receiver replies when it has used the slot. A sender waits while the receiver takes nothing: that is the only
back-pressure.

A callback sends bytes and gets a JSON value back, one at a time. Work that goes on after its call has ended gets None.
"""

from __future__ import annotations

import io
import json
import mmap
import os
import socket
import struct
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

import pyarrow as pa

from headwater.errors import (
    CommitStateUnknownError,
    ErrorCode,
    InternalError,
    InvalidInputError,
    LanceNamespaceError,
    error_for,
    place_of,
)

MESSAGE, CHUNK, SHARED, TAKEN, END = b"J", b"B", b"S", b"T", b"E"
MAX_FRAME = 1 << 30
MAX_MESSAGE = 64 << 20
BUFFER = 4 << 20
SLOTS, SLOT_BYTES = 4, 2 << 20
MIN_SHARED = 64 << 10
"""What is smaller goes through the socket, which is then as fast."""
_HEAD = struct.Struct(">cI")
_SLOT = struct.Struct(">II")
_END = _HEAD.pack(END, 0)
_encode = json.JSONEncoder(separators=(",", ":")).encode
_raw_decode = json.JSONDecoder().raw_decode
ROOM = 64 << 10
"""Bytes that one system call receives at most of frames that are not long."""
MAX_PARTS = 512
"""Parts that one system call sends; the kernel takes 1,024."""


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
        self._waits = 0.0
        self._read = memoryview(b"")  # received and not yet used
        self._room = memoryview(bytearray(ROOM))
        self._control = socket.CMSG_SPACE(struct.calcsize("i"))
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            connection.setsockopt(socket.SOL_SOCKET, option, BUFFER)

    def wait_at_most(self, seconds: float) -> None:
        """Set the seconds after which waiting for the other side raises TimeoutError.

        The kernel's own time limit: the socket stays blocking, and a chunk is one call instead of many.
        """
        if seconds == self._waits:
            return
        self._waits, whole = seconds, int(seconds)
        limit = struct.pack("ll", whole, max(1, int((seconds - whole) * 1_000_000)))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, limit)

    def send(self, message: dict[str, object], stream: Sequence[Chunk] | None = None, file: int | None = None) -> None:
        """Send a message, and after it `stream`, all chunks of one. `file` is a descriptor to send along."""
        encoded = _encode(message).encode()
        if len(encoded) > MAX_MESSAGE:
            raise ValueError(f"a message of {len(encoded)} bytes is longer than {MAX_MESSAGE}")
        frames = [_HEAD.pack(MESSAGE, len(encoded)), encoded]
        if stream is not None:
            frames += (*(part for chunk in stream for part in _chunk_frames(chunk)), _END)
        self._put(frames, file)

    def share(self, file: int) -> None:
        """Map the memory that answers go through; the worker writes it, the caller reads it."""
        self._shared = memoryview(mmap.mmap(file, SLOTS * SLOT_BYTES))

    def send_chunks(self, chunks: Iterator[Chunk], shared: bool = False) -> None:
        """A stream of bytes, to its end; `shared` of the one side that writes to shared memory."""
        sent = 0
        for chunk in chunks:
            if shared and self._shared is not None and size_of(chunk) >= MIN_SHARED:
                sent = self._send_shared(self._shared, parts_of(chunk), sent)
            else:
                self._put(_chunk_frames(chunk))
        self._put([_END])
        for _ in range(min(sent, SLOTS)):
            self._await_taken()

    def _send_shared(self, memory: memoryview, parts: Sequence[Any], sent: int) -> int:
        """Return a chunk through the slots, each of which must have been taken before it is used again."""
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
        self._put([_HEAD.pack(SHARED, _SLOT.size), _SLOT.pack(sent % SLOTS, size)])
        return sent + 1

    def _await_taken(self) -> None:
        if self._get()[0] != TAKEN:
            raise BrokenChannelError("a slot was not taken")

    def _slot(self, body: bytes) -> memoryview:
        slot, size = _SLOT.unpack(body)
        if self._shared is None or slot >= SLOTS or size > SLOT_BYTES:
            raise BrokenChannelError("a slot that is not there")
        return self._shared[slot * SLOT_BYTES : slot * SLOT_BYTES + size]

    def receive(self) -> dict[str, Any]:
        """Return the next message."""
        kind, body = self._get()
        if kind != MESSAGE:
            raise BrokenChannelError("a message was expected")
        return cast(dict[str, Any], _decode(body))

    def receive_file(self) -> int:
        """Return the descriptor that came with the last message; the caller closes it."""
        if not self._files:
            raise BrokenChannelError("no file came")
        return self._files.pop(0)

    def receive_chunks(self, views: bool = False) -> Iterator[bytes]:
        """Yield the chunks of a stream, as they come. With `views` a chunk may be a memoryview of the shared memory,
        which holds until the next chunk is asked for."""
        while True:
            kind, body = self._get()
            if kind == END:
                return
            if kind == SHARED:
                slot = self._slot(body)
                yield cast(bytes, slot) if views else bytes(slot)
                self._put([_HEAD.pack(TAKEN, 0)])
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

    def _put(self, parts: list[Any], file: int | None = None) -> None:
        """Send the parts of frames, as a rule by one system call."""
        files = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", file))] if file is not None else []
        try:
            sent, size = 0, sum(map(len, parts))
            if len(parts) <= MAX_PARTS:
                sent = self._socket.sendmsg(parts, files)
            if sent < size:  # a long one, or the receiver is slow
                self._socket.sendall(memoryview(b"".join(parts))[sent:])
        except (BlockingIOError, ConnectionError) as error:
            raise _told_by(error) from None

    def _get(self) -> tuple[bytes, bytes]:
        try:
            while len(self._read) < _HEAD.size:
                self._receive_more()
            kind, size = _HEAD.unpack_from(self._read)
            if size > (MAX_MESSAGE if kind == MESSAGE else MAX_FRAME):
                raise BrokenChannelError(f"a frame of {size} bytes is too long")
            body, self._read = self._read[_HEAD.size : _HEAD.size + size], self._read[_HEAD.size + size :]
            return kind, bytes(body) if len(body) == size else self._rest_of(body, size)
        except (BlockingIOError, ConnectionError) as error:
            raise _told_by(error) from None

    def _receive_more(self) -> None:
        """Receive what is there, after the bytes that are left of the last time."""
        left = len(self._read)
        self._room[:left] = self._read
        count, control, _flags, _address = self._socket.recvmsg_into([self._room[left:]], self._control)
        for _level, _type, data in control:
            self._files.append(struct.unpack("i", data)[0])
        if not count:
            raise BrokenChannelError("the other side is gone")
        self._read = self._room[: left + count]

    def _rest_of(self, begun: memoryview, size: int) -> bytes:
        """Return a long frame of which the beginning is here."""
        parts: list[Any] = [bytes(begun)]
        missing = size - len(begun)
        while missing:
            part = self._socket.recv(missing, socket.MSG_WAITALL)
            if not part:
                raise BrokenChannelError("the other side is gone")
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)


def _decode(body: bytes) -> object:
    """Return the value of a message, which the other end has encoded without white space."""
    return _raw_decode(body.decode())[0]


def parts_of(chunk: Chunk) -> list[Any]:
    """Return the parts of a chunk, in their order."""
    return [chunk] if isinstance(chunk, bytes) else chunk


def size_of(chunk: Chunk) -> int:
    """Return the bytes of a chunk."""
    return sum(map(len, parts_of(chunk)))


def _chunk_frames(chunk: Chunk) -> list[Any]:
    """Return a chunk as the parts of frames: one frame, or several of a very long one."""
    size = size_of(chunk)
    if size <= MAX_FRAME:
        return [_HEAD.pack(CHUNK, size), *parts_of(chunk)]
    whole = memoryview(b"".join(parts_of(chunk)))
    pieces = [whole[start : start + MAX_FRAME] for start in range(0, size, MAX_FRAME)]
    return [part for piece in pieces for part in (_HEAD.pack(CHUNK, len(piece)), piece)]


def _told_by(error: OSError) -> Exception:
    """Return the error that a socket's error means: the other side is late, or gone."""
    if isinstance(error, BlockingIOError):
        return TimeoutError("the other side takes too long")
    return BrokenChannelError(type(error).__name__)


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
    """Return the batches of an Arrow IPC stream that comes in chunks."""
    return pa.ipc.open_stream(pa.PythonFile(io.BufferedReader(_Source(chunks), 1 << 18), mode="r"))


class _Sink(io.RawIOBase):
    """Bytes written since the last read."""

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


MIB = 1 << 20
MEMORY_WORDS = ("malloc of size", "realloc of size", "memory allocation of", "Cannot allocate memory", "out of memory")


class WorkerError(Exception):
    """The hosted object failed in a way that is no error of the table: its type, and the place of ours."""


def failure(error: BaseException) -> dict[str, Any]:
    """Return an error as JSON. What is no error of the table is told by its type and place only."""
    text = str(error)
    is_memory = isinstance(error, MemoryError) or any(word in text for word in MEMORY_WORDS)
    return {
        "kind": type(error).__name__,
        "code": int(error.code) if isinstance(error, LanceNamespaceError) else int(ErrorCode.INTERNAL),
        "message": text[:4000] if isinstance(error, LanceNamespaceError) else "",
        "ours": isinstance(error, LanceNamespaceError),
        "memory": is_memory,
        "place": place_of(error),
    }


def error_of(told: dict[str, Any], memory: int = 0) -> Exception:
    """Return the error that was told; `memory` is what a worker may take."""
    if told["memory"]:
        return InvalidInputError(
            f"The request needs more memory than a worker may take ({memory // MIB} MiB): ask for less at once."
        )
    if told["ours"]:
        known = {kind.__name__: kind for kind in (CommitStateUnknownError, InternalError)}
        kind = known.get(told["kind"])
        return kind(told["message"]) if kind is not None else error_for(told["code"], told["message"])
    return WorkerError(f"{told['kind']} at {told['place']}")


speaking = threading.Lock()
"""Held by whoever uses the channel while a call is under way: a question, or a report of progress."""
_caller: Channel | None = None


@contextmanager
def called_by(channel: Channel) -> Iterator[None]:
    """A call is under way, and its caller can be asked."""
    global _caller
    _caller = channel
    try:
        yield
    finally:
        with speaking:
            _caller = None


def ask(question: bytes) -> Any:
    """Return the caller's answer, or the error that it tells; None when no call is under way."""
    with speaking:
        if _caller is None:
            return None
        _caller.send({"ask": True}, [question])
        told = _caller.receive()
    if "error" in told:
        raise error_of(told["error"])
    return told["ok"]
