"""Routes of Headwater's own, under `/headwater/v1/`. Nothing in the specified routes changes meaning through them.

`GET /headwater/v1/capabilities` lists them, so a client can tell whether the server at hand has them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from lance_namespace import LanceNamespace

from headwater.errors import InvalidTableStateError, LanceNamespaceError, UnsupportedOperationError
from headwater.namespace.abilities import abilities_of
from headwater.namespace.description import describe_exact
from headwater.rest.auth.roles import names_of, role_of
from headwater.rest.call import Call
from headwater.rest.routes import NOTHING, ROUTES, BodyKind, Permission, Route, Target
from headwater.rest.wire import implements

Handler = Callable[[LanceNamespace, Call], Any]


@dataclass(frozen=True)
class Extension:
    """One route of ours, what it is for, and what answers it."""

    route: Route
    about: str
    handler: Handler


def _capabilities(namespace: LanceNamespace, call: Call) -> dict[str, Any]:
    operations = [route.operation for route in ROUTES if implements(namespace, route.method)]
    return {
        "server": "headwater",
        "operations": operations,
        "extensions": [
            {"operation": e.route.operation, "method": e.route.verb, "path": e.route.path, "about": e.about}
            for e in EXTENSIONS
        ],
    }


def _caller(namespace: LanceNamespace, call: Call) -> dict[str, Any]:
    grants = [
        {"role": role_of(g.permissions), "permissions": names_of(g.permissions), "scope": list(g.scope.names)}
        for g in call.asker.grants
    ]
    return {"name": call.asker.name, "grants": grants}


def _describe_exact(namespace: LanceNamespace, call: Call) -> Any:
    try:
        return describe_exact(namespace, list(call.id.names))
    except LanceNamespaceError:
        raise
    except (OSError, ValueError, RuntimeError):
        raise InvalidTableStateError(
            f"The table {call.id} has no data that can be read: it may be only declared."
        ) from None


def _alter_namespace(namespace: LanceNamespace, call: Call) -> dict[str, Any]:
    alter = abilities_of(namespace).alter_namespace
    if alter is None:
        raise UnsupportedOperationError("This server's catalog cannot change the properties of a namespace.")
    return {"properties": alter(call.request).properties}


def _rename_namespace(namespace: LanceNamespace, call: Call) -> dict[str, Any]:
    rename = abilities_of(namespace).rename_namespace
    if rename is None:
        raise UnsupportedOperationError("This server's catalog cannot rename a namespace: a metastore catalog can.")
    return {"properties": rename(call.request).properties}


def _clean_up(namespace: LanceNamespace, call: Call) -> dict[str, Any]:
    """CleanUpTableVersions and OptimizeTable: both take which versions to keep, and say what they did."""
    can = abilities_of(namespace)
    method = can.optimize if call.operation == "OptimizeTable" else can.clean_up
    if method is None:
        raise UnsupportedOperationError("This server's catalog cannot clean up tables.")
    return asdict(method(list(call.id.names), **call.request.policy()))


def _own(
    operation: str, verb: str, tail: str, target: Target = Target.NONE, needs: Permission = NOTHING, **more: Any
) -> Route:
    body = BodyKind.NONE if verb == "GET" else BodyKind.JSON
    return Route(operation, verb, f"/headwater/v1/{tail}", needs, target, body=body, extension=True, **more)


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
            Permission.DESCRIBE,
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
            Permission.WRITE,
            request="AlterNamespaceRequest",
        ),
        "Set and remove properties of a namespace; those that are not named stay.",
        _alter_namespace,
    ),
    Extension(
        _own(
            "RenameNamespace",
            "POST",
            "namespace/{id}/rename",
            Target.NAMESPACE,
            Permission.WRITE,
            request="RenameNamespaceRequest",
        ),
        "Give a namespace another name or parent, with all below it; no data moves.",
        _rename_namespace,
    ),
    *(
        Extension(
            _own(operation, "POST", f"table/{{id}}/{tail}", Target.TABLE, needs, request="CleanUpRequest"),
            about,
            _clean_up,
        )
        for operation, tail, needs, about in (
            (
                "CleanUpTableVersions",
                "clean_up",
                Permission.DROP,
                "Remove old versions of a table and free the disk only they hold.",
            ),
            (
                "OptimizeTable",
                "optimize",
                Permission.DROP,
                "Merge small fragments, bring indices up to date, then clean up.",
            ),
        )
    ),
)

HANDLERS: dict[str, Handler] = {extension.route.operation: extension.handler for extension in EXTENSIONS}
ALL_ROUTES: tuple[Route, ...] = (*ROUTES, *(extension.route for extension in EXTENSIONS))
