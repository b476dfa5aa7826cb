"""Who may do what: pure rules. A caller holds grants; a grant is a role within a namespace prefix.

A call is checked before anything is looked up, so an answer never tells a caller whether an object outside
its scope exists. Lists show only what the caller may see.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headwater.errors import InvalidInputError, PermissionDeniedError
from headwater.names import ROOT, ObjectId, object_id
from headwater.namespace.vending import Access
from headwater.rest.routes import BY_OPERATION, Role, Route
from headwater.rest.wire import Call

ROLES = {role.name.lower(): role for role in Role}
LISTS = frozenset({"ListNamespaces", "ListTables", "NamespaceExists"})


@dataclass(frozen=True)
class Grant:
    """A role on one object and on everything below it."""

    role: Role
    scope: ObjectId = ROOT

    def covers(self, id: ObjectId) -> bool:
        return id.names[: self.scope.level] == self.scope.names


@dataclass(frozen=True)
class Caller:
    """Whoever is asking, once known. `name` is for logs and limits, and holds no secret."""

    name: str
    grants: tuple[Grant, ...] = ()

    def may(self, role: Role, id: ObjectId) -> bool:
        return any(grant.role >= role and grant.covers(id) for grant in self.grants)

    def may_see(self, id: ObjectId) -> bool:
        """What a caller may read, and the namespaces on the way there."""
        return any(grant.covers(id) or grant.scope.is_below(id) for grant in self.grants)

    @property
    def sees_everything(self) -> bool:
        return any(grant.scope.is_root for grant in self.grants)


OWNER = Caller("owner", (Grant(Role.ADMIN),))


@dataclass(frozen=True)
class Need:
    """One thing that a call must be allowed to do."""

    operation: str
    role: Role
    id: ObjectId


def role_named(name: str) -> Role:
    try:
        return ROLES[name.lower()]
    except KeyError:
        raise InvalidInputError(f"{name!r} is not a role: use {', '.join(ROLES)}.") from None


def check(caller: Caller, call: Call) -> None:
    """Raise PermissionDenied (15) unless the caller may do all that the call asks."""
    if caller is OWNER:
        return
    for need in needs(call):
        if need.operation in LISTS and caller.may_see(need.id):
            continue
        if need.operation == "ListAllTables" and caller.grants:
            continue
        if not caller.may(need.role, need.id):
            raise PermissionDeniedError(
                f"{caller.name} may not call {need.operation} on {need.id}: it needs the role "
                f"{need.role.name.lower()} there."
            )


def needs(call: Call) -> Iterator[Need]:
    """Every object a call touches, with the role that takes. Batch operations name each member."""
    route = call.route
    if route.operation == "BatchCreateTableVersions":
        for entry in call.request.entries or ():
            yield Need("CreateTableVersion", Role.WRITER, object_id(entry.id))
    elif route.operation == "BatchCommitTables":
        yield from _batch(call.request.operations or ())
    else:
        yield Need(route.operation, route.role, call.id)
    if getattr(call.request, "location", None) is not None:  # any folder of the root: another's table, perhaps
        yield Need(f"{route.operation} with a location", route.role, ROOT)
    if route.operation == "RenameTable":
        yield Need(route.operation, route.role, renamed(call))
    if route.operation in ("CreateMaterializedView", "RefreshMaterializedView"):
        yield Need(f"{route.operation} (its query may read any table)", Role.READER, ROOT)


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
                yield Need(name, BY_OPERATION[name].role, object_id(request.id))
            if getattr(request, "location", None) is not None:
                yield Need(f"{name} with a location", BY_OPERATION[name].role, ROOT)


def renamed(call: Call) -> ObjectId:
    """Where RenameTable puts a table: the same namespace unless told another."""
    new_parent = call.request.new_namespace_id
    parent = call.id.parent if new_parent is None else object_id(new_parent)
    return parent.child(call.request.new_table_name)


def is_filtered(caller: Caller, route: Route) -> bool:
    """Whether a list must be filtered for this caller."""
    return route.operation in ("ListNamespaces", "ListTables", "ListAllTables") and not caller.sees_everything


def storage_access(caller: Caller, call: Call) -> Access:
    """What the caller may do with the files of the table that a call is about."""
    if call.route.changes or caller.may(Role.WRITER, call.id):
        return Access.WRITE
    return Access.READ if caller.may(Role.READER, call.id) else Access.NONE
