"""The page as an ASGI application: identifies the visitor, finds the view, and sends its answer.

A form of the page is an operation of the API in the visitor's name, by one row of a table.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl

import jinja2
from starlette.types import ASGIApp, Receive, Scope, Send

from headwater.cells import ago, instant, size
from headwater.errors import (
    ERRORS,
    InvalidInputError,
    LanceNamespaceError,
    PermissionDeniedError,
    ServiceUnavailableError,
    UnauthenticatedError,
)
from headwater.names import ObjectId, object_id
from headwater.rest.app import Served
from headwater.rest.body import DisconnectedError
from headwater.rest.call import KEY, Call
from headwater.rest.middleware import no_route
from headwater.rest.origin import is_loopback, networks, speaks_for
from headwater.rest.reply import Headers, Reply, RouteError, clean, send_reply
from headwater.rest.settings import Buckets, Running
from headwater.web import access_pages, pages
from headwater.web.visit import (
    MISSING,
    Links,
    Page,
    RequestContext,
    Sessions,
    cookie_of,
    own_path,
    segments,
    set_cookie,
)

Fields = Callable[[RequestContext], Mapping[str, Any]]


@dataclass(frozen=True)
class FormAction:
    """One form: its operation and the fields of its request. `confirmed`: the visitor writes the object's name.

    `page`: does the operation and returns a page, for an answer that must not be in an address.
    """

    operation: str
    fields: Fields = lambda visit: {}
    confirmed: bool = False
    page: Callable[[RequestContext], Page] | None = None


def act(visit: RequestContext) -> Page:
    """Do what the address names, to the object that it names, and redirect to the page that shows it."""
    name = visit.names[1] if len(visit.names) > 1 else ""
    action = ACTIONS.get(name)
    if action is None:
        raise RouteError("There is no such form on this page.", 404)
    if action.page is not None:
        return action.page(visit)
    id = object_id(visit.names[2:], visit.served.delimiter)
    if action.confirmed and visit.form.get("name") != id.name:
        raise InvalidInputError(f"Write the name {id.name!r} to drop it: nothing was changed.")
    answer = visit.ask(action.operation, id, **action.fields(visit))
    return Page(status=303, headers=((b"location", _shown(visit, action, id, answer).encode()),))


def _shown(visit: RequestContext, action: FormAction, id: ObjectId, answer: Mapping[str, Any]) -> str:
    """Return the address of the page that shows what an action did."""
    if action.confirmed:
        return visit.links.namespace(id.parent)
    if action.operation in KEY_OPERATIONS:
        return visit.links.to("access")
    if action.operation == "Undrop":
        return visit.links.of(id, answer["kind"])
    if action.operation == "RetryStreamQuarantine":
        return visit.links.table(id, view="quarantine", taken=answer["rows"], left=answer["quarantined"])
    if action.operation == "DropStreamQuarantine":
        return visit.links.table(id, view="quarantine", dropped=answer["dropped"])
    return visit.links.table(id, view="versions")


def _group(visit: RequestContext) -> dict[str, object]:
    """Return the reason and source of quarantined rows that a form names; all rows without them."""
    return {name: visit.form.get(name) or None for name in ("reason", "source")}


def _version(visit: RequestContext) -> int:
    text = visit.form.get("version", "")
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InvalidInputError("The form says no version.")
    return int(text)


KEY_OPERATIONS = frozenset({"PageRevokeKey", "PageDefineRole", "PageRemoveRole"})
ACTIONS: dict[str, FormAction] = {
    "drop-table": FormAction("DropTable", confirmed=True),
    "drop-namespace": FormAction(
        "DropNamespace",
        lambda visit: {"behavior": "Cascade" if visit.form.get("cascade") == "yes" else "Restrict"},
        confirmed=True,
    ),
    "undrop": FormAction("Undrop"),
    "restore": FormAction("RestoreTable", lambda visit: {"version": _version(visit)}),
    "add-tag": FormAction(
        "CreateTableTag", lambda visit: {"tag": visit.form.get("tag", "").strip(), "version": _version(visit)}
    ),
    "retry-quarantine": FormAction("RetryStreamQuarantine", _group),
    "drop-quarantine": FormAction("DropStreamQuarantine", _group),
    "create-key": FormAction("PageCreateKey", page=access_pages.create_key),
    "revoke-key": FormAction("PageRevokeKey", lambda visit: {"name": visit.form.get("key", "")}),
    "define-role": FormAction(
        "PageDefineRole",
        lambda visit: {"name": visit.form.get("role", "").strip(), "role": access_pages.chosen_permissions(visit)},
    ),
    "remove-role": FormAction("PageRemoveRole", lambda visit: {"name": visit.form.get("role", "")}),
    "drop-tag": FormAction("DeleteTableTag", lambda visit: {"tag": visit.form.get("tag", "")}),
}


THREADS = 16
VISITS = 64
VISITS_PER_CALLER = 8
MAX_FORM = 64 * 1024
PAGE_SECONDS = 30.0
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'"
)
HTML: Headers = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-security-policy", POLICY.encode()),
    (b"referrer-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
    (b"vary", b"HX-Request, Cookie"),
)
TYPES = {"css": b"text/css; charset=utf-8", "js": b"text/javascript; charset=utf-8", "svg": b"image/svg+xml"}
FOR_EVER: Headers = ((b"cache-control", b"public, max-age=31536000, immutable"),)


def page(served: Served) -> ASGIApp:
    """Return the web page of a served catalog."""
    return Site(served)


class Site:
    """An ASGI application for every path outside the API."""

    def __init__(self, served: Served) -> None:
        settings = served.settings
        self._served = served
        self._links = Links(settings.base_path)
        self._sessions = Sessions(served.gate, served.store, served.clock)
        self._proxies = networks(settings.proxies)
        self._guesses = Buckets(settings.limits.bad_keys_per_second, settings.limits.bad_keys_burst, served.clock)
        self._rate = Buckets(settings.limits.requests_per_second, settings.limits.burst, served.clock)
        self._running = Running(VISITS, VISITS_PER_CALLER)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="page")
        self._static = static_files()
        self._templates = environment(served, self._links, {name: mark for name, (_, mark) in self._static.items()})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call: Call = scope[KEY]
        reply = self._from_static(call) or await self._in_thread(call, scope, await read_form(call, receive))
        await send_reply(call, reply, receive, send, _nothing)

    def _from_static(self, call: Call) -> Reply | None:
        name = call.path.removeprefix("/static/") if call.path.startswith("/static/") else ""
        if call.verb != "GET" or name not in self._static:
            return None
        kind = TYPES.get(name.rpartition(".")[2], b"application/octet-stream")
        return Reply(200, self._static[name][0], ((b"content-type", kind), *FOR_EVER))

    async def _in_thread(self, call: Call, scope: Scope, form: dict[str, str]) -> Reply:
        address = f"address:{call.address}"
        self._running.enter(address)
        try:
            async with asyncio.timeout(PAGE_SECONDS):
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._pool, self._answer, call, scope, form)
        except TimeoutError:
            if call.stop is not None:
                call.stop()
            late = f"The page was not ready within {PAGE_SECONDS:g} seconds: ask for less, or use a snippet."
            return self._failed(call, None, ServiceUnavailableError(late))
        finally:
            self._running.leave(address)

    # In a thread

    def _answer(self, call: Call, scope: Scope, form: dict[str, str]) -> Reply:
        visit: RequestContext | None = None
        try:
            names, query = segments(call.path), dict(parse_qsl(call.query, max_num_fields=50))
            cookie = cookie_of(call.headers.get("cookie", ""))
            https = self._is_https(call, scope)
            if names in (("signin",), ("signout",)):
                return self._sign(call, names[0], query, form, https)
            try:
                call.caller = self._sessions.caller(cookie)
            except UnauthenticatedError:
                return self._to_sign_in(call)
            self._rate.take(call.payer)
            token = self._sessions.form_token(cookie)
            site = f"{'https' if https else 'http'}://{self._host(call, scope)}{self._links.base}"
            visit = RequestContext(self._served, call, call.caller, names, query, form, self._links, site, token)
            return self._reply(visit, self._page(visit, cookie))
        except DisconnectedError:
            raise
        except Exception as error:
            return self._failed(call, visit, error)

    def _page(self, visit: RequestContext, cookie: str | None) -> Page:
        call, first = visit.call, visit.names[0] if visit.names else ""
        if call.verb == "POST" and first == "do":
            if not self._sessions.check_form(cookie, visit.form.get("token", "")):
                raise PermissionDeniedError("The form is too old or was not made by this page: load the page again.")
            return act(visit)
        view = pages.VIEWS.get(first)
        if view is None or call.verb not in ("GET", "HEAD"):
            raise no_route(call, ("GET",) if view is not None else ())
        return view(visit)

    def _reply(self, visit: RequestContext, page: Page) -> Reply:
        if page.body is not None or page.status in (303, 204):
            return Reply(page.status, page.body or b"", page.headers)
        values = {"visit": visit, "tree": None, **page.values}
        if not visit.is_part or page.values.get("whole"):
            values["tree"] = pages.tree_of(visit)
        return Reply(page.status, self._render(page.template, values), (*HTML, *page.headers))

    def _failed(self, call: Call, visit: RequestContext | None, error: Exception) -> Reply:
        """Return an error as a page for browsers, and as the API's answer for other clients."""
        if "text/html" not in call.headers.get("accept", "") and call.headers.get("hx-request") != "true":
            raise error
        if not isinstance(error, LanceNamespaceError):
            raise error
        code = int(error.code)
        status = getattr(error, "status", None) or ERRORS[code].status
        is_name = visit is not None and visit.names[:1] in (("t",), ("n",)) and code in MISSING
        near = visit.nearest(visit.id.names) if visit is not None and is_name else None
        values = {"visit": visit, "message": clean(str(error)), "status": status, "code": code, "near": near}
        values["tree"] = None
        return Reply(status, self._render("error.html", values), HTML, code)

    def _render(self, template: str, values: dict[str, object]) -> bytes:
        return self._templates.get_template(template).render(values).encode()

    # Signing in

    def _to_sign_in(self, call: Call) -> Reply:
        if "text/html" not in call.headers.get("accept", "") and call.headers.get("hx-request") != "true":
            raise UnauthenticatedError("Say who you are: sign in at /signin, or use the API with a key.")
        back = f"{call.path}?{call.query}" if call.query else call.path
        where = self._links.to("signin", next=back if call.verb == "GET" and back != "/" else None).encode()
        header = b"hx-redirect" if call.headers.get("hx-request") == "true" else b"location"
        return Reply(200 if header == b"hx-redirect" else 303, b"", ((header, where), (b"cache-control", b"no-store")))

    def _sign(self, call: Call, what: str, query: dict[str, str], form: dict[str, str], https: bool) -> Reply:
        cookie = cookie_of(call.headers.get("cookie", ""))
        unsafe = not https and not is_loopback(call.address)
        onward = own_path(form.get("next") or query.get("next") or "/") or "/"
        if call.verb == "GET" and what == "signin":
            return self._sign_in_page(200, "", onward, unsafe, cookie)
        if call.verb != "POST":
            raise no_route(call, ("POST",))
        if not self._sessions.check_form(cookie, form.get("token", "")):
            raise PermissionDeniedError("The form is too old or was not made by this page: load the page again.")
        if what == "signout":
            self._sessions.end(cookie)
            gone = (b"set-cookie", set_cookie("", self._links.base, https))
            return Reply(303, b"", ((b"location", self._links.to("signin").encode()), gone))
        if unsafe:
            return self._sign_in_page(403, "", onward, unsafe, cookie)
        if self._guesses.is_empty(call.address):
            message = "Too many keys or tokens that are not valid came from this address. Wait a little."
            return self._sign_in_page(429, message, onward, unsafe, cookie)
        try:
            value = self._sessions.open(form.get("key", "").strip())
        except UnauthenticatedError as refused:
            self._guesses.take(call.address)
            return self._sign_in_page(401, str(refused), onward, unsafe, cookie)
        made = (b"set-cookie", set_cookie(value, self._links.base, https))
        return Reply(303, b"", ((b"location", f"{self._links.base}{onward}".encode()), made))

    def _sign_in_page(self, status: int, message: str, onward: str, unsafe: bool, cookie: str | None) -> Reply:
        token = self._sessions.form_token(cookie)
        values = {"message": message, "next": onward, "unsafe": unsafe, "token": token, "visit": None, "tree": None}
        code = {401: 16, 429: 21, 403: 15}.get(status)
        return Reply(status, self._render("signin.html", values), HTML, code)

    # Where the browser is

    def _is_https(self, call: Call, scope: Scope) -> bool:
        if scope.get("scheme") == "https":
            return True
        told = call.headers.get("x-forwarded-proto", "").rpartition(",")[2].strip()
        return told == "https" and self._is_proxy(scope)

    def _host(self, call: Call, scope: Scope) -> str:
        told = call.headers.get("x-forwarded-host", "").partition(",")[0].strip() if self._is_proxy(scope) else ""
        host = told or call.headers.get("host", "")
        return "".join(char for char in host[:255] if char.isascii() and (char.isalnum() or char in "-._:[]"))

    def _is_proxy(self, scope: Scope) -> bool:
        peer = scope.get("client")
        return speaks_for(peer[0] if peer else "", self._proxies)


async def read_form(call: Call, receive: Receive) -> dict[str, str]:
    """Return the fields of a form; InvalidInput (13) for a form over the limit, before it is in memory."""
    if call.verb != "POST":
        return {}
    data = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise DisconnectedError
        data += message.get("body", b"")
        if len(data) > MAX_FORM:
            raise InvalidInputError(f"A form of the page holds at most {MAX_FORM} bytes.")
        if not message.get("more_body"):
            break
    try:
        return dict(parse_qsl(data.decode(), keep_blank_values=True, max_num_fields=50))
    except ValueError:
        raise InvalidInputError("The form cannot be read.") from None


@functools.cache
def static_files() -> dict[str, tuple[bytes, str]]:
    """Return the static files, each with a content hash for its address."""
    found: dict[str, tuple[bytes, str]] = {}
    root = files("headwater.web") / "static"
    for folder, entries in (("", root), ("vendor/", root / "vendor")):
        for entry in entries.iterdir():
            if entry.is_file() and entry.name.rpartition(".")[2] in TYPES:
                data = entry.read_bytes()
                found[folder + entry.name] = data, hashlib.sha256(data).hexdigest()[:12]
    return found


def environment(served: Served, links: Links, marks: dict[str, str]) -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("headwater.web"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(size=size, instant=instant, ago=lambda ms: ago(ms, served.clock.now_ms()), count=_count)
    made.globals.update(
        links=links,
        static=lambda name: f"{links.base}/static/{name}?v={marks[name]}",
        has_history=served.has_history,
        to_id=lambda path: ObjectId(tuple(path)),
        read_only=served.settings.read_only,
    )
    return made


def _count(number: int | None) -> str:
    return "unknown" if number is None else f"{number:,}"


async def _nothing(*args: object) -> None:
    """Pages do not stream."""
