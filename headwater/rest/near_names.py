"""Not-found answers that end with the most similar name."""

from __future__ import annotations

from lance_namespace import LanceNamespace, ListNamespacesRequest, ListTablesRequest

from headwater.errors import LanceNamespaceError
from headwater.names import format_name
from headwater.namespace.abilities import abilities_of
from headwater.rest.call import Call
from headwater.wording import MEANT, closest_path

EXISTS = frozenset({"TableExists", "NamespaceExists"})
"""Operations whose callers expect that there may be no such name."""
COMPARED = 1_000
"""Names of each kind in a namespace that are compared with one that does not exist."""


def with_nearest(namespace: LanceNamespace, call: Call, error: LanceNamespaceError) -> LanceNamespaceError:
    """Return a not-found error that ends with the most similar name, for a caller that may see every name.

    Other kinds of catalog than a metastore would have to list a storage for it.
    """
    may_tell = abilities_of(namespace).session is not None and call.asker.sees_everything
    if not may_tell or call.operation in EXISTS or hasattr(error, "meant"):
        return error
    near = closest_path(call.id.names, lambda parent: _names(namespace, parent))
    return error if near is None else type(error)(f"{error} {MEANT} {format_name(near)}?")


def _names(namespace: LanceNamespace, parent: tuple[str, ...]) -> list[str]:
    folders = namespace.list_namespaces(ListNamespacesRequest(id=list(parent), limit=COMPARED)).namespaces
    return [*folders, *namespace.list_tables(ListTablesRequest(id=list(parent), limit=COMPARED)).tables]
