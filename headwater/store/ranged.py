"""A file of a store, read by other libraries in parts: only what is asked for is sent for."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

TAIL = 64 << 10
"""So much of the end comes with the first read: formats that are read in parts say there where the parts are."""


class RangedFile(io.RawIOBase):
    """The bytes at a key. `read` is a store's ability of that name."""

    def __init__(self, read: Callable[[str, int, int], bytes], key: str, size: int) -> None:
        self._read = read
        self._key = key
        self._size = size
        self._at = 0
        self._tail: bytes | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = self._part(self._at, min(len(buffer), self._size - self._at))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _part(self, start: int, length: int) -> bytes:
        if length <= 0:
            return b""
        first = max(self._size - TAIL, 0)
        if start < first:
            return self._read(self._key, start, length)
        if self._tail is None:
            self._tail = self._read(self._key, first, self._size - first)
        return self._tail[start - first : start - first + length]
