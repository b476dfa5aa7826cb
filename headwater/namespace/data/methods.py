"""The operations on data as `LanceNamespace` has them: each row says its request, what does it and what it touches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lance_namespace as api
from pydantic import BaseModel

from headwater.errors import InvalidInputError
from headwater.namespace import data
from headwater.namespace.composition import ComposedNamespace
from headwater.namespace.requests import parse_request

Work = Callable[..., Any]
"""Takes the handle of the table, the request, and for some operations rows."""
Check = Callable[[ComposedNamespace, Any], None]
"""Raises when the operation may not be done to the table of the request."""


def reads(kind: type[BaseModel], work: Work, *checks: Check) -> Callable[..., Any]:
    """A method: the request is parsed and checked, the table found, the work done."""

    def method(self: ComposedNamespace, request: Any, *rows: Any) -> Any:
        parsed: Any = parse_request(kind, request)
        if not parsed.id:
            raise InvalidInputError("The request has no table id.")
        for check in checks:
            check(self, parsed)
        return work(self.handle_of(parsed.id), parsed, *rows)

    method.__name__ = method.__qualname__ = work.__name__
    method.__doc__ = work.__doc__
    return method


def changes(kind: type[BaseModel], work: Work, *checks: Check) -> Callable[..., Any]:
    """As `reads`, of a catalog that can be written; of a branch only outside of a transaction."""

    def check(catalog: ComposedNamespace, request: Any) -> None:
        catalog.registry.check_writable()
        catalog.check_branch(request)

    return reads(kind, work, check, *checks)


def changes_rows(kind: type[BaseModel], work: Work) -> Callable[..., Any]:
    """As `changes`, of a table whose rows are not fed from elsewhere."""
    return changes(kind, work, lambda catalog, request: catalog.check_rows(catalog.id_of(request.id)))


def changes_columns(kind: type[BaseModel], work: Work, paths: Callable[[Any], list[str]]) -> Callable[..., Any]:
    """As `changes`, of columns that are there and are not fed from elsewhere; `paths` names them."""
    return changes(
        kind, work, lambda catalog, request: catalog.check_columns(catalog.id_of(request.id), paths(request))
    )


class DataMethods(ComposedNamespace):
    """A new operation on data is one function in `namespace/data` and one row here."""

    count_table_rows = reads(api.CountTableRowsRequest, data.count_table_rows)
    merge_insert_into_table = changes_rows(api.MergeInsertIntoTableRequest, data.merge_insert_into_table)
    update_table = changes_rows(api.UpdateTableRequest, data.update_table)
    delete_from_table = changes_rows(api.DeleteFromTableRequest, data.delete_from_table)
    query_table = reads(api.QueryTableRequest, data.query_table)
    explain_table_query_plan = reads(api.ExplainTableQueryPlanRequest, data.explain_table_query_plan)
    analyze_table_query_plan = reads(api.AnalyzeTableQueryPlanRequest, data.analyze_table_query_plan)
    create_table_index = changes(api.CreateTableIndexRequest, data.create_table_index)
    create_table_scalar_index = changes(api.CreateTableIndexRequest, data.create_table_scalar_index)
    list_table_indices = reads(api.ListTableIndicesRequest, data.list_table_indices)
    describe_table_index_stats = reads(api.DescribeTableIndexStatsRequest, data.describe_table_index_stats)
    drop_table_index = changes(api.DropTableIndexRequest, data.drop_table_index)
    get_table_stats = reads(api.GetTableStatsRequest, data.get_table_stats)
    alter_table_add_columns = changes(api.AlterTableAddColumnsRequest, data.alter_table_add_columns)
    alter_table_alter_columns = changes_columns(
        api.AlterTableAlterColumnsRequest,
        data.alter_table_alter_columns,
        lambda request: [entry.path for entry in request.alterations],
    )
    alter_table_drop_columns = changes_columns(
        api.AlterTableDropColumnsRequest, data.alter_table_drop_columns, lambda request: list(request.columns)
    )
    alter_table_backfill_columns = changes(api.AlterTableBackfillColumnsRequest, data.alter_table_backfill_columns)
    list_table_tags = reads(api.ListTableTagsRequest, data.list_table_tags)
    get_table_tag_version = reads(api.GetTableTagVersionRequest, data.get_table_tag_version)
    create_table_tag = changes(api.CreateTableTagRequest, data.create_table_tag)
    update_table_tag = changes(api.UpdateTableTagRequest, data.update_table_tag)
    delete_table_tag = changes(api.DeleteTableTagRequest, data.delete_table_tag)
    list_table_branches = reads(api.ListTableBranchesRequest, data.list_table_branches)
    create_table_branch = changes(api.CreateTableBranchRequest, data.create_table_branch)
    delete_table_branch = changes(api.DeleteTableBranchRequest, data.delete_table_branch)
    restore_table = changes_rows(api.RestoreTableRequest, data.restore_table)
    update_table_schema_metadata = changes(api.UpdateTableSchemaMetadataRequest, data.update_table_schema_metadata)
    update_field_metadata = changes(api.UpdateFieldMetadataRequest, data.update_field_metadata)
    merge_insert_reader = changes_rows(api.MergeInsertIntoTableRequest, data.merge_insert_reader)
    query_batches = reads(api.QueryTableRequest, data.query_batches)
