"""Requests made from the OpenAPI documents, right and wrong ones: no 5xx, and every answer is as the document says."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import lance_namespace as api
import pytest
import schemathesis
import yaml  # type: ignore[import-untyped]
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error

from headwater import DirectoryNamespace
from headwater.rest.openapi import openapi
from headwater.rest.routes import ROUTES
from headwater.rest.server import RunningServer, start_in_thread
from tests.rest.samples import PEOPLE, ipc

DOCUMENT = Path(__file__).parents[3] / "shared" / "spec" / "lance-rest-openapi.yaml"
OPERATIONS = [route.operation for route in ROUTES]


@schemathesis.serializer("application/vnd.apache.arrow.stream")  # type: ignore[untyped-decorator]
def arrow_stream(context: Any, value: Any) -> Any:
    """Bytes as they are drawn: hardly ever an Arrow stream, which is the point."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


@cache
def loaded(whose: str) -> dict[str, Any]:
    if whose == "own":
        return openapi()
    document: dict[str, Any] = yaml.load(DOCUMENT.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return document


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    catalog = DirectoryNamespace(root=str(tmp_path_factory.mktemp("lake")))
    catalog.create_namespace(api.CreateNamespaceRequest(id=["ns"]))
    for id in (["t"], ["ns", "t"]):
        catalog.create_table(api.CreateTableRequest(id=id), ipc(PEOPLE))
    with start_in_thread(catalog) as running:
        yield running


@cache
def schema_of(whose: str, url: str) -> Any:
    schema = schemathesis.openapi.from_dict({**loaded(whose), "servers": [{"url": url}]})
    schema.config.update(base_url=url)
    return schema


def check(document: dict[str, Any], operation: str, response: Any) -> None:
    """The answer is one of the document's for the operation, in its shape; an error has the JSON error body."""
    assert response.status_code < 500, response.content
    kind = response.headers.get("content-type", [""])[0]
    if response.status_code >= 400:
        body = response.json()
        assert kind == "application/json"
        assert isinstance(body["code"], int)
        assert isinstance(body["error"], str)
        return
    item = next(i for path in document["paths"].values() for v, i in path.items() if v != "parameters"
                and i["operationId"] == operation)  # fmt: skip
    described = item["responses"].get(response.status_code) or item["responses"][str(response.status_code)]
    if "$ref" in described:
        described = document["components"]["responses"][described["$ref"].rsplit("/", 1)[1]]
    content = described.get("content", {})
    if not content:
        assert response.content == b""
        return
    assert kind in content
    if kind == "application/json":
        schema = {**content[kind]["schema"], "components": document["components"]}
        jsonschema.Draft202012Validator(schema).validate(response.json())


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    ("whose", "examples"),
    [
        ("shared", 6),
        pytest.param("shared", 80, marks=pytest.mark.long),
        pytest.param("own", 20, marks=pytest.mark.long),
    ],
)
def test_no_request_of_the_document_makes_the_server_fail(
    server: RunningServer, operation: str, whose: str, examples: int
) -> None:
    if whose == "shared" and not DOCUMENT.exists():
        pytest.skip("the shared Lance REST document is not beside this checkout")
    found = schema_of(whose, server.url).find_operation_by_id(operation)

    @settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
        derandomize=True,
        database=None,
    )
    @given(case=found.as_strategy(), known=st.sampled_from([None, "t", "ns$t", "ns"]))
    def ask(case: Any, known: str | None) -> None:
        if known is not None and "id" in (case.path_parameters or {}):
            case.path_parameters["id"] = known
        response = case.call(base_url=server.url)
        case.validate_response(response, checks=[not_a_server_error])
        check(loaded(whose), operation, response)

    ask()
