"""Authentication of callers (API keys of the catalog, one key given at start, bearer JWTs), and the audit log.

The audit log has one JSON object a line: the caller, its address, the operation, and the decision. Every call of a
route is noted once, when it is over, and every refusal. A key that was refused is named by its id, never by its secret;
of other credentials only their kind is noted.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import itertools
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from headwater.clock import Clock
from headwater.errors import InvalidInputError, LanceNamespaceError, UnauthenticatedError
from headwater.rest.auth.access import OWNER, Caller, Grant, needs
from headwater.rest.auth.jwt import JwtVerifier
from headwater.rest.auth.keys import KeyRecord, check_secret, defined_roles, find_key, has_keys, split_key
from headwater.rest.call import Call
from headwater.rest.coding import read_ids
from headwater.rest.routes import NO_ROUTE, NOTHING, Permission
from headwater.rest.settings import Settings
from headwater.store import Store

K = TypeVar("K")
V = TypeVar("V")

FRESH_MS = 2_000
LOOK_MS = 5_000
MAX_REMEMBERED = 10_000
ROOT_KEY = Caller("key:server", (Grant(~NOTHING),))


@dataclass(frozen=True)
class Proof:
    """The proof of a valid key or token, which a session keeps instead of the secret."""

    kind: str
    id: str = ""
    claims: dict[str, object] = field(default_factory=dict)
    until_ms: int | None = None


class Gate:
    """Headers to a caller. Keys and roles are remembered for two seconds: what is changed holds within that time."""

    def __init__(self, settings: Settings, store: Store | None, clock: Clock) -> None:
        self._api_key = _digest(settings.api_key) if settings.api_key else None
        self._key_holder = OWNER if settings.key_is_owner else ROOT_KEY
        self._store = store if settings.catalog_keys else None
        self._clock = clock
        self._jwt = JwtVerifier(settings.jwt, clock) if settings.jwt else None
        self._records: OrderedDict[str, tuple[int, KeyRecord | None]] = OrderedDict()
        self._known: OrderedDict[bytes, tuple[int, Caller]] = OrderedDict()
        self._lock = threading.Lock()
        self._has_keys = False
        self._looked_ms = 0
        self._defined: dict[str, Permission] = {}
        self._roles_ms = -FRESH_MS
        with contextlib.suppress(LanceNamespaceError):  # a store that cannot be read now is asked again, and told of
            self.is_closed()
        self._looked_ms = 0  # the first request looks again: a key may be made before it comes

    def is_closed(self) -> bool:
        """Return True if callers must authenticate. A catalog that has keys always requires it."""
        if self._api_key is not None or self._jwt is not None or self._has_keys:
            return True
        now = self._clock.now_ms()
        if self._store is not None and now - self._looked_ms >= LOOK_MS:
            self._has_keys = has_keys(self._store)
            self._looked_ms = now
        return self._has_keys

    def remembered(self, headers: Mapping[str, str]) -> Caller | None:
        """Return the caller, if it can be told without asking a store: what the event loop may call."""
        if not self.is_known_closed():
            return OWNER if self._clock.now_ms() - self._looked_ms < LOOK_MS or self._store is None else None
        secret = _secret(headers)
        if secret is None:
            raise UnauthenticatedError("Say who you are: send x-api-key, or Authorization: Bearer.")
        known = self._known.get(_digest(secret))
        return known[1] if known is not None and self._clock.now_ms() < known[0] else None

    def caller(self, headers: Mapping[str, str]) -> Caller:
        """Return the caller of a request. May read the store or fetch a key set."""
        if not self.is_closed():
            return OWNER
        secret = _secret(headers)
        if secret is None:
            raise UnauthenticatedError("Say who you are: send x-api-key, or Authorization: Bearer.")
        caller = self._identify(secret)
        self._remember(_digest(secret), caller)
        return caller

    def prove(self, secret: str) -> Proof:
        """Return the proof of a key or token for a session; raise Unauthenticated (16) if it is not valid."""
        caller = self._identify(secret)
        self._remember(_digest(secret), caller)
        if caller is self._key_holder:
            return Proof("server", self._server_mark())
        parts = split_key(secret)
        if parts is not None and caller.name == f"key:{parts[0]}":
            return Proof("key", parts[0])
        assert self._jwt is not None
        claims = self._jwt.kept(secret)
        return Proof("token", claims=claims, until_ms=int(claims["exp"]) * 1000)

    def caller_by(self, proof: Proof) -> Caller:
        """Return the caller of an earlier proof. A key that was revoked or changed since counts as it is now."""
        if proof.kind == "key" and self._store is not None:
            record = self._record(self._store, proof.id)
            if record is not None and record.is_valid(self._clock.now_ms()):
                return record.caller(self._roles())
        if proof.kind == "server" and self._api_key is not None and proof.id == self._server_mark():
            return self._key_holder
        if proof.kind == "token" and self._jwt is not None:
            return self._jwt.caller_of(proof.claims, self._roles())
        raise UnauthenticatedError("What this session rests on is no longer valid: sign in again.")

    def _server_mark(self) -> str:
        """Return a short mark that tells one server key from the next, and does not reveal it."""
        return hashlib.sha256(b"session" + (self._api_key or b"")).hexdigest()[:8]

    def was_good(self, headers: Mapping[str, str]) -> bool:
        """Return True for a key or token that was accepted before: it is no guess."""
        secret = _secret(headers)
        return secret is not None and _digest(secret) in self._known

    def is_known_closed(self) -> bool:
        """As `is_closed`, as far as it is known without asking a store."""
        return self._api_key is not None or self._jwt is not None or self._has_keys

    def _identify(self, secret: str) -> Caller:
        if self._api_key is not None and hmac.compare_digest(self._api_key, _digest(secret)):
            return self._key_holder
        parts = split_key(secret)
        if parts is not None and self._store is not None:
            record = self._record(self._store, parts[0])
            return check_secret(record, parts[1], self._clock.now_ms()).caller(self._roles())
        if self._jwt is not None:
            return self._jwt.caller(secret, self._roles())
        raise UnauthenticatedError("The API key is not known, or is no longer valid.")

    def _record(self, store: Store, id: str) -> KeyRecord | None:
        now = self._clock.now_ms()
        known = self._records.get(id)
        if known is not None and now - known[0] < FRESH_MS:
            return known[1]
        record = find_key(store, id)
        with self._lock:
            _put(self._records, id, (now, record))
        return record

    def _roles(self) -> dict[str, Permission]:
        """Return the catalog's own roles, read at most every two seconds."""
        now = self._clock.now_ms()
        if self._store is not None and now - self._roles_ms >= FRESH_MS:
            self._defined, self._roles_ms = defined_roles(self._store), now
        return self._defined

    def _remember(self, digest: bytes, caller: Caller) -> None:
        with self._lock:
            _put(self._known, digest, (self._clock.now_ms() + FRESH_MS, caller))


def _put(memory: OrderedDict[K, V], key: K, value: V) -> None:
    memory[key] = value
    memory.move_to_end(key)
    while len(memory) > MAX_REMEMBERED:
        memory.popitem(last=False)


def _secret(headers: Mapping[str, str]) -> str | None:
    """`x-api-key`, or the bearer token of `Authorization` (components/securitySchemes)."""
    key = headers.get("x-api-key")
    if key:
        return key
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


log = logging.getLogger("headwater.server")
REFUSALS = frozenset({15, 16, 21})
MAX_OBJECTS = 100
MAX_TEXT = 512
MAX_KEY_ID = 32


class Audit:
    """Appends lines to a file that only its owner may read; a file that was moved away is made anew."""

    def __init__(self, path: str, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._file = -1
        try:
            self._file = _open(path)
        except OSError as error:
            raise InvalidInputError(f"The audit log {path!r} cannot be written: {error.strerror}.") from None

    def note(self, call: Call) -> None:
        """Write the audit line of a call. Calls that asked nothing of the catalog, and were not refused, have none."""
        if call.route is NO_ROUTE and call.code not in REFUSALS:
            return
        line = msgspec.json.encode(line_of(call, self._clock.now_ms())) + b"\n"
        try:
            with self._lock:
                self._file = _same(self._file, self._path)
                os.write(self._file, line)
        except OSError as error:
            log.error(msgspec.json.encode({"failure": "audit log", "reason": error.strerror}).decode())


def line_of(call: Call, now_ms: int) -> dict[str, object]:
    """Return the audit line of a call. Pure."""
    caller = call.caller
    found: dict[str, object] = {
        "time_ms": now_ms,
        "request_id": call.request_id,
        "caller": caller.name if caller is not None else None,
        "address": call.address,
        "operation": call.operation if call.route is not NO_ROUTE else f"{call.verb[:20]} {call.path[:MAX_TEXT]}",
        "objects": objects_of(call),
        "allowed": call.code not in REFUSALS,
        "status": call.status,
        "code": call.code,
    }
    return found if caller is not None else {**found, "credential": credential_of(call)}


def objects_of(call: Call) -> list[str]:
    """Return the ids that a call is about: all members of a batch, both ends of a rename. Text that is no id stays."""
    try:
        if call.request is not None:
            named = [need.id for need in itertools.islice(needs(call), MAX_OBJECTS)]
        else:
            named = list(read_ids(call)[:1]) if call.raw_id else []
    except LanceNamespaceError:
        return [call.raw_id[:MAX_TEXT]]
    return [id.format_route() for id in dict.fromkeys(named)]


def credential_of(call: Call) -> str | None:
    """Return the credential of an unknown caller: the id of a key, or only the kind of credential."""
    shown = call.headers.get("x-api-key") or call.headers.get("authorization", "").partition(" ")[2].strip()
    if not shown:
        return None
    parts = split_key(shown)
    if parts is not None and parts[0].isascii() and len(parts[0]) <= MAX_KEY_ID:
        return f"key:{parts[0]}"
    return "a token" if shown.count(".") == 2 else "a key"


def _open(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _same(file: int, path: str) -> int:
    """Return the file, or the one that now has its name."""
    try:
        there, ours = os.stat(path), os.fstat(file)
        if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
            return file
    except FileNotFoundError:
        pass
    again = _open(path)
    os.close(file)
    return again
