"""Several tables in one commit: BatchCreateTableVersions and BatchCommitTables on a catalog that manages versions.

The plan goes through the operations in order, each seeing what those before it did; all changes are then one commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headwater.errors import InvalidInputError
from headwater.model import CatalogObject, Change, Remove, RequireTable, Table, Version
from headwater.names import ObjectId
from headwater.namespace import plans
from headwater.namespace.operations import Operations
from headwater.namespace.versions.managed import ManagedVersions, StagedVersion
from headwater.namespace.versions.operations import FoundVersion, NewVersion, TableVersions
from headwater.namespace.versions.ranges import VersionRange
from headwater.namespace.versions.stored_versions import VersionLine

MAX_OPERATIONS = 1000


@dataclass(frozen=True)
class Declare:
    """DeclareTable, in a batch."""

    id: ObjectId
    location: str
    properties: Mapping[str, str]


@dataclass(frozen=True)
class Create:
    """CreateTableVersion, in a batch."""

    id: ObjectId
    asked: NewVersion


@dataclass(frozen=True)
class Delete:
    """DeleteTableVersions, in a batch."""

    id: ObjectId
    ranges: Sequence[VersionRange]
    ignore_missing: bool = True


@dataclass(frozen=True)
class Deregister:
    """DeregisterTable, in a batch."""

    id: ObjectId


BatchOperation = Declare | Create | Delete | Deregister
Result = Table | FoundVersion | int


@dataclass
class _Plan:
    """The plan of a batch so far."""

    facts: dict[ObjectId, CatalogObject]
    changes: list[Change] = field(default_factory=list)
    results: list[Table | StagedVersion | list[Version]] = field(default_factory=list)
    newest: dict[ObjectId, int] = field(default_factory=dict)


class BatchCommit:
    """Batches over a catalog that manages versions, and batches of names alone over any that records names."""

    def __init__(self, operations: Operations, versions: TableVersions, managed: ManagedVersions) -> None:
        self.operations = operations
        self.versions = versions
        self.managed = managed

    def commit(self, batch: Sequence[BatchOperation]) -> list[Result]:
        """All or nothing: errors 1, 4, 5, 11, 13, 14."""
        if not batch or len(batch) > MAX_OPERATIONS:
            raise InvalidInputError(f"A batch has at least one operation and at most {MAX_OPERATIONS}.")
        _require_each_once(batch)
        ids = {part for item in batch for part in (item.id, item.id.parent)}
        plan = self.operations.run(sorted(ids), lambda facts: self._plan(facts, batch), newest=True)
        self._after(batch, plan)
        created = iter(self.managed.finish([item for item in plan.results if isinstance(item, StagedVersion)]))
        return [self._result(item, created) for item in plan.results]

    def _plan(self, facts: plans.Facts, batch: Sequence[BatchOperation]) -> tuple[list[Change], _Plan]:
        plan = _Plan(dict(facts))
        for item in batch:
            match item:
                case Declare():
                    self._declare(plan, item)
                case Create():
                    self._create(plan, item)
                case Delete():
                    self._delete(plan, item)
                case Deregister():
                    changes, table = plans.plan_remove_table(plan.facts, item.id, keep_data=True)
                    plan.changes += changes
                    plan.results.append(table)
                    del plan.facts[item.id]
        return plan.changes, plan

    def _declare(self, plan: _Plan, item: Declare) -> None:
        changes, table = plans.plan_declare_table(plan.facts, item.id, item.location, item.properties)
        plan.changes += changes
        plan.facts[item.id] = table
        plan.results.append(table)

    def _create(self, plan: _Plan, item: Create) -> None:
        table = plans.table_of(plan.facts, item.id)
        staged = self.versions.read_all([(table, item.asked)])[0]
        self.managed.secure(staged)
        plan.changes += self.managed.plan(staged, plan.newest.get(table.id, table.known.newest))
        plan.newest[table.id] = staged.version.number
        plan.results.append(staged)

    def _delete(self, plan: _Plan, item: Delete) -> None:
        table = plans.table_of(plan.facts, item.id)
        plan.changes += self.operations.registry.require_refs(table.id)
        gone = self.versions.records_of(self.versions.line(table), item.ranges, item.ignore_missing)
        if not any(isinstance(done, StagedVersion) and done.line.table.id == item.id for done in plan.results):
            plan.changes.append(RequireTable(table, table.known.newest))
        plan.changes += [Remove(version) for version in gone]
        plan.results.append(gone)

    def _after(self, batch: Sequence[BatchOperation], plan: _Plan) -> None:
        markers = self.operations.registry.capabilities.markers
        for item, result in zip(batch, plan.results, strict=True):
            if isinstance(item, Declare) and isinstance(result, Table) and markers is not None:
                markers.declare(result)
            elif isinstance(item, Delete) and isinstance(result, list) and result:
                line = VersionLine(plans.table_of(plan.facts, item.id), self.versions.root_uri)
                self.versions.delete_manifests(line, result)

    @staticmethod
    def _result(item: Table | StagedVersion | list[Version], created: object) -> Result:
        if isinstance(item, Table):
            return item
        if isinstance(item, StagedVersion):
            return FoundVersion(item.line, next(created))  # type: ignore[call-overload]
        return len(item)


def check_batch(operations: Operations, versions: TableVersions, batch: Sequence[BatchOperation]) -> None:
    """Raise the errors of a batch that cannot be one commit, before anything is changed.

    Where the storage keeps versions, nothing could undo the first operations when a later one is refused.
    """
    _require_each_once(batch)
    facts = dict(operations.registry.find(sorted({part for item in batch for part in (item.id, item.id.parent)})))
    newest: dict[ObjectId, int] = {}
    for item in batch:
        match item:
            case Declare():
                _, facts[item.id] = plans.plan_declare_table(facts, item.id, item.location, item.properties)
            case Deregister():
                plans.plan_remove_table(facts, item.id, keep_data=True)
                del facts[item.id]
            case Create():
                table = plans.table_of(facts, item.id)
                newest[item.id] = versions.check_create(table, item.asked, newest.get(item.id))
            case Delete():
                versions.check_delete(plans.table_of(facts, item.id), item.ranges)


def _require_each_once(batch: Sequence[BatchOperation]) -> None:
    """InvalidInput (13) for a version that is made twice: else it would be said that another writer was first."""
    made: set[tuple[ObjectId, int]] = set()
    for item in batch:
        if isinstance(item, Create):
            if (item.id, item.asked.version) in made:
                raise InvalidInputError(f"The batch makes version {item.asked.version} of table {item.id} twice.")
            made.add((item.id, item.asked.version))
