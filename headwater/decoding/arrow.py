"""Arrow IPC from outside: streams, files (Feather 2) and schemas, measured by their headers and validated whole.

Arrow's readers trust offsets and lengths inside the buffers. Without full validation a crafted body reads memory
of this process. A reader that this module returns yields its first batch after all batches were validated.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import add
from typing import Any

import pyarrow as pa

from headwater.decoding.bounds import (
    FILES,
    REQUEST,
    Accept,
    Bounds,
    check_schema,
    check_types,
    reading,
    repeats,
    unpacked_bytes,
)
from headwater.errors import InvalidInputError

END_MARKER_BYTES = 4
"""A stream ends with a length of zero, which old writers put alone and new ones after a continuation mark."""
FILE_MAGIC = b"ARROW1"
FILE_HEAD, FILE_TAIL = 8, 10
"""Bytes around the messages of a file: magic and padding in front, the footer's length and the magic behind."""
MAX_PADDING = 128
"""Writers may align the first message to 64 bytes, as Rust's does."""
KEPT_BYTES = 64 * 1024 * 1024
"""Decoded batches of at most this size are kept between validation and use. Others are decoded twice."""

Body = bytes | bytearray | memoryview | pa.Buffer


def read_stream(data: Body, accept: Accept | None = None, bounds: Bounds = REQUEST) -> pa.RecordBatchReader:
    """Return a reader over an Arrow IPC stream; InvalidInput (13) when the stream is not what it should be.

    At once: the form of every message, the end marker, schema, rows and decoded bytes by the messages' own account.
    `accept` may refuse the latter. Before the first batch: every offset, length and text inside every batch.
    A caller that compares the schema with its target first decodes nothing of a body that does not fit.
    """
    return _checked_reader(_buffer(data), accept, bounds, "The body is not a valid Arrow IPC stream")


def read_file(data: Body, bounds: Bounds = REQUEST) -> pa.RecordBatchReader:
    """Return a reader over an Arrow IPC file (Feather 2), checked as a stream is.

    The messages are read in their order. The footer's list of blocks could name one message many times.
    """
    what = "The data is not a valid Arrow IPC file"
    buffer = _buffer(data)
    with reading(what):
        if buffer.size < FILE_HEAD + FILE_TAIL or not is_arrow_file(buffer) or _end(buffer, 6) != FILE_MAGIC:
            raise InvalidInputError(f"{what}: it does not begin and end with {FILE_MAGIC.decode()}; it was cut off.")
        (footer,) = struct.unpack("<i", _end(buffer, FILE_TAIL)[:4])
        if not 0 < footer <= buffer.size - FILE_HEAD - FILE_TAIL:
            raise InvalidInputError(f"{what}: its footer lies outside of it.")
        blocks = pa.ipc.open_file(buffer).num_record_batches
        start, end = FILE_HEAD, buffer.size - FILE_TAIL - footer
        while start < min(end, MAX_PADDING) and not any(buffer.slice(start, 8).to_pybytes()):
            start += 8
        messages = buffer.slice(start, end - start)
    return _checked_reader(messages, None, bounds, what, blocks)


def read_arrow(data: Body, bounds: Bounds = REQUEST) -> pa.RecordBatchReader:
    """Return a reader over a file or a stream, whichever the first bytes say."""
    buffer = _buffer(data)
    if is_arrow_file(buffer):
        return read_file(buffer, bounds)
    return _checked_reader(buffer, None, bounds, "The data is not a valid Arrow IPC stream", alone=True)


def read_arrow_path(path: str, bounds: Bounds = FILES) -> pa.RecordBatchReader:
    """Return a reader over a file or stream on local disk."""
    with reading("The file cannot be read"):
        return read_arrow(pa.OSFile(path, "rb").read_buffer(), bounds)


def is_arrow_file(data: Body) -> bool:
    return bytes(memoryview(data)[: len(FILE_MAGIC)]) == FILE_MAGIC


def read_schema(data: Body) -> pa.Schema:
    """Return the schema of one IPC schema message. Names may be empty or repeated."""
    with reading("The data is no Arrow schema"):
        schema = pa.ipc.read_schema(_buffer(data))
        check_types(schema)
        return schema


def read_type(text: str) -> object:
    """Return the type of the first field of a schema message in hexadecimal digits."""
    with reading("A type in Arrow's form cannot be read"):
        return read_schema(bytes.fromhex(text)).field(0).type


def _buffer(data: Body) -> pa.Buffer:
    return data if isinstance(data, pa.Buffer) else pa.py_buffer(data)


def _end(buffer: pa.Buffer, count: int) -> bytes:
    return bytes(buffer.slice(buffer.size - count, count).to_pybytes())


def _checked_reader(
    buffer: pa.Buffer, accept: Accept | None, bounds: Bounds, what: str, blocks: int | None = None, alone: bool = False
) -> pa.RecordBatchReader:
    with reading(what):
        size, is_packed = _walk(buffer, bounds, blocks, alone)
        reader = _opened(buffer)
        check_schema(reader.schema)
        if accept is not None:
            accept(size)
    keep = not is_packed or size <= KEPT_BYTES
    return pa.RecordBatchReader.from_batches(reader.schema, _batches(reader, buffer, bounds, what, keep))


def _opened(buffer: pa.Buffer) -> pa.RecordBatchReader:
    """Return a reader whose values stand where readers of their types look: a sender may put them at any byte."""
    ipc: Any = pa.ipc  # the stubs of pyarrow lack this option
    reader: pa.RecordBatchReader = ipc.open_stream(
        buffer, options=ipc.IpcReadOptions(ensure_alignment=ipc.Alignment.DataTypeSpecific)
    )
    return reader


def _walk(buffer: pa.Buffer, bounds: Bounds, blocks: int | None = None, alone: bool = False) -> tuple[int, bool]:
    """Read the headers of all messages: the bytes they decode to, and whether any of them is compressed.

    `blocks`: how many record batches the footer of a file says there are; None for a stream, which ends by itself.
    `alone`: nothing may follow the stream.
    """
    if blocks is None and is_arrow_file(buffer):
        raise InvalidInputError("The body is an Arrow IPC file: send an Arrow IPC stream.")
    source = pa.BufferReader(buffer)
    messages = pa.ipc.MessageReader.open_stream(source)
    total = end = batches = 0
    is_packed, dictionaries = False, Dictionaries()
    for number, message in enumerate(_messages(messages)):
        end = source.tell()
        if (number == 0) != (message.type == "schema"):
            raise InvalidInputError("The body is not a valid Arrow IPC stream: it starts with one schema.")
        size = batch_size(message)
        if size is None:
            continue
        sent = message.body.size if message.body is not None else 0
        bounds.check(size.bytes, sent, "A batch")
        bounds.check_rows(size.rows, size.bytes, "A batch")
        batches += size.dictionary is None
        is_packed = is_packed or size.is_compressed
        total += size.bytes + dictionaries.copied(size)
        bounds.check(total, buffer.size, "A body")
    if blocks is not None and batches != blocks:
        raise InvalidInputError(f"The footer of the file names {blocks} batches, and the file has {batches}.")
    if blocks is None and source.tell() < end + END_MARKER_BYTES:
        told = "it was cut off" if alone else "send it whole"
        raise InvalidInputError(f"The body was cut short, it lacks the end marker of an Arrow stream: {told}.")
    if alone and source.tell() < buffer.size:
        raise InvalidInputError(f"There are bytes behind the end of its stream, from offset {source.tell()} on.")
    return total, is_packed


def _messages(messages: pa.MessageReader) -> Iterator[pa.Message]:
    while True:
        try:
            yield messages.read_next_message()
        except StopIteration:
            return


def _batches(
    reader: pa.RecordBatchReader, buffer: pa.Buffer, bounds: Bounds, what: str, keep: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the batches after all of them were validated. `keep`: they are held in between, not decoded again."""
    kept = []
    with reading(what):
        for batch in _validated(reader, bounds.most(buffer.size), buffer.size):
            if keep:
                kept.append(batch)
    yield from kept if keep else _opened(buffer)


def _validated(reader: pa.RecordBatchReader, most: int, sent: int) -> Iterator[pa.RecordBatch]:
    """Yield valid batches of a body of `sent` bytes, whose repeated values may take `most` bytes."""
    repeating = [place for place, field in enumerate(reader.schema) if repeats(field.type)]
    total = 0
    for batch in reader:
        if repeating:  # else a batch holds what its message says
            batch.validate()
            total += sum(unpacked_bytes(batch.column(place)) for place in repeating)
            if total > most:
                raise InvalidInputError(
                    f"A body of {sent} bytes holds {total} bytes when its views, dictionaries and runs are "
                    "written out: send it in smaller parts."
                )
        batch.validate(full=True)
        yield batch


DICTIONARY_BATCH, RECORD_BATCH = 2, 3

_MESSAGE_HEADER_TYPE, _MESSAGE_HEADER = 1, 2
_DICTIONARY_ID, _DICTIONARY_DATA, _DICTIONARY_IS_DELTA = 0, 1, 2
_BATCH_LENGTH, _BATCH_NODES, _BATCH_BUFFERS, _BATCH_COMPRESSION = 0, 1, 2, 3


@dataclass(frozen=True)
class BatchSize:
    """The rows of a message, the bytes its buffers become, and the dictionary that it is a part of.

    `rows`: of the longest array, the values inside of lists included.
    `bytes`: of all buffers together, where several may be the same bytes of the message.
    """

    rows: int
    bytes: int
    is_compressed: bool
    dictionary: int | None = None
    is_delta: bool = False


@dataclass
class Dictionaries:
    """The dictionaries of a stream: one that grows is copied for the next batch, which a small message may cause."""

    _bytes: dict[int, int] = field(default_factory=dict)
    _grown: set[int] = field(default_factory=set)

    def copied(self, size: BatchSize) -> int:
        """Return how many bytes of earlier dictionaries Arrow copies because of this message."""
        if size.dictionary is None:
            copied = sum(self._bytes[id] for id in self._grown)
            self._grown.clear()
            return copied
        self._bytes[size.dictionary] = size.bytes + (self._bytes.get(size.dictionary, 0) if size.is_delta else 0)
        if size.is_delta:
            self._grown.add(size.dictionary)
        return 0


def batch_size(message: pa.Message) -> BatchSize | None:
    """Return the size of a record batch or dictionary batch; None for any other message."""
    data = message.metadata.to_pybytes()
    root = _indirect(data, 0)
    kind_at = _field(data, root, _MESSAGE_HEADER_TYPE)
    header_at = _field(data, root, _MESSAGE_HEADER)
    if kind_at is None or header_at is None or data[kind_at] not in (DICTIONARY_BATCH, RECORD_BATCH):
        return None
    batch, id, is_delta = _indirect(data, header_at), None, False
    if data[kind_at] == DICTIONARY_BATCH:
        inner, delta_at = _field(data, batch, _DICTIONARY_DATA), _field(data, batch, _DICTIONARY_IS_DELTA)
        id, is_delta = _long(data, _field(data, batch, _DICTIONARY_ID)), delta_at is not None and bool(data[delta_at])
        if inner is None:
            return None
        batch = _indirect(data, inner)
    rows = _long(data, _field(data, batch, _BATCH_LENGTH))
    lengths = (rows, *_pairs(data, batch, _BATCH_NODES)[::2])
    if min(lengths) < 0:
        raise struct.error("negative length")
    is_compressed = _field(data, batch, _BATCH_COMPRESSION) is not None
    size = _body_bytes(_pairs(data, batch, _BATCH_BUFFERS), message.body, is_compressed)
    return BatchSize(max(lengths), size, is_compressed, id, is_delta)


def _body_bytes(buffers: tuple[int, ...], body: pa.Buffer | None, is_compressed: bool) -> int:
    if not buffers:
        return 0
    offsets, lengths, end = buffers[::2], buffers[1::2], 0 if body is None else body.size
    if min(buffers) < 0 or max(map(add, offsets, lengths)) > end:
        raise struct.error("a buffer lies outside its message")
    if not is_compressed or body is None:
        return sum(lengths)
    return sum(_real_length(body, offset, length) for offset, length in zip(offsets, lengths, strict=True))


def _real_length(body: pa.Buffer, offset: int, length: int) -> int:
    """A compressed buffer starts with its real length; -1 says that it is not compressed after all."""
    if length < 8:
        return length
    (real,) = struct.unpack_from("<q", body.slice(offset, 8).to_pybytes(), 0)
    if real < -1:
        raise struct.error("negative length")
    return length if real == -1 else int(real)


def _pairs(data: bytes, batch: int, number: int) -> tuple[int, ...]:
    """Return the 64-bit numbers of the nodes (length, nulls) or the buffers (offset, length) of a batch, in turns."""
    at = _field(data, batch, number)
    if at is None:
        return ()
    vector = _indirect(data, at)
    (count,) = struct.unpack_from("<I", data, vector)
    if vector + 4 + 16 * count > len(data):
        raise struct.error("a vector lies outside its message")
    return struct.unpack_from(f"<{2 * count}q", data, vector + 4)


def _indirect(data: bytes, at: int) -> int:
    (offset,) = struct.unpack_from("<I", data, at)
    return at + int(offset)


def _field(data: bytes, table: int, number: int) -> int | None:
    """Return the offset of a field of a flatbuffer table; None if it has its default."""
    (back,) = struct.unpack_from("<i", data, table)
    vtable = table - int(back)
    if vtable < 0:
        raise struct.error("offset outside the message")
    (size,) = struct.unpack_from("<H", data, vtable)
    slot = 4 + 2 * number
    if slot + 2 > size:
        return None
    (offset,) = struct.unpack_from("<H", data, vtable + slot)
    return table + int(offset) if offset else None


def _long(data: bytes, at: int | None) -> int:
    return 0 if at is None else int(struct.unpack_from("<q", data, at)[0])
