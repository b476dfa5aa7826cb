"""`Visit`: the context of one request of the page, with its caller, address, and calls to the catalog.

Names become percent-encoded path segments (`Links`), so every name has an address.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote, urlencode

import msgspec
import pyarrow as pa

from headwater.decoding.arrow import read_file
from headwater.errors import InvalidInputError, TableNotFoundError
from headwater.metastore.records.layout import is_key
from headwater.metastore.records.objects import Locator
from headwater.names import ROOT, ObjectId, object_id
from headwater.rest.app import Served
from headwater.rest.auth.access import Caller
from headwater.rest.call import Call
from headwater.rest.coding import make_request
from headwater.rest.extensions import ALL_ROUTES
from headwater.rest.page.catalog_questions import QUESTIONS
from headwater.rest.page.page_facts import holds
from headwater.rest.reply import Headers
from headwater.rest.routes import Permission

NAMESPACE, TABLE = "n", "t"


@dataclass(frozen=True)
class Links:
    """Addresses of the page below its base path."""

    base: str = ""

    def to(self, *segments: str, **query: object) -> str:
        path = "".join(f"/{quote(segment, safe='')}" for segment in segments)
        return f"{self.base}{path or '/'}{_query(query)}"

    def namespace(self, id: ObjectId, **query: object) -> str:
        return self.to(NAMESPACE, *id.names, **query) if id.names else self.to(**query)

    def table(self, id: ObjectId, **query: object) -> str:
        return self.to(TABLE, *id.names, **query)

    def of(self, id: ObjectId, kind: str) -> str:
        return self.namespace(id) if kind == "namespace" else self.table(id)


def _query(query: Mapping[str, object]) -> str:
    told = {key: value for key, value in query.items() if value is not None and value != ""}
    return f"?{urlencode(told)}" if told else ""


def segments(path: str) -> tuple[str, ...]:
    """Decode the names in a request path. InvalidInput (13) unless they are UTF-8."""
    parts = [part for part in path.split("/")[1:] if part]
    try:
        return tuple(unquote(part, errors="strict") for part in parts)
    except UnicodeDecodeError:
        raise InvalidInputError("The address is not UTF-8.") from None


def own_path(text: str) -> str | None:
    """Return a path on this server for the redirect after sign-in; None if it could lead elsewhere."""
    if not text.startswith("/") or text.startswith(("//", "/\\")) or len(text) > 4000:
        return None
    return text if text.isascii() and text.isprintable() and "\\" not in text else None


MAX_ROW_BYTES = 16 * 1024 * 1024
_ROUTES = {route.operation: route for route in (*ALL_ROUTES, *(question.route for question in QUESTIONS.values()))}


class PageTooLargeError(InvalidInputError):
    """An answer with more bytes of rows than a page shows."""


@dataclass(frozen=True)
class Page:
    """The answer of a view: a template with values, or bytes."""

    template: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200
    headers: Headers = ()
    body: bytes | None = None


@dataclass(frozen=True)
class Visit:
    """The context of a request. `site`: the address that the browser used, without the last slash."""

    served: Served
    call: Call
    caller: Caller
    names: tuple[str, ...]
    query: Mapping[str, str]
    form: Mapping[str, str]
    links: Links
    site: str
    form_token: str

    @property
    def id(self) -> ObjectId:
        """The object in the address, after its first segment."""
        return object_id(self.names[1:], self.served.delimiter)

    @property
    def is_part(self) -> bool:
        """True if a script requests only a part of the page."""
        headers = self.call.headers
        return headers.get("hx-request") == "true" and headers.get("hx-history-restore-request") != "true"

    @property
    def wanted(self) -> str:
        """The text of the filter box of a list."""
        return self.query.get("filter", "").strip()[:200]

    def keeps(self, *texts: object) -> bool:
        """Return True if the texts of a line match the filter box."""
        return holds(self.wanted, *texts)

    def number(self, name: str, least: int = 0) -> int | None:
        """Return an integer of the query string; None if it is missing."""
        text = self.query.get(name, "")
        if not text:
            return None
        if not text.isascii() or not text.isdigit() or len(text) > 18 or int(text) < least:
            raise InvalidInputError(f"{name} in the address is a whole number from {least}, not {text[:40]!r}.")
        return int(text)

    def may(self, permission: Permission, id: ObjectId) -> bool:
        changes = permission not in Permission.DESCRIBE | Permission.SELECT
        return self.caller.may(permission, id) and not (changes and self.served.settings.read_only)

    @property
    def may_manage(self) -> bool:
        """True if the visitor may manage the keys and roles of the server."""
        return self.caller.may(Permission.MANAGE, ROOT)

    def ask(self, operation: str, id: ObjectId, **fields: object) -> Any:
        """Call an operation of the API as the visitor. Returns its JSON answer."""
        reply = self.served.ask(self._call(operation, id, fields))
        return msgspec.json.decode(reply.body) if reply.body else {}

    def identity(self, id: ObjectId) -> object:
        """Return the id, locator and aliases of an object (FindObject); None without them or the right to see them."""
        if id.is_root or not self.served.has_history:
            return None
        try:
            return self.ask("FindObject", ROOT, locator=str(Locator(id.names)))
        except TableNotFoundError:
            return None

    def identified(self, word: str) -> Any:
        """Return the object that a locator (`prod|users`) or an immutable id names (FindObject); None without one."""
        field = "locator" if "|" in word else "key" if is_key(word) else None
        if field is None or not self.served.has_history:
            return None
        try:
            return self.ask("FindObject", ROOT, **{field: word})
        except (TableNotFoundError, InvalidInputError):
            return None

    def level(self) -> int | None:
        """Return the level of all tables (DescribeLevel); None if they are at several, or without the right to know."""
        if not self.served.has_history or not self.caller.may(Permission.DESCRIBE, ROOT):
            return None
        found: int | None = self.ask("DescribeLevel", ROOT)["level"]
        return found

    def question(self, operation: str, id: ObjectId = ROOT, **fields: object) -> Any:
        """Ask a question of the page beyond the API (`rest/page/catalog_questions.py`). Returns its answer."""
        return QUESTIONS[operation].decoder.decode(self.served.ask(self._call(operation, id, fields)).body)

    def rows(self, id: ObjectId, **fields: object) -> pa.Table:
        """Return the rows of QueryTable; PageTooLargeError if they are too large to show."""
        call = self._call("QueryTable", id, {"k": 0, "vector": None, **fields})
        reply = self.served.ask(call)
        chunks, size = [bytes(reply.body)], len(reply.body)
        if reply.stream is not None:
            try:
                for chunk in reply.stream:
                    chunks.append(bytes(chunk))
                    size += len(chunk)
                    if size > MAX_ROW_BYTES:
                        raise PageTooLargeError(
                            f"These rows hold more than {MAX_ROW_BYTES // 2**20} MiB, more than a page shows: choose "
                            "fewer rows or columns, or read them with one of the snippets."
                        )
            finally:
                reply.stream.close()
        return read_file(b"".join(chunks)).read_all()

    def _call(self, operation: str, id: ObjectId, fields: Mapping[str, object]) -> Call:
        route = _ROUTES[operation]
        told = {key: value for key, value in fields.items() if value is not None or key == "vector"}
        made = Call(
            route=route,
            id=id,
            delimiter=self.served.delimiter,
            request=make_request(route, {"id": list(id.names), **told}),
            caller=self.caller,
            address=self.call.address,
            request_id=self.call.request_id,
            started=self.call.started,
        )
        self.call.can_stop(lambda: made.stop() if made.stop is not None else None)
        return made
