"""Several changes of a catalog in one commit (lance-rest-openapi.yaml, BatchCommitTables)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import lance_namespace as api
from lance_namespace import LanceNamespace

from headwater.arguments import check_options
from headwater.names import ObjectId
from headwater.namespace.requests import parse_request


class Batch:
    """Collects changes; they are made where its block ends, all of them or none, and none if the block raises."""

    def __init__(self, namespace: LanceNamespace, id: Callable[[Any], ObjectId]) -> None:
        self._namespace = namespace
        self._id = id
        self._operations: list[dict[str, Any]] = []

    def declare_table(
        self, name: Any, location: str | None = None, properties: Mapping[str, str] | None = None
    ) -> None:
        self._add("declare_table", name, location=location, properties=dict(properties or {}) or None)

    def deregister_table(self, name: Any) -> None:
        self._add("deregister_table", name)

    def create_version(self, name: Any, version: int, manifest_path: str, **details: Any) -> None:
        """Make a staged manifest the next version of a table."""
        check_options(details, ("branch", "manifest_size", "e_tag", "metadata", "naming_scheme"), "create_version")
        self._add("create_table_version", name, version=version, manifest_path=manifest_path, **details)

    def delete_versions(self, name: Any, first: int, last: int) -> None:
        """Forget the versions from `first` to `last`, both included."""
        self._add("delete_table_versions", name, ranges=[{"start_version": first, "end_version": last + 1}])

    def commit(self) -> None:
        operations, self._operations = self._operations, []
        if operations:
            request = parse_request(api.BatchCommitTablesRequest, {"operations": operations})
            self._namespace.batch_commit_tables(request)

    def _add(self, operation: str, name: Any, **fields: Any) -> None:
        given = {key: value for key, value in fields.items() if value is not None}
        self._operations.append({operation: {"id": list(self._id(name).names), **given}})

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.commit()
