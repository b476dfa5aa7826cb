"""The catalog as pylance asks it on behalf of one handle, which remembers what it was told.

pylance looks at the version that it was refused, to learn whose it is. Where it cannot look, as in a table that was
moved or dropped meanwhile, it says that the commit may have landed. Who refused it knows better.
"""

from __future__ import annotations

from typing import Any

from lance_namespace import LanceNamespace

from headwater.errors import LanceNamespaceError
from headwater.tables.translate import is_unanswered


class AskedCatalog(LanceNamespace):
    """As much of a catalog as pylance asks of one."""

    def __init__(self, catalog: LanceNamespace) -> None:
        self._catalog = catalog
        self._last: LanceNamespaceError | None = None
        self._is_unknown = False

    @property
    def refusal(self) -> LanceNamespaceError | None:
        """Why the last version that was asked for was not made, if that is certain, also of those before it."""
        return None if self._is_unknown else self._last

    def namespace_id(self) -> str:
        return str(self._catalog.namespace_id())

    def create_table_version(self, request: Any) -> Any:
        try:
            answer = self._catalog.create_table_version(request)
        except Exception as error:
            self._is_unknown |= is_unanswered(error) or not isinstance(error, LanceNamespaceError)
            self._last = error if isinstance(error, LanceNamespaceError) else None
            raise
        self._last = None
        return answer

    def describe_table(self, request: Any) -> Any:
        return self._catalog.describe_table(request)

    def list_table_versions(self, request: Any) -> Any:
        return self._catalog.list_table_versions(request)

    def describe_table_version(self, request: Any) -> Any:
        return self._catalog.describe_table_version(request)
