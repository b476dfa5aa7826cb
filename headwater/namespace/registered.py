"""Every operation of `LanceNamespace` over a registry, whatever its kind: one class for all catalogs of ours.

    DirectoryNamespace, MetastoreNamespace
        RegisteredNamespace ── names ──> operations ── plans (pure) ──> registry (V1, V2, compat, metastore)
          DataMethods, VersionMethods ─> data ──> pylance, versions
            ComposedNamespace ── the parts, made once and given to one another

This class only parses requests and builds answers. Thread-safe; opening it writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import lance_namespace as api
import pyarrow as pa

from headwater.decoding.arrow import read_stream
from headwater.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    InvalidTableStateError,
    TableAlreadyExistsError,
    UnsupportedOperationError,
)
from headwater.model import Table
from headwater.names import ObjectId
from headwater.namespace import data
from headwater.namespace.abilities import CatalogAbilities
from headwater.namespace.composition import ComposedNamespace
from headwater.namespace.plans import CreateMode, DropBehavior, DropMode, check_properties, choose, own_properties
from headwater.namespace.requests import LANCE_TYPES, AlterNamespaceRequest, RenameNamespaceRequest, parse_request
from headwater.namespace.versions.methods import VersionMethods
from headwater.table_refs import branch_of
from headwater.tables.write.arrow import Counted

Work = Callable[..., Any]
"""Takes the handle of the table, the request, and for some operations rows."""
Check = Callable[[ComposedNamespace, Any], None]
"""Raises when the operation may not be done to the table of the request."""


def reads(kind: str, work: Work, *checks: Check) -> Callable[..., Any]:
    """Return a method: the request is parsed and checked, the table found, the work done.

    `kind`: the name of the request's model in `lance_namespace`.
    """

    def method(self: ComposedNamespace, request: object, *rows: object) -> object:
        parsed: Any = parse_request(getattr(api, kind), request)
        if not parsed.id:
            raise InvalidInputError("The request has no table id.")
        for check in checks:
            check(self, parsed)
        return work(self.handle_of(parsed.id), parsed, *rows)

    method.__name__ = method.__qualname__ = work.__name__
    method.__doc__ = work.__doc__
    return method


def changes(kind: str, work: Work, *checks: Check) -> Callable[..., Any]:
    """As `reads`, of a catalog that can be written; of a branch only outside of a transaction."""

    def check(catalog: ComposedNamespace, request: object) -> None:
        catalog.registry.check_writable()
        catalog.check_branch(request)

    return reads(kind, work, check, *checks)


def changes_rows(kind: str, work: Work) -> Callable[..., Any]:
    """As `changes`, of a table whose rows are not fed from elsewhere."""
    return changes(kind, work, lambda catalog, request: catalog.check_rows(catalog.id_of(request.id)))


def changes_columns(kind: str, work: Work, paths: Callable[[Any], list[str]]) -> Callable[..., Any]:
    """As `changes`, of columns that are there and are not fed from elsewhere; `paths` names them."""
    return changes(
        kind, work, lambda catalog, request: catalog.check_columns(catalog.id_of(request.id), paths(request))
    )


class DataMethods(ComposedNamespace):
    """A new operation on data is one function in `namespace/data` and one row here.

    A row names the model of its request, which is imported at the first call.
    """

    count_table_rows = reads("CountTableRowsRequest", data.count_table_rows)
    merge_insert_into_table = changes_rows("MergeInsertIntoTableRequest", data.merge_insert_into_table)
    update_table = changes_rows("UpdateTableRequest", data.update_table)
    delete_from_table = changes_rows("DeleteFromTableRequest", data.delete_from_table)
    query_table = reads("QueryTableRequest", data.query_table)
    explain_table_query_plan = reads("ExplainTableQueryPlanRequest", data.explain_table_query_plan)
    analyze_table_query_plan = reads("AnalyzeTableQueryPlanRequest", data.analyze_table_query_plan)
    create_table_index = changes("CreateTableIndexRequest", data.create_table_index)
    create_table_scalar_index = changes("CreateTableIndexRequest", data.create_table_scalar_index)
    list_table_indices = reads("ListTableIndicesRequest", data.list_table_indices)
    describe_table_index_stats = reads("DescribeTableIndexStatsRequest", data.describe_table_index_stats)
    drop_table_index = changes("DropTableIndexRequest", data.drop_table_index)
    get_table_stats = reads("GetTableStatsRequest", data.get_table_stats)
    alter_table_add_columns = changes("AlterTableAddColumnsRequest", data.alter_table_add_columns)
    alter_table_alter_columns = changes_columns(
        "AlterTableAlterColumnsRequest",
        data.alter_table_alter_columns,
        lambda request: [entry.path for entry in request.alterations],
    )
    alter_table_drop_columns = changes_columns(
        "AlterTableDropColumnsRequest", data.alter_table_drop_columns, lambda request: list(request.columns)
    )
    alter_table_backfill_columns = changes("AlterTableBackfillColumnsRequest", data.alter_table_backfill_columns)
    list_table_tags = reads("ListTableTagsRequest", data.list_table_tags)
    get_table_tag_version = reads("GetTableTagVersionRequest", data.get_table_tag_version)
    create_table_tag = changes("CreateTableTagRequest", data.create_table_tag)
    update_table_tag = changes("UpdateTableTagRequest", data.update_table_tag)
    delete_table_tag = changes("DeleteTableTagRequest", data.delete_table_tag)
    list_table_branches = reads("ListTableBranchesRequest", data.list_table_branches)
    create_table_branch = changes("CreateTableBranchRequest", data.create_table_branch)
    delete_table_branch = changes("DeleteTableBranchRequest", data.delete_table_branch)
    restore_table = changes_rows("RestoreTableRequest", data.restore_table)
    update_table_schema_metadata = changes("UpdateTableSchemaMetadataRequest", data.update_table_schema_metadata)
    update_field_metadata = changes("UpdateFieldMetadataRequest", data.update_field_metadata)
    merge_insert_reader = changes_rows("MergeInsertIntoTableRequest", data.merge_insert_reader)
    query_batches = reads("QueryTableRequest", data.query_batches)


NO_VIEWS = "Materialized views are not supported: their queries are opaque to this catalog."


class RegisteredNamespace(VersionMethods, DataMethods):
    """A catalog whose names live in a registry."""

    def abilities(self) -> CatalogAbilities:
        """Return the abilities of this catalog beyond the interface, for a server."""
        return CatalogAbilities(
            delimiter=self.delimiter,
            store=self.store,
            root=self.operations.root_uri,
            storage_options=self.storage_options,
            create_table_rows=self.create_table_reader,
            insert_rows=self.insert_reader,
            merge_rows=self.merge_insert_reader,
            query_rows=self.query_batches,
            alter_namespace=self.alter_namespace_properties,
            rename_namespace=self.rename_namespace if self.registry.capabilities.rename_namespaces else None,
            clean_up=self.clean_up_table_versions,
            optimize=self.optimize_table,
            current_state=self.registry.capabilities.current_state,
            lacks_schema=self.lacks_schema,
            retries=lambda: self.operations.retries,
            verify=self.verify,
            migrate=self.migrate,
        )

    # Namespaces

    def create_namespace(self, request: api.CreateNamespaceRequest) -> api.CreateNamespaceResponse:
        request = parse_request(api.CreateNamespaceRequest, request)
        mode = choose(CreateMode, request.mode, CreateMode.CREATE)
        found = self.operations.create_namespace(self.id_of(request.id), mode, check_properties(request.properties))
        return api.CreateNamespaceResponse(properties=dict(found.properties))

    def list_namespaces(self, request: api.ListNamespacesRequest) -> api.ListNamespacesResponse:
        request = parse_request(api.ListNamespacesRequest, request)
        names, token = self.operations.list_namespaces(self.id_of(request.id), request.page_token, request.limit)
        return api.ListNamespacesResponse(namespaces=names, page_token=token)

    def describe_namespace(self, request: api.DescribeNamespaceRequest) -> api.DescribeNamespaceResponse:
        request = parse_request(api.DescribeNamespaceRequest, request)
        found = self.operations.describe_namespace(self.id_of(request.id))
        return api.DescribeNamespaceResponse(properties=dict(found.properties))

    def namespace_exists(self, request: api.NamespaceExistsRequest) -> api.NamespaceExistsResponse:
        request = parse_request(api.NamespaceExistsRequest, request)
        self.operations.describe_namespace(self.id_of(request.id))
        return api.NamespaceExistsResponse()

    def alter_namespace_properties(self, request: AlterNamespaceRequest) -> api.DescribeNamespaceResponse:
        """Set `properties` of a namespace and remove those in `removed`, atomically; the answer is what it has then.

        Not an operation of the Lance protocol: an extension of ours, over REST too. What two callers alter at the same
        time both stays. A property to remove that is not there is no error.
        """
        request = parse_request(AlterNamespaceRequest, request)
        properties = check_properties(request.properties)
        found = self.operations.alter_namespace(self.id_of(request.id), properties, request.removed)
        return api.DescribeNamespaceResponse(properties=dict(found.properties))

    def rename_namespace(self, request: RenameNamespaceRequest) -> api.DescribeNamespaceResponse:
        """Give a namespace another name, another parent or both: `id` becomes `new_id`, with all below it.

        Not an operation of the Lance protocol: an extension of ours. No data moves. Unsupported (0) in catalogs whose
        tables are named by their place.
        """
        request = parse_request(RenameNamespaceRequest, request)
        found = self.operations.rename_namespace(self.id_of(request.id), self.id_of(request.new_id))
        return api.DescribeNamespaceResponse(properties=dict(found.properties))

    def drop_namespace(self, request: api.DropNamespaceRequest) -> api.DropNamespaceResponse:
        request = parse_request(api.DropNamespaceRequest, request)
        mode = choose(DropMode, request.mode, DropMode.FAIL)
        behavior = choose(DropBehavior, request.behavior, DropBehavior.RESTRICT)
        found = self.operations.drop_namespace(self.id_of(request.id), mode, behavior)
        return api.DropNamespaceResponse(properties=dict(found.properties) if found else None)

    # Tables

    def list_tables(self, request: api.ListTablesRequest) -> api.ListTablesResponse:
        request = parse_request(api.ListTablesRequest, request)
        declared = request.include_declared is not False
        names, token = self.operations.list_tables(self.id_of(request.id), request.page_token, request.limit, declared)
        return api.ListTablesResponse(tables=names, page_token=token)

    def list_all_tables(self, request: api.ListTablesRequest) -> api.ListTablesResponse:
        request = parse_request(api.ListTablesRequest, request)
        declared = request.include_declared is not False
        names, token = self.operations.list_all_tables(request.page_token, request.limit, self.delimiter, declared)
        return api.ListTablesResponse(tables=names, page_token=token)

    def describe_table(self, request: api.DescribeTableRequest) -> api.DescribeTableResponse:
        request = parse_request(api.DescribeTableRequest, request)
        # A transaction that asked for the newest version would conflict with every append of others.
        newest = not self.versions.in_transaction
        table = self.operations.find_table(self.known_id(request.id), newest)
        uri = self.operations.uri_of(table)
        answer = api.DescribeTableResponse(
            table=table.id.name,
            namespace=list(table.id.parent.names),
            version=table.known.newest or None,
            location=uri,
            table_uri=self._full_uri(uri) if request.with_table_uri else None,
            storage_options=self._vended(request.vend_credentials),
            properties=self._properties_of(table),
            managed_versioning=self._managed(table),
        )
        if request.check_declared or request.load_detailed_metadata:
            answer.is_only_declared = self.operations.is_only_declared(table)
        if request.load_detailed_metadata:
            self.operations.require_table(table, bool(answer.is_only_declared))
        wanted = request.version is not None or request.tag is not None or request.branch is not None
        if wanted or (request.load_detailed_metadata and not answer.is_only_declared):
            self._describe_data(answer, table, request)
        elif request.load_detailed_metadata is None and not (
            request.context and LANCE_TYPES.items() <= request.context.items()
        ):
            schema = self.versions.schema(table)
            if schema is not None:  # an assignment is validated
                answer.var_schema = schema
        return answer

    def lacks_schema(self, id: ObjectId) -> bool:
        """Return True if DescribeTable would read a manifest for the schema, which is no answer from memory."""
        return self.versions.lacks_schema(self.operations.find_table(id, newest=True))

    def table_exists(self, request: api.TableExistsRequest) -> api.TableExistsResponse:
        request = parse_request(api.TableExistsRequest, request)
        table = self.operations.find_table(self.known_id(request.id))
        if request.version is not None:
            data.describe_data(self.handle(table), request.version, load_detailed_metadata=False)
        return api.TableExistsResponse()

    def declare_table(self, request: api.DeclareTableRequest) -> api.DeclareTableResponse:
        request = parse_request(api.DeclareTableRequest, request)
        properties = check_properties(request.properties)
        table = self.operations.declare_table(self.id_of(request.id), request.location, properties)
        return api.DeclareTableResponse(
            location=self.operations.uri_of(table),
            storage_options=self._vended(request.vend_credentials),
            properties=self._properties_of(table),
            managed_versioning=self.versions.manages_new or None,
        )

    def register_table(self, request: api.RegisterTableRequest) -> api.RegisterTableResponse:
        request = parse_request(api.RegisterTableRequest, request)
        mode = choose(CreateMode, request.mode, CreateMode.CREATE)
        properties = check_properties(request.properties)
        table = self.operations.register_table(self.id_of(request.id), request.location, mode, properties)
        return api.RegisterTableResponse(location=table.location, properties=self._properties_of(table))

    def deregister_table(self, request: api.DeregisterTableRequest) -> api.DeregisterTableResponse:
        request = parse_request(api.DeregisterTableRequest, request)
        self.settle(self.id_of(request.id))
        table = self.operations.deregister_table(self.id_of(request.id))
        return api.DeregisterTableResponse(
            id=list(table.id.names), location=self.operations.uri_of(table), properties=self._properties_of(table)
        )

    def drop_table(self, request: api.DropTableRequest) -> api.DropTableResponse:
        request = parse_request(api.DropTableRequest, request)
        table = self.operations.drop_table(self.known_id(request.id))
        return api.DropTableResponse(
            id=list(table.id.names), location=self.operations.uri_of(table), properties=self._properties_of(table)
        )

    def rename_table(self, request: api.RenameTableRequest) -> api.RenameTableResponse:
        request = parse_request(api.RenameTableRequest, request)
        old = self.known_id(request.id)
        parent = self.id_of(request.new_namespace_id) if request.new_namespace_id is not None else None
        names = [*(old.parent if parent is None and not old.is_root else parent or old).names, request.new_table_name]
        self.operations.rename_table(old, self.id_of(names))
        return api.RenameTableResponse()

    def create_table(self, request: api.CreateTableRequest, request_data: bytes) -> api.CreateTableResponse:
        return self.create_table_reader(request, read_stream(request_data))

    def create_table_reader(self, request: object, reader: pa.RecordBatchReader) -> api.CreateTableResponse:
        """CreateTable from a stream of record batches."""
        request = parse_request(api.CreateTableRequest, request)
        mode = choose(CreateMode, request.mode, CreateMode.CREATE)
        properties, options = check_properties(request.properties), check_properties(request.storage_options)
        table, version = self.creation.create_table(self.id_of(request.id), mode, properties, reader, options)
        return api.CreateTableResponse(
            location=self.operations.uri_of(table),
            version=version,
            storage_options=self._vended(None),
            properties=self._properties_of(table),
        )

    def create_empty_table(self, request: object) -> Any:
        """The name DeclareTable had before; kept by `LanceNamespace` for old callers."""
        return self.declare_table(parse_request(api.DeclareTableRequest, request))

    def insert_into_table(
        self, request: api.InsertIntoTableRequest, request_data: bytes
    ) -> api.InsertIntoTableResponse:
        request = parse_request(api.InsertIntoTableRequest, request)
        data.insert_mode(request)
        return self.insert_reader(request, read_stream(request_data))

    def insert_reader(self, request: object, reader: pa.RecordBatchReader) -> api.InsertIntoTableResponse:
        """InsertIntoTable of batches as they come. The first insert into a table that is only declared creates it."""
        request = parse_request(api.InsertIntoTableRequest, request)
        if not request.id:
            raise InvalidInputError("The request has no table id.")
        table = self.operations.find_table(self.id_of(request.id))
        self.registry.check_writable()
        self.check_branch(request)
        self.check_rows(table.id)
        try:
            return data.insert_reader(self.handle(table), request, reader)
        except InvalidTableStateError:
            declared = self.operations.find_table(table.id)  # error 4 if it was dropped or moved since
            if branch_of(request.branch) is not None or not self.operations.is_only_declared(declared):
                raise
        counted = Counted(reader)
        try:
            _, version = self.creation.fill(declared, counted.reader)
        except TableAlreadyExistsError:
            raise ConcurrentModificationError(f"{table.id} was created by another writer: insert again.") from None
        return api.InsertIntoTableResponse(num_inserted_rows=counted.rows, version=version)

    def create_materialized_view(
        self, request: api.CreateMaterializedViewRequest
    ) -> api.CreateMaterializedViewResponse:
        """Unsupported (0), whatever is asked for: a view's query is opaque to the catalog."""
        raise UnsupportedOperationError(NO_VIEWS)

    def refresh_materialized_view(
        self, request: api.RefreshMaterializedViewRequest
    ) -> api.RefreshMaterializedViewResponse:
        """Unsupported (0), as no view can be created."""
        raise UnsupportedOperationError(NO_VIEWS)

    # Transactions are named by the table's id followed by the transaction's.

    def describe_transaction(self, request: api.DescribeTransactionRequest) -> api.DescribeTransactionResponse:
        request = parse_request(api.DescribeTransactionRequest, request)
        return data.describe_transaction(self.handle_of((request.id or [])[:-1]), request)

    def alter_transaction(self, request: api.AlterTransactionRequest) -> api.AlterTransactionResponse:
        request = parse_request(api.AlterTransactionRequest, request)
        return data.alter_transaction(self.handle_of((request.id or [])[:-1]), request)

    def _describe_data(
        self, answer: api.DescribeTableResponse, table: Table, request: api.DescribeTableRequest
    ) -> None:
        facts = data.describe_data(
            self.handle(table), request.version, bool(request.load_detailed_metadata), request.branch, request.tag
        )
        answer.version, answer.stats, answer.metadata = facts.version, facts.stats, facts.metadata
        answer.var_schema = facts.schema
        if facts.metadata is not None and not self.registry.capabilities.properties:
            answer.properties = own_properties(facts.metadata)
        if facts.arrow_schema is not None and LANCE_TYPES.items() <= (request.context or {}).items():
            answer.var_schema = data.lance_schema_to_json(facts.arrow_schema)

    def _properties_of(self, table: Table) -> dict[str, str] | None:
        return dict(table.properties) if self.registry.capabilities.properties else None

    def _managed(self, table: Table) -> bool | None:
        """Told to clients: True makes them commit through the catalog. A table of the storage is not mentioned."""
        return table.known.managed or None

    def _vended(self, asked: bool | None) -> dict[str, str] | None:
        return None if asked is False else self.storage_options or None

    @staticmethod
    def _full_uri(uri: str) -> str:
        return uri if "://" in uri else f"file://{quote(uri)}"
