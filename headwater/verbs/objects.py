"""Verbs about one namespace or table that the Lance document has no operation for."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import field

from headwater.namespace.versions import Cleaned, Optimized
from headwater.verbs.verb import ObjectRequest, Permission, Sessions, VerbSession, WorkPlace, require, verb


class AlterNamespaceProperties(ObjectRequest, frozen=True, kw_only=True):
    """Arguments of AlterNamespaceProperties: properties to set, and names of properties to remove."""

    properties: dict[str, str] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)


class NamespaceProperties(msgspec.Struct, frozen=True):
    """All properties of a namespace."""

    properties: Mapping[str, str] | None


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


@verb("namespace/{id}/properties", Permission.WRITE, WorkPlace.SERVER, Sessions.TRANSACTION)
def alter_namespace(session: VerbSession, request: AlterNamespaceProperties) -> NamespaceProperties:
    """Set and remove properties of a namespace; those that are not named stay."""
    alter = require(session.can.alter_namespace, "cannot change the properties of a namespace")
    return NamespaceProperties(alter(msgspec.to_builtins(request)).properties)


@verb("namespace/{id}/rename", Permission.WRITE, WorkPlace.SERVER, Sessions.TRANSACTION)
def rename_namespace(session: VerbSession, request: RenameNamespace) -> NamespaceProperties:
    """Give a namespace another name or parent, with all below it; no data moves."""
    rename = require(session.can.rename_namespace, "cannot rename a namespace: a metastore catalog can")
    return NamespaceProperties(rename(msgspec.to_builtins(request)).properties)


@verb("table/{id}/clean_up", Permission.DROP, WorkPlace.LONG, Sessions.TRANSACTION)
def clean_up(session: VerbSession, request: CleanUpTableVersions) -> Cleaned:
    """Remove old versions of a table and free the disk only they hold."""
    found: Cleaned = require(session.can.clean_up, "cannot clean up tables")(list(request.id), **_policy(request))
    return found


@verb("table/{id}/optimize", Permission.DROP, WorkPlace.LONG, Sessions.TRANSACTION)
def optimize(session: VerbSession, request: OptimizeTable) -> Optimized:
    """Merge small fragments, bring indices up to date, then clean up."""
    found: Optimized = require(session.can.optimize, "cannot optimize tables")(list(request.id), **_policy(request))
    return found


def _policy(request: CleanUpTableVersions) -> dict[str, float]:
    named = {"keep_versions": request.keep_versions, "keep_days": request.keep_days}
    given = {**named, "grace_seconds": request.grace_seconds}
    return {name: value for name, value in given.items() if value is not None}
