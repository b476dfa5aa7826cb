"""Back ends of others behind our server and command line: pylance's own, and classes that answer in part."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import lance_namespace as api
import lancedb
import pyarrow as pa
import pytest
from lance.namespace import DirectoryNamespace, RestNamespace

import headwater
from headwater.adapter import AdaptedNamespace, check_answers, open_adapted
from headwater.cli import main
from headwater.config import connect, open_catalog, resolve
from headwater.errors import (
    InvalidInputError,
    LanceNamespaceError,
    NamespaceAlreadyExistsError,
    UnsupportedOperationError,
)
from headwater.rest.server import RunningServer, start_in_thread
from headwater.web import page
from tests.adapter.backends import Shelf
from tests.rest.processes import ServeProcess

SHELF = "tests.adapter.backends.Shelf"
ROWS = pa.table({"id": [1, 2], "v": pa.array([[1.0, 0.0], [0.0, 1.0]], pa.list_(pa.float32(), 2))})


def ask(url: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """One request as curl sends it: its status, and the answer as JSON or text."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request) as found:
            status, text = found.status, found.read().decode()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode()
    return status, json.loads(text) if text.startswith("{") else text


@pytest.fixture(scope="module")
def shelf() -> Iterator[RunningServer]:
    with start_in_thread(Shelf(), face=page) as server:
        yield server


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/v1/table/books$b1/rename", {"new_table_name": "x"}, 0),
        ("/v1/table/books$b1/query", {"k": 1, "vector": {}}, 19),
        ("/v1/table/books$b1/tags/list", {}, 19),
        ("/v1/table/books$none/describe", {}, 4),
        ("/v1/table/none$b1/describe", {}, 1),
        ("/v1/table/books$b1/declare", {}, 5),
        ("/v1/namespace/books/create", {}, 2),
        ("/v1/namespace/a$b/create", {}, 13),
        ("/v1/namespace/books/drop", {}, 3),
        ("/v1/namespace/none/drop", {}, 1),
        ("/v1/namespace/none/describe", {}, 1),
    ],
)
def test_a_failure_of_a_back_end_is_the_error_that_it_means(
    shelf: RunningServer, path: str, body: Any, code: int
) -> None:
    status, answer = ask(shelf.url, path, body)
    assert (answer["code"], status != 500) == (code, True), answer


def test_what_cannot_be_told_is_the_back_ends_failure_and_not_a_secret(shelf: RunningServer) -> None:
    namespace = shelf.app.namespace
    assert isinstance(namespace, AdaptedNamespace)
    namespace.adapted.shelves["books"]["cursed"] = ""  # type: ignore[attr-defined]
    try:
        status, answer = ask(shelf.url, "/v1/table/books$cursed/describe", {})
    finally:
        del namespace.adapted.shelves["books"]["cursed"]  # type: ignore[attr-defined]
    assert (status, answer["code"]) == (503, 17)
    assert "hunter2" not in str(answer)


def test_lists_are_paged_details_left_out_and_existence_is_told(shelf: RunningServer) -> None:
    names, token = [], ""
    while True:
        status, answer = ask(shelf.url, f"/v1/namespace/books/table/list?limit=2&page_token={token}")
        assert status == 200
        names += answer["tables"]
        assert len(answer["tables"]) <= 2
        token = answer.get("page_token") or ""
        if not token:
            break
    assert names == ["b0", "b1", "b2", "b3", "b4"]
    assert ask(shelf.url, "/v1/table/books$b1/describe?load_detailed_metadata=true", {})[1]["properties"]
    assert ask(shelf.url, "/v1/table/books$b1/exists", {})[0] == 200
    assert ask(shelf.url, "/v1/table/books$b9/exists", {})[0] == 404
    assert ask(shelf.url, "/v1/namespace/books/exists", {})[0] == 200
    told = ask(shelf.url, "/headwater/v1/capabilities")[1]
    assert "ListTables" in told["operations"]
    assert "CreateTableTag" in told["operations"]  # done on the Lance table itself
    assert "CreateTableVersion" not in told["operations"]


@pytest.mark.parametrize(
    "path",
    ["/", "/n/books", "/t/books/b1", *(f"/t/books/b1?view={view}" for view in
     ("rows", "versions", "indices", "files", "use", "streams", "history", "lineage")),
     "/search?q=b1", "/search?q=red", "/log", "/deleted", "/snapshots", "/server", "/n/none", "/t/books/none"],
)  # fmt: skip
def test_no_page_over_a_back_end_in_part_is_a_failure(shelf: RunningServer, path: str) -> None:
    status, text = ask(shelf.url, path, Accept="text/html")
    assert status < 500, text
    if path.startswith("/t/books/b1") and status == 200:
        assert "b1" in text


def test_search_looks_at_names_and_properties(shelf: RunningServer) -> None:
    assert "/t/books/b1" in ask(shelf.url, "/search?q=b1", Accept="text/html")[1]
    assert "/t/books/b3" in ask(shelf.url, "/search?q=colour", Accept="text/html")[1]
    assert "/n/empty" in ask(shelf.url, "/search?q=ANN", Accept="text/html")[1]


def test_pylances_own_directory_is_served_to_its_clients(tmp_path: Path) -> None:
    with start_in_thread(DirectoryNamespace(root=str(tmp_path / "lake"))) as server:
        client = RestNamespace(uri=server.url)
        client.create_namespace(api.CreateNamespaceRequest(id=["prod"]))
        lance.write_dataset(ROWS, namespace_client=client, table_id=["prod", "t"])
        lance.write_dataset(ROWS, namespace_client=client, table_id=["prod", "t"], mode="append")
        assert lance.dataset(namespace_client=client, table_id=["prod", "t"]).count_rows() == 4
        db = lancedb.connect_namespace("rest", {"uri": server.url})
        db.create_table("more", ROWS, namespace_path=["prod"])
        assert db.list_tables(namespace_path=["prod"]).tables == ["more", "t"]
        assert db.open_table("more", namespace_path=["prod"]).search([1.0, 0.0]).limit(1).to_list()[0]["id"] == 1
        catalog = headwater.Catalog(connect("rest", {"uri": server.url}))
        assert catalog["prod.t"].count() == 4
        assert catalog["prod.t"].versions()[-1].version == 2
        assert ask(server.url, "/v1/namespace/prod/table/list")[1]["tables"] == ["more", "t"]
        status, answer = ask(server.url, "/headwater/v1/log", {})
        assert (status, answer["code"]) == (406, 0)


def test_a_class_is_served_with_keys_that_stand_elsewhere(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    keys = str(tmp_path / "keys")
    assert main(["token", "create", "--keys", keys, "--role", "reader"]) == 0
    key = capfd.readouterr().out.strip()
    with ServeProcess("--impl", SHELF, "--property", "floor=3", "--keys", keys, "--port", "0") as server:
        assert f"serves {SHELF} at" in server.line
        assert ask(server.url, "/v1/namespace/$/list")[0] == 401
        mine = {"x-api-key": key}
        assert ask(server.url, "/v1/namespace/$/list", **mine)[1]["namespaces"] == ["empty", "books"]
        assert ask(server.url, "/v1/namespace/x/create", {}, **mine)[0] == 403
    assert main(["token", "list", "--keys", keys, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)[0]["role"] == "reader"


def test_the_command_line_looks_at_a_back_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = f'[catalog.shelf]\nimpl = "{SHELF}"\nroot = "s3://nobody/looks/here"\n'
    (tmp_path / "headwater.toml").write_text(text)
    assert main(["ls", "shelf", "books"]) == 5
    assert "HEADWATER_CONFIG" in capfd.readouterr().err
    monkeypatch.setenv("HEADWATER_CONFIG", str(tmp_path / "headwater.toml"))
    assert main(["ls", "shelf", "books", "--limit", "2"]) == 0
    assert capfd.readouterr().out == "b0\nb1\n"
    assert main(["find", "shelf", "colour", "--limit", "1"]) == 0
    assert "colour=red" in capfd.readouterr().out
    for verb in (["history", "books"], ["tags", "books.b1"], ["log"]):
        assert main(["-c", "shelf", *verb]) == (4 if verb[0] == "tags" else 5)  # no Lance table is at its place
        assert len(capfd.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("workers", ["0", pytest.param("1", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("line", "exit", "says"),
    [
        (["--impl", "tests.adapter.backends.Mute"], 7, "does not answer: Could not connect to the service"),
        (["--impl", "nonsense"], 5, "not a kind of catalog"),
        (["--impl", "not_there.at_all.Thing"], 5, "not_there"),
        (["--impl", "tests.adapter.backends.Missing"], 5, "no class Missing"),
        (["--impl", "pathlib.Path"], 5, "not an implementation"),
        (["--impl", "lance.namespace.DirectoryNamespace"], 5, "cannot be opened with these properties (none)"),
    ],
)
def test_what_is_wrong_with_a_back_end_is_one_clear_error_at_start(
    line: list[str], exit: int, says: str, workers: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *line, "--port", "0", "--data-workers", workers]) == exit
    out, err = capfd.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert says in err


def test_what_is_wrong_with_a_back_end_in_a_worker_is_the_same_error(capfd: pytest.CaptureFixture[str]) -> None:
    """As people start it, with workers: those say why they did not open it."""
    assert main(["serve", "--impl", "lance.namespace.DirectoryNamespace", "--port", "0"]) == 5
    out, err = capfd.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert "cannot be opened with these properties (none)" in err


def test_a_package_that_is_missing_is_named() -> None:
    code = (
        "import sys; sys.modules['lance_namespace_impls'] = None\n"
        "from headwater.adapter import find_class\n"
        "from headwater.errors import UnsupportedOperationError\n"
        "import importlib.util; importlib.util.find_spec = lambda name: None\n"
        "try: find_class('glue')\n"
        "except UnsupportedOperationError as error: print(error)\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'headwater[impls]'" in told.stdout
    with pytest.raises(UnsupportedOperationError, match="hive"):
        open_adapted("hive3", {"uri": "thrift://127.0.0.1:1"})


def test_secrets_of_a_back_end_may_stand_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("hunter2\n")
    monkeypatch.setenv("SHELF_TOKEN", "abc")
    given = {"auth_token": "env:SHELF_TOKEN", "secret": f"file:{tmp_path / 'key'}", "root": "file:///lake"}
    found = open_adapted(SHELF, given)
    assert found.adapted.properties == {"auth_token": "abc", "secret": "hunter2", "root": "file:///lake"}  # type: ignore[attr-defined]
    assert isinstance(open_catalog(None, {"impl": SHELF}), AdaptedNamespace)
    assert resolve(None, {"impl": SHELF}).shown == SHELF
    with pytest.raises(InvalidInputError, match="not set"):
        open_adapted(SHELF, {"token": "env:NOT_SET_ANYWHERE"})


def test_every_operation_of_the_interface_is_passed_on() -> None:
    adapted = AdaptedNamespace(Shelf())
    for name in (name for name in dir(api.LanceNamespace) if not name.startswith("_")):
        assert name in vars(AdaptedNamespace), name
    with pytest.raises(LanceNamespaceError):
        adapted.create_table(api.CreateTableRequest(id=["books", "x"]), b"")


def test_a_back_end_that_wants_a_warehouse_says_so_when_it_is_asked() -> None:
    with pytest.raises(InvalidInputError, match="endpoint"):
        open_adapted("iceberg", {})
    namespace = open_adapted("iceberg", {"endpoint": "http://127.0.0.1:9", "max_retries": "0"})
    check_answers(namespace)
    with pytest.raises(InvalidInputError, match="at least the warehouse"):
        namespace.list_namespaces(api.ListNamespacesRequest(id=[]))


def test_rows_are_read_and_changed_where_a_back_end_keeps_names_only(tmp_path: Path) -> None:
    folder = str(tmp_path / "b1.lance")
    lance.write_dataset(ROWS, folder)
    shelf = Shelf()
    shelf.describe_table = lambda request: api.DescribeTableResponse(location=folder)  # type: ignore[method-assign]
    catalog = headwater.Catalog(AdaptedNamespace(shelf))
    assert catalog.level == 2
    table = catalog["books.b1"]
    table.append(ROWS)
    table.delete("id = 1")
    assert (table.count(), table.to_arrow()["id"].to_pylist()) == (2, [2, 2])
    catalog.create_namespace("books", exist_ok=True)
    with pytest.raises(NamespaceAlreadyExistsError):
        catalog.create_namespace("books")
    assert catalog.namespace.drop_namespace(api.DropNamespaceRequest(id=["none"], mode="Skip")).properties is None
