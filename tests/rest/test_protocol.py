"""How requests are understood: identifiers, delimiters, bodies, errors, tags, repeats."""

from __future__ import annotations

import threading
from typing import Any
from urllib.parse import quote

import httpx
import lance.namespace
import lance_namespace as api
import pytest

from headwater import DirectoryNamespace
from headwater.errors import CommitStateUnknownError
from headwater.rest.idempotency import Repeats
from headwater.rest.settings import IDEMPOTENCY, Limits, Settings
from tests.rest.samples import PEOPLE, Serve, ipc


def create(http: httpx.Client, id: str, **query: str) -> httpx.Response:
    return http.post(f"/v1/table/{id}/create", params=query, content=ipc(PEOPLE))


@pytest.mark.parametrize("delimiter", ["$", ".", "::", "%", "+", "é"])
def test_any_delimiter_names_the_same_objects(http: httpx.Client, delimiter: str) -> None:
    quoted = httpx.QueryParams({"delimiter": delimiter})
    id, parent = quote(delimiter.join(["a b", "t"]), safe=""), quote("a b", safe="")
    assert http.post(f"/v1/namespace/{parent}/create?{quoted}", json={}).status_code == 200
    assert http.post(f"/v1/table/{id}/create?{quoted}", content=ipc(PEOPLE)).status_code == 200
    assert http.post("/v1/table/a%20b%24t/exists").status_code == 200
    listed = http.get(f"/v1/table?{quoted}").json()
    assert listed["tables"] == [delimiter.join(["a b", "t"])]


def test_the_root_may_be_written_as_any_client_writes_it(http: httpx.Client) -> None:
    http.post("/v1/namespace/a/create", json={})
    create(http, "t")
    for path in ("/v1/namespace/%24/list", "/v1/namespace/$/list", "/v1/namespace//list"):
        assert http.get(path).json()["namespaces"] == ["a"], path
    assert http.get("/v1/namespace/list?delimiter=.").json()["namespaces"] == ["a"]
    assert http.post("/v1/namespace/exists?delimiter=.", json={"id": []}).status_code == 200


def test_the_tables_of_the_root_are_listed_when_the_dot_was_normalised_away(http: httpx.Client) -> None:
    create(http, "t")
    assert http.get("/v1/namespace/table/list?delimiter=.").json() == {"tables": ["t"]}
    http.post("/v1/namespace/table/create", json={})
    assert http.get("/v1/namespace/table/list?delimiter=.").json() == {"namespaces": []}
    assert http.get("/v1/namespace/table/list?delimiter=.&include_declared=true").json() == {"tables": ["t"]}


def test_pylance_with_a_dot_delimiter_reaches_the_root(server: Any, http: httpx.Client) -> None:
    create(http, "t")
    http.post("/v1/namespace/a/create", json={})
    client = lance.namespace.RestNamespace(uri=server.url, delimiter=".")
    assert client.list_namespaces(api.ListNamespacesRequest(id=[])).namespaces == ["a"]
    assert client.list_tables(api.ListTablesRequest(id=[])).tables == ["t"]


def test_a_plus_in_the_route_is_a_space_unless_the_body_says_it_is_a_plus(http: httpx.Client) -> None:
    http.post("/v1/namespace/a%20b/create", json={})
    http.post("/v1/namespace/a%2Bb/create", json={})
    assert http.get("/v1/namespace/%24/list").json()["namespaces"] == ["a b", "a+b"]
    assert http.post("/v1/namespace/a+b/drop", json={"id": ["a+b"]}).status_code == 200
    assert http.post("/v1/namespace/a+b/drop", json={"id": ["a b"]}).status_code == 200


def test_a_body_id_that_is_not_the_routes_is_refused(http: httpx.Client) -> None:
    http.post("/v1/namespace/a/create", json={})
    bodies: list[dict[str, Any]] = [{"id": ["b"]}, {"id": "a"}, {"id": [1]}, {"id": []}]
    for body in bodies:
        answer = http.post("/v1/namespace/a/describe", json=body)
        assert (answer.status_code, answer.json()["code"]) == (400, 13), body
    assert http.post("/v1/namespace/a/describe", json={"id": ["a"], "unknown": [1]}).status_code == 200


@pytest.mark.parametrize(
    ("verb", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1", 404),
        ("GET", "/v1/", 404),
        ("GET", "/v1/nothing/here", 404),
        ("POST", "/v1/table/t/describe/more", 404),
        ("GET", "/v1/table/t/describe", 405),
        ("DELETE", "/v1/namespace/a/create", 405),
        ("POST", "/v1/table", 405),
        ("POST", "/metrics", 405),
        ("GET", "/health/nothing", 404),
        ("GET", "/../../x", 404),
    ],
)
def test_every_answer_has_the_json_error_body(http: httpx.Client, verb: str, path: str, status: int) -> None:
    answer = http.request(verb, path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert body["code"] == 0
    assert body["error"]
    assert body["instance"] == answer.headers["x-request-id"]
    if status == 405:
        assert answer.headers["allow"]


@pytest.mark.parametrize("body", [b"{", b"[]", b"1", b"true", b"\xff", b'{"id":', b"[" * 100_000, b'{"id":[' * 5000])
def test_a_body_that_is_no_json_object_is_invalid_input(http: httpx.Client, body: bytes) -> None:
    answer = http.post("/v1/namespace/a/create", content=body)
    assert (answer.status_code, answer.json()["code"]) == (400, 13)


@pytest.mark.parametrize(
    "query", ["limit=x", "limit=0", "limit=-1", "limit=99999999999999999999", "delimiter=/", "delimiter=%00", "%ff=%ff"]
)
def test_a_query_parameter_that_makes_no_sense_is_invalid_input(http: httpx.Client, query: str) -> None:
    answer = http.get(f"/v1/namespace/%24/list?{query}")
    assert (answer.status_code, answer.json()["code"]) == (400, 13)


def test_statuses_and_codes_come_from_the_one_table(http: httpx.Client) -> None:
    http.post("/v1/namespace/a/create", json={})
    create(http, "a%24v")
    cases = [
        (http.post("/v1/namespace/b/describe", json={}), 404, 1),
        (http.post("/v1/namespace/a/create", json={}), 409, 2),
        (http.post("/v1/table/a%24t/describe", json={}), 404, 4),
        (http.post("/v1/table/%24/describe", json={}), 400, 13),
        (http.post("/v1/table/a%24t/merge_insert", content=b""), 400, 13),
        (http.post("/v1/materialized_view/a%24v/refresh", json={}), 406, 0),
    ]
    for answer, status, code in cases:
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


def test_existence_is_an_empty_answer(http: httpx.Client) -> None:
    create(http, "t")
    answer = http.post("/v1/table/t/exists", json={})
    assert (answer.status_code, answer.content) == (200, b"")
    assert http.post("/v1/table/u/exists", json={}).status_code == 404


def test_a_description_has_a_tag_and_is_not_sent_again_while_it_holds(http: httpx.Client) -> None:
    create(http, "t")
    http.post("/v1/namespace/a/create", json={"properties": {"k": "1"}})
    for path in ("/v1/table/t/describe", "/v1/namespace/a/describe"):
        first = http.post(path, json={})
        tag = first.headers["etag"]
        again = http.post(path, json={}, headers={"if-none-match": f'"other", W/{tag}'})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert http.post(path, json={}, headers={"if-none-match": '"other"'}).status_code == 200
    http.post("/v1/namespace/a/drop", json={})
    http.post("/v1/namespace/a/create", json={"properties": {"k": "2"}})
    assert http.post("/v1/namespace/a/describe", json={}, headers={"if-none-match": tag}).status_code == 200


def test_a_change_repeated_with_its_key_is_made_once_and_answered_alike(http: httpx.Client) -> None:
    create(http, "t")
    headers = {"idempotency-key": "k-1"}
    first = http.post("/v1/table/t/insert", content=ipc(PEOPLE), headers=headers)
    again = http.post("/v1/table/t/insert", content=ipc(PEOPLE), headers=headers)
    assert (first.status_code, again.status_code) == (200, 200)
    assert again.content == first.content
    assert again.headers["idempotency-replayed"] == "true"
    assert http.post("/v1/table/t/count_rows", json={}).json() == 6


def test_a_key_is_for_one_request(http: httpx.Client) -> None:
    headers = {"idempotency-key": "k-2"}
    assert http.post("/v1/namespace/a/create", json={}, headers=headers).status_code == 200
    other = http.post("/v1/namespace/b/create", json={}, headers=headers)
    assert (other.status_code, other.json()["code"]) == (400, 13)
    assert http.post("/v1/namespace/b/exists", json={}).status_code == 404


def test_a_refused_change_does_not_use_up_its_key(http: httpx.Client) -> None:
    headers = {"idempotency-key": "k-3"}
    assert http.post("/v1/namespace/a%24b/create", json={}, headers=headers).status_code == 404
    http.post("/v1/namespace/a/create", json={})
    assert http.post("/v1/namespace/a%24b/create", json={}, headers=headers).status_code == 200


def test_the_key_holds_on_another_server_of_the_same_catalog(
    http: httpx.Client, serve: Serve, catalog: DirectoryNamespace, root: str
) -> None:
    headers = {"idempotency-key": "k-4"}
    first = http.post("/v1/namespace/a/create", json={"properties": {"x": "1"}}, headers=headers)
    other = serve(namespace=DirectoryNamespace(root=root))
    again = httpx.post(f"{other.url}/v1/namespace/a/create", json={"properties": {"x": "1"}}, headers=headers)
    assert (again.status_code, again.content) == (200, first.content)


def test_a_repeat_whose_first_try_died_unanswered_is_never_applied(
    http: httpx.Client, catalog: DirectoryNamespace
) -> None:
    """The record of a try is there, its answer is not: the server died in between."""
    headers = {"idempotency-key": "k-5"}
    http.post("/v1/namespace/a/create", json={}, headers=headers)
    (entry,) = catalog.store.list(IDEMPOTENCY)
    record = catalog.store.get(entry.key).replace(b'"status":200', b'"status":null')
    catalog.store.put(entry.key, record)
    http.post("/v1/namespace/a/drop", json={})
    answer = http.post("/v1/namespace/a/create", json={}, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (503, 17)
    assert http.post("/v1/namespace/a/exists", json={}).status_code == 404


def test_records_of_keys_are_swept_after_a_day(http: httpx.Client, catalog: DirectoryNamespace) -> None:
    http.post("/v1/namespace/a/create", json={}, headers={"idempotency-key": "k-6"})

    class Tomorrow(type(catalog.clock)):  # type: ignore[misc]
        def now_ms(self) -> int:
            return int(super().now_ms()) + 25 * 3600 * 1000

    assert Repeats(catalog.store, Tomorrow()).sweep() == 1
    assert list(catalog.store.list(IDEMPOTENCY)) == []


def test_a_key_whose_record_goes_while_it_is_looked_at_is_created_and_not_overwritten(
    catalog: DirectoryNamespace,
) -> None:
    """A refused change gives its key back. Of those who repeat it only one may apply it: the one who creates."""
    repeats = Repeats(catalog.store, catalog.clock)
    first = repeats.begin("me", "k", "asked")
    assert isinstance(first, str)

    class Late(Repeats):
        """Its first look comes when the record has gone, and another has begun."""

        def _read(self, path: str) -> Any:
            if path == first and first not in ended:
                ended.append(first)
                repeats.end(first, 409, b"")
                began.append(repeats.begin("me", "k", "asked"))
                return None
            return super()._read(path)

    ended: list[str] = []
    began: list[object] = []
    with pytest.raises(CommitStateUnknownError):
        Late(catalog.store, catalog.clock).begin("me", "k", "asked")
    assert began == [first]


def test_concurrent_repeats_of_one_key_apply_it_once(http: httpx.Client, server: Any) -> None:
    create(http, "t")
    statuses: list[int] = []

    def insert() -> None:
        headers = {"idempotency-key": "k-7"}
        url = f"{server.url}/v1/table/t/insert"
        statuses.append(httpx.post(url, content=ipc(PEOPLE), headers=headers, timeout=60).status_code)

    threads = [threading.Thread(target=insert) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(statuses) <= {200, 503}
    assert 200 in statuses
    assert http.post("/v1/table/t/count_rows", json={}).json() == 6


def test_pages_are_bounded_by_the_server_and_complete(serve: Serve) -> None:
    server = serve(Settings(limits=Limits(page=3)))
    with httpx.Client(base_url=server.url) as http:
        names = [f"n{number}" for number in range(10)]
        for name in names:
            http.post(f"/v1/namespace/{name}/create", json={})
        found: list[str] = []
        query: dict[str, str] = {"limit": "1000"}
        while True:
            page = http.get("/v1/namespace/%24/list", params=query).json()
            assert len(page["namespaces"]) <= 3
            found += page["namespaces"]
            if not page.get("page_token"):
                break
            query["page_token"] = page["page_token"]
        assert found == names


def test_depth_and_properties_have_limits(serve: Serve) -> None:
    server = serve(Settings(limits=Limits(depth=3, properties=100)))
    deep = httpx.post(f"{server.url}/v1/namespace/a%24b%24c%24d/create", json={})
    assert (deep.status_code, deep.json()["code"]) == (400, 13)
    wide = httpx.post(f"{server.url}/v1/namespace/a/create", json={"properties": {"k": "v" * 200}})
    assert (wide.status_code, wide.json()["code"]) == (400, 13)
