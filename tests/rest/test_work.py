"""Data work in disposable workers: the same answers, and a bomb costs one worker and one clear error."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import lance_namespace as api
import pyarrow as pa
import pytest

from headwater import Catalog, DirectoryNamespace, MetastoreNamespace
from headwater.errors import ConcurrentModificationError
from headwater.names import ObjectId
from headwater.namespace.abilities import abilities_of
from headwater.rest.auth.access import OWNER
from headwater.rest.call import Call
from headwater.rest.coding import make_request
from headwater.rest.dispatch import host
from headwater.rest.extensions import ALL_ROUTES
from headwater.rest.page.catalog_questions import QUESTIONS
from headwater.rest.routes import PLACES, Answer, BodyKind, WorkPlace
from headwater.rest.server import RunningServer, bind, create_app
from headwater.rest.settings import Limits, Settings
from headwater.rest.work import HOST, InWorkers
from headwater.workers import Host, Pool, WorkerLimits
from tests.rest.processes import ServeProcess
from tests.rest.samples import PEOPLE, ipc

MIB = 1 << 20
OPENER = "headwater.cli.serving:open_served"
# Nothing in it is forbidden, and no list of functions will ever be complete.
BOMB = f"concat({', '.join(['text'] * 5000)})"


class Worked:
    """A server whose data work is done in a pool of workers."""

    def __init__(self, root: str) -> None:
        namespace = DirectoryNamespace(root=root)
        Catalog(namespace).create_table("people", PEOPLE)
        texts = pa.table({"id": range(20_000), "text": [f"{number:01000}" for number in range(20_000)]})
        Catalog(namespace).create_table("texts", texts)
        self.pool = Pool(Host(HOST, [OPENER, root, {}]), WorkerLimits(memory=768 * MIB, seconds=60, most=2))
        self.pool.warm()
        settings = Settings(limits=Limits(in_memory_body=64 * 1024))
        app = create_app(namespace, settings, work=InWorkers(self.pool, namespace))
        self.server = RunningServer(app, bind("127.0.0.1", 0))
        self.catalog = Catalog(self.server.url)
        self.http = httpx.Client(base_url=self.server.url, timeout=60)

    def close(self) -> None:
        self.http.close()
        self.server.stop()
        self.pool.close()


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worked]:
    made = Worked(str(tmp_path_factory.mktemp("worked") / "lake"))
    yield made
    made.close()


def query(worked: Worked, table: str, **fields: Any) -> httpx.Response:
    return worked.http.post(f"/v1/table/{table}/query", json={"k": 0, "vector": None, **fields})


def without_chunks(body: bytes) -> bytes:
    """Return a body without the lengths of its chunks."""
    found = []
    while size := int(body[: body.index(b"\r\n")], 16):
        start = body.index(b"\r\n") + 2
        found.append(body[start : start + size])
        body = body[start + size + 2 :]
    return b"".join(found)


def test_readers_that_do_not_read_hold_no_worker(worked: Worked) -> None:
    """Eight clients ask two workers for 20 MB each and read nothing: a ninth is answered, and they lose nothing."""
    soon = Limits().write_idle_seconds / 2
    host, _, port = worked.server.url.removeprefix("http://").partition(":")
    body = b'{"k": 0, "vector": null}'
    head = f"POST /v1/table/texts/query HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(body)}\r\n\r\n"
    clients = []
    try:
        for _ in range(8):
            clients.append(socket.socket())
            clients[-1].settimeout(soon)
            clients[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            clients[-1].connect((host, int(port)))
            clients[-1].sendall(head.encode() + body)
        for client in clients:
            client.recv(1)  # each has been answered, and none is read any further
        counted = worked.http.post("/v1/table/people/count_rows", json={}, timeout=soon)
        assert counted.json() == PEOPLE.num_rows
        parts = [clients[-1].recv(MIB)]
        while not parts[-1].endswith(b"\r\n0\r\n\r\n"):
            parts.append(clients[-1].recv(MIB))
        assert without_chunks(b"".join(parts).partition(b"\r\n\r\n")[2]) == query(worked, "texts").content
    finally:
        for client in clients:
            client.close()


def test_everyday_calls_answer_as_ever(worked: Worked) -> None:
    catalog = worked.catalog
    made = catalog.create_table("everyday", [{"id": n, "v": [float(n), 1.0], "s": "a"} for n in range(300)])
    made.append([{"id": 300, "v": [1.0, 2.0], "s": "b"}])
    made.append(pa.table({"id": range(301, 20_301), "s": ["c" * 20] * 20_000}))  # spooled: it goes as a file
    made.upsert([{"id": 0, "s": "z"}], on="id")
    made.delete("id = 1")
    assert made.count() == 20_300
    assert made.count("s = 'z'") == 1
    namespace: Any = catalog.namespace
    namespace.update_table(api.UpdateTableRequest(id=["everyday"], updates=[["s", "'y'"]], predicate="id = 2"))
    assert made.count("s = 'y'") == 1
    index = api.CreateTableIndexRequest(id=["everyday"], column="id", index_type="BTREE")
    namespace.create_table_scalar_index(index)
    assert namespace.get_table_stats(api.GetTableStatsRequest(id=["everyday"])).num_rows == 20_300
    answer = query(worked, "everyday", filter="id < 4", columns={"column_names": ["id"]})
    assert set(pa.ipc.open_file(answer.content).read_all()["id"].to_pylist()) == {0, 2, 3}
    plan = worked.http.post("/v1/table/everyday/explain_plan", json={"query": {"k": 1, "vector": None}})
    assert plan.status_code == 200


def test_refusals_keep_their_codes(worked: Worked) -> None:
    assert query(worked, "nobody").json()["code"] == 4
    assert query(worked, "people", filter="nope = 1").json()["code"] == 12
    assert query(worked, "people", filter="(((").json()["code"] == 13
    again = worked.http.post("/v1/table/people/create", content=ipc(PEOPLE))
    assert again.json()["code"] == 5
    odd = worked.http.post("/v1/table/people/insert", content=ipc(pa.table({"id": ["x"]})))
    assert odd.json()["code"] == 20
    assert worked.http.post("/v1/table/people/insert", content=ipc(PEOPLE)[:-9]).json()["code"] == 13


def test_a_bomb_costs_one_worker_and_one_clear_error(worked: Worked) -> None:
    for columns in ({"column_aliases": {"x": BOMB}}, {"column_aliases": {"x": BOMB, "y": f"length({BOMB})"}}):
        answer = query(worked, "texts", columns=columns)
        assert answer.status_code == 400, answer.text
        assert answer.json()["code"] == 13
        assert "memory" in answer.json()["error"]
        assert worked.http.get("/health/live").status_code == 200
        assert worked.catalog["people"].count() == 3
    count = worked.http.post("/v1/table/texts/count_rows", json={"predicate": f"length({BOMB}) = 1"})
    assert count.json()["code"] == 13
    change = worked.http.post("/v1/table/texts/update", json={"updates": [["text", BOMB]]})
    assert change.json()["code"] in (13, 17)
    assert worked.catalog["texts"].count() == 20_000


def test_the_worker_of_a_client_that_left_is_ended(worked: Worked) -> None:
    worked.catalog["texts"].count()
    killed = worked.pool.killed
    body = b'{"k":0,"vector":null}'
    head = f"POST /v1/table/texts/query HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", int(worked.server.url.rpartition(":")[2]))) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(head.encode() + body)
        client.recv(1000)
    for _ in range(500):
        if worked.pool.killed > killed and not worked.pool._busy:
            return
        time.sleep(0.02)
    raise AssertionError("the worker works on")


def test_operations_on_names_need_no_worker(tmp_path: Path) -> None:
    """A pool that cannot start a worker is never asked."""
    namespace = DirectoryNamespace(root=str(tmp_path))
    app = create_app(namespace, work=InWorkers(Pool(Host("nowhere:nothing", [])), namespace))
    with RunningServer(app, bind("127.0.0.1", 0)) as server:
        catalog = Catalog(server.url)
        catalog.create_namespace("a.b")
        assert catalog.namespaces("a") == ["b"]
        assert catalog.tree()
        with pytest.raises(Exception, match="unexpectedly"):
            catalog.create_table("t", PEOPLE)


IN_SERVER = {route.operation for route in ALL_ROUTES if route.runs in (WorkPlace.SERVER, WorkPlace.LOOKUP)}


def test_every_place_names_an_operation_that_is_there() -> None:
    known = {route.operation for route in ALL_ROUTES} | set(QUESTIONS)
    assert {operation for operations in PLACES.values() for operation in operations} <= known


def test_no_operation_that_takes_sql_or_rows_or_gives_rows_is_done_in_the_server() -> None:
    taking = {"predicate", "filter", "updates", "new_columns", "on", "query"}
    for route in ALL_ROUTES:
        if route.body is BodyKind.ARROW or route.answer is Answer.ARROW:
            assert route.operation not in IN_SERVER
        model = getattr(api, route.request_model, None)
        if model is not None and set(model.model_fields) & taking and route.operation != "UpdateFieldMetadata":
            assert route.operation not in IN_SERVER, route.operation


def test_a_served_catalog_survives_a_bomb_and_its_workers_end_with_it(tmp_path: Path) -> None:
    root = str(tmp_path / "lake")
    Catalog(root).create_table("texts", pa.table({"id": range(10_000), "text": ["x" * 1000] * 10_000}))
    with ServeProcess(root, "--port", "0", "--data-workers", "1", "--data-memory", "512") as served:
        ask = {"k": 0, "vector": None, "columns": {"column_aliases": {"x": BOMB}}}
        answer = httpx.post(f"{served.url}/v1/table/texts/query", json=ask, timeout=120)
        assert (answer.status_code, answer.json()["code"]) == (400, 13)
        assert Catalog(served.url)["texts"].count() == 10_000
        children = Path(f"/proc/{served.process.pid}/task/{served.process.pid}/children").read_text().split()
        assert children
        status, _, _ = served.stop()
        assert status == 0
    assert not [pid for pid in children if os.path.exists(f"/proc/{pid}/exe")]


class HostedHere:
    """In place of a pool of workers: the object that a worker hosts, in this process."""

    limits = WorkerLimits()

    def __init__(self, root: str) -> None:
        self._hosted = host(OPENER, root, {})
        self.left: list[bool] = []

    def run(self, method: str, told: Any, body: bytes, *args: Any, **options: Any) -> Any:
        self.left.append(told["leaves"])
        found = getattr(self._hosted, method)(told, pa.py_buffer(body))
        return found if isinstance(found, dict) else list(found)


def test_the_server_commits_a_landing_with_its_answer_and_the_worker_makes_it_again_after_a_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace = MetastoreNamespace(root=str(tmp_path))
    table = Catalog(namespace).create_stream_table("t", PEOPLE.schema, keys="id", partition_by=["name"])
    pool, metastore = HostedHere(str(tmp_path)), abilities_of(namespace).metastore
    assert metastore is not None
    work = InWorkers(cast(Pool, pool), namespace)
    route = next(each for each in ALL_ROUTES if each.operation == "UpsertIntoStreamTable")

    def upsert(token: str) -> Any:
        request = make_request(route, {"id": ["t"], "token": token})
        return work.respond(Call(route, ObjectId(("t",)), "$", request, OWNER, body=ipc(PEOPLE)))["position"]

    first = upsert("1")
    assert first == table.position == PEOPLE.num_rows  # a delta for each partition: the last one counts
    assert (upsert("1"), pool.left) == (first, [True, True])  # a repeat has nothing to commit
    commit = metastore.commit_saved
    refusals = iter([ConcurrentModificationError("It has evolved.")])

    def refuse_once(saved: bytes) -> list[int]:
        for refusal in refusals:
            raise refusal
        return commit(saved)

    monkeypatch.setattr(metastore, "commit_saved", refuse_once)
    assert upsert("2") == table.position == 2 * PEOPLE.num_rows
    assert pool.left == [True, True, True, False]
    assert table.count() == PEOPLE.num_rows
