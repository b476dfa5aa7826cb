"""One visit: who looks at what, and how a view asks the catalog for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from headwater.decoding.arrow import read_file
from headwater.errors import InvalidInputError
from headwater.names import ROOT, ObjectId, object_id
from headwater.rest.app import Served
from headwater.rest.auth.access import Caller
from headwater.rest.call import Call
from headwater.rest.coding import make_request
from headwater.rest.extensions import ALL_ROUTES
from headwater.rest.page.page_facts import holds
from headwater.rest.page.questions import QUESTIONS
from headwater.rest.reply import Headers
from headwater.rest.routes import Permission
from headwater.web.links import Links

MAX_ROW_BYTES = 16 * 1024 * 1024
_ROUTES = {route.operation: route for route in (*ALL_ROUTES, *(question.route for question in QUESTIONS.values()))}


class PageTooLargeError(InvalidInputError):
    """The rows hold more bytes than a page shows."""


@dataclass(frozen=True)
class Page:
    """What a view answers with: a template and its values, or bytes of its own."""

    template: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200
    headers: Headers = ()
    body: bytes | None = None


@dataclass(frozen=True)
class Visit:
    """A request of a visitor who is known. `site` is the address that the browser used, without a slash at its end."""

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
        """The object that the address names, after its first segment."""
        return object_id(self.names[1:], self.served.delimiter)

    @property
    def is_part(self) -> bool:
        """Whether a script asks for a piece of the page, to put into the one that is shown."""
        headers = self.call.headers
        return headers.get("hx-request") == "true" and headers.get("hx-history-restore-request") != "true"

    @property
    def wanted(self) -> str:
        """What the filter box of a list says."""
        return self.query.get("filter", "").strip()[:200]

    def keeps(self, *texts: object) -> bool:
        """Whether a line of a list, by its texts, is one that the filter box wants."""
        return holds(self.wanted, *texts)

    def number(self, name: str, least: int = 0) -> int | None:
        """A whole number of the query; None when it is not told."""
        text = self.query.get(name, "")
        if not text:
            return None
        if not text.isascii() or not text.isdigit() or len(text) > 18 or int(text) < least:
            raise InvalidInputError(f"{name} in the address is a whole number from {least}, not {text[:40]!r}.")
        return int(text)

    def may(self, permission: Permission, id: ObjectId) -> bool:
        changes = permission not in Permission.DESCRIBE | Permission.SELECT
        return self.caller.may(permission, id) and not (changes and self.served.settings.read_only)

    def ask(self, operation: str, id: ObjectId, **fields: Any) -> Any:
        """Call an operation of the API in the visitor's name; the answer as JSON has it."""
        reply = self.served.ask(self._call(operation, id, fields))
        return msgspec.json.decode(reply.body) if reply.body else {}

    def question(self, operation: str, id: ObjectId = ROOT, **fields: Any) -> Any:
        """Ask what no operation of the API answers (`rest/page/questions.py`); the answer as the value that it is."""
        return QUESTIONS[operation].decoder.decode(self.served.ask(self._call(operation, id, fields)).body)

    def rows(self, id: ObjectId, **fields: Any) -> pa.Table:
        """QueryTable, if its answer is not too large to show."""
        call = self._call("QueryTable", id, {"k": 0, "vector": None, **fields})
        reply = self.served.ask(call)
        chunks, size = [reply.body], len(reply.body)
        if reply.stream is not None:
            try:
                for chunk in reply.stream:
                    chunks.append(chunk)
                    size += len(chunk)
                    if size > MAX_ROW_BYTES:
                        raise PageTooLargeError(
                            f"These rows hold more than {MAX_ROW_BYTES // 2**20} MiB, more than a page shows: choose "
                            "fewer rows or columns, or read them with one of the snippets."
                        )
            finally:
                reply.stream.close()
        return read_file(b"".join(chunks)).read_all()

    def _call(self, operation: str, id: ObjectId, fields: Mapping[str, Any]) -> Call:
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
