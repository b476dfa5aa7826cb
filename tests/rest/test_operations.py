"""Running the server: health, metrics, request ids, timeouts, pages mounted beside it."""

from __future__ import annotations

import shutil
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import lance
import lance_namespace as api
import pytest
from starlette.responses import PlainTextResponse
from starlette.routing import Route as PageRoute

from headwater import Catalog, DirectoryNamespace
from headwater.clock import SystemClock
from headwater.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    UnsupportedOperationError,
)
from headwater.names import ObjectId
from headwater.rest.auth.keys import create_key
from headwater.rest.client import connect_rest
from headwater.rest.reply import context_headers
from headwater.rest.server import RunningServer, bind, create_app, start_in_thread
from headwater.rest.settings import Limits, Settings
from headwater.rest.status_pages import Metrics, add, render
from headwater.store import memory_store
from tests.rest.samples import PEOPLE, Serve, ipc


def test_it_is_alive_and_ready(http: httpx.Client) -> None:
    assert http.get("/health/live").json() == {"status": "live"}
    assert http.get("/health/ready").json() == {"status": "ready"}


def test_it_is_not_ready_when_the_catalog_does_not_answer(serve: Serve, root: str) -> None:
    class Silent(DirectoryNamespace):
        def list_namespaces(self, request: Any) -> Any:
            raise OSError("the disk is gone")

    answer = httpx.get(f"{serve(namespace=Silent(root=root)).url}/health/ready")
    assert (answer.status_code, answer.json()["code"]) == (503, 17)
    assert "disk" not in answer.text


def test_metrics_count_requests_commits_and_conflicts(serve: Serve, root: str) -> None:
    class Busy(DirectoryNamespace):
        def drop_table(self, request: Any) -> Any:
            raise ConcurrentModificationError("another was first")

    with httpx.Client(base_url=serve(namespace=Busy(root=root)).url) as http:
        http.post("/v1/namespace/a/create", json={})
        http.post("/v1/namespace/a/create", json={})
        http.post("/v1/table/t/drop")
        http.get("/nowhere")
        text = http.get("/metrics").text
    for line in (
        'headwater_requests_total{operation="CreateNamespace",status="200",code=""} 1',
        'headwater_requests_total{operation="CreateNamespace",status="409",code="2"} 1',
        'headwater_requests_total{operation="other",status="404",code="0"} 1',
        'headwater_commits_total{operation="CreateNamespace"} 1',
        'headwater_conflicts_total{operation="DropTable"} 1',
        'headwater_request_seconds_count{operation="CreateNamespace"} 2',
        'headwater_request_seconds_bucket{operation="CreateNamespace",le="+Inf"} 2',
        "# TYPE headwater_retries_total counter",
    ):
        assert line in text


def test_counts_of_several_processes_add_up() -> None:
    first, second = Metrics(), Metrics()
    first.count("A", True, 200, None, 0.002)
    second.count("A", True, 200, None, 3.0)
    second.count("B", False, 404, 4, 99.0)
    text = render(add([first.counts(1), second.counts(2)]))
    assert 'headwater_requests_total{operation="A",status="200",code=""} 2' in text
    assert 'headwater_request_seconds_sum{operation="A"} 3.002000' in text
    assert "headwater_retries_total 3" in text


def test_a_request_keeps_its_id_unless_it_is_not_one(http: httpx.Client) -> None:
    assert http.get("/health/live", headers={"x-request-id": "abc-1.2:3"}).headers["x-request-id"] == "abc-1.2:3"
    for bad in ("a b", "x" * 200, "<script>", ""):
        given = http.get("/health/live", headers={"x-request-id": bad}).headers["x-request-id"]
        assert given
        assert given != bad
    first, second = (http.get("/health/live").headers["x-request-id"] for _ in range(2))
    assert first != second


def test_a_request_that_takes_too_long_is_given_up_and_a_change_is_called_unknown(serve: Serve, root: str) -> None:
    release = threading.Event()

    class Slow(DirectoryNamespace):
        def list_tables(self, request: Any) -> Any:
            release.wait(30)
            return super().list_tables(request)

        def drop_table(self, request: Any) -> Any:
            release.wait(30)
            return super().drop_table(request)

    url = serve(Settings(limits=Limits(request_seconds=0.3)), namespace=Slow(root=root)).url
    read = httpx.get(f"{url}/v1/namespace/%24/table/list")
    assert (read.status_code, read.json()["code"]) == (503, 17)
    change = httpx.post(f"{url}/v1/table/t/drop")
    assert (change.status_code, change.json()["code"]) == (503, 17)
    assert "look before repeating" in change.json()["error"]
    release.set()


def test_a_slow_catalog_does_not_keep_others_from_being_answered(serve: Serve, root: str) -> None:
    """Blocking work is off the event loop."""
    release = threading.Event()

    class Slow(DirectoryNamespace):
        def list_tables(self, request: Any) -> Any:
            release.wait(30)
            return super().list_tables(request)

    url = serve(namespace=Slow(root=root)).url
    waiting = threading.Thread(target=lambda: httpx.get(f"{url}/v1/namespace/%24/table/list", timeout=60))
    waiting.start()
    assert httpx.get(f"{url}/health/live").status_code == 200
    assert httpx.post(f"{url}/v1/namespace/a/create", json={}).status_code == 200
    release.set()
    waiting.join()


def test_a_page_mounted_beside_the_protocol_is_served(catalog: DirectoryNamespace) -> None:
    app = create_app(catalog, pages=[PageRoute("/page", lambda request: PlainTextResponse("hello"))])
    with RunningServer(app, bind("127.0.0.1", 0)) as server:
        assert httpx.get(f"{server.url}/page").text == "hello"
        assert httpx.get(f"{server.url}/v1/namespace/%24/list").status_code == 200
        missing = httpx.get(f"{server.url}/v1/nothing")
        assert (missing.status_code, missing.json()["code"]) == (404, 0)
        foreign = httpx.get(f"{server.url}/page", headers={"origin": "http://evil.example"})
        assert (foreign.status_code, foreign.json()["code"]) == (403, 15)


def test_context_headers_of_an_answer_travel_and_unsafe_ones_do_not() -> None:
    context = {
        "header.x-cost": "3",
        "header.content-length": "9",
        "header.bad name": "x",
        "header.x-split": "a\r\nset-cookie: b",
        "other": "y",
    }
    assert context_headers(context) == ((b"x-cost", b"3"),)


@pytest.mark.parametrize("folders", ["false", "true"])
def test_look_ups_see_every_change_at_once_also_those_of_another_process(tmp_path: Any, folders: str) -> None:
    """Answers are kept only while the catalog's state is the current one."""
    mine = DirectoryNamespace(root=str(tmp_path), dir_listing_enabled=folders)
    other = DirectoryNamespace(root=str(tmp_path), dir_listing_enabled=folders)
    with start_in_thread(mine) as server, httpx.Client(base_url=server.url) as http:
        for number in range(5):
            other.create_namespace(api.CreateNamespaceRequest(id=["a"], properties={"n": str(number)}))
            for _ in range(3):
                assert http.post("/v1/namespace/a/describe", json={}).json()["properties"] == {"n": str(number)}
                assert http.post("/v1/namespace/a/exists", json={}).status_code == 200
            other.drop_namespace(api.DropNamespaceRequest(id=["a"]))
            assert http.post("/v1/namespace/a/exists", json={}).status_code == 404
            assert http.post("/v1/namespace/a/describe", json={}).status_code == 404


def test_look_ups_in_compatibility_mode_are_from_memory_for_rows_and_never_for_folders(tmp_path: Any) -> None:
    catalog = DirectoryNamespace(root=str(tmp_path))
    catalog.create_namespace(api.CreateNamespaceRequest(id=["a"]))
    catalog.declare_table(api.DeclareTableRequest(id=["a", "row"]))
    lance.write_dataset(PEOPLE, tmp_path / "folder.lance")
    state = catalog.abilities().current_state
    assert state is not None
    catalog.namespace_exists(api.NamespaceExistsRequest(id=["a"]))
    assert state(ObjectId(("a",))) is not None
    assert state(ObjectId(("a", "row"))) is not None
    assert state(ObjectId(("folder",))) is None
    with start_in_thread(catalog) as server, httpx.Client(base_url=server.url) as http:
        for name in ("folder", "a%24row"):
            assert [http.post(f"/v1/table/{name}/exists").status_code for _ in range(3)] == [200] * 3
        shutil.rmtree(tmp_path / "folder.lance")
        assert http.post("/v1/table/folder/exists").status_code == 404
        catalog.deregister_table(api.DeregisterTableRequest(id=["a", "row"]))
        assert http.post("/v1/table/a%24row/exists").status_code == 404


def test_look_ups_are_kept_apart_by_caller(tmp_path: Any) -> None:
    from headwater.clock import SystemClock
    from headwater.rest.auth.keys import create_key

    catalog = DirectoryNamespace(root=str(tmp_path), dir_listing_enabled="false")
    catalog.create_namespace(api.CreateNamespaceRequest(id=["a"]))
    catalog.create_table(api.CreateTableRequest(id=["a", "t"]), ipc(PEOPLE))
    may = {"x-api-key": create_key(catalog.store, SystemClock(), "reader", ["a"])[1]}
    may_not = {"x-api-key": create_key(catalog.store, SystemClock(), "reader", ["b"])[1]}
    with start_in_thread(catalog) as server, httpx.Client(base_url=server.url) as http:
        for _ in range(3):
            assert http.post("/v1/table/a%24t/describe", json={}, headers=may).status_code == 200
            assert http.post("/v1/table/a%24t/describe", json={}, headers=may_not).status_code == 403


def test_a_catalog_without_a_place_of_its_own_is_served_too(serve: Serve) -> None:
    class Bare(api.LanceNamespace):
        def namespace_id(self) -> str:
            return "bare"

    url = serve(namespace=Bare(), store=memory_store()).url
    answer = httpx.get(f"{url}/v1/namespace/%24/list")
    assert (answer.status_code, answer.json()["code"]) == (406, 0)
    assert httpx.get(f"{url}/headwater/v1/capabilities").json()["operations"] == []


@pytest.mark.parametrize("bad", ["0", "-1", "x"])
def test_limits_of_lists_are_checked_for_every_list(http: httpx.Client, bad: str) -> None:
    http.post("/v1/table/t/create", content=ipc(PEOPLE))
    for verb, path in (("GET", "/v1/table"), ("POST", "/v1/table/t/tags/list"), ("POST", "/v1/table/t/version/list")):
        answer = http.request(verb, path, params={"limit": bad})
        assert (answer.status_code, answer.json()["code"]) == (400, 13)


def test_altering_a_namespaces_properties_is_an_extension(http: httpx.Client, server: RunningServer) -> None:
    http.post("/v1/namespace/a/create", json={"properties": {"p": "1", "q": "2"}})
    path = "/headwater/v1/namespace/a/properties"
    answer = http.post(path, json={"properties": {"q": "3", "r": "4"}, "removed": ["p"]})
    assert (answer.status_code, answer.json()) == (200, {"properties": {"q": "3", "r": "4"}})
    assert http.post("/v1/namespace/a/describe", json={}).json()["properties"] == {"q": "3", "r": "4"}
    missing = http.post("/headwater/v1/namespace/nope/properties", json={"properties": {"q": "3"}})
    assert (missing.status_code, missing.json()["code"]) == (404, 1)
    for wrong in (
        {"properties": {"q": 3}},
        {"removed": "q"},
        {"id": ["b"]},
        {"properties": {"q": ""}, "removed": ["q"]},
    ):
        refused = http.post(path, json=wrong)
        assert (refused.status_code, refused.json()["code"]) == (400, 13), wrong
    assert 'headwater_commits_total{operation="AlterNamespaceProperties"} 1' in http.get("/metrics").text
    client = connect_rest({"uri": server.url})
    altered = client.alter_namespace_properties({"id": ["a"], "properties": {"x": "y"}, "removed": ["q"]})
    assert altered.properties == {"r": "4", "x": "y"}
    with pytest.raises(NamespaceNotFoundError):
        client.alter_namespace_properties({"id": ["a", "nope"], "properties": {"x": "y"}})


def test_old_versions_are_cleaned_up_and_a_table_optimized_by_an_extension(
    http: httpx.Client, server: RunningServer
) -> None:
    http.post("/v1/table/t/create", content=ipc(PEOPLE))
    for _ in range(3):
        http.post("/v1/table/t/insert?mode=overwrite", content=ipc(PEOPLE))
    path = "/headwater/v1/table/t/clean_up"
    for wrong in ({}, {"keep_versions": -1}, {"keep_versions": "x"}, {"keep_days": -0.5}):
        refused = http.post(path, json=wrong)
        assert (refused.status_code, refused.json()["code"]) == (400, 13), refused.text
    done = http.post(path, json={"keep_versions": 2, "grace_seconds": 0}).json()
    assert (done["manifests"], done["files"] >= 2, done["bytes"] > 0) == (2, True, True)
    client = connect_rest({"uri": server.url})
    assert client.clean_up_table_versions(["t"], keep_versions=1, grace_seconds=0).manifests == 1
    http.post("/v1/table/t/insert", content=ipc(PEOPLE))
    optimized = client.optimize_table(["t"], keep_versions=1, grace_seconds=0)
    assert (optimized.fragments_removed, optimized.fragments_added) == (2, 1)
    assert optimized.cleaned.manifests >= 1
    assert http.post("/v1/table/t/count_rows", json={}).json() == 2 * PEOPLE.num_rows
    missing = http.post("/headwater/v1/table/nope/optimize", json={})
    assert (missing.status_code, missing.json()["code"]) == (404, 4)


def test_what_dead_writers_left_in_a_directory_is_collected_through_a_server_by_who_may(
    server: RunningServer, catalog: DirectoryNamespace, root: str
) -> None:
    far = Catalog(server.url)
    far.create_table("kept", PEOPLE)
    left = Path(root) / "0a1b2c3d_dead" / "data" / "a.lance"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"x")
    assert far.collect().removed == (), "not yet a week old"
    told = far.collect(grace=timedelta(0), dry_run=True)
    assert ([removal.key for removal in told.removed], left.exists()) == (["0a1b2c3d_dead"], True)
    with pytest.raises(InvalidInputError, match="no history"):
        far.collect(keep=timedelta(0))
    editor, admin = (create_key(catalog.store, SystemClock(), role, [])[1] for role in ("editor", "admin"))
    with start_in_thread(catalog) as closed:
        with pytest.raises(PermissionDeniedError):
            Catalog(closed.url, **{"headers.x-api-key": editor}).collect(grace=timedelta(0))
        assert left.exists()
        keeper = Catalog(closed.url, **{"headers.x-api-key": admin})
        assert keeper.collect(grace=timedelta(0)).removed == told.removed
        assert (left.exists(), keeper.verify()) == (False, [])
        next(Path(root).glob("*kept*/data/*")).unlink()
        assert [problem.kind for problem in keeper.verify()] == ["missing_file"]


def test_a_server_without_the_extension_is_told_from_a_namespace_that_is_not_there(
    http: httpx.Client, server: RunningServer
) -> None:
    http.post("/v1/namespace/a/create", json={})
    with pytest.raises(UnsupportedOperationError, match="does not have Headwater's extension"):
        connect_rest({"uri": f"{server.url}/elsewhere"}).alter_namespace_properties({"id": ["a"]})


def test_the_exact_description_of_a_table_is_an_extension(http: httpx.Client) -> None:
    http.post("/v1/table/t/create", content=ipc(PEOPLE))
    answer = http.post("/headwater/v1/table/t/describe", json={})
    assert answer.status_code == 200, answer.text
    assert answer.headers["etag"]
    assert isinstance(answer.json(), dict)
    missing = http.post("/headwater/v1/table/nope/describe", json={})
    assert (missing.status_code, missing.json()["code"]) == (404, 4)
    http.post("/v1/table/later/declare", json={})
    declared = http.post("/headwater/v1/table/later/describe", json={})
    assert (declared.status_code, declared.json()["code"]) == (409, 19)
