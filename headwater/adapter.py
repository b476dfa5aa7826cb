"""Adapters of other back ends: any implementation of `lance_namespace` as a catalog of ours (`AdaptedNamespace`).

name or class ── loading ── AdaptedNamespace ── the back end

A missing operation is UnsupportedOperation (0), an error has a code of the protocol, and no failure is a 500.
Implementations raise exceptions of their choice: `RuntimeError` for a missing name, an existing name, and a service
that is down. Their texts are not parsed. The types in the exception chain decide, or else the names that the back end
lists. Most back ends keep names and locations only. An operation on rows that a back end lacks is done on its Lance
table. `open_adapted` opens a back end by its name or class, with one clear error at start.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import lance_namespace
import msgspec
from lance_namespace import (
    CreateNamespaceRequest,
    CreateNamespaceResponse,
    DescribeNamespaceRequest,
    DescribeTableRequest,
    DescribeTableResponse,
    DropNamespaceRequest,
    DropNamespaceResponse,
    LanceNamespace,
    ListNamespacesRequest,
    ListTablesRequest,
)
from pydantic import BaseModel

from headwater.errors import (
    InvalidInputError,
    LanceNamespaceError,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
    TableNotFoundError,
    ThrottlingError,
    UnsupportedOperationError,
)
from headwater.names import ObjectId
from headwater.namespace import data
from headwater.namespace.abilities import Able, CatalogAbilities
from headwater.namespace.plans import CreateMode, DropMode, choose
from headwater.paging import all_pages, page
from headwater.references import followed_all
from headwater.tables.handle import TableHandle

__all__ = ["AdaptedNamespace", "adapt", "open_adapted"]

MAX_WORDS = 300
MAKES_TABLE = frozenset({"create_table", "declare_table", "register_table", "create_empty_table"})
NAMESPACES = frozenset(
    {"create_namespace", "describe_namespace", "drop_namespace", "namespace_exists", "list_namespaces", "list_tables"}
)
TABLE_WORK = frozenset(data.__all__) & frozenset(vars(LanceNamespace)) - {"describe_transaction", "alter_transaction"}
"""Operations that need only the Lance table of a name."""
NAMED: dict[str, type[LanceNamespaceError]] = {
    "NamespaceNotFoundException": NamespaceNotFoundError,
    "NamespaceAlreadyExistsException": NamespaceAlreadyExistsError,
    "TableNotFoundException": TableNotFoundError,
    "TableAlreadyExistsException": TableAlreadyExistsError,
    "InvalidInputException": InvalidInputError,
    "AccessDeniedException": PermissionDeniedError,
    "ThrottlingException": ThrottlingError,
    "EndpointConnectionError": ServiceUnavailableError,
    "ConnectTimeoutError": ServiceUnavailableError,
    "ReadTimeoutError": ServiceUnavailableError,
}
"""Exceptions by the names of their classes, whose packages are not ours to import."""


def first_words(error: BaseException) -> str:
    """Return the first line of an exception, for the operator who starts a server, never for callers."""
    text = str(error).strip().splitlines()
    return (text[0][:MAX_WORDS].rstrip(".") if text else "") or type(error).__name__


def meant(namespace: LanceNamespace, operation: str, request: object, error: Exception) -> LanceNamespaceError:
    """Return the error of the protocol for an exception of a back end."""
    if isinstance(error, LanceNamespaceError):
        return error
    if isinstance(error, NotImplementedError):
        return UnsupportedOperationError(f"The back end of this catalog has no {operation}.")
    id = ObjectId(tuple(getattr(request, "id", None) or ()))
    for each in _chain(error):
        kind = NAMED.get(type(each).__name__)
        if kind is InvalidInputError:
            return InvalidInputError(f"The back end refuses {operation} of {id}: {first_words(each)}.")
        if kind is not None:
            return kind(_sentence(kind, id, operation))
    if (seen := _looked(namespace, operation, id)) is not None:
        return seen
    if isinstance(error, ValueError):
        return InvalidInputError(f"The back end refuses {operation} of {id}: {first_words(error)}.")
    return ServiceUnavailableError(
        f"The back end could not {operation} {id} ({type(error).__name__}): the log of the server has the reason."
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the exception and its causes."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__ or found.__context__


def _sentence(kind: type[LanceNamespaceError], id: ObjectId, operation: str) -> str:
    said = {
        NamespaceNotFoundError: f"There is no namespace {id}.",
        NamespaceAlreadyExistsError: f"There is a namespace {id} already.",
        NamespaceNotEmptyError: f"The namespace {id} is not empty: drop what is in it first.",
        TableNotFoundError: f"There is no table {id}.",
        TableAlreadyExistsError: f"There is a table {id} already.",
        PermissionDeniedError: f"The back end does not allow this server to {operation} {id}.",
        ThrottlingError: "The back end is asked too often: try again shortly.",
    }
    return said.get(kind, "The back end of this catalog cannot be reached now: try again shortly.")


def _looked(namespace: LanceNamespace, operation: str, id: ObjectId) -> LanceNamespaceError | None:
    """Return the error that the existing names imply for a failed call; None if they imply none."""
    kind: type[LanceNamespaceError] | None
    try:
        if operation in NAMESPACES:
            kind = None if id.is_root else _of_namespace(namespace, operation, id)
        elif id.level < 1:
            kind = None
        elif not id.parent.is_root and not _has_namespace(namespace, id.parent):
            return NamespaceNotFoundError(_sentence(NamespaceNotFoundError, id.parent, operation))
        else:
            there = _has_table(namespace, id)
            kind = TableAlreadyExistsError if there and operation in MAKES_TABLE else None
            kind = TableNotFoundError if not there and operation not in MAKES_TABLE else kind
    except Exception:  # it fails at this too: it is not about the name
        return None
    return None if kind is None else kind(_sentence(kind, id, operation))


def _of_namespace(namespace: LanceNamespace, operation: str, id: ObjectId) -> type[LanceNamespaceError] | None:
    there = _has_namespace(namespace, id)
    if operation == "create_namespace":
        return NamespaceAlreadyExistsError if there else None
    if not there:
        return NamespaceNotFoundError
    return NamespaceNotEmptyError if operation == "drop_namespace" and _has_children(namespace, id) else None


def _has_namespace(namespace: LanceNamespace, id: ObjectId) -> bool:
    return id.name in _names(namespace.list_namespaces, ListNamespacesRequest, id.parent, "namespaces")


def _has_table(namespace: LanceNamespace, id: ObjectId) -> bool:
    return id.name in _names(namespace.list_tables, ListTablesRequest, id.parent, "tables")


def _has_children(namespace: LanceNamespace, id: ObjectId) -> bool:
    tables = _names(namespace.list_tables, ListTablesRequest, id, "tables")
    return bool(tables or _names(namespace.list_namespaces, ListNamespacesRequest, id, "namespaces"))


def _names(list_all: Any, model: Any, parent: ObjectId, field: str) -> list[str]:
    """Return every name in a namespace."""
    return _own(list(parent.names), all_pages(list_all, model(id=list(parent.names)), field, limit=None))


def _own(parent: Sequence[str], names: Iterable[str]) -> list[str]:
    """Return names without those above them: for `shop` in `lake` the back ends of Iceberg return `lake.shop`."""
    found, above = list(names), "".join(f"{name}." for name in parent)
    return [name.removeprefix(above) for name in found] if all(name.startswith(above) for name in found) else found


log = logging.getLogger("headwater.server.adapter")
OWN_TOKEN = "headwater."
"""Tokens of pages that were cut here, because the back end gives whole lists."""


class PassedOn:
    """A descriptor that passes an operation to the back end under its own name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._operation = name

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else partial(instance.ask, self._operation)


class AdaptedNamespace(LanceNamespace):
    """A back end with its failures translated to errors of the protocol. `adapted`: the back end itself."""

    def __init__(self, adapted: LanceNamespace, impl: str = "") -> None:
        self.adapted = adapted
        self.impl = impl or f"{type(adapted).__module__}.{type(adapted).__qualname__}"

    def namespace_id(self) -> str:
        return self.adapted.namespace_id()

    def abilities(self) -> CatalogAbilities:
        """Return the abilities of the plain interface."""
        return CatalogAbilities()

    def ask(self, operation: str, *asked: object) -> Any:
        """Call an operation of the back end. Returns a model of the protocol, or raises its error."""
        try:
            return _modelled(operation, getattr(self.adapted, operation)(*asked))
        except Exception as error:
            if isinstance(error, NotImplementedError | UnsupportedOperationError) and operation in TABLE_WORK:
                return self._work_on_table(operation, *asked)
            known = meant(self.adapted, operation, asked[0], error)
            if not isinstance(error, (LanceNamespaceError, NotImplementedError)):
                line = {"backend": self.impl, "operation": operation, "failure": first_words(error)}
                log.info(msgspec.json.encode(line).decode())
            raise known from None

    def _work_on_table(self, operation: str, request: Any, *rows: Any) -> Any:
        """Do an operation on rows, columns, indices or references on the Lance table at the location of a name."""
        told = self.ask("describe_table", DescribeTableRequest(id=request.id))
        return getattr(data, operation)(self._handle(request.id, told), request, *rows)

    def _handle(self, id: list[str] | None, told: DescribeTableResponse) -> TableHandle:
        uri, options, managed = str(told.location), dict(told.storage_options or {}), bool(told.managed_versioning)
        return TableHandle(ObjectId(tuple(id or ())), uri, options, self if managed else None, managed=managed)

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

    def create_namespace(self, request: CreateNamespaceRequest) -> Any:
        """Call CreateNamespace. With the mode ExistOk a namespace that is there is kept."""
        try:
            return self.ask("create_namespace", request)
        except NamespaceAlreadyExistsError:
            if choose(CreateMode, request.mode, CreateMode.CREATE) is not CreateMode.EXIST_OK:
                raise
            there = DescribeNamespaceRequest(id=request.id)
            return CreateNamespaceResponse(properties=self.ask("describe_namespace", there).properties)

    def drop_namespace(self, request: DropNamespaceRequest) -> Any:
        """Call DropNamespace. With the mode Skip a namespace that is not there is no error."""
        try:
            return self.ask("drop_namespace", request)
        except NamespaceNotFoundError:
            if choose(DropMode, request.mode, DropMode.FAIL) is not DropMode.SKIP:
                raise
            return DropNamespaceResponse()

    def list_namespaces(self, request: ListNamespacesRequest) -> Any:
        return self._page("list_namespaces", request, "namespaces")

    def list_tables(self, request: ListTablesRequest) -> Any:
        return self._page("list_tables", request, "tables")

    def table_exists(self, request: object) -> Any:
        """Call TableExists, or DescribeTable if the back end lacks it."""
        return self._or("table_exists", request, "describe_table", DescribeTableRequest)

    def namespace_exists(self, request: object) -> Any:
        return self._or("namespace_exists", request, "describe_namespace", DescribeNamespaceRequest)

    def describe_table(self, request: DescribeTableRequest) -> Any:
        """Call DescribeTable. Details that the back end cannot give are read from the Lance table."""
        try:
            return self.ask("describe_table", request)
        except LanceNamespaceError as error:
            wanted = getattr(request, "load_detailed_metadata", None)
            if not wanted or int(error.code) in (1, 4):
                raise
            told = self.ask("describe_table", request.model_copy(update={"load_detailed_metadata": None}))
            with suppress(LanceNamespaceError):  # nothing is there yet, or nothing that can be read from here
                facts = data.describe_data(self._handle(request.id, told), request.version)
                details = {"var_schema": facts.schema, "stats": facts.stats, "metadata": facts.metadata}
                return told.model_copy(update={"version": facts.version, **details})
            return told

    def _or(self, operation: str, request: Any, other: str, model: type[BaseModel]) -> Any:
        try:
            return self.ask(operation, request)
        except UnsupportedOperationError:
            self.ask(other, model(id=request.id))
            return None

    def _page(self, operation: str, request: Any, field: str) -> Any:
        """Return a page of names, cut here if the back end returns more than the limit."""
        token, limit = request.page_token, request.limit
        own = token is not None and token.startswith(OWN_TOKEN)
        whole = request.model_copy(update={"page_token": None, "limit": None})
        answer = self.ask(operation, whole if own else request)
        names = _own(request.id or (), getattr(answer, field) or ())
        if not own and (limit is None or len(names) <= limit):
            return answer.model_copy(update={field: names})
        after = token.removeprefix(OWN_TOKEN) if own else None
        names, more = page(sorted(names, key=str.encode), after, limit)
        return answer.model_copy(update={field: names, "page_token": None if more is None else OWN_TOKEN + more})


def adapt(namespace: LanceNamespace) -> LanceNamespace:
    """Return Headwater catalogs unchanged, and wrap any other `LanceNamespace`."""
    return namespace if isinstance(namespace, Able) else AdaptedNamespace(namespace)


def _modelled(operation: str, answer: object) -> Any:
    """Return the answer as a model of the protocol; some back ends return dictionaries."""
    model = getattr(lance_namespace, f"{operation.title().replace('_', '')}Response", None)
    if isinstance(answer, dict) and model is not None:
        return model.model_validate(answer)
    return answer


IMPLS = "lance_namespace_impls"
IMPLS_NAMES = ("glue", "hive2", "hive3", "iceberg", "polaris", "unity")
"""Names that the package of implementations registers, listed here so that its absence can be reported."""
ANSWER_SECONDS = 30.0
ANSWERED = (UnsupportedOperationError, InvalidInputError)
"""Errors of a back end that works: some cannot list the root, and want a warehouse or a catalog to begin with."""


def open_adapted(impl: str, properties: Mapping[str, object]) -> AdaptedNamespace:
    """Open the back end of a name (`glue`) or a class (`package.module.Class`). Errors 13, 0."""
    kind = find_class(impl)
    given = {key: str(value) for key, value in followed_all(properties).items()}
    try:
        return AdaptedNamespace(kind(**given), impl)
    except ImportError as missing:
        raise UnsupportedOperationError(
            f"The back end {impl} needs a package that is not installed: {first_words(missing)}."
        ) from None
    except LanceNamespaceError:
        raise
    except Exception as error:
        raise InvalidInputError(
            f"The back end {impl} cannot be opened with these properties ({', '.join(sorted(given)) or 'none'}): "
            f"{first_words(error)}."
        ) from None


def find_class(impl: str) -> type[LanceNamespace]:
    """Return the class of a name or of a dotted path."""
    path = _path(impl)
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as missing:
        raise UnsupportedOperationError(
            f"The back end {impl} needs the module {missing.name}, which is not installed."
        ) from None
    except (ImportError, AttributeError):
        raise InvalidInputError(f"There is no class {name} in the module {module}.") from None
    if not (inspect.isclass(found) and issubclass(found, LanceNamespace)):
        raise InvalidInputError(f"{impl} is not an implementation of lance_namespace.LanceNamespace.")
    return found


def _path(impl: str) -> str:
    has_impls = importlib.util.find_spec(IMPLS) is not None
    if has_impls:
        importlib.import_module(IMPLS)  # registers its names
    registered = lance_namespace._REGISTERED_IMPLS.get(impl)
    if registered is not None:
        return str(registered)
    if "." in impl.strip("."):
        return impl
    if impl in IMPLS_NAMES:
        raise UnsupportedOperationError(
            f"The back end {impl} needs lance-namespace-impls: pip install 'headwater[impls]'."
        )
    known = ", ".join(("metastore", "dir", "rest", *IMPLS_NAMES))
    raise InvalidInputError(
        f"{impl[:80]!r} is not a kind of catalog: use {known}, or the class of a back end, as package.module.Class."
    )


def check_answers(namespace: AdaptedNamespace, seconds: float = ANSWER_SECONDS) -> None:
    """Raise ServiceUnavailable (17) unless the back end answers now."""
    failed: list[BaseException] = []

    def ask() -> None:
        try:
            namespace.adapted.list_namespaces(ListNamespacesRequest(id=[], limit=1))
        except Exception as error:
            request = ListNamespacesRequest(id=[])
            if not isinstance(meant(namespace.adapted, "list_namespaces", request, error), ANSWERED):
                failed.append(error)

    asking = threading.Thread(target=ask, name="headwater-adapter", daemon=True)
    asking.start()
    asking.join(seconds)
    if asking.is_alive():
        raise ServiceUnavailableError(f"The back end {namespace.impl} did not answer within {seconds:g} seconds.")
    if failed:
        raise ServiceUnavailableError(f"The back end {namespace.impl} does not answer: {first_words(failed[0])}.")
