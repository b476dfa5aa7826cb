"""Sending an answer: whole, or chunk by chunk as it is made. A client that is gone is noticed, and the work stops.

A client that reads slower than a worker makes its answer does not hold the worker: the rest of it waits on disk.
"""

from __future__ import annotations

import asyncio
import errno
import tempfile
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import IO, Any

from starlette.types import Receive, Send

from headwater.errors import LanceNamespaceError, ServiceUnavailableError
from headwater.rest.body import DisconnectedError
from headwater.rest.call import Call
from headwater.rest.reply import CHUNK, Reply
from headwater.rest.settings import Holding, Quota

Run = Callable[..., Coroutine[Any, Any, Any]]
_closing: set[asyncio.Task[Any]] = set()
SAFE = ((b"x-content-type-options", b"nosniff"), (b"cross-origin-resource-policy", b"same-origin"))
"""On every answer: no page of another site gets to use it as a script, a style or an image."""
PATIENCE = 0.5
"""Seconds that a client may take for one chunk before it counts as slow."""


class SlowReaders:
    """Limits on the answers that clients read slower than workers make them.

    `disk`: bytes of such answers on disk, at most half of them of one caller.
    `workers`: answers that may hold their worker because they do not fit there. One more is cut.
    """

    def __init__(self, disk: int, workers: int) -> None:
        self._quota = Quota(disk, disk // 2)
        self.holders = threading.BoundedSemaphore(max(1, workers))

    def spool(self, stream: object, caller: str, begun: bytes) -> SpooledAnswer:
        """Return the rest of an answer, of which `begun` is the next chunk; nothing is spooled before its `fill`."""
        return SpooledAnswer(stream, begun, Holding(self._quota, caller), self.holders)


class SpooledAnswer(Iterator[bytes]):
    """The rest of an answer: what `fill` has taken to a temporary file, and after it what did not fit."""

    def __init__(self, stream: Any, begun: bytes, holding: Holding, holders: threading.BoundedSemaphore) -> None:
        self.ended = False
        self._stream = stream
        self._rest: bytes | None = begun
        self._holding = holding
        self._holders = holders
        self._is_held = False
        self._problem: Exception | None = None
        self._file: IO[bytes] | None = None
        self._left = 0

    def fill(self) -> None:
        """Take the answer in, and with its end free the worker. ServiceUnavailable (17): it is too long to be kept."""
        while self._rest is not None and not self.ended:
            try:
                self._write(self._rest)
            except (LanceNamespaceError, OSError):  # the quota or the disk is used up
                self._hold_worker()
                break
            try:
                self._rest = next(self._stream, None)
            except Exception as error:  # what was made before is sent, and then this
                self._rest, self._problem = None, error
        if self._file is not None:
            self._file.seek(0)

    def _write(self, chunk: bytes) -> None:
        self._holding.grow_to(self._left + len(chunk))
        if self._file is None:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (`close` closes it)
        if self._file.write(chunk) < len(chunk):
            raise OSError(errno.ENOSPC, "the chunk was written in part")
        self._left += len(chunk)

    def _hold_worker(self) -> None:
        self._is_held = self._holders.acquire(blocking=False)
        if not self._is_held:
            self._stream.close()
            raise ServiceUnavailableError(
                "Too many answers are read too slowly: read faster, or ask for less at a time."
            )

    def __next__(self) -> bytes:
        if self._file is not None and self._left:
            chunk: bytes = self._file.read(min(CHUNK, self._left))
            self._left -= len(chunk)
            return chunk
        if self._problem is not None:
            raise self._problem
        if self._rest is None:
            raise StopIteration
        chunk, self._rest = bytes(self._rest), next(self._stream, None)
        return chunk

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._holding.give_back()
        self._stream.close()
        if self._is_held:
            self._is_held = False
            self._holders.release()


def headers_of(call: Call, reply: Reply) -> list[tuple[bytes, bytes]]:
    """Return the headers of an answer, with its length if that is known."""
    headers = [*reply.headers, *SAFE, (b"x-request-id", call.request_id.encode())]
    if reply.stream is None and reply.status != 304:
        headers.append((b"content-length", b"%d" % len(reply.body)))
    return headers


async def send_reply(
    call: Call, reply: Reply, receive: Receive, send: Send, run: Run, slow: SlowReaders | None = None
) -> None:
    """Send an answer. `run` makes the chunks of one that streams, off the event loop."""
    call.status, call.code, call.streams = reply.status, reply.code, reply.stream is not None
    await send({"type": "http.response.start", "status": reply.status, "headers": headers_of(call, reply)})
    if reply.stream is None:
        await send({"type": "http.response.body", "body": reply.body})
        return
    await _send_chunks(call, reply, receive, send, run, slow)


async def _send_chunks(
    call: Call, reply: Reply, receive: Receive, send: Send, run: Run, slow: SlowReaders | None
) -> None:
    """One chunk is on its way to the client, one is made meanwhile; no more are held in memory, however slow the client
    reads. A worker does not wait for a slow one. The chunk of a worker is sent before the next one is asked for."""
    gone = asyncio.ensure_future(until_gone(receive))
    stream: object = reply.stream
    following: asyncio.Future[Any] | None = None
    sending: asyncio.Future[None] | None = None
    try:
        chunk: bytes | None = reply.body
        while chunk is not None:
            message = {"type": "http.response.body", "body": chunk, "more_body": True}
            sending = asyncio.ensure_future(send(message))
            if reply.of_worker and stream is reply.stream:
                await asyncio.wait((sending,), timeout=PATIENCE if slow is not None else None)
                if slow is not None and not sending.done():
                    message["body"] = bytes(chunk)  # the server reads it when the client reads on
                    following = asyncio.ensure_future(run(next, stream, None))
                    begun = await unless_gone(following, gone)
                    if begun is not None:
                        stream = slow.spool(stream, call.payer, begun)
                        following = asyncio.ensure_future(run(stream.fill))
                        await unless_gone(following, gone)
            following = asyncio.ensure_future(run(next, stream, None))
            await sending
            chunk = await unless_gone(following, gone)
        await send({"type": "http.response.body", "body": b""})
    finally:
        gone.cancel()
        if sending is not None:
            sending.cancel()
        _close_later(stream, following, run)


async def unless_gone(work: asyncio.Future[Any], gone: asyncio.Future[None]) -> Any:
    """Return the result of the work; raise Disconnected as soon as the client is gone."""
    if not work.done():
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
    if gone.done():
        raise DisconnectedError
    return work.result()


async def until_gone(receive: Callable[[], Awaitable[Any]]) -> None:
    """Return once the client has gone away. What it still sends is taken in and thrown away."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _close_later(stream: Any, following: asyncio.Future[object] | None, run: Run) -> None:
    """End the stream where it stands, once the chunk that is being made is done: it can not be stopped halfway."""
    if isinstance(stream, SpooledAnswer):
        stream.ended = True

    async def close() -> None:
        if following is not None:
            await asyncio.wait((following,))
            following.exception() if not following.cancelled() else None
        await run(stream.close)

    task = asyncio.ensure_future(close())
    _closing.add(task)
    task.add_done_callback(_closing.discard)
