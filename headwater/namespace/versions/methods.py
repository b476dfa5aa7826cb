"""The version operations as `LanceNamespace` has them: requests in, answers out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lance_namespace as api

from headwater.errors import InvalidInputError
from headwater.lance_manifest import CHANGE
from headwater.model import Table
from headwater.names import ObjectId
from headwater.namespace.composition import ComposedNamespace
from headwater.namespace.plans import check_properties
from headwater.namespace.requests import parse_request
from headwater.namespace.versions.batch import (
    BatchCommit,
    BatchOperation,
    Create,
    Declare,
    Delete,
    Deregister,
    Result,
    check_batch,
)
from headwater.namespace.versions.maintenance import Cleaned, Optimized, VersionProblem, keep_policy
from headwater.namespace.versions.operations import FoundVersion, NewVersion
from headwater.namespace.versions.ranges import parse_ranges
from headwater.registries.folders import is_place
from headwater.tables.commit.committer import optimize
from headwater.tables.layout import empty_trash

GRACE_SECONDS = 600.0
KEEP_DAYS = 7.0


class VersionMethods(ComposedNamespace):
    """Operations on table versions, as `LanceNamespace` has them."""

    def list_table_versions(self, request: api.ListTableVersionsRequest) -> api.ListTableVersionsResponse:
        """A list waits for nobody and moves nothing, but for the one question by which a client begins an append.

        That is the newest version alone, in these words: limit 1, descending. docs/design/004 says why it is here.
        """
        request = parse_request(api.ListTableVersionsRequest, request)
        table = self.operations.find_table(self.id_of(request.id))
        if request.limit == 1 and request.descending is True and not request.page_token:
            self.versions.begin_append(table, request.branch)
        descending = request.descending is not False
        found, token = self.versions.page(table, request.branch, request.page_token, request.limit, descending)
        return api.ListTableVersionsResponse(versions=[_answer(item) for item in found], page_token=token)

    def describe_table_version(self, request: api.DescribeTableVersionRequest) -> api.DescribeTableVersionResponse:
        request = parse_request(api.DescribeTableVersionRequest, request)
        table = self.operations.find_table(self.id_of(request.id))
        found = self.versions.describe(table, request.version, request.branch)
        if self.versions.managed is not None:
            self.versions.managed.point_described(found.version)
        return api.DescribeTableVersionResponse(version=_answer(found))

    def create_table_version(self, request: api.CreateTableVersionRequest) -> api.CreateTableVersionResponse:
        request = parse_request(api.CreateTableVersionRequest, request)
        self.check_branch(request)
        table = self.operations.find_table(self.id_of(request.id))
        return api.CreateTableVersionResponse(
            version=_answer(self.versions.create(table, _new_version(request), request.branch))
        )

    def batch_create_table_versions(
        self, request: api.BatchCreateTableVersionsRequest
    ) -> api.BatchCreateTableVersionsResponse:
        """Atomic where the catalog manages the versions of all tables of the batch; else one after the other."""
        request = parse_request(api.BatchCreateTableVersionsRequest, request)
        if not request.entries:
            raise InvalidInputError("entries must have at least one version to create.")
        for entry in request.entries:
            self.check_branch(entry)
        entries = [(self.id_of(entry.id), _new_version(entry), entry.branch) for entry in request.entries]
        tables = [self.operations.find_table(id) for id, _, _ in entries]
        branches = any(self.versions.line(table, entry[2]).branch for table, entry in zip(tables, entries, strict=True))
        batch = None if branches else self._batch(tables)
        if batch is not None:
            results: Sequence[Result] = batch.commit([Create(id, asked) for id, asked, _ in entries])
        else:
            on_main = [Create(id, asked) for id, asked, branch in entries if branch in (None, "", "main")]
            check_batch(self.operations, self.versions, on_main)
            results = [
                self.versions.create(table, asked, branch)
                for table, (_, asked, branch) in zip(tables, entries, strict=True)
            ]
        return api.BatchCreateTableVersionsResponse(
            versions=[_answer(item) for item in results if isinstance(item, FoundVersion)]
        )

    def batch_delete_table_versions(
        self, request: api.BatchDeleteTableVersionsRequest
    ) -> api.BatchDeleteTableVersionsResponse:
        ignore_missing = _ignore_missing(request)
        request = parse_request(api.BatchDeleteTableVersionsRequest, request)
        self.check_branch(request)
        table = self.operations.find_table(self.id_of(request.id))
        count = self.versions.delete(table, parse_ranges(request.ranges), request.branch, ignore_missing)
        return api.BatchDeleteTableVersionsResponse(deleted_count=count)

    def batch_commit_tables(self, request: api.BatchCommitTablesRequest) -> api.BatchCommitTablesResponse:
        """All or nothing in one commit, where the catalog records what the batch is about: names, or managed versions.

        Where the storage keeps versions, or names are folders, one operation after the other, once all were checked.
        """
        request = parse_request(api.BatchCommitTablesRequest, request)
        if not request.operations:
            raise InvalidInputError("operations must have at least one operation.")
        for item in request.operations:
            _only_part(item)
        operations = [self._operation(item) for item in request.operations if not _is_on_branch(item)]
        names_only = all(item.declare_table or item.deregister_table for item in request.operations)
        records, managed = self.versions.records, self.versions.managed
        if records is None or managed is None or not (names_only or records.manages_versions):
            check_batch(self.operations, self.versions, operations)
            return api.BatchCommitTablesResponse(results=[self._commit_one(item) for item in request.operations])
        if len(operations) < len(request.operations):
            raise InvalidInputError("A batch commits to the main branch only: branches are kept by the storage.")
        for operation in operations:
            if isinstance(operation, Deregister):
                self.settle(operation.id, point=False)
        results = BatchCommit(self.operations, self.versions, managed).commit(operations)
        answers = [self._answer_one(*pair) for pair in zip(request.operations, results, strict=True)]
        return api.BatchCommitTablesResponse(results=answers)

    def enable_table_version_management(self) -> int:
        """Make this catalog manage table versions, for good; the versions there are recorded. Stop other writers first.

        Returns how many versions were recorded. Released pylance refuses to write names into the catalog from then on.
        """
        return self.maintenance.enable()

    def migrate(self) -> list[str]:
        """Directory V1 to V2: every table that is only a folder gets its row in `__manifest`, in one commit.

        The tables that were recorded, by their names. No data moves, and nothing is left to do a second time.
        """
        return [table.id.name for table in self.maintenance.migrate()]

    def verify(self) -> list[VersionProblem]:
        """Return everything on which the catalog and its storage disagree. Nothing is changed."""
        return self.maintenance.verify()

    def empty_trash(self) -> None:
        """Delete what interrupted drops left behind."""
        empty_trash(self.operations.store)

    def clean_up_table_versions(
        self,
        id: list[str],
        keep_versions: int | None = None,
        keep_days: float | None = None,
        grace_seconds: float = GRACE_SECONDS,
    ) -> Cleaned:
        """Remove old versions and free the disk that only they hold. The current version and tagged ones stay.

        In a transaction it is done once that is committed, and what it removes is not told.
        """
        policy = keep_policy(keep_versions, keep_days, grace_seconds)
        table = self.operations.find_table(self.id_of(id))
        self.versions.registry.check_writable()
        if self.postpone(table, policy) or not self.operations.has_data(table):
            return Cleaned()
        return self.maintenance.clean_up(table, policy)

    def optimize_table(
        self,
        id: list[str],
        keep_versions: int | None = None,
        keep_days: float | None = None,
        grace_seconds: float = GRACE_SECONDS,
    ) -> Optimized:
        """Merge small fragments, bring the indices up to date, clean up (what is older than a week, if not told; in a
        transaction once that is committed)."""
        said = keep_versions is not None or keep_days is not None
        policy = keep_policy(keep_versions, keep_days if said else KEEP_DAYS, grace_seconds)
        table = self.operations.find_table(self.id_of(id))
        self.versions.registry.check_writable()
        removed, added = optimize(self.handle(table))
        cleaned = Cleaned() if self.postpone(table, policy) else self.maintenance.clean_up(table, policy)
        return Optimized(removed, added, cleaned)

    def settle(self, id: ObjectId, point: bool = True) -> None:
        """Give every version of a managed table its final manifest, before the catalog lets go of the table.

        `point`: and let the records say so, which is a commit.
        """
        table = self.versions.registry.find([id]).get(id)
        managed = isinstance(table, Table) and table.known.managed
        if managed and isinstance(table, Table) and is_place(table.location):
            assert self.versions.managed is not None
            self.versions.managed.settle(self.versions.line(table), point)

    def _batch(self, tables: Sequence[Table]) -> BatchCommit | None:
        managed = self.versions.managed
        if managed is None or not all(table.known.managed for table in tables):
            return None
        return BatchCommit(self.operations, self.versions, managed)

    def _operation(self, item: Any) -> BatchOperation:
        if item.declare_table is not None:
            asked = item.declare_table
            id, properties = self.id_of(asked.id), check_properties(asked.properties)
            return Declare(id, self.operations.declared_place(id, asked.location, properties), properties)
        if item.create_table_version is not None:
            return Create(self.id_of(item.create_table_version.id), _new_version(item.create_table_version))
        if item.delete_table_versions is not None:
            part = item.delete_table_versions
            return Delete(self.id_of(part.id), parse_ranges(part.ranges), _ignore_missing(part))
        return Deregister(self.id_of(item.deregister_table.id))

    def _commit_one(self, item: Any) -> api.CommitTableResult:
        if item.declare_table is not None:
            return api.CommitTableResult(declare_table=self.declare_table(item.declare_table))
        if item.create_table_version is not None:
            return api.CommitTableResult(create_table_version=self.create_table_version(item.create_table_version))
        if item.delete_table_versions is not None:
            done = self.batch_delete_table_versions(item.delete_table_versions)
            return api.CommitTableResult(delete_table_versions=done)
        return api.CommitTableResult(deregister_table=self.deregister_table(item.deregister_table))

    def _answer_one(self, item: Any, result: Result) -> api.CommitTableResult:
        if isinstance(result, FoundVersion):
            return api.CommitTableResult(create_table_version=api.CreateTableVersionResponse(version=_answer(result)))
        if isinstance(result, int):
            done = api.BatchDeleteTableVersionsResponse(deleted_count=result)
            return api.CommitTableResult(delete_table_versions=done)
        location, properties = self.operations.uri_of(result), dict(result.properties)
        if item.declare_table is not None:
            managed = self.versions.manages_new or None
            declared = api.DeclareTableResponse(location=location, properties=properties, managed_versioning=managed)
            return api.CommitTableResult(declare_table=declared)
        gone = api.DeregisterTableResponse(id=list(result.id.names), location=location, properties=properties)
        return api.CommitTableResult(deregister_table=gone)


def _answer(found: FoundVersion) -> api.TableVersion:
    version = found.version
    e_tag = version.e_tag if version.e_tag is None or '"' in version.e_tag else f'"{version.e_tag}"'
    return api.TableVersion(
        version=version.number,
        manifest_path=found.line.object_path(version.manifest_path),
        manifest_size=version.manifest_size,
        e_tag=e_tag,
        timestamp_millis=version.timestamp_ms,
        metadata={**version.metadata, **({CHANGE: version.change} if version.change else {})} or None,
    )


def _new_version(request: Any) -> NewVersion:
    return NewVersion(
        request.version,
        request.manifest_path,
        request.manifest_size,
        request.e_tag,
        request.naming_scheme,
        check_properties(request.metadata),
    )


def _only_part(item: api.CommitTableOperation) -> None:
    parts = (item.declare_table, item.create_table_version, item.delete_table_versions, item.deregister_table)
    if sum(part is not None for part in parts) != 1:
        raise InvalidInputError("Each operation of a batch is exactly one of its four kinds.")


def _is_on_branch(item: api.CommitTableOperation) -> bool:
    part = item.create_table_version or item.delete_table_versions
    return part is not None and part.branch not in (None, "", "main")


def _ignore_missing(request: object) -> bool:
    """`ignore_missing`, which the directory document has and the released model has not: a field, or in the context."""
    values = request if isinstance(request, dict) else request.model_dump() if hasattr(request, "model_dump") else {}
    given = values.get("ignore_missing", (values.get("context") or {}).get("ignore_missing", True))
    return str(given).lower() != "false"
