"""Every route of ours, as nobody, as a stranger and without its one permission: refused, and nothing changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pyarrow as pa
import pytest

from headwater import Catalog, MetastoreNamespace
from headwater.clock import SystemClock
from headwater.rest.auth.keys import create_key, names_of
from headwater.rest.extensions import EXTENSIONS
from headwater.rest.routes import NOTHING, BodyKind, Permission, Route, RouteTarget
from headwater.rest.server import start_in_thread
from headwater.tables.write.arrow import to_stream

ROWS = pa.table({"id": [1], "name": ["x"]})
FOR_ALL = {
    *("Capabilities", "DescribeCaller", "ReadLog", "FollowLog", "FindObject"),
    *("BeginTransaction", "CommitTransaction", "AbortTransaction"),
}
"""What every caller may ask: each is answered as far as that caller may see, or about what is the caller's own."""
NAMED: dict[str, str] = {"AlterNamespaceProperties": "a", "RenameNamespace": "a", "Undrop": "a$gone"}
BODIES: dict[str, dict[str, Any]] = {
    "AlterNamespaceProperties": {"properties": {"k": "v"}},
    "RenameNamespace": {"new_id": ["a2"]},
    "CleanUpTableVersions": {"keep_versions": 1},
    "PublishStreamTables": {"tables": [["a", "t"]]},
    "EvolveStreamTable": {"add": {"more": "string"}},
    "SetStreamProperties": {"properties": {"late": "ignore"}},
    "CommitStreamReader": {"reader": "me", "position": 1},
    "DropStreamReader": {"reader": "me"},
    "UndoStreamIngest": {"source": "s"},
    "AddAlias": {"alias": "other"},
    "RemoveAlias": {"alias": "known"},
    "DescribeDifference": {"before": 1, "after": 2},
    "TakeSnapshot": {"name": "new"},
    "DropSnapshot": {"name": "kept"},
    "CreateNamedVersion": {"version": "2"},
    "ActivateNamedVersion": {"version": "1"},
    "DropNamedVersion": {"version": "2"},
    "CollectCatalog": {"keep_seconds": 0, "grace_seconds": 0},
}
ROUTES = {extension.route.operation: extension.route for extension in EXTENSIONS}
GUARDED = [name for name in ROUTES if name not in FOR_ALL]


@dataclass
class Served:
    http: httpx.Client
    namespace: MetastoreNamespace
    txn: str

    def key(self, role: str, *scope: str) -> dict[str, str]:
        return {"x-api-key": create_key(self.namespace.store, SystemClock(), role, list(scope))[1]}

    def ask(self, route: Route, headers: dict[str, str]) -> httpx.Response:
        body = BODIES.get(route.operation, {"txn": self.txn} if route.operation == "UndoTransaction" else {})
        id = NAMED.get(route.operation, "a$t")
        path = route.path.replace("{id}", id)
        if route.body is BodyKind.ARROW:
            query = BODIES.get(route.operation)
            return self.http.post(path, params=query, content=to_stream(ROWS.to_reader()), headers=headers)
        return self.http.request(route.verb, path, json=body if route.verb == "POST" else None, headers=headers)

    def state(self) -> list[tuple[str, int]]:
        """Every file that is not a key, and its size."""
        found = ((entry.key, entry.size) for entry in self.namespace.store.list())
        return sorted(each for each in found if "/tokens/" not in each[0])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    namespace = MetastoreNamespace(root=str(tmp_path_factory.mktemp("rights") / "lake"))
    catalog = Catalog(namespace)
    for name in ("a.t", "b.t"):
        catalog.create_stream_table(name, ROWS.schema, keys="id").upsert(ROWS, source="s")
    txn = list(catalog.log())[-2].txn
    catalog.create_table("a.gone", ROWS)
    catalog.drop_table("a.gone")
    catalog.alias("a.t", "known")
    catalog.snapshot("kept")
    create_key(namespace.store, SystemClock(), "admin", [])
    running = start_in_thread(namespace)
    with httpx.Client(base_url=running.url, timeout=60) as http:
        yield Served(http, namespace, txn)
    running.stop()


def test_routes_that_need_no_permission_are_the_ones_meant_for_all() -> None:
    assert {name for name, route in ROUTES.items() if route.needs == NOTHING} == FOR_ALL


def test_nobody_gets_an_answer_from_a_route_of_ours(served: Served) -> None:
    before = served.state()
    for route in ROUTES.values():
        answer = served.ask(route, {})
        assert (answer.status_code, answer.json()["code"]) == (401, 16), (route.operation, answer.text)
    assert served.state() == before


def test_a_stranger_and_a_caller_without_the_permission_are_refused_and_change_nothing(served: Served) -> None:
    before = served.state()
    stranger = served.key("admin", "b")
    without = {permission: served.key(",".join(names_of(~permission))) for permission in Permission}
    for name in GUARDED:
        for headers in (stranger, without[ROUTES[name].needs]):
            answer = served.ask(ROUTES[name], headers)
            assert (answer.status_code, answer.json()["code"]) == (403, 15), (name, answer.text)
    assert served.state() == before


def test_the_history_of_a_table_that_moved_in_does_not_tell_where_it_was(served: Served) -> None:
    catalog = Catalog(served.namespace)
    catalog.create_table("b.hidden", ROWS)
    catalog.rename_table("b.hidden", "a.came")
    path = "/headwater/v1/object/a$came/history"
    whole = served.http.post(path, json={}, headers=served.key("viewer")).json()["entries"]
    told = served.http.post(path, json={}, headers=served.key("viewer", "a")).json()["entries"]
    assert [entry["path"] for entry in whole] == [["b", "hidden"], ["a", "came"]]
    assert [entry["path"] for entry in told] == [[], ["a", "came"]]
    assert [entry["slot"] for entry in told] == [entry["slot"] for entry in whole]
    assert not told[0]["changes"]
    assert "hidden" not in str(told)


def test_an_undo_drops_nothing_for_who_may_not_drop_it(served: Served) -> None:
    catalog = Catalog(served.namespace)
    catalog.create_table("a.branched", ROWS)
    catalog.create_table("a.precious", ROWS)
    catalog.create_namespace("a.inner")
    catalog["a.branched"].branches.create("side")
    catalog.snapshot("pinned")
    made = list(catalog.log())[-4:]
    for entry, scope, role, enough in (
        (made[2], ("a",), "editor", "writer"),
        (made[1], ("a",), "writer", "admin"),
        (made[3], (), "writer", "admin"),
        (made[0], ("a",), "editor", "writer"),
    ):
        for dry_run in (True, False):
            asked = {"txn": entry.txn, "dry_run": dry_run}
            answer = served.http.post("/headwater/v1/undo", json=asked, headers=served.key(role, *scope))
            assert (answer.status_code, answer.json()["code"]) == (403, 15), (entry.message, answer.text)
        answer = served.http.post("/headwater/v1/undo", json={"txn": entry.txn}, headers=served.key(enough, *scope))
        assert answer.status_code == 200, (entry.message, answer.text)
    asked = {"txn": made[0].txn}
    answer = served.http.post("/headwater/v1/undo", json=asked, headers=served.key("editor"))
    assert (answer.status_code, "a.precious" in answer.text) == (409, True), "who writes everywhere is told why not"


def test_an_undo_gives_nobody_what_was_moved_to_where_they_may_not_write(served: Served) -> None:
    catalog = Catalog(served.namespace)
    catalog.create_table("a.leaves", ROWS)
    catalog.create_namespace("a.within")
    catalog.rename_table("a.leaves", "b.left")
    catalog.rename_namespace("a.within", "b.without")
    catalog.create_table("b.without.later", ROWS)
    moves = [entry for entry in catalog.log() if entry.message.endswith(("to b.left", "to b.without"))]
    assert len(moves) == 2
    for entry in moves:
        for dry_run in (True, False):
            asked = {"txn": entry.txn, "dry_run": dry_run}
            answer = served.http.post("/headwater/v1/undo", json=asked, headers=served.key("admin", "a"))
            assert (answer.status_code, "left" in answer.text, "without" in answer.text) == (403, False, False)
    assert "b.left" in catalog
    asked = {"txn": moves[0].txn, "dry_run": True}
    both = served.http.post("/headwater/v1/undo", json=asked, headers=served.key("admin")).json()
    assert [(step["path"], step["names"]) for step in both["steps"]] == [(["a", "leaves"], [["b", "left"]])]


def test_an_alias_beside_a_callers_scope_does_not_come_back_by_its_undo(served: Served) -> None:
    catalog = Catalog(served.namespace)
    catalog.create_namespace("c")
    catalog.alias("c", "beside")
    asked = {"txn": list(catalog.log())[-1].txn, "dry_run": True}
    answer = served.http.post("/headwater/v1/undo", json=asked, headers=served.key("admin", "c"))
    assert answer.status_code == 403
    assert served.http.post("/headwater/v1/undo", json=asked, headers=served.key("admin")).status_code == 200


def test_the_names_of_snapshots_are_for_who_may_list_them(served: Served) -> None:
    headers = {"x-headwater-at": "nope"}
    whole, scoped = (
        served.http.post("/v1/table/a$t/describe", json={}, headers={**headers, **served.key("viewer", *scope)})
        for scope in ((), ("a",))
    )
    assert (whole.json()["code"], "kept" in whole.text) == (8, True)
    assert (scoped.json()["code"], "kept" in scoped.text) == (8, False)


def test_a_caller_in_a_scope_has_nothing_of_the_whole_catalog_and_the_permission_alone_is_enough(
    served: Served,
) -> None:
    inside = served.key("admin", "a")
    for name in GUARDED:
        route = ROUTES[name]
        is_whole = route.target is RouteTarget.NONE and name not in ("PublishStreamTables", "UndoTransaction")
        if is_whole:
            assert served.ask(route, inside).status_code == 403, name
        alone = served.key(",".join(names_of(route.needs)))
        answer = served.ask(route, alone)
        assert answer.status_code not in (401, 403), (name, answer.text)
