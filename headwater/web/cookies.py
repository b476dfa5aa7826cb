"""Sessions of the page: a signed cookie names the caller and holds no key. Every server of the root can check it.

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
from typing import TypeVar

import msgspec

from headwater.clock import Clock
from headwater.errors import InvalidInputError, LanceNamespaceError, UnauthenticatedError
from headwater.rest.auth.access import OWNER, Caller
from headwater.rest.auth.gate import FRESH_MS, Gate, Proof
from headwater.store import KeyNotFoundError, Store, create
from headwater.store.seam import OWN_FOLDER

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
    """On local disk nobody but the server's user may read it, from the first moment."""
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
    """The record that a session was ended; sorted by when it would have by itself."""
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
