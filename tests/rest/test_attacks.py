"""Names, locations, manifest paths and page tokens that try to leave the catalog: refused, and the victim untouched."""

from __future__ import annotations

import base64
import json
import socket
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater import DirectoryNamespace
from headwater.rest.server import RunningServer
from headwater.rest.settings import Settings
from tests.rest.samples import PEOPLE, Serve, ipc


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file and a folder beside the catalog, which no request may touch."""
    folder = tmp_path / "victim.lance"
    folder.mkdir()
    (folder / "secret").write_text("do not read or delete")
    return folder


@pytest.fixture
def table(http: httpx.Client, victim: Path) -> str:
    http.post("/v1/table/t/create", content=ipc(PEOPLE))
    return "t"


TRAVERSALS = [
    "..",
    ".",
    "../victim",
    "..%2fvictim",
    "%2e%2e%2fvictim",
    "..\\victim",
    "/victim",
    "a/../../victim",
    "a\0b",
    "a\nb",
    "%00",
    "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
    "~/x" + "/../" * 5,
    "file:///etc",
]


@pytest.mark.parametrize("name", TRAVERSALS, ids=range(len(TRAVERSALS)))
def test_a_name_never_leaves_the_catalog(
    http: httpx.Client, victim: Path, name: str, root: str, tmp_path: Path
) -> None:
    before = sorted(path.relative_to(tmp_path) for path in victim.rglob("*"))
    raw = quote(name, safe="")
    calls = [
        (f"/v1/table/{raw}/create", ipc(PEOPLE)),
        (f"/v1/table/{raw}/declare", b"{}"),
        (f"/v1/table/{raw}/drop", b""),
        (f"/v1/namespace/{raw}/create", b"{}"),
        (f"/v1/table/ns%24{raw}/describe", b"{}"),
    ]
    for path, body in calls:
        answer = http.post(path, content=body)
        assert answer.status_code in (200, 400, 404, 409), (path, answer.text)
        assert "secret" not in answer.text
    assert sorted(path.relative_to(tmp_path) for path in victim.rglob("*")) == before
    assert {path.name for path in tmp_path.iterdir()} <= {"lake", "victim.lance"}


@pytest.mark.parametrize("raw", [b"%zz", b"%ff%fe", b"a%", b"%c0%ae%c0%ae%2f", b"%u002e"])
def test_an_id_that_is_not_percent_encoded_utf8_is_refused_or_taken_literally(
    server: RunningServer, raw: bytes
) -> None:
    answer = httpx.post(f"{server.url}/v1/namespace/{raw.decode()}/describe", json={})
    assert answer.status_code in (400, 404)
    assert answer.json()["code"] in (1, 13)


LOCATIONS = [
    "../victim.lance",
    "a/../../victim.lance",
    "{victim}",
    "file://{victim}",
    "..\\victim.lance",
    "s3://other-bucket/x",
    "http://127.0.0.1:1/x",
    "",
    ".",
    "__manifest",
    ".headwater/tokens",
    "a\0b",
]


@pytest.mark.parametrize("location", LOCATIONS)
def test_a_location_never_leaves_the_catalog(http: httpx.Client, victim: Path, location: str) -> None:
    place = location.replace("{victim}", str(victim))
    for call in ("register", "declare"):
        answer = http.post(f"/v1/table/evil/{call}", json={"location": place})
        assert (answer.status_code, answer.json()["code"]) == (400, 13), (call, answer.text)
    assert http.post("/v1/table/evil/drop").status_code == 404
    assert (victim / "secret").read_text() == "do not read or delete"


@pytest.mark.parametrize(
    "path", ["../../victim.lance/secret", "{victim}/secret", "t.lance/_versions/../../../victim.lance/secret", "", "\0"]
)
def test_a_manifest_path_never_leaves_its_table(serve: Serve, tmp_path: Path, victim: Path, path: str) -> None:
    managed = DirectoryNamespace(root=str(tmp_path / "managed"), table_version_management="true")
    url = serve(namespace=managed).url
    httpx.post(f"{url}/v1/table/t/declare", json={})
    body = {"version": 1, "manifest_path": path.replace("{victim}", str(victim).lstrip("/"))}
    answer = httpx.post(f"{url}/v1/table/t/version/create", json=body)
    assert answer.status_code in (400, 404, 406), answer.text
    assert (victim / "secret").read_text() == "do not read or delete"
    assert "do not read" not in answer.text


@pytest.mark.parametrize("path", ["/v1/namespace/$/exists", "/v1/namespace/a/create"])
def test_a_field_behind_a_body_is_no_header(serve: Serve, path: str) -> None:
    server = serve(Settings(api_key="a long secret"))
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n"
    at = urlsplit(server.url)
    with socket.create_connection((at.hostname, at.port), timeout=30) as sent:
        sent.sendall(f"{head}x-api-key: a long secret\r\nx-request-id: mine\r\n\r\n".encode())
        answer = sent.recv(65536)
    assert answer.startswith(b"HTTP/1.1 401"), answer
    assert b"x-request-id: mine" not in answer


@pytest.mark.parametrize(
    "token", ["x" * 10_000, "../..", "%00", base64.urlsafe_b64encode(b"\xff\xfe").decode(), "é", "a" * 5000 + "="]
)
def test_a_page_token_that_was_not_given_out_is_invalid_input(http: httpx.Client, token: str) -> None:
    for path in ("/v1/namespace/%24/list", "/v1/namespace/%24/table/list", "/v1/table"):
        answer = http.get(path, params={"page_token": token, "limit": "1"})
        assert (answer.status_code, answer.json()["code"]) == (400, 13)


def test_an_error_shows_no_stack_and_no_source_place(http: httpx.Client, table: str) -> None:
    answers = [
        http.post("/v1/table/t/query", json={"k": 1, "vector": {}, "filter": "no_such_column = 1"}),
        http.post("/v1/table/t/query", json={"k": 1, "vector": {"single_vector": [1.0]}}),
        http.post("/v1/table/t/insert", content=ipc(PEOPLE.rename_columns(["a", "b"]))),
        http.post("/v1/table/t/restore", json={"version": 99}),
        http.post("/v1/table/t/create_index", json={"column": "nope", "index_type": "BTREE"}),
    ]
    for answer in answers:
        assert 400 <= answer.status_code < 500, answer.text
        for leak in (".rs:", ".py", "Traceback", "line ", "/home", "site-packages"):
            assert leak not in answer.text


def test_a_failure_inside_is_told_without_its_reason_and_logged_without_a_stack(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(DirectoryNamespace):
        def describe_table(self, request: Any) -> Any:
            raise RuntimeError("password=hunter2 at /somewhere/secret")

    url = serve(namespace=Broken(root="unused-and-never-made")).url
    answer = httpx.post(f"{url}/v1/table/t/describe", json={"check_declared": True}, headers={"x-request-id": "req-7"})
    assert (answer.status_code, answer.json()["code"]) == (500, 18)
    assert answer.json()["instance"] == "req-7"
    assert "hunter2" not in answer.text
    assert "req-7" in caplog.text
    assert "RuntimeError" in caplog.text
    assert "hunter2" not in caplog.text
    assert "Traceback" not in caplog.text
    assert httpx.get(f"{url}/health/live").status_code == 200


text = st.text(max_size=20)
json_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("tail", ["describe", "query", "update", "create_index", "version/create", "tags/create"])
def test_no_json_makes_the_server_fail(http: httpx.Client, table: str, tail: str) -> None:
    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(body=st.dictionaries(st.sampled_from(FIELDS) | text, json_value, max_size=5))
    def ask(body: dict[str, Any]) -> None:
        answer = http.post(f"/v1/table/t/{tail}", content=_json(body))
        assert answer.status_code < 500, (body, answer.text)

    ask()


FIELDS = [
    "id",
    "version",
    "k",
    "vector",
    "filter",
    "columns",
    "tag",
    "updates",
    "predicate",
    "branch",
    "column",
    "name",
    "index_type",
    "manifest_path",
    "context",
    "identity",
    "offset",
    "prefilter",
    "full_text_query",
]


def _json(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode("utf-8", "surrogatepass")
