"""`headwater serve`: the line it prints, its logs, its workers, how it stops, and what survives when it is killed."""

from __future__ import annotations

import itertools
import json
import signal
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import lance_namespace as api
import pytest

from headwater import DirectoryNamespace, open_catalog
from headwater.cli.main import main
from headwater.clock import SystemClock
from headwater.errors import InvalidInputError
from headwater.rest.auth.keys import create_key
from headwater.rest.serve import WINDOW_MS, Restarts
from headwater.rest.settings import Settings
from tests.rest.processes import ServeProcess
from tests.rest.samples import PEOPLE, Certificate, Serve, ipc

pytestmark = pytest.mark.xdist_group("serve")


def test_it_prints_one_line_with_the_url_once_it_answers_and_stops_cleanly(root: str) -> None:
    with ServeProcess(root, "--port", "0", fresh=True) as server:
        assert httpx.get(f"{server.url}/health/ready").json() == {"status": "ready"}
        httpx.post(f"{server.url}/v1/namespace/a/create", json={})
        status, out, err = server.stop()
    assert (status, out) == (0, "")
    lines = [json.loads(line) for line in err.splitlines()]
    created = next(line for line in lines if line["operation"] == "CreateNamespace")
    assert created["status"] == 200
    assert {"request_id", "ms", "path", "caller", "code", "time_ms"} <= set(created)


def test_a_profile_names_what_to_serve(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "headwater.toml").write_text('[catalog.lake]\nroot = "./here"\n')
    with ServeProcess("lake", "--port", "0", cwd=tmp_path) as server:
        assert httpx.post(f"{server.url}/v1/namespace/a/create", json={}).status_code == 200
    open_catalog(str(tmp_path / "here")).namespace_exists(api.NamespaceExistsRequest(id=["a"]))


def test_properties_are_those_of_connect(root: str) -> None:
    with ServeProcess(root, "--port", "0", "--property", "manifest_enabled=false") as server:
        answer = httpx.post(f"{server.url}/v1/namespace/a/create", json={})
        assert (answer.status_code, answer.json()["code"]) == (406, 0)


def test_a_process_that_refuses_to_start_says_why_and_ends(root: str) -> None:
    with ServeProcess(root, "--host", "0.0.0.0", "--port", "0") as server:
        code, out, err = server.stop()
    assert (code, server.line, out) == (6, "", "")
    assert "--insecure" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("--port", "0", "--property", "manifest_enable=true"), 5, "manifest_enabled"),
        (("--port", "0", "--workers", "0"), 5, "--workers"),
        (("--port", "0", "--tls-cert", "cert.pem"), 5, "--tls-key"),
        (("--port", "0", "--jwt-issuer", "x"), 5, "--jwt-audience"),
        (("--port", "0", "--jwt-issuer", "x", "--jwt-audience", "y", "--jwt-jwks", "http://e.example/k"), 5, "https"),
    ],
)
def test_it_refuses_to_start_when_told_nonsense(
    root: str, arguments: tuple[str, ...], status: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", root, *arguments]) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert "Traceback" not in err


@pytest.mark.long  # that they are counted is shown in a second by the test below
def test_workers_that_keep_dying_end_the_server_with_a_failure(root: str) -> None:
    with ServeProcess(root, "-", module="tests.rest.dying") as server:
        status, out, err = server.stop(0)
    assert (status, out) == (1, "")
    assert server.url.startswith("http://127.0.0.1:")
    assert "workers keep dying" in err
    assert "Traceback" not in err


def test_restarts_are_counted_in_a_window_of_time() -> None:
    class Hands(SystemClock):
        now = 0

        def now_ms(self) -> int:
            return self.now

    clock = Hands()
    restarts = Restarts(2, clock)
    assert [restarts.take() for _ in range(3)] == [True, True, False]
    clock.now = WINDOW_MS
    assert [restarts.take() for _ in range(3)] == [True, True, False]


def test_it_speaks_tls_when_told_to(root: str, certificate: Certificate) -> None:
    trust = ssl.create_default_context(cafile=certificate.cert)
    told = ("--port", "0", "--workers", "2", "--tls-cert", certificate.cert, "--tls-key", certificate.key)
    with ServeProcess(root, *told, "--no-access-log") as server:
        assert server.url.startswith("https://127.0.0.1:")
        assert httpx.get(f"{server.url}/health/ready", verify=trust).json() == {"status": "ready"}
        with pytest.raises(httpx.TransportError):
            httpx.get(server.url.replace("https:", "http:") + "/health/live")
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/health/live")
        assert server.stop()[0] == 0


def test_a_certificate_that_cannot_be_used_is_refused_before_anything_is_served(
    serve: Serve, certificate: Certificate, tmp_path: Path
) -> None:
    (tmp_path / "junk.pem").write_text("junk")
    for cert, key in (("nowhere.pem", certificate.key), (certificate.cert, str(tmp_path / "junk.pem"))):
        with pytest.raises(InvalidInputError, match="PEM"):
            serve(Settings(tls_cert=cert, tls_key=key))
    url = serve(Settings(tls_cert=certificate.cert, tls_key=certificate.key)).url
    assert httpx.get(f"{url}/health/live", verify=ssl.create_default_context(cafile=certificate.cert)).is_success


def test_logs_hold_no_key(root: str) -> None:
    catalog = DirectoryNamespace(root=root)
    _, key = create_key(catalog.store, SystemClock(), "admin", [])
    secret = key.rsplit("_", 1)[1]
    with ServeProcess(root, "--port", "0") as server:
        for headers in ({"x-api-key": key}, {"authorization": f"Bearer {key}"}, {"x-api-key": f"{key}x"}):
            httpx.get(f"{server.url}/v1/namespace/%24/list", headers=headers)
            httpx.post(f"{server.url}/v1/namespace/a/create", json={"identity": {"api_key": key}}, headers=headers)
        _, _, err = server.stop()
    assert "ListNamespaces" in err
    assert secret not in err


def test_a_request_in_flight_is_finished_before_the_server_stops(root: str) -> None:
    with ServeProcess(root, "--port", "0", "--no-access-log") as server:
        with httpx.Client(base_url=server.url, timeout=60) as http:
            http.post("/v1/table/t/create", content=ipc(PEOPLE))
            answers: list[int] = []
            body = ipc(PEOPLE)

            def slow() -> None:
                def pieces() -> Iterator[bytes]:
                    yield body[:100]
                    time.sleep(1.0)
                    yield body[100:]

                answer = httpx.post(f"{server.url}/v1/table/t/insert", content=pieces(), timeout=60)
                answers.append(answer.status_code)

            thread = threading.Thread(target=slow)
            thread.start()
            time.sleep(0.4)
        status, _, _ = server.stop()
        thread.join()
    assert (status, answers) == (0, [200])
    assert DirectoryNamespace(root=root).count_table_rows(api.CountTableRowsRequest(id=["t"])).count == 6


@pytest.mark.long
def test_several_workers_and_several_servers_serve_one_catalog(root: str) -> None:
    with (
        ServeProcess(root, "--port", "0", "--workers", "2", "--no-access-log") as many,
        ServeProcess(root, "--port", "0", "--no-access-log") as one,
    ):
        numbers = itertools.count()
        refused: list[str] = []

        def create(url: str) -> None:
            for _ in range(8):
                answer = httpx.post(f"{url}/v1/namespace/n{next(numbers):03}/create", json={}, timeout=60)
                if answer.status_code != 200:
                    refused.append(answer.text)

        threads = [threading.Thread(target=create, args=(url,)) for url in (many.url, many.url, one.url, one.url)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert refused == []
        expected = [f"n{number:03}" for number in range(32)]
        for url in (many.url, one.url, many.url):
            assert httpx.get(f"{url}/v1/namespace/%24/list").json()["namespaces"] == expected
        time.sleep(2.5)
        metrics = httpx.get(f"{many.url}/metrics").text
        counted = next(line for line in metrics.splitlines() if line.startswith("headwater_commits_total{"))
        assert counted.endswith(" 16")
        assert many.stop()[0] == 0
        assert one.stop()[0] == 0


@pytest.mark.long
def test_workers_end_with_a_parent_that_is_killed(root: str) -> None:
    with ServeProcess(root, "--port", "0", "--workers", "2", "--no-access-log") as server:
        assert httpx.get(f"{server.url}/health/live").status_code == 200
        server.stop(signal.SIGKILL)  # its output ends when the last of them is gone
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/health/live")


@pytest.mark.parametrize("rounds", [1, pytest.param(8, marks=pytest.mark.long)])
def test_every_acknowledged_write_is_there_after_the_server_is_killed(root: str, rounds: int) -> None:
    acknowledged: set[str] = set()
    names = (f"n{number:05}" for number in itertools.count())
    lock = threading.Lock()
    rows = 3
    for round in range(rounds):
        with ServeProcess(root, "--port", "0", "--no-access-log") as server:
            if round == 0:
                httpx.post(f"{server.url}/v1/table/t/create", content=ipc(PEOPLE), timeout=60)
            stop = threading.Event()
            inserted = [0]

            def create(url: str, stop: threading.Event) -> None:
                with httpx.Client(base_url=url, timeout=30) as http:
                    while not stop.is_set():
                        with lock:
                            name = next(names)
                        try:
                            if http.post(f"/v1/namespace/{name}/create", json={}).status_code == 200:
                                acknowledged.add(name)
                        except httpx.TransportError:
                            return

            def insert(url: str, stop: threading.Event, inserted: list[int]) -> None:
                with httpx.Client(base_url=url, timeout=30) as http:
                    while not stop.is_set():
                        try:
                            if http.post("/v1/table/t/insert", content=ipc(PEOPLE)).status_code == 200:
                                inserted[0] += 3
                        except httpx.TransportError:
                            return

            threads = [threading.Thread(target=create, args=(server.url, stop)) for _ in range(4)]
            threads.append(threading.Thread(target=insert, args=(server.url, stop, inserted)))
            for thread in threads:
                thread.start()
            time.sleep(1.5)
            server.stop(signal.SIGKILL)
            stop.set()
            for thread in threads:
                thread.join()
            rows += inserted[0]
    assert acknowledged
    with ServeProcess(root, "--port", "0", "--no-access-log") as server:
        there = set(httpx.get(f"{server.url}/v1/namespace/%24/list").json()["namespaces"])
        assert acknowledged <= there
        counted = int(httpx.post(f"{server.url}/v1/table/t/count_rows", json={}).json())
        assert rows <= counted <= rows + 3 * rounds
        assert httpx.post(f"{server.url}/v1/namespace/after/create", json={}).status_code == 200


def test_a_profile_may_say_which_tokens_are_believed(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "jwks.json").write_text('{"keys": []}')
    (tmp_path / "headwater.toml").write_text(
        '[catalog.lake]\nroot = "./here"\njwt_issuer = "https://issuer.example"\njwt_audience = "lake"\n'
        f'jwt_jwks = "{tmp_path / "jwks.json"}"\n'
    )
    with ServeProcess("lake", "--port", "0", "--no-access-log", cwd=tmp_path) as server:
        assert httpx.get(f"{server.url}/v1/namespace/%24/list").status_code == 401
        refused = httpx.get(f"{server.url}/v1/namespace/%24/list", headers={"authorization": "Bearer a.b.c"})
        assert (refused.status_code, refused.json()["code"]) == (401, 16)
        assert httpx.get(f"{server.url}/health/ready").status_code == 200
