"""The log as server-sent events: each commit as it is made, from the same gapless log that ReadLog pages.

The id of an event is the number of its commit, so a client that comes back with `Last-Event-ID` misses nothing. A
waiting client holds no thread and no worker: one look at the newest commit serves all that wait. A stream ends after
five minutes, so that a client whose key was revoked does not come back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import Any

from msgspec import structs
from starlette.types import Receive, Send

from headwater.errors import InvalidInputError
from headwater.rest.call import Call
from headwater.rest.coding import encode_json
from headwater.rest.dispatch import Dispatcher
from headwater.rest.sending import SAFE, until_gone
from headwater.verbs.catalog import LogPage

LAST = "last-event-id"
STREAM_SECONDS = 300.0
SILENT_SECONDS = 15.0
"""A comment is sent after this time without an event, so that proxies keep the connection."""
LOOK_EVERY = 0.2
PAGE = 200
"""So many transactions are read and sent at once."""
HEADERS = ((b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"))


class NewestCommit:
    """One look at the newest commit at a time, a few times a second, however many wait for the next one."""

    def __init__(self, read: Callable[[], int], pool: Executor) -> None:
        self._read, self._pool = read, pool
        self._look: asyncio.Future[int] | None = None
        self._began = 0.0

    async def after(self, slot: int, seconds: float, gone: asyncio.Future[None]) -> bool:
        """Wait for a commit after `slot`; False if none came in so many seconds, or the client is gone."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not gone.done():
            if await self._newest() > slot:
                return True
            if loop.time() >= end:
                return False
            await asyncio.wait((gone,), timeout=LOOK_EVERY)
        return False

    async def _newest(self) -> int:
        loop = asyncio.get_running_loop()
        if self._look is None or (self._look.done() and loop.time() - self._began >= LOOK_EVERY):
            self._began = loop.time()
            self._look = asyncio.ensure_future(loop.run_in_executor(self._pool, self._read))
        return await asyncio.shield(self._look)


class Followers:
    """Sends the log to clients that follow it."""

    def __init__(self, dispatcher: Dispatcher, pool: Executor) -> None:
        self._dispatcher, self._pool = dispatcher, pool
        self._commits = NewestCommit(dispatcher.newest, pool)

    async def follow(self, call: Call, receive: Receive, send: Send) -> None:
        """Send events until the client is gone or its time is over. An error before the first is an answer."""
        loop = asyncio.get_running_loop()
        page, position = await self._page(call, await self._start(call))
        call.status, call.streams = 200, True
        headers = [*HEADERS, *SAFE, (b"x-request-id", call.request_id.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        gone, end = asyncio.ensure_future(until_gone(receive)), loop.time() + STREAM_SECONDS
        try:
            await _send(send, b"".join(events(page, position)) or b": following\n\n")
            while not gone.done() and (left := end - loop.time()) > 0:
                if await self._commits.after(position, min(SILENT_SECONDS, left), gone):
                    page, position = await self._page(call, position)
                    await _send(send, b"".join(events(page, position)))
                elif not gone.done():
                    await _send(send, b": waiting\n\n")
            await send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()

    async def _start(self, call: Call) -> int:
        """Return the commit after which a client follows: the last it has, the one it names, or the newest."""
        text = call.headers.get(LAST)
        if text is not None and not (text.isascii() and text.isdigit() and len(text) < 19):
            raise InvalidInputError(f"Last-Event-ID {text[:80]!r} is no commit: it is the id of an event.")
        if text is not None:
            return int(text)
        if call.request.after is not None:
            return int(call.request.after)
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._dispatcher.newest)

    async def _page(self, call: Call, after: int) -> tuple[LogPage, int]:
        """Return the next transactions, and the commit up to which they tell all."""
        call.request = structs.replace(call.request, after=after, limit=PAGE, wait_seconds=0)
        loop = asyncio.get_running_loop()
        page: LogPage = await loop.run_in_executor(self._pool, self._dispatcher.respond, call)
        return page, page.until


def events(page: LogPage, position: int) -> Iterator[bytes]:
    """Yield the events of a page. A commit of several transactions has its id at the last of them.

    The last event has no data and the position as its id, so that a client resumes after all that it was not told.
    """
    entries: list[Any] = list(page.entries)
    for place, entry in enumerate(entries):
        is_last = place + 1 == len(entries) or entries[place + 1].slot != entry.slot
        id = b"id: %d\n" % entry.slot if is_last else b""
        if entry.changes:
            yield id + b"event: commit\ndata: " + encode_json(entry) + b"\n\n"
    if entries or position:
        yield b"id: %d\n\n" % position


async def _send(send: Send, body: bytes) -> None:
    if body:
        await send({"type": "http.response.body", "body": body, "more_body": True})
