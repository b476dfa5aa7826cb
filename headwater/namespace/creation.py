"""CreateTable: write the data, take version 1 (or a new version) in one step, then record the name.

The data files are invisible until the version is taken, and version 1 can be taken only once, so two
creators of one name never mix. Whoever loses takes its own files back and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from lance_namespace import LanceNamespace

from headwater.decoding.bounds import check_schema
from headwater.errors import CommitStateUnknownError, ConcurrentModificationError, LanceNamespaceError
from headwater.imports import lance
from headwater.model import NEW, Change, Table
from headwater.names import ObjectId
from headwater.namespace import plans
from headwater.namespace.operations import Operations
from headwater.namespace.plans import CreateMode, Facts, NameLostError, Ownership, plan_first_version, same_table
from headwater.namespace.versions.operations import NewVersion, TableVersions, require_managed
from headwater.tables.commit.exact import OneCommit, Take, claiming, commit_exactly, data_keys, recording
from headwater.tables.handle import TableHandle
from headwater.tables.layout import discard_files, has_version
from headwater.tables.translate import HoldsDataError, translating
from headwater.tables.write.arrow import Counted, with_metadata
from headwater.tables.write.input_rows import fit_new

Created = tuple[Table, int | None]


class Creation:
    """CreateTable over the operations on names. `handle` opens a table's data."""

    def __init__(
        self,
        operations: Operations,
        storage_options: dict[str, str],
        versions: TableVersions,
        client: LanceNamespace,
        check_rows: Callable[[ObjectId], None],
    ) -> None:
        """`check_rows` raises for a table whose rows Lance operations cannot change."""
        self.operations = operations
        self.storage_options = storage_options
        self.versions = versions
        self.client = client
        self.check_rows = check_rows

    def create_table(
        self,
        id: ObjectId,
        mode: CreateMode,
        properties: Mapping[str, str],
        reader: pa.RecordBatchReader,
        options: Mapping[str, str],
        filled: Table | None = None,
    ) -> Created:
        """Errors 1, 5 (mode Create), 13, 14 (not the table to be `filled` any more), 20. The answer has no version when
        ExistOk kept what was there."""
        check_schema(reader.schema)
        place, found = self.operations.prepare_create(id)
        if found is not None:
            self.check_rows(id)
        if filled is not None:
            same_table({} if found is None else {id: found}, filled)
        has_data = found is not None and self.operations.has_data(found)
        created = has_data or (found is not None and self.operations.is_taken(found))
        declared = found.properties if found is not None and not has_data else {}
        table = Table(id, place, dict(properties or declared), found.known if found is not None else NEW)
        _, owned = plans.own_name(found, table, mode, created)
        if owned.table is found:
            return found, None
        reader = with_metadata(reader, table.properties)
        if has_data and owned.replaced is not None:
            return self._create_over(owned.replaced, properties, reader, options)
        if self.versions.records is not None and self.versions.records.manages_versions:
            return self._create_managed(table, mode, reader, options, filled is not None)
        return self._create(table, mode, reader, options)

    def fill(self, declared: Table, reader: pa.RecordBatchReader) -> Created:
        """The first rows of a table that is only declared: errors 5 and 14 if it is not that any more, 20."""
        return self.create_table(declared.id, CreateMode.CREATE, {}, reader, {}, declared)

    def _create_over(
        self,
        found: Table,
        properties: Mapping[str, str],
        reader: pa.RecordBatchReader,
        options: Mapping[str, str],
    ) -> Created:
        """Overwrite of a table that has data: its next version has only these rows and this schema."""
        handle = self._handle(found, options)
        try:
            operation = self._stage(handle, found.location, CreateMode.OVERWRITE, reader)
            version = self._overwrite(handle, found, operation)
            kept = self._record_properties(found, properties)
        except CommitStateUnknownError:
            raise
        except LanceNamespaceError:
            self._require_not_dropped(found, [])
            raise
        self._require_not_dropped(found, data_keys(found.location, operation.fragments))
        return kept, version

    def _require_not_dropped(self, table: Table, keys: Sequence[str]) -> None:
        """A drop may take the folder away under an overwrite: what that wrote is garbage, and its caller is told."""
        operations = self.operations
        held = operations.registry.location_holders(table.location) or operations.registry.find([table.id])
        if held and all(operations.store.head(key) for key in keys[:1]):
            return
        operations.discard(table)
        raise ConcurrentModificationError(f"{table.id} was dropped while it was overwritten: look again and retry.")

    def _create(
        self,
        table: Table,
        mode: CreateMode,
        reader: pa.RecordBatchReader,
        options: Mapping[str, str],
    ) -> Created:
        handle = self._handle(table, options)
        try:
            operation = self._stage(handle, table.location, mode, reader)
        except ConcurrentModificationError:
            return self._kept(table, mode)
        store = self.operations.store
        keys = data_keys(table.location, operation.fragments)
        try:
            self._commit_first(handle, table, operation, claiming(store, handle, table.location, keys))
        except ConcurrentModificationError:
            return self._lost(handle, table, mode, operation)
        except CommitStateUnknownError:
            raise  # It may have landed, and then these files are the table.
        except BaseException:
            discard_files(store, table.location, keys)
            raise
        return self._record(table, mode), 1

    def _create_managed(
        self,
        table: Table,
        mode: CreateMode,
        reader: pa.RecordBatchReader,
        options: Mapping[str, str],
        declared: bool,
    ) -> Created:
        """The name and its version 1 are one commit, made while pylance waits for the version to be taken."""
        handle = self._handle(table, options)
        if self.versions.managed is not None and handle.client is not None:
            self.versions.managed.set_aside(self.versions.line(table))
        try:
            operation = self._stage(handle, table.location, mode, reader)
        except ConcurrentModificationError:
            return self._kept(table, mode)
        store, kept = self.operations.store, list[Ownership]()
        keys = data_keys(table.location, operation.fragments)

        def record(asked: dict[str, Any]) -> str:
            new = NewVersion(
                1, asked["manifest_path"], asked.get("manifest_size"), naming_scheme=asked.get("naming_scheme")
            )
            staged = self.versions.read_all([(table, new)])[0]
            store.sync([staged.line.key(staged.version.manifest_path)])
            plan = plan_first_version(table, staged.version, mode, declared)
            ids = [table.id, table.id.parent]
            managed = require_managed(self.versions)
            with managed.keeping(staged):
                kept.append(self.operations.run(ids, plan, seen=False, newest=True))
            if kept[-1].replaced is not None:
                self.operations.discard(kept[-1].replaced)
            final = managed.finish([staged])[0]
            return staged.line.object_path(final.manifest_path)

        try:
            self._commit_first(handle, table, operation, recording(store, table.location, keys, record))
        except NameLostError as lost:
            return self._lost(handle, lost.table, mode, operation)
        except CommitStateUnknownError:
            raise
        except BaseException:
            discard_files(store, table.location, keys)
            raise
        return kept[-1].table, 1

    def _commit_first(
        self, handle: TableHandle, table: Table, operation: lance.LanceOperation.Overwrite, take: Take
    ) -> None:
        """Version 1 with these fragments: errors 14 when another has it, or what `take` raises."""
        store, transaction = self.operations.store, lance.Transaction(0, operation)

        def exists() -> bool:
            return has_version(store, table.location)

        commit_exactly(OneCommit(handle, 1, take), handle, handle.uri, transaction, exists, max_retries=0)

    def _lost(
        self, handle: TableHandle, table: Table, mode: CreateMode, operation: lance.LanceOperation.Overwrite
    ) -> Created:
        """Another creator took version 1 of the same folder first."""
        if mode is CreateMode.OVERWRITE:
            return table, self._overwrite(handle, table, operation)
        discard_files(self.operations.store, table.location, data_keys(table.location, operation.fragments))
        return self._kept(table, mode)

    @staticmethod
    def _kept(table: Table, mode: CreateMode) -> Created:
        """Return the table that another writer created first, or raise TableAlreadyExists (5)."""
        return plans.own_name(table, table, mode, created=True)[1].table, None

    def _record(self, table: Table, mode: CreateMode) -> Table:
        """Add the name for data that is written, also one that was declared and dropped meanwhile.

        If it cannot be had, the data goes too.
        """
        operations = self.operations
        if not operations.registry.capabilities.namespaces:
            return table  # the folder is the name

        def plan(facts: Facts) -> tuple[list[Change], Ownership]:
            plans.namespace_of(facts, table.id.parent)
            found = facts.get(table.id)
            elsewhere = isinstance(found, Table) and found.location != table.location  # what is here, we have created
            return plans.own_name(found, table, mode, created=elsewhere)

        try:
            owned = operations.run([table.id, table.id.parent], plan, seen=False)
        except CommitStateUnknownError:
            raise
        except LanceNamespaceError:
            operations.discard(table)
            raise
        useless = owned.replaced if owned.table is table else table
        if useless is not None:
            operations.discard(useless)
        return owned.table

    def _record_properties(self, found: Table, properties: Mapping[str, str]) -> Table:
        if not properties or not self.operations.registry.capabilities.properties:
            return found
        return self.operations.set_properties(found.id, properties)

    def _stage(
        self, handle: TableHandle, location: str, mode: CreateMode, reader: pa.RecordBatchReader
    ) -> lance.LanceOperation.Overwrite:
        """Write the data files; nothing refers to them yet. A stream that breaks off leaves nothing behind.

        ConcurrentModification (14) when another has created the table and this mode does not overwrite it.
        """
        rows = Counted(fit_new(reader))
        with rows.raising():
            try:
                with translating(handle, "create"):
                    transaction = lance.fragment.write_fragments(
                        rows.reader,
                        handle.uri,
                        schema=rows.reader.schema,
                        mode="overwrite" if mode is CreateMode.OVERWRITE else "create",
                        return_transaction=True,
                        storage_options=handle.storage_options or None,
                    )
            except LanceNamespaceError as error:
                discard_files(self.operations.store, location, ())
                if isinstance(error, HoldsDataError):
                    raise ConcurrentModificationError(f"{handle.id} was created by another writer.") from None
                raise
        return lance.LanceOperation.Overwrite(transaction.operation.new_schema, transaction.operation.fragments)

    def _overwrite(self, handle: TableHandle, table: Table, operation: lance.LanceOperation.Overwrite) -> int:
        self.operations.store.sync(data_keys(table.location, operation.fragments))
        through = self._handle(table, {}).client
        with translating(handle, "overwrite"):
            dataset = lance.LanceDataset.commit(
                handle.uri,
                operation,
                storage_options=handle.storage_options or None,
                namespace_client=through,
                table_id=list(table.id.names) if through else None,
                namespace_client_managed_versioning=through is not None,
            )
        return int(dataset.version)

    def _handle(self, table: Table, options: Mapping[str, str]) -> TableHandle:
        client = self.client if table.known.managed else None
        return TableHandle(
            table.id,
            self.operations.uri_of(table),
            {**self.storage_options, **options},
            client,
            managed=client is not None,
            in_transaction=self.versions.in_transaction,
        )
