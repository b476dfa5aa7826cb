"""Answers, and how errors become answers: status and code from the one error table, never a stack or a secret.

Rows become the chunks of an Arrow IPC file, so that a large answer never stands in memory.

Sending an answer: whole, or chunk by chunk as it is made. A client that is gone is noticed, and the work stops.

A client that reads slower than a worker makes its answer does not hold the worker: the rest of it waits on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import io
import re
import tempfile
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

import pyarrow as pa
from lance_namespace import QueryTableResponse
from starlette.types import Receive, Send

from headwater.errors import (
    ERRORS,
    ErrorCode,
    InternalError,
    InvalidInputError,
    LanceNamespaceError,
    ServiceUnavailableError,
)
from headwater.names import ROOT, ObjectId
from headwater.rest.body import BodyTooLargeError, DisconnectedError
from headwater.rest.call import Call
from headwater.rest.coding import JSON, encode_json
from headwater.rest.settings import Holding, Quota

Headers = tuple[tuple[bytes, bytes], ...]
MAX_MESSAGE = 2000
MAX_ECHO = 200
"""So many characters of anything that a request said stand in an answer."""
_SOURCE_PLACE = re.compile(r",? ?[^\s,]{0,120}\.rs:\d{1,9}(:\d{1,9})?")
_LONG_WORD = re.compile(rf"(\S{{{MAX_ECHO}}})\S+")
_LONG_QUOTE = re.compile(rf"(['\"`])([^'\"`]{{{MAX_ECHO}}})[^'\"`]*\1")
_HEADER_NAME = re.compile(r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$")
_OWN_HEADERS = frozenset(
    ("content-length", "content-type", "transfer-encoding", "connection", "date", "etag", "x-request-id", "upgrade")
)


@dataclass(frozen=True)
class Reply:
    """A status, headers, and a body that is either whole or a stream of chunks.

    `of_worker`: a worker makes the chunks, and waits while nobody takes them. Each may be a memoryview, the body too,
    and holds until the next one is asked for.
    """

    status: int
    body: bytes = b""
    headers: Headers = ((b"content-type", JSON),)
    code: int | None = None
    stream: Generator[bytes, None, None] | None = None
    of_worker: bool = False


class RouteError(LanceNamespaceError):
    """No such route (404), or not with this method (405): code 0, the operation is not one of this server's."""

    code = ErrorCode.UNSUPPORTED

    def __init__(self, message: str, status: int, allow: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.allow = allow


def refusal(error: BaseException, request_id: str, id: ObjectId = ROOT) -> Reply:
    """Return an error as an answer (ErrorResponse: error, code, instance); `id` is what the request was about."""
    known = _known(error, request_id)
    row = ERRORS[int(known.code)]
    headers: list[tuple[bytes, bytes]] = [(b"content-type", JSON)]
    status = row.status
    if isinstance(error, RouteError):
        status = error.status
        if error.allow:
            headers.append((b"allow", ", ".join(error.allow).encode()))
    elif isinstance(error, BodyTooLargeError):
        status = 413
        headers.append((b"connection", b"close"))
    elif status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    elif status in (429, 503):
        headers.append((b"retry-after", b"1"))
    message = str(known)[: 4 * MAX_MESSAGE]
    for named in (id, *reversed(id.ancestors)):  # names may be long, and have spaces in them
        message = message.replace(str(named), shown(named)) if len(str(named)) > MAX_ECHO else message
    body = {"error": clean(message), "code": int(known.code), "instance": request_id}
    return Reply(status, encode_json(body), tuple(headers), int(known.code))


def _known(error: BaseException, request_id: str) -> LanceNamespaceError:
    if isinstance(error, LanceNamespaceError):
        return error
    if isinstance(error, OverflowError):
        return InvalidInputError("A number in the request is out of range.")
    return InternalError(f"The server failed unexpectedly. Its log has the reason under the request id {request_id}.")


def clean(message: str) -> str:
    """Return a message as it is sent: cut first, then without the source places that Lance adds to its own.

    What it quotes, and every word, is at most so long: a request does not get its own text back. Each pattern looks
    at a character a bounded number of times.
    """
    text = _SOURCE_PLACE.sub("", message[:MAX_MESSAGE])
    return _LONG_QUOTE.sub(r"\1\2...\1", _LONG_WORD.sub(r"\1...", text))


def shown(id: ObjectId) -> str:
    """Return an id in a message, cut where it is long."""
    text = str(id)
    return text if len(text) <= MAX_ECHO else f"{text[:MAX_ECHO]}..."


def etag(body: bytes) -> bytes:
    return b'"' + hashlib.blake2b(body, digest_size=16).hexdigest().encode() + b'"'


def is_known_to_client(tag: bytes, if_none_match: str | None) -> bool:
    """If-None-Match (RFC 9110, 13.1.2): a list of tags, compared weakly, or `*`."""
    if if_none_match is None:
        return False
    tags = [part.strip().removeprefix("W/") for part in if_none_match.split(",")]
    return "*" in tags or tag.decode() in tags


def context_headers(context: Mapping[str, object] | None) -> Headers:
    """`header.*` entries of a response's context travel as HTTP headers (Context); unsafe ones are left out."""
    found = []
    for key, value in (context or {}).items():
        name = key.removeprefix("header.").lower()
        if name == key.lower() or name in _OWN_HEADERS or not _HEADER_NAME.match(name):
            continue
        if isinstance(value, str) and value.isprintable() and value.isascii():
            found.append((name.encode(), value.encode()))
    return tuple(found)


CHUNK = 1024 * 1024
MAX_BATCH_ROWS = 65_536


class _Chunks(io.RawIOBase):
    """A file that only remembers what was written since it was last asked."""

    def __init__(self) -> None:
        self._parts: list[object] = []
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Arrow hands over its buffers, which are kept as they are, and small texts of its own, which are copied."""
        part = data if isinstance(data, pa.Buffer) else bytes(data)
        self._parts.append(part)
        self.size += len(part)
        return len(part)

    def take(self) -> list[Any]:
        parts, self._parts, self.size = self._parts, [], 0
        return parts


def joined(chunks: Generator[bytes | list[Any], None, None]) -> Generator[bytes, None, None]:
    """Chunks, each in one piece."""
    with contextlib.closing(chunks):
        for chunk in chunks:
            yield b"".join(chunk) if isinstance(chunk, list) else chunk


def file_parts(reader: pa.RecordBatchReader) -> Generator[list[object], None, None]:
    """Yield the Arrow IPC file of a reader's batches, about a MiB at a time, holding no more than that.

    Each chunk is in the parts that Arrow has it in: bytes and buffers, not yet copied together.
    """
    chunks = _Chunks()
    with reader, pa.ipc.new_file(pa.PythonFile(chunks, mode="w"), reader.schema) as writer:
        for batch in reader:
            for start in range(0, batch.num_rows, MAX_BATCH_ROWS):
                writer.write_batch(batch.slice(start, MAX_BATCH_ROWS))
                if chunks.size >= CHUNK:
                    yield chunks.take()
        writer.close()
    yield chunks.take()


def byte_chunks(response: QueryTableResponse | bytes) -> Generator[bytes, None, None]:
    """Yield an answer that is already whole, sent a MiB at a time."""
    data = response if isinstance(response, bytes) else response.data
    view = memoryview(data if isinstance(data, bytes) else b"")
    for start in range(0, len(view), CHUNK):
        yield bytes(view[start : start + CHUNK])


Run = Callable[..., Coroutine[Any, Any, Any]]
_closing: set[asyncio.Task[Any]] = set()
SAFE = ((b"x-content-type-options", b"nosniff"), (b"cross-origin-resource-policy", b"same-origin"))
"""On every answer: no page of another site gets to use it as a script, a style or an image."""
PATIENCE = 0.5
"""Seconds that a client may take for one chunk before it counts as slow."""


class SlowReaders:
    """Limits on the answers that clients read slower than workers make them.

    `disk`: bytes of such answers on disk, at most half of them of one caller.
    `workers`: answers that may hold their worker because they do not fit there. One more is cut.
    """

    def __init__(self, disk: int, workers: int) -> None:
        self._quota = Quota(disk, disk // 2)
        self.holders = threading.BoundedSemaphore(max(1, workers))

    def spool(self, stream: object, caller: str, begun: bytes) -> SpooledAnswer:
        """Return the rest of an answer, of which `begun` is the next chunk; nothing is spooled before its `fill`."""
        return SpooledAnswer(stream, begun, Holding(self._quota, caller), self.holders)


class SpooledAnswer(Iterator[bytes]):
    """The rest of an answer: what `fill` has taken to a temporary file, and after it what did not fit."""

    def __init__(self, stream: Any, begun: bytes, holding: Holding, holders: threading.BoundedSemaphore) -> None:
        self.ended = False
        self._stream = stream
        self._rest: bytes | None = begun
        self._holding = holding
        self._holders = holders
        self._is_held = False
        self._problem: Exception | None = None
        self._file: IO[bytes] | None = None
        self._left = 0

    def fill(self) -> None:
        """Take the answer in, and with its end free the worker. ServiceUnavailable (17): it is too long to be kept."""
        while self._rest is not None and not self.ended:
            try:
                self._write(self._rest)
            except (LanceNamespaceError, OSError):  # the quota or the disk is used up
                self._hold_worker()
                break
            try:
                self._rest = next(self._stream, None)
            except Exception as error:  # what was made before is sent, and then this
                self._rest, self._problem = None, error
        if self._file is not None:
            self._file.seek(0)

    def _write(self, chunk: bytes) -> None:
        self._holding.grow_to(self._left + len(chunk))
        if self._file is None:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (`close` closes it)
        if self._file.write(chunk) < len(chunk):
            raise OSError(errno.ENOSPC, "the chunk was written in part")
        self._left += len(chunk)

    def _hold_worker(self) -> None:
        self._is_held = self._holders.acquire(blocking=False)
        if not self._is_held:
            self._stream.close()
            raise ServiceUnavailableError(
                "Too many answers are read too slowly: read faster, or ask for less at a time."
            )

    def __next__(self) -> bytes:
        if self._file is not None and self._left:
            chunk: bytes = self._file.read(min(CHUNK, self._left))
            self._left -= len(chunk)
            return chunk
        if self._problem is not None:
            raise self._problem
        if self._rest is None:
            raise StopIteration
        chunk, self._rest = bytes(self._rest), next(self._stream, None)
        return chunk

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._holding.give_back()
        self._stream.close()
        if self._is_held:
            self._is_held = False
            self._holders.release()


def headers_of(call: Call, reply: Reply) -> list[tuple[bytes, bytes]]:
    """Return the headers of an answer, with its length if that is known."""
    headers = [*reply.headers, *SAFE, (b"x-request-id", call.request_id.encode())]
    if reply.stream is None and reply.status != 304:
        headers.append((b"content-length", b"%d" % len(reply.body)))
    return headers


async def send_reply(
    call: Call, reply: Reply, receive: Receive, send: Send, run: Run, slow: SlowReaders | None = None
) -> None:
    """Send an answer. `run` makes the chunks of one that streams, off the event loop."""
    call.status, call.code, call.streams = reply.status, reply.code, reply.stream is not None
    await send({"type": "http.response.start", "status": reply.status, "headers": headers_of(call, reply)})
    if reply.stream is None:
        await send({"type": "http.response.body", "body": reply.body})
        return
    await _send_chunks(call, reply, receive, send, run, slow)


async def _send_chunks(
    call: Call, reply: Reply, receive: Receive, send: Send, run: Run, slow: SlowReaders | None
) -> None:
    """One chunk is on its way to the client, one is made meanwhile; no more are held in memory, however slow the client
    reads. A worker does not wait for a slow one. The chunk of a worker is sent before the next one is asked for."""
    gone = asyncio.ensure_future(until_gone(receive))
    stream: object = reply.stream
    following: asyncio.Future[Any] | None = None
    sending: asyncio.Future[None] | None = None
    try:
        chunk: bytes | None = reply.body
        while chunk is not None:
            message = {"type": "http.response.body", "body": chunk, "more_body": True}
            sending = asyncio.ensure_future(send(message))
            if reply.of_worker and stream is reply.stream:
                await asyncio.wait((sending,), timeout=PATIENCE if slow is not None else None)
                if slow is not None and not sending.done():
                    message["body"] = bytes(chunk)  # the server reads it when the client reads on
                    following = asyncio.ensure_future(run(next, stream, None))
                    begun = await unless_gone(following, gone)
                    if begun is not None:
                        stream = slow.spool(stream, call.payer, begun)
                        following = asyncio.ensure_future(run(stream.fill))
                        await unless_gone(following, gone)
            following = asyncio.ensure_future(run(next, stream, None))
            await sending
            chunk = await unless_gone(following, gone)
        await send({"type": "http.response.body", "body": b""})
    finally:
        gone.cancel()
        if sending is not None:
            sending.cancel()
        _close_later(stream, following, run)


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


def _close_later(stream: Any, following: asyncio.Future[object] | None, run: Run) -> None:
    """End the stream where it stands, once the chunk that is being made is done: it can not be stopped halfway."""
    if isinstance(stream, SpooledAnswer):
        stream.ended = True

    async def close() -> None:
        if following is not None:
            await asyncio.wait((following,))
            following.exception() if not following.cancelled() else None
        await run(stream.close)

    task = asyncio.ensure_future(close())
    _closing.add(task)
    task.add_done_callback(_closing.discard)
