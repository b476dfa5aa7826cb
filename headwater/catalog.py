"""The friendly face: dotted names, Arrow in and out, over any catalog.

catalog = headwater.Catalog("./lake")
catalog.create_table("prod.users", pa.table({"id": [1, 2]}))
catalog["prod.users"].to_arrow()
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import lance
import lance_namespace as api
import pyarrow as pa
from lance_namespace import LanceNamespace

from headwater.config import Opening
from headwater.errors import LanceNamespaceError, UnsupportedOperationError
from headwater.names import ObjectId, check_delimiter, parse
from headwater.namespace.readers import write_rows
from headwater.tables.rows import reader_of

DOT = "."
Name = str | Sequence[str]


class Catalog:
    """A catalog by path, URI, profile name, or an open `LanceNamespace`. Names are joined by dots, or by the
    `delimiter` that is given; a name with that in it is given as a list.

    Reading a catalog that is not there is an error; creating a namespace or a table makes it, and says so.
    """

    def __init__(self, target: str | LanceNamespace | None = None, **properties: Any) -> None:
        told = properties.pop("delimiter", None) if isinstance(target, LanceNamespace) else properties.get("delimiter")
        self._delimiter = str(told) if told else DOT
        check_delimiter(self._delimiter)
        self._opening = None if isinstance(target, LanceNamespace) else Opening(target, properties)
        self.namespace: LanceNamespace = target if isinstance(target, LanceNamespace) else self._opening.namespace  # type: ignore[union-attr]

    @property
    def _there(self) -> LanceNamespace:
        """The namespace, for every call that makes no catalog."""
        return self._opening.reading() if self._opening else self.namespace

    @property
    def _made(self) -> LanceNamespace:
        """The namespace, for a call that makes the catalog if it is not there."""
        return self._opening.writing() if self._opening else self.namespace

    def _id(self, name: Name) -> ObjectId:
        return parse(name, self._delimiter) if isinstance(name, str) else ObjectId(tuple(name))

    def _list(self, name: Name) -> list[str]:
        return list(self._id(name).names)

    def __repr__(self) -> str:
        return f"Catalog({self.namespace!r})"

    def __getitem__(self, name: Name) -> CatalogTable:
        table = CatalogTable(self._there, self._id(name), self._delimiter)
        table.describe()
        return table

    def __contains__(self, name: Name) -> bool:
        there = self._there
        try:
            there.table_exists(api.TableExistsRequest(id=self._list(name)))
        except LanceNamespaceError as error:
            if int(error.code) in (1, 4):
                return False
            raise
        return True

    def create_namespace(self, name: Name, properties: Mapping[str, str] | None = None, exist_ok: bool = False) -> None:
        """Create a namespace, and the missing ones above it."""
        id = self._id(name)
        for above in id.ancestors:
            self._made.create_namespace(api.CreateNamespaceRequest(id=list(above.names), mode="ExistOk"))
        mode = "ExistOk" if exist_ok else "Create"
        request = api.CreateNamespaceRequest(id=list(id.names), mode=mode, properties=dict(properties or {}))
        self._made.create_namespace(request)

    def alter_namespace(
        self, name: Name, properties: Mapping[str, str] | None = None, removed: Iterable[str] = ()
    ) -> dict[str, str]:
        """Set and remove properties of a namespace; the others stay. Not every kind of catalog can."""
        alter = getattr(self._there, "alter_namespace_properties", None)
        if alter is None:
            raise UnsupportedOperationError("This catalog cannot change the properties of a namespace.")
        answer = alter({"id": self._list(name), "properties": dict(properties or {}), "removed": list(removed)})
        return dict(answer.properties or {})

    def drop_namespace(self, name: Name, cascade: bool = False) -> None:
        behavior = "Cascade" if cascade else "Restrict"
        self._there.drop_namespace(api.DropNamespaceRequest(id=self._list(name), behavior=behavior))

    def namespaces(self, parent: Name = "") -> list[str]:
        """Names of the namespaces in a namespace (the root when not told)."""
        return list(self._pages("namespaces", self._there.list_namespaces, api.ListNamespacesRequest, parent))

    def tables(self, parent: Name = "") -> list[str]:
        """Names of the tables in a namespace (the root when not told)."""
        return list(self._pages("tables", self._there.list_tables, api.ListTablesRequest, parent))

    def create_table(
        self, name: Name, data: Any, mode: str = "create", properties: Mapping[str, str] | None = None
    ) -> CatalogTable:
        """Create a table from Arrow data, a data frame or a list of rows, and the namespaces above it.

        `mode` is create, exist_ok or overwrite. Equal-length lists of floats in rows become a vector column.
        """
        id = self._id(name)
        if id.level > 1:
            self.create_namespace(id.parent.names, exist_ok=True)
        request = api.CreateTableRequest(id=list(id.names), mode=mode, properties=dict(properties or {}) or None)
        write_rows(self._made, "create_table", request, reader_of(data, vectors=True))
        return CatalogTable(self.namespace, id, self._delimiter)

    def rename_table(self, name: Name, new: Name) -> None:
        """Give a table another name, also in another namespace. No data moves."""
        id, to = self._id(name), self._id(new)
        request = api.RenameTableRequest(
            id=list(id.names), new_table_name=to.name, new_namespace_id=list(to.parent.names)
        )
        self._there.rename_table(request)

    def drop_table(self, name: Name) -> None:
        self._there.drop_table(api.DropTableRequest(id=self._list(name)))

    def tree(self) -> str:
        """The whole catalog as a drawing."""
        return "\n".join([".", *self._branches(ObjectId(), "")])

    def _branches(self, parent: ObjectId, indent: str) -> Iterator[str]:
        folders = self.namespaces(parent.names)
        tables = self.tables(parent.names)
        for position, name in enumerate((*folders, *tables), start=1):
            last = position == len(folders) + len(tables)
            is_folder = position <= len(folders)
            yield f"{indent}{'└── ' if last else '├── '}{name}{'/' if is_folder else ''}"
            if is_folder:
                yield from self._branches(parent.child(name), indent + ("    " if last else "│   "))

    def _pages(self, field: str, operation: Any, request: Any, parent: Name) -> Iterator[str]:
        token = None
        while True:
            answer = operation(request(id=self._list(parent), page_token=token, limit=1000))
            yield from getattr(answer, field)
            token = answer.page_token
            if not token:
                return


class CatalogTable:
    """One table of a catalog."""

    def __init__(self, namespace: LanceNamespace, id: ObjectId, delimiter: str = DOT) -> None:
        self.namespace = namespace
        self.id = id
        self._delimiter = delimiter

    def __repr__(self) -> str:
        return f"CatalogTable({self.id.format(self._delimiter)!r})"

    def describe(self, **options: Any) -> api.DescribeTableResponse:
        return self.namespace.describe_table(api.DescribeTableRequest(id=list(self.id.names), **options))

    def dataset(self, version: int | None = None) -> lance.LanceDataset:
        """The table as pylance sees it, with commits going through the catalog where it manages them."""
        dataset = lance.dataset(namespace_client=self.namespace, table_id=list(self.id.names))
        return dataset if version is None else dataset.checkout_version(version)

    @property
    def schema(self) -> pa.Schema:
        schema: pa.Schema = self.dataset().schema
        return schema

    def to_arrow(
        self,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        limit: int | None = None,
        version: int | None = None,
    ) -> pa.Table:
        """The rows, or those that a SQL filter keeps."""
        chosen = list(columns) if columns is not None else None
        table: pa.Table = self.dataset(version).to_table(columns=chosen, filter=filter, limit=limit)
        return table

    def count(self, filter: str | None = None) -> int:
        request = api.CountTableRowsRequest(id=list(self.id.names), predicate=filter)
        answer: Any = self.namespace.count_table_rows(request)
        return int(getattr(answer, "count", answer))

    def append(self, data: Any) -> None:
        """Add rows: columns by name, in the table's own types. What would lose something is refused, by column."""
        request = api.InsertIntoTableRequest(id=list(self.id.names), mode="append")
        write_rows(self.namespace, "insert_into_table", request, reader_of(data))

    def upsert(self, data: Any, on: str | Sequence[str]) -> None:
        """Update the rows whose key is there, insert the others."""
        request = api.MergeInsertIntoTableRequest(
            id=list(self.id.names),
            on=[on] if isinstance(on, str) else list(on),
            when_matched_update_all=True,
            when_not_matched_insert_all=True,
        )
        write_rows(self.namespace, "merge_insert_into_table", request, reader_of(data))

    def clean_up(
        self, keep_versions: int | None = None, keep_days: float | None = None, grace_seconds: float = 600.0
    ) -> Any:
        """Remove old versions, and free the disk that only they hold. Tagged ones and the current one stay."""
        clean_up = getattr(self.namespace, "clean_up_table_versions", None)
        if clean_up is None:
            raise UnsupportedOperationError("This catalog cannot clean up tables.")
        return clean_up(
            list(self.id.names), keep_versions=keep_versions, keep_days=keep_days, grace_seconds=grace_seconds
        )

    def optimize(self, **policy: Any) -> Any:
        """Merge small fragments, bring the indices up to date, then clean up what is older than a week, or as told."""
        optimize = getattr(self.namespace, "optimize_table", None)
        if optimize is None:
            raise UnsupportedOperationError("This catalog cannot optimize tables.")
        return optimize(list(self.id.names), **policy)

    def delete(self, where: str) -> None:
        self.namespace.delete_from_table(api.DeleteFromTableRequest(id=list(self.id.names), predicate=where))
