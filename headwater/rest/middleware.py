"""The middleware of the server, outermost first. Each is a plain ASGI application.

    Recorded (log, metrics, errors) -> OwnSite -> Paths -> Routed -> Admitted (gate, rates) -> Limited -> endpoint

The call itself stands in the scope, under `call.KEY`. An error is raised, and `Recorded` makes it an answer.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headwater.clock import Clock
from headwater.errors import (
    InvalidInputError,
    LanceNamespaceError,
    PermissionDeniedError,
    ThrottlingError,
    UnauthenticatedError,
    place_of,
)
from headwater.rest.auth.gate import Audit, Gate
from headwater.rest.body import DisconnectedError
from headwater.rest.call import KEY, Call, call_of
from headwater.rest.origin import address_of, check_site, networks
from headwater.rest.remote_client import is_remote, refused, reroute
from headwater.rest.reply import RouteError, Run, refusal, send_reply
from headwater.rest.routes import Match, RouteTable
from headwater.rest.settings import Buckets, Running, Settings
from headwater.rest.status_pages import Metrics

access_log = logging.getLogger("headwater.access")
log = logging.getLogger("headwater.server")
GONE = 499
"""The status in log and metrics of a request whose client did not wait for the answer."""
MAX_SHOWN = 200
API_PATHS = ("/v1/", "/headwater/", "/health/", "/openapi.json", "/metrics")
"""Prefixes of all paths but those of the web page."""


class Recorded:
    """Makes the call of a request; turns errors into answers; counts and logs every request once.

    The lines are written before an answer leaves, so that nobody has an answer that is not on record; those of an
    answer that streams, when it is over, but for the audit line, which is never late.
    """

    def __init__(
        self, app: ASGIApp, settings: Settings, metrics: Metrics, clock: Clock, run: Run, audit: Audit | None
    ) -> None:
        self._app = app
        self._logs = settings.access_log
        self._audit = audit
        self._metrics = metrics
        self._clock = clock
        self._run = run
        self._proxies = networks(settings.proxies)
        self._boot = clock.hex(12)
        self._numbers = itertools.count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = scope[KEY] = self.call_of(scope)

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.note(call)
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except DisconnectedError:
            call.status = GONE
        except Exception as error:
            if call.status:  # the answer has begun: it can only be cut off
                self._fail(call, error)
                raise DisconnectedError from None
            await self._refuse(call, error, receive, noting)
        finally:
            call.drop_body()
            self._end(call)

    def call_of(self, scope: Mapping[str, Any]) -> Call:
        call = call_of(scope, "", f"{self._boot}-{next(self._numbers):x}", self._clock.monotonic())
        peer = scope.get("client")
        call.address = address_of(peer[0] if peer else "", call.headers.get("x-forwarded-for"), self._proxies)
        return call

    async def _refuse(self, call: Call, error: Exception, receive: Receive, send: Send) -> None:
        if not isinstance(error, LanceNamespaceError):
            self._fail(call, error)
        reply = refusal(error, call.request_id, call.id)
        await send_reply(call, refused(reply) if is_remote(call) else reply, receive, send, self._run)

    def _fail(self, call: Call, error: Exception) -> None:
        line = {"request_id": call.request_id, "failure": type(error).__name__, "at": place_of(error)}
        log.error(msgspec.json.encode(line).decode())

    def note(self, call: Call) -> None:
        """Put a call on record whose answer is about to leave."""
        if self._audit is not None:
            self._audit.note(call)
        if not call.streams:
            self._note(call)

    def _end(self, call: Call) -> None:
        """The request is over; a client that went away may never have been answered."""
        if call.is_noted:
            return
        if self._audit is not None and not call.streams:
            self._audit.note(call)
        self._note(call)

    def _note(self, call: Call) -> None:
        call.is_noted = True
        seconds = self._clock.monotonic() - call.started
        self._metrics.count(call.operation, call.route.changes, call.status, call.code, seconds)
        if self._logs:
            line = {
                "time_ms": self._clock.now_ms(),
                "request_id": call.request_id,
                "operation": call.operation,
                "method": call.verb,
                "path": call.path[:512],
                "status": call.status,
                "code": call.code,
                "ms": round(seconds * 1000, 3),
                "caller": call.caller.name if call.caller is not None else None,
                "address": call.address,
            }
            access_log.info(msgspec.json.encode(line).decode())


class OwnSite:
    """Refuses what a page of another web site sends, and what comes under a name that is not served."""

    def __init__(self, app: ASGIApp, settings: Settings, gate: Gate, has_page: bool = False) -> None:
        self._app = app
        self._gate = gate
        self._has_page = has_page
        self._names = frozenset(name.lower() for name in settings.host_names)
        self._any_address = settings.any_address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call: Call = scope[KEY]
        visits = self._has_page and call.verb == "GET" and not is_api(call.path)
        try:
            self.check(call, visits)
        except PermissionDeniedError:
            if self._gate.is_known_closed() or not await asyncio.to_thread(self._gate.is_closed):
                raise
            self.check(call, visits)  # the catalog has got its first key since, perhaps from another process
        await self._app(scope, receive, send)

    def check(self, call: Call, visits: bool) -> None:
        """PermissionDenied (15) for a request of another site, or to a name that is not served."""
        check_site(call.headers, self._names, not self._gate.is_known_closed(), self._any_address, visits)


class BasePathMiddleware:
    """Takes the path under which a proxy shows the server off the front of requests that still have it."""

    def __init__(self, app: ASGIApp, base: str) -> None:
        self._app = app
        self._base = base

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call: Call = scope[KEY]
        if call.path == self._base or call.path.startswith(f"{self._base}/"):
            call.path = call.path[len(self._base) :] or "/"
            scope = {**scope, "path": scope["path"][len(self._base) :] or "/"}
        await self._app(scope, receive, send)


class PageMiddleware:
    """The web page, at every path that is not the API's."""

    def __init__(self, face: ASGIApp, app: ASGIApp) -> None:
        self._face = face
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self._app if is_api(scope[KEY].path) else self._face)(scope, receive, send)


class StatusNoted:
    """Notes the status of an answer that another application sends, a page's, for the log."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                scope[KEY].status = message["status"]
            await send(message)

        await self._app(scope, receive, noting)


class Paths:
    """A few fixed paths beside everything else, answered by applications of their own, to GET only."""

    def __init__(self, pages: Mapping[str, ASGIApp], app: ASGIApp) -> None:
        self._pages = pages
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call: Call = scope[KEY]
        page = self._pages.get(call.path)
        if page is None:
            await self._app(scope, receive, send)
        elif call.verb != "GET":
            raise no_route(call, ("GET",))
        else:
            await page(scope, receive, send)


class Routed:
    """Finds the row of the table of routes."""

    def __init__(self, app: ASGIApp, routes: RouteTable) -> None:
        self._app = app
        self._routes = routes

    def find(self, call: Call) -> None:
        """Give a call its route, or say why there is none."""
        found = self._routes.find(call.path, call.verb)
        if not isinstance(found, Match):
            if not found and self._routes.lost_its_id(call.path):
                raise InvalidInputError("The id in the route is missing: '.' and '..' are not names.")
            raise no_route(call, found)
        call.route, call.raw_id, call.raw_index = found.route, found.id, found.index_name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call: Call = scope[KEY]
        self.find(call)
        if is_remote(call):
            reroute(call)
        await self._app(scope, receive, send)


class Admitted:
    """Finds out who is asking, and whether they may ask again already. Guesses at keys are counted by address."""

    def __init__(self, app: ASGIApp, settings: Settings, gate: Gate, clock: Clock, pool: Executor) -> None:
        self._app = app
        self._gate = gate
        self._pool = pool
        limits = settings.limits
        self._rate = Buckets(limits.requests_per_second, limits.burst, clock)
        self._guesses = Buckets(limits.bad_keys_per_second, limits.bad_keys_burst, clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call: Call = scope[KEY]
        if not self.knows(call):
            await self._identify(call)
        self.take(call)
        await self._app(scope, receive, send)

    def knows(self, call: Call) -> bool:
        """Find out who is asking, if nothing has to wait for that."""
        call.caller = self._gate.remembered(call.headers)
        return call.caller is not None

    def take(self, call: Call) -> None:
        """Throttling (21) for who asks too often."""
        self._rate.take(call.payer)

    async def _identify(self, call: Call) -> None:
        if self._guesses.is_empty(call.address) and not self._gate.was_good(call.headers):
            raise ThrottlingError("Too many keys or tokens that are not valid came from this address. Wait a little.")
        try:
            loop = asyncio.get_running_loop()
            call.caller = await loop.run_in_executor(self._pool, self._gate.caller, call.headers)
        except UnauthenticatedError:
            self._guesses.take(call.address)
            raise


class Limited:
    """Bounds how many requests run at a time, in all and for each caller."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._running = Running(settings.limits.waiting, settings.limits.running_per_caller)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        payer = scope[KEY].payer
        self._running.enter(payer)
        try:
            await self._app(scope, receive, send)
        finally:
            self._running.leave(payer)

    def check(self, call: Call) -> None:
        """Raise what one more request that runs would get."""
        self._running.enter(call.payer)
        self._running.leave(call.payer)


def is_api(path: str) -> bool:
    return path.startswith(API_PATHS)


def no_route(call: Call, allow: tuple[str, ...]) -> RouteError:
    path = call.path[:MAX_SHOWN]
    if allow:
        return RouteError(f"{call.verb[:20]} is not a method of {path}: use {' or '.join(allow)}.", 405, allow)
    if is_remote(call):  # to LanceDB's remote client a 404 means that the table is not there
        return RouteError(f"{path} is an operation of LanceDB's cloud that this server does not have.", 406)
    return RouteError(f"There is no {path} on this server: GET /openapi.json lists what there is.", 404)
