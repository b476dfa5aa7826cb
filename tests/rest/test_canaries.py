"""Storage secrets never leave the server: planted ones are looked for in all it says, on every route.

"All it says" is every answer and header, every log line of any logger, and the metrics; "every route" is the table of
routes, each asked well and badly, by the owner and by a writer of one namespace.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import lance_namespace as api
import pytest

from headwater import connect
from headwater.clock import SystemClock
from headwater.errors import LanceNamespaceError
from headwater.names import object_id
from headwater.rest.auth.keys import create_key
from headwater.rest.extensions import ALL_ROUTES
from headwater.rest.routes import BodyKind, Route, RouteTarget
from headwater.rest.server import start_in_thread
from headwater.rest.settings import Settings
from headwater.tables.handle import TableHandle
from tests.rest.processes import ServeProcess
from tests.rest.samples import PEOPLE, ipc

CANARY = "cAnArY"
SECRETS = {
    "access_key_id": f"AKIA{CANARY}ONE",
    "secret_access_key": f"{CANARY}/two+%2F&sig=three",
    "session_token": f"{CANARY}four",
}
MODES: dict[str, dict[str, str]] = {
    "V1": {"manifest_enabled": "false"},
    "V2": {"dir_listing_enabled": "false"},
    "compat": {},
    "managed": {"table_version_management": "true"},
    "metastore": {},
}
DECLARE = {"declare_table": {"id": ["declared"]}}
BODIES: dict[str, dict[str, Any]] = {
    "BatchCommitTables": {"operations": [DECLARE, {"deregister_table": {"id": ["declared"]}}]},
    "BatchCreateTableVersions": {
        "entries": [{"id": ["t"], "version": 9, "manifest_path": "t.lance/_versions/9.manifest"}]
    },
    "CreateTableVersion": {"version": 9, "manifest_path": "t.lance/_versions/9.manifest"},
    "DescribeTable": {"with_table_uri": True, "load_detailed_metadata": True, "vend_credentials": True},
    "DeclareTable": {"vend_credentials": True},
    "QueryTable": {"k": 2, "vector": None, "filter": "id > 0"},
    "ExplainTableQueryPlan": {"query": {"k": 2, "vector": None}},
    "AnalyzeTableQueryPlan": {"k": 2, "vector": None},
    "UpdateTable": {"updates": [["name", "'x'"]]},
    "DeleteFromTable": {"predicate": "id = 3"},
    "CreateTableIndex": {"column": "id", "index_type": "BTREE"},
    "CreateTableScalarIndex": {"column": "id", "index_type": "BTREE"},
    "CreateTableTag": {"tag": "v1", "version": 1},
    "GetTableTagVersion": {"tag": "v1"},
    "CreateTableBranch": {"name": "side"},
    "AlterTableAddColumns": {"new_columns": [{"name": "twice", "expression": "id * 2"}]},
    "RegisterTable": {"location": "t.lance"},
    "UpdateTableSchemaMetadata": {"a": "b"},
    "DescribeTransaction": {},
}
QUERIES = {"MergeInsertIntoTable": {"on": "id", "when_matched_update_all": "true"}, "CreateTable": {"mode": "create"}}
FRESH = frozenset({"CreateTable", "DeclareTable", "CreateNamespace"})
"""Operations that make something new, under a name of their own."""
LAST = ("DropTable", "DeregisterTable", "DropNamespace")
TELLING = frozenset({"DescribeTable", "DeclareTable", "CreateTable", "BatchCommitTables"})
"""Operations whose answer, or a part of it, has `storage_options`: they must succeed, or this file proves nothing."""


class Ears:
    """All that a server says, and where."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []

    def listen(self, where: str, answer: httpx.Response) -> httpx.Response:
        self.heard.append((where, f"{answer.status_code} {answer.headers!r} {answer.content!r}"))
        return answer

    def leaks(self) -> list[str]:
        return [f"{where}: {said[:300]}" for where, said in self.heard if CANARY.lower() in said.lower()]


class Log(logging.Handler):
    def __init__(self, ears: Ears) -> None:
        super().__init__(logging.DEBUG)
        self.ears = ears

    def emit(self, record: logging.LogRecord) -> None:
        self.ears.heard.append((f"log {record.name}", f"{record.getMessage()} {record.exc_text} {record.__dict__!r}"))


@pytest.fixture
def ears() -> Iterator[Ears]:
    ears = Ears()
    log = Log(ears)
    names = ("", "headwater.access", "headwater.server", "headwater.audit", "uvicorn.error")
    kept = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).addHandler(log)
        logging.getLogger(name).setLevel(logging.INFO)
    yield ears
    for name, level in kept.items():
        logging.getLogger(name).removeHandler(log)
        logging.getLogger(name).setLevel(level)


def ask(client: httpx.Client, route: Route, id: str, body: Any) -> httpx.Response:
    path = route.path.replace("{id}", id).replace("{index_name}", "id_idx")
    query = QUERIES.get(route.operation, {})
    if route.body is BodyKind.ARROW:
        content = body if isinstance(body, bytes) else ipc(PEOPLE)
        return client.request(route.verb, path, params=query, content=content)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return client.request(route.verb, path, params=query, content=b"" if route.verb == "GET" else content)


def name_for(route: Route, flat: bool) -> str:
    if route.target is RouteTarget.NAMESPACE:
        return "%24" if flat else "made" if route.operation == "CreateNamespace" else "prod"
    if route.operation in FRESH:
        return f"made-by-{route.operation.lower()}"
    return "t" if route.target is not RouteTarget.TRANSACTION else "t%241"


def routes() -> list[Route]:
    return sorted(ALL_ROUTES, key=lambda route: (route.operation in LAST, "Drop" in route.operation))


def talk(ears: Ears, url: str, key: str, flat: bool) -> dict[str, int]:
    """Ask everything; the statuses of what was asked well, by operation."""
    told: dict[str, int] = {}
    headers = {"x-api-key": key}
    with httpx.Client(base_url=url, headers=headers, timeout=120) as client:
        for route in routes():
            id, body = name_for(route, flat), BODIES.get(route.operation, {})
            told[route.operation] = ears.listen(route.operation, ask(client, route, id, body)).status_code
            ears.listen(f"{route.operation}, no such", ask(client, route, "prod%24no", body))
            ears.listen(f"{route.operation}, bad body", ask(client, route, id, b'{"a":'))
        for path in ("/metrics", "/openapi.json", "/health/ready", "/nothing", "/v1/table/t/create?storage_options=1"):
            ears.listen(path, client.get(path))
            ears.listen(path, client.post(path, content=b"x"))
    return told


def seed(catalog: Any, flat: bool) -> None:
    catalog.create_table(api.CreateTableRequest(id=["t"]), ipc(PEOPLE))
    if not flat:
        catalog.create_namespace(api.CreateNamespaceRequest(id=["prod"]))


def opened(mode: str, root: str, storage: dict[str, str]) -> Any:
    kind = "metastore" if mode == "metastore" else "dir"
    return connect(kind, {"root": root, **MODES[mode], **{f"storage.{key}": value for key, value in storage.items()}})


def served(ears: Ears, catalog: Any, flat: bool, audit: Path) -> None:
    """Serve the catalog, ask everything as its owner, and look for the canaries."""
    seed(catalog, flat)
    _, owner = create_key(catalog.store, SystemClock(), "admin", [])
    _, writer = create_key(catalog.store, SystemClock(), "writer", ["prod"])
    with start_in_thread(catalog, settings=Settings(access_log=True, audit_log=str(audit))) as server:
        told = talk(ears, server.url, owner, flat)
        with httpx.Client(base_url=server.url, headers={"x-api-key": writer}, timeout=120) as client:
            batch = {"operations": [{"declare_table": {"id": ["prod", "x"], "vend_credentials": True}}]}
            ears.listen("scoped batch", client.post("/v1/table/batch-commit", json=batch))
            ears.listen("a stranger", httpx.get(server.url + "/metrics", headers={"x-api-key": "hw_no_no"}))
    ears.heard += [("audit log", line) for line in audit.read_text().splitlines()]
    assert ears.leaks() == []
    assert len([where for where, _ in ears.heard if where == "audit log"]) > len(ALL_ROUTES)
    assert {name: status for name, status in told.items() if name in TELLING and status >= 300} == {}
    assert any(where.startswith("log headwater.access") for where, _ in ears.heard)


@pytest.mark.parametrize("mode", MODES)
def test_no_route_of_a_local_catalog_tells_a_storage_secret(mode: str, ears: Ears, tmp_path: Path) -> None:
    served(ears, opened(mode, str(tmp_path / "lake"), SECRETS), mode == "V1", tmp_path / "audit.log")


@pytest.mark.long  # the same routes of a local catalog with such options are asked every time
@pytest.mark.parametrize("mode", MODES)
def test_no_route_of_a_catalog_on_s3_tells_a_storage_secret(
    mode: str, ears: Ears, s3_root: str, s3_options: dict[str, str], tmp_path: Path
) -> None:
    served(ears, opened(mode, s3_root, {**s3_options, **SECRETS}), mode == "V1", tmp_path / "audit.log")


class Echo(http.server.BaseHTTPRequestHandler):
    """A storage that refuses everything and, as real ones do, repeats what it was sent."""

    def refuse(self) -> None:
        token = self.headers.get("x-amz-security-token", self.path)
        said = f"<Error><Code>InvalidToken</Code><Token-0>{token}</Token-0>{dict(self.headers)!r}</Error>".encode()
        self.send_response(400)
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said if self.command != "HEAD" else b"")

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = refuse

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def echo() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


ROOTS = {
    "s3": ("s3://bucket/lake", {**SECRETS, "region": "x"}),
    "az": ("az://container/lake", {"account_name": "account", "sas_key": f"sv=2020&sig={CANARY}%2Fx&se=2030"}),
}


@pytest.mark.parametrize(("kind", "mode"), [("s3", "compat"), ("az", "V1")])
def test_a_storage_that_repeats_what_it_was_sent_is_not_quoted(kind: str, mode: str, ears: Ears, echo: str) -> None:
    root, options = ROOTS[kind]
    storage = {**options, "endpoint": echo, "allow_http": "true"}
    catalog = opened(mode, root, storage)
    server = start_in_thread(catalog, settings=Settings(catalog_keys=False))
    with server, httpx.Client(base_url=server.url, timeout=120) as client:
        ears.listen("list", client.get("/v1/namespace/%24/table/list"))
        ears.listen("describe", client.post("/v1/table/t/describe", json={"load_detailed_metadata": True}))
        ears.listen("create", client.post("/v1/table/t/create", content=ipc(PEOPLE)))
        ears.listen("ready", client.get("/health/ready"))
    handle = TableHandle(object_id(["t"]), f"{root}/t.lance", storage)
    with pytest.raises(LanceNamespaceError) as refused:
        handle.open()
    ears.heard.append(("pylance", str(refused.value)))
    assert [said for _, said in ears.heard if "400 Bad Request" in said]
    assert ears.leaks() == []


def command_lines() -> list[bytes]:
    """Those of every process of this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            found.append(path.read_bytes())
    return found


def test_a_server_process_shows_its_secret_neither_to_callers_nor_to_neighbours(
    ears: Ears, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data work is done in processes of its own: nothing in their answers, on a command line, or in a log."""
    monkeypatch.setenv("LAKE_SECRET", SECRETS["secret_access_key"])
    root, audit = str(tmp_path / "lake"), tmp_path / "audit.log"
    seed(opened("compat", root, {}), flat=False)
    property = "storage.secret_access_key=env:LAKE_SECRET"
    with ServeProcess(root, "--port", "0", "--property", property, "--audit-log", str(audit), fresh=True) as server:
        with httpx.Client(base_url=server.url, timeout=120) as client:
            ears.listen("create", client.post("/v1/table/made/create", content=ipc(PEOPLE)))
            ears.listen("describe", client.post("/v1/table/made/describe", json=BODIES["DescribeTable"]))
            ears.listen("query", client.post("/v1/table/made/query", json=BODIES["QueryTable"]))
            ears.listen("bad query", client.post("/v1/table/made/query", json={"k": 1, "vector": {}, "filter": "no()"}))
        lines = command_lines()
        assert any(property.encode() in line for line in lines)
        ears.heard += [("command line", line.decode(errors="replace")) for line in lines]
        status, out, err = server.stop()
    ears.heard += [("stdout", out), ("stderr", err), ("audit log", audit.read_text())]
    assert status == 0
    answers = [said[:3] for where, said in ears.heard if where in ("create", "describe", "query", "bad query")]
    assert answers == ["200", "200", "200", "400"]
    assert ears.leaks() == []
