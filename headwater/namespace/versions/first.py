"""CreateTable on a catalog that manages versions: a table's name and its version 1 are one commit."""

from __future__ import annotations

from headwater.errors import ConcurrentModificationError
from headwater.model import Add, Change, Replace, RequireLocation, RequireTable, Table, Version
from headwater.namespace import plans
from headwater.namespace.plans import CreateMode, Facts, Plan
from headwater.namespace.versions.operations import TableVersions


class NameLostError(ConcurrentModificationError):
    """Another creator made a table of this name first, and it stays: `table`."""

    def __init__(self, table: Table) -> None:
        super().__init__(f"{table.id} was created by another writer first.")
        self.table = table


def plan_first_version(
    table: Table, version: Version, mode: CreateMode, versions: TableVersions
) -> tuple[Plan[Table], list[Table]]:
    """What to commit, and the tables whose folders it makes useless (filled by the plan): errors 1, 5."""
    replaced: list[Table] = []

    def plan(facts: Facts) -> tuple[list[Change], Table]:
        replaced.clear()
        plans.namespace_of(facts, table.id.parent)
        found = facts.get(table.id)
        if found is None:
            return [RequireLocation(table.location, table.id), Add(table), Add(version)], table
        if not isinstance(found, Table):
            raise plans.already_exists(found)
        if not versions.registry.newest_version(found.id) and found.location == table.location:
            return [RequireTable(found, 0), *plans.fill_declared(found, table), Add(version)], table
        if mode is CreateMode.CREATE:
            raise plans.already_exists(found)
        if mode is CreateMode.EXIST_OK or found.location == table.location:
            raise NameLostError(found)
        replaced.append(found)
        return [Replace(found, table), Add(version)], table

    return plan, replaced
