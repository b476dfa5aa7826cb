"""Back ends as others write them: they answer in part, and fail each in its own way."""

from __future__ import annotations

from typing import Any

import lance_namespace as api


class EntityNotFoundException(Exception):  # as botocore calls it
    """The service's own error."""


class Shelf(api.LanceNamespace):
    """Two levels, whole lists, RuntimeError for everything, and NotImplementedError where nothing was written yet."""

    def __init__(self, **properties: str) -> None:
        self.properties = properties
        self.shelves: dict[str, dict[str, str]] = {"books": {f"b{number}": "" for number in range(5)}, "empty": {}}

    def namespace_id(self) -> str:
        return "Shelf"

    def list_namespaces(self, request: Any) -> Any:
        return api.ListNamespacesResponse(namespaces=[] if request.id else list(reversed(self.shelves)))

    def describe_namespace(self, request: Any) -> Any:
        if not request.id:
            return api.DescribeNamespaceResponse(properties={})
        if request.id[0] not in self.shelves:
            raise RuntimeError("no such shelf")
        return api.DescribeNamespaceResponse(properties={"owner": "ann"})

    def create_namespace(self, request: Any) -> Any:
        if len(request.id) != 1:
            raise ValueError("A shelf stands on the floor")
        if request.id[0] in self.shelves:
            raise RuntimeError("is there")
        self.shelves[request.id[0]] = {}
        return api.CreateNamespaceResponse()

    def drop_namespace(self, request: Any) -> Any:
        if self.shelves[request.id[0]]:
            raise RuntimeError("there are books in it")
        del self.shelves[request.id[0]]
        return api.DropNamespaceResponse()

    def list_tables(self, request: Any) -> Any:
        try:
            return api.ListTablesResponse(tables=list(self.shelves[request.id[0]]) if request.id else [])
        except KeyError:
            raise RuntimeError("failed") from EntityNotFoundException()

    def describe_table(self, request: Any) -> Any:
        if request.load_detailed_metadata:
            raise RuntimeError("no details")
        shelf, book = request.id
        if book == "cursed":
            raise RuntimeError("password=hunter2")
        return {"location": f"/shelves/{shelf}/{self.shelves[shelf][book] or book}", "properties": {"colour": "red"}}

    def declare_table(self, request: Any) -> Any:
        shelf, book = request.id
        if book in self.shelves[shelf]:
            raise RuntimeError("is there")
        self.shelves[shelf][book] = book
        return api.DeclareTableResponse(location=f"/shelves/{shelf}/{book}")

    def rename_table(self, request: Any) -> Any:
        raise NotImplementedError

    def query_table(self, request: Any) -> Any:
        raise NotImplementedError


class Mute(Shelf):
    """Its service is down."""

    def list_namespaces(self, request: Any) -> Any:
        raise ConnectionError("Could not connect to the service")
