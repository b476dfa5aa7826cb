"""What a statement has read is a table, not a name: one that got the name since is another, however many versions or
positions it has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from headwater.catalog import Catalog
from headwater.config import open_resolved, resolve
from headwater.errors import ConcurrentModificationError, InvalidTableStateError
from headwater.rest.server import start_in_thread
from headwater.spark.calls import ask
from headwater.spark.following import log_of
from headwater.spark.fresh import LAKE, lake_option
from headwater.spark.stream_writes import is_at, write_events
from headwater.spark.wire_values import WireTable

KEY = "a-key-for-this-test"
COLUMNS = {"id": "bigint", "n": "bigint"}
Reached = dict[str, str]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Catalog, Reached]]:
    root = str(tmp_path_factory.mktemp("identity") / "a lake")
    catalog = Catalog(root, impl="metastore")
    server = start_in_thread(open_resolved(resolve(root, {"impl": "metastore"})), api_key=KEY)
    yield catalog, {"uri": server.url, "token": KEY, LAKE: lake_option(root, {})}
    server.stop()


@pytest.fixture(params=["near", "afar"])
def session(served: tuple[Catalog, Reached], request: pytest.FixtureRequest) -> tuple[Catalog, Reached, str]:
    """A catalog, how a session reaches it, by its root or by a server, and a namespace of the test's own."""
    catalog, reached = served
    catalog.create_namespace(request.param, exist_ok=True)
    return catalog, reached if request.param == "near" else {"uri": reached["uri"], "token": KEY}, request.param


def loaded(reached: Reached, space: str, name: str) -> Any:
    return ask("load_table", catalog=reached, id=[space, name])["table"]


def test_a_table_that_was_made_anew_or_moved_in_is_not_the_one_that_a_statement_has_read(
    session: tuple[Catalog, Reached, str],
) -> None:
    catalog, reached, space = session

    def stream(name: str, n: int) -> None:
        catalog.create_stream_table(f"{space}.{name}", COLUMNS, keys=["id"]).upsert([{"id": 1, "n": n}])

    for name in ("own", "other"):
        stream(name, 1)
    catalog.create_table(f"{space}.plain", [{"id": 3, "n": 3}])
    known = {name: loaded(reached, space, name) for name in ("own", "other", "plain")}
    own = msgspec.convert(known["own"], WireTable)
    rows = write_events(own, pa.table({"id": [9], "n": [9]}).to_reader(), None)

    def commit(*reads: str, has_read: bool = False) -> None:
        asked = {"table": known["own"], "command": "insert", "upserted": rows, "has_read": has_read}
        ask("commit_events", catalog=reached, **asked, reads=[known[name] for name in reads])

    catalog.rename_table(f"{space}.plain", f"{space}.away")
    catalog.create_table(f"{space}.plain", [{"id": 3, "n": 4}])
    with pytest.raises(ConcurrentModificationError, match=r"plain was changed"):
        commit("plain")
    catalog.drop_table(f"{space}.plain")
    catalog.rename_table(f"{space}.away", f"{space}.plain")
    commit("plain", "other")
    catalog.drop_table(f"{space}.other")
    stream("other", 2)
    with pytest.raises(ConcurrentModificationError, match=r"other was changed"):
        commit("other")
    assert catalog[f"{space}.own"].count() == 2
    catalog.drop_table(f"{space}.own")
    stream("own", 1)
    for has_read in (True, False):
        with pytest.raises(ConcurrentModificationError):
            commit(has_read=has_read)
    with pytest.raises(ConcurrentModificationError, match="another table"):
        log_of(own).kept()
    assert catalog[f"{space}.own"].count() == 1


def test_a_checkpoint_of_a_query_is_of_the_table_that_it_has_read(session: tuple[Catalog, Reached, str]) -> None:
    catalog, reached, space = session

    def call(op: str, **more: Any) -> Any:
        asked = {"table": loaded(reached, space, "log"), "checkpoint": "c", "options": {"protect": "false"}}
        return ask(op, catalog=reached, **asked, changes=True, **more)

    def made() -> Any:
        stream = catalog.create_stream_table(f"{space}.log", COLUMNS)
        stream.append([{"id": 1, "n": 1}])
        return stream

    log, begun = made(), call("stream_initial")
    ends = call("stream_latest", start=begun)
    log.append([{"id": 2, "n": 2}])
    assert (
        call("stream_latest", start=ends)["position"] == call("stream_latest", start={"position": 1})["position"] == 2
    )
    catalog.drop_table(f"{space}.log")
    made()
    for start in (begun, ends):
        with pytest.raises(InvalidTableStateError, match="with a new checkpoint"):
            call("stream_latest", start=start)


@pytest.mark.parametrize("impl", ["metastore", "dir"])
def test_a_checkpoint_over_a_plain_table_is_of_the_table_that_it_has_read(tmp_path: Path, impl: str) -> None:
    catalog = Catalog(str(tmp_path), impl=impl)
    make(catalog, 2)
    server = start_in_thread(open_resolved(resolve(str(tmp_path), {"impl": impl})), api_key=KEY)
    reached = {"uri": server.url, "token": KEY}

    def call(op: str, **more: Any) -> Any:
        table = ask("load_table", catalog=reached, id=["t"])["table"]
        asked = {"table": table, "checkpoint": "c", "options": {"protect": "false"}, "changes": False}
        return ask(op, catalog=reached, **asked, **more)

    begun = call("stream_initial")
    ends = call("stream_latest", start=begun)
    assert call("stream_latest", start=ends) == ends
    catalog["t"].append([{"id": 9}])
    new = call("stream_latest", start=ends)
    old = call("stream_latest", start={"version": 2})  # as checkpoints were before
    assert new == old
    assert (begun["version"], ends["version"], new["version"]) == (2, 2, 3)
    for versions in (1, 2, 5):
        catalog.drop_table("t")
        make(catalog, versions)
        for start in (begun, ends, new):
            with pytest.raises(InvalidTableStateError, match="with a new checkpoint"):
                call("stream_latest", start=start)
    server.stop()


def make(catalog: Catalog, versions: int) -> None:
    """A plain table with so many versions."""
    catalog.create_table("t", [{"id": 0}])
    for number in range(1, versions):
        catalog["t"].append([{"id": number}])


def test_the_address_of_a_table_is_compared_with_its_folder_however_it_is_written() -> None:
    for uri, root in (
        ("file:///a%20lake/x.lance", "/a lake"),
        ("/a lake/x.lance", "file:///a%20lake/"),
        ("s3://lake/at/x.lance", "s3://lake/at"),
        ("s3://other/name/x.lance", "/mnt/the/same"),
    ):
        assert is_at(uri, root, "x.lance")
        assert not is_at(uri, root, "y.lance")
    assert not is_at("s3://lake/at/deep/x.lance", "s3://lake/at", "x.lance")
