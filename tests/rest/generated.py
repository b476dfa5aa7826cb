"""The generated client (`lance_namespace_urllib3_client`) behind the interface, so that the one suite can ask it.

It adds nothing to the client: it only spells each call the way the client wants it.
"""

from __future__ import annotations

from typing import Any

import lance_namespace as api
from lance_namespace_urllib3_client import api as clients
from lance_namespace_urllib3_client.api_client import ApiClient
from lance_namespace_urllib3_client.configuration import Configuration
from lance_namespace_urllib3_client.exceptions import ApiException

from headwater.rest.client import refused
from headwater.rest.routes import ROUTES, Answer, BodyKind, ParameterKind, Route


class GeneratedNamespace(api.LanceNamespace):
    """Every operation through the generated client, by the table of routes."""

    def __init__(self, url: str, delimiter: str = "$") -> None:
        self.transport = ApiClient(Configuration(host=url))
        self.delimiter = delimiter

    def namespace_id(self) -> str:
        return "generated"

    def ask(self, route: Route, request: Any, *body: bytes) -> Any:
        keywords: dict[str, Any] = {"delimiter": self.delimiter}
        positional: list[Any] = []
        if "{id}" in route.path:
            positional.append(self.delimiter.join(request.id or []) or self.delimiter)
        if "{index_name}" in route.path:
            positional.append(request.index_name)
        for param in route.query:
            value = getattr(request, param.name, None)
            if value is not None:
                keywords[param.name] = api_json(value) if param.kind is ParameterKind.MAP else value
        if route.body is BodyKind.ARROW:
            keywords["body"] = body[0]
        elif route.body is BodyKind.MAP:
            positional.append(request.metadata or {})
        elif route.body is BodyKind.JSON:
            positional.append(request)
        try:
            answer = getattr(self.api_of(route), route.method)(*positional, **keywords)
        except ApiException as error:
            raise refused(error.status, error.body) from None
        return shaped(route, answer)

    def api_of(self, route: Route) -> Any:
        for name in ("NamespaceApi", "TableApi", "TransactionApi", "MaterializedViewApi"):
            if hasattr(getattr(clients, name), route.method):
                return getattr(clients, name)(self.transport)
        raise AssertionError(route.operation)


def api_json(value: dict[str, str]) -> str:
    import json

    return json.dumps(value)


def shaped(route: Route, answer: Any) -> Any:
    """The answers that REST sends bare, as the interface has them."""
    if route.answer is Answer.NUMBER:
        return api.CountTableRowsResponse(count=answer)
    if route.answer is Answer.ARROW:
        return api.QueryTableResponse(data=bytes(answer))
    if route.answer is Answer.MAP:
        return api.UpdateTableSchemaMetadataResponse(metadata=answer)
    return answer


def _method(route: Route) -> Any:
    def method(self: GeneratedNamespace, request: Any, *body: bytes) -> Any:
        return self.ask(route, request, *body)

    return method


for _route in ROUTES:
    setattr(GeneratedNamespace, _route.method, _method(_route))
