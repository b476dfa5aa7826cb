"""API keys: stored hashed, scoped, revocable; roles and what each may do; lists show only what the caller may see."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import lance_namespace as api
import pytest

from headwater import DirectoryNamespace
from headwater.clock import SystemClock
from headwater.errors import InvalidInputError, UnauthenticatedError
from headwater.names import ROOT, ObjectId
from headwater.namespace.requests import RenameNamespaceRequest
from headwater.rest.auth.access import NAMING, Caller, Grant, needs
from headwater.rest.auth.gate import FRESH_MS
from headwater.rest.auth.keys import (
    ROLES,
    change_key,
    create_key,
    define_role,
    defined_roles,
    list_keys,
    parse_role,
    remove_role,
    revoke_key,
)
from headwater.rest.call import Call
from headwater.rest.extensions import ALL_ROUTES
from headwater.rest.routes import BY_OPERATION, Permission
from headwater.rest.server import create_app, start_in_thread
from headwater.rest.settings import Limits, Settings
from headwater.store import PutMode
from headwater.verbs.all_verbs import BY_OPERATION as VERB_ROWS
from headwater.verbs.all_verbs import fields_of
from tests.rest.samples import PEOPLE, Serve, ipc


class Hands(SystemClock):
    """A clock whose hands a test can move."""

    ahead = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead


@pytest.fixture
def tree(catalog: DirectoryNamespace) -> DirectoryNamespace:
    for id in (["dev"], ["prod"], ["prod", "raw"], ["prod", "raw", "deep"], ["prod", "rawer"]):
        catalog.create_namespace(api.CreateNamespaceRequest(id=id))
    for id in (["top"], ["dev", "d"], ["prod", "p"], ["prod", "raw", "r"], ["prod", "rawer", "s"]):
        catalog.create_table(api.CreateTableRequest(id=id), ipc(PEOPLE))
    return catalog


def key(catalog: DirectoryNamespace, role: str, *scope: str, **more: Any) -> dict[str, str]:
    return {"x-api-key": create_key(catalog.store, SystemClock(), role, list(scope), **more)[1]}


@pytest.fixture
def http(tree: DirectoryNamespace, serve: Serve) -> Iterator[httpx.Client]:
    key(tree, "admin")
    with httpx.Client(base_url=serve().url, timeout=60) as client:
        yield client


def test_a_catalog_that_has_keys_is_served_with_authentication(http: httpx.Client, tree: DirectoryNamespace) -> None:
    for headers in ({}, {"x-api-key": "wrong"}, {"x-api-key": "hw_abc_def"}, {"authorization": "Basic eDp5"}):
        answer = http.get("/v1/namespace/%24/list", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (401, 16)
        assert answer.headers["www-authenticate"] == "Bearer"
    mine = key(tree, "reader")
    assert http.get("/v1/namespace/%24/list", headers=mine).status_code == 200
    bearer = {"authorization": f"Bearer {mine['x-api-key']}"}
    assert http.get("/v1/namespace/%24/list", headers=bearer).status_code == 200
    assert http.get("/health/live").status_code == 200
    assert http.get("/metrics").status_code == 401


def test_a_server_that_was_open_closes_when_the_first_key_is_made(catalog: DirectoryNamespace) -> None:
    clock = Hands()
    app = create_app(catalog, clock=clock)
    assert not app.gate.is_closed()
    create_key(catalog.store, clock, "reader", [])
    clock.ahead += 6_000
    assert app.gate.is_closed()


def test_the_key_itself_is_stored_nowhere(tree: DirectoryNamespace, root: str) -> None:
    record, text = create_key(tree.store, SystemClock(), "reader", [], "ci")
    secret = text.rsplit("_", 1)[1].encode()
    files = [path for path in Path(root).rglob("*") if path.is_file()]
    assert any(record.id in path.name for path in files)
    assert not any(secret in path.read_bytes() for path in files)


def test_revoking_the_last_key_does_not_open_the_catalog(tree: DirectoryNamespace, serve: Serve) -> None:
    clock = Hands()
    record, text = create_key(tree.store, clock, "reader", [])
    app = create_app(tree, clock=clock)
    assert app.gate.caller({"x-api-key": text}).name == f"key:{record.id}"
    revoke_key(tree.store, clock, record.id)
    clock.ahead += FRESH_MS
    assert app.gate.remembered({"x-api-key": text}) is None
    with pytest.raises(UnauthenticatedError):
        app.gate.caller({"x-api-key": text})
    assert create_app(tree).gate.is_closed()
    assert [r.revoked_ms is not None for r in list_keys(tree.store)] == [True]


class Racing:
    """A store whose next put is preceded by somebody else's deed."""

    def __init__(self, store: Any, deed: Callable[[], object]) -> None:
        self._store, self._deed = store, [deed]

    def __getattr__(self, name: str) -> Any:
        if name == "put" and self._deed:
            self._deed.pop()()
        return getattr(self._store, name)


def test_a_change_of_a_key_does_not_undo_a_revocation_that_races_it(tree: DirectoryNamespace) -> None:
    clock = SystemClock()
    record, text = create_key(tree.store, clock, "reader", [])
    racing = Racing(tree.store, lambda: revoke_key(tree.store, clock, record.id))
    assert change_key(racing, record.id, role="admin").revoked_ms is not None
    with pytest.raises(UnauthenticatedError):
        create_app(tree).gate.caller({"x-api-key": text})
    assert change_key(tree.store, record.id, role="reader").revoked_ms is not None


def test_changes_of_a_key_that_race_are_both_made(tree: DirectoryNamespace) -> None:
    clock = SystemClock()
    record, _ = create_key(tree.store, clock, "admin", [])
    racing = Racing(tree.store, lambda: change_key(tree.store, record.id, role="viewer"))
    changed = change_key(racing, record.id, scope=["prod"])
    assert (changed.role, changed.scope) == ("viewer", ["prod"])
    assert [(one.role, one.scope) for one in list_keys(tree.store)] == [("viewer", ["prod"])]


def test_no_record_of_a_right_is_ever_overwritten_or_deleted(tree: DirectoryNamespace) -> None:
    clock, kept = SystemClock(), dict[str, bytes]()

    def look() -> None:
        now = {entry.key: tree.store.get(entry.key) for entry in tree.store.list(".headwater")}
        rights = {key: data for key, data in now.items() if "/tokens/" in key or "/roles/" in key}
        assert kept.items() <= rights.items()
        kept.update(rights)

    record, _ = create_key(tree.store, clock, "reader", [])
    for deed in (
        lambda: change_key(tree.store, record.id, role="writer"),
        lambda: change_key(tree.store, record.id, expires_ms=clock.now_ms() + 1000),
        lambda: revoke_key(tree.store, clock, record.id),
        lambda: define_role(tree.store, "analyst", "describe"),
        lambda: define_role(tree.store, "analyst", "describe,write"),
        lambda: remove_role(tree.store, "analyst"),
        lambda: define_role(tree.store, "analyst", "select"),
    ):
        look()
        deed()
    look()
    assert defined_roles(tree.store) == {"analyst": Permission.SELECT}


def test_keys_and_roles_as_earlier_servers_wrote_them_hold(tree: DirectoryNamespace) -> None:
    clock = SystemClock()
    define_role(tree.store, "own", "select")
    record, _ = create_key(tree.store, clock, "own", [])
    told = {"id": record.id, "name": "", "role": "own", "scope": [], "secret_sha256": record.secret_sha256}
    before = json.dumps({**told, "created_ms": 1, "expires_ms": None, "revoked_ms": 7}).encode()
    tree.store.put(f".headwater/tokens/{record.id}.json", before, PutMode.OVERWRITE)
    tree.store.put(".headwater/roles/old.json", b'{"name": "old", "permissions": ["describe"]}', PutMode.CREATE)
    assert [one.revoked_ms for one in list_keys(tree.store)] == [7]
    assert change_key(tree.store, record.id, role="reader").revoked_ms == 7
    assert defined_roles(tree.store)["old"] == Permission.DESCRIBE
    remove_role(tree.store, "old")
    assert "old" not in defined_roles(tree.store)


def test_a_key_ends_when_it_expires(tree: DirectoryNamespace) -> None:
    clock = Hands()
    _, text = create_key(tree.store, clock, "reader", [], expires_ms=clock.now_ms() + 60_000)
    gate = create_app(tree, clock=clock).gate
    gate.caller({"x-api-key": text})
    clock.ahead += 61_000
    with pytest.raises(UnauthenticatedError):
        gate.caller({"x-api-key": text})


def test_a_role_or_scope_that_is_none_makes_no_key(catalog: DirectoryNamespace) -> None:
    with pytest.raises(InvalidInputError):
        create_key(catalog.store, SystemClock(), "owner", [])
    with pytest.raises(InvalidInputError):
        create_key(catalog.store, SystemClock(), "reader", ["a/../b"])
    assert list_keys(catalog.store) == []


CALLS: list[tuple[Permission, str, dict[str, Any]]] = [
    (Permission.DESCRIBE, "/v1/table/prod%24raw%24r/describe", {}),
    (Permission.DESCRIBE, "/v1/namespace/prod%24raw/describe", {}),
    (Permission.DESCRIBE, "/headwater/v1/table/prod%24raw%24r/describe", {}),
    (Permission.SELECT, "/v1/table/prod%24raw%24r/count_rows", {}),
    (Permission.SELECT, "/v1/table/prod%24raw%24r/query", {"k": 1, "vector": {}}),
    (Permission.SELECT, "/v1/table/prod%24raw%24r/explain_plan", {"query": {"k": 1, "vector": {}}}),
    (Permission.SELECT, "/v1/table/prod%24raw%24r/analyze_plan", {"k": 1, "vector": {}}),
    (Permission.WRITE, "/v1/namespace/prod%24raw%24new/create", {}),
    (Permission.WRITE, "/headwater/v1/namespace/prod%24raw/properties", {"properties": {"k": "v"}}),
    (Permission.WRITE, "/v1/table/prod%24raw%24r/delete", {"predicate": "id = 1"}),
    (Permission.WRITE, "/v1/table/prod%24raw%24r/tags/create", {"tag": "v", "version": 1}),
    (Permission.WRITE, "/v1/table/prod%24raw%24r/rename", {"new_table_name": "r2"}),
    (Permission.WRITE, "/v1/table/prod%24raw%24r2/rename", {"new_table_name": "r"}),
    (Permission.DROP, "/v1/table/prod%24raw%24r/drop", {}),
    (Permission.MANAGE, "/v1/namespace/prod%24raw%24new/drop", {}),
]


@pytest.mark.parametrize("role", [*ROLES, "describe,write", "drop"])
def test_a_role_may_do_its_own_and_no_more(http: httpx.Client, tree: DirectoryNamespace, role: str) -> None:
    mine = key(tree, role, "prod", "raw")
    for needed, path, body in CALLS:
        answer = http.post(path, json=body, headers=mine)
        if needed in parse_role(role, {}):
            assert answer.status_code in (200, 404), (path, answer.text)
        else:
            assert (answer.status_code, answer.json()["code"]) == (403, 15), path
    table = tree.list_tables(api.ListTablesRequest(id=["prod", "raw"])).tables
    assert (table == []) is (Permission.DROP in parse_role(role, {}))


def test_a_scoped_key_may_ask_who_it_is_and_what_there_is(http: httpx.Client, tree: DirectoryNamespace) -> None:
    mine = key(tree, "reader", "prod", "raw")
    found = http.get("/headwater/v1/caller", headers=mine).json()
    assert found["grants"] == [{"role": "reader", "permissions": ["describe", "select"], "scope": ["prod", "raw"]}]
    assert "DescribeTable" in http.get("/headwater/v1/capabilities", headers=mine).json()["operations"]
    assert http.get("/headwater/v1/caller").status_code == 401


def test_a_key_can_be_changed_while_the_server_runs(tree: DirectoryNamespace) -> None:
    clock = Hands()
    record, text = create_key(tree.store, clock, "reader", ["prod"])
    gate = create_app(tree, clock=clock).gate
    prod, dev = ObjectId(("prod",)), ObjectId(("dev",))
    assert not gate.caller({"x-api-key": text}).may(Permission.WRITE, prod)
    change_key(tree.store, record.id, role="editor", scope=["dev"])
    clock.ahead += FRESH_MS
    caller = gate.caller({"x-api-key": text})
    assert caller.may(Permission.WRITE, dev)
    assert not caller.may(Permission.DROP, dev)
    assert not caller.may(Permission.DESCRIBE, prod)
    with pytest.raises(InvalidInputError):
        change_key(tree.store, record.id, role="owner")
    revoke_key(tree.store, clock, record.id)
    assert change_key(tree.store, record.id, role="admin").revoked_ms is not None


def test_a_role_of_the_catalogs_own_can_be_changed_while_the_server_runs(tree: DirectoryNamespace) -> None:
    clock = Hands()
    define_role(tree.store, "analyst", "select")
    _, text = create_key(tree.store, clock, "analyst,describe", [])
    gate = create_app(tree, clock=clock).gate
    assert gate.caller({"x-api-key": text}).may(Permission.SELECT, ROOT)
    define_role(tree.store, "analyst", "viewer")
    clock.ahead += FRESH_MS
    assert not gate.caller({"x-api-key": text}).may(Permission.SELECT, ROOT)
    tree.store.put(".headwater/roles/broken.json", b"{")
    remove_role(tree.store, "analyst")
    clock.ahead += FRESH_MS
    assert gate.caller({"x-api-key": text}).grants == ()
    for name in ("admin", "select", "../x", "", "A"):
        with pytest.raises(InvalidInputError):
            define_role(tree.store, name, "admin")


@pytest.mark.parametrize("id", ["prod%24rawer%24s", "prod%24p", "dev%24d", "top", "no%24such", "prod%24rawer%24none"])
def test_outside_its_scope_a_caller_learns_nothing_not_even_what_exists(
    http: httpx.Client, tree: DirectoryNamespace, id: str
) -> None:
    mine = key(tree, "admin", "prod", "raw")
    for tail in ("describe", "exists", "drop", "count_rows"):
        answer = http.post(f"/v1/table/{id}/{tail}", json={}, headers=mine)
        assert (answer.status_code, answer.json()["code"]) == (403, 15)


def test_lists_show_the_way_to_the_scope_and_nothing_beside_it(http: httpx.Client, tree: DirectoryNamespace) -> None:
    mine = key(tree, "reader", "prod", "raw")

    def listed(path: str, field: str) -> list[str]:
        found: list[str] = http.get(path, headers=mine).json()[field]
        return found

    assert listed("/v1/namespace/%24/list", "namespaces") == ["prod"]
    assert listed("/v1/namespace/prod/list", "namespaces") == ["raw"]
    assert listed("/v1/namespace/prod%24raw/list", "namespaces") == ["deep"]
    assert listed("/v1/namespace/%24/table/list", "tables") == []
    assert listed("/v1/namespace/prod/table/list", "tables") == []
    assert listed("/v1/namespace/prod%24raw/table/list", "tables") == ["r"]
    assert listed("/v1/table", "tables") == ["prod$raw$r"]
    assert http.get("/v1/namespace/dev/list", headers=mine).status_code == 403


def test_lists_are_filtered_before_they_are_paged(http: httpx.Client, tree: DirectoryNamespace) -> None:
    """Two grants leave two visible names among many hidden ones: a page of one holds one, and the next the other."""
    for number in range(30):
        tree.create_namespace(api.CreateNamespaceRequest(id=[f"n{number:02}"]))
    mine = key(tree, "reader", "n25")
    first = http.get("/v1/namespace/%24/list?limit=1", headers=mine).json()
    assert first["namespaces"] == ["n25"]
    following = {"limit": "1", "page_token": first.get("page_token", "")}
    assert http.get("/v1/namespace/%24/list", params=following, headers=mine).json()["namespaces"] == []


def test_renaming_needs_the_right_where_the_table_goes(http: httpx.Client, tree: DirectoryNamespace) -> None:
    mine = key(tree, "writer", "prod", "raw")
    for target in (["dev"], [], ["prod"]):
        body = {"new_table_name": "x", "new_namespace_id": target}
        answer = http.post("/v1/table/prod%24raw%24r/rename", json=body, headers=mine)
        assert (answer.status_code, answer.json()["code"]) == (403, 15)
    body = {"new_table_name": "x", "new_namespace_id": ["prod", "raw", "deep"]}
    assert http.post("/v1/table/prod%24raw%24r/rename", json=body, headers=mine).status_code == 200


def test_every_member_of_a_batch_is_checked(http: httpx.Client, tree: DirectoryNamespace) -> None:
    mine = key(tree, "writer", "prod", "raw")
    entry = {"id": ["prod", "raw", "r"], "version": 2, "manifest_path": "x"}
    other = {"id": ["dev", "d"], "version": 2, "manifest_path": "x"}
    answer = http.post("/v1/table/version/batch-create", json={"entries": [entry, other]}, headers=mine)
    assert (answer.status_code, answer.json()["code"]) == (403, 15)
    operations = [{"declare_table": {"id": ["prod", "raw", "n"]}}, {"deregister_table": {"id": ["dev", "d"]}}]
    answer = http.post("/v1/table/batch-commit", json={"operations": operations}, headers=mine)
    assert (answer.status_code, answer.json()["code"]) == (403, 15)
    assert http.post("/v1/table/prod%24raw%24n/exists", json={}, headers=mine).status_code == 404


def test_every_field_of_a_request_that_can_name_an_object_is_looked_at() -> None:
    """A new route whose request names objects in a new field fails here until the access rules know that field."""
    others = {"actions", "alterations", "columns", "new_columns", "on", "ranges", "removed", "updates"}
    others |= {"keys", "sequence", "partition_by", "drop"}  # columns of a stream table
    others |= {"fields"}  # what is told of one
    for route in ALL_ROUTES:
        row = VERB_ROWS.get(route.request or route.operation)
        if row is not None:
            kinds = fields_of(row)
        else:
            fields = getattr(api, route.request_model).model_fields
            kinds = {name: field.annotation for name, field in fields.items()}
        lists = {name for name, kind in kinds.items() if "list[" in str(kind).lower()}
        assert lists <= NAMING | others, route.operation


def test_both_ends_of_a_rename_are_needed_whatever_is_renamed() -> None:
    request = RenameNamespaceRequest(id=["prod", "raw"], new_id=["dev", "raw"])
    call = Call(BY_OPERATION["CreateNamespace"], ObjectId(("prod", "raw")), request=request)
    assert [need.id.names for need in needs(call)] == [("prod", "raw"), ("dev", "raw")]


def test_a_grant_covers_names_and_not_prefixes_of_names() -> None:
    caller = Caller("c", (Grant(ROLES["writer"], ObjectId(("prod", "raw"))),))
    assert caller.may(Permission.SELECT, ObjectId(("prod", "raw")))
    assert caller.may(Permission.WRITE, ObjectId(("prod", "raw", "x", "y")))
    assert not caller.may(Permission.DESCRIBE, ObjectId(("prod", "rawer")))
    assert not caller.may(Permission.DESCRIBE, ObjectId(("prod",)))
    assert caller.may_see(ROOT)
    assert not caller.may_see(ObjectId(("dev",)))


def test_a_caller_that_asks_too_often_is_told_to_wait(tree: DirectoryNamespace, serve: Serve) -> None:
    server = serve(Settings(limits=Limits(requests_per_second=0.001, burst=3)))
    first, second = key(tree, "reader"), key(tree, "reader")
    answers = [httpx.get(f"{server.url}/v1/namespace/%24/list", headers=first) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert answers[-1].json()["code"] == 21
    assert answers[-1].headers["retry-after"]
    assert httpx.get(f"{server.url}/v1/namespace/%24/list", headers=second).status_code == 200


def test_a_server_with_one_given_key_takes_no_other(catalog: DirectoryNamespace) -> None:
    with start_in_thread(catalog, api_key="open-sesame") as server:
        assert httpx.get(f"{server.url}/v1/namespace/%24/list").status_code == 401
        right = {"x-api-key": "open-sesame"}
        assert httpx.get(f"{server.url}/v1/namespace/%24/list", headers=right).status_code == 200
        whoami = httpx.get(f"{server.url}/headwater/v1/caller", headers=right).json()
        assert (whoami["name"], whoami["grants"][0]["role"], whoami["grants"][0]["scope"]) == (
            "owner",
            "admin",
            [],
        )


def test_a_server_others_can_reach_does_not_start_without_authentication(catalog: DirectoryNamespace) -> None:
    with pytest.raises(UnauthenticatedError, match="--insecure"):
        start_in_thread(catalog, host="0.0.0.0")


def test_keys_and_repeats_work_on_an_object_store(s3_root: str, s3_options: dict[str, str], serve: Serve) -> None:
    storage = {f"storage.{name}": value for name, value in s3_options.items()}
    catalog = DirectoryNamespace(root=s3_root, dir_listing_enabled="false", **storage)
    record, text = create_key(catalog.store, SystemClock(), "writer", ["a"])
    with httpx.Client(base_url=serve(namespace=catalog).url, headers={"x-api-key": text}, timeout=60) as http:
        assert http.get("/v1/namespace/%24/list", headers={"x-api-key": "wrong"}).status_code == 401
        repeated = [http.post("/v1/namespace/a/create", json={}, headers={"idempotency-key": "k"}) for _ in range(2)]
        assert [answer.status_code for answer in repeated] == [200, 200]
        assert http.post("/v1/namespace/b/create", json={}).status_code == 403
        assert http.get("/v1/namespace/%24/list").json()["namespaces"] == ["a"]
        http.post("/v1/table/a%24t/create", content=ipc(PEOPLE))
        assert http.post("/v1/table/a%24t/count_rows", json={}).json() == 3
    revoke_key(catalog.store, SystemClock(), record.id)
    assert [key.revoked_ms is not None for key in list_keys(catalog.store)] == [True]
