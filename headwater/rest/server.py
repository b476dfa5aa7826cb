"""Serving: the application of a catalog, in a thread, in this process, or in several worker processes.

uvicorn's HTTP protocol gets limits here, for its clients are not trusted:

- A request's head (line, headers, and what stands around the pieces of a chunked body) has a size and a deadline.
- A connection that waits for nothing, or for a client that does not read, is closed.
- Connections have a maximum; the last few are for `/health` alone, so that it answers under pressure.

uvicorn itself offers a keep-alive timeout and a limit that also turns health checks away; h11 has a size limit for
heads, httptools has none, and neither has a deadline.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from typing import Any

import msgspec
import uvicorn
from lance_namespace import LanceNamespace
from starlette.routing import BaseRoute
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headwater.adapter import adapt
from headwater.clock import Clock, SystemClock
from headwater.errors import InvalidInputError, ServiceUnavailableError, UnauthenticatedError
from headwater.imports import warm
from headwater.namespace.abilities import abilities_of
from headwater.rest.app import CatalogApp, Face
from headwater.rest.body import ARRIVED
from headwater.rest.origin import is_loopback
from headwater.rest.settings import Limits, Settings
from headwater.rest.work import Work
from headwater.store import Store

try:
    import resource
except ModuleNotFoundError:  # not on every system
    resource = None  # type: ignore[assignment]

RESERVED = 16
"""Connections beyond the limit that are served if they ask for health."""
HEALTH = b"/health/"
MAX_CONNECTIONS = 4096
PER_BODY_BYTE = 8
"""Bytes that may stand around each byte of a chunked body, as sent in pieces of one byte."""
MAX_JOINED = 1 << 15
"""Bytes of a body that are copied behind the head; a longer body is sent by a system call of its own."""
REASONS = {
    400: ("Bad Request", 13, "The request is not HTTP/1.1 as this server understands it."),
    408: ("Request Timeout", 17, "The head of the request did not arrive in time."),
    431: ("Request Header Fields Too Large", 13, "The head of the request is too large."),
    503: ("Service Unavailable", 17, "The server has too many connections: try again shortly."),
}


class RefusedError(Exception):
    """Raised inside the parser, to make it stop."""


def connection_limit(limits: Limits) -> int:
    """Return the largest number of connections: that of the settings, or half of the file descriptors."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if resource is not None else MAX_CONNECTIONS
    return limits.connections or max(16, min(MAX_CONNECTIONS, soft // 2))


class ConnectionWait(Enum):
    """The bytes that a connection waits for; none while the server answers a request."""

    FIRST = "the first byte"
    HEAD = "the rest of a head"
    REST = "the rest of a body whose request is answered already"
    NEXT = "the next request"


class AnswerWriter:
    """The transport of one answer. It holds the head until the body comes: one system call sends both.

    A head whose body does not come at once is sent at the next turn of the event loop.
    """

    __slots__ = ("_began", "_held", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held = b""
        self._began = False

    def write(self, data: bytes) -> None:
        if not self._began:
            self._began, self._held = True, data
            self._loop.call_soon(self._flush)
            return
        if len(data) > MAX_JOINED:
            self._flush()
        self._transport.write(self._held + data if self._held else data)
        self._held = b""

    def _flush(self) -> None:
        held, self._held = self._held, b""
        if held and not self._transport.is_closing():
            self._transport.write(held)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    limits = Limits()
    most = MAX_CONNECTIONS

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._waiting: ConnectionWait | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._crowded = False
        self._in_head = False
        self._head = self._received = self._body = 0
        self._refused = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._crowded = len(self.connections) > self.most
        if len(self.connections) > self.most + RESERVED:
            transport.abort()
        else:
            self._wait_for(ConnectionWait.FIRST)

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_for(None)
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._received += len(data)
        super().data_received(data)
        if self.parser is None or self.transport.is_closing():
            return
        if self._received > self.limits.head + (PER_BODY_BYTE + 1) * self._body:
            self._refuse(431)
        else:
            self._wait()

    def on_message_begin(self) -> None:
        """Begin to count the bytes of headers. The first read is bounded by its own size."""
        super().on_message_begin()
        self._in_head = True
        self._head = self._body = self._received = 0

    def on_url(self, url: bytes) -> None:
        self.url += url
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._crowded and not self.url.startswith(HEALTH):
            self._refused = 503
            raise RefusedError
        super().on_headers_complete()
        if self.cycle is not None and self.scope["method"] != "HEAD":  # whose answer has a head alone
            self.cycle.transport = AnswerWriter(self.transport, self.loop)  # type: ignore[assignment]
        self.scope[ARRIVED] = self._arrived  # type: ignore[literal-required]

    def _arrived(self, scope: Scope) -> bytes | None:
        """Return the body of a request that is whole already; None if more of it is to come, or another is read."""
        cycle = self.cycle
        return None if cycle.scope is not scope or cycle.more_body or cycle.disconnected else bytes(cycle.body)

    def on_body(self, body: bytes) -> None:
        self._body += len(body)
        super().on_body(body)

    def on_response_complete(self) -> None:
        if self._crowded and not self.transport.is_closing():
            self.transport.close()
        super().on_response_complete()
        self._wait()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self.limits.write_idle_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def send_400_response(self, msg: str) -> None:
        """uvicorn calls this when the parser stops: because the request is none, or because it was refused."""
        self._refuse(self._refused or 400)

    def _count(self, size: int) -> None:
        self._head += size
        if self._head > self.limits.head:
            self._refused = 431
            raise RefusedError

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self) -> None:
        """Set the deadline of what this connection waits for now; that of the same thing is never moved."""
        if self._is_answering():
            self._wait_for(None)
        elif self._in_head:
            self._wait_for(ConnectionWait.HEAD)
        elif self.cycle is not None and self.cycle.more_body:
            self._wait_for(ConnectionWait.REST)
        elif self.timeout_keep_alive_task is None:  # else uvicorn has set it
            self._wait_for(ConnectionWait.NEXT)

    def _wait_for(self, what: ConnectionWait | None) -> None:
        if what is self._waiting:
            return
        self._waiting = what
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if what is not None:
            seconds = self.limits.keep_alive_seconds if what is ConnectionWait.NEXT else self.limits.head_seconds
            self._deadline = self.loop.call_later(seconds, self._overdue)

    def _overdue(self) -> None:
        if self._waiting is ConnectionWait.HEAD:
            self._refuse(408)
        elif not self.transport.is_closing():
            self.transport.abort()

    def _refuse(self, status: int) -> None:
        """Answer without the application, and close."""
        if self.transport.is_closing():
            return
        if self._is_answering() and self.cycle.response_started:
            self.transport.abort()
            return
        phrase, code, error = REASONS[status]
        body = msgspec.json.encode({"error": error, "code": code})
        head = (
            f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def bounded(limits: Limits) -> type[BoundedProtocol]:
    """The protocol with a server's limits."""
    return type("Bounded", (BoundedProtocol,), {"limits": limits, "most": connection_limit(limits)})


GRACE_SECONDS = 30
START_SECONDS = 30.0
BACKLOG = 2048


def create_app(
    namespace: LanceNamespace,
    settings: Settings | None = None,
    store: Store | None = None,
    clock: Clock | None = None,
    pages: Sequence[BaseRoute] = (),
    work: Work | None = None,
    face: Face | None = None,
) -> CatalogApp:
    """The ASGI application that serves a catalog, with pages of your own beside it.

    API keys are read from `store`: the catalog's own by default, where it has one. Data work is done in this process,
    or where `work` does it. `face` is the web page, if it is to have one. A back end of others is adapted.
    """
    where = store or abilities_of(namespace).store
    return CatalogApp(adapt(namespace), settings or Settings(), where, clock or SystemClock(), pages, work, face)


def check_exposure(app: CatalogApp, host: str, insecure: bool) -> None:
    """On an address that others can reach, a server that asks nobody who they are must be asked for by name."""
    if not insecure and not is_loopback(host) and not app.gate.is_closed():
        raise UnauthenticatedError(
            f"Serving on {host} without authentication would give the catalog to everyone who can reach it. "
            "Create a key with `headwater token create`, or use --jwt-*, or say --insecure."
        )


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 picks a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ServiceUnavailableError(f"Cannot listen on {host}:{port}: {error.strerror}.") from None
    listener.listen(BACKLOG)
    return listener


def url_of(listener: socket.socket, settings: Settings) -> str:
    host, port = listener.getsockname()[:2]
    scheme = "https" if settings.tls_cert is not None else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def check_tls(settings: Settings) -> None:
    """A certificate and a key that fit each other, or neither: seen before anything is served."""
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise InvalidInputError("TLS needs both --tls-cert and --tls-key.")
    if settings.tls_cert is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            settings.tls_cert, settings.tls_key, password=_no_password
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise InvalidInputError(
            f"The certificate {settings.tls_cert} and the key {settings.tls_key} cannot be used: {str(reason)[:200]}. "
            "Both must be PEM files, belong together, and the key must have no password."
        ) from None


def _no_password() -> str:
    raise ValueError("the key has a password")


class ReadyServer(uvicorn.Server):
    """uvicorn with bounds, telling when it answers. It logs nothing itself: it would log stacks."""

    def __init__(self, app: CatalogApp) -> None:
        limits = app.settings.limits
        config = uvicorn.Config(
            app,
            http=bounded(limits),
            ws="none",
            log_level="critical",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            lifespan="off",
            timeout_graceful_shutdown=GRACE_SECONDS,
            timeout_keep_alive=max(1, round(limits.keep_alive_seconds)),
            backlog=BACKLOG,
            ssl_certfile=app.settings.tls_cert,
            ssl_keyfile=app.settings.tls_key,
        )
        super().__init__(config)
        self.ready = threading.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """A signal asks for a graceful stop; once stopped, it has been obeyed and is not raised again."""
        with super().capture_signals():
            yield
            self._captured_signals.clear()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.ready.set()


class RunningServer:
    """A server in a thread of this process; `stop` finishes the requests in flight."""

    def __init__(self, app: CatalogApp, listener: socket.socket) -> None:
        self.app = app
        self.url = url_of(listener, app.settings)
        self._listener = listener
        self._server = ReadyServer(app)
        self._thread = threading.Thread(target=self._run, name="headwater-rest", daemon=True)
        self._thread.start()
        if not self._server.ready.wait(START_SECONDS):
            raise ServiceUnavailableError("The server did not start.")

    def _run(self) -> None:
        self._server.run(sockets=[self._listener])

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(GRACE_SECONDS + 5)
        self._listener.close()

    def __enter__(self) -> RunningServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def start_in_thread(
    namespace: LanceNamespace,
    host: str = "127.0.0.1",
    port: int = 0,
    api_key: str | None = None,
    settings: Settings | None = None,
    store: Store | None = None,
    face: Face | None = None,
) -> RunningServer:
    """Serve a catalog from a thread of this process; with an `api_key` every request must carry it.

    Whoever holds that key acts for this process, so without other settings it also gets the storage options.
    """
    chosen = settings or Settings()
    if api_key is not None:
        if len(api_key) < 8:
            raise InvalidInputError("The API key is too short to be one: use at least 8 characters.")
        vends = chosen.vend_credentials or settings is None
        chosen = replace(chosen, api_key=api_key, key_is_owner=True, vend_credentials=vends)
    check_tls(chosen)
    warm()
    app = create_app(namespace, chosen, store, face=face)
    check_exposure(app, host, insecure=False)
    return RunningServer(app, bind(host, port))
