"""Rights on table versions over REST: the header that chooses one names a table, and an undo may drop one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

from headwater import Catalog, MetastoreNamespace
from headwater.clock import SystemClock
from headwater.rest.auth.keys import create_key
from headwater.rest.call import TABLE_VERSION
from headwater.rest.server import start_in_thread
from headwater.tables.write.arrow import to_stream

ROWS = pa.table({"id": [1], "name": ["x"]})


@dataclass
class Served:
    http: httpx.Client
    catalog: Catalog
    namespace: MetastoreNamespace

    def key(self, role: str, *scope: str) -> dict[str, str]:
        return {"x-api-key": create_key(self.namespace.store, SystemClock(), role, list(scope))[1]}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    namespace = MetastoreNamespace(root=str(tmp_path / "lake"))
    catalog = Catalog(namespace)
    for name in ("a.s", "hr.secret"):
        catalog.create_stream_table(name, ROWS.schema, keys="id").publish()
    create_key(namespace.store, SystemClock(), "admin", [])
    with start_in_thread(namespace) as running, httpx.Client(base_url=running.url, timeout=60) as http:
        yield Served(http, catalog, namespace)


@pytest.mark.parametrize(
    "path",
    [f"v1/{path}" for path in ("table/a$s/count_rows", "table/a$s/exists", "namespace/a/describe")]
    + ["headwater/v1/find", "headwater/v1/log"],
)
def test_the_header_of_a_version_does_not_tell_which_tables_of_others_exist(served: Served, path: str) -> None:
    """The header named any table of the catalog: its errors told which of them exist, and with which versions."""
    key = served.key("writer", "a")
    named = ["hr$secret=1", "hr$secret=9", "hr$no=1", "no$no=1"]

    def status(chosen: str) -> int:
        headers = {**key, TABLE_VERSION: chosen}
        return served.http.post(f"/{path}", json={"locator": "a|s"}, headers=headers).status_code

    assert {status(each) for each in named} == {403}
    assert status("a$s=1") == 200


def test_the_same_change_of_another_version_is_another_change(served: Served) -> None:
    """Its Idempotency-Key gave the answer of the active version, and no row was written."""
    served.catalog["a.s"].table_versions.create("2", schema=ROWS.schema, keys="id")
    headers = {**served.key("writer"), "Idempotency-Key": "once"}
    path, body = "/headwater/v1/table/a$s/stream/upsert", to_stream(ROWS.to_reader())
    assert served.http.post(path, content=body, headers=headers).status_code == 200
    other = served.http.post(path, content=body, headers={**headers, TABLE_VERSION: "a$s=2"})
    assert (other.status_code, other.json()["code"]) == (400, 13)
    assert served.http.post(path, content=body, headers=headers).headers["idempotency-replayed"] == "true"


def test_an_undo_that_drops_a_version_needs_the_right_to_drop(served: Served) -> None:
    served.catalog["a.s"].table_versions.create("2", schema=ROWS.schema, keys="id")
    txn = list(served.catalog.log())[-1].txn
    editor, writer = served.key("editor", "a"), served.key("writer", "a")
    assert served.http.post("/headwater/v1/undo", json={"txn": txn}, headers=editor).status_code == 403
    assert list(served.catalog["a.s"].table_versions) == ["1", "2"]
    assert served.http.post("/headwater/v1/undo", json={"txn": txn}, headers=writer).status_code == 200


@pytest.mark.parametrize("path", ["quarantine", "quarantine/retry", "quarantine/drop"])
def test_a_quarantine_that_is_elsewhere_now_needs_the_rights_of_that_place(served: Served, path: str) -> None:
    """A transaction that began before the move had its rows: only the read asked for the right."""
    served.catalog["a.s"].ingest([{"id": "no number", "name": "x"}], format="rows")
    key = served.key("writer", "a")
    begun = served.http.post("/headwater/v1/transaction/begin", json={}, headers=key).json()["transaction"]
    served.catalog.rename_table("a.s__quarantine", "hr.q")
    answer = served.http.post(
        f"/headwater/v1/table/a$s/stream/{path}", json={}, headers={**key, "x-headwater-transaction": begun}
    )
    assert answer.status_code == 403
