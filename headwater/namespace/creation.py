"""CreateTable: write the data, take version 1 (or a new version) in one step, then record the name.

The data files are invisible until the version is taken, and version 1 can be taken only once, so two
creators of one name never mix. Whoever loses takes its own files back and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Protocol

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
SYNCED_WITH_RECORD = 1 << 20
"""Data files of so many bytes are synced together with the record of their version. Larger ones are synced before,
so that commits of others in the same slot do not wait for them."""


class FirstVersion(Protocol):
    """The way in which version 1 of a new table and its name are taken: by a manifest, or as records of the catalog."""

    @property
    def lost(self) -> type[ConcurrentModificationError]:
        """The error of `take` when another creator of the same name was faster."""

    def prepare(self, handle: TableHandle) -> None:
        """Called before the data files are written."""

    def take(self, handle: TableHandle, keys: Sequence[str], size: int) -> Take:
        """Take version 1 while pylance waits, and make the data files durable. `size`: their bytes."""

    def name(self) -> Table:
        """Return the table under its name, after version 1 is taken."""


@dataclass
class StoredVersion:
    """Version 1 is its manifest. The name follows it."""

    operations: Operations
    table: Table
    mode: CreateMode
    lost: ClassVar[type[ConcurrentModificationError]] = ConcurrentModificationError

    def prepare(self, handle: TableHandle) -> None:
        pass

    def take(self, handle: TableHandle, keys: Sequence[str], size: int) -> Take:
        return claiming(self.operations.store, handle, self.table.location, keys)

    def name(self) -> Table:
        """Add the name for data that is written, also one that was declared and dropped meanwhile.

        If it cannot be had, the data goes too.
        """
        operations, table = self.operations, self.table
        if not operations.registry.capabilities.namespaces:
            return table  # the folder is the name

        def plan(facts: Facts) -> tuple[list[Change], Ownership]:
            plans.namespace_of(facts, table.id.parent)
            found = facts.get(table.id)
            elsewhere = isinstance(found, Table) and found.location != table.location  # what is here, we have created
            return plans.own_name(found, table, self.mode, created=elsewhere)

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


@dataclass
class RecordedVersion:
    """The name and version 1 are one commit to the records of the catalog, made while pylance waits for the version."""

    operations: Operations
    versions: TableVersions
    table: Table
    mode: CreateMode
    declared: bool
    lost: ClassVar[type[ConcurrentModificationError]] = NameLostError
    _named: Table | None = None

    def prepare(self, handle: TableHandle) -> None:
        if self.versions.managed is not None and handle.client is not None:
            self.versions.managed.set_aside(self.versions.line(self.table))

    def take(self, handle: TableHandle, keys: Sequence[str], size: int) -> Take:
        syncs = self.operations.registry.capabilities.syncs_files and not self.versions.in_transaction
        later = keys if syncs and size <= SYNCED_WITH_RECORD else ()
        early = () if later else keys
        return recording(self.operations.store, self.table.location, early, partial(self._record, later, syncs))

    def _record(self, later: Sequence[str], syncs: bool, asked: Mapping[str, Any]) -> str:
        operations, versions, table = self.operations, self.versions, self.table
        new = NewVersion(
            1, asked["manifest_path"], asked.get("manifest_size"), naming_scheme=asked.get("naming_scheme")
        )
        staged = versions.read_all([(table, new)])[0]
        manifest = staged.line.key(staged.version.manifest_path)
        if not syncs:
            operations.store.sync([manifest])
        version = replace(staged.version, unsynced_files=(*later, manifest)) if syncs else staged.version
        plan = plan_first_version(table, version, self.mode, self.declared)
        managed = require_managed(versions)
        with managed.keeping(staged, versions.clock):
            owned = operations.run([table.id, table.id.parent], plan, seen=False, newest=True)
            self._named = owned.table
            if owned.replaced is not None:
                operations.discard(owned.replaced)
            return staged.line.object_path(managed.finish([staged])[0].manifest_path)

    def name(self) -> Table:
        assert self._named is not None  # `take` has recorded it
        return self._named


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
        return self._create(table, mode, reader, options, self._first_version(table, mode, filled is not None))

    def _first_version(self, table: Table, mode: CreateMode, declared: bool) -> FirstVersion:
        """Return how version 1 and the name of a table are taken in this catalog."""
        if self.versions.records is not None and self.versions.records.manages_versions:
            return RecordedVersion(self.operations, self.versions, table, mode, declared)
        return StoredVersion(self.operations, table, mode)

    def fill(self, declared: Table, reader: pa.RecordBatchReader) -> Created:
        """Return the first rows of a table that is only declared: errors 5 and 14 if it is not that any more, 20."""
        return self.create_table(declared.id, CreateMode.CREATE, {}, reader, {}, declared)

    def _create_over(
        self, found: Table, properties: Mapping[str, str], reader: pa.RecordBatchReader, options: Mapping[str, str]
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
        first: FirstVersion,
    ) -> Created:
        handle, store = self._handle(table, options), self.operations.store
        first.prepare(handle)
        try:
            operation = self._stage(handle, table.location, mode, reader)
        except ConcurrentModificationError:
            return self._kept(table, mode)
        keys, transaction = data_keys(table.location, operation.fragments), lance.Transaction(0, operation)

        def exists() -> bool:
            return has_version(store, table.location)

        try:
            size = sum(file.file_size_bytes or 0 for each in operation.fragments for file in each.files)
            once = OneCommit(handle, 1, first.take(handle, keys, size))
            commit_exactly(once, handle, handle.uri, transaction, exists, max_retries=0)
        except first.lost as lost:
            return self._lost(handle, lost.table if isinstance(lost, NameLostError) else table, mode, operation)
        except CommitStateUnknownError:
            raise  # It may have landed, and then these files are the table.
        except BaseException:
            discard_files(store, table.location, keys)
            raise
        return first.name(), 1

    def _lost(
        self, handle: TableHandle, table: Table, mode: CreateMode, operation: lance.LanceOperation.Overwrite
    ) -> Created:
        """Continue after another creator took version 1 of this folder: overwrite it, or discard our files."""
        if mode is CreateMode.OVERWRITE:
            return table, self._overwrite(handle, table, operation)
        discard_files(self.operations.store, table.location, data_keys(table.location, operation.fragments))
        return self._kept(table, mode)

    @staticmethod
    def _kept(table: Table, mode: CreateMode) -> Created:
        """Return the table that another writer created first, or raise TableAlreadyExists (5)."""
        return plans.own_name(table, table, mode, created=True)[1].table, None

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
        written = transaction.operation
        assert isinstance(written, lance.LanceOperation.Overwrite)
        return lance.LanceOperation.Overwrite(written.new_schema, written.fragments)

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
