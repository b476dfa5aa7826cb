"""Plans of version changes in a managed catalog, pure: facts in, changes or an error out."""

from __future__ import annotations

from collections.abc import Sequence

from headwater.errors import ConcurrentModificationError
from headwater.model import Add, Change, Remove, RequireTable, Table, Version
from headwater.names import ObjectId
from headwater.namespace import plans
from headwater.namespace.plans import CreateMode, Facts, Ownership, Plan


class NameLostError(ConcurrentModificationError):
    """Another creator made a table of this name first, and it stays: `table`."""

    def __init__(self, table: Table) -> None:
        super().__init__(f"{table.id} was created by another writer first.")
        self.table = table


def plan_first_version(table: Table, version: Version, mode: CreateMode, declared: bool = False) -> Plan[Ownership]:
    """The name and the version in one commit: errors 1, 5. Pure; the facts have the newest version.

    `declared`: the table is there, and filled; error 14 if another writer has dropped or moved it meanwhile.
    """

    def plan(facts: Facts) -> tuple[list[Change], Ownership]:
        plans.namespace_of(facts, table.id.parent)
        found = same_table(facts, table) if declared else facts.get(table.id)
        created = isinstance(found, Table) and found.known.newest > 0
        changes, owned = plans.own_name(found, table, mode, created)
        if owned.table is not table or (owned.replaced is not None and owned.replaced.location == table.location):
            raise NameLostError(owned.replaced or owned.table)
        still_empty = [RequireTable(found, 0)] if isinstance(found, Table) and owned.replaced is None else []
        return [*still_empty, *changes, Add(version)], owned

    return plan


def same_table(facts: Facts, table: Table) -> Table:
    """The table as it is now, or ConcurrentModification (14) when it is not the one that was found."""
    found = facts.get(table.id)
    if not isinstance(found, Table) or found.location != table.location:
        raise ConcurrentModificationError(f"{table.id} was dropped or made anew by another writer: look again.")
    return found


def plan_next_version(table: Table, version: Version, newest: int) -> list[Change]:
    """CreateTableVersion: a version follows the newest one of its table: error 14."""
    if newest and version.number != newest + 1:
        raise taken(table.id, version.number, newest)
    return [RequireTable(table, newest), Add(version)]


def plan_forget_versions(versions: Sequence[Version]) -> list[Change]:
    """BatchDeleteTableVersions: the records go, each as it was found."""
    return [Remove(item) for item in versions]


def taken(table: ObjectId, number: int, newest: int) -> ConcurrentModificationError:
    """Code 14: in every released client the document's code 12 means TableColumnNotFound (architecture, decisions)."""
    what = "already exists" if number <= newest else f"does not follow the newest one, {newest}"
    return ConcurrentModificationError(
        f"Version {number} of table {table} {what}: read version {newest} and commit on top of it."
    )
