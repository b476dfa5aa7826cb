"""Signing in: a cookie that holds no key, and what each role then sees and may do."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

from headwater import Catalog
from headwater.clock import SeededClock, SystemClock
from headwater.errors import UnauthenticatedError
from headwater.namespace.metastore import MetastoreNamespace
from headwater.rest.auth.gate import Gate
from headwater.rest.auth.keys import create_key, revoke_key
from headwater.rest.server import RunningServer, start_in_thread
from headwater.rest.settings import JwtSettings, Settings
from headwater.store import Store
from headwater.web import page
from headwater.web.visit import ENDED, MAX_MS, SECRET_KEY, Sessions, own_path
from tests.rest import test_jwt
from tests.web.pages import Document
from tests.web.samples import fill_metastore

PROXIED = Settings(proxies=("127.0.0.1",))
ELSEWHERE = {"x-forwarded-for": "203.0.113.9"}


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> MetastoreNamespace:
    """A catalog that asks for keys."""
    namespace = MetastoreNamespace(root=str(tmp_path_factory.mktemp("closed") / "lake"))
    fill_metastore(namespace)
    create_key(namespace.store, SystemClock(), "admin", [])
    return namespace


@pytest.fixture(scope="module")
def server(closed: MetastoreNamespace) -> Iterator[RunningServer]:
    with start_in_thread(closed, settings=PROXIED, face=page) as running:
        yield running


@pytest.fixture
def visitor(server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers={"accept": "text/html"}, timeout=60) as client:
        yield client


def key(namespace: MetastoreNamespace, role: str, scope: list[str] | None = None) -> str:
    return create_key(namespace.store, SystemClock(), role, scope or [])[1]


def sign_in(client: httpx.Client, secret: str, onward: str = "/", **headers: str) -> httpx.Response:
    form = Document(client.get("/signin", headers=headers).text).form("signin")
    return client.post("/signin", data={"token": form["token"], "key": secret, "next": onward}, headers=headers)


def test_a_visitor_signs_in_and_is_led_on_and_signs_out(closed: MetastoreNamespace, visitor: httpx.Client) -> None:
    asked = visitor.get("/t/prod/photos", params={"view": "rows"})
    assert (asked.status_code, asked.headers["location"]) == (303, "/signin?next=%2Ft%2Fprod%2Fphotos%3Fview%3Drows")
    secret = key(closed, "reader")
    answer = sign_in(visitor, secret, "/t/prod/photos?view=rows")
    assert (answer.status_code, answer.headers["location"]) == (303, "/t/prod/photos?view=rows")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    assert "Secure" not in cookie
    assert "Max-Age=43200" in cookie
    assert not any(part in cookie for part in (secret, secret.split("_")[2], secret.split("_")[2][:8]))
    home = Document(visitor.get("/").text)
    assert f"key:{secret.split('_')[1]}" in home.text
    out = visitor.post("/signout", data={"token": home.form("signout")["token"]})
    assert out.status_code == 303
    assert "Max-Age=0" in out.headers["set-cookie"]
    visitor.cookies.clear()
    assert visitor.get("/").status_code == 303


def test_a_script_that_lost_its_session_is_led_to_sign_in_and_the_api_takes_no_cookie(
    closed: MetastoreNamespace, visitor: httpx.Client
) -> None:
    part = visitor.get("/n/prod", headers={"hx-request": "true"})
    assert part.headers["hx-redirect"] == "/signin?next=%2Fn%2Fprod"
    assert visitor.get("/n/prod", headers={"accept": "*/*"}).status_code == 401
    sign_in(visitor, key(closed, "admin"))
    assert visitor.get("/n/prod").status_code == 200
    assert visitor.get("/v1/namespace/$/list").status_code == 401


def test_the_cookie_is_good_on_every_server_of_the_root(closed: MetastoreNamespace, visitor: httpx.Client) -> None:
    sign_in(visitor, key(closed, "reader"))
    again = MetastoreNamespace(root=closed.properties.root)
    with (
        start_in_thread(again, face=page) as other,
        httpx.Client(base_url=other.url, cookies=visitor.cookies) as client,
    ):
        assert client.get("/n/prod", headers={"accept": "text/html"}).status_code == 200
    assert stat.S_IMODE(os.stat(Path(closed.properties.root) / SECRET_KEY).st_mode) == 0o600


def test_a_forged_or_changed_cookie_is_no_session(closed: MetastoreNamespace, visitor: httpx.Client) -> None:
    sign_in(visitor, key(closed, "viewer"))
    value = visitor.cookies["headwater_session"]
    body, _, sign = value.rpartition(".")
    for forged in (f"{body}x.{sign}", f"{body}.{'0' * 64}", body, ".", f"e30.{sign}", "x" * 5000):
        answer = httpx.get(
            f"{visitor.base_url}/n/prod", headers={"accept": "text/html", "cookie": f"headwater_session={forged}"}
        )
        assert answer.status_code == 303


def test_a_session_ends_with_its_key_and_after_twelve_hours(tmp_path: Path) -> None:
    clock = SeededClock()
    store: Store = MetastoreNamespace(root=str(tmp_path / "lake")).store
    record, secret = create_key(store, clock, "reader", [])
    sessions = Sessions(Gate(Settings(), store, clock), store, clock)
    cookie = sessions.open(secret)
    assert sessions.caller(cookie).name == f"key:{record.id}"
    clock.sleep(MAX_MS / 1000 - 10)
    assert sessions.caller(cookie).name == f"key:{record.id}"
    clock.sleep(11)
    with pytest.raises(UnauthenticatedError, match="Sign in"):
        sessions.caller(cookie)
    fresh = sessions.open(secret)
    revoke_key(store, clock, record.id)
    clock.sleep(2)
    with pytest.raises(UnauthenticatedError, match="no longer valid"):
        sessions.caller(fresh)


def test_a_session_that_was_signed_out_is_over_at_every_server(
    closed: MetastoreNamespace, visitor: httpx.Client
) -> None:
    sign_in(visitor, key(closed, "reader"))
    kept = dict(visitor.cookies)
    home = Document(visitor.get("/").text)
    other = start_in_thread(MetastoreNamespace(root=closed.properties.root), face=page)
    with other, httpx.Client(headers={"accept": "text/html"}, cookies=kept, timeout=60) as thief:
        assert visitor.post("/signout", data={"token": home.form("signout")["token"]}).status_code == 303
        for url in (str(visitor.base_url), other.url):
            assert thief.get(f"{url}/n/prod").status_code == 303, url
    assert visitor.get("/signin").status_code == 200


def test_what_is_kept_of_ended_sessions_goes_when_they_would_have_ended(tmp_path: Path) -> None:
    clock = SeededClock()
    store: Store = MetastoreNamespace(root=str(tmp_path / "lake")).store
    _, secret = create_key(store, clock, "reader", [])
    gate = Gate(Settings(), store, clock)
    sessions, others = Sessions(gate, store, clock), Sessions(gate, store, clock)
    first, second = sessions.open(secret), sessions.open(secret)
    others.caller(first)
    sessions.end(first)
    clock.sleep(2)
    with pytest.raises(UnauthenticatedError, match="Sign in"):
        others.caller(first)
    assert others.caller(second) == sessions.caller(second), "each session ends for itself"
    clock.sleep(MAX_MS / 1000)
    assert len(list(store.list(ENDED))) == 1
    sessions.end(sessions.open(secret))
    assert len(list(store.list(ENDED))) == 1, "the new one"


def test_a_token_opens_a_session_that_ends_with_it_and_holds_no_token(tmp_path: Path) -> None:
    (tmp_path / "jwks.json").write_text(json.dumps(test_jwt.KEYS))
    jwt = JwtSettings((test_jwt.ISSUER,), test_jwt.AUDIENCE, str(tmp_path / "jwks.json"), scope_claim="scope")
    clock = SystemClock()
    gate = Gate(Settings(jwt=jwt), None, clock)
    sessions = Sessions(gate, None, clock)
    bearer = test_jwt.token(scope="prod")
    cookie = sessions.open(bearer)
    assert bearer.split(".")[2] not in cookie
    caller = sessions.caller(cookie)
    assert caller == gate.caller({"authorization": f"Bearer {bearer}"})
    assert caller.grants[0].scope.names == ("prod",)
    ended = sessions.open(test_jwt.token(exp=int(clock.now_ms() / 1000) - 10))  # within the leeway of the token
    with pytest.raises(UnauthenticatedError):
        sessions.caller(ended)
    with pytest.raises(UnauthenticatedError):
        sessions.open(test_jwt.token(key=test_jwt.STRANGER))


def test_wrong_keys_are_refused_and_slowed(server: RunningServer) -> None:
    address = {"x-forwarded-for": "127.0.0.77"}
    with httpx.Client(base_url=server.url, headers={"accept": "text/html", **address}) as client:
        token = Document(client.get("/signin").text).form("signin")["token"]
        seen = [client.post("/signin", data={"token": token, "key": f"hw_none_{n}"}).status_code for n in range(24)]
    assert seen[0] == 401
    assert seen[-1] == 429
    assert set(seen) == {401, 429}


def test_over_plain_http_from_elsewhere_the_page_says_that_tls_is_needed(
    closed: MetastoreNamespace, visitor: httpx.Client
) -> None:
    assert "needs TLS" in visitor.get("/signin", headers=ELSEWHERE).text
    token = Document(visitor.get("/signin").text).form("signin")["token"]
    sent = visitor.post("/signin", data={"token": token, "key": key(closed, "reader")}, headers=ELSEWHERE)
    assert (sent.status_code, "set-cookie" in sent.headers) == (403, False)
    secure = {**ELSEWHERE, "x-forwarded-proto": "https"}
    answer = sign_in(visitor, key(closed, "reader"), **secure)
    assert "; Secure" in answer.headers["set-cookie"]


@pytest.mark.parametrize(
    "wanted",
    ["//evil.example", "https://evil.example", "/\\evil.example", "evil", "/a\r\nx: y", "/\tevil", "javascript:x"],
)
def test_signing_in_leads_to_no_other_site(closed: MetastoreNamespace, visitor: httpx.Client, wanted: str) -> None:
    assert own_path(wanted) is None
    assert sign_in(visitor, key(closed, "reader"), wanted).headers["location"] == "/"


def test_a_form_without_its_token_changes_nothing(closed: MetastoreNamespace, visitor: httpx.Client) -> None:
    sign_in(visitor, key(closed, "admin"))
    for token in ("", "0" * 64):
        sent = visitor.post("/do/drop-table/prod/users", data={"token": token, "name": "users"})
        assert sent.status_code == 403
    assert visitor.post("/signout", data={}).status_code == 403
    assert visitor.get("/do/drop-table/prod/users").status_code == 404
    assert visitor.get("/t/prod/users").status_code == 200


def test_a_viewer_sees_no_rows_and_no_button(closed: MetastoreNamespace, visitor: httpx.Client) -> None:
    sign_in(visitor, key(closed, "viewer"))
    found = Document(visitor.get("/t/prod/photos").text)
    assert not any("view=rows" in link and "version" not in link for link in found.links)
    assert not any("view=drop" in link for link in found.links)
    assert visitor.get("/t/prod/photos", params={"view": "rows"}).status_code >= 400
    assert visitor.get("/cell/prod/photos", params={"column": "picture", "offset": 1}).status_code == 403
    forms = Document(visitor.get("/t/prod/photos", params={"view": "versions"}).text).forms
    assert not any("/do/" in form["action"] for form in forms)


def test_an_editor_may_tag_and_not_drop(closed: MetastoreNamespace, visitor: httpx.Client) -> None:
    sign_in(visitor, key(closed, "editor"))
    form = Document(visitor.get("/t/prod/photos", params={"view": "versions"}).text).form("add-tag")
    made = visitor.post(form["action"], data={"token": form["token"], "version": "1", "tag": "first"})
    assert made.status_code == 303
    assert "first" in visitor.get("/t/prod/photos", params={"view": "versions"}).text
    gone = visitor.post("/do/drop-tag/prod/photos", data={"token": form["token"], "tag": "first"})
    assert gone.status_code == 303
    refused = visitor.post("/do/drop-table/prod/photos", data={"token": form["token"], "name": "photos"})
    assert refused.status_code == 403


def test_a_key_of_one_namespace_sees_nothing_of_another(closed: MetastoreNamespace, visitor: httpx.Client) -> None:
    sign_in(visitor, key(closed, "admin", ["odd"]))
    with closed.metastore.transaction("move everything from prod.photos") as tx:
        for space in ("odd", "prod"):
            tx.create_table((space, "both"))
    assert "commit" in Document(visitor.get("/log").text).text
    for address in ("/", "/t/odd/both?view=history", "/log", "/deleted", "/snapshots", "/search?q=o"):
        text = Document(visitor.get(address).text).text
        assert not any(word in text for word in ("prod", "photos", "users", "old")), address
    assert visitor.get("/n/prod").status_code == 403
    assert visitor.get("/t/prod/photos").status_code == 403
    assert visitor.get("/n/prod/none").status_code == visitor.get("/t/prod/none").status_code == 403
    token = Document(visitor.get("/n/odd").text).form("signout")["token"]
    assert visitor.post("/do/undrop/prod/old", data={"token": token}).status_code == 403


def test_dropping_asks_for_the_name_and_undrop_brings_it_back(
    closed: MetastoreNamespace, visitor: httpx.Client
) -> None:
    sign_in(visitor, key(closed, "admin"))
    form = Document(visitor.get("/t/prod/users", params={"view": "drop"}).text).form("drop-table")
    assert visitor.post(form["action"], data={"token": form["token"], "name": "user"}).status_code == 400
    assert visitor.post(form["action"], data={"token": form["token"], "name": "users"}).status_code == 303
    assert visitor.get("/t/prod/users").status_code == 404
    back = Document(visitor.get("/deleted").text).form("undrop/prod/users")
    answer = visitor.post(back["action"], data={"token": back["token"]})
    assert (answer.status_code, answer.headers["location"]) == (303, "/t/prod/users")
    assert "user 3" in visitor.get("/t/prod/users", params={"view": "rows"}).text


def test_undrop_brings_back_what_followed_a_stream_table(closed: MetastoreNamespace, visitor: httpx.Client) -> None:
    catalog = Catalog(closed)
    schema = pa.schema({"id": pa.int64(), "n": pa.int64()})
    stream = catalog.create_stream_table("prod.kept", schema, keys="id", properties={"history": "scd2"})
    stream.ingest([{"id": 1, "n": 1}, {"id": 2, "n": "x"}])
    stream.publish()
    before = set(catalog.tables("prod"))
    assert {"kept", "kept__quarantine", "kept__history"} <= before
    catalog.drop_table("prod.kept")
    sign_in(visitor, key(closed, "admin"))
    back = Document(visitor.get("/deleted").text).form("undrop/prod/kept")
    answer = visitor.post("/do/undrop/prod/kept", data={"token": back["token"]})
    assert (answer.status_code, answer.headers["location"]) == (303, "/t/prod/kept")
    assert set(catalog.tables("prod")) == before
    assert catalog["prod.kept"].quarantine().num_rows == 1
