"""The table of routes is the Lance REST document's, and the server's own OpenAPI says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import lance_namespace
import pytest
import yaml  # type: ignore[import-untyped]

from headwater.rest.extensions import EXTENSIONS
from headwater.rest.openapi import openapi
from headwater.rest.routes import ROUTES, BodyKind, Match, Route, RouteTable

DOCUMENT = Path(__file__).parents[3] / "shared" / "spec" / "lance-rest-openapi.yaml"


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    if not DOCUMENT.exists():
        pytest.skip("the shared Lance REST document is not beside this checkout")
    loaded: dict[str, Any] = yaml.safe_load(DOCUMENT.read_text())
    return loaded


def operations(document: dict[str, Any]) -> dict[str, tuple[str, str, dict[str, Any], list[dict[str, Any]]]]:
    found = {}
    parameters = document["components"].get("parameters", {})
    for path, item in document["paths"].items():
        shared = item.get("parameters", [])
        for verb, operation in item.items():
            if verb != "parameters":
                listed = [
                    parameters[p["$ref"].rsplit("/", 1)[1]] if "$ref" in p else p
                    for p in (*shared, *operation.get("parameters", []))
                ]
                found[operation["operationId"]] = (verb.upper(), path, operation, listed)
    return found


def test_there_are_54_routes_and_each_is_an_operation_of_the_interface() -> None:
    assert len(ROUTES) == 54
    assert len({route.operation for route in ROUTES}) == 54
    for route in ROUTES:
        assert hasattr(lance_namespace.LanceNamespace, route.method), route.operation
        assert hasattr(lance_namespace, route.request_model), route.operation


def test_every_route_is_the_documents(document: dict[str, Any]) -> None:
    theirs = operations(document)
    assert {route.operation for route in ROUTES} == set(theirs)
    for route in ROUTES:
        verb, path, operation, parameters = theirs[route.operation]
        assert (route.verb, route.path) == (verb, path)
        assert route.status in operation["responses"]
        query = {p["name"]: bool(p.get("required")) for p in parameters if p["in"] == "query"}
        assert query.pop("delimiter") is False
        assert {param.name: param.required for param in route.query} == query, route.operation
        assert (route.body is not BodyKind.NONE) == ("requestBody" in operation), route.operation


def test_the_servers_openapi_has_the_documents_routes_and_schemas(document: dict[str, Any]) -> None:
    ours = openapi()
    extensions = {extension.route.operation for extension in EXTENSIONS}
    mine, theirs = operations(ours), operations(document)
    assert set(mine) - extensions == set(theirs)
    for name, (verb, path, operation, parameters) in theirs.items():
        assert mine[name][:2] == (verb, path)
        assert {(p["in"], p["name"]) for p in mine[name][3]} == {(p["in"], p["name"]) for p in parameters}
        assert set(content(operation.get("requestBody"))) == set(content(mine[name][2].get("requestBody")))
    schemas = document["components"]["schemas"]
    assert set(ours["components"]["schemas"]) == set(schemas)
    for name, schema in schemas.items():
        compare(name, schema, ours["components"]["schemas"][name], schemas)


def content(body: dict[str, Any] | None) -> dict[str, Any]:
    return body["content"] if body else {}


def compare(name: str, theirs: dict[str, Any], ours: dict[str, Any], schemas: dict[str, Any]) -> None:
    their_properties, their_required = resolved(theirs, schemas)
    our_properties = set(ours.get("properties", {}))
    assert our_properties == set(their_properties), name
    assert set(ours.get("required", [])) == their_required, name
    for field, schema in their_properties.items():
        kind = kind_of(schema, schemas)
        assert kind_of(ours["properties"][field], schemas) == kind, (name, field)


def resolved(schema: dict[str, Any], schemas: dict[str, Any]) -> tuple[dict[str, Any], set[str]]:
    properties, required = dict(schema.get("properties", {})), set(schema.get("required", []))
    for part in schema.get("allOf", []):
        inner = schemas[part["$ref"].rsplit("/", 1)[1]] if "$ref" in part else part
        more, also = resolved(inner, schemas)
        properties.update(more)
        required |= also
    return properties, required


def kind_of(schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    if "$ref" in schema:
        return kind_of(schemas[schema["$ref"].rsplit("/", 1)[1]], schemas)
    options = [o for key in ("oneOf", "anyOf", "allOf") for o in schema.get(key, []) if o.get("type") != "null"]
    if "type" not in schema and options:
        kinds = {kind_of(option, schemas) for option in options}
        return "number" if kinds == {"number", "integer"} else "|".join(sorted(kinds))
    kind = schema.get("type", "object")
    return str(next(k for k in kind if k != "null") if isinstance(kind, list) else kind)


def test_the_openapi_document_is_served_and_lists_the_extensions(http: httpx.Client) -> None:
    served = http.get("/openapi.json").json()
    assert served["paths"]["/headwater/v1/capabilities"]["get"]["operationId"] == "Capabilities"
    listed = http.get("/headwater/v1/capabilities").json()
    assert {e["operation"] for e in listed["extensions"]} == {e.route.operation for e in EXTENSIONS}
    assert "DescribeTable" in listed["operations"]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: str(route.operation))
def test_a_path_finds_its_own_route_and_keeps_its_names_apart(route: Route) -> None:
    path = route.path.replace("{id}", "a%24b").replace("{index_name}", "i%2F1")
    found = RouteTable(ROUTES).find(path, route.verb)
    assert isinstance(found, Match)
    assert found.route is route
    assert (found.id or "a%24b") == "a%24b"
    assert found.index_name in (None, "i%2F1")
    wrong = RouteTable(ROUTES).find(path, "PUT")
    assert wrong == (route.verb,)
