"""Rights are on objects: what was moved, dropped or aliased is not read, nor told of, by the name that it had once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from headwater import Catalog, MetastoreNamespace
from headwater.clock import SystemClock
from headwater.names import object_id
from headwater.namespace.vending import FileAccess
from headwater.rest.auth.access import Caller, Grant, storage_access
from headwater.rest.auth.keys import create_key
from headwater.rest.call import Call
from headwater.rest.extensions import ALL_ROUTES
from headwater.rest.routes import BY_OPERATION, Permission, Route, RouteTarget
from headwater.rest.server import start_in_thread
from headwater.rest.settings import Settings
from headwater.verbs.verb import SessionKind

CANARY = "cAnArY"
ROWS = pa.table({"id": [1, 2], "name": [f"{CANARY} one", f"{CANARY} two"]})
OTHERS = pa.table({"id": [7], "name": ["harmless"]})
BODIES: dict[str, dict[str, Any]] = {
    "QueryTable": {"k": 9, "vector": None},
    "ExplainTableQueryPlan": {"query": {"k": 2, "vector": None}},
    "AnalyzeTableQueryPlan": {"k": 2, "vector": None},
    "GetTableTagVersion": {"tag": "first"},
    "DescribeTable": {"load_detailed_metadata": True, "with_table_uri": True, "vend_credentials": True},
}
READ = [
    route
    for route in ALL_ROUTES
    if route.target is RouteTarget.TABLE and not route.changes and SessionKind.PAST in route.sessions
]


@dataclass
class World:
    """A server, its catalog, and the slots before things were moved, dropped and made again."""

    http: httpx.Client
    namespace: MetastoreNamespace
    slots: dict[str, int] = field(default_factory=dict)

    def key(self, role: str, *scope: str) -> dict[str, str]:
        return {"x-api-key": create_key(self.namespace.store, SystemClock(), role, list(scope))[1]}

    def ask(self, route: Route, id: str, headers: dict[str, str], **body: Any) -> httpx.Response:
        path = route.path.replace("{id}", id).replace("{index_name}", "id_idx")
        told = {**BODIES.get(route.operation, {}), **body}
        content = None if route.verb == "GET" else json.dumps(told).encode()
        return self.http.request(route.verb, path, content=content, headers=headers)

    def log(self, headers: dict[str, str], **more: Any) -> Any:
        answer = self.http.post("/headwater/v1/log", json={"after": 0, **more}, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer.json()["entries"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    namespace = MetastoreNamespace(root=str(tmp_path_factory.mktemp("objects") / "lake"))
    catalog = Catalog(namespace)
    slots: dict[str, int] = {}
    catalog.create_namespace("hr")
    moved = catalog.create_stream_table("prod.moved", ROWS.schema, keys="id")
    moved.upsert(ROWS, source="s")
    moved.ingest([{"id": f"{CANARY} no number", "name": "x"}], format="rows")
    moved.publish()
    catalog.create_table("prod.plain", ROWS)
    catalog["prod.plain"].tags.create("first", 1)
    catalog["prod.plain"].branches.create("side")
    catalog.create_table("prod.again", ROWS)
    catalog.create_table("acme.t", ROWS)
    catalog.create_namespace("acme.inner")
    catalog.create_table("acme.inner.deep", ROWS)
    slots["before"] = catalog.slot
    catalog.snapshot("kept")
    catalog.rename_table("prod.moved", "hr.moved")
    catalog.rename_table("prod.plain", "hr.plain")
    catalog.drop_table("prod.again")
    catalog.create_table("prod.again", OTHERS)
    catalog.drop_namespace("acme", cascade=True)
    catalog.create_table("acme.t", OTHERS)
    catalog.alias("hr", "people")
    catalog.alias("prod.again", "also")
    create_key(namespace.store, SystemClock(), "admin", [])
    running = start_in_thread(namespace, settings=Settings(vend_credentials=True))
    with httpx.Client(base_url=running.url, timeout=60) as http:
        yield World(http, namespace, slots)
    running.stop()


VICTIMS = [
    ("prod$moved", ("prod",)),
    ("prod$moved", ("prod", "moved")),
    ("prod$plain", ("prod",)),
    ("prod$moved__quarantine", ("prod",)),
    ("prod$again", ("prod", "again")),
    ("acme$t", ("acme",)),
    ("acme$inner$deep", ("acme",)),
    ("people$moved", ("people",)),
]


@pytest.mark.parametrize(("id", "scope"), VICTIMS, ids=lambda value: str(value))
def test_no_route_reads_by_an_old_name_what_a_caller_may_not_read_now(
    world: World, id: str, scope: tuple[str, ...]
) -> None:
    """A moved table, a name that another tenant has, an alias: at a slot and at a named snapshot."""
    key, found = world.key("admin", *scope), 0
    is_alias = id.startswith("people")
    moments = [str(Catalog(world.namespace).slot)] if is_alias else ["kept", str(world.slots["before"])]
    for route in READ:
        for moment in moments:
            headers = {**key, "x-headwater-at": moment}
            answer = world.ask(route, id, headers)
            assert (answer.status_code, answer.json()["code"]) == (403, 15), (route.operation, moment, answer.text)
            assert not any(word in answer.text for word in (CANARY, "hr")), answer.text
            found += 1
    assert found >= len(READ) > 15


def test_who_may_read_both_names_and_who_may_read_everything_reads_the_past(world: World) -> None:
    at = {"x-headwater-at": str(world.slots["before"])}
    for id in ("prod$moved", "prod$plain", "acme$t", "acme$inner$deep", "prod$again"):
        answer = world.ask(BY_OPERATION["QueryTable"], id, {**world.key("reader"), **at})
        assert CANARY.encode() in answer.content, (id, answer.text)
    answer = world.ask(BY_OPERATION["QueryTable"], "prod$again", {**world.key("reader", "prod"), **at})
    assert CANARY.encode() in answer.content, "the namespace that it was dropped from decides"
    assert world.ask(BY_OPERATION["QueryTable"], "hr$moved", world.key("reader", "hr")).status_code == 200


def test_neither_a_branch_nor_a_tag_of_what_was_moved_is_read_by_its_old_name(world: World) -> None:
    at = {"x-headwater-at": "kept"}
    for more in ({"branch": "side"}, {"version": 1}):
        asked = [world.ask(BY_OPERATION["QueryTable"], "prod$plain", {**world.key(*who), **at}, **more) for who in
                 (("reader", "prod"), ("reader",))]  # fmt: skip
        assert (asked[0].status_code, CANARY in asked[0].text) == (403, False), more
        assert CANARY.encode() in asked[1].content, (more, asked[1].text)


def test_the_present_name_alone_does_not_open_the_past_under_another(world: World) -> None:
    at = {"x-headwater-at": "kept"}
    assert world.ask(BY_OPERATION["QueryTable"], "prod$moved", {**world.key("admin", "hr"), **at}).status_code == 403
    assert world.ask(BY_OPERATION["QueryTable"], "hr$moved", {**world.key("admin", "hr"), **at}).status_code == 404


def test_an_alias_is_a_name_and_no_right(world: World) -> None:
    for id, scope in (("people$moved", ("people",)), ("people", ("people",)), ("prod$also", ("prod", "also"))):
        for operation in ("DescribeTable", "QueryTable", "TableExists", "DescribeNamespace", "ListTables"):
            if ("Table" in operation and operation != "ListTables") == (id != "people"):
                answer = world.ask(BY_OPERATION[operation], id, world.key("admin", *scope))
                assert answer.status_code == 403, (operation, id, answer.text)
    assert world.ask(BY_OPERATION["QueryTable"], "prod$also", world.key("reader", "prod")).status_code == 200


def test_lists_of_the_past_name_what_may_be_seen_now(world: World) -> None:
    key = {**world.key("viewer", "prod"), "x-headwater-at": "kept"}
    listed = world.ask(BY_OPERATION["ListTables"], "prod", key).json()["tables"]
    every = world.ask(BY_OPERATION["ListAllTables"], "", key).json()["tables"]
    assert listed == ["again"]
    assert every == ["prod$again"]
    for limit in (1, 2, 9):  # the token of a page is the name at its end, which may not be told either
        body = {"limit": limit}
        page = world.http.post("/headwater/v1/object/prod/objects", json=body, headers=key).json()
        assert ([each["name"] for each in page["objects"]], page["page_token"]) == (["again"], None)
    new = {**world.key("admin", "acme"), "x-headwater-at": "kept"}
    assert world.ask(BY_OPERATION["ListTables"], "acme", new).status_code == 403
    assert world.ask(BY_OPERATION["ListAllTables"], "", new).json()["tables"] == []
    assert world.ask(BY_OPERATION["ListNamespaces"], "%24", new).json()["namespaces"] == []


def test_an_open_transaction_is_no_way_to_what_was_moved_since(world: World) -> None:
    catalog = Catalog(world.namespace)
    catalog.create_table("prod.leaving", ROWS)
    key = world.key("admin", "prod")
    begun = world.http.post("/headwater/v1/transaction/begin", json={}, headers=key).json()["transaction"]
    inside = {**key, "x-headwater-transaction": begun}
    assert CANARY.encode() in world.ask(BY_OPERATION["QueryTable"], "prod$leaving", inside).content
    catalog.rename_table("prod.leaving", "hr.left")
    answer = world.ask(BY_OPERATION["QueryTable"], "prod$leaving", inside)
    assert (answer.status_code, CANARY in answer.text) == (403, False)
    assert "leaving" not in world.ask(BY_OPERATION["ListTables"], "prod", inside).json()["tables"]


def test_what_a_transaction_made_itself_is_its_own(world: World) -> None:
    key = world.key("admin", "prod", "mine")
    begun = world.http.post("/headwater/v1/transaction/begin", json={}, headers=key).json()["transaction"]
    inside = {**key, "x-headwater-transaction": begun}
    assert world.http.post("/v1/namespace/prod$mine/create", json={}, headers=inside).status_code == 200
    assert world.ask(BY_OPERATION["DescribeNamespace"], "prod$mine", inside).status_code == 200
    assert world.http.post("/headwater/v1/transaction/commit", json={"transaction": begun}, headers=key).json()["slot"]


def test_nothing_that_was_dropped_comes_back_for_a_new_holder_of_its_name(world: World) -> None:
    catalog = Catalog(world.namespace)
    catalog.create_table("gone.t", ROWS)
    catalog.drop_namespace("gone", cascade=True)
    entry = list(catalog.log())[-1]
    for id in ("gone", "gone$t"):
        for operation in ("undrop", "history"):
            path = f"/headwater/v1/object/{id}/{operation}"
            answer = world.http.post(path, json={}, headers=world.key("admin", "gone"))
            assert answer.status_code in (403, 404), (id, operation, answer.text)
            assert CANARY not in answer.text
    undo = world.http.post("/headwater/v1/undo", json={"txn": entry.txn}, headers=world.key("admin", "gone"))
    assert undo.status_code == 403
    assert "gone" not in catalog
    catalog.create_table("prod.single", ROWS)
    catalog.drop_table("prod.single")
    for scope, status in ((("prod", "single"), 403), (("prod",), 200)):
        answer = world.http.post("/headwater/v1/object/prod$single/undrop", json={}, headers=world.key("admin", *scope))
        assert answer.status_code == status, answer.text


def test_the_log_tells_of_no_object_that_is_elsewhere_now_and_no_message_of_others(world: World) -> None:
    catalog = Catalog(world.namespace)
    catalog.create_table("hr.came", ROWS)
    catalog.rename_table("hr.came", "prod.came")
    entries = world.log(world.key("viewer", "prod"))
    told = json.dumps(entries)
    assert not any(word in told for word in ("moved", "plain", '"hr"', "hr.", "acme", "people")), told
    assert '"prod", "came"' in told
    assert '"prod", "again"' in told
    new = json.dumps(world.log(world.key("admin", "acme")))
    assert "deep" not in new
    at = {"x-headwater-at": "kept"}
    assert "moved" not in json.dumps(world.log({**world.key("viewer", "prod"), **at}))
    whole = json.dumps(world.log(world.key("viewer")))
    assert all(word in whole for word in ("moved", "plain", "deep", "came"))


def test_storage_access_is_that_of_the_object_and_not_of_the_name(world: World) -> None:
    """Who may describe where a table is now, and read where it was, gets no access to its files."""
    reads = Permission.DESCRIBE | Permission.SELECT
    caller = Caller("x", (Grant(reads, object_id(["prod"])), Grant(Permission.DESCRIBE, object_id(["hr"]))))
    call = Call(route=BY_OPERATION["DescribeTable"], id=object_id(["prod", "t"]), caller=caller)
    assert storage_access(caller, call) is FileAccess.READ
    call.also = (object_id(["hr", "t"]),)
    assert storage_access(caller, call) is FileAccess.NONE


def test_a_view_names_its_inputs_and_its_sql_to_those_who_may_see_them(world: World) -> None:
    catalog = Catalog(world.namespace)
    view = catalog.create_stream_table("prod.view", ROWS.schema, keys="id")
    view.upsert(OTHERS)
    inputs = json.dumps({"sql": "d1", "tables": {"hr.moved": [1], "prod.again": [1]}, "position": 1})
    with world.namespace.metastore.transaction("made of") as tx:
        version = tx.versions(("prod", "view"))[-1]
        tx.update_table_version(("prod", "view"), version.name, {**version.properties, "view.inputs": inputs})
    path = "/headwater/v1/table/prod$view/stream/describe"
    scoped, whole = (
        world.http.post(path, json={"fields": ["definition"]}, headers=world.key("viewer", *scope)).json()["definition"]
        for scope in (("prod",), ())
    )
    assert json.loads(scoped["view.inputs"])["tables"] == {"prod.again": [1]}
    assert "hr.moved" in whole["view.inputs"]


def test_a_child_table_names_its_parent_to_those_who_may_see_it(world: World) -> None:
    Catalog(world.namespace).create_stream_table("prod.parts", ROWS.schema, keys="id").upsert(OTHERS)
    told = {"from": "hr.moved", "function": "features:parts", "inputs": ["salary"], "version": "1", "keys": ["id"]}
    with world.namespace.metastore.transaction("made of") as tx:
        version = tx.versions(("prod", "parts"))[-1]
        own = {"table_function": json.dumps({**told, "child_id": ["name"], "checks": []})}
        tx.update_table_version(("prod", "parts"), version.name, {**version.properties, **own})
    asked: dict[str, dict[str, Any]] = {
        "table/prod$parts/stream/describe": {"fields": ["definition"]},
        "object/prod$parts/objects": {},
        "find": {"locator": "prod|parts|1"},
    }
    for path, body in asked.items():
        scoped, whole = (
            world.http.post(f"/headwater/v1/{path}", json=body, headers=world.key("viewer", *scope)).text
            for scope in (("prod",), ())
        )
        assert ("hr.moved" in scoped, "salary" in scoped) == (False, False), path
        assert "hr.moved" in whole, path


def test_what_only_a_snapshot_keeps_is_not_for_a_new_holder_of_its_name(tmp_path: Path) -> None:
    """A collection has forgotten the table and its namespace: those that it was in then are asked for."""
    namespace = MetastoreNamespace(root=str(tmp_path / "lake"))
    catalog = Catalog(namespace)
    catalog.create_table("top.acme.t", ROWS)
    catalog.snapshot("kept")
    catalog.drop_namespace("top.acme", cascade=True)
    catalog.collect(keep=timedelta(0), grace=timedelta(0))
    catalog.collect(keep=timedelta(0), grace=timedelta(0))
    catalog.create_table("top.acme.t", OTHERS)
    with start_in_thread(namespace) as server, httpx.Client(base_url=server.url, timeout=60) as http:
        world = World(http, namespace)
        asked = {
            scope: world.ask(
                BY_OPERATION["QueryTable"], "top$acme$t", {**world.key("reader", *scope), "x-headwater-at": "kept"}
            )
            for scope in (("top", "acme"), ("top", "acme", "t"), ("top",), ())
        }
    assert [(answer.status_code, CANARY.encode() in answer.content) for answer in asked.values()] == [
        (403, False),
        (403, False),
        (200, True),
        (200, True),
    ]
