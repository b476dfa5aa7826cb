"""Bearer JWT: fixed algorithms, an allow-list of issuers with a key set each, one audience.

The header of a token is untrusted input. It may choose a key of ours by `kid`, and nothing else: a token that
brings its own key, the address of one, or critical extensions is refused, and the algorithm must be both in the
allow-list (asymmetric only) and the one the chosen key is for.
"""

from __future__ import annotations

import hashlib
import threading
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from headwater.clock import Clock
from headwater.errors import InvalidInputError, LanceNamespaceError, ServiceUnavailableError, UnauthenticatedError
from headwater.names import ROOT, ObjectId, object_id, parse
from headwater.rest.auth.access import Caller, Grant
from headwater.rest.auth.keys import ROLES, union
from headwater.rest.routes import Permission
from headwater.rest.settings import ASYMMETRIC, JwtSettings

FORBIDDEN_HEADERS = ("crit", "jwk", "jku", "x5u", "x5c")
REFRESH_MS = 300_000
RETRY_MS = 15_000
MAX_JWKS_BYTES = 1024 * 1024
MAX_TOKEN_CHARS = 16_384
MAX_NAME = 256
"""Most characters of a caller's name."""
SYMMETRIC_KEY = "oct"
EVERYTHING = "*"
MIN_RSA_BITS = 2048
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class KeySet:
    """The keys of one issuer, read from a file or a URL, kept for some minutes, read again for an unknown `kid`."""

    def __init__(self, source: str, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._lock = threading.Lock()
        self._keys: list[jwt.PyJWK] = []
        self._read_ms = 0
        _check_source(source)

    def find(self, kid: str | None, algorithm: str) -> jwt.PyJWK:
        for key in self._candidates(kid):
            if key.algorithm_name == algorithm:
                return key
        raise UnauthenticatedError("The token is signed by a key that this server does not know.")

    def _candidates(self, kid: str | None) -> list[jwt.PyJWK]:
        found = _with_kid(self._current(REFRESH_MS), kid)
        return found or _with_kid(self._current(RETRY_MS), kid)

    def _current(self, max_age_ms: int) -> list[jwt.PyJWK]:
        with self._lock:
            if self._clock.now_ms() - self._read_ms >= max_age_ms:
                self._refresh()
            return self._keys

    def _refresh(self) -> None:
        self._read_ms = self._clock.now_ms()
        try:
            self._keys = read_keys(_load(self._source))
        except (OSError, ValueError, msgspec.MsgspecError):
            if not self._keys:
                self._read_ms = 0
                raise ServiceUnavailableError(
                    "The key set of the token issuer cannot be read now: try again, or check --jwt-jwks."
                ) from None


def read_keys(data: bytes) -> list[jwt.PyJWK]:
    """Return the public signing keys of a JWKS document, without symmetric, private, short and non-signature keys."""
    document = msgspec.json.decode(data)
    entries = document.get("keys", []) if isinstance(document, dict) else []
    keys = []
    for entry in entries:
        if (
            not isinstance(entry, dict)
            or entry.get("kty") == SYMMETRIC_KEY
            or "d" in entry
            or entry.get("use", "sig") != "sig"
        ):
            continue
        try:
            key = jwt.PyJWK.from_dict(entry)
        except jwt.PyJWTError:
            continue
        if not isinstance(key.key, RSAPublicKey) or key.key.key_size >= MIN_RSA_BITS:
            keys.append(key)
    return keys


def _with_kid(keys: list[jwt.PyJWK], kid: str | None) -> list[jwt.PyJWK]:
    """Return the keys of that id; a token without `kid` may use the only key there is."""
    if kid is None:
        return keys if len(keys) == 1 else []
    return [key for key in keys if key.key_id == kid]


def _check_source(source: str) -> None:
    parts = urlsplit(source)
    if parts.scheme == "http" and parts.hostname not in LOOPBACK:
        raise InvalidInputError("--jwt-jwks: a key set over plain http can be forged on the way: use https or a file.")
    if parts.scheme not in ("", "file", "http", "https"):
        raise InvalidInputError(f"--jwt-jwks: the scheme {parts.scheme!r} is not supported: use https or a file.")


def _load(source: str) -> bytes:
    parts = urlsplit(source)
    if parts.scheme in ("http", "https"):
        with _OPENER.open(source, timeout=10) as answer:
            return bytes(answer.read(MAX_JWKS_BYTES))
    return Path(parts.path if parts.scheme == "file" else source).read_bytes()


class _OnlyToHttps(urllib.request.HTTPRedirectHandler):
    """A key set is followed to another https address, and nowhere else: http can be forged on the way."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urlsplit(newurl).scheme != "https":
            raise ValueError("the key set redirects to an address that is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_OPENER = urllib.request.build_opener(_OnlyToHttps)


class JwtVerifier:
    """Tokens to callers."""

    def __init__(self, settings: JwtSettings, clock: Clock) -> None:
        weak = [name for name in settings.algorithms if name not in ASYMMETRIC]
        if weak or not settings.algorithms:
            raise InvalidInputError(f"--jwt-algorithms: {weak or 'none'} cannot be used: choose from {ASYMMETRIC}.")
        if not settings.issuers or not settings.audience:
            raise InvalidInputError("JWT authentication needs --jwt-issuer, --jwt-audience and --jwt-jwks.")
        sources = settings.sources()
        without = [issuer for issuer in settings.issuers if not sources.get(issuer)]
        if without:
            raise InvalidInputError(
                f"--jwt-jwks: no key set for {without[0]!r}: write --jwt-jwks ISSUER=SOURCE for each."
            )
        self._settings = settings
        self._keys = {issuer: KeySet(source, clock) for issuer, source in sources.items()}

    def caller(self, token: str, defined: Mapping[str, Permission] | None = None) -> Caller:
        """Return the caller that a token proves, or Unauthenticated (16) with a reason that reveals nothing secret."""
        return self.caller_of(self._claims(token), defined)

    def caller_of(self, claims: Mapping[str, object], defined: Mapping[str, Permission] | None = None) -> Caller:
        """Return the caller that claims speak of which were proved."""
        if claims.get("iss") not in self._keys:
            raise UnauthenticatedError("The token's issuer is not one this server believes.")
        subject = claims.get("sub")
        if not isinstance(subject, str) or not subject.strip():  # all of these would be one caller
            raise UnauthenticatedError("The bearer token is refused: it does not say whose it is (sub).")
        name = f"jwt:{claims['iss']}|{subject}"
        if len(name) > MAX_NAME:  # what is cut off tells callers apart: transactions and repeats are theirs by name
            digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
            name = f"{name[: MAX_NAME - 33]}~{digest}"
        return Caller(name, grants_of(claims, self._settings, defined or {}))

    def kept(self, token: str) -> dict[str, Any]:
        """Of a good token's claims those that say who its caller is and what they may do, and when it ends."""
        claims, settings = self._claims(token), self._settings
        found = {"iss": claims["iss"], "sub": claims["sub"], "exp": int(claims["exp"])}
        for path in (settings.role_claim, settings.scope_claim):
            if path is not None:
                found[path] = _claim(claims, path)
        return found

    def _claims(self, token: str) -> dict[str, Any]:
        settings = self._settings
        if len(token) > MAX_TOKEN_CHARS:
            raise UnauthenticatedError("The bearer token is too long.")
        try:
            header = jwt.get_unverified_header(token)
            issuer = _issuer(token, self._keys)
            key = self._keys[issuer].find(*_chosen(header, settings.algorithms))
            return jwt.decode(
                token,
                key.key,
                algorithms=[key.algorithm_name or ""],
                audience=settings.audience,
                issuer=issuer,
                leeway=settings.leeway_seconds,
                options={"require": ["exp", "iss", "aud", "sub"], "verify_iat": True, "verify_nbf": True},
            )
        except LanceNamespaceError:
            raise
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise UnauthenticatedError(f"The bearer token is refused: {_reason(error)}.") from None


def _issuer(token: str, known: Mapping[str, object]) -> str:
    """Return the issuer that a token claims, unproved: it only selects the keys that must prove it."""
    claimed = jwt.decode(token, options={"verify_signature": False}).get("iss")
    if not isinstance(claimed, str) or claimed not in known:
        raise UnauthenticatedError("The bearer token is refused: its issuer is not one this server believes.")
    return claimed


def _chosen(header: Mapping[str, object], algorithms: tuple[str, ...]) -> tuple[str | None, str]:
    """The key id and algorithm a token asks for, if it may ask so."""
    forbidden = [name for name in FORBIDDEN_HEADERS if name in header]
    if forbidden:
        raise UnauthenticatedError(f"The bearer token is refused: its header has {forbidden[0]!r}.")
    algorithm = header.get("alg")
    if algorithm not in algorithms:
        raise UnauthenticatedError("The bearer token is refused: its algorithm is not one this server accepts.")
    kid = header.get("kid")
    return (kid if isinstance(kid, str) else None), str(algorithm)


def _reason(error: Exception) -> str:
    reasons: dict[type[Exception], str] = {
        jwt.ExpiredSignatureError: "it has expired",
        jwt.InvalidAudienceError: "it is for another audience",
        jwt.InvalidIssuerError: "its issuer is not one this server believes",
        jwt.ImmatureSignatureError: "it is not valid yet",
        jwt.MissingRequiredClaimError: "it lacks a claim (exp, iss, aud and sub are required)",
        jwt.InvalidSignatureError: "its signature does not match",
    }
    return next((text for kind, text in reasons.items() if isinstance(error, kind)), "it is malformed")


def grants_of(
    claims: Mapping[str, object], settings: JwtSettings, defined: Mapping[str, Permission] | None = None
) -> tuple[Grant, ...]:
    """Return the grants of a token: all roles of its role claim, on every scope of its scope claim."""
    known = {**(defined or {}), **ROLES}
    named = [known[name.lower()] for name in _texts(claims, settings.role_claim) if name.lower() in known]
    if not named:
        return ()
    if settings.scope_claim is None:
        return (Grant(union(named), ROOT),)
    return tuple(Grant(union(named), scope) for scope in _scopes(_claim(claims, settings.scope_claim)))


def _scopes(value: object) -> list[ObjectId]:
    """Scopes as a claim may hold them: `"a.b c"`, `["a.b"]` or `[["a", "b"]]`; only `"*"` is the whole catalog."""
    items = value.split() if isinstance(value, str) else value if isinstance(value, list) else []
    return [scope for scope in (_scope(item) for item in items) if scope is not None]


def _scope(item: object) -> ObjectId | None:
    try:
        if isinstance(item, str):
            return ROOT if item == EVERYTHING else parse(item, ".") if item.strip(".") else None
        return object_id(item) if isinstance(item, list) and item else None
    except InvalidInputError:
        return None


def _texts(claims: Mapping[str, object], path: str) -> list[str]:
    value = _claim(claims, path)
    items = value.split() if isinstance(value, str) else value if isinstance(value, list) else []
    return [item for item in items if isinstance(item, str)]


def _claim(claims: Mapping[str, object], path: str) -> object:
    if path in claims:
        return claims[path]
    value: object = claims
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
