"""The ASGI application: reads a request, asks the gate who it is, hands it to a worker thread, sends the answer."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import re
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from urllib.parse import quote

import msgspec
from lance_namespace import LanceNamespace, ListNamespacesRequest
from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send

from headwater.clock import Clock, SystemClock
from headwater.errors import CommitStateUnknownError, InvalidInputError, LanceNamespaceError, ServiceUnavailableError
from headwater.namespace.vending import Keep, Own
from headwater.rest.auth.access import OWNER, Caller
from headwater.rest.auth.gate import Gate, RateLimit
from headwater.rest.body import DisconnectedError, Spool, read_body
from headwater.rest.dispatch import Asked, Dispatcher
from headwater.rest.extensions import ALL_ROUTES, HANDLERS
from headwater.rest.idempotency import Repeats
from headwater.rest.lookups import Lookups
from headwater.rest.metrics import Metrics
from headwater.rest.openapi import openapi_json
from headwater.rest.reply import Reply, RouteError, refusal
from headwater.rest.routes import Answer, Body, Match, RouteTable
from headwater.rest.settings import Settings
from headwater.rest.wire import encode_json
from headwater.store import Store

access_log = logging.getLogger("headwater.access")
log = logging.getLogger("headwater.server")
_REQUEST_ID = re.compile(r"^[A-Za-z0-9._:-]{1,128}$")
_PLAIN_TEXT = ((b"content-type", b"text/plain; version=0.0.4; charset=utf-8"),)
_DATA = frozenset({"CountTableRows", "AnalyzeTableQueryPlan", "UpdateTable", "DeleteFromTable", "CreateTableIndex"})
OWN_PREFIXES = ("/v1/", "/headwater/v1/", "/health/")
OWN_PATHS = frozenset({"/v1/table", "/metrics", "/openapi.json"})
PUBLISH_SECONDS = 2.0
SWEEP_MS = 3_600_000


class Exchange:
    """One request and what is known of it so far."""

    __slots__ = ("caller", "headers", "match", "path", "query", "request_id", "scope", "started", "verb")

    def __init__(self, scope: Scope, fallback_id: str) -> None:
        self.scope = scope
        self.started = time.perf_counter()
        self.headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
        raw = scope.get("raw_path") or quote(scope["path"]).encode()
        self.path = raw.partition(b"?")[0].decode("utf-8", "surrogateescape")
        self.query = scope["query_string"].decode("utf-8", "surrogateescape")
        self.verb: str = scope["method"]
        given = self.headers.get("x-request-id", "")
        self.request_id = given if _REQUEST_ID.match(given) else fallback_id
        self.match: Match | None = None
        self.caller: Caller | None = None

    @property
    def operation(self) -> str:
        return self.match.route.operation if self.match is not None else "other"


class CatalogApp(Starlette):
    """The Lance REST protocol over a catalog. Other pages can be mounted beside it, as on any Starlette."""

    def __init__(
        self, namespace: LanceNamespace, settings: Settings, store: Store | None = None, clock: Clock | None = None
    ) -> None:
        super().__init__()
        self.clock = clock or SystemClock()
        self.settings = settings
        self.namespace = namespace
        self.gate = Gate(settings, store, self.clock)
        self.metrics = Metrics(settings.metrics_folder)
        self._rate = RateLimit(settings.limits, self.clock)
        self._routes = RouteTable(ALL_ROUTES)
        self._repeats = Repeats(store, self.clock)
        vendor = Own() if settings.vend_credentials else Keep()
        self._dispatcher = Dispatcher(namespace, settings.limits, self._repeats, HANDLERS, vendor)
        threads = settings.limits.threads
        self._catalog_pool = ThreadPoolExecutor(threads, thread_name_prefix="catalog")
        self._data_pool = ThreadPoolExecutor(threads, thread_name_prefix="data")
        self._running = 0
        self._lookups = Lookups(namespace)
        self._boot = self.clock.hex(12)
        self._numbers = itertools.count(1)
        self._housekeeper: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
        elif path.startswith(OWN_PREFIXES) or path in OWN_PATHS or not self.router.routes:
            await self._serve(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, f"{self._boot}-{next(self._numbers):x}")
        if self._housekeeper is None:
            self._housekeeper = asyncio.ensure_future(self._keep_house())
        try:
            reply = await self._reply(exchange, receive)
        except DisconnectedError:
            self._note(exchange, 499, None)
            return
        except Exception as error:
            reply = self._refuse(exchange, error)
        self._note(exchange, reply.status, reply.code)
        await self._send(exchange, reply, send)

    def _refuse(self, exchange: Exchange, error: Exception) -> Reply:
        if not isinstance(error, LanceNamespaceError):
            place = _place(error)
            log.error(
                encode_json({"request_id": exchange.request_id, "failure": type(error).__name__, "at": place}).decode()
            )
        return refusal(error, exchange.request_id)

    async def _reply(self, exchange: Exchange, receive: Receive) -> Reply:
        fixed = await self._fixed(exchange)
        if fixed is not None:
            return fixed
        found = self._routes.find(exchange.path, exchange.verb)
        if not isinstance(found, Match):
            if not found and self._routes.lost_its_id(exchange.path):
                raise InvalidInputError("The id in the route is missing: '.' and '..' are not names.")
            raise _no_route(exchange, found)
        exchange.match = found
        caller = await self._admit(exchange)
        limits = self.settings.limits
        arrow = found.route.body is Body.ARROW
        limit = limits.arrow_body if arrow else limits.json_body
        body: bytes | Spool = b""
        if exchange.headers.get("content-length", "") != "0" and _has_body(exchange):
            body = await read_body(receive, exchange.headers, limit, limits, self._in_data_pool)
        asked = Asked(
            found,
            caller,
            exchange.request_id,
            f"{exchange.path}?{exchange.query}",
            exchange.query,
            exchange.headers,
            body,
        )
        return await self._work(exchange, asked)

    async def _work(self, exchange: Exchange, asked: Asked) -> Reply:
        """Blocking work happens in threads: a pool for the catalog, one for data, so that neither starves the other."""
        route = asked.match.route
        known = self._from_memory(asked)
        if known is not None:
            return known
        data = route.body is Body.ARROW or route.answer is Answer.ARROW or route.operation in _DATA
        limits = self.settings.limits
        if self._running >= 64 * limits.threads:
            raise ServiceUnavailableError("The server has too many requests waiting: try again shortly.")
        self._running += 1
        try:
            pool = self._data_pool if data else self._catalog_pool
            future = asyncio.get_running_loop().run_in_executor(pool, self._dispatcher.answer, asked)
            async with asyncio.timeout(limits.request_seconds):
                return await future
        except TimeoutError:
            raise _overdue(route.changes, limits.request_seconds) from None
        finally:
            self._running -= 1

    def _from_memory(self, asked: Asked) -> Reply | None:
        """The answer to a look-up of names that is in memory right now; a thread would only be a detour.

        The catalog's registry says whether it is (`current_state`, an optional method), after its check for
        freshness. An answer is kept for as long as that state is the current one.
        """
        state = self._lookups.state(asked)
        if state is None:
            return None
        kept = self._lookups.find(asked, state)
        if kept is None:
            kept = self._dispatcher.answer(asked)
            self._lookups.keep(asked, state, kept)
        return kept

    async def _admit(self, exchange: Exchange) -> Caller:
        """Who is asking, and whether it may ask again already."""
        caller = self.gate.remembered(exchange.headers)
        if caller is None:
            caller = await asyncio.get_running_loop().run_in_executor(
                self._catalog_pool, self.gate.caller, exchange.headers
            )
        exchange.caller = caller
        if caller is OWNER:
            client = exchange.scope.get("client")
            self._rate.take(f"address:{client[0]}" if client else "owner")
        else:
            self._rate.take(caller.name)
        return caller

    async def _fixed(self, exchange: Exchange) -> Reply | None:
        """Health, metrics and the OpenAPI document: not part of the catalog."""
        path = exchange.path
        if not (path.startswith("/health/") or path in ("/metrics", "/openapi.json")):
            return None
        if path not in ("/health/live", "/health/ready", "/metrics", "/openapi.json"):
            raise _no_route(exchange, ())
        if exchange.verb != "GET":
            raise _no_route(exchange, ("GET",))
        if path == "/health/live":
            return Reply(200, b'{"status":"live"}')
        if path == "/health/ready":
            return await self._ready()
        if path == "/openapi.json":
            return Reply(200, await self._in_data_pool(openapi_json))
        await self._admit(exchange)
        return Reply(200, await self._in_data_pool(self.metrics.text, self._retries()), _PLAIN_TEXT)

    async def _ready(self) -> Reply:
        try:
            async with asyncio.timeout(10):
                await self._in_data_pool(self.namespace.list_namespaces, ListNamespacesRequest(id=[], limit=1))
        except Exception:
            raise ServiceUnavailableError("The catalog does not answer now.") from None
        return Reply(200, b'{"status":"ready"}')

    async def _in_data_pool(self, function: Any, *args: Any, **more: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._data_pool, partial(function, *args, **more))

    async def _send(self, exchange: Exchange, reply: Reply, send: Send) -> None:
        headers = [*reply.headers, (b"x-request-id", exchange.request_id.encode())]
        if reply.stream is None and reply.status != 304:
            headers.append((b"content-length", b"%d" % len(reply.body)))
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        if reply.stream is None:
            await send({"type": "http.response.body", "body": reply.body})
            return
        chunk: bytes | None = reply.body
        while chunk is not None:
            following = asyncio.ensure_future(self._in_data_pool(next, reply.stream, None))
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            chunk = await following
        await send({"type": "http.response.body", "body": b""})

    def _note(self, exchange: Exchange, status: int, code: int | None) -> None:
        """One request answered: counted, and one line in the access log."""
        seconds = time.perf_counter() - exchange.started
        changes = exchange.match is not None and exchange.match.route.changes
        self.metrics.count(exchange.operation, changes, status, code, seconds)
        if self.settings.access_log:
            line = {
                "time_ms": self.clock.now_ms(),
                "request_id": exchange.request_id,
                "operation": exchange.operation,
                "method": exchange.verb,
                "path": exchange.path[:512],
                "status": status,
                "code": code,
                "ms": round(seconds * 1000, 3),
                "caller": exchange.caller.name if exchange.caller is not None else None,
            }
            access_log.info(msgspec.json.encode(line).decode())

    def _retries(self) -> int:
        """How often the catalog looked again after losing a race, where it counts that."""
        return int(getattr(getattr(self.namespace, "operations", None), "retries", 0))

    async def _keep_house(self) -> None:
        """Counts are left for the sister workers every two seconds, old idempotency records swept every hour."""
        swept_ms = 0
        while True:
            with contextlib.suppress(Exception):
                await self._in_data_pool(self.metrics.publish, self._retries())
                if self.clock.now_ms() - swept_ms > SWEEP_MS:
                    swept_ms = self.clock.now_ms()
                    await self._in_data_pool(self._repeats.sweep)
            await asyncio.sleep(PUBLISH_SECONDS)


def _has_body(exchange: Exchange) -> bool:
    return "content-length" in exchange.headers or "transfer-encoding" in exchange.headers


def _no_route(exchange: Exchange, allow: tuple[str, ...]) -> RouteError:
    if allow:
        return RouteError(
            f"{exchange.verb} is not a method of {exchange.path[:200]}: use {' or '.join(allow)}.", 405, allow
        )
    return RouteError(f"There is no {exchange.path[:200]} on this server: GET /openapi.json lists what there is.", 404)


def _overdue(changes: bool, seconds: float) -> LanceNamespaceError:
    if changes:
        return CommitStateUnknownError(
            f"The change was not finished within {seconds:g} seconds and may still be made: look before repeating it."
        )
    return ServiceUnavailableError(f"The answer was not ready within {seconds:g} seconds: ask for less, or try later.")


def _place(error: BaseException) -> str:
    """Where it failed, for the log: the last place of ours, and no stack."""
    place, traceback = "", error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if "headwater" in code.co_filename:
            place = f"{code.co_filename.rpartition('headwater/')[2]}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return place
