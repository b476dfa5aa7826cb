"""The application of a catalog: plain ASGI, put together here from the middleware and the endpoint.

Serve it as it is, or with pages of your own: Starlette's router then mounts the catalog beside them, and the outer
middleware (log, metrics, errors, own site) holds for the pages too.

Look-ups that are answered from memory, in the callback of the last byte of their request.

No task is made, and nothing waits. Every check is that of the middleware, in its order; what any of them refuses or has
to wait for, and every answer that is not in memory, goes the way of all requests, which begins anew.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from lance_namespace import LanceNamespace
from starlette.routing import BaseRoute, Mount, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from headwater.clock import Clock
from headwater.errors import LanceNamespaceError
from headwater.namespace.abilities import abilities_of
from headwater.namespace.vending import Keep, Own, Scoped, Vendor
from headwater.rest.auth.gate import Audit, Gate
from headwater.rest.body import FREE
from headwater.rest.call import Call
from headwater.rest.dispatch import LOOKUPS, Dispatcher
from headwater.rest.endpoint import Endpoint, NameLookups
from headwater.rest.extensions import ALL_ROUTES
from headwater.rest.idempotency import Repeats
from headwater.rest.middleware import (
    Admitted,
    BasePathMiddleware,
    Limited,
    OwnSite,
    PageMiddleware,
    Paths,
    Recorded,
    Routed,
    StatusNoted,
)
from headwater.rest.openapi import openapi_json
from headwater.rest.page.access_questions import AccessQuestions
from headwater.rest.page.catalog_questions import ALL_HANDLERS
from headwater.rest.remote_client import is_remote
from headwater.rest.reply import Reply, SlowReaders, headers_of, refusal
from headwater.rest.routes import RouteTable
from headwater.rest.settings import Settings
from headwater.rest.status_pages import HealthThread, Metrics, MetricsPage, Ready, ServedPage, live
from headwater.rest.work import Work
from headwater.store import Store

_ROUTES = RouteTable(ALL_ROUTES)
PUBLISH_SECONDS = 2.0
SWEEP_MS = 3_600_000
ANSWERS = 8
"""Of the disk that bodies may take, answers of slow readers take one part in this many, beside it."""


@dataclass(frozen=True)
class Served:
    """The parts of a server that a face may use. Its calls go through the dispatcher, as those of the API do."""

    delimiter: str
    has_history: bool
    settings: Settings
    store: Store | None
    gate: Gate
    clock: Clock
    ask: Callable[[Call], Reply]
    metrics: Callable[[], bytes]


Face = Callable[[Served], ASGIApp]
"""Makes the application that answers at every path that is not the API's: the web page."""


class AskedByFace:
    """Asks the dispatcher what a face asks, and puts every question on record as those of the API are."""

    def __init__(self, dispatcher: Dispatcher, audit: Audit | None, metrics: Metrics, clock: Clock) -> None:
        self._dispatcher = dispatcher
        self._audit = audit
        self._metrics = metrics
        self._clock = clock

    def __call__(self, call: Call) -> Reply:
        try:
            reply = self._dispatcher.ask(call)
            call.status = reply.status
            return reply
        except Exception as error:
            refused = refusal(error, call.request_id, call.id)
            call.status, call.code = refused.status, refused.code
            raise
        finally:
            if self._audit is not None:
                self._audit.note(call)
            if call.route.changes:
                seconds = self._clock.monotonic() - call.started
                self._metrics.count(call.operation, True, call.status, call.code, seconds)


class CatalogApp:
    """The Lance REST protocol over a catalog."""

    def __init__(
        self,
        namespace: LanceNamespace,
        settings: Settings,
        store: Store | None,
        clock: Clock,
        pages: Sequence[BaseRoute] = (),
        work: Work | None = None,
        face: Face | None = None,
    ) -> None:
        self._work = work
        self._store = store
        self._face = face
        self.clock = clock
        self.settings = settings
        self.namespace = namespace
        self.gate = Gate(settings, store, clock)
        self.metrics = Metrics(settings.metrics_folder)
        self._abilities = abilities_of(namespace)
        self._repeats = Repeats(store, clock)
        self._lane = HealthThread()
        self.at_once: AtOnce | None = None
        self._app = self._assemble(pages)
        self._housekeeper: asyncio.Task[None] | None = None

    def _assemble(self, beside: Sequence[BaseRoute]) -> ASGIApp:
        settings, gate, clock, lane = self.settings, self.gate, self.clock, self._lane
        catalog_pool = ThreadPoolExecutor(settings.limits.threads, thread_name_prefix="catalog")
        data_pool = ThreadPoolExecutor(settings.limits.threads, thread_name_prefix="data")
        vendor = self._vendor()
        long_pool = ThreadPoolExecutor(settings.limits.threads, thread_name_prefix="long")
        audit = Audit(settings.audit_log, clock) if settings.audit_log is not None else None
        keys = self._store if settings.catalog_keys else None
        access = AccessQuestions(keys, clock).handlers if keys is not None else {}
        dispatcher = Dispatcher(
            self.namespace,
            self._abilities,
            settings.limits,
            self._repeats,
            {**ALL_HANDLERS, **access},
            vendor,
            self._work,
            settings.read_only,
        )
        lookups = NameLookups(self._abilities, vends=not vendor.is_silent)
        slow = SlowReaders(settings.limits.spooled // ANSWERS, 0 if self._work is None else self._work.most_held)
        endpoint = Endpoint(dispatcher, lookups, settings.limits, catalog_pool, data_pool, long_pool, slow)
        limited = Limited(endpoint, settings)
        admitted = Admitted(limited, settings, gate, clock, catalog_pool)
        catalog = Routed(admitted, _ROUTES)
        metrics = Admitted(MetricsPage(lane, self._metrics_text), settings, gate, clock, catalog_pool)
        pages: dict[str, ASGIApp] = {
            "/health/live": live,
            "/health/ready": Ready(lane, self.namespace),
            "/openapi.json": ServedPage(lane, openapi_json),
            "/metrics": metrics,
        }
        inner: ASGIApp = Paths(pages, catalog)
        if beside:
            inner = StatusNoted(Router([*beside, Mount("", inner)]))
        if self._face is not None:
            served = Served(
                self._abilities.delimiter,
                self._abilities.metastore is not None,
                settings,
                self._store,
                gate,
                clock,
                AskedByFace(dispatcher, audit, self.metrics, clock),
                self._metrics_text,
            )
            inner = PageMiddleware(self._face(served), inner)
        site = inner = OwnSite(inner, settings, gate, self._face is not None)
        if settings.base_path:
            inner = BasePathMiddleware(inner, settings.base_path)
        recorded = Recorded(inner, settings, self.metrics, clock, lane.run, audit)
        if not beside and not settings.base_path:
            self.at_once = AtOnce(recorded, site, catalog, admitted, limited, endpoint)
        return recorded

    def _vendor(self) -> Vendor:
        """Return the vendor of the storage options in answers."""
        if self.settings.scoped is not None:
            can = self._abilities
            return Scoped(can.root, can.storage_options, self.settings.scoped, self.clock)
        return Own() if self.settings.vend_credentials else Keep()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if self._housekeeper is None:
            self._housekeeper = asyncio.ensure_future(self._keep_house())
        await self._app(scope, receive, send)

    def _metrics_text(self) -> bytes:
        return self.metrics.text(self._retries())

    def _retries(self) -> int:
        """Return how many times the catalog retried after a conflict, if it counts them."""
        return self._abilities.retries() if self._abilities.retries is not None else 0

    async def _keep_house(self) -> None:
        """Counts are left for the sister workers every two seconds, old idempotency records swept every hour."""
        swept_ms = 0
        while True:
            with contextlib.suppress(Exception):
                await asyncio.to_thread(self.metrics.publish, self._retries())
                if self.clock.now_ms() - swept_ms > SWEEP_MS:
                    swept_ms = self.clock.now_ms()
                    await asyncio.to_thread(self._repeats.sweep)
            await asyncio.sleep(PUBLISH_SECONDS)


ASKED = (b"/describe", b"/exists")


class AtOnce:
    """Answers a request that is there as a whole, or leaves it."""

    def __init__(
        self,
        recorded: Recorded,
        site: OwnSite,
        routed: Routed,
        admitted: Admitted,
        limited: Limited,
        endpoint: Endpoint,
    ) -> None:
        self._recorded = recorded
        self._site = site
        self._routed = routed
        self._admitted = admitted
        self._limited = limited
        self._endpoint = endpoint

    @staticmethod
    def takes(url: bytes) -> bool:
        """Return True for the address of a look-up, as far as can be told without its route."""
        return url.startswith(b"/v1/") and (ASKED[0] in url or ASKED[1] in url)

    def answer(self, scope: Mapping[str, object], body: bytes) -> list[bytes] | None:
        """Return the answer's headers after the status line, and its body; None: it takes more than memory."""
        if len(body) > FREE:
            return None
        call = self._recorded.call_of(scope)
        try:
            return self._answer(call, body)
        except LanceNamespaceError:
            return None  # the other way comes to the same error, and puts it on record

    def _answer(self, call: Call, body: bytes) -> list[bytes] | None:
        if "content-encoding" in call.headers or is_remote(call):
            return None
        self._site.check(call, visits=False)
        self._routed.find(call)
        if call.operation not in LOOKUPS or not self._admitted.knows(call):
            return None
        reply = self._endpoint.remembered(call, body)
        if reply is None:
            return None
        self._admitted.take(call)
        self._limited.check(call)
        call.status = reply.status
        self._recorded.note(call)
        lines = [line for name, value in headers_of(call, reply) for line in (name, b": ", value, b"\r\n")]
        return [*lines, b"\r\n", reply.body]
