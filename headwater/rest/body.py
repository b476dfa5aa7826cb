"""The body of a request: small ones in memory, large ones spooled to a temporary file.

An Arrow body is taken in whole before the catalog is touched. So a client that is slow or goes away holds no
worker thread and leaves nothing half-written, memory stays flat, and the size limit holds before any work.
"""

from __future__ import annotations

import asyncio
import mmap
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from typing import IO, Any

import pyarrow as pa

from headwater.errors import InvalidInputError, ServiceUnavailableError
from headwater.rest.settings import Holding, Limits

Receive = Callable[[], Awaitable[Any]]
Run = Callable[..., Awaitable[Any]]
DRAIN = 64 * 1024 * 1024
FLUSH = 2 * 1024 * 1024
ARRIVED = "headwater.arrived"
"""The key in an ASGI scope of a function that returns the body, if all of it is there without waiting."""
FREE = 64 * 1024
"""A body as small as this, in one piece, is not counted."""


class BodyTooLargeError(InvalidInputError):
    """A body over the server's limit; its HTTP status is 413."""


class DisconnectedError(Exception):
    """The client went away before its request was whole: there is nobody to answer."""


class BodySpool:
    """The bytes of one body."""

    def __init__(self, data: bytes | pa.Buffer = b"", file: IO[bytes] | None = None) -> None:
        self._data = data
        self._file = file
        self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if file is not None else None

    @property
    def view(self) -> memoryview:
        return memoryview(self._data if self._map is None else self._map)

    @property
    def bytes(self) -> bytes:
        return bytes(self._data if self._map is None else self._map)

    @property
    def buffer(self) -> pa.Buffer:
        """The bytes as Arrow reads them, not copied."""
        return pa.py_buffer(self._data if self._map is None else self._map)

    @property
    def file_number(self) -> int | None:
        """The descriptor of the file that the bytes are in, if they are in one."""
        return None if self._file is None else self._file.fileno()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def arrived_body(scope: Any, headers: Mapping[str, str], limit: int) -> bytes | None:
    """Return a small body that came together with its head, for which nothing has to wait; None for any other."""
    arrived = scope.get(ARRIVED)
    body = arrived(scope) if arrived is not None and "content-encoding" not in headers else None
    return body if body is not None and len(body) <= min(limit, FREE) else None


async def read_body(
    receive: Receive, headers: Mapping[str, str], limit: int, limits: Limits, holding: Holding, run: Run
) -> bytes | BodySpool:
    """Return the whole body, or TooLarge (13, status 413), or InvalidInput for an encoding that is not spoken here.

    Its bytes are held of the quota before they are taken in: those it announces at once, the others as they come.
    """
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise InvalidInputError("A compressed body is not supported: send it without Content-Encoding.")
    announced = headers.get("content-length", "")
    size = int(announced) if announced.isdecimal() and len(announced) < 20 else 0
    if size > limit:
        raise too_large(limit)
    if size > FREE:
        holding.grow_to(size)
    try:
        async with asyncio.timeout(limits.body_idle_seconds) as idle:
            return await _take(receive, limit, limits, holding, run, idle)
    except TimeoutError:
        raise ServiceUnavailableError(
            f"The body stopped arriving for {limits.body_idle_seconds:g} seconds: send the request again."
        ) from None


async def _take(
    receive: Receive, limit: int, limits: Limits, holding: Holding, run: Run, idle: asyncio.Timeout
) -> bytes | BodySpool:
    loop = asyncio.get_running_loop()
    chunks: list[bytes] = []
    held, total, file = 0, 0, None
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise DisconnectedError
        chunk, more = message.get("body", b""), message.get("more_body", False)
        if not more and not chunks and file is None and len(chunk) <= min(limit, FREE):
            return bytes(chunk)
        chunks.append(chunk)
        held, total = held + len(chunk), total + len(chunk)
        if total > limit:
            await _drain(receive, more)
            raise too_large(limit)
        holding.grow_to(total)
        in_memory = limits.in_memory_body if holding.held_by_all <= limits.memory_bodies else FREE
        if total > in_memory and (held >= FLUSH or not more):
            file = file or await run(tempfile.TemporaryFile)
            await run(_write, file, chunks)
            chunks, held = [], 0
        if not more:
            break
        idle.reschedule(loop.time() + limits.body_idle_seconds)
    if file is None:
        return b"".join(chunks)
    if chunks:
        await run(_write, file, chunks)
    await run(file.flush)
    return BodySpool(file=file)


def _write(file: IO[bytes], chunks: list[bytes]) -> None:
    try:
        file.writelines(chunks)
    except OSError:
        raise ServiceUnavailableError("The server cannot hold the body now, its disk may be full: try later.") from None


async def _drain(receive: Receive, more: bool) -> None:
    """Take in a little more, so that a client that is still sending reads the answer and not a reset."""
    taken = 0
    while more and taken < DRAIN:
        message = await receive()
        taken += len(message.get("body", b""))
        more = message.get("more_body", False)


def too_large(limit: int) -> BodyTooLargeError:
    return BodyTooLargeError(
        f"The body is larger than this server's limit of {limit} bytes: send it in parts, or raise the limit."
    )
