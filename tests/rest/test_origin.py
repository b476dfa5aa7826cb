"""An open local server obeys no web page: what another site sends, or what comes under another name, is refused."""

from __future__ import annotations

import itertools
from pathlib import Path

import httpx
import pytest

from headwater import DirectoryNamespace
from headwater.clock import SystemClock
from headwater.errors import InvalidInputError, PermissionDeniedError
from headwater.rest.auth.gate import LOOK_MS
from headwater.rest.auth.keys import create_key
from headwater.rest.extensions import ALL_ROUTES
from headwater.rest.origin import address_of, check_site, networks
from headwater.rest.settings import Settings
from tests.rest.processes import ServeProcess
from tests.rest.samples import PEOPLE, Serve, ipc

PAGES = ("/health/live", "/health/ready", "/metrics", "/openapi.json", "/v1/nothing")
FOREIGN: list[dict[str, str]] = [
    {"origin": "http://evil.example"},
    {"origin": "null"},
    {"origin": "http://localhost:1"},
    {"origin": "http://127.0.0.1.evil.example"},
    {"origin": "file://"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"host": "evil.example"},
    {"host": "127.0.0.1.evil.example"},
    {"host": "localhost.evil.example:80"},
    {"host": "192.168.1.1"},
    {"host": ""},
    {"host": "[::1].evil"},
    {"host": "[::1]evil:80"},
    {"host": "[127.0.0.1].evil.example"},
    {"host": "localhost:80.evil.example"},
    {"host": "localhost:80:80"},
    {"host": "user@localhost"},
]


def test_nothing_that_another_site_sends_is_obeyed_on_any_route(http: httpx.Client, root: str) -> None:
    before = sorted(Path(root).rglob("*"))
    asked = [("GET", page) for page in PAGES]
    asked += [(r.verb, r.path.replace("{id}", "a").replace("{index_name}", "i")) for r in ALL_ROUTES]
    for headers, (verb, path) in itertools.product(FOREIGN, asked):
        answer = http.request(verb, path, headers=headers, content=b"{}" if verb == "POST" else None)
        assert (answer.status_code, answer.json()["code"]) == (403, 15), (headers, verb, path, answer.text)
        assert "access-control-allow-origin" not in answer.headers
    assert sorted(Path(root).rglob("*")) == before


def test_a_simple_form_of_another_site_changes_nothing_and_its_own_pages_may(http: httpx.Client) -> None:
    own = str(http.base_url).rstrip("/")
    form = {"content-type": "text/plain", "origin": "https://evil.example"}
    assert http.post("/v1/namespace/a/create", content=b"{}", headers=form).status_code == 403
    assert http.post("/v1/table/t/create", content=ipc(PEOPLE), headers=form).status_code == 403
    assert http.get("/v1/namespace/%24/list").json() == {"namespaces": []}
    for headers in ({"origin": own, "sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"}, {}):
        answer = http.get("/v1/namespace/%24/list", headers=headers)
        assert answer.status_code == 200
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST:80", "127.0.0.1:8080", "127.9.9.9", "[::1]:8080", "[::1]"])
def test_the_names_of_loopback_are_served(http: httpx.Client, name: str) -> None:
    assert http.get("/health/live", headers={"host": name}).status_code == 200


def test_a_host_sent_twice_is_not_the_one_that_is_served() -> None:
    with pytest.raises(PermissionDeniedError):
        check_site({"host": "localhost, evil.example"}, frozenset(), True, False)


def test_a_server_answers_to_the_names_it_is_told(serve: Serve) -> None:
    url = serve(Settings(host_names=("lake.example",), api_key="open-sesame")).url
    key = {"x-api-key": "open-sesame"}
    for host, status in (("lake.example", 200), ("Lake.Example:443", 200), ("localhost", 200), ("evil.example", 403)):
        assert httpx.get(f"{url}/v1/table", headers={**key, "host": host}).status_code == status, host
    origin = {"origin": "https://lake.example", "host": "localhost"}
    assert httpx.get(f"{url}/v1/table", headers={**key, **origin}).status_code == 200


def test_a_server_that_asks_for_keys_answers_to_every_name_and_still_to_no_other_site(serve: Serve) -> None:
    url = serve(api_key="open-sesame").url
    headers = {"x-api-key": "open-sesame", "host": "lake.example"}
    assert httpx.get(f"{url}/v1/table", headers=headers).status_code == 200
    assert httpx.get(f"{url}/v1/table", headers={**headers, "origin": "http://evil.example"}).status_code == 403


def test_a_server_with_keys_answers_to_its_public_name_from_the_first_request_on(
    serve: Serve, catalog: DirectoryNamespace
) -> None:
    _, text = create_key(catalog.store, SystemClock(), "reader", [])
    url = serve().url
    public = {"host": "lake.example", "x-api-key": text}
    assert httpx.get(f"{url}/v1/table", headers=public).status_code == 200
    assert httpx.get(f"{url}/v1/table", headers={"host": "lake.example"}).status_code == 401


def test_a_server_whose_first_key_is_made_while_it_runs_answers_to_its_public_name(
    serve: Serve, catalog: DirectoryNamespace
) -> None:
    server = serve()
    public = {"host": "lake.example"}
    assert httpx.get(f"{server.url}/v1/table", headers=public).status_code == 403
    _, text = create_key(catalog.store, SystemClock(), "reader", [])
    server.app.gate._looked_ms -= LOOK_MS
    assert httpx.get(f"{server.url}/v1/table", headers={**public, "x-api-key": text}).status_code == 200


@pytest.mark.long
def test_every_worker_of_a_server_with_keys_answers_to_its_public_name(catalog: DirectoryNamespace, root: str) -> None:
    _, text = create_key(catalog.store, SystemClock(), "reader", [])
    with ServeProcess(root, "--port", "0", "--workers", "3", "--no-access-log") as server:
        headers = {"host": "lake.example", "x-api-key": text}
        for _ in range(30):  # a connection each, so that every worker gets some
            assert httpx.get(f"{server.url}/v1/table", headers=headers, timeout=60).status_code == 200


def test_one_that_was_told_to_be_insecure_answers_to_addresses_too() -> None:
    check_site({"host": "192.168.1.1:80"}, frozenset(), True, True)
    with pytest.raises(PermissionDeniedError):
        check_site({"host": "evil.example"}, frozenset(), True, True)


def test_forwarded_addresses_are_believed_only_from_configured_proxies() -> None:
    near, far = networks(["10.0.0.1", "10.1.0.0/16"]), networks(["::1/128"])
    cases = [
        ("10.0.0.1", "1.2.3.4", (), "10.0.0.1"),
        ("9.9.9.9", "1.2.3.4", near, "9.9.9.9"),
        ("10.0.0.1", "1.2.3.4", near, "1.2.3.4"),
        ("10.0.0.1", "6.6.6.6, 1.2.3.4", near, "1.2.3.4"),
        ("10.0.0.1", "6.6.6.6, 1.2.3.4, 10.1.2.3", near, "1.2.3.4"),
        ("10.0.0.1", "evil", near, "10.0.0.1"),
        ("10.0.0.1", "6.6.6.6, evil, 10.1.2.3", near, "10.1.2.3"),
        ("10.0.0.1", None, near, "10.0.0.1"),
        ("::1", "1.2.3.4", far, "1.2.3.4"),
        ("10.0.0.1", "1.2.3.4," * 100_000, near, "10.0.0.1"),
    ]
    for peer, forwarded, proxies, expected in cases:
        assert address_of(peer, forwarded, proxies) == expected, (peer, forwarded)
    with pytest.raises(InvalidInputError):
        networks(["proxy.example"])
