"""Lists of names, a page at a time: the part of `Operations` that changes nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod

from headwater.errors import PermissionDeniedError, UnsupportedOperationError
from headwater.model import Table
from headwater.names import ROOT, ObjectId, is_name, nameable
from headwater.namespace import plans
from headwater.paging import after, check_limit, token_after
from headwater.registry import Kind, Registry

Names = tuple[list[str], str | None]


class NameLists(ABC):
    """Lists of the namespaces and tables of a registry."""

    registry: Registry
    delimiter: str

    @abstractmethod
    def is_only_declared(self, table: Table) -> bool:
        """Return True if the table is reserved or being created and has no version."""

    def list_namespaces(self, id: ObjectId, token: str | None, limit: int | None) -> Names:
        self._require_namespaces(id)
        return self._page(id, Kind.NAMESPACE, token, limit)

    def list_tables(self, id: ObjectId, token: str | None, limit: int | None, include_declared: bool = True) -> Names:
        self._require_namespaces(id)
        if include_declared:
            return self._page(id, Kind.TABLE, token, limit)
        return self._page_created(id, token, limit)

    def list_all_tables(self, token: str | None, limit: int | None, delimiter: str, include_declared: bool) -> Names:
        """Return every table of the catalog by its full identifier, a page at a time."""
        count, start = check_limit(limit), after(token) if token else ""
        tables = [item for item in self.registry.descendants(ROOT) if isinstance(item, Table)]
        flat = not self.registry.capabilities.namespaces
        asked_for = (item for item in tables if all(is_name(name, self.delimiter, flat) for name in item.id.names))
        named = ((item.id.format(delimiter), item) for item in asked_for)
        listed = sorted(((text, item) for text, item in named if text > start), key=lambda pair: pair[0])
        chosen: list[str] = []
        for text, table in listed:
            if count is not None and len(chosen) == count:
                return chosen, token_after(chosen[-1])
            if include_declared or not self._is_left_out(table):
                chosen.append(text)
        return chosen, None

    def _page(self, id: ObjectId, kind: Kind, token: str | None, limit: int | None) -> Names:
        count = check_limit(limit)
        names = self._children(id, kind, after(token) if token else "", None if count is None else count + 1)
        if not names and not id.is_root:  # which always exists, and so does what has children
            plans.namespace_of(self.registry.find([id]), id)
        if count is None or len(names) <= count:
            return names, None
        return names[:count], token_after(names[count - 1])

    def _children(self, id: ObjectId, kind: Kind, start: str, limit: int | None) -> list[str]:
        """Return names that can be asked for: other writers' rows and folders may have names that cannot."""
        found: list[str] = []
        while True:
            names = self.registry.children(id, kind, start, limit)
            found += nameable(names, self.delimiter, flat=not self.registry.capabilities.namespaces)
            if limit is None or len(names) < limit or len(found) >= limit:
                return found[:limit]
            start = names[-1]

    def _page_created(self, id: ObjectId, token: str | None, limit: int | None) -> Names:
        """Return a page without the tables that are only declared: pages of all tables until it is full."""
        count, found = check_limit(limit), list[str]()
        while True:
            names, token = self._page(id, Kind.TABLE, token, 1000 if count is None else max(count, 100))
            tables = self.registry.find(id.child(name) for name in names)
            for name in names:
                table = tables.get(id.child(name))
                if not isinstance(table, Table) or self._is_left_out(table):
                    continue
                if count is not None and len(found) == count:
                    return found, token_after(found[-1])
                found.append(name)
            if token is None:
                return found, None

    def _is_left_out(self, table: Table) -> bool:
        """Return True if a list of created tables leaves this table out; a table that cannot be read stays in."""
        try:
            return self.is_only_declared(table)
        except PermissionDeniedError:
            return False

    def _require_namespaces(self, id: ObjectId) -> None:
        if not id.is_root and not self.registry.capabilities.namespaces:
            raise UnsupportedOperationError(
                "A directory catalog without a manifest has no child namespaces: set manifest_enabled=true."
            )
