"""What a failure of a back end means in the protocol: by its exception, and else by looking at what is there.

Implementations raise what they like: `RuntimeError` for a name that is not there, for one that is, and for a service
that is down. No text is read: the kinds of exceptions on the way tell, or the names that the back end lists.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lance_namespace import LanceNamespace, ListNamespacesRequest, ListTablesRequest

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
from headwater.paging import all_pages

MAX_WORDS = 300
MAKES_TABLE = frozenset({"create_table", "declare_table", "register_table", "create_empty_table"})
NAMESPACES = frozenset(
    {"create_namespace", "describe_namespace", "drop_namespace", "namespace_exists", "list_namespaces", "list_tables"}
)
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
    """The first line of what it says, for the one who starts a server; never for its callers."""
    text = str(error).strip().splitlines()
    return (text[0][:MAX_WORDS].rstrip(".") if text else "") or type(error).__name__


def meant(namespace: LanceNamespace, operation: str, request: Any, error: Exception) -> LanceNamespaceError:
    """The error of the protocol for what a back end raised."""
    if isinstance(error, LanceNamespaceError):
        return error
    if isinstance(error, NotImplementedError):
        return UnsupportedOperationError(f"The back end of this catalog has no {operation}.")
    id = ObjectId(tuple(getattr(request, "id", None) or ()))
    for each in _chain(error):
        kind = NAMED.get(type(each).__name__)
        if kind is not None:
            return kind(_sentence(kind, id, operation))
    seen = _looked(namespace, operation, id)
    if seen is not None:
        return seen
    if isinstance(error, ValueError):
        return InvalidInputError(f"The back end refuses {operation} of {id}: {first_words(error)}.")
    return ServiceUnavailableError(
        f"The back end could not {operation} {id} ({type(error).__name__}): the log of the server has the reason."
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception, and those it was raised upon."""
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
        InvalidInputError: f"The back end refuses {operation} of {id} as it was asked.",
    }
    return said.get(kind, "The back end of this catalog cannot be reached now: try again shortly.")


def _looked(namespace: LanceNamespace, operation: str, id: ObjectId) -> LanceNamespaceError | None:
    """What the names that are there say about a call that failed; None if nothing, or if they cannot be listed."""
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
    return any(_names(namespace.list_tables, ListTablesRequest, id, "tables")) or any(
        _names(namespace.list_namespaces, ListNamespacesRequest, id, "namespaces")
    )


def _names(list_all: Any, model: Any, parent: ObjectId, field: str) -> Iterator[str]:
    """Every name in a namespace, in pages as large as the back end likes."""
    return all_pages(list_all, model(id=list(parent.names)), field, limit=None)
