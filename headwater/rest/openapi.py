"""The server's own OpenAPI document, made from the table of routes and the request and response models.

Its routes and schemas are those of lance-rest-openapi.yaml (a test compares them when that document is at hand),
with the extensions added under their own prefix.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import lance_namespace_urllib3_client.models as models
from pydantic import BaseModel

from headwater.rest.coding import ARROW_FILE, ARROW_STREAM, encode_json
from headwater.rest.extensions import ALL_ROUTES, EXTENSIONS
from headwater.rest.routes import Answer, BodyKind, ParameterKind, Route
from headwater.verbs.all_verbs import BY_OPERATION as VERB_ROWS
from headwater.verbs.all_verbs import schema_of

Json = dict[str, Any]
REF = "#/components/schemas/"
NOTHING = "The operation succeeded; there is no content."
# Schemas of the document that are plain texts and numbers, for which the client library has no model.
PLAIN: dict[str, Json] = {
    "Context": {"type": "object", "additionalProperties": {"type": "string"}},
    "PageToken": {"type": "string"},
    "PageLimit": {"type": "integer"},
    "Binary": {"type": "string", "format": "binary"},
    "TransactionStatus": {"type": "string"},
    "SetPropertyMode": {"type": "string"},
    "UnsetPropertyMode": {"type": "string"},
    "Operator": {"type": "string"},
    "ManifestNamingScheme": {"type": "string"},
}
# Models that the document writes inside QueryTableRequest and does not name.
UNNAMED = ("QueryTableRequestColumns", "QueryTableRequestFullTextQuery", "QueryTableRequestVector")
# Where the client library's models are newer than the document: the document is the contract.
DOCUMENTED: dict[tuple[str, str], Json | None] = {
    ("QueryTableResponse", "data"): {"type": "string", "format": "binary"},
    ("MergeInsertIntoTableRequest", "on"): {"type": "string", "minLength": 1},
    **{
        (f"{name}Request", f"{bound}_nprobes"): None
        for name in ("QueryTable", "AnalyzeTableQueryPlan")
        for bound in ("minimum", "maximum")
    },
}
ERRORS = {
    "400": "The request is malformed (13, 20); the body is larger than the server takes: 413.",
    "401": "The caller is not known (16).",
    "403": "The caller may not do this (15).",
    "404": "There is no such object (1, 4, 6, 8, 10, 11, 12, 22).",
    "406": "The catalog cannot do this (0).",
    "409": "Something is in the way (2, 3, 5, 7, 9, 14, 19, 23).",
    "413": "The body is larger than the server takes (13).",
    "429": "The caller asks too often (21).",
    "503": "Try again later (17).",
    "5XX": "The server failed (18).",
}


@cache
def openapi_json() -> bytes:
    return encode_json(openapi())


def openapi() -> Json:
    """Return the whole document."""
    paths: dict[str, Json] = {}
    about = {extension.route.operation: extension.about for extension in EXTENSIONS}
    for route in ALL_ROUTES:
        paths.setdefault(route.path, {})[route.verb.lower()] = _operation(route, about.get(route.operation))
    return {
        "openapi": "3.1.1",
        "info": {"title": "Headwater: Lance REST catalog", "version": "1.0.0", "license": {"name": "Apache 2.0"}},
        "servers": [{"url": "/"}],
        "security": [{"BearerAuth": []}, {"ApiKeyAuth": []}],
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "securitySchemes": {
                "BearerAuth": {"type": "http", "scheme": "bearer"},
                "ApiKeyAuth": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _operation(route: Route, about: str | None) -> Json:
    found: Json = {
        "operationId": route.operation,
        "parameters": [*_path_parameters(route), *_query_parameters(route)],
        "responses": {str(route.status): _success(route), **_failures()},
    }
    if about:
        found["description"] = about
    body = _request_body(route)
    if body is not None:
        found["requestBody"] = body
    return found


def _path_parameters(route: Route) -> list[Json]:
    names = [part[1:-1] for part in route.parts if part.startswith("{")]
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _query_parameters(route: Route) -> list[Json]:
    has_id = not route.extension or "{id}" in route.path
    delimiter: Json = {"name": "delimiter", "in": "query", "required": False, "schema": {"type": "string"}}
    found: list[Json] = [delimiter] if has_id else []
    for param in route.query:
        found.append({"name": param.name, "in": "query", "required": param.required, "schema": _kind(param.kind)})
    return found


def _kind(kind: ParameterKind) -> Json:
    if kind is ParameterKind.MAP:
        return {"type": "string", "description": "A JSON object of strings."}
    if kind is ParameterKind.LIST:
        return {"type": "string", "minLength": 1, "description": "May be repeated."}
    return {"type": kind.value}


def _request_body(route: Route) -> Json | None:
    if route.body is BodyKind.NONE:
        return None
    if route.body is BodyKind.ARROW:
        return {"required": True, "content": {ARROW_STREAM: {"schema": {"type": "string", "format": "binary"}}}}
    schema: Json = {"$ref": REF + route.request_model}
    if route.body is BodyKind.MAP:
        schema = {"type": "object", "additionalProperties": {"type": "string"}}
    elif route.operation in VERB_ROWS:
        schema = _tidy(schema_of(VERB_ROWS[route.operation]), {})
    return {
        "required": route.operation != "RefreshMaterializedView",
        "content": {"application/json": {"schema": schema}},
    }


def _success(route: Route) -> Json:
    if route.answer is Answer.EMPTY:
        return {"description": NOTHING}
    if route.answer is Answer.ARROW:
        kind, schema = ARROW_FILE.decode(), {"type": "string", "format": "binary"}
        return {"description": "An Arrow IPC file.", "content": {kind: {"schema": schema}}}
    if route.answer is Answer.EVENTS:
        return {"description": "Server-sent events.", "content": {"text/event-stream": {"schema": {"type": "string"}}}}
    plain: dict[Answer, Json] = {
        Answer.NUMBER: {"type": "integer", "format": "int64", "minimum": 0},
        Answer.TEXT: {"type": "string"},
        Answer.MAP: {"type": "object", "additionalProperties": {"type": "string"}},
    }
    schema = {"type": "object"} if route.extension else plain.get(route.answer, {"$ref": REF + route.response_model})
    return {"description": f"The answer to {route.operation}.", "content": {"application/json": {"schema": schema}}}


def _failures() -> Json:
    content = {"application/json": {"schema": {"$ref": f"{REF}ErrorResponse"}}}
    return {status: {"description": text, "content": content} for status, text in ERRORS.items()}


def schemas() -> dict[str, Json]:
    """Return every schema by name, each model's own once, references in between."""
    found: dict[str, Json] = {}
    for name in dir(models):
        model = getattr(models, name)
        if isinstance(model, type) and issubclass(model, BaseModel):
            whole = model.model_json_schema(by_alias=True, ref_template=REF + "{model}")
            found.update(whole.pop("$defs", {}))
            if "$ref" not in whole:
                found[name] = whole
    for (name, field), schema in DOCUMENTED.items():
        found[name]["properties"].pop(field)
        found[name]["properties"].update({field: schema} if schema else {})
    unnamed = {REF + name: _tidy(found.pop(name), {}) for name in UNNAMED}
    return {**PLAIN, **{name: _tidy(schema, unnamed) for name, schema in sorted(found.items())}}


def _tidy(schema: object, unnamed: dict[str, Json]) -> Any:
    """Optional fields as the document writes them: by their own type, without titles and null defaults."""
    if isinstance(schema, list):
        return [_tidy(item, unnamed) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kinds = [kind for kind in schema.get("anyOf", []) if kind != {"type": "null"}]
    rest = {key: value for key, value in schema.items() if key not in ("anyOf", "title")}
    if rest.get("default", 0) is None:
        rest.pop("default")
    if len(kinds) == 1:
        rest = {**kinds[0], **rest}
        rest.pop("title", None)
    elif kinds:
        rest["anyOf"] = kinds
    if rest.get("$ref") in unnamed:
        rest = {**unnamed[rest["$ref"]], **rest}
        rest.pop("$ref")
    if "properties" in rest:
        rest["properties"] = {key: _tidy(value, unnamed) for key, value in rest["properties"].items()}
    return {key: value if key == "properties" else _tidy(value, unnamed) for key, value in rest.items()}
