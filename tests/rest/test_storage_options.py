"""A request does not choose how the server talks to its storage: harmless options, bounded; anything else is 13."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import httpx
import lance_namespace as api
import pytest

from headwater import DirectoryNamespace
from headwater.errors import InvalidInputError
from headwater.namespace.vending import check_request
from headwater.namespace.vending.decision import ALLOWED
from headwater.rest.call import Call
from headwater.rest.coding import read_call
from headwater.rest.routes import BY_OPERATION
from tests.rest.samples import PEOPLE, ipc

HOSTILE = (
    "endpoint", "aws_endpoint", "AWS_ENDPOINT_URL", "Endpoint", "region", "proxy_url", "allow_http",
    "allow_invalid_certificates", "azure_federated_token_file", "google_application_credentials", "service_account",
    "aws_container_credentials_relative_uri", "aws_web_identity_token_file", "metadata_endpoint", "user_agent",
    "aws_server_side_encryption", "s3_express", "skip_signature", "unknown", "", " timeout", "TIMEOUT",
)  # fmt: skip


class Listener(http.server.BaseHTTPRequestHandler):
    """The attacker's endpoint: whoever talks to it is noted."""

    visits: ClassVar[list[str]] = []

    def note(self) -> None:
        type(self).visits.append(self.path)
        self.send_error(403)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = note

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def listener() -> Iterator[str]:
    Listener.visits.clear()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Listener)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("how", ["query", "header"])
def test_create_table_does_not_send_the_servers_requests_where_the_caller_says(
    how: str, http: httpx.Client, listener: str, catalog: DirectoryNamespace
) -> None:
    text = json.dumps({"endpoint": listener, "allow_http": "true"})
    given: dict[str, Any] = {"params": {"storage_options": text}}
    if how == "header":
        given = {"headers": {"x-lance-table-storage-options": text}}
    answer = http.post("/v1/table/t/create", content=ipc(PEOPLE), **given)
    assert (answer.status_code, answer.json()["code"]) == (400, 13)
    assert "'endpoint'" in answer.json()["error"]
    assert Listener.visits == []
    assert catalog.list_tables(api.ListTablesRequest(id=[])).tables == []


@pytest.mark.parametrize("key", HOSTILE)
def test_an_option_that_is_not_on_the_list_is_refused_by_name(key: str) -> None:
    with pytest.raises(InvalidInputError, match="cannot be chosen by a request") as refused:
        check_request(api.CreateTableRequest(id=["t"], storage_options={key: "1"}))
    assert repr(key) in str(refused.value)


def test_options_are_found_however_deep_they_are() -> None:
    hidden = {"storage_options": {"endpoint": "http://x"}}
    for message in ([hidden], {"a": [{"b": hidden}]}, ({"a": {"storage_options": {"endpoint": "x"}}},)):
        with pytest.raises(InvalidInputError, match="endpoint"):
            check_request(message)
    with pytest.raises(InvalidInputError, match="object of strings"):
        check_request({"storage_options": "endpoint=x"})


@pytest.mark.parametrize("key", sorted(ALLOWED))
def test_a_harmless_option_is_taken_and_bounded(key: str) -> None:
    unit, most = ALLOWED[key]
    for good in (f"0{unit}", f"{most}{unit}"):
        check_request(api.CreateTableRequest(id=["t"], storage_options={key: good}))
    for bad in (f"{most + 1}{unit}", f"-1{unit}", "x", "", "1 year", f"9999999999{unit}", f"１{unit}"):
        with pytest.raises(InvalidInputError, match=key):
            check_request(api.CreateTableRequest(id=["t"], storage_options={key: bad}))


def test_a_table_is_created_with_a_harmless_option(http: httpx.Client) -> None:
    options = json.dumps({"timeout": "30s", "client_max_retries": "3"})
    answer = http.post("/v1/table/t/create", params={"storage_options": options}, content=ipc(PEOPLE))
    assert answer.status_code == 200


def test_a_request_sets_no_header_of_the_server_behind_this_one() -> None:
    context = {"header.x-api-key": "mine", "Headers.Authorization": "Bearer mine", "ignore_missing": "false"}
    call = Call(BY_OPERATION["DescribeTable"], raw_id="t")
    read_call(call, {"context": context}, 10)
    assert call.request.context == {"ignore_missing": "false"}


@pytest.mark.parametrize(
    "name",
    ["jieba/../../../tmp", "lindera/../x", "jieba/", "/etc", "../x", "jieba/x/../..", "jieba/none-here", ""],
)
def test_a_tokenizer_of_a_request_leads_to_no_folder_of_the_server(http: httpx.Client, name: str) -> None:
    http.post("/v1/table/t/create", content=ipc(PEOPLE))
    asked = {"column": "name", "index_type": "FTS", "base_tokenizer": name}
    answer = http.post("/v1/table/t/create_index", json=asked)
    assert (answer.status_code, answer.json()["code"]) == (400, 13)
    assert "language_models" not in answer.text
