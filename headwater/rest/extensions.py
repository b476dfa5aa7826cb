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
from headwater.rest import stream_handlers as streams
from headwater.rest import time_handlers as time
from headwater.rest import transaction_handlers as transactions
from headwater.rest.auth.roles import names_of, role_of
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
)

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
    operation: str,
    verb: str,
    tail: str,
    target: RouteTarget = RouteTarget.NONE,
    needs: Permission = NOTHING,
    **more: Any,
) -> Route:
    more.setdefault("body", BodyKind.NONE if verb == "GET" else BodyKind.JSON)
    return Route(operation, verb, f"/headwater/v1/{tail}", needs, target, extension=True, **more)


def _stream(
    operation: str, tail: str, needs: Permission, handler: Handler, about: str, *params: Param, **more: Any
) -> Extension:
    """A route of stream tables."""
    path = f"table/{{id}}/stream/{tail}"
    route = _own(operation, "POST", path, RouteTarget.TABLE, needs, request="StreamRequest", query=params, **more)
    return Extension(route, about, handler)


def _time(operation: str, tail: str, target: RouteTarget, needs: Permission, handler: Handler, about: str) -> Extension:
    """A route of the catalog's past. What an object is, a namespace or a table, is found by its name."""
    return Extension(_own(operation, "POST", tail, target, needs, request="TimeRequest"), about, handler)


_ARROW_IN = {"body": BodyKind.ARROW}
_ARROW_OUT = {"answer": Answer.ARROW}
_LANDING = (Param("token"), Param("source"))
_LISTED = ParameterKind.LIST

STREAMS: tuple[Extension, ...] = (
    _stream("CreateStreamTable", "create", Permission.WRITE, streams.create,
            "Make a stream table with the columns of the Arrow body.",
            Param("keys", _LISTED), Param("sequence", _LISTED), Param("partition_by", _LISTED),
            Param("properties", ParameterKind.MAP), **_ARROW_IN),
    _stream("DescribeStreamTable", "describe", Permission.DESCRIBE, streams.describe,
            "The definition of a stream table, its newest position, its last publish and its readers."),
    _stream("AppendToStreamTable", "append", Permission.WRITE, streams.append,
            "Add the rows of the Arrow body to a table without keys.", *_LANDING, **_ARROW_IN),
    _stream("UpsertIntoStreamTable", "upsert", Permission.WRITE, streams.upsert,
            "Insert the rows of the Arrow body, or change those of the same key.", *_LANDING, **_ARROW_IN),
    _stream("DeleteFromStreamTable", "delete", Permission.WRITE, streams.delete,
            "Delete by the keys or the predicate in the Arrow body.", *_LANDING, **_ARROW_IN),
    _stream("IngestIntoStreamTable", "ingest", Permission.WRITE, streams.ingest,
            "Take change data in one of the formats; bad rows go to the quarantine.", *_LANDING, Param("format"),
            Param("strict", ParameterKind.BOOL), Param("options", ParameterKind.MAP), Param("digest"), **_ARROW_IN),
    _stream("ApplyToStreamTable", "apply", Permission.WRITE, streams.apply,
            "What a SQL statement does to the rows: deletes, rows in place of others, rows with new keys; with "
            "`position` only if the table is still as it was read.", Param("position", ParameterKind.INT), Param("of"),
            **_ARROW_IN),
    _stream("QueryStreamTable", "query", Permission.SELECT, streams.query,
            "The rows, fresh or at a position, as an Arrow file.", **_ARROW_OUT),
    _stream("CountStreamTable", "count", Permission.SELECT, streams.count, "How many rows there are."),
    _stream("ReadStreamChanges", "changes", Permission.SELECT, streams.changes,
            "What changed after a position, as an Arrow file; with a reader from where that was.", **_ARROW_OUT),
    _stream("ListStreamDeltas", "deltas", Permission.DESCRIBE, streams.deltas, "The deltas after a position."),
    _stream("ListStreamFiles", "files", Permission.DESCRIBE, streams.files,
            "The files that a source gave, an entry for each content; with `undone` those taken out again."),
    _stream("PublishStreamTable", "publish", Permission.WRITE, streams.publish,
            "Make the serving copy equal to the newest state."),
    Extension(
        _own("PublishStreamTables", "POST", "streams/publish", needs=Permission.WRITE, request="PublishRequest"),
        "The same for several tables, at one slot.",
        streams.publish_all,
    ),
    _stream("EvolveStreamTable", "evolve", Permission.WRITE, streams.evolve,
            "Add, rename, widen and drop columns."),
    _stream("SetStreamProperties", "properties", Permission.WRITE, streams.set_properties,
            "Set properties of a stream table; null takes one away."),
    _stream("QueryStreamQuarantine", "quarantine", Permission.SELECT, streams.quarantine,
            "The rows that were not taken, and why, as an Arrow file.", **_ARROW_OUT),
    _stream("CommitStreamReader", "commit_reader", Permission.WRITE, streams.commit_reader,
            "Say up to which position a reader has read."),
    _stream("DropStreamReader", "drop_reader", Permission.WRITE, streams.drop_reader, "Forget a reader."),
    _stream("UndoStreamIngest", "undo", Permission.WRITE, streams.undo,
            "Take out again what came from a source, a file, a batch or a transaction."),
)  # fmt: skip
"""Stream tables, so that a client needs no access to the storage."""

TIME: tuple[Extension, ...] = (
    _time("ReadLog", "log", RouteTarget.NONE, NOTHING, time.log,
          "The transactions after a slot; with `wait_seconds` the answer waits for the next one."),
    _time("DescribeHistory", "object/{id}/history", RouteTarget.NAMESPACE, Permission.DESCRIBE, time.history,
          "Every transaction that touched a namespace or table, through renames."),
    _time("DescribeDifference", "diff", RouteTarget.NONE, Permission.DESCRIBE, time.diff,
          "What is different at slot `after` from slot `before`."),
    _time("Undrop", "object/{id}/undrop", RouteTarget.NAMESPACE, Permission.WRITE, time.undrop,
          "Bring back what was dropped last under a name."),
    _time("AddAlias", "object/{id}/alias", RouteTarget.NAMESPACE, Permission.WRITE, time.alias,
          "Let a namespace or table be found under one more name beside its own."),
    _time("RemoveAlias", "object/{id}/unalias", RouteTarget.NAMESPACE, Permission.WRITE, time.alias,
          "Take such a name away."),
    _time("UndoTransaction", "undo", RouteTarget.NONE, Permission.WRITE, time.undo,
          "Undo a transaction by a new one; needs `write` on all that it touched, `drop` for what goes by it."),
    _time("TakeSnapshot", "snapshot", RouteTarget.NONE, Permission.MANAGE, time.snapshot,
          "Pin the newest state of all tables, or of these, under a name."),
    _time("ListSnapshots", "snapshots", RouteTarget.NONE, Permission.DESCRIBE, time.snapshots,
          "The named snapshots, with the version and position of every table."),
    _time("DropSnapshot", "drop_snapshot", RouteTarget.NONE, Permission.MANAGE, time.drop_snapshot,
          "Let a snapshot go."),
    _time("VerifyCatalog", "verify", RouteTarget.NONE, Permission.MANAGE, time.verify,
          "Everything on which the catalog and its storage disagree."),
    _time("CollectCatalog", "collect", RouteTarget.NONE, Permission.MANAGE, time.collect,
          "Forget what is older than `keep_seconds`, and free what nothing shows any more; or tell what would go."),
)  # fmt: skip
"""The past of a catalog."""

TRANSACTIONS: tuple[Extension, ...] = tuple(
    Extension(_own(operation, "POST", f"transaction/{tail}", request="TransactionRequest"), about, handler)
    for operation, tail, about, handler in (
        ("BeginTransaction", "begin", "Begin a transaction; its id goes into the header x-headwater-transaction.",
         transactions.begin),
        ("CommitTransaction", "commit", "Make all of its changes, at one slot; 14 names what others changed.",
         transactions.commit),
        ("AbortTransaction", "abort", "Forget a transaction.", transactions.abort),
    )
)  # fmt: skip
"""Any number of operations, all or nothing."""

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
            RouteTarget.TABLE,
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
            RouteTarget.NAMESPACE,
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
            RouteTarget.NAMESPACE,
            Permission.WRITE,
            request="RenameNamespaceRequest",
        ),
        "Give a namespace another name or parent, with all below it; no data moves.",
        _rename_namespace,
    ),
    *(
        Extension(
            _own(operation, "POST", f"table/{{id}}/{tail}", RouteTarget.TABLE, needs, request="CleanUpRequest"),
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
    *STREAMS,
    *TIME,
    *TRANSACTIONS,
)

HANDLERS: dict[str, Handler] = {extension.route.operation: extension.handler for extension in EXTENSIONS}
ALL_ROUTES: tuple[Route, ...] = (*ROUTES, *(extension.route for extension in EXTENSIONS))
