"""`RequestContext`: the context of one request of the page, with its caller, address, and calls to the catalog.

Names become percent-encoded path segments (`Links`), so every name has an address.

Sessions of the page: a signed cookie names the caller and holds no key. Every server of the root can check it.

The key behind a session is checked with each request, as for the API: a revoked key ends its sessions within the two
seconds of the cache of the gate. A sign-out is a record in the store, which every server of the root reads as often,
and which is deleted when the session would have expired. The signing secret is kept beside the keys. Without the
secret all sessions end.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlencode

import msgspec
import pyarrow as pa

from headwater.clock import Clock
from headwater.decoding.arrow import read_file
from headwater.errors import InvalidInputError, LanceNamespaceError, TableNotFoundError, UnauthenticatedError
from headwater.metastore.records.layout import is_key
from headwater.metastore.records.objects import Locator
from headwater.names import ROOT, ObjectId, object_id
from headwater.rest.app import Served
from headwater.rest.auth.access import OWNER, Caller
from headwater.rest.auth.gate import FRESH_MS, Gate, Proof
from headwater.rest.call import Call
from headwater.rest.coding import make_request
from headwater.rest.extensions import ALL_ROUTES
from headwater.rest.page.catalog_questions import QUESTIONS
from headwater.rest.page.page_facts import holds
from headwater.rest.reply import Headers
from headwater.rest.routes import Permission
from headwater.store import KeyNotFoundError, Store, create
from headwater.store.seam import OWN_FOLDER
from headwater.wording import closest_path

NAMESPACE, TABLE = "n", "t"
MISSING = (1, 4)
"""Errors of a name that does not exist: of a namespace, of a table."""
COMPARED = 2_000
"""Names of each kind in a namespace that are compared with one that does not exist."""


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
class RequestContext:
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

    def nearest(self, names: Sequence[str]) -> tuple[str, ...] | None:
        """Return a path like one that does not exist, of names that the visitor may see; None if none is like it."""

        def known(parent: tuple[str, ...]) -> list[str]:
            asked = {"ListNamespaces": "namespaces", "ListTables": "tables"}
            answers = ((self.ask(each, ObjectId(parent), limit=COMPARED), field) for each, field in asked.items())
            return [name for answer, field in answers for name in answer.get(field) or ()]

        try:
            return closest_path(names, known)
        except LanceNamespaceError:
            return None

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


COOKIE = "headwater_session"
SECRET_KEY = f"{OWN_FOLDER}/page/secret"
ENDED = f"{OWN_FOLDER}/page/ended"
MAX_REMEMBERED = 10_000
MAX_MS = 12 * 3600 * 1000
MAX_COOKIE = 3800
DIGEST_CHARS = 64
V = TypeVar("V")


class _Session(msgspec.Struct, array_like=True):
    kind: str
    id: str
    claims: dict[str, object]
    until_ms: int
    nonce: str


_sessions = msgspec.json.Decoder(_Session)


class Secret:
    """The signing secret of all servers of a root; of this process alone if the root cannot be written."""

    def __init__(self, store: Store | None, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._own = bytes.fromhex(clock.hex(64))
        self._known = b""
        self._read_ms = -FRESH_MS

    def value(self) -> bytes:
        now = self._clock.now_ms()
        if self._store is None:
            return self._own
        if not self._known or now - self._read_ms >= FRESH_MS:
            self._known, self._read_ms = self._kept(self._store), now
        return self._known

    def _kept(self, store: Store) -> bytes:
        with contextlib.suppress(KeyNotFoundError):
            return store.get(SECRET_KEY)
        try:
            _make(store, self._own)
            return store.get(SECRET_KEY)
        except (LanceNamespaceError, OSError):
            return self._own  # a root that cannot be written: sessions are this process's


def _make(store: Store, secret: bytes) -> None:
    """Create the file so that, on local disk, only the server's user can ever read it."""
    if store.abilities.path is None:
        create(store, SECRET_KEY, secret)
        return
    path = os.path.join(store.abilities.path, SECRET_KEY)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    whole = f"{path}.{secret.hex()[:12]}"
    descriptor = os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secret)
        with contextlib.suppress(FileExistsError):
            os.link(whole, path)
    finally:
        os.unlink(whole)


class Sessions:
    """The sessions of the page: opens, checks and ends them."""

    def __init__(self, gate: Gate, store: Store | None, clock: Clock) -> None:
        self._gate = gate
        self._secret = Secret(store, clock)
        self._store = store
        self._clock = clock
        self._open: dict[str, int] = {}
        """The sessions that were found open, each with the time until which that is believed."""
        self._ended: dict[str, None] = {}

    def open(self, credential: str) -> str:
        """Return the cookie for a valid key or token; Unauthenticated (16)."""
        proof = self._gate.prove(credential)
        latest = self._clock.now_ms() + MAX_MS
        until = latest if proof.until_ms is None else min(latest, proof.until_ms)
        text = msgspec.json.encode(_Session(proof.kind, proof.id, proof.claims, until, self._clock.hex(16)))
        value = base64.urlsafe_b64encode(text).decode().rstrip("=")
        if len(value) > MAX_COOKIE:
            raise InvalidInputError("The token says too much to be kept in a cookie: use one with fewer scopes.")
        return f"{value}.{self._sign('session', value)}"

    def caller(self, cookie: str | None) -> Caller:
        """Return the caller of a session; Unauthenticated (16) if the session does not exist or has ended."""
        if not self._gate.is_closed():
            return OWNER
        session = self._read(cookie or "")
        if session is None or self._clock.now_ms() >= session.until_ms or self._is_ended(session):
            raise UnauthenticatedError("Sign in to see this page.")
        return self._gate.caller_by(Proof(session.kind, session.id, session.claims))

    def end(self, cookie: str | None) -> None:
        """End a session at every server of the root, or at this server if the root cannot be written."""
        session, now = self._read(cookie or ""), self._clock.now_ms()
        if session is None or now >= session.until_ms:
            return
        _remember(self._ended, _ended_key(session), None)
        if self._store is None:
            return
        with contextlib.suppress(LanceNamespaceError, OSError):
            create(self._store, _ended_key(session), self._clock.hex(16).encode())
            for entry in self._store.list(ENDED):
                if entry.key < _ended_key(_Session("", "", {}, now, "")):
                    self._store.delete(entry.key)  # it would have ended by itself

    def _is_ended(self, session: _Session) -> bool:
        key, now = _ended_key(session), self._clock.now_ms()
        if key in self._ended:
            return True
        if self._store is None or now < self._open.get(key, 0):
            return False
        try:
            self._store.get(key)
        except KeyNotFoundError:
            _remember(self._open, key, now + FRESH_MS)
            return False
        _remember(self._ended, key, None)
        return True

    def form_token(self, cookie: str | None) -> str:
        """Return the CSRF token that every form of this session must carry."""
        return self._sign("form", cookie or "")

    def check_form(self, cookie: str | None, token: str) -> bool:
        return hmac.compare_digest(self.form_token(cookie).encode(), token.encode())

    def _read(self, cookie: str) -> _Session | None:
        value, _, sign = cookie[: MAX_COOKIE + DIGEST_CHARS + 1].rpartition(".")
        if not value or not hmac.compare_digest(self._sign("session", value).encode(), sign.encode()):
            return None
        try:
            return _sessions.decode(base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)))
        except (ValueError, msgspec.MsgspecError):
            return None

    def _sign(self, purpose: str, text: str) -> str:
        return hmac.new(self._secret.value(), f"{purpose}|{text}".encode(), hashlib.sha256).hexdigest()


def _ended_key(session: _Session) -> str:
    """Return the record that a session was ended; sorted by when it would have by itself."""
    return f"{ENDED}/{session.until_ms:015d}-{session.nonce}"


def _remember(memory: dict[str, V], key: str, value: V) -> None:
    while len(memory) >= MAX_REMEMBERED:
        del memory[next(iter(memory))]
    memory[key] = value


def cookie_of(header: str) -> str | None:
    """Return our cookie from a Cookie header."""
    for part in header.split(";"):
        name, _, value = part.strip().partition("=")
        if name == COOKIE:
            return value
    return None


def set_cookie(value: str, base: str, is_https: bool, seconds: int = MAX_MS // 1000) -> bytes:
    """Return the Set-Cookie header. An empty value ends the session."""
    secure = "; Secure" if is_https else ""
    age = seconds if value else 0
    return f"{COOKIE}={value}; Path={base or '/'}; Max-Age={age}; HttpOnly; SameSite=Lax{secure}".encode()
