"""Arrow bodies: large ones are taken, hostile ones refused with nothing changed and the server living on."""

from __future__ import annotations

import io
import json
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx
import pyarrow as pa
import pytest

from headwater.rest import dispatch
from headwater.rest.coding import read_json
from headwater.rest.settings import Limits, Settings
from tests.rest.samples import PEOPLE, Serve, ipc

SMALL = Settings(limits=Limits(arrow_body=3_000_000, json_body=10_000, in_memory_body=50_000))


def rows(count: int) -> pa.Table:
    return pa.table({"id": pa.array(range(count), pa.int64()), "text": [f"row {n:08}" for n in range(count)]})


@pytest.fixture
def table(http: httpx.Client) -> str:
    assert http.post("/v1/table/t/create", content=ipc(PEOPLE)).status_code == 200
    return "t"


def count(http: httpx.Client, table: str) -> int:
    return int(http.post(f"/v1/table/{table}/count_rows", json={}).json())


def test_a_body_far_over_two_mebibytes_is_taken(http: httpx.Client) -> None:
    body = ipc(rows(400_000))
    assert len(body) > 8 * 1024 * 1024
    assert http.post("/v1/table/big/create", content=body).status_code == 200
    assert count(http, "big") == 400_000


def test_a_body_may_come_in_pieces_without_a_length(http: httpx.Client) -> None:
    body = ipc(rows(100_000))
    pieces = (body[at : at + 70_000] for at in range(0, len(body), 70_000))
    assert http.post("/v1/table/big/create", content=pieces).status_code == 200
    assert count(http, "big") == 100_000


def test_a_table_may_be_created_from_a_schema_with_no_batch(http: httpx.Client) -> None:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, PEOPLE.schema):
        pass
    assert http.post("/v1/table/none/create", content=sink.getvalue()).status_code == 200
    assert count(http, "none") == 0
    assert http.post("/v1/table/one/create", content=ipc(PEOPLE.slice(0, 0))).status_code == 200


def test_parameters_may_come_as_headers(http: httpx.Client, table: str) -> None:
    headers = {"x-lance-table-mode": "overwrite"}
    assert http.post("/v1/table/t/create", content=ipc(PEOPLE), headers=headers).status_code == 200
    headers = {"x-lance-table-mode": "overwrite"}
    assert http.post("/v1/table/t/insert", content=ipc(PEOPLE.slice(0, 1)), headers=headers).status_code == 200
    assert count(http, table) == 1


def test_merge_takes_one_column_or_several(http: httpx.Client, table: str) -> None:
    new = pa.table({"id": [3, 4], "name": ["cid", "dan"]})
    options = "when_matched_update_all=true&when_not_matched_insert_all=true"
    assert http.post(f"/v1/table/t/merge_insert?on=id&{options}", content=ipc(new)).status_code == 200
    assert count(http, table) == 4
    answer = http.post(f"/v1/table/t/merge_insert?on=id&on=name&{options}", content=ipc(new))
    assert answer.status_code == 200, answer.text
    assert count(http, table) == 4


def hostile() -> dict[str, bytes]:
    good = ipc(rows(2000))
    zeros = pa.table({"z": pa.array([0] * 40_000_000, pa.int64())})
    bomb = ipc(zeros, pa.ipc.IpcWriteOptions(compression="zstd"))
    return {
        "empty": b"",
        "garbage": b"\x00\x01garbage" * 100,
        "json": b'{"id": 1}',
        "cut in half": good[: len(good) // 2],
        "cut before its end": good[:-8],
        "cut after its schema": good[:200],
        "an Arrow file": file_of(PEOPLE),
        "a bomb": bomb,
        "absurd length": good[:4] + b"\xff\xff\xff\x7f" + good[8:],
        "flipped bits": bytes(b ^ 0x5A for b in good[:300]) + good[300:],
    }


def file_of(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def test_a_hostile_body_is_invalid_input_and_changes_nothing(http: httpx.Client, table: str) -> None:
    for what, body in hostile().items():
        for call in ("u/create", "t/insert", "t/merge_insert?on=id&when_not_matched_insert_all=true"):
            answer = http.post(f"/v1/table/{call}", content=body)
            assert (answer.status_code, answer.json()["code"]) == (400, 13), (what, call, answer.text)
        assert http.post("/v1/table/u/exists", json={}).status_code == 404, what
    assert count(http, table) == 3
    assert http.get("/v1/namespace/%24/table/list").json()["tables"] == ["t"]


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_over_the_limit_is_413_with_the_json_body(serve: Serve, announced: bool) -> None:
    url = serve(SMALL).url
    body = ipc(rows(200_000))
    content: Any = body if announced else (body[at : at + 65_536] for at in range(0, len(body), 65_536))
    answer = httpx.post(f"{url}/v1/table/t/create", content=content, timeout=60)
    assert (answer.status_code, answer.json()["code"]) == (413, 13)
    answer = httpx.post(f"{url}/v1/namespace/a/create", json={"properties": {"k": "v" * 20_000}})
    assert (answer.status_code, answer.json()["code"]) == (413, 13)
    assert httpx.get(f"{url}/v1/namespace/%24/table/list").json()["tables"] == []
    assert httpx.post(f"{url}/v1/table/t/create", content=ipc(rows(50_000)), timeout=60).status_code == 200


def test_a_client_that_goes_away_in_the_middle_leaves_nothing(http: httpx.Client, table: str) -> None:
    body = ipc(rows(50_000))
    parts = urlsplit(str(http.base_url))
    head = f"POST /v1/table/t/insert HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection((parts.hostname, parts.port)) as raw:
        raw.sendall(head.encode() + body[: len(body) // 2])
    time.sleep(0.2)
    assert count(http, table) == 3


def test_a_body_that_stops_arriving_is_given_up(serve: Serve) -> None:
    url = serve(Settings(limits=Limits(body_idle_seconds=0.3))).url
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=20) as raw:
        raw.sendall(b"POST /v1/table/t/insert HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\nabc")
        assert b" 503 " in raw.recv(4096)
    assert httpx.get(f"{url}/health/live").status_code == 200


def test_a_compressed_body_is_refused_clearly(http: httpx.Client) -> None:
    answer = http.post("/v1/table/t/create", content=b"x", headers={"content-encoding": "gzip"})
    assert (answer.status_code, answer.json()["code"]) == (400, 13)


def test_a_query_answers_an_arrow_file_in_pieces(http: httpx.Client) -> None:
    http.post("/v1/table/big/create", content=ipc(rows(200_000)))
    pieces = 0
    with http.stream("POST", "/v1/table/big/query", json={"k": 1_000_000, "vector": {}}) as answer:
        assert answer.headers["content-type"] == "application/vnd.apache.arrow.file"
        assert "content-length" not in answer.headers
        data = b""
        for piece in answer.iter_raw():
            data, pieces = data + piece, pieces + 1
    table = pa.ipc.open_file(data).read_all()
    assert table.num_rows == 200_000
    assert pieces > 1
    assert sorted(table.column_names) == ["id", "text"]


def test_a_query_that_cannot_be_run_is_an_error_and_not_half_an_answer(http: httpx.Client, table: str) -> None:
    for body in (
        {"k": 1, "vector": {}, "filter": "nope >"},
        {"k": 1},
        {"k": -1, "vector": None},
        {"k": 1, "vector": 3},
    ):
        answer = http.post("/v1/table/t/query", json=body)
        assert (answer.status_code, answer.json()["code"]) == (400, 13), (body, answer.text)
    missing = {"k": 1, "vector": None, "columns": {"column_names": ["nope"]}}
    assert http.post("/v1/table/t/query", json=missing).json()["code"] == 12
    assert http.post("/v1/table/t/query", json={"k": 1, "vector": None}).status_code == 200


def test_ignore_missing_of_a_body_is_honoured(http: httpx.Client) -> None:
    assert http.post("/v1/table/t/create", content=ipc(PEOPLE)).status_code == 200
    for _ in range(3):
        assert http.post("/v1/table/t/insert", content=ipc(PEOPLE)).status_code == 200
    asked = {"ranges": [{"start_version": 1, "end_version": 3}]}
    told = [
        http.post("/v1/table/t/version/delete", json={**asked, **more}) for more in ({}, {}, {"ignore_missing": False})
    ]
    assert [answer.status_code for answer in told] == [200, 200, 404]
    assert told[2].json()["code"] == 11
    assert http.post("/v1/table/t/version/delete", json={**asked, "ignore_missing": "x"}).status_code == 400


def test_the_event_loop_answers_while_a_large_json_body_is_parsed(
    http: httpx.Client, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, answered, parsers = threading.Event(), threading.Event(), list[str]()

    def slow(data: bytes) -> dict[str, Any]:
        if len(data) > 100_000:
            parsers.append(threading.current_thread().name)
            begun.set()
            answered.wait(60)
        return read_json(data)

    monkeypatch.setattr(dispatch, "read_json", slow)
    query = {"k": 1, "vector": [0.5] * 60_000}
    with ThreadPoolExecutor(1) as clients:
        asked = clients.submit(http.post, "/v1/table/t/query", json=query, timeout=60)
        try:
            assert begun.wait(60)
            assert httpx.get(f"{http.base_url}/health/live", timeout=30).status_code == 200
        finally:
            answered.set()
        assert asked.result().status_code == 400, "the table has no vectors"
    assert [name.startswith("catalog") for name in parsers] == [True]


TOO_MANY = {
    "numbers": {"k": 1, "vector": [0] * 65_537},
    "numbers of the document": {"k": 1, "vector": {"single_vector": [0] * 65_537}},
    "numbers of one of several": {"k": 1, "vector": {"multi_vector": [[0], [0] * 65_537]}},
    "vectors": {"k": 1, "vector": {"multi_vector": [[0]] * 1025}},
    "texts": {"k": 1, "vector": {"multi_vector": [["x"] * 300] * 1000}},
    "values": {"k": 1, "vector": [0] * 1_100_000},
    "names": {"k": 1, "vector": [0], "columns": [""] * 100_000},
}


@pytest.mark.parametrize("route", ["query", "explain_plan"])
@pytest.mark.parametrize("what", TOO_MANY)
def test_a_query_of_absurd_length_is_refused_before_its_values_are_looked_at(
    http: httpx.Client, what: str, route: str
) -> None:
    """The table does not exist: whoever looks at the vector before the table says so."""
    body: Any = TOO_MANY[what] if route == "query" else {"query": TOO_MANY[what]}
    answer = http.post(f"/v1/table/no/{route}", content=json.dumps(body, separators=(",", ":")), timeout=60)
    assert (answer.status_code, answer.json()["code"]) == (400, 13), answer.text[:300]
    assert len(answer.text) < 1000


def test_requests_of_one_packet_keep_their_own_bodies(http: httpx.Client, table: str) -> None:
    url = urlsplit(str(http.base_url))
    asked = {name: json.dumps({"id": [name], "x": "y" * length}) for name, length in (("t", 1), ("gone", 50))}
    head = "POST /v1/table/{}/exists HTTP/1.1\r\nhost: {}\r\ncontent-length: {}\r\n\r\n{}"
    packet = "".join(head.format(name, url.netloc, len(body), body) for name, body in asked.items()).encode()
    with socket.create_connection((url.hostname, url.port), timeout=10) as client:
        for half in (packet, packet[:-5], packet[-5:]):
            client.sendall(half)
            time.sleep(0.2)
        client.shutdown(socket.SHUT_WR)
        answered = b"".join(iter(lambda: client.recv(65536), b""))
    assert re.findall(rb"HTTP/1.1 (\d+)", answered) == [b"200", b"404"] * 2
