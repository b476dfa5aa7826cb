"""A back end of others as a catalog of ours: the same operations, with errors, models and pages of the protocol."""

from __future__ import annotations

import logging
from typing import Any

import lance_namespace
import msgspec
from lance_namespace import (
    DescribeNamespaceRequest,
    DescribeTableRequest,
    LanceNamespace,
    ListNamespacesRequest,
    ListTablesRequest,
)
from pydantic import BaseModel

from headwater.adapter.failures import first_words, meant
from headwater.errors import LanceNamespaceError, UnsupportedOperationError
from headwater.namespace.abilities import Able, CatalogAbilities
from headwater.paging import page

log = logging.getLogger("headwater.server.adapter")
OWN_TOKEN = "headwater."
"""Tokens of pages that were cut here, because the back end gives whole lists."""


def _passed_on(operation: str) -> Any:
    """The operation as the back end has it."""

    def asked(self: Any, *asked: Any) -> Any:
        return self.ask(operation, *asked)

    asked.__name__ = operation
    return asked


class AdaptedNamespace(LanceNamespace):
    """Every operation of a back end, each failure as the error that it means. `adapted` is the back end itself."""

    def __init__(self, adapted: LanceNamespace, impl: str = "") -> None:
        self.adapted = adapted
        self.impl = impl or f"{type(adapted).__module__}.{type(adapted).__qualname__}"

    def namespace_id(self) -> str:
        return self.adapted.namespace_id()

    def abilities(self) -> CatalogAbilities:
        """What the interface says, and no more."""
        return CatalogAbilities()

    def ask(self, operation: str, *asked: Any) -> Any:
        """One operation of the back end: its answer as the protocol's model, or the error of the protocol."""
        try:
            return _modelled(operation, getattr(self.adapted, operation)(*asked))
        except Exception as error:
            known = meant(self.adapted, operation, asked[0], error)
            if not isinstance(error, (LanceNamespaceError, NotImplementedError)):
                line = {"backend": self.impl, "operation": operation, "failure": first_words(error)}
                log.info(msgspec.json.encode(line).decode())
            raise known from None

    alter_table_add_columns = _passed_on("alter_table_add_columns")
    alter_table_alter_columns = _passed_on("alter_table_alter_columns")
    alter_table_backfill_columns = _passed_on("alter_table_backfill_columns")
    alter_table_drop_columns = _passed_on("alter_table_drop_columns")
    alter_transaction = _passed_on("alter_transaction")
    analyze_table_query_plan = _passed_on("analyze_table_query_plan")
    batch_commit_tables = _passed_on("batch_commit_tables")
    batch_create_table_versions = _passed_on("batch_create_table_versions")
    batch_delete_table_versions = _passed_on("batch_delete_table_versions")
    count_table_rows = _passed_on("count_table_rows")
    create_empty_table = _passed_on("create_empty_table")
    create_materialized_view = _passed_on("create_materialized_view")
    create_namespace = _passed_on("create_namespace")
    create_table = _passed_on("create_table")
    create_table_branch = _passed_on("create_table_branch")
    create_table_index = _passed_on("create_table_index")
    create_table_scalar_index = _passed_on("create_table_scalar_index")
    create_table_tag = _passed_on("create_table_tag")
    create_table_version = _passed_on("create_table_version")
    declare_table = _passed_on("declare_table")
    delete_from_table = _passed_on("delete_from_table")
    delete_table_branch = _passed_on("delete_table_branch")
    delete_table_tag = _passed_on("delete_table_tag")
    deregister_table = _passed_on("deregister_table")
    describe_namespace = _passed_on("describe_namespace")
    describe_table_index_stats = _passed_on("describe_table_index_stats")
    describe_table_version = _passed_on("describe_table_version")
    describe_transaction = _passed_on("describe_transaction")
    drop_namespace = _passed_on("drop_namespace")
    drop_table = _passed_on("drop_table")
    drop_table_index = _passed_on("drop_table_index")
    explain_table_query_plan = _passed_on("explain_table_query_plan")
    get_table_stats = _passed_on("get_table_stats")
    get_table_tag_version = _passed_on("get_table_tag_version")
    insert_into_table = _passed_on("insert_into_table")
    list_all_tables = _passed_on("list_all_tables")
    list_table_branches = _passed_on("list_table_branches")
    list_table_indices = _passed_on("list_table_indices")
    list_table_tags = _passed_on("list_table_tags")
    list_table_versions = _passed_on("list_table_versions")
    merge_insert_into_table = _passed_on("merge_insert_into_table")
    query_table = _passed_on("query_table")
    refresh_materialized_view = _passed_on("refresh_materialized_view")
    register_table = _passed_on("register_table")
    rename_table = _passed_on("rename_table")
    restore_table = _passed_on("restore_table")
    update_field_metadata = _passed_on("update_field_metadata")
    update_table = _passed_on("update_table")
    update_table_schema_metadata = _passed_on("update_table_schema_metadata")
    update_table_tag = _passed_on("update_table_tag")

    def list_namespaces(self, request: ListNamespacesRequest) -> Any:
        return self._page("list_namespaces", request, "namespaces")

    def list_tables(self, request: ListTablesRequest) -> Any:
        return self._page("list_tables", request, "tables")

    def table_exists(self, request: Any) -> Any:
        """A back end that has no such operation is asked to describe it."""
        return self._or("table_exists", request, "describe_table", DescribeTableRequest)

    def namespace_exists(self, request: Any) -> Any:
        return self._or("namespace_exists", request, "describe_namespace", DescribeNamespaceRequest)

    def describe_table(self, request: DescribeTableRequest) -> Any:
        """Details that a back end cannot give are left out of its answer."""
        try:
            return self.ask("describe_table", request)
        except LanceNamespaceError as error:
            wanted = getattr(request, "load_detailed_metadata", None)
            if not wanted or int(error.code) in (1, 4):
                raise
            return self.ask("describe_table", request.model_copy(update={"load_detailed_metadata": None}))

    def _or(self, operation: str, request: Any, other: str, model: type[BaseModel]) -> Any:
        try:
            return self.ask(operation, request)
        except UnsupportedOperationError:
            self.ask(other, model(id=request.id))
            return None

    def _page(self, operation: str, request: Any, field: str) -> Any:
        """A page; one of our own where the back end answers with more than was asked for."""
        token, limit = request.page_token, request.limit
        own = token is not None and token.startswith(OWN_TOKEN)
        whole = request.model_copy(update={"page_token": None, "limit": None})
        answer = self.ask(operation, whole if own else request)
        names = list(getattr(answer, field) or ())
        if not own and (limit is None or len(names) <= limit):
            return answer
        after = token.removeprefix(OWN_TOKEN) if own else None
        names, more = page(sorted(names, key=str.encode), after, limit)
        return answer.model_copy(update={field: names, "page_token": None if more is None else OWN_TOKEN + more})


def adapt(namespace: LanceNamespace) -> LanceNamespace:
    """A catalog of ours as it is, and any other as one of ours."""
    return namespace if isinstance(namespace, Able) else AdaptedNamespace(namespace)


def _modelled(operation: str, answer: Any) -> Any:
    """Some back ends answer some operations with plain dictionaries."""
    model = getattr(lance_namespace, f"{operation.title().replace('_', '')}Response", None)
    if isinstance(answer, dict) and model is not None:
        return model.model_validate(answer)
    return answer
