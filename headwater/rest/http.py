"""HTTP from strangers: what uvicorn's protocol takes without bound gets a bound here.

- A request's head (line, headers, and what stands around the pieces of a chunked body) has a size and a deadline.
- A connection that waits for nothing, or for a client that does not read, is closed.
- There are so many connections and no more; the last few are for `/health` alone, so that it answers under pressure.

uvicorn itself offers a keep-alive timeout and a limit that also turns health checks away; h11 has a size limit for
heads, httptools has none, and neither has a deadline.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

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
"""What may stand around each byte of a chunked body, as sent in pieces of one byte."""
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
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._crowded and not self.url.startswith(HEALTH):
            self._refused = 503
            raise RefusedError
        super().on_headers_complete()

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
