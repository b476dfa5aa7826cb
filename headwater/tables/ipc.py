"""What an Arrow IPC message says of itself, read from its header before anything is decompressed.

The header is a FlatBuffers table (Arrow's Message.fbs). Only what is needed to know how large a body becomes is
read: the number of rows, and the place of each buffer, since a compressed buffer starts with its real length.
pyarrow has verified the table before it gets here; what does not fit anyway raises `struct.error`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

DICTIONARY_BATCH, RECORD_BATCH = 2, 3

_MESSAGE_HEADER_TYPE, _MESSAGE_HEADER = 1, 2
_DICTIONARY_DATA = 1
_BATCH_LENGTH, _BATCH_BUFFERS, _BATCH_COMPRESSION = 0, 2, 3


@dataclass(frozen=True)
class BatchSize:
    """How many rows a message holds and how many bytes its buffers become."""

    rows: int
    bytes: int


def batch_size(message: pa.Message) -> BatchSize | None:
    """The size of a record batch or dictionary batch; None of any other message."""
    data = message.metadata.to_pybytes()
    root = _indirect(data, 0)
    kind_at = _field(data, root, _MESSAGE_HEADER_TYPE)
    header_at = _field(data, root, _MESSAGE_HEADER)
    if kind_at is None or header_at is None or data[kind_at] not in (DICTIONARY_BATCH, RECORD_BATCH):
        return None
    batch = _indirect(data, header_at)
    if data[kind_at] == DICTIONARY_BATCH:
        inner = _field(data, batch, _DICTIONARY_DATA)
        if inner is None:
            return None
        batch = _indirect(data, inner)
    return BatchSize(_long(data, _field(data, batch, _BATCH_LENGTH)), _body_bytes(data, batch, message.body))


def _body_bytes(data: bytes, batch: int, body: pa.Buffer | None) -> int:
    if body is None:
        return 0
    if _field(data, batch, _BATCH_COMPRESSION) is None:
        return int(body.size)
    return sum(_real_length(body, offset, length) for offset, length in _buffers(data, batch))


def _real_length(body: pa.Buffer, offset: int, length: int) -> int:
    """A compressed buffer starts with its real length; -1 says that it is not compressed after all."""
    if offset < 0 or length < 0 or offset + length > body.size:
        raise struct.error("a buffer lies outside its message")
    if length < 8:
        return length
    (real,) = struct.unpack_from("<q", body.slice(offset, 8).to_pybytes(), 0)
    if real < -1:
        raise struct.error("negative length")
    return length if real == -1 else int(real)


def _buffers(data: bytes, batch: int) -> Iterator[tuple[int, int]]:
    at = _field(data, batch, _BATCH_BUFFERS)
    if at is None:
        return
    vector = _indirect(data, at)
    (count,) = struct.unpack_from("<I", data, vector)
    for number in range(count):
        yield struct.unpack_from("<qq", data, vector + 4 + 16 * number)


def _indirect(data: bytes, at: int) -> int:
    (offset,) = struct.unpack_from("<I", data, at)
    return at + int(offset)


def _field(data: bytes, table: int, number: int) -> int | None:
    """Where a table's field stands, None when it has its default."""
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
