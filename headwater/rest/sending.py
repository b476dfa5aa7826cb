"""Sending an answer: whole, or chunk by chunk as it is made. A client that is gone is noticed, and the work stops."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from starlette.types import Receive, Send

from headwater.rest.body import DisconnectedError
from headwater.rest.call import Call
from headwater.rest.reply import Reply

Run = Callable[..., Coroutine[Any, Any, Any]]
_closing: set[asyncio.Task[Any]] = set()
SAFE = ((b"x-content-type-options", b"nosniff"), (b"cross-origin-resource-policy", b"same-origin"))
"""On every answer: no page of another site gets to use it as a script, a style or an image."""


async def send_reply(call: Call, reply: Reply, receive: Receive, send: Send, run: Run) -> None:
    """Send an answer. `run` makes the chunks of one that streams, off the event loop."""
    call.status, call.code, call.streams = reply.status, reply.code, reply.stream is not None
    headers = [*reply.headers, *SAFE, (b"x-request-id", call.request_id.encode())]
    if reply.stream is None and reply.status != 304:
        headers.append((b"content-length", b"%d" % len(reply.body)))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    if reply.stream is None:
        await send({"type": "http.response.body", "body": reply.body})
        return
    await _send_chunks(reply, receive, send, run)


async def _send_chunks(reply: Reply, receive: Receive, send: Send, run: Run) -> None:
    """One chunk is on its way to the client, one is made meanwhile; no more are held, however slow the client reads."""
    gone = asyncio.ensure_future(until_gone(receive))
    following: asyncio.Future[Any] | None = None
    try:
        chunk: bytes | None = reply.body
        while chunk is not None:
            following = asyncio.ensure_future(run(next, reply.stream, None))
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            chunk = await unless_gone(following, gone)
        await send({"type": "http.response.body", "body": b""})
    finally:
        gone.cancel()
        _close_later(reply, following, run)


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


def _close_later(reply: Reply, following: asyncio.Future[Any] | None, run: Run) -> None:
    """End the stream where it stands, once the chunk that is being made is done: it can not be stopped halfway."""

    async def close() -> None:
        if following is not None:
            await asyncio.wait((following,))
            following.exception() if not following.cancelled() else None
        if reply.stream is not None:
            await run(reply.stream.close)

    task = asyncio.ensure_future(close())
    _closing.add(task)
    task.add_done_callback(_closing.discard)
