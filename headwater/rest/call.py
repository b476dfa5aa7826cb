"""One request, from its first header to its answer: the one description that every part of the server reads.

A `Call` is made when the headers are there. The route, the caller, the body and the request model are filled in as
they become known, in that order, by the parts that find them out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from headwater.errors import UnauthenticatedError
from headwater.names import DELIMITER, ROOT, ObjectId
from headwater.rest.body import BodySpool
from headwater.rest.routes import NO_ROUTE, Route
from headwater.rest.settings import Holding

if TYPE_CHECKING:
    from headwater.rest.auth.access import Caller

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
KEY = "headwater.call"
"""The key of the call in an ASGI scope."""
AT = "x-headwater-at"
"""The header that asks for the catalog as it was: a slot, a time with a zone, or the name of a snapshot,
percent-encoded."""
TRANSACTION = "x-headwater-transaction"
"""The header that has an operation made inside an open transaction: its id."""
TABLE_VERSION = "x-headwater-table-version"
"""The header that has a call read and write one table at another version than its active one: `<name>=<version>`, the
name percent-encoded, with `$` between its parts."""
UNREAD = "x-headwater-unread-rows"
"""The header of an answer that lacks rows of a table: they are in a write-ahead log of Lance's (MemWAL)."""
ELSEWHERE = frozenset({AT, TRANSACTION})
SESSION = ELSEWHERE | {TABLE_VERSION}
WHOLE = frozenset({"host", "origin", "sec-fetch-site", "x-forwarded-for"})


@dataclass(slots=True)
class Call:
    """One request: its route, id, delimiter and arguments, its caller and address, its headers and body."""

    route: Route = NO_ROUTE
    id: ObjectId = ROOT
    delimiter: str = DELIMITER
    request: Any = None
    caller: Caller | None = None
    also: tuple[ObjectId, ...] = ()
    """The names that decide about what the call means beside those it says (`auth/object_rights.py`)."""
    in_memory: bool = False
    """It is answered from a state that was found to be the newest just now, on the event loop."""
    verb: str = "POST"
    path: str = ""
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | BodySpool = b""
    holding: Holding | None = None
    raw_id: str = ""
    raw_index: str | None = None
    address: str = ""
    request_id: str = ""
    started: float = 0.0
    status: int = 0
    code: int | None = None
    streams: bool = False
    is_noted: bool = False
    accept: Callable[[int], None] | None = None
    """Told how many bytes the Arrow body unpacks to, and may refuse them."""
    unread: set[str] = field(default_factory=set)
    """The names of tables that the work opened and that have rows in a write-ahead log, which the answer lacks."""
    stop: Callable[[], None] | None = None
    """Ends the work on the call, where somebody can: for a client that is gone."""

    def can_stop(self, stop: Callable[[], None]) -> None:
        self.stop = stop

    @property
    def operation(self) -> str:
        return self.route.operation

    @property
    def asker(self) -> Caller:
        """The caller; a call that passed no gate has none, and may do nothing."""
        if self.caller is None:
            raise UnauthenticatedError("The server did not find out who is asking.")
        return self.caller

    @property
    def target(self) -> str:
        """The path with its query, as they came."""
        return f"{self.path}?{self.query}"

    @property
    def chosen_table(self) -> ObjectId | None:
        """The table that the call reads and writes at another version than its active one."""
        if TABLE_VERSION not in self.headers:
            return None
        name = self.headers[TABLE_VERSION].rpartition("=")[0]
        return ObjectId(tuple(unquote(name).split(DELIMITER)))

    @property
    def payer(self) -> str:
        """The name whose limits the call counts against: its caller, or its address without authentication."""
        known = self.caller
        return f"address:{self.address}" if known is None or known.name == "owner" else str(known.name)

    @property
    def has_body(self) -> bool:
        length = self.headers.get("content-length")
        return length != "0" and (length is not None or "transfer-encoding" in self.headers)

    @property
    def body_bytes(self) -> bytes:
        return self.body.bytes if isinstance(self.body, BodySpool) else self.body

    def drop_body(self) -> None:
        """The body is no longer needed: its file goes, and its bytes no longer count."""
        if isinstance(self.body, BodySpool):
            self.body.close()
        if self.holding is not None:
            self.holding.give_back()


def call_of(scope: Mapping[str, Any], address: str, fallback_id: str, started: float) -> Call:
    """Return the call of an ASGI scope."""
    headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
    if len(headers) != len(scope["headers"]):
        headers.update(_repeated(scope["headers"]))
    raw = scope.get("raw_path") or quote(scope["path"]).encode()
    given = headers.get("x-request-id", "")
    return Call(
        verb=scope["method"],
        path=raw.partition(b"?")[0].decode("utf-8", "surrogateescape"),
        query=scope["query_string"].decode("utf-8", "surrogateescape"),
        headers=headers,
        address=address,
        request_id=given if _REQUEST_ID.fullmatch(given) else fallback_id,
        started=started,
    )


def _repeated(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers that must not be taken apart: sent twice, both count, so that no part sees only the one it likes."""
    found: dict[str, str] = {}
    for key, value in headers:
        name = key.decode("latin-1")
        if name in WHOLE:
            found[name] = f"{found[name]}, {value.decode('latin-1')}" if name in found else value.decode("latin-1")
    return found
