"""A back end of others as a catalog of ours: the same operations, with errors, models and pages of the protocol."""

from __future__ import annotations

import logging
from functools import partial
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


class PassedOn:
    """An operation as the back end has it, under the name that it is given in the class."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._operation = name

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else partial(instance.ask, self._operation)


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

    alter_table_add_columns = PassedOn()
    alter_table_alter_columns = PassedOn()
    alter_table_backfill_columns = PassedOn()
    alter_table_drop_columns = PassedOn()
    alter_transaction = PassedOn()
    analyze_table_query_plan = PassedOn()
    batch_commit_tables = PassedOn()
    batch_create_table_versions = PassedOn()
    batch_delete_table_versions = PassedOn()
    count_table_rows = PassedOn()
    create_empty_table = PassedOn()
    create_materialized_view = PassedOn()
    create_namespace = PassedOn()
    create_table = PassedOn()
    create_table_branch = PassedOn()
    create_table_index = PassedOn()
    create_table_scalar_index = PassedOn()
    create_table_tag = PassedOn()
    create_table_version = PassedOn()
    declare_table = PassedOn()
    delete_from_table = PassedOn()
    delete_table_branch = PassedOn()
    delete_table_tag = PassedOn()
    deregister_table = PassedOn()
    describe_namespace = PassedOn()
    describe_table_index_stats = PassedOn()
    describe_table_version = PassedOn()
    describe_transaction = PassedOn()
    drop_namespace = PassedOn()
    drop_table = PassedOn()
    drop_table_index = PassedOn()
    explain_table_query_plan = PassedOn()
    get_table_stats = PassedOn()
    get_table_tag_version = PassedOn()
    insert_into_table = PassedOn()
    list_all_tables = PassedOn()
    list_table_branches = PassedOn()
    list_table_indices = PassedOn()
    list_table_tags = PassedOn()
    list_table_versions = PassedOn()
    merge_insert_into_table = PassedOn()
    query_table = PassedOn()
    refresh_materialized_view = PassedOn()
    register_table = PassedOn()
    rename_table = PassedOn()
    restore_table = PassedOn()
    update_field_metadata = PassedOn()
    update_table = PassedOn()
    update_table_schema_metadata = PassedOn()
    update_table_tag = PassedOn()

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
