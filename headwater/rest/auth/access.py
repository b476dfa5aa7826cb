"""Access rules, pure. A caller holds grants: permissions within a namespace prefix.

A call is checked before anything is looked up, so an answer never tells a caller whether an object outside
its scope exists. Lists show only what the caller may see.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import or_
from typing import Any

from headwater.errors import PermissionDeniedError
from headwater.names import ROOT, ObjectId, object_id
from headwater.namespace.vending import FileAccess
from headwater.rest.call import Call
from headwater.rest.routes import BY_OPERATION, NOTHING, READS, Permission, Route

LISTS = frozenset({"ListNamespaces", "ListTables", "NamespaceExists", "PageNames"})
BATCHES = frozenset({"BatchCreateTableVersions", "BatchCommitTables", "PublishStreamTables", "UndoTransaction"})
NAMING = frozenset({"id", "new_id", "new_namespace_id", "entries", "operations", "tables"})
"""The fields of requests that name objects: `needs` looks at each of them."""

_GOES = {
    "namespace": "DropNamespace",
    "table": "DropTable",
    "table_version": "DropTable",  # its verb, DropNamedVersion, needs the same
    "branch": "DeleteTableBranch",
}
"""Kinds of objects that an undo may drop, with the operation whose permission that needs."""


@dataclass(frozen=True)
class Grant:
    """Permissions on one object and on everything below it."""

    permissions: Permission
    scope: ObjectId = ROOT

    def covers(self, id: ObjectId) -> bool:
        return id.names[: self.scope.level] == self.scope.names


@dataclass(frozen=True)
class Caller:
    """An authenticated caller. `name` is for logs and limits, and holds no secret."""

    name: str
    grants: tuple[Grant, ...] = ()
    title: str = ""
    """The name of the caller for people; not unique."""

    @property
    def author(self) -> str:
        """The caller as the catalog's log names it."""
        return f"{self.title} ({self.name})" if self.title else self.name

    def may(self, permission: Permission, id: ObjectId) -> bool:
        return any(permission in grant.permissions and grant.covers(id) for grant in self.grants)

    def may_see(self, id: ObjectId) -> bool:
        """Return True for objects that the caller may read, and for the namespaces above them."""
        return any(grant.covers(id) or grant.scope.is_below(id) for grant in self.grants)

    @cached_property
    def everywhere(self) -> Permission:
        """The permissions that the caller has on the whole catalog."""
        return reduce(or_, (grant.permissions for grant in self.grants if grant.scope.is_root), NOTHING)

    @property
    def sees_everything(self) -> bool:
        return any(grant.scope.is_root for grant in self.grants)


EVERYTHING = ~NOTHING
OWNER = Caller("owner", (Grant(EVERYTHING),))


@dataclass(frozen=True)
class Need:
    """One thing that a call must be allowed to do."""

    operation: str
    permission: Permission
    id: ObjectId


def check(caller: Caller, call: Call) -> None:
    """Raise PermissionDenied (15) unless the caller may do all that the call asks."""
    if caller is OWNER:
        return
    for need in needs(call):
        if not allows(caller, need):
            raise _denied(caller, need)


def check_route(caller: Caller, route: Route, ids: tuple[ObjectId, ...]) -> None:
    """Check a caller before the body is read. `ids`: the readings of the route's id, one of which must be allowed.

    A batch names its members in its body, so here it only takes some permission to change something somewhere.
    """
    if caller is OWNER:
        return
    if route.operation in BATCHES:
        if not any(grant.permissions & ~READS for grant in caller.grants):
            raise _denied(caller, Need(route.operation, route.needs, ROOT))
        return
    asked = [Need(route.operation, route.needs, id) for id in ids]
    if not any(allows(caller, need) for need in asked):
        raise _denied(caller, asked[0])


def allows(caller: Caller, need: Need) -> bool:
    """Return True if a caller may do what is needed. A list may be asked for that leads to something it may see."""
    if need.operation in LISTS and caller.may_see(need.id):
        return True
    if need.operation == "ListAllTables" and caller.grants:
        return True
    return not need.permission or caller.may(need.permission, need.id)


def _denied(caller: Caller, need: Need) -> PermissionDeniedError:
    return PermissionDeniedError(
        f"{caller.name} may not call {need.operation} on {need.id}: it needs the permission "
        f"{str(need.permission.name).lower()} there."
    )


def needs(call: Call) -> Iterator[Need]:
    """Yield every object a call touches, with the permission that takes. Batch operations name each member."""
    route = call.route
    if route.operation == "BatchCreateTableVersions":
        for entry in call.request.entries or ():
            yield Need("CreateTableVersion", Permission.WRITE, object_id(entry.id))
    elif route.operation == "BatchCommitTables":
        yield from _batch(call.request.operations or ())
    elif route.operation == "UndoTransaction":
        pass  # which objects it touches is known where the transaction is (rest/extensions.py)
    elif route.operation in ("PublishStreamTables", "PageQuery"):
        yield from (Need(route.operation, route.needs, object_id(names)) for names in call.request.tables)
    else:
        yield Need(route.operation, route.needs, call.id)
    if getattr(call.request, "alias", None) is not None and not call.id.is_root:
        yield Need(route.operation, route.needs, call.id.parent.child(call.request.alias))
    if getattr(call.request, "reader", None) is not None:  # the catalog keeps its position, and deltas for it
        yield Need(f"{route.operation} as a reader", Permission.WRITE, call.id)
    if getattr(call.request, "location", None) is not None:  # any folder of the root: another's table, perhaps
        yield Need(f"{route.operation} with a location", route.needs, ROOT)
    if call.chosen_table is not None:  # an error of its version would tell whether the table exists
        yield Need(f"{route.operation} with a table version", route.needs or Permission.DESCRIBE, call.chosen_table)
    if route.operation == "RenameTable":
        yield Need(route.operation, route.needs, renamed(call))
    if getattr(call.request, "new_id", None) is not None:
        yield Need(route.operation, route.needs, object_id(call.request.new_id))
    if route.operation in ("CreateMaterializedView", "RefreshMaterializedView"):
        yield Need(f"{route.operation} (its query may read any table)", Permission.SELECT, ROOT)


def undo_needs(action: str, kind: str) -> Permission:
    """Return the permissions of one step of an undo: `write`, and those of the operation that does the same."""
    if kind == "snapshot":
        return Permission.WRITE | Permission.MANAGE
    does = _GOES.get(kind) if action == "drop" else None
    return Permission.WRITE if does is None else Permission.WRITE | BY_OPERATION[does].needs


def _batch(operations: Any) -> Iterator[Need]:
    members = {
        "declare_table": "DeclareTable",
        "create_table_version": "CreateTableVersion",
        "delete_table_versions": "BatchDeleteTableVersions",
        "deregister_table": "DeregisterTable",
    }
    for operation in operations:
        for field, name in members.items():
            request = getattr(operation, field)
            if request is not None:
                yield Need(name, BY_OPERATION[name].needs, object_id(request.id))
            if getattr(request, "location", None) is not None:
                yield Need(f"{name} with a location", BY_OPERATION[name].needs, ROOT)


def renamed(call: Call) -> ObjectId:
    """Return the new id of a table in a RenameTable request, by default in the same namespace."""
    new_parent = call.request.new_namespace_id
    parent = call.id.parent if new_parent is None else object_id(new_parent)
    return parent.child(call.request.new_table_name)


def is_filtered(caller: Caller, route: Route) -> bool:
    """Return True if a list must be filtered for this caller."""
    return route.operation in ("ListNamespaces", "ListTables", "ListAllTables") and not caller.sees_everything


def storage_access(caller: Caller, call: Call) -> FileAccess:
    """Return the caller's access to the files of the table of a call, by all names that decide about it."""
    names = (call.id, *call.also)
    if call.route.changes or all(caller.may(Permission.WRITE, name) for name in names):
        return FileAccess.WRITE
    return FileAccess.READ if all(caller.may(Permission.SELECT, name) for name in names) else FileAccess.NONE
