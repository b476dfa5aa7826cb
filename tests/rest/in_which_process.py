"""A back end that tells in which process it runs."""

from __future__ import annotations

import os
from typing import Any

from lance_namespace import LanceNamespace, ListNamespacesResponse
from lance_namespace.errors import TableNotFoundError


class Telling(LanceNamespace):
    """Its one namespace is named by its process."""

    def namespace_id(self) -> str:
        return "telling"

    def list_namespaces(self, request: Any) -> ListNamespacesResponse:
        return ListNamespacesResponse(namespaces=[str(os.getpid())])

    def describe_table(self, request: Any) -> Any:
        raise TableNotFoundError("There is none.")
