"""Mistakes of a first day: each is told in one line, with what is wrong and what to do, and changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from headwater import Catalog
from headwater.clock import SystemClock
from headwater.errors import PermissionDeniedError
from headwater.store import open_store, probe
from tests.cli.running import Cli


@pytest.fixture
def orders(lake: Cli) -> Cli:
    """With a stream table, into which a source has given a row."""
    stream = Catalog(lake.root).create_stream_table("raw.orders", {"id": "int64", "at": "int64"}, "id", "at")
    stream.upsert([{"id": 1, "at": 1}], source="shop")
    return lake


def test_a_file_in_place_of_a_catalog_is_told_as_one(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("x")
    cli = Cli(str(tmp_path / "notes.txt"), capfd)
    for line in (["ls"], ["create", "t", "--schema", "id int"], ["init"]):
        status, _, told = cli(*line)
        assert (status, "is a file: name the folder of a catalog" in told) == (5, True), told


def test_a_file_with_no_known_suffix_is_told_by_what_suffixes_there_are(lake: Cli, tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("id,name\n1,x\n")
    status, _, told = lake("insert", "prod.users", str(tmp_path / "rows.txt"))
    assert (status, ".parquet" in told, "metadata bytes" in told) == (5, True, False)


@pytest.mark.parametrize(
    ("line", "status", "says"),
    [
        ("publish raw.ordres", 3, "Did you mean raw.orders?"),
        ("publish", 5, "Name the stream tables"),
        ("undo raw.ordres", 3, "does not exist"),
        ("undo raw.orders", 5, "--source"),
        ("snapshot drop monday", 3, "There is no snapshot 'monday'"),
        ("serve --port 99999", 2, "from 0 to 65535"),
        ("ls --limit -1", 2, "from 0 on"),
        ("delete prod.users id=1", 2, "'id=1' is one word too many: delete takes at most 1 word"),
    ],
)
def test_a_wrong_line_is_told_what_is_wrong_before_anything_is_asked(
    orders: Cli, line: str, status: int, says: str
) -> None:
    verb, *words = line.split()
    slot = Catalog(orders.root).slot
    found, _, told = orders(verb, *words)
    assert (found, says in told, "terminal" in told) == (status, True, False), told
    assert Catalog(orders.root).slot == slot


def test_a_glance_at_a_stream_table_tells_its_keys_its_order_and_what_waits(orders: Cli) -> None:
    lines = orders.ok("show", "raw.orders").splitlines()
    assert {"no version yet", "keys id, ordered by at"} <= set(lines)
    assert "1 delta is not published yet: headwater publish raw.orders" in lines
    assert [orders.json("show", "raw.orders")[key] for key in ("keys", "sequence")] == [["id"], ["at"]]


def test_what_is_not_there_is_said(lake: Cli) -> None:
    assert lake("snapshot") == (0, "", "headwater: there are no snapshots; `headwater snapshot add NAME` takes one.\n")
    assert lake.ok("collect", "--dry-run") == "readable: from commit 0 on\nremoved: nothing would be removed\n"


def test_a_missing_pipeline_file_is_told_without_numbers_of_the_system(capfd: pytest.CaptureFixture[str]) -> None:
    assert Cli("nosuch.toml", capfd)("run") == (5, "", "headwater: There is no pipeline file nosuch.toml.\n")


class Stranger(BaseHTTPRequestHandler):
    """A server that is no catalog."""

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def stranger() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Stranger) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_server_that_is_no_catalog_and_one_that_is_not_there_are_told_apart(
    stranger: str, capfd: pytest.CaptureFixture[str]
) -> None:
    status, _, told = Cli(stranger, capfd)("ls")
    assert (status, f"{stranger} answers, but not as a catalog does" in told) == (7, True), told
    status, _, told = Cli("http://127.0.0.1:9", capfd)("ls")
    assert (status, told.endswith("cannot be reached: Connection refused.\n")) == (7, True), told


def test_a_root_that_may_not_be_written_is_told_without_the_name_of_a_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(tmp_path))

    def refused(*_: object) -> None:
        raise PermissionDeniedError("The storage does not permit access to '.headwater/probe-1'.")

    monkeypatch.setattr(type(store), "put", refused)
    with pytest.raises(PermissionDeniedError, match="does not permit to write there: check who may") as told:
        probe(store, SystemClock())
    assert "probe" not in str(told.value)
