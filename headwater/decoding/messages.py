"""The size of an Arrow IPC message, read from its header before anything is decompressed.

The header is a FlatBuffers table (Arrow's Message.fbs). Only its sizes are read: rows, nodes and buffers. A compressed
buffer starts with its real length. pyarrow has verified the table before. What does not fit raises `struct.error`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

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
    nodes = _pairs(data, batch, _BATCH_NODES)[:, 0]
    if rows < 0 or (len(nodes) and int(nodes.min()) < 0):
        raise struct.error("negative length")
    longest = max(rows, int(nodes.max())) if len(nodes) else rows
    is_compressed = _field(data, batch, _BATCH_COMPRESSION) is not None
    size = _body_bytes(_pairs(data, batch, _BATCH_BUFFERS), message.body, is_compressed)
    return BatchSize(longest, size, is_compressed, id, is_delta)


def _body_bytes(buffers: Any, body: pa.Buffer | None, is_compressed: bool) -> int:
    if not len(buffers):
        return 0
    offsets, lengths, end = buffers[:, 0], buffers[:, 1], 0 if body is None else body.size
    if int(buffers.min()) < 0 or int(lengths.max()) > end or int((end - lengths - offsets).min()) < 0:
        raise struct.error("a buffer lies outside its message")
    if not is_compressed or body is None:
        return int(lengths.sum())
    return sum(_real_length(body, offset, length) for offset, length in buffers.tolist())


def _real_length(body: pa.Buffer, offset: int, length: int) -> int:
    """A compressed buffer starts with its real length; -1 says that it is not compressed after all."""
    if length < 8:
        return length
    (real,) = struct.unpack_from("<q", body.slice(offset, 8).to_pybytes(), 0)
    if real < -1:
        raise struct.error("negative length")
    return length if real == -1 else int(real)


def _pairs(data: bytes, batch: int, number: int) -> Any:
    """A vector of pairs of 64-bit numbers: the nodes (length, nulls) or the buffers (offset, length) of a batch."""
    at = _field(data, batch, number)
    if at is None:
        return np.empty((0, 2), np.int64)
    vector = _indirect(data, at)
    (count,) = struct.unpack_from("<I", data, vector)
    if vector + 4 + 16 * count > len(data):
        raise struct.error("a vector lies outside its message")
    return np.frombuffer(data, "<i8", 2 * count, vector + 4).reshape(-1, 2)


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
