"""A server that says to go elsewhere: whoever is there gets no token of ours."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import lance_namespace as api
import pytest

from headwater import connect
from headwater.pipeline.lineage import export_lineage
from headwater.spark.catalog import connect as connect_spark
from headwater.verbs.catalog import ReadLog
from tests.rest.samples import make

SECRET = "hw_0_sesame"


@dataclass
class Pair:
    """A server that sends everybody on, and what came to where it sends them."""

    url: str = ""
    heard: list[str] = field(default_factory=list)


@pytest.fixture(params=[302, 307])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    found = Pair()

    class Base(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            self.reply()

        do_GET = do_POST = answer

        def reply(self) -> None:
            raise NotImplementedError

        def log_message(self, *_: Any) -> None:
            return

    class Elsewhere(Base):
        def reply(self) -> None:
            found.heard.append(f"{self.path} {self.headers}")
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

    class Sender(Base):
        def reply(self) -> None:
            self.send_response(request.param)
            self.send_header("location", f"http://localhost:{there.server_port}{self.path}")
            self.send_header("content-length", "0")
            self.end_headers()

    there = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    here = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Sender)
    for server in (here, there):
        threading.Thread(target=server.serve_forever, daemon=True).start()
    found.url = f"http://127.0.0.1:{here.server_port}"
    yield found
    for server in (here, there):
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    "headers",
    [{"headers.x-api-key": SECRET}, {"header.X-Api-Key": SECRET, "header.Authorization": f"Bearer {SECRET}"}],
)
def test_no_call_of_a_client_takes_its_key_to_another_host(pair: Pair, headers: dict[str, str]) -> None:
    client: Any = connect("rest", {"uri": pair.url, **headers})
    calls: tuple[Callable[[], Any], ...] = (
        lambda: client.describe_table(api.DescribeTableRequest(id=["t"])),
        lambda: client.list_tables(api.ListTablesRequest(id=[])),
        lambda: client.query_table(make(api.QueryTableRequest, id=["t"], k=1, vector={"single_vector": [1.0]})),
        lambda: client.create_table(api.CreateTableRequest(id=["t"]), b"rows"),
        lambda: client.batch_commit_tables(api.BatchCommitTablesRequest(operations=[])),
        lambda: client.call(ReadLog()),
        lambda: client.begin("a transaction"),
    )
    for call in calls:
        with suppress(Exception):  # what comes of it is the other's affair
            call()
    assert pair.heard
    assert "sesame" not in "\n".join(pair.heard)


def test_no_other_sender_of_tokens_takes_one_to_another_host(pair: Pair) -> None:
    with suppress(Exception):
        connect_spark({"uri": pair.url, "token": SECRET}).client.list_tables(api.ListTablesRequest(id=[]))
    with suppress(Exception):
        export_lineage([{"eventType": "COMPLETE"}], pair.url, SECRET)
    assert pair.heard
    assert "sesame" not in "\n".join(pair.heard)
