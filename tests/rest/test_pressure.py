"""What strangers can make the server hold or do is bounded: heads, connections, guesses, requests, bytes of bodies."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import pyarrow as pa
import pytest

from headwater import DirectoryNamespace
from headwater.clock import SystemClock
from headwater.errors import ServiceUnavailableError, ThrottlingError
from headwater.rest.auth.keys import create_key
from headwater.rest.settings import Buckets, Holding, Limits, Quota, Running, Settings
from tests.rest.samples import Serve, ipc


@contextmanager
def connected(url: str) -> Iterator[socket.socket]:
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=20) as raw:
        yield raw


def received(raw: socket.socket) -> bytes:
    """All that comes until the server closes."""
    found = b""
    while True:
        try:
            piece = raw.recv(65536)
        except ConnectionResetError:
            return found
        if not piece:
            return found
        found += piece


HALF = [b"", b"GET /health/li", b"GET /health/live HTTP/1.1\r\nhost: localhost\r\nx-a: b"]


@pytest.mark.parametrize("sent", HALF)
def test_a_request_that_is_half_sent_does_not_hold_its_connection(serve: Serve, sent: bytes) -> None:
    url = serve(Settings(limits=Limits(head_seconds=0.3))).url
    with connected(url) as raw:
        raw.sendall(sent)
        assert (b" 408 " in received(raw)) == bool(sent)
    assert httpx.get(f"{url}/health/live").status_code == 200


def test_a_head_that_trickles_in_has_one_deadline(serve: Serve) -> None:
    url = serve(Settings(limits=Limits(head_seconds=0.5))).url
    with connected(url) as raw:
        raw.sendall(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n")
        raw.settimeout(0.05)
        for _ in range(400):  # far more than the deadline allows
            try:
                raw.sendall(b"x")
                if raw.recv(10):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        else:
            pytest.fail("the connection lives on")


def test_the_rest_of_a_refused_body_does_not_hold_its_connection(serve: Serve) -> None:
    url = serve(Settings(api_key="open-sesame", limits=Limits(head_seconds=0.3))).url
    with connected(url) as raw:
        raw.sendall(b"POST /v1/table/t/insert HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\nabc")
        assert b" 401 " in received(raw)


def head(size: int) -> dict[str, bytes]:
    line = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n"
    return {
        "one header": line + b"x-a: " + b"a" * size,
        "many headers": line + b"x-a: aaaaaaaaaaaa\r\n" * (size // 19),
        "a path": b"GET /" + b"a" * size,
        "a trailer": b"POST /v1/namespace/a/exists HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
        b"2\r\n{}\r\n0\r\nx-a: " + b"a" * size,
        "a chunk's extension": b"POST /v1/namespace/a/exists HTTP/1.1\r\nhost: localhost\r\n"
        b"transfer-encoding: chunked\r\n\r\n2;" + b"a" * size,
    }


@pytest.mark.parametrize("what", list(head(1)))
def test_a_head_of_any_shape_is_taken_only_so_far(serve: Serve, what: str) -> None:
    url = serve().url
    sent = 0
    with connected(url) as raw:
        data = head(16 * 1024 * 1024)[what]
        try:
            while sent < len(data):
                sent += raw.send(data[sent : sent + 65536])
        except OSError:
            pass
        assert sent < len(data) or b" 431 " in received(raw) or b" 400 " in received(raw)
    answer = httpx.get(f"{url}/health/live", headers={"x-a": "a" * 30_000})
    assert answer.status_code == 200


def test_what_is_no_http_gets_the_json_body_of_every_error(serve: Serve) -> None:
    with connected(serve().url) as raw:
        raw.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert b'"code":13' in received(raw)


def test_connections_are_limited_and_health_still_answers(serve: Serve) -> None:
    url = serve(Settings(limits=Limits(connections=4))).url
    with ExitStack() as held:
        for _ in range(4):
            raw = held.enter_context(connected(url))
            raw.sendall(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert b" 200 " in raw.recv(65536)
        assert httpx.get(f"{url}/health/live").status_code == 200
        refused = httpx.get(f"{url}/v1/table")
        assert (refused.status_code, refused.json()["code"]) == (503, 17)
        with ExitStack() as crowd:
            last = [crowd.enter_context(connected(url)) for _ in range(40)][-1]
            assert received(last) == b""
    assert httpx.get(f"{url}/v1/table").status_code == 200


class Stuck(DirectoryNamespace):
    """A catalog that answers nothing but lists of namespaces, until it is let go."""

    release = threading.Event()
    entered = threading.Semaphore(0)

    def _wait(self) -> None:
        self.entered.release()
        assert self.release.wait(60)

    def list_tables(self, request: Any) -> Any:
        self._wait()
        return super().list_tables(request)

    def count_table_rows(self, request: Any) -> Any:
        self._wait()
        raise ServiceUnavailableError("Let go.")


@pytest.fixture
def stuck(root: str) -> Iterator[Stuck]:
    Stuck.release, Stuck.entered = threading.Event(), threading.Semaphore(0)
    yield Stuck(root=root)
    Stuck.release.set()


@contextmanager
def asking(url: str, path: str, times: int, headers: dict[str, str] | None = None) -> Iterator[list[int]]:
    """So many requests at the same time; their statuses are there when the block ends."""
    statuses: list[int] = []

    def ask() -> None:
        verb = "GET" if path.endswith("list") else "POST"
        statuses.append(httpx.request(verb, f"{url}{path}", headers=headers, timeout=60).status_code)

    threads = [threading.Thread(target=ask) for _ in range(times)]
    for thread in threads:
        thread.start()
    yield statuses
    for thread in threads:
        thread.join()


def test_health_answers_while_every_thread_is_busy(serve: Serve, stuck: Stuck) -> None:
    url = serve(Settings(limits=Limits(threads=2)), namespace=stuck).url
    with asking(url, "/v1/namespace/%24/table/list", 4), asking(url, "/v1/table/t/count_rows", 4):
        for _ in range(4):
            assert stuck.entered.acquire(timeout=30)
        for page in ("/health/live", "/health/ready", "/metrics", "/openapi.json"):
            assert httpx.get(f"{url}{page}", timeout=20).status_code == 200
        stuck.release.set()


def test_one_caller_cannot_take_all_places_from_the_others(serve: Serve, stuck: Stuck) -> None:
    keys = [{"x-api-key": create_key(stuck.store, SystemClock(), "admin", [])[1]} for _ in range(2)]
    url = serve(Settings(limits=Limits(running_per_caller=2)), namespace=stuck).url
    with asking(url, "/v1/namespace/%24/table/list", 2, keys[0]) as statuses:
        for _ in range(2):
            assert stuck.entered.acquire(timeout=30)
        refused = httpx.get(f"{url}/v1/namespace/%24/list", headers=keys[0])
        assert (refused.status_code, refused.json()["code"]) == (429, 21)
        assert httpx.get(f"{url}/v1/namespace/%24/list", headers=keys[1]).status_code == 200
        stuck.release.set()
    assert statuses == [200, 200]
    assert httpx.get(f"{url}/v1/namespace/%24/list", headers=keys[0]).status_code == 200


def test_guesses_at_keys_are_limited_by_address_and_a_good_key_is_never_a_guess(
    serve: Serve, catalog: DirectoryNamespace
) -> None:
    good = {"x-api-key": create_key(catalog.store, SystemClock(), "reader", [])[1]}
    limits = Limits(bad_keys_burst=5, bad_keys_per_second=0.001)
    url = serve(Settings(limits=limits, proxies=("127.0.0.1",))).url
    path = f"{url}/v1/namespace/%24/list"
    elsewhere = {"x-forwarded-for": "1.2.3.4"}
    assert httpx.get(path, headers=good).status_code == 200
    statuses = [httpx.get(path, headers={"x-api-key": f"hw_{n:012}_guess"}).status_code for n in range(8)]
    assert statuses == [401] * 5 + [429] * 3
    assert httpx.get(path, headers={"authorization": "Bearer a.b.c"}).status_code == 429
    assert httpx.get(path, headers=good).status_code == 200
    assert httpx.get(path, headers={"x-api-key": "guess", **elsewhere}).status_code == 401


def test_without_a_configured_proxy_a_forwarded_address_opens_no_new_account(
    serve: Serve, catalog: DirectoryNamespace
) -> None:
    create_key(catalog.store, SystemClock(), "reader", [])
    url = serve(Settings(limits=Limits(bad_keys_burst=3, bad_keys_per_second=0.001))).url
    statuses = [
        httpx.get(f"{url}/v1/table", headers={"x-api-key": "guess", "x-forwarded-for": f"1.2.3.{n}"}).status_code
        for n in range(5)
    ]
    assert statuses == [401] * 3 + [429] * 2


def test_what_is_taken_is_given_back_and_no_more_is_taken_than_there_is() -> None:
    running = Running(total=3, per_caller=2)
    running.enter("a")
    running.enter("a")
    with pytest.raises(ThrottlingError):
        running.enter("a")
    running.enter("b")
    with pytest.raises(ServiceUnavailableError):
        running.enter("c")
    running.leave("a")
    running.enter("c")

    quota = Quota(total=100, per_caller=60)
    first, second, third = Holding(quota, "a"), Holding(quota, "b"), Holding(quota, "c")
    first.grow_to(50)
    first.grow_to(60)
    first.grow_to(10)
    with pytest.raises(ThrottlingError):
        first.grow_to(61)
    second.grow_to(40)
    with pytest.raises(ServiceUnavailableError):
        third.grow_to(1)
    first.give_back()
    first.give_back()
    third.grow_to(60)
    assert quota.held == 100


def test_buckets_remember_a_bounded_number_of_names() -> None:
    buckets = Buckets(0.001, 1, SystemClock())
    for number in range(20_000):
        buckets.take(str(number))
    assert buckets.is_empty("19999")
    assert not buckets.is_empty("0")


def test_a_reader_is_refused_before_its_body_is_taken_in(serve: Serve, catalog: DirectoryNamespace) -> None:
    reader = create_key(catalog.store, SystemClock(), "reader", [])[1]
    url = serve().url
    batch = "/v1/table/batch-commit"
    for path in (
        "/v1/table/t/insert",
        "/v1/table/t/create",
        "/v1/table/t/merge_insert?on=id",
        "/v1/table/t/drop",
        batch,
    ):
        with connected(url) as raw:
            head = (
                f"POST {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {reader}\r\ncontent-length: 200000000\r\n\r\n"
            )
            raw.sendall(head.encode())  # and not one byte of the body
            answer = raw.recv(65536)
            while b"}" not in answer and (more := raw.recv(65536)):  # head and body may come apart
                answer += more
        assert (b" 403 " in answer, b'"code":15' in answer) == (True, True), (path, answer)


def test_a_refused_body_is_not_spooled_however_much_is_sent(
    serve: Serve, catalog: DirectoryNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_file(*args: Any) -> Any:
        raise AssertionError("a refused body was spooled")

    monkeypatch.setattr("headwater.rest.body.tempfile.TemporaryFile", no_file)
    headers = {"x-api-key": create_key(catalog.store, SystemClock(), "reader", [])[1]}
    pieces = (b"x" * 65536 for _ in range(400))
    answer = httpx.post(f"{serve().url}/v1/table/t/insert", content=pieces, headers=headers, timeout=60)
    assert answer.status_code == 403


def test_bodies_have_a_quota_in_all_and_for_each_caller(serve: Serve, catalog: DirectoryNamespace) -> None:
    keys = [create_key(catalog.store, SystemClock(), "admin", [])[1] for _ in range(3)]
    url = serve(Settings(limits=Limits(spooled=3_000_000, spooled_per_caller=2_000_000))).url

    def begin(held: ExitStack, key: str, size: int) -> socket.socket:
        raw = held.enter_context(connected(url))
        head = f"POST /v1/table/t/create HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\ncontent-length: {size}\r\n"
        raw.sendall(f"{head}expect: 100-continue\r\n\r\n".encode())
        return raw

    with ExitStack() as held:
        assert b" 100 " in begin(held, keys[0], 1_900_000).recv(1000)
        assert b" 429 " in begin(held, keys[0], 200_000).recv(1000)
        assert b" 100 " in begin(held, keys[1], 900_000).recv(1000)
        assert b" 503 " in begin(held, keys[2], 500_000).recv(1000)
    status = 503
    while status == 503:  # until the server sees that they are gone
        key = {"x-api-key": keys[2]}
        status = httpx.post(f"{url}/v1/table/t/create", content=bytes(1_500_000), headers=key).status_code
    assert status == 400


def test_limits_and_quotas_count_what_a_body_unpacks_to(serve: Serve) -> None:
    zeros = pa.table({"z": pa.array([0] * 1_000_000, pa.int64())})
    body = ipc(zeros, pa.ipc.IpcWriteOptions(compression="zstd"))
    assert len(body) < 100_000
    cases = [(Limits(arrow_body=4_000_000), 413, 13), (Limits(spooled_per_caller=4_000_000), 429, 21)]
    for limits, status, code in cases:
        url = serve(Settings(limits=limits)).url
        answer = httpx.post(f"{url}/v1/table/t/create", content=body, timeout=60)
        assert (answer.status_code, answer.json()["code"]) == (status, code)
        assert httpx.get(f"{url}/v1/namespace/%24/table/list").json() == {"tables": []}
    url = serve(Settings(limits=Limits(arrow_body=9_000_000, spooled_per_caller=9_000_000))).url
    assert httpx.post(f"{url}/v1/table/t/create", content=body, timeout=60).status_code == 200
