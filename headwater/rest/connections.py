"""uvicorn's HTTP protocol with limits, for its clients are not trusted:

- A request's head (line, headers, and what stands around the pieces of a chunked body) has a size and a deadline.
- A connection that waits for nothing, or for a client that does not read, is closed.
- Connections have a maximum; the last few are for `/health` alone, so that it answers under pressure.

uvicorn itself offers a keep-alive timeout and a limit that also turns health checks away; h11 has a size limit for
heads, httptools has none, and neither has a deadline. A look-up that is in memory is answered here (`app.py`).
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Any

import httptools
import msgspec
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headwater.rest.app import AtOnce
from headwater.rest.body import ARRIVED
from headwater.rest.settings import Limits

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
OK, CLOSES = b"HTTP/1.1 200 OK\r\n", b"connection: close\r\n"
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
    at_once: AtOnce | None = None

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._waiting: ConnectionWait | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._crowded = False
        self._in_head = False
        self._head = self._received = self._body = 0
        self._refused = 0
        self._early: bytes | None = None
        """The body, as far as it is there, of a request that may be answered at once."""

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
        if self._early is not None:
            self._begin()  # it is not all there
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
        if not self._in_head:  # a trailer: no proxy has looked at it, and a key or an address in it counts for nothing
            return
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._crowded and not self.url.startswith(HEALTH):
            self._refused = 503
            raise RefusedError
        if self._may_be_at_once():
            self._early = b""
        else:
            self._begin()

    def _may_be_at_once(self) -> bool:
        before = self.cycle
        return (
            self.at_once is not None
            and self.at_once.takes(self.url)
            and (before is None or (before.response_complete and not before.more_body))
            and self.parser.get_method() == b"POST"
            and self.parser.get_http_version() == "1.1"
            and not self.expect_100_continue
            and not self.parser.should_upgrade()
            and not self.flow.write_paused
        )

    def _answer_at_once(self, body: bytes) -> bool:
        """Answer a request that is all there, if that takes nothing but memory."""
        assert self.at_once is not None
        asked = httptools.parse_url(self.url)
        told = {"method": "POST", "raw_path": asked.path, "query_string": asked.query or b""}
        answer = self.at_once.answer({**self.scope, **told}, body)
        if answer is None:
            return False
        keeps = self.parser.should_keep_alive()
        dated = [part for name, value in self.server_state.default_headers for part in (name, b": ", value, b"\r\n")]
        self.transport.write(b"".join((OK, *dated, b"" if keeps else CLOSES, *answer)))
        if not keeps:
            self.transport.close()
        self.on_response_complete()
        return True

    def _begin(self) -> None:
        """Begin the work on a request, whose head is there, with what of its body has come early."""
        body, self._early = self._early, None
        super().on_headers_complete()
        if self.cycle is not None and self.scope["method"] != "HEAD":  # whose answer has a head alone
            self.cycle.transport = AnswerWriter(self.transport, self.loop)  # type: ignore[assignment]
        self.scope[ARRIVED] = self._arrived  # type: ignore[literal-required]
        if body:
            super().on_body(body)

    def _arrived(self, scope: Scope) -> bytes | None:
        """Return the body of a request that is whole already; None if more of it is to come, or another is read."""
        cycle = self.cycle
        return None if cycle.scope is not scope or cycle.more_body or cycle.disconnected else bytes(cycle.body)

    def on_body(self, body: bytes) -> None:
        self._body += len(body)
        if self._early is None:
            super().on_body(body)
        else:
            self._early += body

    def on_message_complete(self) -> None:
        if self._early is not None:
            body, self._early = self._early, None
            if self._answer_at_once(body):
                return
            self._early = body
            self._begin()
        super().on_message_complete()

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


def bounded(limits: Limits, at_once: AtOnce | None = None) -> type[BoundedProtocol]:
    """Return the protocol with a server's limits."""
    own = {"limits": limits, "most": connection_limit(limits), "at_once": at_once}
    return type("Bounded", (BoundedProtocol,), own)
