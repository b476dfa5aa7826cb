"""The one table of routes: every operation of the Lance REST document (lance-rest-openapi.yaml, `paths`).

A row says all the server, the access rules, the OpenAPI answer and the docs need to know of an operation.
Nothing here does anything but look a path up.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache

from headwater.verbs.verb import NOTHING as NOTHING
from headwater.verbs.verb import READS as READS
from headwater.verbs.verb import Permission as Permission
from headwater.verbs.verb import SessionKind as SessionKind
from headwater.verbs.verb import WorkPlace as WorkPlace

EXTENSION_API = "headwater"
RECALLED_CHARS = 256


class RouteTarget(Enum):
    """The kind of object that the `{id}` of a route names."""

    NONE = "none"
    NAMESPACE = "namespace"
    TABLE = "table"
    VIEW = "materialized_view"
    TRANSACTION = "transaction"


class BodyKind(Enum):
    """The kind of body of a request."""

    NONE = "none"
    JSON = "json"
    MAP = "map"
    ARROW = "arrow"


class Answer(Enum):
    """The kind of body of a response."""

    MODEL = "model"
    EMPTY = "empty"
    NUMBER = "number"
    TEXT = "text"
    MAP = "map"
    ARROW = "arrow"
    EVENTS = "events"


class ParameterKind(Enum):
    """The type of a query parameter."""

    TEXT = "string"
    INT = "integer"
    BOOL = "boolean"
    MAP = "object"
    LIST = "array"


PLACES = {
    WorkPlace.SERVER: (
        "CreateNamespace", "ListNamespaces", "DescribeNamespace", "DropNamespace", "NamespaceExists", "ListTables",
        "ListAllTables", "RegisterTable", "DropTable", "DeregisterTable", "RenameTable", "DeclareTable",
        "ListTableVersions", "CreateTableVersion", "DescribeTableVersion", "BatchDeleteTableVersions",
        "BatchCreateTableVersions", "BatchCommitTables", "RefreshMaterializedView", "CreateMaterializedView",
        "Capabilities", "DescribeCaller", "PageLog", "PageDropped", "PageSnapshots", "PageServer", "PageNames",
        "PageHistory",
    ),
    WorkPlace.LOOKUP: ("DescribeTable", "TableExists"),
    WorkPlace.KEYS: ("PageAccess", "PageCreateKey", "PageRevokeKey", "PageDefineRole", "PageRemoveRole"),
}  # fmt: skip
"""Place of each operation that is no verb of ours. An operation that is not listed runs in a worker."""
ONLY_READ = frozenset({"PageAccess"})
"""Operations that change nothing, though they need a right that others need for a change."""
_PLACES = {operation: place for place, operations in PLACES.items() for operation in operations}


@dataclass(frozen=True)
class Param:
    """One query parameter; it fills the request field of the same name."""

    name: str
    kind: ParameterKind = ParameterKind.TEXT
    required: bool = False


@dataclass(frozen=True)
class Route:
    """One operation: its verb and path, the right it needs, its parameters, body and response."""

    operation: str
    verb: str
    path: str
    needs: Permission
    target: RouteTarget
    query: tuple[Param, ...] = ()
    body: BodyKind = BodyKind.JSON
    answer: Answer = Answer.MODEL
    status: int = 200
    tagged: bool = False
    request: str = ""
    response: str = ""
    extension: bool = False
    place: WorkPlace | None = None
    sessions: SessionKind = SessionKind.ANY

    @cached_property
    def method(self) -> str:
        """The LanceNamespace method of the operation: DescribeTable -> describe_table."""
        return "".join("_" + char.lower() if char.isupper() else char for char in self.operation).lstrip("_")

    @cached_property
    def runs(self) -> WorkPlace:
        return self.place or _PLACES.get(self.operation, WorkPlace.WORKER)

    @cached_property
    def request_model(self) -> str:
        return self.request or f"{self.operation}Request"

    @property
    def response_model(self) -> str:
        return self.response or f"{self.operation}Response"

    @cached_property
    def changes(self) -> bool:
        """True if the operation can change the catalog or a table."""
        return self.needs not in READS and self.operation not in ONLY_READ

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.path.split("/")[1:])


NO_ROUTE = Route("other", "", "", NOTHING, RouteTarget.NONE)
"""The route of a request whose path is not known (yet)."""

_LOOK, _SELECT, _WRITE = Permission.DESCRIBE, Permission.SELECT, Permission.WRITE
_DROP, _MANAGE = Permission.DROP, Permission.MANAGE
_NAMESPACE, _TABLE, _VIEW, _TRANSACTION = (
    RouteTarget.NAMESPACE,
    RouteTarget.TABLE,
    RouteTarget.VIEW,
    RouteTarget.TRANSACTION,
)
_BRANCH = Param("branch")
_PAGE = (Param("page_token"), Param("limit", ParameterKind.INT))
_DECLARED = Param("include_declared", ParameterKind.BOOL)
_DESCRIBE = tuple(Param(n, ParameterKind.BOOL) for n in ("with_table_uri", "load_detailed_metadata", "check_declared"))
_MERGE = (
    _BRANCH,
    Param("on", ParameterKind.LIST, required=True),
    Param("when_matched_update_all", ParameterKind.BOOL),
    Param("when_matched_update_all_filt"),
    Param("when_not_matched_insert_all", ParameterKind.BOOL),
    Param("when_not_matched_by_source_delete", ParameterKind.BOOL),
    Param("when_not_matched_by_source_delete_filt"),
    Param("timeout"),
    Param("use_index", ParameterKind.BOOL),
)
_CREATE = (Param("mode"), Param("properties", ParameterKind.MAP), Param("storage_options", ParameterKind.MAP))


def _namespace(operation: str, tail: str, needs: Permission, **more: object) -> Route:
    return Route(operation, "POST", f"/v1/namespace/{{id}}/{tail}", needs, _NAMESPACE, **more)  # type: ignore[arg-type]


def _table(operation: str, tail: str, needs: Permission, **more: object) -> Route:
    return Route(operation, "POST", f"/v1/table/{{id}}/{tail}", needs, _TABLE, **more)  # type: ignore[arg-type]


ROUTES: tuple[Route, ...] = (
    _namespace("CreateNamespace", "create", _WRITE),
    Route("ListNamespaces", "GET", "/v1/namespace/{id}/list", _LOOK, _NAMESPACE, query=_PAGE, body=BodyKind.NONE),
    _namespace("DescribeNamespace", "describe", _LOOK, tagged=True),
    _namespace("DropNamespace", "drop", _MANAGE),
    _namespace("NamespaceExists", "exists", _LOOK, answer=Answer.EMPTY),
    Route(
        "ListTables", "GET", "/v1/namespace/{id}/table/list", _LOOK, _NAMESPACE, (*_PAGE, _DECLARED), body=BodyKind.NONE
    ),
    Route(
        "ListAllTables",
        "GET",
        "/v1/table",
        _LOOK,
        RouteTarget.NONE,
        (*_PAGE, _DECLARED),
        body=BodyKind.NONE,
        request="ListTablesRequest",
        response="ListTablesResponse",
    ),
    _table("RegisterTable", "register", _MANAGE),
    _table("DescribeTable", "describe", _LOOK, query=_DESCRIBE, tagged=True),
    _table("TableExists", "exists", _LOOK, answer=Answer.EMPTY),
    _table("DropTable", "drop", _DROP, body=BodyKind.NONE),
    _table("DeregisterTable", "deregister", _DROP),
    _table("RestoreTable", "restore", _WRITE),
    _table("RenameTable", "rename", _WRITE),
    _table(
        "UpdateTableSchemaMetadata",
        "schema_metadata/update",
        _WRITE,
        query=(_BRANCH,),
        body=BodyKind.MAP,
        answer=Answer.MAP,
    ),
    _table(
        "ListTableVersions",
        "version/list",
        _LOOK,
        query=(_BRANCH, *_PAGE, Param("descending", ParameterKind.BOOL)),
        body=BodyKind.NONE,
    ),
    _table("CreateTableVersion", "version/create", _WRITE),
    _table("DescribeTableVersion", "version/describe", _LOOK, tagged=True),
    _table("BatchDeleteTableVersions", "version/delete", _DROP),
    Route("BatchCreateTableVersions", "POST", "/v1/table/version/batch-create", _WRITE, RouteTarget.NONE),
    Route("BatchCommitTables", "POST", "/v1/table/batch-commit", _WRITE, RouteTarget.NONE),
    _table("AlterTableAlterColumns", "alter_columns", _WRITE),
    _table("UpdateFieldMetadata", "update_field_metadata", _WRITE),
    _table("AlterTableDropColumns", "drop_columns", _WRITE),
    _table("GetTableStats", "stats", _LOOK),
    _table("InsertIntoTable", "insert", _WRITE, query=(_BRANCH, Param("mode")), body=BodyKind.ARROW),
    _table("MergeInsertIntoTable", "merge_insert", _WRITE, query=_MERGE, body=BodyKind.ARROW),
    _table("UpdateTable", "update", _WRITE),
    _table("DeleteFromTable", "delete", _WRITE),
    _table("QueryTable", "query", _SELECT, answer=Answer.ARROW),
    _table("CountTableRows", "count_rows", _SELECT, answer=Answer.NUMBER),
    _table("CreateTable", "create", _WRITE, query=_CREATE, body=BodyKind.ARROW),
    _table("ExplainTableQueryPlan", "explain_plan", _SELECT, answer=Answer.TEXT),
    _table("AnalyzeTableQueryPlan", "analyze_plan", _SELECT, answer=Answer.TEXT),
    _table("AlterTableAddColumns", "add_columns", _WRITE),
    _table("AlterTableBackfillColumns", "backfill_column", _WRITE, status=202),
    Route("RefreshMaterializedView", "POST", "/v1/materialized_view/{id}/refresh", _WRITE, _VIEW, status=202),
    Route("CreateMaterializedView", "POST", "/v1/materialized_view/{id}/create", _WRITE, _VIEW, status=201),
    _table("CreateTableIndex", "create_index", _WRITE),
    _table("CreateTableScalarIndex", "create_scalar_index", _WRITE, request="CreateTableIndexRequest"),
    _table("ListTableIndices", "index/list", _LOOK),
    _table("DescribeTableIndexStats", "index/{index_name}/stats", _LOOK),
    _table("DropTableIndex", "index/{index_name}/drop", _WRITE, query=(_BRANCH,), body=BodyKind.NONE),
    _table("ListTableTags", "tags/list", _LOOK, query=_PAGE, body=BodyKind.NONE),
    _table("GetTableTagVersion", "tags/version", _LOOK),
    _table("DeclareTable", "declare", _WRITE),
    _table("CreateTableTag", "tags/create", _WRITE),
    _table("DeleteTableTag", "tags/delete", _WRITE),
    _table("UpdateTableTag", "tags/update", _WRITE),
    _table("ListTableBranches", "branches/list", _LOOK, query=_PAGE, body=BodyKind.NONE),
    _table("CreateTableBranch", "branches/create", _WRITE),
    _table("DeleteTableBranch", "branches/delete", _DROP),
    Route("DescribeTransaction", "POST", "/v1/transaction/{id}/describe", _LOOK, _TRANSACTION),
    Route("AlterTransaction", "POST", "/v1/transaction/{id}/alter", _WRITE, _TRANSACTION),
)

BY_OPERATION: dict[str, Route] = {route.operation: route for route in ROUTES}

# With the delimiter `.` the root is `/v1/namespace/./list`, which clients and proxies normalise to a path
# without the `.`; these are the paths that then arrive, and they mean the root namespace.
_ROOT_PATHS = {
    ("v1", "namespace", tail): operation
    for tail, operation in (
        ("create", "CreateNamespace"),
        ("list", "ListNamespaces"),
        ("describe", "DescribeNamespace"),
        ("drop", "DropNamespace"),
        ("exists", "NamespaceExists"),
    )
}


@dataclass(frozen=True)
class Match:
    """A route, and the raw (still percent-encoded) text of its `{id}` and `{index_name}`."""

    route: Route
    id: str = ""
    index_name: str | None = None


class RouteTable:
    """An index of routes by path, with one dictionary look-up per number of placeholders."""

    def __init__(self, routes: tuple[Route, ...]) -> None:
        self._by_shape: dict[tuple[str, ...], dict[str, Route]] = {}
        self._recalled = lru_cache(4096)(self._find)
        for route in routes:
            shape = tuple("*" if part.startswith("{") else part for part in route.parts)
            self._by_shape.setdefault(shape, {})[route.verb] = route
        for path, operation in _ROOT_PATHS.items():
            route = BY_OPERATION[operation]
            self._by_shape.setdefault(path, {})[route.verb] = route

        self._without_id = {
            left
            for shape in self._by_shape
            if "*" in shape
            for at in (shape.index("*"),)
            for left in ((*shape[:at], *shape[at + 1 :]), (*shape[: at - 1], *shape[at + 1 :]))
        }

    def lost_its_id(self, path: str) -> bool:
        """Return True for the path of a route without its id: URL normalisation drops the names `.` and `..`."""
        return _parts(path) in self._without_id

    def find(self, path: str, verb: str) -> Match | tuple[str, ...]:
        """Return the match, or the verbs of this path, none for an unknown path."""
        return self._recalled(path, verb) if len(path) <= RECALLED_CHARS else self._find(path, verb)

    def _find(self, path: str, verb: str) -> Match | tuple[str, ...]:
        parts = _parts(path)
        for shape, id_at, index_at in _shapes(parts):
            verbs = self._by_shape.get(shape)
            if verbs is None:
                continue
            route = verbs.get(verb)
            if route is None:
                return tuple(sorted(verbs))
            return Match(route, parts[id_at] if id_at else "", parts[index_at] if index_at else None)
        return ()


def _parts(path: str) -> tuple[str, ...]:
    """Return the parts of a path; LanceDB's remote client ends its paths with a `/`, which means nothing."""
    return tuple(path.removesuffix("/").split("/")[1:]) or ("",)


def _shapes(parts: tuple[str, ...]) -> list[tuple[tuple[str, ...], int, int]]:
    """Return the shapes of a path, most specific first: exact, with an id, with an id and an index name."""
    shapes = [(parts, 0, 0)]
    id_at = 3 if parts[0] == EXTENSION_API else 2
    if len(parts) > id_at:
        with_id = (*parts[:id_at], "*", *parts[id_at + 1 :])
        shapes.insert(0 if len(parts) > 3 else 1, (with_id, id_at, 0))
        if len(parts) == id_at + 4:
            shapes.append(((*with_id[: id_at + 2], "*", *with_id[id_at + 3 :]), id_at, id_at + 2))
    return shapes
