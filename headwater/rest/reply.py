"""Answers, and how errors become answers: status and code from the one error table, never a stack or a secret.

Rows become the chunks of an Arrow IPC file, so that a large answer never stands in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from lance_namespace import QueryTableResponse

from headwater.errors import ERRORS, ErrorCode, InternalError, InvalidInputError, LanceNamespaceError
from headwater.names import ROOT, ObjectId
from headwater.rest.body import BodyTooLargeError
from headwater.rest.coding import JSON, encode_json

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
    """An error as an answer (ErrorResponse: error, code, instance); `id` is what the request was about."""
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
    """A message as it is sent: cut first, then without the source places that Lance adds to its own.

    What it quotes, and every word, is at most so long: a request does not get its own text back. Each pattern looks
    at a character a bounded number of times.
    """
    text = _SOURCE_PLACE.sub("", message[:MAX_MESSAGE])
    return _LONG_QUOTE.sub(r"\1\2...\1", _LONG_WORD.sub(r"\1...", text))


def shown(id: ObjectId) -> str:
    """An id in a message, cut where it is long."""
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
    """The Arrow IPC file of a reader's batches, about a MiB at a time, holding no more than that.

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
    """An answer that is already whole, sent a MiB at a time."""
    data = response if isinstance(response, bytes) else response.data
    view = memoryview(data if isinstance(data, bytes) else b"")
    for start in range(0, len(view), CHUNK):
        yield bytes(view[start : start + CHUNK])
