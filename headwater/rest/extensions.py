"""Routes of Headwater's own, under `/headwater/v1/`. Nothing in the specified routes changes meaning through them.

`GET /headwater/v1/capabilities` lists them, so a client can tell whether the server at hand has them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from lance_namespace import LanceNamespace

from headwater.errors import InvalidTableStateError, LanceNamespaceError, UnsupportedOperationError
from headwater.rest.auth.access import Caller
from headwater.rest.routes import ROUTES, Body, Role, Route, Target
from headwater.rest.wire import Call, implements

Handler = Callable[[LanceNamespace, Call, Caller], Any]


@dataclass(frozen=True)
class Extension:
    """One route of ours, what it is for, and what answers it."""

    route: Route
    about: str
    handler: Handler


def _capabilities(namespace: LanceNamespace, call: Call, caller: Caller) -> dict[str, Any]:
    operations = [route.operation for route in ROUTES if implements(namespace, route.method)]
    return {
        "server": "headwater",
        "operations": operations,
        "extensions": [
            {"operation": e.route.operation, "method": e.route.verb, "path": e.route.path, "about": e.about}
            for e in EXTENSIONS
        ],
    }


def _caller(namespace: LanceNamespace, call: Call, caller: Caller) -> dict[str, Any]:
    grants = [{"role": g.role.name.lower(), "scope": list(g.scope.names)} for g in caller.grants]
    return {"name": caller.name, "grants": grants}


def _describe_exact(namespace: LanceNamespace, call: Call, caller: Caller) -> Any:
    try:
        exact = importlib.import_module("headwater.namespace.exact")
    except ModuleNotFoundError:
        raise UnsupportedOperationError("This server has no exact descriptions of tables.") from None
    try:
        return exact.describe_exact(namespace, list(call.id.names))
    except LanceNamespaceError:
        raise
    except (OSError, ValueError, RuntimeError):
        raise InvalidTableStateError(
            f"The table {call.id} has no data that can be read: it may be only declared."
        ) from None


def _alter_namespace(namespace: LanceNamespace, call: Call, caller: Caller) -> dict[str, Any]:
    alter = getattr(namespace, call.route.method, None)
    if alter is None:
        raise UnsupportedOperationError("This server's catalog cannot change the properties of a namespace.")
    return {"properties": alter(call.request).properties}


def _clean_up(namespace: LanceNamespace, call: Call, caller: Caller) -> dict[str, Any]:
    """CleanUpTableVersions and OptimizeTable: both take which versions to keep, and say what they did."""
    method = getattr(namespace, call.route.method, None)
    if method is None:
        raise UnsupportedOperationError("This server's catalog cannot clean up tables.")
    return asdict(method(list(call.id.names), **call.request.policy()))


def _own(
    operation: str, verb: str, tail: str, target: Target = Target.NONE, role: Role = Role.READER, **more: Any
) -> Route:
    body = Body.NONE if verb == "GET" else Body.JSON
    return Route(operation, verb, f"/headwater/v1/{tail}", role, target, body=body, extension=True, **more)


EXTENSIONS: tuple[Extension, ...] = (
    Extension(
        _own("Capabilities", "GET", "capabilities", request="ListNamespacesRequest"),
        "The operations this server has, and its routes beyond the Lance REST document.",
        _capabilities,
    ),
    Extension(
        _own("DescribeCaller", "GET", "caller", request="ListNamespacesRequest"),
        "Who the server takes the caller to be, and what it may do.",
        _caller,
    ),
    Extension(
        _own(
            "DescribeTableExact",
            "POST",
            "table/{id}/describe",
            Target.TABLE,
            request="DescribeTableRequest",
            tagged=True,
        ),
        "A table with its exact schema, row count and size, as Spark needs them.",
        _describe_exact,
    ),
    Extension(
        _own(
            "AlterNamespaceProperties",
            "POST",
            "namespace/{id}/properties",
            Target.NAMESPACE,
            Role.WRITER,
            request="AlterNamespaceRequest",
        ),
        "Set and remove properties of a namespace; those that are not named stay.",
        _alter_namespace,
    ),
    *(
        Extension(
            _own(operation, "POST", f"table/{{id}}/{tail}", Target.TABLE, Role.WRITER, request="CleanUpRequest"),
            about,
            _clean_up,
        )
        for operation, tail, about in (
            ("CleanUpTableVersions", "clean_up", "Remove old versions of a table and free the disk only they hold."),
            ("OptimizeTable", "optimize", "Merge small fragments, bring indices up to date, then clean up."),
        )
    ),
)

HANDLERS: dict[str, Handler] = {extension.route.operation: extension.handler for extension in EXTENSIONS}
ALL_ROUTES: tuple[Route, ...] = (*ROUTES, *(extension.route for extension in EXTENSIONS))
