"""CreateTable on a catalog that manages versions: a table's name and its version 1 are one commit."""

from __future__ import annotations

from collections.abc import Callable

from headwater.errors import ConcurrentModificationError
from headwater.model import Add, Change, RequireTable, Table, Version
from headwater.names import ObjectId
from headwater.namespace import plans
from headwater.namespace.plans import CreateMode, Facts, Ownership, Plan


class NameLostError(ConcurrentModificationError):
    """Another creator made a table of this name first, and it stays: `table`."""

    def __init__(self, table: Table) -> None:
        super().__init__(f"{table.id} was created by another writer first.")
        self.table = table


def plan_first_version(
    table: Table, version: Version, mode: CreateMode, newest_version: Callable[[ObjectId], int]
) -> Plan[Ownership]:
    """The name and the version in one commit: errors 1, 5."""

    def plan(facts: Facts) -> tuple[list[Change], Ownership]:
        plans.namespace_of(facts, table.id.parent)
        found = facts.get(table.id)
        created = isinstance(found, Table) and newest_version(found.id) > 0
        changes, owned = plans.own_name(found, table, mode, created)
        if owned.table is not table or (owned.replaced is not None and owned.replaced.location == table.location):
            raise NameLostError(owned.replaced or owned.table)
        still_empty = [RequireTable(found, 0)] if isinstance(found, Table) and owned.replaced is None else []
        return [*still_empty, *changes, Add(version)], owned

    return plan
