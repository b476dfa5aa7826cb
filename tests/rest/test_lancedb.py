"""LanceDB's everyday calls through the server, over catalogs that manage versions and catalogs that do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import lancedb
import pytest
from lance_namespace import LanceNamespace
from lancedb.index import FTS, BTree, IvfPq

from headwater import DirectoryNamespace, MetastoreNamespace
from headwater.rest.extensions import ALL_ROUTES
from headwater.rest.routes import BodyKind, Route
from tests.rest.samples import Serve

ROWS = [{"id": n, "text": f"word{n} common", "vector": [float(n), 1.0]} for n in range(300)]
NEW = [{"id": 300, "text": "later", "vector": [0.5, 0.5]}]


@pytest.fixture(params=["unmanaged", "managed", "metastore"])
def db(request: pytest.FixtureRequest, serve: Serve, tmp_path: Path) -> Any:
    managed = str(request.param == "managed").lower()
    root = str(tmp_path / "db")
    catalog: LanceNamespace = DirectoryNamespace(root=root, table_version_management=managed)
    if request.param == "metastore":
        catalog = MetastoreNamespace(root=root)
    return lancedb.connect_namespace("rest", {"uri": serve(namespace=catalog).url})


def test_everyday_calls_of_lancedb_work_through_the_server(db: Any) -> None:
    db.create_namespace(["a"])
    db.create_table("v", ROWS, namespace_path=["a"])
    table = db.open_table("v", namespace_path=["a"])
    table.add(NEW)
    changed = [{**NEW[0], "text": "changed"}, {"id": 301, "text": "new", "vector": [0.4, 0.4]}]
    merged = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(changed)
    assert (merged.num_updated_rows, merged.num_inserted_rows, table.count_rows()) == (1, 1, 302)
    table.update(where="id = 1", values={"text": "first"})
    table.delete("id = 2")
    table.create_index("id", config=BTree())
    table.create_index("text", config=FTS())
    table.create_index("vector", config=IvfPq(num_partitions=1, num_sub_vectors=1))
    assert sorted(index.name for index in table.list_indices()) == ["id_idx", "text_idx", "vector_idx"]
    assert [row["id"] for row in table.search("word7", query_type="fts").limit(2).to_list()] == [7]
    assert {row["id"] for row in table.search([9.0, 1.0]).refine_factor(10).limit(1).to_list()} == {9}
    table.tags.create("one", 1)
    table.checkout("one")
    assert table.count_rows() == 300
    table.checkout_latest()
    db.rename_table("v", "w", cur_namespace_path=["a"], new_namespace_path=["a"])
    assert list(db.list_tables(namespace_path=["a"]).tables) == ["w"]
    again = db.open_table("w", namespace_path=["a"])
    assert (again.count_rows(), list(again.tags.list())) == (301, ["one"])
    again.restore(1)
    assert again.count_rows() == 300
    db.drop_table("w", namespace_path=["a"])
    assert list(db.list_tables(namespace_path=["a"]).tables) == []


def test_null_and_nothing_are_an_empty_object_on_every_route(http: httpx.Client) -> None:
    for route in ALL_ROUTES:
        if route.verb == "POST" and route.body is not BodyKind.ARROW:
            asked = [
                _ask(http, route, f"n{number}", body) for number, body in enumerate((b"{}", b"", b"null", b" null\n"))
            ]
            assert asked == [asked[0]] * 4, (route.operation, asked)


def _ask(http: httpx.Client, route: Route, name: str, body: bytes) -> tuple[int, int | None]:
    answer = http.post(route.path.replace("{id}", name).replace("{index_name}", "i"), content=body)
    return answer.status_code, answer.json().get("code") if answer.status_code >= 400 else None
