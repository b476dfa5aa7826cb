"""Attacks on a served catalog with workers: each costs one worker at most, and the serving process opens no table."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

from headwater import Catalog
from headwater.errors import LanceNamespaceError
from tests.rest.processes import ServeProcess

pytestmark = pytest.mark.xdist_group("serve")
MIB = 1 << 20
SCHEMA = pa.table({"id": pa.array([], pa.int64()), "text": pa.array([], pa.string())}).schema


def nested(levels: int, words: int) -> str:
    """Chains of operators in brackets in brackets: each is short, and a planner walks all of them by recursion."""
    text = "id"
    for _ in range(levels):
        text = f"({text}{'+1' * (words // 2)})"
    return f"{text} = 1"


DEEP = nested(40, 194)
"""8 KB."""


class Attacked:
    """A server process with two workers, over a catalog with a plain table and a stream table."""

    def __init__(self, root: str) -> None:
        lake = Catalog(root, impl="metastore")
        lake.create_table("plain", pa.table({"id": range(10), "text": ["x"] * 10}))
        stream = lake.create_stream_table("stream", SCHEMA, keys=["id"])
        stream.upsert([{"id": 1, "text": "a"}])
        wide = lake.create_stream_table("wide", SCHEMA)
        wide.append(pa.table({"id": range(60_000), "text": [os.urandom(500).hex() for _ in range(60_000)]}, SCHEMA))
        self.slot = lake.slot
        told = ("--port", "0", "--no-access-log", "--data-workers", "2", "--data-memory", "1024")
        self.served = ServeProcess(root, *told, module="tests.rest.looked_at")
        self.http = httpx.Client(base_url=self.served.url, timeout=120)
        self.catalog = Catalog(self.served.url)

    def workers(self) -> list[int]:
        tasks = Path(f"/proc/{self.served.process.pid}/task").iterdir()
        return [int(pid) for task in tasks for pid in (task / "children").read_text().split()]

    def kill_workers(self) -> None:
        """All that there are; they are gone when this returns."""
        pids = self.workers()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        while any(_is_running(pid) for pid in pids):
            time.sleep(0.01)

    def memory(self) -> int:
        """What the serving process itself holds."""
        lines = Path(f"/proc/{self.served.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))

    def begin(self) -> dict[str, str]:
        begun = self.http.post("/headwater/v1/transaction/begin", json={"message": "attack"}).json()
        return {"x-headwater-transaction": begun["transaction"]}


def _is_running(pid: int) -> bool:
    """Return False for a process that can be waited for: its first thread may be gone before the others are."""
    try:
        has_ended = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        return not has_ended or len(list(Path(f"/proc/{pid}/task").iterdir())) > 1
    except OSError:
        return False


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    made = Attacked(str(tmp_path_factory.mktemp("attacked") / "lake"))
    with made.served:
        yield made
        made.http.close()
        if made.served.process.poll() is None:
            status, _, err = made.served.stop()
            assert status == 0
            assert json.loads(err.splitlines()[-1])["modules"] == []


@pytest.mark.parametrize("door", ["count", "at", "transaction", "stream query", "expect"])
def test_a_deep_predicate_is_refused_at_every_door(attacked: Attacked, door: str) -> None:
    headers = {"x-headwater-at": str(attacked.slot)} if door == "at" else {}
    if door == "transaction":
        headers = attacked.begin()
    if door == "stream query":
        answer = attacked.http.post("/headwater/v1/table/stream/stream/query", json={"filter": DEEP})
    elif door == "expect":
        asked = {"properties": {"expect.deep": DEEP}}
        answer = attacked.http.post("/headwater/v1/table/stream/stream/properties", json=asked)
    else:
        answer = attacked.http.post("/v1/table/plain/count_rows", json={"predicate": DEEP}, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, 13), answer.text
    assert attacked.http.get("/health/live").status_code == 200


@pytest.mark.long
def test_a_worker_that_is_killed_in_a_change_is_an_unknown_outcome_and_the_next_call_works(attacked: Attacked) -> None:
    attacked.catalog["plain"].count()
    answers: list[httpx.Response] = []
    ask = {"updates": [["text", "'y'"]], "predicate": "id >= 0"}
    thread = threading.Thread(target=lambda: answers.append(attacked.http.post("/v1/table/plain/update", json=ask)))
    for pid in attacked.workers():
        os.kill(pid, signal.SIGSTOP)  # whichever takes the call stands still in it
    thread.start()
    time.sleep(0.3)
    attacked.kill_workers()
    thread.join(60)
    assert (answers[0].status_code, answers[0].json()["code"]) == (503, 17), answers[0].text
    assert attacked.catalog["plain"].count() == 10


@pytest.mark.long
def test_a_stream_whose_worker_died_has_no_end_and_our_client_raises(attacked: Attacked) -> None:
    """The rows so far are not the rows: neither an HTTP client nor ours takes them for an answer."""
    url = f"{attacked.served.url}/headwater/v1/table/wide/stream/query"
    with httpx.stream("POST", url, json={}, timeout=60) as answer:
        chunks = answer.iter_raw(1 << 16)
        next(chunks)
        attacked.kill_workers()
        with pytest.raises(httpx.HTTPError):
            list(chunks)
    killer = threading.Thread(target=_kill_for_a_while, args=(attacked,))
    killer.start()
    table, raised = attacked.catalog["wide"], 0
    while killer.is_alive():
        try:
            assert table.to_arrow().num_rows == 60_000
        except (LanceNamespaceError, OSError):
            raised += 1
    assert raised
    assert attacked.catalog["plain"].count() == 10


def _kill_for_a_while(attacked: Attacked) -> None:
    for _ in range(12):
        time.sleep(0.25)
        attacked.kill_workers()


@pytest.mark.long
def test_unread_answers_take_nothing_of_the_serving_process(attacked: Attacked) -> None:
    attacked.catalog["plain"].count()
    before = attacked.memory()
    host, _, port = attacked.served.url.removeprefix("http://").partition(":")
    body = b"{}"
    head = f"POST /headwater/v1/table/wide/stream/query HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(body)}\r\n\r\n"
    clients = [socket.create_connection((host, int(port))) for _ in range(5)]
    try:
        for client in clients:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(head.encode() + body)
        clients[0].recv(100)
        time.sleep(0.5)
        assert attacked.memory() - before < 64 * MIB
        assert attacked.http.post("/v1/namespace/$/describe", json={}).status_code == 200
        assert attacked.http.get("/v1/table?limit=10").status_code == 200
    finally:
        for client in clients:
            client.close()
    assert attacked.catalog["plain"].count() == 10


@pytest.mark.long
def test_a_transaction_goes_on_in_any_worker(attacked: Attacked) -> None:
    with attacked.catalog.transaction() as tx:
        tx["plain"].append(pa.table({"id": [100], "text": ["t"]}))
        attacked.kill_workers()
        assert tx["plain"].count() == 11
        tx["stream"].upsert([{"id": 2, "text": "b"}])
    assert attacked.catalog["plain"].count() == 11
    assert attacked.catalog["stream"].count() == 2
    attacked.catalog["plain"].delete("id = 100")
    attacked.catalog["stream"].delete([{"id": 2}])
