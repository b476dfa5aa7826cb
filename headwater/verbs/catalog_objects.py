"""Verbs about one namespace or table that the Lance document has no operation for."""

from __future__ import annotations

import msgspec
from msgspec import field

from headwater.namespace.versions import Cleaned, Optimized
from headwater.verbs.verb import ObjectRequest, Permission, SessionKind, VerbSession, WorkPlace, require, verb


class AlterNamespaceProperties(ObjectRequest, frozen=True, kw_only=True):
    """Arguments of AlterNamespaceProperties: properties to set, and names of properties to remove."""

    properties: dict[str, str] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)


class RenameNamespace(ObjectRequest, frozen=True, kw_only=True):
    """Arguments of RenameNamespace. `new_id`: the names that the namespace gets, from the root down."""

    new_id: list[str] | None = None


class CleanUpTableVersions(ObjectRequest, frozen=True, kw_only=True):
    """Arguments of CleanUpTableVersions: the versions that stay."""

    keep_versions: int | None = None
    keep_days: float | None = None
    grace_seconds: float | None = None


class OptimizeTable(CleanUpTableVersions, frozen=True, kw_only=True):
    """Arguments of OptimizeTable: the versions that stay."""


@verb("namespace/{id}/properties", Permission.WRITE, WorkPlace.SERVER, SessionKind.TRANSACTION, "properties")
def alter_namespace(session: VerbSession, request: AlterNamespaceProperties) -> dict[str, str] | None:
    """Set and remove properties of a namespace; the others stay."""
    alter = require(session.can.alter_namespace, "cannot change the properties of a namespace")
    properties: dict[str, str] | None = alter(msgspec.to_builtins(request)).properties
    return properties


@verb("namespace/{id}/rename", Permission.WRITE, WorkPlace.SERVER, SessionKind.TRANSACTION, "properties")
def rename_namespace(session: VerbSession, request: RenameNamespace) -> dict[str, str] | None:
    """Rename or move a namespace with all below it; no data moves."""
    rename = require(session.can.rename_namespace, "cannot rename a namespace: a metastore catalog can")
    properties: dict[str, str] | None = rename(msgspec.to_builtins(request)).properties
    return properties


@verb("table/{id}/clean_up", Permission.DROP, WorkPlace.LONG, SessionKind.TRANSACTION)
def clean_up(session: VerbSession, request: CleanUpTableVersions) -> Cleaned:
    """Delete old versions of a table and the files that only they need."""
    found: Cleaned = require(session.can.clean_up, "cannot clean up tables")(list(request.id), **_policy(request))
    return found


@verb("table/{id}/optimize", Permission.DROP, WorkPlace.LONG, SessionKind.TRANSACTION)
def optimize(session: VerbSession, request: OptimizeTable) -> Optimized:
    """Merge small fragments of a table, update its indices, then delete old versions."""
    found: Optimized = require(session.can.optimize, "cannot optimize tables")(list(request.id), **_policy(request))
    return found


def _policy(request: CleanUpTableVersions) -> dict[str, float]:
    named = {"keep_versions": request.keep_versions, "keep_days": request.keep_days}
    given = {**named, "grace_seconds": request.grace_seconds}
    return {name: value for name, value in given.items() if value is not None}
