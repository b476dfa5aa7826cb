"""Pages that are no part of the catalog: health, metrics, the OpenAPI document.

They have a lane of their own, one thread, so that they answer while every thread of the catalog is busy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lance_namespace import LanceNamespace, ListNamespacesRequest
from starlette.types import Receive, Scope, Send

from headwater.errors import ServiceUnavailableError
from headwater.rest.call import KEY
from headwater.rest.reply import Headers, Reply
from headwater.rest.sending import send_reply

READY_SECONDS = 10.0
_JSON: Headers = ((b"content-type", b"application/json"),)
_PLAIN_TEXT: Headers = ((b"content-type", b"text/plain; version=0.0.4; charset=utf-8"),)


class Lane:
    """One thread, and the pages that it answers."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="health")

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)


class ServedPage:
    """A page whose text a function makes, in the lane."""

    def __init__(self, lane: Lane, make: Callable[[], bytes], headers: Headers = _JSON) -> None:
        self._lane = lane
        self._make = make
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply = Reply(200, await self._lane.run(self._make), self._headers)
        await send_reply(scope[KEY], reply, receive, send, self._lane.run)


class MetricsPage(ServedPage):
    """The metrics of a server, in the format of Prometheus."""

    def __init__(self, lane: Lane, make: Callable[[], bytes]) -> None:
        super().__init__(lane, make, _PLAIN_TEXT)


async def live(scope: Scope, receive: Receive, send: Send) -> None:
    """The process answers."""
    await send_reply(scope[KEY], Reply(200, b'{"status":"live"}'), receive, send, _nothing)


class Ready:
    """The catalog answers. Those who ask at the same time share one look, so that a crowd costs no more than one."""

    def __init__(self, lane: Lane, namespace: LanceNamespace) -> None:
        self._lane = lane
        self._namespace = namespace
        self._look: asyncio.Future[Any] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._look is None or self._look.done():
            self._look = asyncio.ensure_future(self._lane.run(self._ask))
        try:
            async with asyncio.timeout(READY_SECONDS):
                answers = await asyncio.shield(self._look)
        except TimeoutError:
            answers = False
        if not answers:
            raise ServiceUnavailableError("The catalog does not answer now.")
        await send_reply(scope[KEY], Reply(200, b'{"status":"ready"}'), receive, send, _nothing)

    def _ask(self) -> bool:
        try:
            self._namespace.list_namespaces(ListNamespacesRequest(id=[], limit=1))
        except Exception:
            return False
        return True


async def _nothing(*args: Any) -> None:
    """These answers do not stream."""
