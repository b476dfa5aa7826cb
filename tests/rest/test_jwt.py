"""Bearer JWTs: what is believed, and the known ways to forge one, each refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from headwater import DirectoryNamespace
from headwater.clock import SystemClock
from headwater.errors import InvalidInputError, ServiceUnavailableError, UnauthenticatedError
from headwater.names import ROOT, ObjectId
from headwater.rest.auth.access import Grant
from headwater.rest.auth.jwt import JwtVerifier, grants_of, read_keys
from headwater.rest.auth.keys import ROLES
from headwater.rest.routes import Permission
from headwater.rest.settings import JwtSettings, Settings
from tests.rest.samples import Serve

ISSUER, AUDIENCE = "https://issuer.example", "headwater"
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
STRANGER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
CURVE = ec.generate_private_key(ec.SECP256R1())


def jwk(key: Any, kid: str, algorithm: str) -> dict[str, Any]:
    maker: Any = jwt.algorithms.RSAAlgorithm if algorithm.startswith("RS") else jwt.algorithms.ECAlgorithm
    return {**json.loads(maker.to_jwk(key.public_key())), "kid": kid, "use": "sig", "alg": algorithm}


KEYS = {"keys": [jwk(KEY, "one", "RS256"), jwk(CURVE, "two", "ES256"), {"kty": "oct", "kid": "sym", "k": "c2VjcmV0"}]}


@pytest.fixture
def settings(tmp_path: Path) -> JwtSettings:
    (tmp_path / "jwks.json").write_text(json.dumps(KEYS))
    return JwtSettings((ISSUER,), AUDIENCE, str(tmp_path / "jwks.json"), scope_claim="scope")


@pytest.fixture
def client(settings: JwtSettings, catalog: DirectoryNamespace, serve: Serve) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=serve(Settings(jwt=settings)).url) as client:
        yield client


def claims(**changed: Any) -> dict[str, Any]:
    now = int(time.time())
    base = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "exp": now + 600, "iat": now, "role": "reader", "scope": "*"}
    return {name: value for name, value in {**base, **changed}.items() if value is not None}


def token(key: Any = KEY, algorithm: str = "RS256", header: dict[str, Any] | None = None, **changed: Any) -> str:
    return jwt.encode(claims(**changed), key, algorithm=algorithm, headers={"kid": "one", **(header or {})})


def ask(client: httpx.Client, bearer: str) -> httpx.Response:
    return client.get("/v1/namespace/%24/list", headers={"authorization": f"Bearer {bearer}"})


def unsigned(header: dict[str, Any], body: dict[str, Any], signature: bytes = b"") -> str:
    parts = (json.dumps(header).encode(), json.dumps(body).encode(), signature)
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


def test_a_token_of_the_issuer_is_believed(client: httpx.Client) -> None:
    assert ask(client, token()).status_code == 200
    assert ask(client, token(CURVE, "ES256", {"kid": "two"})).status_code == 200
    assert ask(client, token(aud=["other", AUDIENCE])).status_code == 200


def test_long_subjects_are_callers_of_their_own(settings: JwtSettings) -> None:
    """Callers whose names differed behind the cut were one: with each other's transactions and repeated answers."""
    verifier = JwtVerifier(settings, SystemClock())
    names = [verifier.caller(token(sub="a" * 300 + end)).name for end in "xy"]
    assert names[0] != names[1]
    assert {len(name) for name in names} == {256}
    assert verifier.caller(token()).name == f"jwt:{ISSUER}|ann"


def with_public_key_as_secret() -> str:
    """Key confusion: the public key, which everyone has, used as the secret of a symmetric algorithm."""
    pem = KEY.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    start = unsigned({"alg": "HS256", "typ": "JWT", "kid": "one"}, claims()).rsplit(".", 1)[0]
    signature = hmac.new(pem, start.encode(), hashlib.sha256).digest()
    return f"{start}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


def with_symmetric_key_of_the_set() -> str:
    return jwt.encode(claims(), b"secret" * 6, algorithm="HS256", headers={"kid": "sym"})


own_key = jwk(STRANGER, "one", "RS256")
FORGED: dict[str, Callable[[], str]] = {
    "alg none": lambda: unsigned({"alg": "none", "typ": "JWT"}, claims()),
    "alg None": lambda: unsigned({"alg": "None", "kid": "one"}, claims()),
    "no alg": lambda: unsigned({"typ": "JWT", "kid": "one"}, claims(), b"x"),
    "key confusion": with_public_key_as_secret,
    "symmetric key": with_symmetric_key_of_the_set,
    "another key": lambda: token(STRANGER),
    "own jwk": lambda: token(STRANGER, header={"jwk": own_key}),
    "jku": lambda: token(STRANGER, header={"jku": "http://127.0.0.1:1/keys"}),
    "x5u": lambda: token(STRANGER, header={"x5u": "http://127.0.0.1:1/cert"}),
    "x5c": lambda: token(STRANGER, header={"x5c": ["MIIB"]}),
    "crit": lambda: token(header={"crit": ["b64"], "b64": False}),
    "crit of ours": lambda: token(header={"crit": ["exp"]}),
    "jwk with a right signature": lambda: token(header={"jwk": jwk(KEY, "one", "RS256")}),
    "unknown kid": lambda: token(header={"kid": "three"}),
    "kid of a path": lambda: token(header={"kid": "../../jwks.json"}),
    "kid of another key": lambda: token(header={"kid": "two"}),
    "an algorithm not allowed": lambda: token(algorithm="PS512"),
    "wrong issuer": lambda: token(iss="https://evil.example"),
    "issuer list": lambda: unsigned({"alg": "RS256", "kid": "one"}, claims(iss=[ISSUER]), b"x"),
    "no issuer": lambda: token(iss=None),
    "no subject": lambda: token(sub=None),
    "empty subject": lambda: token(sub=" "),
    "subject list": lambda: token(sub=["ann"]),
    "wrong audience": lambda: token(aud="other"),
    "no audience": lambda: token(aud=None),
    "expired": lambda: token(exp=int(time.time()) - 3600),
    "no expiry": lambda: token(exp=None),
    "not valid yet": lambda: token(nbf=int(time.time()) + 3600),
    "issued in the future": lambda: token(iat=int(time.time()) + 3600),
    "tampered": lambda: token()[:-4] + "AAAA",
    "garbage": lambda: "a.b.c",
    "empty parts": lambda: "..",
    "too long": lambda: "x" * 20_000,
}


@pytest.mark.parametrize("forged", FORGED)
def test_a_forged_token_is_refused(client: httpx.Client, forged: str) -> None:
    answer = ask(client, FORGED[forged]())
    assert (answer.status_code, answer.json()["code"]) == (401, 16), answer.text
    assert ask(client, token()).status_code == 200


def test_the_signature_of_a_refused_token_is_not_repeated_in_the_answer(client: httpx.Client) -> None:
    text = token(STRANGER)
    assert text.rsplit(".", 1)[1] not in ask(client, text).text


def test_role_and_scope_come_from_the_claims(client: httpx.Client) -> None:
    reader = {"authorization": f"Bearer {token()}"}
    assert client.post("/v1/namespace/a/create", json={}, headers=reader).status_code == 403
    writer = {"authorization": f"Bearer {token(role=['x', 'writer'], scope='a.b c')}"}
    assert client.post("/v1/namespace/c/create", json={}, headers=writer).status_code == 200
    assert client.post("/v1/namespace/a/create", json={}, headers=writer).status_code == 403
    nobody = {"authorization": f"Bearer {token(role='none')}"}
    assert client.get("/v1/table", headers=nobody).status_code == 403


@pytest.mark.parametrize(
    ("claim", "scopes"),
    [
        ("*", [()]),
        ("a.b", [("a", "b")]),
        ("a b", [("a",), ("b",)]),
        ([["a.b", "c"]], [("a.b", "c")]),
        (["a", 7, {}], [("a",)]),
        (None, []),
        ([], []),
        ("", []),
        ("a/b", []),
        (".", []),
        ("..", []),
        (["."], []),
        ("$", []),
        ([[]], []),
        ([["*"]], [("*",)]),
        ({"a": 1}, []),
    ],
)
def test_scopes_are_read_from_a_text_or_a_list_and_nothing_else(claim: Any, scopes: list[tuple[str, ...]]) -> None:
    settings = JwtSettings((ISSUER,), AUDIENCE, "x", scope_claim="scope")
    found = grants_of({"role": "writer", "scope": claim}, settings)
    assert found == tuple(Grant(ROLES["writer"], ObjectId(scope)) for scope in scopes)


def test_claims_may_be_nested_and_without_a_scope_claim_the_role_holds_everywhere() -> None:
    settings = JwtSettings((ISSUER,), AUDIENCE, "x", role_claim="realm.roles")
    assert grants_of({"realm": {"roles": ["reader", "admin"]}}, settings) == (Grant(ROLES["admin"], ROOT),)
    assert grants_of({"realm": "admin"}, settings) == ()


def test_settings_that_would_weaken_the_check_are_refused(settings: JwtSettings) -> None:
    for weak in (("HS256",), ("none",), (), ("RS256", "HS512")):
        with pytest.raises(InvalidInputError):
            JwtVerifier(replace(settings, algorithms=weak), SystemClock())
    for jwks in ("http://keys.example/jwks", "ftp://keys.example/jwks"):
        with pytest.raises(InvalidInputError):
            JwtVerifier(replace(settings, jwks=jwks), SystemClock())
    with pytest.raises(InvalidInputError):
        JwtVerifier(replace(settings, issuers=()), SystemClock())


def test_a_key_set_that_cannot_be_read_is_unavailable_and_not_open(settings: JwtSettings, tmp_path: Path) -> None:
    verifier = JwtVerifier(replace(settings, jwks=str(tmp_path / "none.json")), SystemClock())
    with pytest.raises(ServiceUnavailableError):
        verifier.caller(token())


class Later(SystemClock):
    ahead = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead


def test_keys_are_fetched_from_a_url_and_again_for_a_key_not_seen_before(settings: JwtSettings) -> None:
    served: dict[str, Any] = {"keys": [jwk(KEY, "one", "RS256")]}
    fetched: list[str] = []

    class Keys(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            fetched.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(served).encode())

        def log_message(self, *args: Any) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Keys)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    clock = Later()
    verifier = JwtVerifier(replace(settings, jwks=f"http://127.0.0.1:{server.server_port}/jwks"), clock)
    assert verifier.caller(token()).name == f"jwt:{ISSUER}|ann"
    assert verifier.caller(token()).name == f"jwt:{ISSUER}|ann"
    assert len(fetched) == 1
    served["keys"].append(jwk(CURVE, "two", "ES256"))
    clock.ahead += 20_000
    assert verifier.caller(token(CURVE, "ES256", {"kid": "two"})).grants == (Grant(ROLES["reader"], ROOT),)
    assert len(fetched) == 2
    server.shutdown()
    server.server_close()


def test_the_keys_of_one_issuer_prove_nothing_about_another(settings: JwtSettings, tmp_path: Path) -> None:
    other = "https://other.example"
    (tmp_path / "other.json").write_text(json.dumps({"keys": [jwk(STRANGER, "one", "RS256")]}))
    sources = {ISSUER: str(settings.jwks), other: str(tmp_path / "other.json")}
    both = replace(settings, issuers=(ISSUER, other), jwks=sources)
    verifier = JwtVerifier(both, SystemClock())
    assert verifier.caller(token()).name == f"jwt:{ISSUER}|ann"
    assert verifier.caller(token(STRANGER, iss=other)).name == f"jwt:{other}|ann"
    for forged in (token(KEY, iss=other), token(STRANGER), token(iss="https://third.example"), token(iss=None)):
        with pytest.raises(UnauthenticatedError):
            verifier.caller(forged)
    with pytest.raises(InvalidInputError, match="ISSUER=SOURCE"):
        JwtVerifier(replace(both, jwks=settings.jwks), SystemClock())
    with pytest.raises(InvalidInputError, match="other"):
        JwtVerifier(replace(both, jwks={ISSUER: "x"}), SystemClock())


def test_a_short_or_private_rsa_key_is_not_believed(settings: JwtSettings, tmp_path: Path) -> None:
    short = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    private = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(STRANGER))
    keys = [jwk(short, "one", "RS256"), {**private, "kid": "two", "alg": "RS256"}]
    (tmp_path / "weak.json").write_text(json.dumps({"keys": keys}))
    assert read_keys((tmp_path / "weak.json").read_bytes()) == []
    verifier = JwtVerifier(replace(settings, jwks=str(tmp_path / "weak.json")), SystemClock())
    with pytest.warns(jwt.warnings.InsecureKeyLengthWarning):
        signed = token(short)
    for weak in (signed, token(STRANGER, header={"kid": "two"})):
        with pytest.raises(UnauthenticatedError):
            verifier.caller(weak)


def test_a_key_set_is_not_followed_to_an_address_that_can_be_forged(settings: JwtSettings) -> None:
    """Not to http, not even on loopback, and not to a file."""
    visited: list[str] = []

    class Redirects(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            visited.append(self.path)
            if self.path == "/forged":
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps(KEYS).encode())
                return
            self.send_response(302)
            self.send_header("location", {"/file": "file:///etc/hostname"}.get(self.path, "/forged"))
            self.end_headers()

        def log_message(self, *args: Any) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Redirects)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for path in ("/jwks", "/file"):
        url = f"http://127.0.0.1:{server.server_port}{path}"
        with pytest.raises(ServiceUnavailableError):
            JwtVerifier(replace(settings, jwks=url), SystemClock()).caller(token())
    server.shutdown()
    server.server_close()
    assert visited == ["/jwks", "/file"]


def test_roles_of_the_catalogs_own_are_known_to_tokens(settings: JwtSettings) -> None:
    found = grants_of(claims(role="analyst"), settings, {"analyst": Permission.SELECT, "admin": Permission.SELECT})
    assert found == (Grant(Permission.SELECT, ROOT),)
    assert grants_of(claims(role="admin"), settings, {"admin": Permission.SELECT})[0].permissions == ROLES["admin"]
