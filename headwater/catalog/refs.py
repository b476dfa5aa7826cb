"""The tags and branches of a table, as mappings: `table.tags["best"] = 3`, `del table.branches["try"]`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import lance_namespace as api
from lance_namespace import LanceNamespace

from headwater.errors import TableBranchNotFoundError, TableTagNotFoundError
from headwater.names import ObjectId, format_name
from headwater.namespace.requests import build
from headwater.paging import all_pages
from headwater.wording import closest_path, did_you_mean


class Tags(MutableMapping[str, int]):
    """The tags of a table: names of versions. Assignment creates or moves a tag."""

    def __init__(self, namespace: LanceNamespace, id: ObjectId) -> None:
        self._namespace = namespace
        self._id = list(id.names)

    def __getitem__(self, name: str) -> int:
        request = build(api.GetTableTagVersionRequest, id=self._id, tag=name)
        try:
            return int(self._namespace.get_table_tag_version(request).version)
        except TableTagNotFoundError as missing:
            raise _MissingTagError(f"{missing}{did_you_mean(name, self)}") from None

    def __setitem__(self, name: str, version: int) -> None:
        if name in self:
            self._namespace.update_table_tag(build(api.UpdateTableTagRequest, id=self._id, tag=name, version=version))
        else:
            self.create(name, version)

    def __delitem__(self, name: str) -> None:
        self._namespace.delete_table_tag(build(api.DeleteTableTagRequest, id=self._id, tag=name))

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._all())

    def __len__(self) -> int:
        return sum(1 for _ in self._all())

    def __repr__(self) -> str:
        return repr({name: int(found.version) for name, found in self._all()})

    def create(self, name: str, version: int, branch: str | None = None) -> None:
        """Create a tag, also of a version on a branch. Raises TableTagAlreadyExists."""
        request = build(api.CreateTableTagRequest, id=self._id, tag=name, version=version, branch=branch)
        self._namespace.create_table_tag(request)

    def branch_of(self, name: str) -> str | None:
        """Return the branch of the tagged version; None for the main branch."""
        return next((found.branch for tag, found in self._all() if tag == name), None)

    def _all(self) -> Iterator[tuple[str, Any]]:
        return all_pages(self._namespace.list_table_tags, build(api.ListTableTagsRequest, id=self._id), "tags")


class Listed(Mapping[str, Any]):
    """A mapping of the parts of a table by name, which lists them again at each access."""

    def __init__(self, namespace: LanceNamespace, id: ObjectId) -> None:
        self._namespace = namespace
        self._id = list(id.names)

    def __getitem__(self, name: str) -> Any:
        for found, item in self._all():
            if found == name:
                return item
        raise self._missing(str(name))

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._all())

    def __len__(self) -> int:
        return sum(1 for _ in self._all())

    def __repr__(self) -> str:
        return repr(list(self))

    @abstractmethod
    def _all(self) -> Iterator[tuple[str, Any]]: ...

    @abstractmethod
    def _missing(self, name: str) -> KeyError:
        """Return the error of a missing name: a KeyError, so that `in` and `get` work."""


class Branches(Listed):
    """The branches of a table other than the main one, each with its origin."""

    def create(self, name: str, version: int | None = None, branch: str | None = None) -> None:
        """Create a branch from a version, by default the newest, of the main branch or of `branch`."""
        request = build(api.CreateTableBranchRequest, id=self._id, name=name, from_version=version, from_branch=branch)
        self._namespace.create_table_branch(request)

    def __delitem__(self, name: str) -> None:
        self._namespace.delete_table_branch(build(api.DeleteTableBranchRequest, id=self._id, name=name))

    def _all(self) -> Iterator[tuple[str, Any]]:
        return all_pages(
            self._namespace.list_table_branches, build(api.ListTableBranchesRequest, id=self._id), "branches"
        )

    def _missing(self, name: str) -> KeyError:
        return _MissingBranchError(
            f"Table {format_name(self._id)} has no branch {name[:200]!r}.{did_you_mean(name, self)}"
        )


def near_name(catalog: Any, name: Any) -> str | None:
    """Return the full name of the table or namespace that is most like a name that does not exist."""
    near = closest_path(catalog._id(name).names, lambda parent: [*catalog.namespaces(parent), *catalog.tables(parent)])
    return None if near is None else format_name(near)


class Missing(KeyError):
    """A KeyError whose text is a sentence."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class _MissingTagError(Missing, TableTagNotFoundError):
    """TableTagNotFound (8)."""


class _MissingBranchError(Missing, TableBranchNotFoundError):
    """TableBranchNotFound (22)."""
