"""Short-lived credentials for one table, from a token service of our own on loopback."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

import httpx
import lance_namespace as api
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from headwater import DirectoryNamespace
from headwater.clock import SystemClock
from headwater.errors import InvalidInputError, ServiceUnavailableError
from headwater.namespace.vending import FileAccess, Scoped, ScopedSettings
from headwater.rest.auth.keys import create_key
from headwater.rest.server import start_in_thread
from headwater.rest.settings import Settings
from tests.rest.samples import PEOPLE, ipc

ROLE = "arn:aws:iam::123456789012:role/lake"
ANSWER = """<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>
<AccessKeyId>ASIA{n}</AccessKeyId><SecretAccessKey>minted-secret</SecretAccessKey><SessionToken>minted-token</SessionToken>
</Credentials></AssumeRoleResult></AssumeRoleResponse>"""


class Service(http.server.ThreadingHTTPServer):
    """A token service: notes what it is asked, and answers."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[dict[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Service

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        self.server.asked.append({key: value[0] for key, value in parse_qs(body).items()})
        self.server.headers.append({key.lower(): value for key, value in self.headers.items()})
        number = len(self.server.asked)
        said = ANSWER.format(n=number) if "Action" in body else json.dumps({"access_token": f"token-{number}"})
        if self.server.status != 200:
            said = f"<Error>no: {body}</Error>"
        self.send_response(self.server.status)
        self.send_header("content-length", str(len(said.encode())))
        self.send_header("location", "/elsewhere")
        self.end_headers()
        self.wfile.write(said.encode())

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def service() -> Iterator[Service]:
    server = Service()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


class Later(SystemClock):
    ahead = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead


def test_a_server_vends_each_caller_what_it_may_do_with_that_table(
    service: Service, s3_root: str, s3_options: dict[str, str]
) -> None:
    own = {**s3_options, "secret_access_key": "own-secret", "session_token": "own-token"}
    catalog = DirectoryNamespace(root=s3_root, **{f"storage.{key}": value for key, value in own.items()})
    catalog.create_table(api.CreateTableRequest(id=["t"]), ipc(PEOPLE))
    keys = {role: create_key(catalog.store, SystemClock(), role, [])[1] for role in ("viewer", "reader", "writer")}
    settings = Settings(scoped=ScopedSettings(ROLE, "ext", 900, service.url))
    server = start_in_thread(catalog, settings=settings)
    with server, httpx.Client(base_url=server.url, timeout=60) as client:

        def ask(role: str, path: str, body: Any) -> httpx.Response:
            return client.post(path, json=body, headers={"x-api-key": keys[role]})

        told = {role: ask(role, "/v1/table/t/describe", {}).json().get("storage_options") for role in keys}
        assert told["viewer"] is None
        assert told["reader"]["aws_session_token"] == told["writer"]["aws_session_token"] == "minted-token"
        assert told["reader"]["endpoint"] == own["endpoint"]
        assert int(told["reader"]["expires_at_millis"]) > SystemClock().now_ms()
        assert "own-" not in json.dumps(told)
        actions = [json.loads(asked["Policy"])["Statement"][0]["Action"] for asked in service.asked]
        assert [("s3:PutObject" in action) for action in actions] == [False, True]
        resources = {json.loads(asked["Policy"])["Statement"][0]["Resource"][0] for asked in service.asked}
        assert resources == {f"arn:aws:s3:::{s3_root.removeprefix('s3://')}/t.lance/*"}
        assert service.asked[0]["RoleArn"] == ROLE
        assert service.asked[0]["ExternalId"] == "ext"
        assert service.headers[0]["x-amz-security-token"] == "own-token"
        ask("reader", "/v1/table/t/describe", {})
        assert len(service.asked) == 2
        assert "storage_options" not in ask("reader", "/v1/table/t/describe", {"vend_credentials": False}).json()
        batch = {"operations": [{"declare_table": {"id": ["*"]}}]}
        nested = ask("writer", "/v1/table/batch-commit", batch).json()["results"][0]["declare_table"]
        assert nested["storage_options"]["aws_access_key_id"] == "ASIA3"
        assert "${*}.lance/*" in service.asked[2]["Policy"]
        headers = {"x-api-key": keys["writer"], "idempotency-key": "once"}
        for _ in range(2):
            made = client.post("/v1/table/made/create", content=ipc(PEOPLE), headers=headers)
            assert made.status_code == 200
        assert made.json().get("storage_options") is None
        kept = [catalog.store.get(entry.key) for entry in catalog.store.list(".headwater")]
        assert not [data for data in kept if b"minted" in data]
        service.status = 403
        assert ask("writer", "/v1/table/made2/declare", {}).json().get("storage_options") is None
        refused = ask("writer", "/v1/table/made2/describe", {})
        assert (refused.status_code, refused.json()["code"]) == (503, 17)
        assert "Policy" not in refused.text


def test_credentials_are_made_anew_at_half_of_their_time(service: Service) -> None:
    clock = Later()
    own = {"access_key_id": "a", "secret_access_key": "b", "region": "eu-west-1"}
    vendor = Scoped("s3://b/lake", own, ScopedSettings(ROLE, seconds=900, endpoint=service.url), clock)
    first = vendor.options("s3://b/lake/t", FileAccess.READ, None)
    clock.ahead += 449_000
    assert vendor.options("s3://b/lake/t", FileAccess.READ, None) == first
    clock.ahead += 2_000
    assert vendor.options("s3://b/lake/t", FileAccess.READ, None) != first
    assert vendor.options("s3://b/other/t", FileAccess.READ, None) is None
    assert vendor.options("s3://b/lake/t", FileAccess.NONE, None) is None


@pytest.mark.parametrize("status", [302, 400, 500])
def test_a_token_service_that_refuses_or_redirects_gives_nothing_and_is_not_quoted(
    service: Service, status: int
) -> None:
    service.status = status
    own = {"access_key_id": "a", "secret_access_key": "b"}
    vendor = Scoped("s3://b/lake", own, ScopedSettings(ROLE, endpoint=service.url), SystemClock())
    with pytest.raises(ServiceUnavailableError, match=f"HTTP {status}") as refused:
        vendor.options("s3://b/lake/t", FileAccess.WRITE, own)
    assert "Policy" not in str(refused.value)
    assert len(service.asked) == 1


def test_a_google_token_is_exchanged_for_one_with_a_boundary(service: Service) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    account = json.dumps({"client_email": "a@b", "private_key": pem, "token_uri": service.url})
    settings = ScopedSettings(endpoint=service.url)
    vendor = Scoped("gs://b/lake", {"service_account_key": account}, settings, SystemClock())
    found = vendor.options("gs://b/lake/it%27s.lance", FileAccess.READ, None)
    assert found is not None
    assert found["google_storage_token"] == "token-2"
    assert "service_account_key" not in found
    assert service.asked[1]["subject_token"] == "token-1"
    boundary = json.loads(unquote(service.asked[1]["options"]))["accessBoundary"]["accessBoundaryRules"][0]
    assert "it\\U00000027s.lance/" in boundary["availabilityCondition"]["expression"]


def test_an_azure_key_signs_for_one_directory() -> None:
    own = {"account_name": "acc", "account_key": "MDAwMA==", "endpoint": "https://x"}
    vendor = Scoped("az://c/lake", own, ScopedSettings(), SystemClock())
    found = vendor.options("az://c/lake/t.lance", FileAccess.READ, own)
    assert found is not None
    assert "sr=d" in found["azure_storage_sas_token"]
    assert "MDAwMA" not in json.dumps(found)
    assert found["endpoint"] == "https://x"


def test_settings_that_cannot_work_are_refused_at_the_start(tmp_path: Path) -> None:
    for root, settings in (
        ("s3://b/x", ScopedSettings()),
        ("s3://b/x", ScopedSettings(ROLE, seconds=10)),
        ("s3://b/x", ScopedSettings(ROLE, endpoint="http://sts.example/")),
    ):
        with pytest.raises(InvalidInputError):
            Scoped(root, {}, settings, SystemClock())
    local = Scoped(str(tmp_path), {}, ScopedSettings(), SystemClock())
    assert local.options(str(tmp_path / "t.lance"), FileAccess.WRITE, {"secret_access_key": "x"}) is None
