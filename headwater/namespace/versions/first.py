"""CreateTable on a catalog that manages versions: a table's name and its version 1 are one commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headwater.errors import ConcurrentModificationError, LanceNamespaceError
from headwater.model import Add, Change, Replace, RequireLocation, RequireTable, Table, Version
from headwater.namespace import plans
from headwater.namespace.plans import CreateMode, Facts, Plan
from headwater.namespace.versions.operations import NewVersion, TableVersions
from headwater.registries.slot import Slot
from headwater.store import Store


class NameLostError(ConcurrentModificationError):
    """Another creator made a table of this name first, and it stays: `table`."""

    def __init__(self, table: Table) -> None:
        super().__init__(f"{table.id} was created by another writer first.")
        self.table = table


class FirstVersion(Slot):
    """The external manifest store of a CreateTable: `take` commits the staged manifest, and says its final path."""

    def __init__(self, store: Store, folder: str, files: Sequence[str], take: Callable[[NewVersion], str]) -> None:
        super().__init__(store, folder, 1, files)
        self.take = take

    def create_table_version(self, request: Any) -> Any:
        asked = request if isinstance(request, dict) else request.model_dump()
        new = NewVersion(
            1, asked["manifest_path"], asked.get("manifest_size"), naming_scheme=asked.get("naming_scheme")
        )
        try:
            if int(asked["version"]) != 1:
                raise ConcurrentModificationError(f"Version 1 of {self.folder} was committed by another writer.")
            self.synced.result()
            path = self.take(new)
            self.taken = True
        except LanceNamespaceError as failure:
            self.failure = self.failure or failure
            self.store.delete(f"{self.folder}/_versions/{asked['manifest_path'].rsplit('/', 1)[-1]}")
            raise
        return {"version": {"version": 1, "manifest_path": path}}


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
            return [RequireTable(found, 0), Add(version)], found
        if mode is CreateMode.CREATE:
            raise plans.already_exists(found)
        if mode is CreateMode.EXIST_OK or found.location == table.location:
            raise NameLostError(found)
        replaced.append(found)
        return [Replace(found, table), Add(version)], table

    return plan, replaced
