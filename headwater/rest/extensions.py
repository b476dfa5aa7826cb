"""Routes of Headwater's own, under `/headwater/v1/`: the verbs, and what is about the server itself.

Nothing in the specified routes changes meaning through them. `GET /headwater/v1/capabilities` lists them, so that a
client knows what a server has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pyarrow as pa
from lance_namespace import LanceNamespace

from headwater.decoding.arrow import read_stream
from headwater.decoding.bounds import Accept
from headwater.errors import InvalidTableStateError, LanceNamespaceError, PermissionDeniedError
from headwater.metastore.records.objects import Undone, UndoStep
from headwater.metastore.state.index import NAMED
from headwater.names import ROOT, ObjectId
from headwater.namespace.data.describe import describe_exact
from headwater.rest.auth.access import OWNER, Caller, undo_needs
from headwater.rest.auth.keys import names_of, role_of
from headwater.rest.auth.object_rights import Projection
from headwater.rest.body import BodySpool
from headwater.rest.call import Call
from headwater.rest.coding import implements
from headwater.rest.routes import (
    NOTHING,
    ROUTES,
    Answer,
    BodyKind,
    Param,
    ParameterKind,
    Permission,
    Route,
    RouteTarget,
    SessionKind,
    WorkPlace,
)
from headwater.verbs.all_verbs import BY_OPERATION as VERB_ROWS
from headwater.verbs.all_verbs import fields_of
from headwater.verbs.object_verbs import ObjectPage, no_object
from headwater.verbs.verb import Verb, VerbSession, require

Handler = Callable[[LanceNamespace, Call], Any]
FOLLOW = "FollowLog"
"""The operation whose answer goes on while the caller listens (`endpoint.py`)."""
ANY_UNDO = Permission.WRITE | Permission.DROP | Permission.MANAGE
"""The rights that suffice for every step of an undo."""
_KINDS = {int: ParameterKind.INT, bool: ParameterKind.BOOL, dict: ParameterKind.MAP, list: ParameterKind.LIST}


@dataclass(frozen=True)
class Extension:
    """One route of ours, its sentence in the OpenAPI document, and its handler."""

    route: Route
    about: str
    handler: Handler


def _capabilities(namespace: LanceNamespace, call: Call) -> dict[str, object]:
    operations = [route.operation for route in ROUTES if implements(namespace, route.method)]
    return {
        "server": "headwater",
        "operations": operations,
        "extensions": [
            {"operation": e.route.operation, "method": e.route.verb, "path": e.route.path, "about": e.about}
            for e in EXTENSIONS
        ],
    }


def _caller(namespace: LanceNamespace, call: Call) -> dict[str, object]:
    grants = [
        {"role": role_of(g.permissions), "permissions": names_of(g.permissions), "scope": list(g.scope.names)}
        for g in call.asker.grants
    ]
    return {"name": call.asker.name, "grants": grants}


def _describe_exact(namespace: LanceNamespace, call: Call) -> object:
    try:
        return describe_exact(namespace, list(call.id.names))
    except LanceNamespaceError:
        raise
    except (OSError, ValueError, RuntimeError):
        raise InvalidTableStateError(
            f"The table {call.id} has no data that can be read: it may be only declared."
        ) from None


def session_of(namespace: LanceNamespace, call: Call) -> VerbSession:
    """Return the session of a call: its catalog, its caller, and its rows."""
    caller = call.asker
    author = None if caller is OWNER else caller.author

    def accept(size: int) -> None:
        session.sizes.append(size)
        if call.accept is not None:
            call.accept(size)

    @cache
    def visible() -> Projection:
        return Projection(caller, require(session.can.metastore), session.can)

    session = VerbSession(namespace, caller.name, author, lambda: _rows(call, accept), call.accept)
    if caller is not OWNER:
        told, sees = (lambda entry: visible().log_entry(entry)), (lambda path, key: visible().sees(path, key))
        session = replace(session, told=told, sees=sees)
    return session


def _rows(call: Call, accept: Accept) -> pa.RecordBatchReader:
    body = call.body.buffer if isinstance(call.body, BodySpool) else pa.py_buffer(call.body)
    return read_stream(body, accept)


def _handler(row: Verb) -> Handler:
    """Return a handler that answers a call by a verb, as far as the caller may see the answer."""
    project, check = _PROJECTIONS.get(row.operation), _check_undo if row.operation == "UndoTransaction" else None

    def handle(namespace: LanceNamespace, call: Call) -> object:
        session = session_of(namespace, call)
        if check is not None:
            check(session, call)
        found = row.handler(session, call.request)
        if project is not None and session.can.metastore is not None:
            found = project(Projection(call.asker, session.can.metastore, session.can), found)
            if found is None:
                raise no_object(call.request)
        return found if row.returns_rows else row.wrap(found)

    return handle


def _project_objects(visible: Projection, answer: ObjectPage) -> ObjectPage:
    seen = (visible.object(each) for each in answer.objects)
    return ObjectPage([each for each in seen if each is not None], answer.page_token)


def _project_definition(visible: Projection, answer: dict[str, Any]) -> dict[str, Any]:
    known = answer.get("definition")
    return answer if known is None else {**answer, "definition": visible.properties(known)}


_PROJECTIONS: dict[str, Callable[[Projection, Any], Any]] = {
    "DescribeHistory": lambda visible, entries: [visible.history_entry(entry) for entry in entries],
    "ListStreamDeltas": lambda visible, deltas: [visible.delta(each) for each in deltas],
    "DescribeStreamTable": _project_definition,
    "UndoTransaction": Projection.undone,
    "FindObject": Projection.object,
    "ListObjects": _project_objects,
}
"""Answers that name objects or authors, each reduced to what the caller may describe; None is an object not found."""


def _check_undo(session: VerbSession, call: Call) -> None:
    """Raise PermissionDenied (15) unless the caller may do every step of an undo. The error does not name them."""
    caller, undo = call.asker, require(session.can.undo)
    if caller.may(ANY_UNDO, ROOT):
        return
    try:
        planned: Undone = undo(call.request.txn, True)
        allowed = all(_may_undo(caller, step) for step in planned.steps)
    except LanceNamespaceError:
        if caller.may(Permission.WRITE, ROOT):
            raise
        allowed = False
    if not allowed:
        raise PermissionDeniedError(
            f"{caller.name} may not undo this transaction, or it cannot be undone: that needs the permission write on "
            "all that it touched, and those to drop what it created."
        )


def _may_undo(caller: Caller, step: UndoStep) -> bool:
    """Return True if a caller may do one step. The namespace of an object that comes back decides about it."""
    needed = undo_needs(step.action, step.kind)
    comes_back = step.action == "undrop" and step.kind in NAMED
    own = step.path[:-1] if comes_back else step.path
    return all(caller.may(needed, ObjectId(tuple(name))) for name in (own, *step.names))


def _route(row: Verb) -> Route:
    """Return the route of a verb. An object is a namespace or a table, which its name tells."""
    first = row.path.partition("/")[0] if "{id}" in row.path else ""
    target = {"table": RouteTarget.TABLE, "": RouteTarget.NONE}.get(first, RouteTarget.NAMESPACE)
    return Route(
        row.operation,
        "POST",
        f"/headwater/v1/{row.path}",
        row.needs,
        target,
        tuple(Param(name, _kind(kind)) for name, kind in fields_of(row).items()) if row.takes_rows else (),
        BodyKind.ARROW if row.takes_rows else BodyKind.JSON,
        Answer.ARROW if row.returns_rows else Answer.MODEL,
        extension=True,
        place=row.runs,
        sessions=row.sessions,
    )


def _kind(annotation: Any) -> ParameterKind:
    """Return how a query parameter of a type is read; None in a union is a parameter that may be left out."""
    kinds = [kind for kind in getattr(annotation, "__args__", ()) if kind is not type(None)]
    origin = getattr(annotation, "__origin__", None)
    plain = origin if origin in (list, dict) else kinds[0] if kinds else annotation
    return _KINDS.get(plain, ParameterKind.TEXT)


def _own(operation: str, verb: str, tail: str, about: str, handler: Handler, **more: Any) -> Extension:
    route = {"needs": NOTHING, "target": RouteTarget.NONE, "body": BodyKind.NONE, **more}
    return Extension(Route(operation, verb, f"/headwater/v1/{tail}", extension=True, **route), about, handler)


EXTENSIONS: tuple[Extension, ...] = (
    _own(
        "Capabilities",
        "GET",
        "capabilities",
        "The operations this server has, and its routes beyond the Lance REST document.",
        _capabilities,
        request="ListNamespacesRequest",
    ),
    _own(
        "DescribeCaller",
        "GET",
        "caller",
        "Who the server takes the caller to be, and what it may do.",
        _caller,
        request="ListNamespacesRequest",
    ),
    _own(
        "DescribeTableExact",
        "POST",
        "table/{id}/describe",
        "A table with its exact schema, row count and size, as Spark needs them.",
        _describe_exact,
        needs=Permission.DESCRIBE,
        target=RouteTarget.TABLE,
        body=BodyKind.JSON,
        request="DescribeTableRequest",
        tagged=True,
    ),
    _own(
        FOLLOW,
        "GET",
        "changes",
        "The transactions after a slot as server-sent events, as they are committed; `below`: a namespace or table.",
        _handler(VERB_ROWS["ReadLog"]),
        query=(Param("after", ParameterKind.INT), Param("below", ParameterKind.LIST)),
        answer=Answer.EVENTS,
        request="ReadLog",
        place=WorkPlace.SERVER,
        sessions=SessionKind.PRESENT_ONLY,
    ),
    *(Extension(_route(row), row.about, _handler(row)) for row in VERB_ROWS.values()),
)

HANDLERS: dict[str, Handler] = {extension.route.operation: extension.handler for extension in EXTENSIONS}
ALL_ROUTES: tuple[Route, ...] = (*ROUTES, *(extension.route for extension in EXTENSIONS))
