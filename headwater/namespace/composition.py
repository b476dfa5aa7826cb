"""Composition of a catalog: wires store, clock and registry into its parts, once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lance_namespace import LanceNamespace

from headwater.clock import Clock
from headwater.errors import InvalidInputError
from headwater.metastore.records.ref_record import KnownRefs
from headwater.model import Table
from headwater.names import DELIMITER, ObjectId, folder_id, object_id
from headwater.namespace.creation import Creation
from headwater.namespace.operations import Operations
from headwater.namespace.versions import Maintenance, TableVersions
from headwater.namespace.versions.ranges import KeepPolicy
from headwater.registry import Registry, VersionRecords
from headwater.store import Store
from headwater.table_refs import Ref, branch_of, read_refs
from headwater.tables.handle import TableHandle
from headwater.weak_methods import weak


class ComposedNamespace(LanceNamespace):
    """The parts of a catalog. `records` is where it can keep its tables' versions, if anywhere."""

    def __init__(
        self,
        registry: Registry,
        records: VersionRecords | None,
        store: Store,
        root: str,
        clock: Clock,
        delimiter: str,
        storage_options: Mapping[str, str],
        like: TableVersions | None = None,
    ) -> None:
        self.kept: dict[Any, Any] | None = None
        self.storage_options = dict(storage_options)
        self.store = store
        self.clock = clock
        self.delimiter = delimiter
        self.registry = registry
        self.versions = TableVersions(registry, records, store, root, clock, weak(self.refs_in), like)
        self.maintenance = Maintenance(self.versions)
        self.operations = Operations(registry, store, root, clock, delimiter, self.maintenance.adopt)

    @property
    def creation(self) -> Creation:
        """CreateTable over the parts of this catalog."""
        return Creation(self.operations, self.storage_options, self.versions, self, self.check_rows)

    def handle(self, table: Table) -> TableHandle:
        client = self._lance_client if table.known.managed else None
        return TableHandle(
            table.id,
            self.operations.uri_of(table),
            self.storage_options,
            client,
            managed=client is not None,
            in_transaction=self.versions.in_transaction,
            refs=self.refs_of(table),
            kept=self.kept,
        )

    @property
    def _lance_client(self) -> ComposedNamespace:
        """The catalog that open datasets call. It must not keep them open: a cycle through Lance is never freed."""
        return self

    def refs_of(self, table: Table) -> Callable[[], KnownRefs | None] | None:
        """Asks for a table's tags and branches, where the catalog knows more of them than the table's folder."""
        return None

    def refs_in(self, table: Table) -> Iterable[Ref]:
        """Return the tags and branches of a table."""
        return read_refs(self.store, table.location)

    def check_rows(self, id: ObjectId) -> None:
        """Error 13 for a table whose rows Lance operations cannot change, because they come from elsewhere."""

    def check_columns(self, id: ObjectId, paths: Sequence[str]) -> None:
        """Error 13 for columns that Lance operations cannot change, because they are filled from elsewhere."""

    def check_branch(self, request: object) -> None:
        """Error 13 in a transaction, for a change of rows or columns of a branch, whose versions no catalog orders."""
        if self.versions.in_transaction and branch_of(getattr(request, "branch", None)) is not None:
            raise InvalidInputError(
                "A transaction cannot change a branch: its versions are kept by the storage and would be there at "
                "once, whatever becomes of the transaction. Do it before or afterwards."
            )

    def postpone(self, table: Table, policy: KeepPolicy) -> bool:
        """Return True if a clean-up is postponed: in a transaction until it ends, as files do not come back."""
        return False

    def handle_of(self, id: list[str] | None) -> TableHandle:
        return self.handle(self.operations.find_table(self.known_id(id)))

    def id_of(self, names: list[str] | None) -> ObjectId:
        return object_id(names, self.delimiter)

    def known_id(self, names: list[str] | None) -> ObjectId:
        """Return the id of a table that may be there: without namespaces a folder may have a `$` in its name."""
        if not self.registry.capabilities.namespaces:
            id = folder_id(names, self.delimiter)
            if id.is_root or DELIMITER not in id.name or self.registry.find([id]):
                return id
        return self.id_of(names)
