"""Look-ups that are answered in the callback of their last byte: as all others are, and under the same checks."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import lance_namespace as api
import pytest

from headwater import MetastoreNamespace
from headwater.rest.server import RunningServer
from headwater.rest.settings import Limits, Settings
from tests.rest.samples import PEOPLE, Serve, ipc

ASK, EXISTS = "/v1/table/ns$t/describe", "/v1/table/ns$t/exists"
OWN = re.compile(rb"(date|x-request-id): [^\r]*\r\n")


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[MetastoreNamespace]:
    namespace = MetastoreNamespace(root=str(tmp_path / "metastore"))
    namespace.metastore.create()
    namespace.create_namespace(api.CreateNamespaceRequest(id=["ns"]))
    namespace.create_table(api.CreateTableRequest(id=["ns", "t"]), ipc(PEOPLE))
    yield namespace
    namespace.metastore.close()


class Client:
    """One connection to a server that counts the answers that were made at once."""

    def __init__(self, server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at_once = 0
        self._server = server
        at_once = server.app.at_once
        assert at_once is not None
        answer = at_once.answer

        def counted(scope: Any, body: bytes) -> list[bytes] | None:
            found = answer(scope, body)
            self.at_once += found is not None
            return found

        monkeypatch.setattr(at_once, "answer", counted)
        self.connect()

    def connect(self) -> None:
        at = urlsplit(self._server.url)
        self.socket = socket.create_connection((at.hostname, at.port), timeout=30)

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.socket.sendall(piece)

    def answer(self) -> bytes:
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._more()
        head, _, body = data.partition(b"\r\n\r\n")
        found = re.search(rb"content-length: (\d+)", head)
        while found is not None and len(body) < int(found[1]):
            body += self._more()
        return head + b"\r\n\r\n" + body

    def _more(self) -> bytes:
        data = self.socket.recv(65536)
        assert data, "the server has closed the connection"
        return data

    def ask(self, path: str = ASK, **headers: Any) -> bytes:
        self.send(request(path, **headers))
        return self.answer()


def request(path: str = ASK, body: bytes = b"{}", version: str = "1.1", **headers: str) -> bytes:
    lines = [f"POST {path} HTTP/{version}", "host: 127.0.0.1", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join((*lines, "", "")).encode() + body


@pytest.fixture
def client(serve: Serve, lake: MetastoreNamespace, monkeypatch: pytest.MonkeyPatch) -> Client:
    return Client(serve(namespace=lake), monkeypatch)


@pytest.mark.parametrize("path", [ASK, "/v1/table/ns$t/exists", "/v1/namespace/ns/describe", "/v1/namespace/ns/exists"])
def test_an_answer_at_once_is_the_answer_of_every_other_request(client: Client, path: str) -> None:
    first, *others = [client.ask(path) for _ in range(4)]
    assert client.at_once >= 2
    assert {OWN.sub(b"", other) for other in others} == {OWN.sub(b"", first)}
    assert len({re.search(rb"x-request-id: (\S+)", each)[1] for each in (first, *others)}) == 4  # type: ignore[index]
    assert b"x-request-id: mine\r\n" in client.ask(path, x_request_id="mine")


def test_what_changed_is_told_at_once(client: Client, lake: MetastoreNamespace) -> None:
    assert b'"version":1' in client.ask()
    assert b'"version":1' in client.ask()
    lake.insert_into_table(api.InsertIntoTableRequest(id=["ns", "t"]), ipc(PEOPLE))
    assert b'"version":2' in client.ask()
    lake.drop_table(api.DropTableRequest(id=["ns", "t"]))
    assert client.ask().startswith(b"HTTP/1.1 404")
    assert client.ask().startswith(b"HTTP/1.1 404")


def test_requests_in_pieces_and_several_in_one_packet_are_answered_in_their_order(client: Client) -> None:
    whole = client.ask()
    plain, listed = request(), b"GET /v1/namespace/ns/table/list HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    client.send(plain[:40])
    client.send(plain[40:-1])
    assert client.socket.getsockname()
    client.send(plain[-1:])
    assert OWN.sub(b"", client.answer()) == OWN.sub(b"", whole)
    client.send(plain + listed + plain + plain)
    data = b""
    while data.count(b"HTTP/1.1 ") < 4 or not data.endswith(b"}"):
        data += client._more()
    kinds = [b"tables" in part for part in data.split(b"HTTP/1.1 ")[1:]]
    assert kinds == [False, True, False, False]
    assert OWN.sub(b"", client.ask()) == OWN.sub(b"", whole)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"connection": "close"}, b"HTTP/1.1 200"),
        ({"version": "1.0"}, b"HTTP/1.1 200"),
        ({"expect": "100-continue"}, b"HTTP/1.1 200 OK"),
        ({"content_encoding": "gzip"}, b"HTTP/1.1 400"),
        ({"origin": "https://elsewhere.example"}, b"HTTP/1.1 403"),
        ({"host": "elsewhere.example"}, b"HTTP/1.1 403"),
        ({"if_none_match": "*"}, b"HTTP/1.1 304"),
        ({"x_headwater_at": "1"}, b"HTTP/1.1 404"),
        ({"body": b"{"}, b"HTTP/1.1 400"),
        ({"body": b'{"version": 7}'}, b"HTTP/1.1 4"),
        ({"path": "/v1/table/ns$t%2F/describe"}, b"HTTP/1.1 4"),
        ({"path": "/v1/table/ns$other/exists"}, b"HTTP/1.1 404"),
    ],
    ids=str,
)
def test_what_takes_more_than_memory_goes_the_way_of_all_requests(client: Client, asked: Any, told: bytes) -> None:
    client.ask()
    client.ask()
    client.send(request(**asked))
    answer = client.answer()
    assert answer.startswith(told), answer
    if told.endswith(b"200"):
        assert b"connection: close\r\n" in answer
        assert client.socket.recv(1) == b""


def test_a_key_that_is_missing_or_may_not_is_refused(
    serve: Serve, lake: MetastoreNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(serve(namespace=lake, api_key="a long secret"), monkeypatch)
    for _ in range(3):
        assert client.ask(EXISTS, x_api_key="a long secret").startswith(b"HTTP/1.1 200")
    assert client.at_once
    before = client.at_once
    assert client.ask(EXISTS).startswith(b"HTTP/1.1 401")
    assert client.ask(EXISTS, x_api_key="another secret").startswith(b"HTTP/1.1 401")
    assert client.at_once == before


def test_answers_at_once_count_against_the_rate_and_are_on_record(
    serve: Serve, lake: MetastoreNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(Settings(limits=Limits(requests_per_second=0.001, burst=6)), namespace=lake)
    client = Client(server, monkeypatch)
    answers = [client.ask()[9:12] for _ in range(8)]
    assert answers == [b"200"] * 6 + [b"429"] * 2
    assert client.at_once >= 4
    text = server.app._metrics_text().decode()
    (line,) = [line for line in text.splitlines() if "DescribeTable" in line and 'status="200"' in line]
    assert line.endswith((" 6", " 6.0"))


def test_a_proxy_path_and_pages_of_others_leave_it_out(serve: Serve, lake: MetastoreNamespace) -> None:
    assert serve(Settings(base_path="/lake"), namespace=lake).app.at_once is None


def test_an_idle_connection_is_closed_after_an_answer_at_once(
    serve: Serve, lake: MetastoreNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(serve(Settings(limits=Limits(keep_alive_seconds=1)), namespace=lake), monkeypatch)
    for _ in range(3):
        client.ask()
    assert client.at_once
    assert client.socket.recv(1) == b""


def test_health_is_told_beside_look_ups(client: Client) -> None:
    client.ask()
    assert httpx.get(f"{client._server.url}/health/ready").status_code == 200


def test_a_part_of_the_server_that_every_request_passes_is_asked_by_answers_at_once_too(
    serve: Serve, lake: MetastoreNamespace
) -> None:
    """A new part fails here first: `AtOnce` must ask it, in its place, before it is added to this list."""
    app = serve(namespace=lake).app
    part: Any = app._app
    parts = list[Any]()
    while part is not None:
        parts.append(part)
        part = getattr(part, "_app", None)
    assert [type(each).__name__ for each in parts] == [
        *("Recorded", "OwnSite", "Paths", "Routed", "Admitted", "Limited", "Endpoint")
    ]
    assert app.at_once is not None
    asked = [each for each in vars(app.at_once).values() if each in parts]
    assert asked == [each for each in parts if type(each).__name__ != "Paths"]  # pages have other addresses
