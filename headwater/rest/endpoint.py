"""The end of the way: a call that was admitted is authorized, its body read, its answer made and sent.

Look-ups of names that the catalog can answer from memory are remembered for as long as its state is the current one:
only requests whose answer depends on names alone. Those that ask for a version, a tag, a branch or details open a
dataset. That is decided on the request as it was understood, not on its text.

The log as server-sent events: each commit as it is made, from the same gapless log that ReadLog pages.

The id of an event is the number of its commit, so a client that comes back with `Last-Event-ID` misses nothing. A
waiting client holds no thread and no worker: one look at the newest commit serves all that wait. A stream ends after
five minutes, so that a client whose key was revoked does not come back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec import structs
from starlette.types import Receive, Scope, Send

from headwater.errors import CommitStateUnknownError, InvalidInputError, LanceNamespaceError, ServiceUnavailableError
from headwater.namespace.abilities import CatalogAbilities
from headwater.rest.body import FREE, DisconnectedError, arrived_body, read_body
from headwater.rest.call import KEY, SESSION, Call
from headwater.rest.coding import encode_json
from headwater.rest.dispatch import LOOKUPS, Dispatcher
from headwater.rest.extensions import FOLLOW
from headwater.rest.reply import SAFE, Reply, SlowReaders, send_reply, unless_gone, until_gone
from headwater.rest.routes import BodyKind, WorkPlace
from headwater.rest.settings import Holding, Limits, Quota
from headwater.rest.work import needs_worker
from headwater.verbs.catalog import LogPage

MAX_WAIT_SECONDS = 30.0
LOOK_EVERY = 0.2
"""Seconds between two looks for the next slot, while somebody waits for it."""


class Endpoint:
    """Answers calls. Blocking work happens in threads: pools for names, data and long work, so that none starves."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        lookups: NameLookups,
        limits: Limits,
        catalog_pool: Executor,
        data_pool: Executor,
        long_pool: Executor,
        slow: SlowReaders,
    ) -> None:
        self._dispatcher = dispatcher
        self._lookups = lookups
        self._limits = limits
        self._catalog_pool = catalog_pool
        self._data_pool = data_pool
        self._long_pool = long_pool
        self._slow = slow
        self._quota = Quota(limits.spooled, limits.spooled_per_caller)
        self._followers = Followers(dispatcher, catalog_pool)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call: Call = scope[KEY]
        self._dispatcher.authorize(call)
        if call.has_body:
            await self._take_body(call, scope, receive)
        if call.holding is not None and call.holding.size > FREE and call.route.body is not BodyKind.ARROW:
            await asyncio.get_running_loop().run_in_executor(self._catalog_pool, self._dispatcher.understand, call)
        else:
            self._dispatcher.understand(call)
        if call.route.operation == "ReadLog":
            await self._wait_for_news(call)
        if call.route.operation == FOLLOW:
            await self._followers.follow(call, receive, send)
            return
        reply = self._from_memory(call)
        if reply is None:
            reply = await self._work(call, receive)
        await send_reply(call, reply, receive, send, self._in_data_pool, self._slow)

    def remembered(self, call: Call, body: bytes) -> Reply | None:
        """Return the answer to a look-up that is in memory for who asks, without waiting for anything."""
        self._dispatcher.authorize(call)
        if call.has_body:
            call.body = body
        self._dispatcher.understand(call)
        state = self._lookups.state(call)
        return None if state is None else self._lookups.find(call, state)

    async def _wait_for_news(self, call: Call) -> None:
        """A long poll: it holds no thread, and looks now and then."""
        loop = asyncio.get_running_loop()
        end = loop.time() + min(max(call.request.wait_seconds, 0), MAX_WAIT_SECONDS)
        while loop.time() < end:
            if await loop.run_in_executor(self._catalog_pool, self._dispatcher.has_news, call):
                return
            await asyncio.sleep(min(LOOK_EVERY, max(end - loop.time(), 0)))

    async def _take_body(self, call: Call, scope: Scope, receive: Receive) -> None:
        limits = self._limits
        limit = limits.arrow_body if call.route.body is BodyKind.ARROW else limits.json_body
        call.holding = Holding(self._quota, call.payer)
        arrived = arrived_body(scope, call.headers, limit)
        call.body = (
            await read_body(receive, call.headers, limit, limits, call.holding, self._in_data_pool)
            if arrived is None
            else arrived
        )

    def _from_memory(self, call: Call) -> Reply | None:
        """Return the answer to a look-up of names that is in memory right now; a thread would only be a detour.

        An answer is kept for as long as the state that it was made from is the current one.
        """
        state = self._lookups.state(call)
        if state is None:
            return None
        kept = self._lookups.find(call, state)
        if kept is None and self._lookups.reads_schema(call):
            return None
        if kept is None:
            call.in_memory = True
            kept = self._dispatcher.answer(call)
            self._lookups.keep(call, state, kept)
        return kept

    async def _work(self, call: Call, receive: Receive) -> Reply:
        route, data = call.route, needs_worker(call)
        is_long = route.runs is WorkPlace.LONG
        pool = self._long_pool if is_long else self._data_pool if data else self._catalog_pool
        work = asyncio.get_running_loop().run_in_executor(pool, self._dispatcher.answer, call)
        try:
            async with asyncio.timeout(None if is_long else self._limits.request_seconds):
                return await (self._watched(call, work, receive) if data and not route.changes else work)
        except TimeoutError:
            raise _overdue(route.changes, self._limits.request_seconds) from None

    async def _watched(self, call: Call, work: asyncio.Future[Reply], receive: Receive) -> Reply:
        """Reading is given up when nobody waits for it any more: not begun, its worker ended, or at the first chunk."""
        gone = asyncio.ensure_future(until_gone(receive))
        try:
            return await unless_gone(work, gone)  # type: ignore[no-any-return]
        except (DisconnectedError, asyncio.CancelledError):
            work.cancel()
            work.add_done_callback(_discard)
            if call.stop is not None:
                call.stop()
            raise
        finally:
            gone.cancel()

    async def _in_data_pool(self, function: Any, *args: Any) -> object:
        return await asyncio.get_running_loop().run_in_executor(self._data_pool, partial(function, *args))


def _discard(work: asyncio.Future[Reply]) -> None:
    """An answer that nobody waits for: its stream ends before it is read."""
    if not work.cancelled() and work.exception() is None:
        stream = work.result().stream
        if stream is not None:
            stream.close()


def _overdue(changes: bool, seconds: float) -> LanceNamespaceError:
    if changes:
        return CommitStateUnknownError(
            f"The change was not finished within {seconds:g} seconds and may still be made: look before repeating it."
        )
    return ServiceUnavailableError(f"The answer was not ready within {seconds:g} seconds: ask for less, or try later.")


MORE_THAN_NAMES = ("version", "tag", "branch", "load_detailed_metadata", "check_declared", "context")
MAX_BYTES = 32 * 1024 * 1024
MAX_ANSWER = 64 * 1024
OVERHEAD = 512
"""Bytes of an entry beside those of its answer."""
Key = tuple[object, ...]


class NameLookups:
    """A cache of look-ups, valid for one state of the catalog."""

    def __init__(self, abilities: CatalogAbilities, vends: bool = False) -> None:
        self._current = abilities.current_state
        self._lacks_schema = abilities.lacks_schema
        self._operations = LOOKUPS - {"DescribeTable"} if vends else LOOKUPS  # credentials are made, and expire
        self._state: object = None
        self._kept: dict[Key, Reply] = {}
        self._bytes = 0

    def state(self, call: Call) -> object | None:
        """Return the state that answers this call from memory now; None when it takes more than that."""
        if (
            self._current is None
            or not SESSION.isdisjoint(call.headers)
            or call.route.operation not in self._operations
        ):
            return None
        asked = call.request.__dict__
        for name in MORE_THAN_NAMES:
            if asked.get(name):
                return None
        return self._current(call.id) if asked.get("version") is None else None

    def reads_schema(self, call: Call) -> bool:
        """Return True if the answer takes the manifest of a version, which a thread reads."""
        if self._lacks_schema is None or call.route.operation != "DescribeTable":
            return False
        with suppress(LanceNamespaceError):  # the answer is that error
            return call.request.load_detailed_metadata is None and self._lacks_schema(call.id)
        return False

    def find(self, call: Call, state: object) -> Reply | None:
        if state != self._state or "if-none-match" in call.headers:
            return None
        return self._kept.get(_key(call))

    def keep(self, call: Call, state: object, reply: Reply) -> None:
        """Remember an answer; those of an older state are forgotten."""
        if state != self._state:
            self._kept.clear()
            self._state, self._bytes = state, 0
        size = len(reply.body) + OVERHEAD
        if reply.status != 200 or "if-none-match" in call.headers or len(reply.body) > MAX_ANSWER:
            return
        if self._bytes + size <= MAX_BYTES:
            self._kept[_key(call)] = reply
            self._bytes += size


def _key(call: Call) -> Key:
    ask = call.request.__dict__.get
    options = ask("with_table_uri"), ask("vend_credentials"), ask("load_detailed_metadata")
    return call.route.operation, call.id, call.caller, options


LAST = "last-event-id"
STREAM_SECONDS = 300.0
SILENT_SECONDS = 15.0
"""A comment is sent after this time without an event, so that proxies keep the connection."""
PAGE = 200
"""Transactions that are read and sent at once."""
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
            raise InvalidInputError(f"Last-Event-ID {text[:80]!r} is not a commit: it is the id of an event.")
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
